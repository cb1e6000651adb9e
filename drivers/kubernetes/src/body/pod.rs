//! The pod of a node.
//!
//! Without extensions it equals the pod that Nodepool creates, key for key. Extensions (an SSH server, a git sidecar) are
//! added to either form: the one from the label's options, or the label's own `spec`.

use nodeyard_config::{ClusterLabel, Console, GitSidecar, SshAccess};
use nodeyard_driver::Error;
use serde_json::{Map, Value, json};

use super::metadata::texts;
use super::ssh::HostKeys;
use crate::api::put;
use crate::holder::HolderKind;
use crate::names;

pub(crate) const SIDECAR: &str = "git-sidecar";
pub(crate) const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
const KEYS_VOLUME: &str = "authorized-keys";
const HOST_KEYS_VOLUME: &str = "host-keys";
/// Zuul's console, started by the main loop, so that jobs need not.
const CONSOLE: &str = include_str!("console.py");
/// The group that owns shared volumes, so that both containers may write.
const SHARED_GROUP: u32 = 1000;

/// A pod to create.
pub(crate) struct PodPlan<'a> {
    pub(crate) name: &'a str,
    pub(crate) label: &'a ClusterLabel,
    pub(crate) holder: HolderKind,
    pub(crate) labels: Map<String, Value>,
    /// Those of the label are added.
    pub(crate) annotations: Map<String, Value>,
    pub(crate) host_keys: Option<&'a HostKeys>,
}

impl PodPlan<'_> {
    pub(crate) fn body(&self) -> Result<Value, Error> {
        let label = self.label;
        let mut annotations = self.annotations.clone();
        annotations.extend(texts(label.annotations.as_ref()));
        let mut spec = match &label.spec {
            Some(spec) => Value::Object(spec.clone()),
            None => self.spec(),
        };
        if let Some(policy) = label.hardening.restart_policy {
            put(&mut spec, "restartPolicy", json!(policy));
        }
        if let Some(account) = &label.hardening.service_account_name {
            put(&mut spec, "serviceAccountName", account.as_str().into());
        }
        if let Some(automount) = label.hardening.automount_service_account_token {
            put(&mut spec, "automountServiceAccountToken", automount.into());
        }
        if let Some(ssh) = &label.ssh {
            self.add_ssh(&mut spec, ssh)?;
        }
        if let Some(sidecar) = &label.git_sidecar
            && let Some(main) = add_sidecar(&mut spec, sidecar, label.name.as_str())?
        {
            annotations.entry(DEFAULT_CONTAINER).or_insert(main);
        }
        Ok(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "labels": self.labels, "annotations": annotations},
            "spec": spec,
        }))
    }

    fn spec(&self) -> Value {
        let label = self.label;
        let mut container = json!({
            "name": label.name.as_str(),
            "image": label.image,
            "imagePullPolicy": label.image_pull,
            "env": label.env,
        });
        let command = match &label.ssh {
            None => Some(self.sleep()),
            Some(ssh) if ssh.keepalive => Some(self.sleep()),
            Some(ssh) => ssh.command.clone().map(|command| (command, None)),
        };
        if let Some((command, arguments)) = command {
            put(&mut container, "command", command.into());
            if let Some(arguments) = arguments {
                put(&mut container, "args", arguments.into());
            }
        }
        let requests = amounts(label, label.cpu, label.memory, label.storage);
        let limits = amounts(
            label,
            label.cpu_limit,
            label.memory_limit,
            label.storage_limit,
        );
        let mut resources = Map::new();
        for (key, amounts) in [("requests", requests), ("limits", limits)] {
            if !amounts.is_empty() {
                resources.insert(key.to_owned(), amounts.into());
            }
        }
        if !resources.is_empty() {
            put(&mut container, "resources", resources.into());
        }
        if let Some(mounts) = &label.volume_mounts {
            put(&mut container, "volumeMounts", json!(mounts));
        }
        if let Some(privileged) = label.privileged {
            put(
                &mut container,
                "securityContext",
                json!({"privileged": privileged}),
            );
        }
        let mut spec = json!({"containers": [container]});
        let secrets = &label.hardening.image_pull_secrets;
        if self.holder != HolderKind::Namespace || !secrets.is_empty() {
            let names = secrets.iter().map(|secret| json!({"name": secret.name}));
            put(&mut spec, "imagePullSecrets", names.collect());
        }
        if let Some(selector) = &label.node_selector {
            put(&mut spec, "nodeSelector", selector.clone().into());
        }
        if let Some(scheduler) = &label.scheduler_name {
            put(&mut spec, "schedulerName", scheduler.as_str().into());
        }
        if let Some(volumes) = &label.volumes {
            put(&mut spec, "volumes", json!(volumes));
        }
        spec
    }

    /// Returns Nodepool's command: the container does nothing until a job runs commands in it.
    fn sleep(&self) -> (Vec<String>, Option<Vec<String>>) {
        const LOOP: &str = "while true; do sleep 30; done;";
        let shell = ["/bin/sh", "-c"].map(ToOwned::to_owned).to_vec();
        let arguments = match self.label.console {
            Console::None => vec![LOOP.to_owned()],
            Console::Inject => {
                let python = match self.label.python_path.as_str() {
                    "auto" => "python3",
                    path => path,
                };
                let start = format!(r#""$1" -c "$0" & {LOOP}"#);
                vec![start, CONSOLE.to_owned(), python.to_owned()]
            }
        };
        (shell, Some(arguments))
    }

    /// Adds the readiness probe of the SSH port, and the authorized keys.
    fn add_ssh(&self, spec: &mut Value, ssh: &SshAccess) -> Result<(), Error> {
        if let Some(keys) = self.host_keys {
            // sshd refuses keys that others can read.
            let secret = json!({"secretName": keys.secret, "defaultMode": 0o400});
            push(
                spec,
                "volumes",
                json!({"name": HOST_KEYS_VOLUME, "secret": secret}),
            );
        }
        let keys = !ssh.authorized_keys.is_empty();
        if keys {
            let volume = json!({"name": KEYS_VOLUME, "configMap": {"name": keys_name(self.name)}});
            push(spec, "volumes", volume);
        }
        let containers = array(spec, "containers");
        let main = containers.and_then(|containers| containers.first_mut());
        let main = main.ok_or_else(|| no_container(self.label))?;
        push(
            main,
            "ports",
            json!({"name": "ssh", "containerPort": ssh.port.0}),
        );
        for file in self.host_keys.iter().flat_map(|keys| &keys.files) {
            let mount = json!({
                "name": HOST_KEYS_VOLUME,
                "mountPath": format!("/etc/ssh/{file}"),
                "subPath": file,
                "readOnly": true,
            });
            push(main, "volumeMounts", mount);
        }
        if main.get("readinessProbe").is_none() {
            let probe = json!({"tcpSocket": {"port": ssh.port.0}, "periodSeconds": 1});
            put(main, "readinessProbe", probe);
        }
        if keys {
            // A single file, so that the permissions of the directory stay as sshd requires them.
            let path = format!(
                "{}/{}",
                ssh.authorized_keys_path.trim_end_matches('/'),
                ssh.username
            );
            let mount = json!({
                "name": KEYS_VOLUME,
                "mountPath": path,
                "subPath": ssh.username,
                "readOnly": true,
            });
            push(main, "volumeMounts", mount);
        }
        Ok(())
    }
}

