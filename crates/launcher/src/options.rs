//! Options of a launcher.

use std::time::Duration;

use nodeyard_plan::Policy;

#[derive(Debug, Clone)]
pub struct Options {
    /// The plain host name, which components are registered under.
    pub hostname: Box<str>,
    /// The full host name, which the ids of pools begin with.
    pub fqdn: Box<str>,
    /// The version in the registry of components.
    pub version: Box<str>,
    pub timing: LauncherTiming,
    pub policy: Policy,
}

/// Limits, pauses before retries, and intervals of what happens without an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LauncherTiming {
    /// Between two passes over all requests and pools.
    pub pass: Duration,
    /// Between two clean-ups of leaks, abandoned requests and old locks.
    pub cleanup: Duration,
    /// Before a failed deletion is retried.
    pub delete_retry: Duration,
    /// How long the lock of a request may outlive it.
    pub lock_age: Duration,
    /// Between two polls of quotas and of images that are only in the cloud.
    pub cloud_check: Duration,
    /// Before a provider that failed to start is retried, and a static machine that did not answer.
    pub start_retry: Duration,
    /// Before requests are failed that every pool has declined but those that have left the registry. A launcher that is
    /// restarted registers its pools within this time.
    pub departure_grace: Duration,
    /// How long an image that requests wait for may be without a builder to build or upload it. A builder that is restarted
    /// works again within this time.
    pub builder_grace: Duration,
    /// How long a deletion may take before it is retried.
    pub delete_limit: Duration,
}

impl Default for LauncherTiming {
    fn default() -> Self {
        Self {
            pass: Duration::from_secs(30),
            cleanup: Duration::from_secs(60),
            delete_retry: Duration::from_secs(5),
            lock_age: Duration::from_secs(8 * 3600),
            cloud_check: Duration::from_secs(300),
            start_retry: Duration::from_secs(10),
            departure_grace: Duration::from_secs(60),
            builder_grace: Duration::from_secs(15),
            delete_limit: Duration::from_secs(600),
        }
    }
}
