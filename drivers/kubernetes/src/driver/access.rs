//! Handing out a node: the token of a namespace or pod, or the address of an SSH server.

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use nodeyard_config::{ClusterLabel, Expose, NodeKind, Seconds, SshAccess};
use nodeyard_driver::{CreateOrder, Error, ErrorClass, ExternalId, Instance, Step};
use nodeyard_model::{ConnectionPort, Opaque, Timestamp};
use nodeyard_nodescan as nodescan;
use serde_json::{Map, Value, json};

use super::boot::Booting;
use super::furnish::has_account;
use super::host_keys;
use super::peers::open_to;
use super::quarters::Quarters;
use super::registry::Registry;
use super::{KubernetesDriver, Link};
use crate::api::Made;
use crate::body::marks;
use crate::body::pod::SIDECAR;
use crate::forward::Route;
use crate::holder::{HolderKind, Place};
use crate::names;

/// How long a token, or an address of a service, may take: the cluster makes them by itself.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

struct Token {
    token: String,
    /// PEM in base64.
    ca: Option<String>,
}

impl KubernetesDriver {
    pub(super) async fn hand_out(
        &self,
        link: &Link,
        order: &CreateOrder,
        label: &ClusterLabel,
        place: &Booting,
        pod: Option<&Pod>,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        let age = now.since(place.running.unwrap_or(place.since));
        let mut credentials = None;
        if has_account(label) {
            let Some(token) = self.token(link, label, &place.quarters()).await? else {
                if age > PATIENCE {
                    let text = format!(
                        "the cluster makes no token for namespace {}",
                        place.namespace
                    );
                    return Err(Error::new(ErrorClass::Failed, text));
                }
                return Ok(Step::wait(self.options.poll.after(age)));
            };
            credentials = Some(self.credentials(link, label, place, token));
        }
        let mut instance = Instance {
            cloud: self.options.context.clone(),
            host_id: pod.and_then(|pod| Some(pod.spec.as_ref()?.node_name.as_deref()?.into())),
            python_path: Some(label.python_path.as_str().into()),
            shell_type: label.shell_type.as_deref().map(Into::into),
            ..Instance::new(self.external_id(place), marks::takes(label))
        };
        let mut properties = Map::new();
        match self.registry(link, label, &place.namespace, age).await? {
            Registry::None => {}
            Registry::Later => return Ok(Step::wait(self.options.poll.after(age))),
            Registry::Here(registry) => {
                properties.insert("registry".to_owned(), registry);
            }
        }
        if let Some(sidecar) = &label.git_sidecar {
            let git = json!({"container": SIDECAR, "path": sidecar.path});
            properties.insert("git".to_owned(), git);
        }
        if let Some(buildset) = open_to(label, order) {
            let peers = self.peers(link, &place.namespace, &buildset).await?;
            properties.insert("buildset".to_owned(), json!({"namespaces": peers}));
        }
        match (&label.ssh, pod) {
            (Some(ssh), Some(pod)) => {
                if let Some(credentials) = credentials {
                    properties.insert("kubernetes".to_owned(), credentials);
                }
                if let Some(wait) = self
                    .reach(link, ssh, place, pod, now, &mut instance)
                    .await?
                {
                    return Ok(wait);
                }
            }
            _ => {
                instance.connection_type = Some(connection_type(label).into());
                instance.interface_ip = place.pod.as_deref().map(Into::into);
                let port = opaque(&credentials.unwrap_or(Value::Null))?;
                instance.connection_port = Some(ConnectionPort::Cluster(port));
            }
        }
        if !properties.is_empty() {
            instance.node_properties = opaque(&Value::Object(properties))?;
        }
        Ok(Step::Done(instance))
    }

    fn external_id(&self, place: &Booting) -> ExternalId {
        let namespace = place.namespace.as_str();
        let place = match (&place.member, &place.pod, self.options.holder) {
            (Some(member), ..) => Place::member(namespace, member.name.as_str()),
            (None, Some(pod), HolderKind::Pod) => Place::pod(namespace, pod.as_str()),
            _ => Place::space(namespace),
        };
        place.external_id()
    }

