//! Describes a node that is up: the token of a namespace or pod, or the address of an SSH server.

use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use nodeyard_config::{ClusterLabel, Expose, NodeKind, Seconds, SshAccess};
use nodeyard_driver::{CreateOrder, Error, ErrorClass, Instance, PollTimer};
use nodeyard_model::{ConnectionPort, Opaque};
use nodeyard_nodescan as nodescan;
use serde_json::{Map, Value, json};

use super::create::is_pod;
use super::host_keys;
use super::namespace::NodeNamespace;
use super::peers::open_to;
use super::setup::has_account;
use super::{ClusterLink, KubernetesDriver};
use crate::api::CreateOutcome;
use crate::body::metadata;
use crate::body::pod::SIDECAR;
use crate::forward::{FORWARD, TunnelRoute};
use crate::holder::HolderKind;
use crate::names;

/// How long the cluster may take to create a token, or to give a service an address.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

struct JobToken {
    token: String,
    /// PEM in base64.
    ca: Option<String>,
}

impl KubernetesDriver {
    pub(super) async fn build_instance(
        &self,
        link: &ClusterLink,
        order: &CreateOrder,
        label: &ClusterLabel,
        space: &NodeNamespace,
        pod: Option<&Pod>,
    ) -> Result<Instance, Error> {
        let timer = self.options.poll.start();
        let mut credentials = None;
        if has_account(label) {
            let token = self.wait_for_token(link, label, space).await?;
            credentials = Some(self.credentials(link, label, space, token));
        }
        // Nodepool's openshift driver does not record it.
        let host_pod = pod.filter(|_| self.options.holder != HolderKind::Project);
        let mut instance = Instance {
            cloud: self.options.context.clone(),
            host_id: host_pod.and_then(|pod| Some(pod.spec.as_ref()?.node_name.as_deref()?.into())),
            python_path: Some(label.python_path.as_str().into()),
            shell_type: label.shell_type.as_deref().map(Into::into),
            ..Instance::new(space.external_id.clone(), metadata::takes(label))
        };
        let mut properties = Map::new();
        if let Some(registry) = self.registry(link, label, &space.namespace).await? {
            properties.insert("registry".to_owned(), registry);
        }
        if let Some(sidecar) = &label.git_sidecar {
            let git = json!({"container": SIDECAR, "path": sidecar.path});
            properties.insert("git".to_owned(), git);
        }
        if let Some(buildset) = open_to(label, order) {
            let peers = self.peers(link, &space.namespace, &buildset).await?;
            properties.insert("buildset".to_owned(), json!({"namespaces": peers}));
        }
        match (&label.ssh, pod) {
            (Some(ssh), Some(pod)) => {
                if let Some(credentials) = credentials {
                    properties.insert("kubernetes".to_owned(), credentials);
                }
                self.add_ssh(link, ssh, space, pod, timer, &mut instance)
                    .await?;
            }
            _ => {
                instance.connection_type = Some(connection_type(label).into());
                instance.interface_ip = space.pod.as_deref().map(Into::into);
                let port = opaque(&credentials.unwrap_or(Value::Null))?;
                instance.connection_port = Some(ConnectionPort::Cluster(port));
            }
        }
        if !properties.is_empty() {
            instance.node_properties = opaque(&Value::Object(properties))?;
        }
        Ok(instance)
    }

    async fn wait_for_token(
        &self,
        link: &ClusterLink,
        label: &ClusterLabel,
        space: &NodeNamespace,
    ) -> Result<JobToken, Error> {
        let timer = self.options.poll.start();
        loop {
            if let Some(token) = self.token(link, label, space).await? {
                return Ok(token);
            }
            if timer.age() > PATIENCE {
                let text = format!(
                    "the cluster creates no token for namespace {}",
                    space.namespace
                );
                return Err(Error::new(ErrorClass::Failed, text));
            }
            timer.tick().await;
        }
    }

