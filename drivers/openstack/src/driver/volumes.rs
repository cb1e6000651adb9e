//! Volumes: their list and limits. Cinder may be missing or broken; that matters only to labels that boot from volumes.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nodeyard_driver::Tags;
use nodeyard_openstack::{Error, ErrorKind, Server, Volume, VolumeLimits};

use super::{List, OpenStackDriver};
use crate::failure::driver_error;

impl OpenStackDriver {
    /// Returns the limits of volumes, if a label boots from volumes. While Cinder fails they are the last known ones;
    /// without those, Nova refuses servers for lack of quota.
    pub(super) async fn volume_limits(&self) -> Option<VolumeLimits> {
        if !self.boots_from_volumes() {
            return None;
        }
        let result = self.volumes.limits().await;
        let mut last = self
            .last_volume_limits
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(limits) => *last = Some(limits),
            Err(error) if error.kind() == ErrorKind::NoService => {}
            Err(error) => {
                tracing::warn!(%error, "failed to read limits of volumes; using the last known ones");
            }
        }
        *last
    }

    /// Lists the volumes; none if the cloud has no Cinder for this account.
    pub(super) async fn volumes(&self, age: Duration) -> List<Volume> {
        let fetch = async {
            match self.volumes.volumes().await {
                Ok(volumes) => Ok(volumes),
                Err(error) if is_unavailable_to_account(&error) => Ok(Vec::new()),
                Err(error) => Err(driver_error(error)),
            }
        };
        self.volume_list.within(age, fetch).await
    }

    /// Lists the volumes, if there can be any.
    pub(super) async fn volumes_of(&self, servers: &[Server]) -> List<Volume> {
        if self.boots_from_volumes() {
            return self.volumes(Duration::ZERO).await;
        }
        if servers.iter().all(|server| server.volumes.is_empty()) {
            return Ok(Arc::default());
        }
        Ok(self.volumes(Duration::ZERO).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to list volumes; servers count without theirs");
            Arc::default()
        }))
    }

    pub(super) fn boots_from_volumes(&self) -> bool {
        let pools = self.options.cloud.pools.iter();
        let mut labels = pools.flat_map(|pool| &pool.labels);
        labels.any(|label| label.boot_volume.is_some())
    }
}

/// Whether the account will not get another response until somebody changes the cloud.
fn is_unavailable_to_account(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NoService | ErrorKind::Forbidden | ErrorKind::NotFound
    )
}

pub(super) fn volume_tags(volume: &Volume) -> Tags {
    let metadata = volume.metadata.iter();
    Tags::from_metadata(metadata.map(|(key, value)| (key.as_str(), value.as_str())))
}