    /// None if the cluster has not made it yet.
    async fn token(
        &self,
        link: &Link,
        label: &ClusterLabel,
        quarters: &Quarters<'_>,
    ) -> Result<Option<Token>, Error> {
        let core = format!("/api/v1/namespaces/{}", quarters.namespace);
        let account = quarters.account();
        if self.options.holder == HolderKind::Pod {
            let token = link.connection.token.clone().ok_or_else(|| {
                Error::new(
                    ErrorClass::Credentials,
                    "jobs would get the token of the kubeconfig, and it has none; use a context with a token",
                )
            })?;
            let ca = link.connection.ca.clone();
            return Ok(Some(Token { token, ca }));
        }
        if let Some(ttl) = label.hardening.token_ttl {
            return self.short_lived_token(link, &core, &account, ttl).await;
        }
        let path = format!("{core}/secrets/{account}");
        let secret = link.api.get::<Secret>("read a token", &path).await?;
        let Some(data) = secret.and_then(|secret| secret.data) else {
            return Ok(None);
        };
        let (Some(token), Some(ca)) = (data.get("token"), data.get("ca.crt")) else {
            return Ok(None);
        };
        let token = String::from_utf8(token.0.clone())
            .map_err(|cause| Error::permanent("the cluster made an odd token").because(cause))?;
        let ca = serde_json::to_value(ca).ok();
        Ok(Some(Token {
            token,
            ca: ca.and_then(|ca| ca.as_str().map(ToOwned::to_owned)),
        }))
    }

