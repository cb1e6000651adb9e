//! The driver's part of the configuration.

use std::time::Duration;

use nodeyard_config::{self as config, ClusterLabel, ClusterPool, Seconds};
use nodeyard_driver::{Error, Owner, Poll};
use nodeyard_model::{Label, PoolName};

use crate::holder::HolderKind;

/// How long a pod may take to start, as in Nodepool.
const POD_LIMIT: Duration = Duration::from_secs(300);
/// How long the deletion of a namespace may take.
const DELETE_LIMIT: Duration = Duration::from_secs(300);
const CALL_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Options {
    pub owner: Owner,
    pub holder: HolderKind,
    /// The context of the kubeconfig; stored with nodes.
    pub context: Option<Box<str>>,
    /// The name of the cluster; its address if this is None.
    pub cluster_id: Option<Box<str>>,
    pub pools: Vec<PoolOptions>,
    pub call_limit: Duration,
    pub pod_limit: Duration,
    pub delete_limit: Duration,
    /// How long a pod may wait for room before its launch is given up.
    pub scheduling_timeout: Duration,
    /// How long pulls of an image may fail before the launch does.
    pub image_pull_timeout: Duration,
    pub poll: Poll,
}

#[derive(Debug, Clone)]
pub struct PoolOptions {
    pub name: PoolName,
    pub labels: Vec<ClusterLabel>,
}

impl Options {
    pub fn kubernetes(section: &config::Kubernetes, owner: Owner) -> Self {
        Self::of(
            owner,
            HolderKind::Namespace,
            section.context.as_deref(),
            &section.pools,
            section.cluster_id.as_deref(),
            [section.scheduling_timeout, section.image_pull_timeout],
        )
    }

    pub fn openshift(section: &config::OpenShift, owner: Owner) -> Self {
        Self::of(
            owner,
            HolderKind::Project,
            Some(&section.context),
            &section.pools,
            section.cluster_id.as_deref(),
            [section.scheduling_timeout, section.image_pull_timeout],
        )
    }

    pub fn openshiftpods(section: &config::OpenShiftPods, owner: Owner) -> Self {
        Self::of(
            owner,
            HolderKind::Pod,
            Some(&section.context),
            &section.pools,
            section.cluster_id.as_deref(),
            [section.scheduling_timeout, section.image_pull_timeout],
        )
    }

    fn of(
        owner: Owner,
        holder: HolderKind,
        context: Option<&str>,
        pools: &[ClusterPool],
        cluster_id: Option<&str>,
        [scheduling_timeout, image_pull_timeout]: [Seconds; 2],
    ) -> Self {
        let pools = pools.iter().map(|pool| PoolOptions {
            name: PoolName::new(pool.common.name.as_str()),
            labels: pool.labels.clone(),
        });
        Self {
            owner,
            holder,
            context: context.map(Into::into),
            cluster_id: cluster_id.map(Into::into),
            pools: pools.collect(),
            call_limit: CALL_LIMIT,
            pod_limit: POD_LIMIT,
            delete_limit: DELETE_LIMIT,
            scheduling_timeout: *scheduling_timeout,
            image_pull_timeout: *image_pull_timeout,
            poll: Poll::default(),
        }
    }

    /// Whether nodes of some label share namespaces.
    pub(crate) fn shares(&self) -> bool {
        let mut labels = self.pools.iter().flat_map(|pool| &pool.labels);
        labels.any(|label| label.share != config::Share::None)
    }

    /// Whether nodes of some label are reached through tunnels of this process.
    pub(crate) fn forwards(&self) -> bool {
        let labels = self.pools.iter().flat_map(|pool| &pool.labels);
        let mut ssh = labels.filter_map(|label| label.ssh.as_ref());
        ssh.any(|ssh| ssh.expose == config::Expose::Forward)
    }

    pub(crate) fn label(&self, pool: &PoolName, name: &Label) -> Result<&ClusterLabel, Error> {
        let of_pool = |of: &&PoolOptions| of.name == *pool;
        let pool = self.pools.iter().find(of_pool).ok_or_else(|| {
            Error::permanent(format!(
                "provider {} has no pool {pool}",
                self.owner.provider
            ))
        })?;
        let mut labels = pool.labels.iter();
        labels
            .find(|label| label.name.as_str() == name.as_str())
            .ok_or_else(|| Error::permanent(format!("pool {} has no label {name}", pool.name)))
    }
}