/// Returns the name of the config map with the authorized keys of a pod.
pub(crate) fn keys_name(pod: &str) -> String {
    names::service(pod)
}

fn no_container(label: &ClusterLabel) -> Error {
    Error::permanent(format!(
        "the `spec` of label {} has no container",
        label.name
    ))
}

fn amounts(
    label: &ClusterLabel,
    cpu: Option<u64>,
    memory: Option<u64>,
    storage: Option<u64>,
) -> Map<String, Value> {
    let mut amounts = Map::new();
    if let Some(cores) = cpu {
        amounts.insert("cpu".to_owned(), cores.into());
    }
    if let Some(mebibytes) = memory {
        amounts.insert("memory".to_owned(), format!("{mebibytes}Mi").into());
    }
    if let Some(megabytes) = storage {
        amounts.insert(
            "ephemeral-storage".to_owned(),
            format!("{megabytes}M").into(),
        );
    }
    if let (Some(count), Some(name)) = (label.gpu, &label.gpu_resource) {
        amounts.insert(name.clone(), format!("{count:.2}").into());
    }
    amounts
}

/// Adds a container with git that shares a volume with the others. Returns the name of the main container.
fn add_sidecar(
    spec: &mut Value,
    sidecar: &GitSidecar,
    label: &str,
) -> Result<Option<Value>, Error> {
    let mount = json!({"name": sidecar.volume_name, "mountPath": sidecar.path});
    let mut volume = json!({"name": sidecar.volume_name, "emptyDir": {}});
    if let Some(limit) = &sidecar.size_limit {
        put(&mut volume, "emptyDir", json!({"sizeLimit": limit}));
    }
    let Some(containers) = array(spec, "containers") else {
        return Err(Error::permanent(format!(
            "the `spec` of label {label} has no container"
        )));
    };
    let named = |container: &Value| {
        container
            .get("name")
            .and_then(Value::as_str)
            .map(ToOwned::to_owned)
    };
    for container in containers.iter_mut() {
        let name = named(container);
        if name.as_deref() == Some(SIDECAR) {
            return Err(Error::permanent(format!(
                "label {label} has a container of its own that is called {SIDECAR}"
            )));
        }
        let chosen = sidecar.mount_in.is_empty()
            || name.is_some_and(|name| sidecar.mount_in.contains(&name));
        if chosen {
            push(container, "volumeMounts", mount.clone());
        }
    }
    let main = containers.first().and_then(named);
    let mut container = json!({
        "name": SIDECAR,
        "image": sidecar.image,
        "command": ["/bin/sh", "-c"],
        "args": ["git config --global --add safe.directory '*'; while true; do sleep 30; done;"],
        "volumeMounts": [mount],
    });
    if let Some(resources) = &sidecar.resources {
        put(&mut container, "resources", resources.clone().into());
    }
    containers.push(container);
    push(spec, "volumes", volume);
    if let Some(spec) = spec.as_object_mut() {
        let security = spec.entry("securityContext").or_insert_with(|| json!({}));
        if security.get("fsGroup").is_none() {
            put(security, "fsGroup", SHARED_GROUP.into());
        }
    }
    Ok(main.map(Value::String))
}

fn array<'v>(object: &'v mut Value, key: &str) -> Option<&'v mut Vec<Value>> {
    object.get_mut(key)?.as_array_mut()
}

/// Appends to a list, and creates it if necessary.
fn push(object: &mut Value, key: &str, value: Value) {
    if let Some(list) = array(object, key) {
        list.push(value);
    } else {
        put(object, key, json!([value]));
    }
}

#[cfg(test)]
mod tests;