    async fn short_lived_token(
        &self,
        link: &Link,
        core: &str,
        account: &str,
        ttl: Seconds,
    ) -> Result<Option<Token>, Error> {
        let path = format!("{core}/serviceaccounts/{account}/token");
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": ttl.as_secs()},
        });
        let made = link
            .api
            .create::<TokenRequest>("request a token", &path, &body);
        let status = match made.await? {
            Made::New(request) => request.status,
            Made::Exists => None,
        };
        let path = format!("{core}/configmaps/kube-root-ca.crt");
        let map = link
            .api
            .get::<ConfigMap>("read the certificate authority", &path)
            .await?;
        let ca = map.and_then(|map| map.data?.remove("ca.crt"));
        let ca =
            ca.map(|pem| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem));
        Ok(status.zip(ca).map(|(status, ca)| Token {
            token: status.token,
            ca: Some(ca),
        }))
    }

    /// What Zuul makes a kubeconfig of.
    fn credentials(
        &self,
        link: &Link,
        label: &ClusterLabel,
        place: &Booting,
        token: Token,
    ) -> Value {
        let connection = &link.connection;
        let mut credentials = json!({
            "namespace": place.namespace,
            "host": connection.host,
            "skiptls": connection.skip_tls,
            "token": token.token,
            "user": place.quarters().account(),
        });
        let mut put = |key: &str, value: Value| crate::api::put(&mut credentials, key, value);
        if self.options.holder == HolderKind::Namespace {
            put("name", place.namespace.as_str().into());
        }
        if !connection.skip_tls || self.options.holder == HolderKind::Pod {
            put("ca_crt", token.ca.into());
        }
        if let Some(pod) = place.pod.as_ref().filter(|_| super::create::is_pod(label)) {
            put("pod", pod.as_str().into());
        }
        credentials
    }

    /// Finds where the SSH server is and waits until it answers. Something is returned if that takes longer.
    async fn reach(
        &self,
        link: &Link,
        ssh: &SshAccess,
        place: &Booting,
        pod: &Pod,
        now: Timestamp,
        instance: &mut Instance,
    ) -> Result<Option<Step<Instance>>, Error> {
        let name = place.pod.as_deref().unwrap_or_default();
        let age = now.since(place.running.unwrap_or(place.since));
        let service = names::service(name);
        let address = match ssh.expose {
            Expose::Forward => Some(self.tunnel_to(place, pod).await?),
            Expose::Gateway => {
                self.lead_through(link, place.node, ssh, &place.namespace, &service)
                    .await?
            }
            _ => {
                let found = self.service(link, &place.namespace, &service).await?;
                self.address(link, ssh, &found, pod).await?
            }
        };
        let Some((address, port)) = address else {
            let patience = match ssh.expose {
                Expose::LoadBalancer => *ssh.lb_timeout,
                _ => PATIENCE,
            };
            if age > patience {
                let text = format!(
                    "service {service} in {} has no address after {} s",
                    place.namespace,
                    patience.as_secs()
                );
                return Err(Error::new(ErrorClass::Failed, text));
            }
            return Ok(Some(Step::wait(self.options.poll.after(age))));
        };
        let known = self.host_keys(link, ssh, &place.namespace, name).await?;
        if ssh.host_key_checking {
            let target = nodescan::ScanTarget {
                address: address.as_str().into(),
                port,
                connection_type: "ssh".into(),
                timeout: ssh.boot_timeout.saturating_sub(age),
            };
            let scan = self.scanner.scan(&target).await.map_err(|cause| {
                Error::new(ErrorClass::Failed, format!("nobody answers in pod {name}"))
                    .because(cause)
            })?;
            let shown = scan.keys.iter().map(nodescan::HostKey::as_str);
            instance.host_keys = match &known {
                Some(known) => host_keys::vouched(name, known, shown)?,
                None => shown.map(Into::into).collect(),
            };
        } else if let Some(known) = &known {
            instance.host_keys = known.public.iter().map(|key| key.as_str().into()).collect();
        }
        if address.contains(':') {
            instance.public_ipv6 = Some(address.as_str().into());
        } else if address.parse::<std::net::Ipv4Addr>().is_ok() {
            instance.public_ipv4 = Some(address.as_str().into());
        }
        instance.private_ipv4 = pod_address(pod).map(Into::into);
        instance.interface_ip = Some(address.into());
        instance.connection_type = Some("ssh".into());
        instance.connection_port = Some(ConnectionPort::Number(port));
        instance.username = Some(ssh.username.as_str().into());
        Ok(None)
    }

    async fn service(&self, link: &Link, namespace: &str, service: &str) -> Result<Service, Error> {
        let path = format!("/api/v1/namespaces/{namespace}/services/{service}");
        let found = link.api.get::<Service>("look at a service", &path).await?;
        found.ok_or_else(|| {
            Error::new(
                ErrorClass::Failed,
                format!("service {service} was deleted during the launch"),
            )
        })
    }

    /// It may have been opened by a process that is gone.
    async fn tunnel_to(&self, place: &Booting, pod: &Pod) -> Result<(String, u16), Error> {
        let name = place.pod.clone().unwrap_or_default();
        let route = Route::of(pod).ok_or_else(|| {
            Error::new(
                ErrorClass::Failed,
                format!("pod {name} does not say which port leads to it"),
            )
        })?;
        let address = (route.host.clone(), route.port);
        let key = (place.namespace.clone(), name);
        self.tunnels.reopen(place.node, key, route).await?;
        Ok(address)
    }

    async fn address(
        &self,
        link: &Link,
        ssh: &SshAccess,
        service: &Service,
        pod: &Pod,
    ) -> Result<Option<(String, u16)>, Error> {
        let spec = service.spec.as_ref();
        let port = ssh.port.0;
        Ok(match ssh.expose {
            Expose::NodePort => {
                let ports = spec.and_then(|spec| spec.ports.as_ref());
                let port = ports.and_then(|ports| ports.first()?.node_port);
                let port = port.and_then(|port| u16::try_from(port).ok());
                let address = match &ssh.external_address {
                    Some(address) => Some(address.clone()),
                    None => self.address_of_node(link, pod).await?,
                };
                address.zip(port)
            }
            Expose::LoadBalancer => {
                let status = service.status.as_ref();
                let ingress =
                    status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
                let first = ingress.and_then(|ingress| ingress.first());
                let address =
                    first.and_then(|first| first.ip.clone().or_else(|| first.hostname.clone()));
                address.map(|address| (address, port))
            }
            _ if ssh.headless => pod_address(pod).map(|address| (address, port)),
            _ => {
                let address = spec.and_then(|spec| spec.cluster_ip.clone());
                let address = address.filter(|address| !address.is_empty() && address != "None");
                address.map(|address| (address, port))
            }
        })
    }

    /// As it is seen from outside, where the cluster says so and we may ask.
    async fn address_of_node(&self, link: &Link, pod: &Pod) -> Result<Option<String>, Error> {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let inside = pod
            .status
            .as_ref()
            .and_then(|status| status.host_ip.clone());
        let Some(name) = name else { return Ok(inside) };
        let path = format!("/api/v1/nodes/{name}");
        let node = match link
            .api
            .get::<Node>("look at a node of the cluster", &path)
            .await
        {
            Ok(node) => node,
            Err(error) if error.class() == ErrorClass::Credentials => return Ok(inside),
            Err(error) => return Err(error),
        };
        let addresses = node
            .and_then(|node| node.status?.addresses)
            .unwrap_or_default();
        let outside = addresses
            .into_iter()
            .find(|address| address.type_ == "ExternalIP");
        Ok(outside.map(|address| address.address).or(inside))
    }
}

fn connection_type(label: &ClusterLabel) -> &'static str {
    match label.node_kind() {
        NodeKind::Namespace => "namespace",
        NodeKind::Project => "project",
        NodeKind::Pod => "kubectl",
    }
}

fn pod_address(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.pod_ip.clone()
}

fn opaque(value: &Value) -> Result<Opaque, Error> {
    Opaque::encode(value)
        .map_err(|cause| Error::permanent("a node cannot be described").because(cause))
}
