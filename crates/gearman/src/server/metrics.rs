//! What the server counts.

/// Events since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections accepted, and turned away by the allow-list, the connection limit or TLS.
    pub connections: u64,
    pub connections_refused: u64,
    /// Connections closed because of a malformed or oversized frame.
    pub malformed: u64,
    /// Connections closed because they did not read what they were sent.
    pub slow_readers: u64,
    pub submitted: u64,
    pub coalesced: u64,
    /// Submits turned away because a queue was full.
    pub queue_full: u64,
    pub assigned: u64,
    pub completed: u64,
    pub failed: u64,
    pub exceptions: u64,
    /// Jobs that ran longer than their worker had allowed.
    pub timed_out: u64,
    /// Jobs of a lost worker that were queued again, and that were failed.
    pub requeued: u64,
    pub lost: u64,
    /// Foreground jobs whose last client went away.
    pub abandoned: u64,
    pub cancelled: u64,
    /// Workers woken by a NOOP.
    pub wakes: u64,
    /// Registrations and submits without the right to them.
    pub denied: u64,
    /// Packets answered by an ERROR.
    pub refused_packets: u64,
}

impl Counters {
    /// All of them, by name.
    pub fn named(self) -> [(&'static str, u64); 19] {
        let Self {
            connections,
            connections_refused,
            malformed,
            slow_readers,
            submitted,
            coalesced,
            queue_full,
            assigned,
            completed,
            failed,
            exceptions,
            timed_out,
            requeued,
            lost,
            abandoned,
            cancelled,
            wakes,
            denied,
            refused_packets,
        } = self;
        [
            ("connection-accepted", connections),
            ("connection-refused", connections_refused),
            ("connection-malformed", malformed),
            ("connection-slow", slow_readers),
            ("job-submitted", submitted),
            ("job-coalesced", coalesced),
            ("job-refused", queue_full),
            ("job-assigned", assigned),
            ("job-completed", completed),
            ("job-failed", failed),
            ("job-exception", exceptions),
            ("job-timed-out", timed_out),
            ("job-requeued", requeued),
            ("job-lost", lost),
            ("job-abandoned", abandoned),
            ("job-cancelled", cancelled),
            ("worker-woken", wakes),
            ("access-denied", denied),
            ("packet-refused", refused_packets),
        ]
    }
}

/// A snapshot of the server: what has happened and what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerMetrics {
    pub counters: Counters,
    pub open_connections: usize,
    pub functions: usize,
    pub waiting_jobs: usize,
    pub running_jobs: usize,
    /// Payload bytes held for waiting and running jobs.
    pub job_bytes: usize,
}
