//! An executor without Zuul: ansible-core, an inventory as Zuul writes it, and the nodes in it.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nodeyard_testbeds::{Cluster, Sshd, ansible, checkout, executable};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::source::Source;

/// A pod with one container.
pub(crate) const PLAIN: &str = "plain";
/// A pod with a git side-car.
pub(crate) const PAIRED: &str = "paired";
/// Reached by SSH.
pub(crate) const MACHINE: &str = "machine";
pub(crate) const HOSTS: [&str; 3] = [PLAIN, PAIRED, MACHINE];

const SIDECAR: &str = "git-sidecar";
const SHARED: &str = "/zuul/git";

pub(crate) struct Bed {
    directory: TempDir,
    sshd: Sshd,
    cluster: Cluster,
    namespace: String,
    with_nodeyard: Cell<bool>,
}

pub(crate) struct Played {
    success: bool,
    pub(crate) output: String,
}

impl Bed {
    /// None where there can be no cluster.
    pub(crate) fn start() -> Option<Self> {
        let cluster = Cluster::start_if_possible().unwrap()?;
        let bed = Self {
            directory: tempfile::tempdir().unwrap(),
            sshd: Sshd::start().unwrap(),
            cluster,
            namespace: format!("roles-{}", std::process::id()),
            with_nodeyard: Cell::new(false),
        };
        bed.make_pods();
        fs::write(bed.path("inventory.json"), bed.inventory().to_string()).unwrap();
        Some(bed)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn image(&self) -> String {
        self.cluster.image()
    }

    /// Of the kubeconfig.
    pub(crate) fn context(&self) -> String {
        self.kubectl(&["config", "current-context"])
    }

    /// That of a ConfigMap, which pods can mount.
    pub(crate) fn certificate_in(&self, map: &str) -> String {
        let data = r"jsonpath={.data.ca\.crt}";
        self.kubectl(&["get", "configmap", map, "-o", data])
    }

    pub(crate) fn address_of_node(&self) -> String {
        let address = r#"jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}"#;
        self.kubectl(&["get", "nodes", "-o", address])
    }

    fn make_pods(&self) {
        let container = |name: &str| {
            json!({
                "name": name, "image": self.cluster.image(), "command": ["sleep", "infinity"],
                "volumeMounts": [{"name": "shared", "mountPath": SHARED}],
            })
        };
        let pod = |name: &str, containers: Value| {
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.namespace},
                "spec": {
                    "containers": containers, "volumes": [{"name": "shared", "emptyDir": {}}],
                    "terminationGracePeriodSeconds": 0,
                },
            })
        };
        let space =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        let paired = json!([container("main"), container(SIDECAR)]);
        let pods = [pod(PLAIN, json!([container("main")])), pod(PAIRED, paired)];
        let objects = [&[space], &pods[..]].concat();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        fs::write(self.path("objects.json"), list.to_string()).unwrap();
        let file = self.path("objects.json");
        // The account that its pods run as is made after the namespace.
        until("the pods are accepted", || {
            let applied = self
                .cluster
                .kubectl(&["apply", "-f", file.to_str().unwrap()]);
            applied.is_ok()
        });
        for name in [PLAIN, PAIRED] {
            let pod = format!("pod/{name}");
            self.kubectl(&["wait", &pod, "--for=condition=Ready", "--timeout=300s"]);
        }
    }

    fn inventory(&self) -> Value {
        let pod = |name: &str| {
            json!({
                "ansible_connection": "kubectl", "ansible_host": name, "ansible_port": null,
                "ansible_kubectl_namespace": self.namespace, "ansible_python_interpreter": "auto",
            })
        };
        let mut paired = pod(PAIRED);
        paired["ansible_kubectl_container"] = json!("main");
        paired["nodepool"] =
            json!({"node_properties": {"git": {"container": SIDECAR, "path": SHARED}}});
        let machine = json!({
            "ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": self.sshd.port(),
            "ansible_user": self.sshd.username(), "ansible_ssh_private_key_file": self.sshd.client_key(),
            "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            "ansible_python_interpreter": "auto", "workspace_cache": self.path("cache"),
        });
        json!({"all": {"hosts": {PLAIN: pod(PLAIN), PAIRED: paired, MACHINE: machine}}})
    }

    /// What the repositories of a node are below.
    pub(crate) fn root(&self, host: &str) -> &'static str {
        if host == PAIRED { SHARED } else { "~" }
    }

    pub(crate) fn on(&self, host: &str, script: &str) -> String {
        match host {
            PLAIN => self.kubectl(&["exec", PLAIN, "--", "sh", "-c", script]),
            PAIRED => self.kubectl(&["exec", PAIRED, "-c", "main", "--", "sh", "-c", script]),
            _ => {
                let output = Command::new("ssh")
                    .args(["-n", "-o", "StrictHostKeyChecking=no"])
                    .args(["-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"])
                    .args(["-p", &self.sshd.port().to_string(), "-i"])
                    .arg(self.sshd.client_key())
                    .args([&format!("{}@127.0.0.1", self.sshd.username()), script])
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{script}: {output:?}");
                String::from_utf8(output.stdout).unwrap()
            }
        }
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        let all = [&["--namespace", &self.namespace], arguments].concat();
        self.cluster.kubectl(&all).unwrap()
    }

    /// What the image of a node would bring along, as another user's.
    pub(crate) fn put_cache(&self, host: &str, source: &Source, repository: &str) {
        let cache = self.path("cache").join(repository);
        if !cache.exists() {
            let cloned = Command::new("git")
                .args(["clone", "-q", "--bare", "--no-local"])
                .arg(source.place(repository))
                .arg(&cache)
                .status();
            assert!(cloned.unwrap().success());
            let given = Command::new("chown")
                .args(["-R", "12345"])
                .arg(&cache)
                .status();
            assert!(given.unwrap().success());
        }
        if host == MACHINE {
            return;
        }
        let archive = self.path("cache.tar");
        let packed = Command::new("tar")
            .arg("-cf")
            .arg(&archive)
            .arg("-C")
            .arg(self.path("cache"))
            .arg(".")
            .status();
        assert!(packed.unwrap().success());
        let mut command = self.cluster.kubectl_command();
        let sent = command
            .args(["--namespace", &self.namespace, "exec", "-i", host, "--"])
            .args(["sh", "-c", "mkdir -p /opt/git && tar -C /opt/git -x"])
            .stdin(Stdio::from(fs::File::open(&archive).unwrap()))
            .status();
        assert!(sent.unwrap().success());
    }

    /// Puts `nodeyard` on the executor, which notes how it is called.
    pub(crate) fn install_nodeyard(&self) {
        let (bin, calls) = (self.path("bin"), self.path("calls"));
        fs::create_dir(&bin).unwrap();
        let script = format!(
            "#!/bin/sh\necho \"$NODEPOOL_GIT_POD $*\" >> '{}'\nexec '{}' \"$@\"\n",
            calls.display(),
            env!("CARGO_BIN_EXE_nodeyard")
        );
        let program = bin.join("nodeyard");
        executable(&program, &script).unwrap();
        self.with_nodeyard.set(true);
    }

    pub(crate) fn calls_of_nodeyard(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }

    /// What the last play has returned to Zuul.
    pub(crate) fn returned(&self) -> Value {
        let text = fs::read_to_string(self.path("returned.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn play(&self, playbook: &str, variables: &Value) -> Played {
        fs::write(self.path("playbook.yaml"), playbook).unwrap();
        fs::write(self.path("variables.json"), variables.to_string()).unwrap();
        let ansible = ansible().unwrap();
        let mut path = vec![self.cluster.programs(), ansible.clone()];
        if self.with_nodeyard.get() {
            path.insert(0, self.path("bin"));
        }
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
        let tree = checkout();
        let tests = tree.join("crates/nodeyard/tests/roles");
        let output = Command::new(ansible.join("ansible-playbook"))
            .args([
                "-i",
                "inventory.json",
                "-e",
                "@variables.json",
                "playbook.yaml",
            ])
            .current_dir(self.directory.path())
            .env("PATH", std::env::join_paths(path).unwrap())
            .env("HOME", self.directory.path())
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .env("ANSIBLE_ROLES_PATH", tree.join("roles"))
            .env("ANSIBLE_ACTION_PLUGINS", tests.join("action"))
            .env("RETURNED", self.path("returned.json"))
            .env("ANSIBLE_NOCOLOR", "1")
            // No connection outlives the play.
            .env("ANSIBLE_SSH_ARGS", "-o ControlMaster=no")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let output_text = [output.stdout, output.stderr].concat();
        Played {
            success: output.status.success(),
            output: String::from_utf8_lossy(&output_text).into_owned(),
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _gone = self
            .cluster
            .kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]);
    }
}

impl Played {
    pub(crate) fn succeeded(&self) -> bool {
        self.success
    }

    /// How many tasks have changed something on this host, or for it.
    pub(crate) fn changed(&self, host: &str) -> u32 {
        let mut lines = self.output.lines();
        let recap = lines.find(|line| line.starts_with(host) && line.contains(" : ok="));
        let (_, rest) = recap.unwrap().split_once("changed=").unwrap();
        rest.split(' ').next().unwrap().parse().unwrap()
    }
}

#[track_caller]
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(300);
    while !condition() {
        assert!(
            std::time::Instant::now() < deadline,
            "waited in vain until {what}"
        );
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
