//! How to log in to a machine, with ssh, a container runtime or kubectl.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use nodeyard_lease::NodeConnection;
use serde_json::{Value, json};

use crate::api_client::LeasedNode;

/// The commands that log in to a machine.
#[derive(Debug, Clone)]
pub(crate) struct LoginCommand {
    /// The label and the id of the machine.
    pub(crate) name: String,
    /// The command for an interactive login.
    log_in: Vec<String>,
    /// The command that precedes a script, without a terminal.
    run: Vec<String>,
}

impl LoginCommand {
    /// Returns how to log in to a node. Known host keys and credentials are written to `files`; without a directory,
    /// programs use their own configuration.
    pub(crate) fn to(
        node: &LeasedNode,
        files: Option<&Path>,
        identity: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let name = format!("{}-{}", node.label, node.id);
        let connection = node.connection.as_ref();
        let connection =
            connection.with_context(|| format!("{name}: no connection in the lease"))?;
        let host = connection.host.as_deref();
        let host = host.with_context(|| format!("{name}: no address"))?;
        let files = files.map(|directory| directory.join(&node.id));
        let (log_in, run) = match &*connection.kind {
            "ssh" => {
                let log_in = ssh(connection, host, files.as_deref(), identity)?;
                (log_in.clone(), log_in)
            }
            engine @ ("docker" | "podman") => exec(engine, host, connection.user.as_deref()),
            "kubectl" => kubectl(connection, host, files.as_deref())?,
            other => bail!(
                "{name}: unsupported connection type {other:?}; `nodeyard scope inventory` creates an inventory \
                 for Ansible, which may support it"
            ),
        };
        Ok(Self { name, log_in, run })
    }

    /// Returns the login command, to be copied.
    pub(crate) fn command_line(&self) -> String {
        let words = self.log_in.iter().map(String::as_str);
        shlex::try_join(words).unwrap_or_default()
    }

    /// Returns the command that runs a script on the machine.
    pub(crate) fn script(&self, script: &str) -> Vec<String> {
        let mut words = self.run.clone();
        words.push(script.to_owned());
        words
    }
}

/// Host keys are checked against those in the node's record only. Without any, host key checking was disabled for the
/// node.
fn ssh(
    connection: &NodeConnection,
    host: &str,
    files: Option<&Path>,
    identity: Option<&Path>,
) -> anyhow::Result<Vec<String>> {
    let mut words = vec!["ssh".to_owned()];
    let mut option = |text: String| words.extend(["-o".to_owned(), text]);
    if let Some(files) = files {
        let known = files.with_extension("known_hosts");
        write(&known, &connection.known_hosts())?;
        option(format!("UserKnownHostsFile={}", known.display()));
        option("GlobalKnownHostsFile=/dev/null".to_owned());
        let check = if connection.host_keys.is_empty() {
            "no"
        } else {
            "yes"
        };
        option(format!("StrictHostKeyChecking={check}"));
    }
    if let Some(port) = connection.port.filter(|port| *port != 22) {
        words.extend(["-p".to_owned(), port.to_string()]);
    }
    if let Some(identity) = identity {
        words.extend(["-i".to_owned(), identity.display().to_string()]);
    }
    words.push("--".to_owned());
    words.push(match &connection.user {
        Some(user) => format!("{user}@{host}"),
        None => host.to_owned(),
    });
    Ok(words)
}

fn exec(engine: &str, container: &str, user: Option<&str>) -> (Vec<String>, Vec<String>) {
    let words = |mode: &str, shell: &[&str]| {
        let mut words = vec![engine, "exec", mode];
        words.extend(user.into_iter().flat_map(|user| ["--user", user]));
        words.push(container);
        words.extend(shell);
        words.into_iter().map(str::to_owned).collect()
    };
    (words("-it", &["sh"]), words("-i", &["sh", "-c"]))
}

fn kubectl(
    connection: &NodeConnection,
    pod: &str,
    files: Option<&Path>,
) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let cluster = connection.cluster.as_ref();
    let cluster = cluster.with_context(|| format!("{pod}: no cluster in the connection"))?;
    let mut words = vec!["kubectl".to_owned()];
    if let Some(files) = files {
        let path = files.with_extension("kubeconfig");
        write(&path, &kubeconfig(cluster).to_string())?;
        words.extend(["--kubeconfig".to_owned(), path.display().to_string()]);
    }
    if let Some(namespace) = cluster.get("namespace").and_then(Value::as_str) {
        words.extend(["--namespace".to_owned(), namespace.to_owned()]);
    }
    let with = |mode: &str, shell: &[&str]| {
        let mut words = words.clone();
        words.extend(["exec", mode, pod, "--"].map(str::to_owned));
        words.extend(shell.iter().map(|&word| word.to_owned()));
        words
    };
    Ok((with("-it", &["sh"]), with("-i", &["sh", "-c"])))
}

