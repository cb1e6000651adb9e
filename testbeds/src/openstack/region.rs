//! A second region: the same services once more, at another address.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::api::{Service, Session, text};
use super::gateway::Gateway;
use super::project::made;
use super::{OpenStack, unique_name};

/// Dropping it removes it from the catalog.
#[derive(Debug)]
pub struct Region {
    name: String,
    admin: Session,
    endpoints: Vec<String>,
}

impl Region {
    pub(super) fn create(
        cloud: &OpenStack,
        purpose: &str,
        gateway: &Gateway,
        services: &[Service],
    ) -> Result<Self> {
        let mut region = Self {
            name: unique_name(purpose),
            admin: cloud.admin()?,
            endpoints: Vec::new(),
        };
        let body = json!({"id": region.name});
        made(
            &region.admin,
            Service::Identity,
            "/regions",
            "region",
            &body,
        )?;
        for service in services {
            region.add(*service, gateway.url_of(*service))?;
        }
        Ok(region)
    }

    fn add(&mut self, service: Service, url: &str) -> Result<()> {
        let path = format!("/services?type={service}");
        let found = self.admin.list(Service::Identity, &path, "services")?;
        let id = text(found.first().and_then(|service| service.get("id")))
            .with_context(|| format!("there is no service {service}"))?;
        let endpoint = json!({
            "service_id": id, "interface": "public", "region_id": self.name, "url": url,
        });
        let identity = Service::Identity;
        let made = made(&self.admin, identity, "/endpoints", "endpoint", &endpoint)?;
        self.endpoints.push(made);
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    fn remove(&self) -> Result<()> {
        for endpoint in &self.endpoints {
            let path = format!("/endpoints/{endpoint}");
            self.admin.delete(Service::Identity, &path)?;
        }
        let path = format!("/regions/{}", self.name);
        self.admin.delete(Service::Identity, &path)
    }
}

impl Drop for Region {
    #[expect(clippy::print_stderr, reason = "somebody should know of it")]
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("region {} could not be removed: {error:#}", self.name);
        }
    }
}
