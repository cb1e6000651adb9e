//! A cluster with OpenShift's own API server beside that of Kubernetes.
//!
//! Projects, their requests, image streams and templates are those of OpenShift, and so are the controllers that let
//! projects go and give accounts their pull secrets. What is not there: its users (tests ask with service accounts),
//! what it lets containers do (security context constraints are kept and not enforced), and its registry, of which
//! there is only the address.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Cluster;
use crate::process::{Process, show, tail, tied};
use crate::skipped::skipped;

const PATIENCE: Duration = Duration::from_secs(120);
/// Where the API server of Kubernetes looks for the other one.
pub(super) const SERVICE: &str = "api.openshift-apiserver.svc";
/// Where it asks whether somebody may look at a project.
pub(super) const GATE: &str = "127.0.0.1:8444";
/// Two more of its groups are defined in the cluster itself, since it reads them from there. A part of `authorization`
/// would have to be, too, which only OpenShift's variant of Kubernetes can do.
const GROUPS: [&str; 6] = ["apps", "build", "image", "project", "route", "template"];
/// They are made when it has started, and everything else before.
const ROLES: [&str; 3] = ["self-provisioner", "system:image-builder", "basic-user"];

#[derive(Debug)]
pub struct OpenShift {
    // It ends before the cluster does. None for one that was there already.
    server: Option<Server>,
    cluster: Cluster,
}

#[derive(Debug)]
struct Server {
    process: Process,
    log: PathBuf,
}

impl OpenShift {
    /// None where there is no OpenShift and none can be made, which is said loudly.
    pub fn start_if_possible() -> Result<Option<Self>> {
        let Some(cluster) = Cluster::start_if_possible()? else {
            return Ok(None);
        };
        if cluster.is_own() {
            return Self::start_beside(cluster).map(Some);
        }
        if cluster
            .kubectl(&["get", "--raw", "/apis/project.openshift.io/v1"])
            .is_err()
        {
            skipped(
                "the cluster of KUBECONFIG is not OpenShift",
                "without KUBECONFIG one is made",
            );
            return Ok(None);
        }
        Ok(Some(Self {
            server: None,
            cluster,
        }))
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn start_beside(cluster: Cluster) -> Result<Self> {
        let place = crate::python::find("openshift/install.sh", &[])?;
        let own = cluster.own.as_ref().context("the cluster is not ours")?;
        let directory = own.directory.path().to_owned();
        write_settings(&directory)?;
        cluster.kubectl(&["apply", "-f", path(&place.join("definitions"))?])?;
        let surroundings = directory.join("surroundings.json");
        fs::write(&surroundings, surroundings_of(&directory)?.to_string())?;
        cluster.kubectl(&["apply", "-f", path(&surroundings)?])?;

        let log = directory.join("openshift.log");
        let kubeconfig = cluster.kubeconfig().display().to_string();
        let mut command = tied("nsenter");
        command
            .arg(format!("--net=/proc/{}/ns/net", own.process.pid()))
            .arg(place.join("openshift"))
            .arg(format!(
                "--config={}",
                directory.join("openshift.json").display()
            ))
            .arg(format!("--authentication-kubeconfig={kubeconfig}"))
            .arg(format!("--authorization-kubeconfig={kubeconfig}"));
        let process = Process::start(command, &log)?;
        let mut openshift = Self {
            server: Some(Server { process, log }),
            cluster,
        };
        openshift.wait_until_ready()?;
        Ok(openshift)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let services = GROUPS.map(|group| format!("apiservice/v1.{group}.openshift.io"));
        let mut available = vec!["wait", "--for=condition=Available", "--timeout=1s"];
        available.extend(services.iter().map(String::as_str));
        let mut roles = vec!["get", "clusterrole"];
        roles.extend(ROLES);
        while self.cluster.kubectl(&available).is_err() || self.cluster.kubectl(&roles).is_err() {
            let server = self.server.as_mut().context("there is no server")?;
            ensure!(
                !server.process.has_ended() && Instant::now() < deadline,
                "OpenShift does not come up; run testbeds/install.sh\n{}",
                tail(&server.log)
            );
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            show(&self.log);
        }
    }
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a temporary directory is not UTF-8")
}

fn write_settings(directory: &Path) -> Result<()> {
    let settings = json!({
        "apiVersion": "openshiftcontrolplane.config.openshift.io/v1",
        "kind": "OpenShiftAPIServerConfig",
        "servingInfo": {
            "bindAddress": "127.0.0.1:8443",
            "certFile": directory.join("pki/openshift.crt.pem"),
            "keyFile": directory.join("pki/openshift.key.pem"),
            "maxRequestsInFlight": 1000,
            "requestTimeoutSeconds": 3600,
        },
        // It insists on a certificate, and shows it to nobody.
        "storageConfig": {
            "urls": ["http://127.0.0.1:2379"],
            "ca": directory.join("pki/ca.pem"),
            "certFile": directory.join("pki/openshift.crt.pem"),
            "keyFile": directory.join("pki/openshift.key.pem"),
        },
        "kubeClientConfig": {
            "kubeConfig": directory.join("admin.kubeconfig"),
            "connectionOverrides": {"qps": 200, "burst": 400},
        },
        "imagePolicyConfig": {
            "internalRegistryHostname": "image-registry.openshift-image-registry.svc:5000",
        },
    });
    fs::write(directory.join("openshift.json"), settings.to_string())?;
    Ok(())
}

/// What the server, and those who ask for it, find in the cluster.
fn surroundings_of(directory: &Path) -> Result<Value> {
    let authority = STANDARD.encode(fs::read(directory.join("pki/ca.pem"))?);
    let namespaces = [
        "openshift",
        "openshift-apiserver",
        "openshift-image-registry",
        "openshift-infra",
    ];
    let namespaces = namespaces
        .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    let mut items = Vec::from(namespaces);
    items.extend([
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "api", "namespace": "openshift-apiserver"},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }),
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "image-registry", "namespace": "openshift-image-registry"},
            "spec": {"ports": [{"port": 5000}]},
        }),
    ]);
    items.extend(GROUPS.map(|group| {
        let group = format!("{group}.openshift.io");
        json!({
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": format!("v1.{group}")},
            "spec": {
                "group": group,
                "version": "v1",
                "groupPriorityMinimum": 9900,
                "versionPriority": 15,
                "service": {"name": "api", "namespace": "openshift-apiserver", "port": 8443},
                "caBundle": authority,
            },
        })
    }));
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": items}))
}
