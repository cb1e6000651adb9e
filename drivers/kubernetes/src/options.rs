//! What the driver needs to know about its provider.

use std::time::Duration;

use nodeyard_config::{self as config, ClusterLabel, ClusterPool};
use nodeyard_driver::{Error, Owner, Poll};
use nodeyard_model::{Label, PoolName};

use crate::holder::HolderKind;

/// How long a pod may take to run, as in Nodepool.
const POD_LIMIT: Duration = Duration::from_secs(300);
/// After this, a namespace that is still there hangs.
const DELETE_LIMIT: Duration = Duration::from_secs(300);
/// Long enough for an autoscaler to say that it makes room.
const SCHEDULING_PATIENCE: Duration = Duration::from_secs(5);
const CALL_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub struct Options {
    pub owner: Owner,
    pub holder: HolderKind,
    /// Of the kubeconfig; stored with nodes.
    pub context: Option<Box<str>>,
    pub pools: Vec<PoolOptions>,
    pub call_limit: Duration,
    pub pod_limit: Duration,
    pub delete_limit: Duration,
    /// How long a pod may be without a place before that counts as a failure.
    pub scheduling_patience: Duration,
    pub poll: Poll,
}

#[derive(Debug, Clone)]
pub struct PoolOptions {
    pub name: PoolName,
    pub labels: Vec<ClusterLabel>,
}

impl Options {
    pub fn kubernetes(section: &config::Kubernetes, owner: Owner) -> Result<Self, Error> {
        Self::of(
            owner,
            HolderKind::Namespace,
            section.context.as_deref(),
            &section.pools,
            (section.affinity, section.cluster_id.as_deref()),
        )
    }

    pub fn openshift(section: &config::OpenShift, owner: Owner) -> Result<Self, Error> {
        Self::of(
            owner,
            HolderKind::Project,
            Some(&section.context),
            &section.pools,
            (section.affinity, section.cluster_id.as_deref()),
        )
    }

    pub fn openshiftpods(section: &config::OpenShiftPods, owner: Owner) -> Result<Self, Error> {
        Self::of(
            owner,
            HolderKind::Pod,
            Some(&section.context),
            &section.pools,
            (section.affinity, section.cluster_id.as_deref()),
        )
    }

    fn of(
        owner: Owner,
        holder: HolderKind,
        context: Option<&str>,
        pools: &[ClusterPool],
        (affinity, cluster): (config::Affinity, Option<&str>),
    ) -> Result<Self, Error> {
        if affinity == config::Affinity::Require {
            return Err(not_yet("`affinity: require`"));
        }
        if cluster.is_some() {
            return Err(not_yet("`cluster-id`"));
        }
        let pools = pools.iter().map(|pool| {
            for label in &pool.labels {
                check(label)?;
            }
            Ok(PoolOptions {
                name: PoolName::new(pool.common.name.as_str()),
                labels: pool.labels.clone(),
            })
        });
        Ok(Self {
            owner,
            holder,
            context: context.map(Into::into),
            pools: pools.collect::<Result<_, Error>>()?,
            call_limit: CALL_LIMIT,
            pod_limit: POD_LIMIT,
            delete_limit: DELETE_LIMIT,
            scheduling_patience: SCHEDULING_PATIENCE,
            poll: Poll::default(),
        })
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

/// What can be said in the configuration but is not done yet is refused, and not left out in silence.
fn check(label: &ClusterLabel) -> Result<(), Error> {
    let missing = [
        (label.console != config::Console::None, "`console`"),
        (label.share != config::Share::None, "`share`"),
        (
            label.buildset_peer_access != config::PeerAccess::None,
            "`buildset-peer-access`",
        ),
        (label.registry_external, "`registry-external`"),
    ];
    let ssh = label.ssh.as_ref().map(|ssh| {
        [
            (ssh.expose == config::Expose::Forward, "`expose: forward`"),
            (ssh.host_key_secret.is_some(), "`host-key-secret`"),
        ]
    });
    let lost = |ssh: &config::SshAccess| {
        let gateway = ssh.gateway.as_ref();
        ssh.expose == config::Expose::Gateway
            && gateway.is_none_or(|gateway| gateway.namespace.is_none())
    };
    if label.ssh.as_ref().is_some_and(lost) {
        return Err(Error::permanent(format!(
            "label {}: a gateway is found by its name and its `namespace`",
            label.name
        )));
    }
    for (asked, what) in missing.into_iter().chain(ssh.into_iter().flatten()) {
        if asked {
            return Err(not_yet(&format!("label {}: {what}", label.name)));
        }
    }
    Ok(())
}

fn not_yet(what: &str) -> Error {
    Error::permanent(format!("{what} is not part of this version yet"))
}
