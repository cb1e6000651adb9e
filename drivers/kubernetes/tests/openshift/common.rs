//! One OpenShift for all tests, and an account in it that may do what the docs say a provider has to be allowed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nodeyard_driver_kubernetes::{Kubeconfig, KubernetesDriver, Options};
use nodeyard_testbeds::{Cluster, OpenShift};
use serde_json::{Value, json};

pub(crate) use crate::caller::*;

/// The namespace of the accounts of providers.
pub(crate) const HOME: &str = "nodeyard-providers";

pub(crate) struct Bed {
    openshift: OpenShift,
    /// Of an account that may request projects, and nothing else.
    pub(crate) provider: PathBuf,
    _directory: tempfile::TempDir,
}

impl Bed {
    fn start() -> Option<Self> {
        let openshift = OpenShift::start_if_possible().unwrap()?;
        let directory = tempfile::tempdir().unwrap();
        let provider = directory.path().join("provider");
        let cluster = openshift.cluster();
        cluster.kubectl(&["create", "namespace", HOME]).unwrap();
        let token = account(cluster, "provider");
        let subject = format!("--serviceaccount={HOME}:provider");
        let role = "--clusterrole=self-provisioner";
        let binding = [
            "create",
            "clusterrolebinding",
            "nodeyard-provider",
            role,
            &subject,
        ];
        cluster.kubectl(&binding).unwrap();
        write_kubeconfig(cluster, &provider, &token);
        Some(Self {
            openshift,
            provider,
            _directory: directory,
        })
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        self.openshift.cluster()
    }

    pub(crate) fn driver(&self, options: Options) -> KubernetesDriver {
        driver_as(&self.provider, options)
    }

    /// What is there, seen by somebody who may see everything.
    pub(crate) fn read(&self, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["-o", "json"]].concat();
        serde_json::from_str(&self.cluster().kubectl(&arguments).unwrap()).unwrap()
    }

    pub(crate) fn is_there(&self, namespace: &str) -> bool {
        self.cluster().has_namespace(namespace).unwrap()
    }

    /// Whoever requests projects cannot see the last moments of theirs.
    pub(crate) async fn goes(&self, namespace: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.is_there(namespace) {
            assert!(Instant::now() < deadline, "{namespace} does not go");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// None where there can be none, which is said.
pub(crate) fn bed() -> Option<&'static Bed> {
    static BED: LazyLock<Option<Bed>> = LazyLock::new(Bed::start);
    BED.as_ref()
}

pub(crate) fn driver_as(kubeconfig: &Path, options: Options) -> KubernetesDriver {
    let connect = Kubeconfig {
        file: Some(kubeconfig.to_owned()),
        context: None,
    };
    driver_through(options, connect)
}

/// A new account, and its token.
pub(crate) fn account(cluster: &Cluster, name: &str) -> String {
    let home = format!("--namespace={HOME}");
    cluster
        .kubectl(&["create", "serviceaccount", name, &home])
        .unwrap();
    cluster.kubectl(&["create", "token", name, &home]).unwrap()
}

/// The way of a token to the cluster.
pub(crate) fn write_kubeconfig(cluster: &Cluster, file: &Path, token: &str) {
    let admins = std::fs::read_to_string(cluster.kubeconfig()).unwrap();
    let mut kubeconfig: Value = serde_json::from_str(&admins).unwrap();
    kubeconfig["users"][0]["user"] = json!({"token": token});
    std::fs::write(file, kubeconfig.to_string()).unwrap();
}

/// What a person with that kubeconfig would type after `kubectl`.
pub(crate) fn kubectl_as(cluster: &Cluster, kubeconfig: &Path) -> Command {
    let mut command = cluster.kubectl_command();
    command.env("KUBECONFIG", kubeconfig).stdin(Stdio::null());
    command
}
