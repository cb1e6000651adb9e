//! What the parts of a cluster read when they start.

use std::fs;
use std::path::Path;

use anyhow::Result;
use rcgen::{DistinguishedName, DnType};
use serde_json::json;

use super::network::Network;
use crate::certificates::{Authority, Identity};

pub(super) fn write(directory: &Path, network: &Network) -> Result<()> {
    let pki = directory.join("pki");
    let authority = Authority::create(&pki, "ca")?;
    let member = |name: &str, organization: Option<&str>, common: &str, valid_for: &[&str]| {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, common);
        if let Some(organization) = organization {
            subject.push(DnType::OrganizationName, organization);
        }
        authority.sign_subject(name, subject, valid_for)
    };
    let (node, service) = (network.node(), network.api_service());
    let names = [&*node, &*service, "127.0.0.1", "kubernetes.default.svc"];
    member("apiserver", None, "kube-apiserver", &names)?;
    let admin = member("admin", Some("system:masters"), "admin", &[])?;
    let kubelet = member("node", Some("system:nodes"), "system:node:node", &[])?;
    // Only its key counts: it signs the tokens of service accounts.
    member("accounts", None, "accounts", &[])?;
    member(
        "openshift",
        None,
        "openshift-apiserver",
        &[super::openshift::SERVICE],
    )?;
    // Servers beside the API server believe it who asks, and it shows them this.
    Authority::create(&pki, "front-proxy-ca")?.sign("front-proxy", &[])?;

    let kubeconfig = |name: &str, identity: &Identity| {
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://{node}:6443"),
                "certificate-authority": authority.ca,
            }}],
            "users": [{"name": "user", "user": {
                "client-certificate": identity.cert,
                "client-key": identity.key,
            }}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
            "current-context": "test",
        });
        fs::write(directory.join(name), text.to_string())
    };
    kubeconfig("admin.kubeconfig", &admin)?;
    kubeconfig("node.kubeconfig", &kubelet)?;
    write_authorization(directory)?;
    fs::write(directory.join("kubelet.yaml"), kubelet_settings(directory))?;
    fs::write(
        directory.join("kube-proxy.yaml"),
        proxy_settings(directory, network),
    )?;
    fs::write(
        directory.join("containerd.toml"),
        containerd_settings(directory),
    )?;
    fs::write(directory.join("resolv.conf"), "nameserver 127.0.0.1\n")?;
    let networks = directory.join("networks");
    fs::create_dir_all(&networks)?;
    let pods = json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": true,
                "ipMasq": false,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": directory.join("addresses"),
                    "ranges": [[{"subnet": network.pods()}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    });
    fs::write(networks.join("10-pods.conflist"), pods.to_string())?;
    Ok(())
}

/// Roles decide. But OpenShift, where there is one, also lets those look at a project who have a role in it.
fn write_authorization(directory: &Path) -> Result<()> {
    let gate = directory.join("gate.kubeconfig");
    let server = format!("http://{}", super::openshift::GATE);
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "gate", "cluster": {"server": server}}],
        "users": [{"name": "user", "user": {}}],
        "contexts": [{"name": "gate", "context": {"cluster": "gate", "user": "user"}}],
        "current-context": "gate",
    });
    fs::write(&gate, kubeconfig.to_string())?;
    let projects_by_name = "has(request.resourceAttributes) \
        && request.resourceAttributes.group == 'project.openshift.io' \
        && request.resourceAttributes.resource == 'projects' \
        && request.resourceAttributes.name != '' \
        && request.resourceAttributes.namespace == ''";
    let authorization = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [
            {"type": "Node", "name": "node"},
            {"type": "RBAC", "name": "rbac"},
            {"type": "Webhook", "name": "gate", "webhook": {
                "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": gate},
                "subjectAccessReviewVersion": "v1",
                "matchConditionSubjectAccessReviewVersion": "v1",
                "matchConditions": [{"expression": projects_by_name}],
                "failurePolicy": "NoOpinion",
                "timeout": "3s",
                "cacheAuthorizedRequests": false,
                "cacheUnauthorizedRequests": false,
            }},
        ],
    });
    fs::write(
        directory.join("authorization.json"),
        authorization.to_string(),
    )?;
    Ok(())
}

/// Every call once, when it has been answered; of the state of pods also what was said.
pub(super) fn write_audit_policy(directory: &Path) -> Result<()> {
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [
            {
                "level": "Request",
                "verbs": ["patch", "update"],
                "resources": [{"group": "", "resources": ["pods/status"]}],
            },
            {"level": "Metadata"},
        ],
    });
    fs::write(directory.join("audit.yaml"), policy.to_string())?;
    Ok(())
}

/// YAML is a larger JSON. Limits are for a machine that others use too: its disk may be nearly full.
fn kubelet_settings(directory: &Path) -> String {
    let group = directory.file_name().map(|name| name.to_string_lossy());
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": format!("unix://{}", directory.join("containerd.sock").display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}{}", super::CONTROL_GROUP, group.unwrap_or_default()),
        "failSwapOn": false,
        "oomScoreAdj": 0,
        "authentication": {
            "x509": {"clientCAFile": directory.join("pki/ca.pem")},
            "webhook": {"enabled": true},
            "anonymous": {"enabled": false},
        },
        "authorization": {"mode": "Webhook"},
        "resolvConf": directory.join("resolv.conf"),
        "podLogsDir": directory.join("pod-logs"),
        "volumePluginDir": directory.join("plugins"),
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "maxPods": 240,
        "serializeImagePulls": false,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 0,
    })
    .to_string()
}

/// The tables of connections belong to the whole machine and are left alone.
fn proxy_settings(directory: &Path, network: &Network) -> String {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": directory.join("admin.kubeconfig")},
        "mode": "iptables",
        "hostnameOverride": "node",
        "clusterCIDR": network.pods(),
        "oomScoreAdj": 0,
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
        "iptables": {"minSyncPeriod": "100ms"},
    })
    .to_string()
}

fn containerd_settings(directory: &Path) -> String {
    let place = directory.display();
    format!(
        r#"version = 2
root = "{place}/containerd"
state = "{place}/containerd-state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{place}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  stream_server_address = "127.0.0.1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{place}/networks"
"#
    )
}