    /// Returns None if the cluster has not created it yet.
    async fn token(
        &self,
        link: &ClusterLink,
        label: &ClusterLabel,
        space: &NodeNamespace,
    ) -> Result<Option<JobToken>, Error> {
        let core = format!("/api/v1/namespaces/{}", space.namespace);
        let account = space.account();
        if self.options.holder == HolderKind::Pod {
            let token = link.connection.token.clone().ok_or_else(|| {
                Error::new(
                    ErrorClass::Credentials,
                    "the kubeconfig has no token to give to jobs; use a context with a token",
                )
            })?;
            let ca = link.connection.ca.clone();
            return Ok(Some(JobToken { token, ca }));
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
        let token = String::from_utf8(token.0.clone()).map_err(|cause| {
            Error::permanent("the token that the cluster created is not UTF-8").because(cause)
        })?;
        let ca = serde_json::to_value(ca).ok();
        Ok(Some(JobToken {
            token,
            ca: ca.and_then(|ca| ca.as_str().map(ToOwned::to_owned)),
        }))
    }

    async fn short_lived_token(
        &self,
        link: &ClusterLink,
        core: &str,
        account: &str,
        ttl: Seconds,
    ) -> Result<Option<JobToken>, Error> {
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
            CreateOutcome::New(request) => request.status,
            CreateOutcome::Exists => None,
        };
        let path = format!("{core}/configmaps/kube-root-ca.crt");
        let map = link
            .api
            .get::<ConfigMap>("read the certificate authority", &path)
            .await?;
        let ca = map.and_then(|map| map.data?.remove("ca.crt"));
        let ca =
            ca.map(|pem| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem));
        Ok(status.zip(ca).map(|(status, ca)| JobToken {
            token: status.token,
            ca: Some(ca),
        }))
    }

    /// Returns what Zuul makes a kubeconfig of.
    fn credentials(
        &self,
        link: &ClusterLink,
        label: &ClusterLabel,
        space: &NodeNamespace,
        token: JobToken,
    ) -> Value {
        let connection = &link.connection;
        let mut credentials = json!({
            "namespace": space.namespace,
            "host": connection.host,
            "skiptls": connection.skip_tls,
            "token": token.token,
            "user": space.account(),
        });
        let mut put = |key: &str, value: Value| crate::api::put(&mut credentials, key, value);
        if self.options.holder == HolderKind::Namespace {
            put("name", space.namespace.as_str().into());
        }
        if !connection.skip_tls || self.options.holder == HolderKind::Pod {
            put("ca_crt", token.ca.into());
        }
        if let Some(pod) = space.pod.as_ref().filter(|_| is_pod(label)) {
            put("pod", pod.as_str().into());
        }
        credentials
    }

    /// Adds the address and the host keys of the pod's SSH server, once it answers. `timer` began when the pod ran.
    async fn add_ssh(
        &self,
        link: &ClusterLink,
        ssh: &SshAccess,
        space: &NodeNamespace,
        pod: &Pod,
        timer: PollTimer,
        instance: &mut Instance,
    ) -> Result<(), Error> {
        let name = space.pod.as_deref().unwrap_or_default();
        let (address, port) = self.wait_for_address(link, ssh, space, pod).await?;
        let known = self.host_keys(link, ssh, &space.namespace, name).await?;
        if ssh.host_key_checking {
            let target = nodescan::ScanTarget {
                provider: self.options.owner.provider.as_str().into(),
                address: address.as_str().into(),
                port,
                connection_type: "ssh".into(),
                timeout: ssh.boot_timeout.saturating_sub(timer.age()),
            };
            let scan = self.scanner.scan(&target).await.map_err(|cause| {
                let text = format!("the SSH server of pod {name} does not answer");
                Error::new(ErrorClass::Failed, text).because(cause)
            })?;
            let shown = scan.keys.iter().map(nodescan::HostKey::as_str);
            instance.host_keys = match &known {
                Some(known) => host_keys::verified(name, known, shown)?,
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
        Ok(())
    }

    async fn wait_for_address(
        &self,
        link: &ClusterLink,
        ssh: &SshAccess,
        space: &NodeNamespace,
        pod: &Pod,
    ) -> Result<(String, u16), Error> {
        let namespace = space.namespace.as_str();
        let name = space.pod.as_deref().unwrap_or_default();
        let service = names::service(name);
        let limit = match ssh.expose {
            Expose::LoadBalancer => *ssh.lb_timeout,
            _ => PATIENCE,
        };
        let timer = self.options.poll.start();
        loop {
            let address = match ssh.expose {
                Expose::Forward => Some(self.tunnel_to(space, pod).await?),
                Expose::Gateway => {
                    self.route_through_gateway(link, ssh, space, &service, pod)
                        .await?
                }
                _ => {
                    let found = self.service(link, namespace, &service).await?;
                    self.address(link, ssh, &found, pod).await?
                }
            };
            if let Some(address) = address {
                return Ok(address);
            }
            if timer.age() > limit {
                let text = format!(
                    "service {service} in {namespace} has no address after {} s",
                    limit.as_secs()
                );
                return Err(Error::new(ErrorClass::Failed, text));
            }
            timer.tick().await;
            self.check_pod(link, namespace, name).await?;
        }
    }

    async fn service(
        &self,
        link: &ClusterLink,
        namespace: &str,
        service: &str,
    ) -> Result<Service, Error> {
        let path = format!("/api/v1/namespaces/{namespace}/services/{service}");
        let found = link.api.get::<Service>("read a service", &path).await?;
        found.ok_or_else(|| {
            Error::new(
                ErrorClass::Failed,
                format!("service {service} was deleted during the launch"),
            )
        })
    }

    /// Returns the address of the tunnel, which an earlier process may have opened.
    async fn tunnel_to(&self, space: &NodeNamespace, pod: &Pod) -> Result<(String, u16), Error> {
        let name = space.pod.clone().unwrap_or_default();
        let route = TunnelRoute::of(pod).ok_or_else(|| {
            Error::new(
                ErrorClass::Failed,
                format!("pod {name} has no valid annotation {FORWARD}"),
            )
        })?;
        let address = (route.host.clone(), route.port);
        let key = (space.namespace.clone(), name);
        self.tunnels.reopen(space.node, key, route).await?;
        Ok(address)
    }

    async fn address(
        &self,
        link: &ClusterLink,
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

    /// Returns the node's external address, or its internal one if it has no other or we may not read nodes.
    async fn address_of_node(
        &self,
        link: &ClusterLink,
        pod: &Pod,
    ) -> Result<Option<String>, Error> {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let inside = pod
            .status
            .as_ref()
            .and_then(|status| status.host_ip.clone());
        let Some(name) = name else { return Ok(inside) };
        let path = format!("/api/v1/nodes/{name}");
        let node = match link
            .api
            .get::<Node>("read a node of the cluster", &path)
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
    Opaque::encode(value).map_err(|cause| {
        Error::permanent("failed to encode the description of a node").because(cause)
    })
}
