//! Neutron: networks, ports and floating IPs.

use reqwest::Method;
use reqwest::header::IF_MATCH;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::call::Call;
use crate::error::Error;
use crate::service::Service;
use crate::session::Session;

#[derive(Debug, Clone)]
pub struct Network(Session);

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Net {
    pub id: Box<str>,
    #[serde(default)]
    pub name: Box<str>,
    /// Whether it leads out of the cloud.
    #[serde(rename = "router:external", default)]
    pub external: bool,
    #[serde(rename = "provider:physical_network", default)]
    pub physical: Option<Box<str>>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Port {
    pub id: Box<str>,
    #[serde(default)]
    pub network_id: Box<str>,
    #[serde(default)]
    pub status: Box<str>,
    #[serde(default)]
    pub device_id: Box<str>,
    #[serde(default)]
    pub device_owner: Box<str>,
    #[serde(default)]
    pub mac_address: Box<str>,
    #[serde(default)]
    pub fixed_ips: Vec<FixedIp>,
    #[serde(default)]
    pub created_at: Option<Box<str>>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct FixedIp {
    pub ip_address: Box<str>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct FloatingIp {
    pub id: Box<str>,
    #[serde(rename = "floating_ip_address", default)]
    pub address: Box<str>,
    #[serde(rename = "fixed_ip_address", default)]
    pub fixed_address: Option<Box<str>>,
    #[serde(rename = "floating_network_id", default)]
    pub network_id: Box<str>,
    #[serde(default)]
    pub port_id: Option<Box<str>>,
    #[serde(default)]
    pub status: Box<str>,
    #[serde(default)]
    pub description: Box<str>,
    /// Incremented by each change.
    #[serde(default)]
    pub revision_number: Option<i64>,
}

/// A floating IP to create, for a port.
#[derive(Debug, Clone, Serialize)]
pub struct NewFloatingIp<'a> {
    #[serde(rename = "floating_network_id")]
    pub network: &'a str,
    #[serde(rename = "port_id")]
    pub port: &'a str,
    #[serde(rename = "fixed_ip_address")]
    pub fixed_address: &'a str,
    /// The only field for tags in the call that creates it.
    pub description: &'a str,
}

#[derive(Debug, Clone, Deserialize)]
pub struct SecurityGroup {
    pub id: Box<str>,
    #[serde(default)]
    pub name: Box<str>,
}

#[derive(Deserialize)]
struct Wrapped {
    floatingip: FloatingIp,
}

/// A resource with the project that owns it, by its old and its new name.
#[derive(Deserialize)]
struct Owned<T> {
    #[serde(default)]
    tenant_id: Option<Box<str>>,
    #[serde(default)]
    project_id: Option<Box<str>>,
    #[serde(flatten)]
    resource: T,
}

impl<T> Owned<T> {
    fn is_of(&self, project: &str) -> bool {
        let owner = self.project_id.as_ref().or(self.tenant_id.as_ref());
        owner.is_none_or(|owner| **owner == *project)
    }
}

impl Network {
    pub fn new(session: Session) -> Self {
        Self(session)
    }

    fn call(&self, method: Method, what: impl Into<Box<str>>) -> Call<'_> {
        self.0.call(Service::Network, method, what)
    }

    /// Lists the networks that the project may use, including shared ones.
    pub async fn networks(&self) -> Result<Vec<Net>, Error> {
        self.call(Method::GET, "list networks")
            .path(["networks"])
            .list("networks")
            .await
    }

    pub async fn security_groups(&self) -> Result<Vec<SecurityGroup>, Error> {
        let call = self.call(Method::GET, "list security groups");
        call.path(["security-groups"]).list("security_groups").await
    }

    /// Lists the ports of the project.
    pub async fn ports(&self) -> Result<Vec<Port>, Error> {
        let call = self.call(Method::GET, "list ports").path(["ports"]);
        self.list_own(call, "ports").await
    }

    /// Lists the ports of the project with this status.
    pub async fn ports_that_are(&self, status: &str) -> Result<Vec<Port>, Error> {
        let call = self.call(Method::GET, format!("list ports that are {status}"));
        let call = call.path(["ports"]).query("status", status);
        self.list_own(call, "ports").await
    }

    pub async fn delete_port(&self, id: &str) -> Result<(), Error> {
        let call = self.call(Method::DELETE, format!("delete port {id}"));
        call.path(["ports", id]).send_ignoring_missing().await
    }

    /// Lists the floating IPs of the project.
    pub async fn floating_ips(&self) -> Result<Vec<FloatingIp>, Error> {
        let call = self.call(Method::GET, "list floating IPs");
        self.list_own(call.path(["floatingips"]), "floatingips")
            .await
    }

    /// Lists what the project of the login owns. Neutron lists the resources of all projects to an administrator.
    async fn list_own<T: DeserializeOwned>(
        &self,
        call: Call<'_>,
        key: &str,
    ) -> Result<Vec<T>, Error> {
        let Some(project) = self.0.project_id().await? else {
            return call.list(key).await;
        };
        let listed: Vec<Owned<T>> = call.query("project_id", &project).list(key).await?;
        let own = listed.into_iter().filter(|owned| owned.is_of(&project));
        Ok(own.map(|owned| owned.resource).collect())
    }

    pub async fn create_floating_ip(&self, ip: &NewFloatingIp<'_>) -> Result<FloatingIp, Error> {
        let call = self.call(
            Method::POST,
            format!("create a floating IP for port {}", ip.port),
        );
        let body = json!({"floatingip": ip});
        let made: Wrapped = call.path(["floatingips"]).body(&body).json().await?;
        Ok(made.floatingip)
    }

    /// Attaches a floating IP to a port. Fails with a conflict if it was changed since it was listed.
    pub async fn attach_floating_ip(
        &self,
        ip: &FloatingIp,
        to: &NewFloatingIp<'_>,
    ) -> Result<FloatingIp, Error> {
        let what = format!("attach floating IP {} to port {}", ip.address, to.port);
        let call = self.call(Method::PUT, what).path(["floatingips", &ip.id]);
        let call = if_unchanged(call, ip);
        let body = json!({"floatingip": {
            "port_id": to.port,
            "fixed_ip_address": to.fixed_address,
            "description": to.description,
        }});
        let changed: Wrapped = call.body(&body).json().await?;
        Ok(changed.floatingip)
    }

    pub async fn delete_floating_ip(&self, id: &str) -> Result<(), Error> {
        let call = self.call(Method::DELETE, format!("delete floating IP {id}"));
        call.path(["floatingips", id]).send_ignoring_missing().await
    }

    /// Deletes a floating IP. Fails with a conflict if it was changed since it was listed.
    pub async fn delete_unchanged_floating_ip(&self, ip: &FloatingIp) -> Result<(), Error> {
        let what = format!("delete floating IP {}", ip.id);
        let call = self
            .call(Method::DELETE, what)
            .path(["floatingips", &ip.id]);
        if_unchanged(call, ip).send_ignoring_missing().await
    }
}

fn if_unchanged<'s>(call: Call<'s>, ip: &FloatingIp) -> Call<'s> {
    match ip.revision_number {
        Some(revision) => call.header(IF_MATCH, &format!("revision_number={revision}")),
        None => call,
    }
}
