//! A project for one test, which sees nothing of the others and leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::api::{Login, Service, Session, text};
use super::gateway::Gateway;
use super::{OpenStack, unique_name};
use crate::process::temporary_directory;

const REMOVAL_PATIENCE: Duration = Duration::from_secs(180);

/// Dropping it removes everything that is in it.
#[derive(Debug)]
pub struct Project {
    login: Login,
    identity: String,
    id: String,
    user: String,
    admin: Session,
    member: Session,
    network: String,
    subnet: String,
    // Made when it is asked for: nothing else costs Neutron as much.
    router: OnceLock<String>,
    directory: TempDir,
}

#[derive(Debug, Clone)]
pub struct ApplicationCredential {
    pub id: String,
    pub secret: String,
}

impl Project {
    pub(super) fn create(cloud: &OpenStack, purpose: &str) -> Result<Self> {
        let name = unique_name(purpose);
        let directory = temporary_directory()?;
        let admin = cloud.admin()?;
        let login = cloud.login(&name, &name);

        let id = made(
            &admin,
            Service::Identity,
            "/projects",
            "project",
            &json!({"name": name}),
        )?;
        let account = json!({
            "name": name, "password": login.password, "default_project_id": id,
        });
        let user = made(&admin, Service::Identity, "/users", "user", &account)?;
        for role in ["member", "reader"] {
            let found = admin.get(Service::Identity, &format!("/roles?name={role}"))?;
            let role = text(found.pointer("/roles/0/id")).with_context(|| found.to_string())?;
            let path = format!("/projects/{id}/users/{user}/roles/{role}");
            admin.call("PUT", Service::Identity, &path, None)?;
        }
        let identity = cloud.url(Service::Identity).to_owned();
        let member = Session::begin(&identity, &login)?;
        let (network, subnet) = create_network(&member)?;
        let project = Self {
            login,
            identity,
            id,
            user,
            admin,
            member,
            network,
            subnet,
            router: OnceLock::new(),
            directory,
        };
        fs::write(project.clouds_yaml(), project.clouds(&project.identity))?;
        Ok(project)
    }

    pub fn name(&self) -> &str {
        &self.login.project
    }

    pub fn id(&self) -> &str {
        &self.id
    }

    /// The id of its network, which is called `net`.
    pub fn network(&self) -> &str {
        &self.network
    }

    /// Connects its network with the outside, so that its servers can have floating IPs.
    pub fn connect_outside(&self) -> Result<()> {
        let network = Service::Network;
        let outside = self.admin.get(network, "/v2.0/networks?name=public")?;
        let outside =
            text(outside.pointer("/networks/0/id")).with_context(|| outside.to_string())?;
        let router = json!({"name": "router", "external_gateway_info": {"network_id": outside}});
        let router = made(&self.member, network, "/v2.0/routers", "router", &router)?;
        let path = format!("/v2.0/routers/{router}/add_router_interface");
        // Removed with the project, whatever becomes of its interface.
        let already = self.router.set(router);
        ensure!(already.is_ok(), "{} is connected already", self.name());
        let interface = json!({"subnet_id": self.subnet});
        self.member.put(network, &path, &interface).map(drop)
    }

    /// A file with the cloud `nodepool`: the way straight to the services.
    pub fn clouds_yaml(&self) -> PathBuf {
        self.directory.path().join("clouds.yaml")
    }

    /// A file with the cloud `nodepool`, on a way on which things happen.
    pub fn clouds_yaml_through(&self, gateway: &Gateway) -> Result<PathBuf> {
        let name = format!("clouds-{}.yaml", gateway.port());
        let path = self.directory.path().join(name);
        let mut clouds = self.clouds(gateway.url());
        if let Some(ca) = gateway.ca() {
            clouds.push_str(&format!("    cacert: {}\n", ca.display()));
        }
        fs::write(&path, clouds)?;
        Ok(path)
    }

    fn clouds(&self, identity: &str) -> String {
        let Login {
            user,
            password,
            project,
            region,
        } = &self.login;
        format!(
            "clouds:\n  \
               nodepool:\n    \
                 region_name: {region}\n    \
                 auth:\n      \
                   auth_url: {identity}\n      \
                   username: {user}\n      \
                   password: {password}\n      \
                   project_name: {project}\n      \
                   user_domain_id: default\n      \
                   project_domain_id: default\n"
        )
    }

