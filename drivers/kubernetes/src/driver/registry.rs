//! The registry that comes with OpenShift, for jobs in projects: where it is, and what is pulled with.
//!
//! Nobody but administrators may look at the registry itself. Everybody may look at the image streams that come with
//! the cluster, and those say where their images are.

use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use nodeyard_config::{ClusterLabel, NodeKind, RegistryAccess};
use nodeyard_driver::{Error, ErrorClass};
use serde_json::{Value, json};

use super::{KubernetesDriver, Link};
use crate::body::ACCOUNT;

const STREAMS: &str = "/apis/image.openshift.io/v1/namespaces/openshift/imagestreams?limit=1";
/// How long an account may be without its pull secret. It is of use without one, too.
const PATIENCE: Duration = Duration::from_secs(30);

/// What there is to tell.
pub(super) enum Registry {
    /// No registry, or no business of the label.
    None,
    /// The cluster is still at it.
    Later,
    Here(Value),
}

impl KubernetesDriver {
    pub(super) async fn registry(
        &self,
        link: &Link,
        label: &ClusterLabel,
        project: &str,
        age: Duration,
    ) -> Result<Registry, Error> {
        if label.node_kind() != NodeKind::Project || label.registry_access == RegistryAccess::None {
            return Ok(Registry::None);
        }
        let streams = match link
            .api
            .get::<Value>("look at image streams", STREAMS)
            .await
        {
            // Somebody has seen to it that nobody looks.
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
            return Ok(Registry::None);
        };
        let path = format!("/api/v1/namespaces/{project}/serviceaccounts/{ACCOUNT}");
        let account = link.api.get::<ServiceAccount>("look at an account", &path);
        let secrets = account
            .await?
            .and_then(|account| account.image_pull_secrets);
        let secret = secrets.unwrap_or_default().into_iter().next();
        if secret.is_none() && age < PATIENCE {
            return Ok(Registry::Later);
        }
        Ok(Registry::Here(json!({
            "host": host,
            "namespace": project,
            "pull_secret": secret.map(|secret| secret.name),
        })))
    }
}
