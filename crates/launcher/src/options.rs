//! What a launcher is told when it is made.

use std::time::Duration;

use nodeyard_plan::Policy;

#[derive(Debug, Clone)]
pub struct Options {
    /// The plain host name, which components are registered under.
    pub hostname: Box<str>,
    /// The full host name, which the ids of pools begin with.
    pub fqdn: Box<str>,
    /// What components say about themselves.
    pub version: Box<str>,
    pub timing: Timing,
    pub policy: Policy,
}

/// How long to wait where no event can be waited for, and how often to look without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Between two looks at all requests and pools.
    pub pass: Duration,
    /// Between two looks for leaks, lost requests and old locks.
    pub cleanup: Duration,
    /// Before a failed deletion is tried again.
    pub delete_retry: Duration,
    /// How long the lock of a request may outlive it.
    pub lock_age: Duration,
    /// Between two looks at quotas and at images that are only in the cloud.
    pub cloud_check: Duration,
    /// Before a provider that did not start is tried again, and a machine that did not answer.
    pub start_retry: Duration,
    /// Before requests are failed that every pool has declined but those that have left the registry. A launcher that is
    /// restarted registers its pools within this time.
    pub departure_grace: Duration,
    /// How long nobody may be there to build or upload an image that requests wait for. A builder that is restarted works
    /// again within this time.
    pub builder_grace: Duration,
    /// How long the deletion of an instance may take before it is begun anew.
    pub delete_limit: Duration,
}

impl Default for Timing {
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
