//! Name, resources and capabilities of the host's runtime.

use nodeyard_driver::Error;
use nodeyard_model::{Limits, ResourceName};
use rustix::process::{Resource, getrlimit};
use serde::Deserialize;

use crate::options::ContainerLabelOptions;

/// The limit that runtimes set for each container by default.
const DEFAULT_LIMIT: u64 = 1 << 20;

/// The fields of `GET /info` that the driver uses.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct RuntimeInfo {
    #[serde(rename = "NCPU")]
    cores: i64,
    /// In bytes.
    mem_total: i64,
    memory_limit: bool,
    cpu_cfs_quota: bool,
    pids_limit: bool,
    cgroup_version: Option<String>,
    security_options: Option<Vec<String>>,
    pub(crate) server_version: String,
    pub(crate) name: Option<String>,
    /// Set by Podman only.
    buildah_version: Option<String>,
}

impl RuntimeInfo {
    pub(crate) fn is_podman(&self) -> bool {
        self.buildah_version.is_some()
    }

    /// Returns the name of the runtime, which is also Ansible's connection type for exec.
    pub(crate) fn runtime_name(&self) -> &'static str {
        if self.is_podman() { "podman" } else { "docker" }
    }

    fn is_rootless(&self) -> bool {
        let options = self.security_options.iter().flatten();
        options.into_iter().any(|option| option == "name=rootless")
    }

    pub(crate) fn limits(&self) -> Limits {
        [
            (ResourceName::CORES, self.cores),
            (ResourceName::RAM, self.mem_total >> 20),
        ]
        .into_iter()
        .filter(|(_, amount)| *amount > 0)
        .collect()
    }

    /// Fails if the runtime cannot enforce a limit of the label.
    pub(crate) fn check(&self, label: &ContainerLabelOptions) -> Result<(), Error> {
        // Control groups of version 1 cannot be delegated to a user; runtimes then ignore the limits, with a warning.
        let none = self.is_rootless() && self.cgroup_version.as_deref() == Some("1");
        let wanted = [
            ("cpus", label.cpus.is_some(), self.cpu_cfs_quota),
            ("memory", label.memory.is_some(), self.memory_limit),
            ("processes", label.processes.is_some(), self.pids_limit),
        ];
        for (key, wanted, possible) in wanted {
            if wanted && (none || !possible) {
                return Err(self.unsupported_limit(label, key));
            }
        }
        Ok(())
    }

    fn unsupported_limit(&self, label: &ContainerLabelOptions, key: &str) -> Error {
        let remedy = if self.is_rootless() {
            "run it as root, or on a host with version 2 of control groups whose controllers are delegated to its user"
        } else {
            "enable this controller of control groups on the kernel command line"
        };
        let (name, engine, version) = (&label.name, self.runtime_name(), &self.server_version);
        Error::permanent(format!(
            "label {name} sets `{key}`, which {engine} {version} cannot limit on this host; {remedy}, or remove `{key}`"
        ))
    }
}

/// Returns the limits to set for every container because the default limits of runtimes exceed those of this host.
pub(crate) fn required_ulimits() -> impl Iterator<Item = (&'static str, u64)> {
    let files = getrlimit(Resource::Nofile).maximum;
    let processes = getrlimit(Resource::Nproc).maximum;
    // Podman cannot raise the limit above the number of process ids.
    let processes = processes.into_iter().chain(pid_max()).min();
    [("nofile", files), ("nproc", processes)]
        .into_iter()
        .filter_map(|(name, limit)| Some((name, limit?)))
        .filter(|(_, limit)| *limit < DEFAULT_LIMIT)
}

fn pid_max() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/pid_max").ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ContainerImage;

    fn label() -> ContainerLabelOptions {
        ContainerLabelOptions::new("small".into(), ContainerImage::Reference("debian".into()))
    }

    #[test]
    fn a_limit_that_the_host_cannot_enforce_is_an_error_with_a_remedy() {
        let mut info = RuntimeInfo {
            memory_limit: true,
            cpu_cfs_quota: false,
            pids_limit: true,
            ..RuntimeInfo::default()
        };
        let mut label = label();
        label.memory = Some(64);
        assert!(info.check(&label).is_ok());
        label.cpus = Some(0.5);
        let error = info.check(&label).unwrap_err().to_string();
        assert!(
            error.contains("`cpus`") && error.contains("kernel"),
            "{error}"
        );
        info.cpu_cfs_quota = true;
        assert!(info.check(&label).is_ok());
        info.security_options = Some(vec!["name=rootless".to_owned()]);
        info.cgroup_version = Some("2".to_owned());
        assert!(info.check(&label).is_ok());
        info.cgroup_version = Some("1".to_owned());
        let error = info.check(&label).unwrap_err().to_string();
        assert!(error.contains("run it as root"), "{error}");
    }

    #[test]
    fn a_runtime_that_reports_little_has_no_limits() {
        let info: RuntimeInfo = serde_json::from_str(r#"{"ServerVersion": "1"}"#).unwrap();
        assert!(info.limits().iter().next().is_none());
        let info: RuntimeInfo = serde_json::from_str(
            r#"{"ServerVersion": "4.3.1", "NCPU": 2, "MemTotal": 25276518400, "BuildahVersion": "1"}"#,
        )
        .unwrap();
        assert_eq!(info.limits().get(&ResourceName::RAM), Some(24105.into()));
        assert_eq!(info.runtime_name(), "podman");
    }
}
