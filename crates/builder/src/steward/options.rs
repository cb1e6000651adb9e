//! What a steward is told when it is made.

use std::time::Duration;

use nodeyard_gearman::GearmanEndpoint;
use nodeyard_plan::images::Pace;

use crate::jobs::CLOUD_DELETION;

#[derive(Debug, Clone)]
pub struct Options {
    /// The full host name, which the steward is registered under and builds are recorded with until their worker
    /// has told its own.
    pub hostname: Box<str>,
    /// What the component says about itself.
    pub version: Box<str>,
    /// The job servers; each worker registers with all of them.
    pub servers: Vec<GearmanEndpoint>,
    /// Most uploads that are waited for at once; how many run at once is the workers' business.
    pub uploads: usize,
    /// Whether what is no longer needed is removed. Otherwise that is left to other stewards.
    pub cleans: bool,
    pub timing: StewardTiming,
    pub pace: Pace,
}

/// How long to wait where no event can be waited for, and how often to look without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StewardTiming {
    /// Between two looks at all images, and for images on workers that have no record.
    pub full_scan: Duration,
    /// Between two questions of who answers what.
    pub poll: Duration,
    /// The same while something waits for a worker.
    pub eager_poll: Duration,
    /// Between two removals of unused functions from job servers.
    pub drop_functions: Duration,
    /// How long a job server may take to answer.
    pub server_timeout: Duration,
    /// How long a worker may take for `image-info` and for deleting files.
    pub call_timeout: Duration,
    /// How long a worker may take to delete an image from a cloud.
    pub cloud_call_timeout: Duration,
    /// How long Zuul may take for one answer.
    pub zuul_timeout: Duration,
    /// Between two questions of what became of a job whose answer was lost.
    pub recovery_poll: Duration,
    /// How long nobody may know of such a job, while job servers answer, before it is given up.
    pub lost_after: Duration,
    /// How long a job may say nothing before its worker is asked whether it still works on it.
    pub status_check_after: Duration,
    /// How long a worker may not answer that before the job is asked after as if its answer was lost.
    pub silence_timeout: Duration,
    /// Before something that met an unexpected error of the store is tried again.
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