    pub fn login(&self) -> &Login {
        &self.login
    }

    /// Something to log in with instead of the password of its user.
    pub fn application_credential(&self, name: &str) -> Result<ApplicationCredential> {
        let path = format!("/users/{}/application_credentials", self.user);
        // Those of the token, which it would take otherwise, are somebody else's now and then: Keystone mixes up requests
        // that come at the same time.
        let roles = json!([{"name": "member"}]);
        let body = json!({"application_credential": {"name": name, "roles": roles}});
        let made = self.member.post(Service::Identity, &path, &body)?;
        let part = |key: &str| text(made.pointer(&format!("/application_credential/{key}")));
        Ok(ApplicationCredential {
            id: part("id")?,
            secret: part("secret")?,
        })
    }

    pub fn remove_application_credential(&self, id: &str) -> Result<()> {
        let path = format!("/users/{}/application_credentials/{id}", self.user);
        self.member.delete(Service::Identity, &path)
    }

    /// For what belongs to the project; it goes with it.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The user of the project, on the straight way.
    pub fn member(&self) -> &Session {
        &self.member
    }

    /// Somebody who may do everything, everywhere.
    pub fn admin(&self) -> &Session {
        &self.admin
    }

    /// Limits of Nova, such as `instances`, `cores` and `ram`; -1 is none.
    pub fn set_quota(&self, limits: &[(&str, i64)]) -> Result<()> {
        let path = format!("/os-quota-sets/{}", self.id);
        let body = json!({"quota_set": object(limits)});
        self.admin.put(Service::Compute, &path, &body).map(drop)
    }

    /// Limits of Neutron, such as `port` and `floatingip`; -1 is none.
    pub fn set_network_quota(&self, limits: &[(&str, i64)]) -> Result<()> {
        let path = format!("/v2.0/quotas/{}", self.id);
        let body = json!({"quota": object(limits)});
        self.admin.put(Service::Network, &path, &body).map(drop)
    }

    /// Limits of Cinder, such as `volumes` and `gigabytes`; -1 is none.
    pub fn set_volume_quota(&self, limits: &[(&str, i64)]) -> Result<()> {
        let path = format!("/os-quota-sets/{}", self.id);
        let body = json!({"quota_set": object(limits)});
        let volumes = Service::BlockStorage;
        self.admin.put(volumes, &path, &body).map(drop)
    }

    pub fn servers(&self) -> Result<Vec<Value>> {
        self.member
            .list(Service::Compute, "/servers/detail", "servers")
    }

    /// Ports of servers, and of nobody.
    pub fn ports(&self) -> Result<Vec<Value>> {
        let mut ports = self.owned("ports")?;
        ports.retain(|port| !is_of_router(port));
        Ok(ports)
    }

    pub fn floating_ips(&self) -> Result<Vec<Value>> {
        self.owned("floatingips")
    }

    fn owned(&self, kind: &str) -> Result<Vec<Value>> {
        let path = format!("/v2.0/{kind}?project_id={}", self.id);
        self.member.list(Service::Network, &path, kind)
    }

    pub fn volumes(&self) -> Result<Vec<Value>> {
        self.member
            .list(Service::BlockStorage, "/volumes/detail", "volumes")
    }

    /// The images that it owns.
    pub fn images(&self) -> Result<Vec<Value>> {
        let path = format!("/v2/images?owner={}&limit=1000", self.id);
        self.member.list(Service::Image, &path, "images")
    }

    /// A small image. What is in `properties` goes into its record as it is.
    pub fn create_image(&self, name: &str, properties: Value) -> Result<String> {
        let mut body = json!({"name": name, "disk_format": "raw", "container_format": "bare"});
        if let (Some(body), Value::Object(properties)) = (body.as_object_mut(), properties) {
            body.extend(properties);
        }
        let made = self.member.post(Service::Image, "/v2/images", &body)?;
        let id = text(made.get("id"))?;
        self.member.upload(&id, &[0; 64 * 1024])?;
        Ok(id)
    }

