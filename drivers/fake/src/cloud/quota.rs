//! Usage and quota.

use serde_json::json;

use super::{Cloud, CloudError, Reply};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) cores: i64,
    pub(super) instances: i64,
    pub(super) ram: i64,
    pub(super) volumes: i64,
    pub(super) volume_gb: i64,
}

impl Usage {
    pub(super) fn add(&mut self, other: Self) {
        self.combine(other, i64::saturating_add);
    }

    pub(super) fn subtract(&mut self, other: Self) {
        self.combine(other, i64::saturating_sub);
    }

    fn combine(&mut self, other: Self, operation: fn(i64, i64) -> i64) {
        self.cores = operation(self.cores, other.cores);
        self.instances = operation(self.instances, other.instances);
        self.ram = operation(self.ram, other.ram);
        self.volumes = operation(self.volumes, other.volumes);
        self.volume_gb = operation(self.volume_gb, other.volume_gb);
    }
}

impl Cloud {
    /// Fails if the quota would be exceeded.
    pub(super) fn check_quota(&self, wanted: Usage) -> Result<(), CloudError> {
        let (quota, used) = (&self.quota, &self.used);
        for (what, limit, used, wanted) in [
            (
                "instances",
                quota.instances,
                used.instances,
                wanted.instances,
            ),
            ("cores", quota.cores, used.cores, wanted.cores),
            ("ram", quota.ram, used.ram, wanted.ram),
            ("volumes", quota.volumes, used.volumes, wanted.volumes),
            (
                "gigabytes",
                quota.volume_gb,
                used.volume_gb,
                wanted.volume_gb,
            ),
        ] {
            if limit >= 0 && used.saturating_add(wanted) > limit {
                return Err(CloudError::quota(what, wanted, used, limit));
            }
        }
        Ok(())
    }

    pub(super) fn get_compute_limits(&self) -> Result<Reply, CloudError> {
        Reply::now(&json!({
            "max_total_cores": self.quota.cores,
            "max_total_instances": self.quota.instances,
            "max_total_ram_size": self.quota.ram,
            "total_cores_used": self.used.cores,
            "total_instances_used": self.used.instances,
            "total_ram_used": self.used.ram,
        }))
    }

    pub(super) fn get_volume_limits(&self) -> Result<Reply, CloudError> {
        Reply::now(&json!({"absolute": {
            "maxTotalVolumes": self.quota.volumes,
            "maxTotalVolumeGigabytes": self.quota.volume_gb,
            "totalVolumesUsed": self.used.volumes,
            "totalGigabytesUsed": self.used.volume_gb,
        }}))
    }
}
