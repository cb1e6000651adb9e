//! The registry that comes with OpenShift, for jobs in projects: its address, and the secret to pull with.
//!
//! Only administrators may read the registry itself. All users may read the image streams that come with the cluster, and
//! those name the address.

use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use nodeyard_config::{ClusterLabel, NodeKind, RegistryAccess};
use nodeyard_driver::{Error, ErrorClass};
use serde_json::{Value, json};

use super::{ClusterLink, KubernetesDriver};
use crate::body::ACCOUNT;

const STREAMS: &str = "/apis/image.openshift.io/v1/namespaces/openshift/imagestreams?limit=1";
/// How long to wait for the pull secret of an account. Jobs can do without it.
const PATIENCE: Duration = Duration::from_secs(30);

impl KubernetesDriver {
    /// Returns None if the label does not use the registry, or the cluster has none.
    pub(super) async fn registry(
        &self,
        link: &ClusterLink,
        label: &ClusterLabel,
        project: &str,
    ) -> Result<Option<Value>, Error> {
        if label.node_kind() != NodeKind::Project || label.registry_access == RegistryAccess::None {
            return Ok(None);
        }
        let streams = match link.api.get::<Value>("read image streams", STREAMS).await {
            // An administrator has forbidden it.
            Err(error) if error.class() == ErrorClass::Credentials => None,
            streams => streams?,
        };
        let host = |key: &str| {
            let path = format!("/items/0/status/{key}");
            let text = streams.as_ref()?.pointer(&path)?.as_str()?;
            let host = text.split('/').next().filter(|host| !host.is_empty())?;
            Some(host.to_owned())
        };
        let host = if label.registry_external {
            let host = host("publicDockerImageRepository");
            Some(host.ok_or_else(|| {
                Error::new(
                    ErrorClass::Failed,
                    "`registry-external`: the registry of the cluster has no address outside of it",
                )
            })?)
        } else {
            host("dockerImageRepository")
        };
        let Some(host) = host else {
            return Ok(None);
        };
        let path = format!("/api/v1/namespaces/{project}/serviceaccounts/{ACCOUNT}");
        let timer = self.options.poll.start();
        let secret = loop {
            let account = link.api.get::<ServiceAccount>("read an account", &path);
            let secrets = account
                .await?
                .and_then(|account| account.image_pull_secrets);
            let secret = secrets.unwrap_or_default().into_iter().next();
            if secret.is_some() || timer.age() >= PATIENCE {
                break secret;
            }
            timer.tick().await;
        };
        Ok(Some(json!({
            "host": host,
            "namespace": project,
            "pull_secret": secret.map(|secret| secret.name),
        })))
    }
}