/// Returns a kubeconfig, so that kubectl reads the token from a file that other users cannot read.
fn kubeconfig(cluster: &Value) -> Value {
    let mut server = json!({ "server": cluster.get("host") });
    if let Some(server) = server.as_object_mut() {
        if cluster.get("skiptls") == Some(&Value::Bool(true)) {
            server.insert("insecure-skip-tls-verify".to_owned(), json!(true));
        } else if let Some(ca) = cluster.get("ca_crt") {
            server.insert("certificate-authority-data".to_owned(), ca.clone());
        }
    }
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "node", "cluster": server }],
        "users": [{ "name": "node", "user": { "token": cluster.get("token") } }],
        "contexts": [{ "name": "node", "context": { "cluster": "node", "user": "node" } }],
        "current-context": "node",
    })
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(connection: &Value) -> LeasedNode {
        let mut all = json!({"kind": "ssh", "host": "h", "port": null, "user": null, "python": null, "shell": null,
            "host_keys": [], "cluster": null});
        for (key, value) in connection.as_object().unwrap() {
            all[key] = value.clone();
        }
        let node =
            json!({"id": "0000000007", "label": "small", "state": "leased", "connection": all});
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn ssh_checks_the_keys_of_the_record() {
        let files = tempfile::tempdir().unwrap();
        let node = node(
            &json!({"host": "192.0.2.7", "port": 2222, "user": "debian", "host_keys": ["ssh-ed25519 AAAA"]}),
        );
        let login = LoginCommand::to(&node, Some(files.path()), Some(Path::new("my key"))).unwrap();
        assert_eq!(login.name, "small-0000000007");
        let known = files.path().join("0000000007.known_hosts");
        assert_eq!(
            fs::read_to_string(&known).unwrap(),
            "[192.0.2.7]:2222 ssh-ed25519 AAAA\n"
        );
        let line = login.command_line();
        assert!(line.contains("StrictHostKeyChecking=yes"), "{line}");
        assert!(
            line.ends_with("-p 2222 -i 'my key' -- debian@192.0.2.7"),
            "{line}"
        );
        assert_eq!(login.script("echo 'a b'").last().unwrap(), "echo 'a b'");
    }

    #[test]
    fn host_names_cannot_inject_options() {
        let login =
            LoginCommand::to(&node(&json!({"host": "-oProxyCommand=x"})), None, None).unwrap();
        assert_eq!(login.script("x")[1], "--");
    }

    #[test]
    fn containers_and_pods_are_reached_by_exec() {
        let login = node(&json!({"kind": "podman", "host": "np7", "user": "zuul"}));
        let login = LoginCommand::to(&login, None, None).unwrap();
        assert_eq!(login.command_line(), "podman exec -it --user zuul np7 sh");
        let script = login.script("make check");
        assert_eq!(
            script,
            [
                "podman",
                "exec",
                "-i",
                "--user",
                "zuul",
                "np7",
                "sh",
                "-c",
                "make check"
            ]
        );

        let files = tempfile::tempdir().unwrap();
        let cluster = json!({"host": "https://k:6443", "namespace": "ns", "token": "secret", "skiptls": false, "ca_crt": "Q0E="});
        let pod = node(&json!({"kind": "kubectl", "host": "pod-7", "cluster": cluster}));
        let login = LoginCommand::to(&pod, Some(files.path()), None).unwrap();
        let words = login.script("x").join(" ");
        assert!(
            words.ends_with("--namespace ns exec -i pod-7 -- sh -c x"),
            "{words}"
        );
        assert!(!words.contains("secret"));
        let written = fs::read_to_string(files.path().join("0000000007.kubeconfig")).unwrap();
        assert!(written.contains("secret") && written.contains("certificate-authority-data"));
    }

    #[test]
    fn unsupported_connections_are_errors() {
        let error = LoginCommand::to(&node(&json!({"kind": "winrm"})), None, None).unwrap_err();
        assert!(error.to_string().contains("inventory"), "{error}");
    }
}