    /// A flavor that nobody else sees, called as the project.
    pub fn create_flavor(&self) -> Result<()> {
        let flavor = json!({"flavor": {
            "id": self.id, "name": self.name(), "ram": 256, "vcpus": 1, "disk": 1,
            "os-flavor-access:is_public": false,
        }});
        self.admin.post(Service::Compute, "/flavors", &flavor)?;
        let path = format!("/flavors/{}/action", self.id);
        let access = json!({"addTenantAccess": {"tenant": self.id}});
        self.admin.post(Service::Compute, &path, &access).map(drop)
    }

    /// Waits until nothing is left of what was in it; its network and its user stay.
    pub fn empty(&self) -> Result<()> {
        self.remove_all(Service::Compute, "/servers", || self.servers())?;
        self.remove_all(Service::BlockStorage, "/volumes", || self.volumes())?;
        self.remove_all(Service::Network, "/v2.0/floatingips", || {
            self.floating_ips()
        })?;
        self.remove_all(Service::Network, "/v2.0/ports", || self.ports())?;
        self.remove_all(Service::Image, "/v2/images", || self.images())?;
        for pair in self
            .member
            .list(Service::Compute, "/os-keypairs", "keypairs")?
        {
            let path = format!("/os-keypairs/{}", text(pair.pointer("/keypair/name"))?);
            self.member.delete(Service::Compute, &path)?;
        }
        Ok(())
    }

    fn remove_all(
        &self,
        service: Service,
        path: &str,
        list: impl Fn() -> Result<Vec<Value>>,
    ) -> Result<()> {
        let deadline = Instant::now() + REMOVAL_PATIENCE;
        loop {
            let things = list()?;
            if things.is_empty() {
                return Ok(());
            }
            for thing in &things {
                // What is being made or removed at this moment may not want it yet, or again.
                let path = format!("{path}/{}", text(thing.get("id"))?);
                let _ = self.member.delete(service, &path);
            }
            ensure!(Instant::now() < deadline, "these stay: {things:?}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn remove(&self) -> Result<()> {
        self.empty()?;
        if let Some(router) = self.router.get() {
            let path = format!("/v2.0/routers/{router}");
            let interface = json!({"subnet_id": self.subnet});
            let removal = format!("{path}/remove_router_interface");
            // There is none if the test was stopped while it was made.
            let _ = self.admin.put(Service::Network, &removal, &interface);
            self.admin.delete(Service::Network, &path)?;
        }
        let path = format!("/v2.0/networks/{}", self.network);
        self.admin.delete(Service::Network, &path)?;
        let flavor = format!("/flavors/{}", self.id);
        self.admin.delete(Service::Compute, &flavor)?;
        let user = format!("/users/{}", self.user);
        self.admin.delete(Service::Identity, &user)?;
        let project = format!("/projects/{}", self.id);
        self.admin.delete(Service::Identity, &project)
    }
}

impl Drop for Project {
    #[expect(clippy::print_stderr, reason = "somebody should know of it")]
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!("project {} could not be removed: {error:#}", self.name());
        }
    }
}

/// Returns the ids of a new network and of its subnet.
fn create_network(member: &Session) -> Result<(String, String)> {
    let network = Service::Network;
    let net = made(
        member,
        network,
        "/v2.0/networks",
        "network",
        &json!({"name": "net"}),
    )?;
    let subnet = json!({
        "network_id": net, "ip_version": 4, "cidr": "10.9.0.0/16", "enable_dhcp": false,
    });
    let subnet = made(member, network, "/v2.0/subnets", "subnet", &subnet)?;
    Ok((net, subnet))
}

fn is_of_router(port: &Value) -> bool {
    port.get("device_owner") == Some(&Value::from("network:router_interface"))
}

/// Makes one thing and returns its id.
pub(super) fn made(
    session: &Session,
    service: Service,
    path: &str,
    kind: &str,
    body: &Value,
) -> Result<String> {
    let answer = session.post(service, path, &json!({kind: body}))?;
    let id = answer.get(kind).and_then(|thing| thing.get("id"));
    text(id).with_context(|| format!("{service} made a {kind} without an id"))
}

fn object(entries: &[(&str, i64)]) -> Value {
    let entries = entries.iter();
    entries
        .map(|(name, value)| ((*name).to_owned(), Value::from(*value)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}
