//! The options of a steward.

use std::time::Duration;

use nodeyard_gearman::GearmanEndpoint;
use nodeyard_plan::images::Pace;

use crate::jobs::CLOUD_DELETION;

#[derive(Debug, Clone)]
pub struct Options {
    /// The full host name, under which the steward is registered. Builds are recorded with it until their worker reports its
    /// own.
    pub hostname: Box<str>,
    /// The version in the component record.
    pub version: Box<str>,
    /// The job servers; each worker registers with all of them.
    pub servers: Vec<GearmanEndpoint>,
    /// The maximum number of upload jobs submitted at once; workers have limits of their own.
    pub uploads: usize,
    /// Whether to delete images that are no longer needed. Otherwise other stewards do.
    pub cleans: bool,
    pub timing: StewardTiming,
    pub pace: Pace,
}

/// Intervals and timeouts of a steward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StewardTiming {
    /// The interval between scans of all images and of images on workers without a record.
    pub full_scan: Duration,
    /// The polling interval of registered functions.
    pub poll: Duration,
    /// The polling interval while work waits for a worker.
    pub eager_poll: Duration,
    /// The interval between removals of unused functions from job servers.
    pub drop_functions: Duration,
    /// The timeout for administrative requests to job servers.
    pub server_timeout: Duration,
    /// The timeout for `image-info` and for deleting files.
    pub call_timeout: Duration,
    /// The timeout for deleting an image from a cloud.
    pub cloud_call_timeout: Duration,
    /// The timeout for requests to Zuul.
    pub zuul_timeout: Duration,
    /// The polling interval while recovering the result of a job.
    pub recovery_poll: Duration,
    /// The time without response from a worker, while job servers are reachable, after which such a job is considered lost.
    pub lost_after: Duration,
    /// The time without events after which the status of a job is queried.
    pub status_check_after: Duration,
    /// The time without events or status after which the result of a job is considered lost.
    pub silence_timeout: Duration,
    /// The pause before work is retried after an unexpected store error.
    pub retry_pause: Duration,
}

impl Default for StewardTiming {
    fn default() -> Self {
        Self {
            full_scan: Duration::from_secs(60),
            poll: Duration::from_secs(30),
            eager_poll: Duration::from_secs(2),
            drop_functions: Duration::from_secs(600),
            server_timeout: Duration::from_secs(10),
            call_timeout: Duration::from_secs(60),
            cloud_call_timeout: CLOUD_DELETION + Duration::from_secs(30),
            zuul_timeout: Duration::from_secs(120),
            recovery_poll: Duration::from_secs(5),
            lost_after: Duration::from_secs(120),
            status_check_after: Duration::from_secs(300),
            silence_timeout: Duration::from_secs(3600),
            retry_pause: Duration::from_secs(5),
        }
    }
}
