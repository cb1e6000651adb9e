//! Counters and metrics of the job server.

/// Events since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Connections accepted, and rejected by the allow-list, the connection limit or TLS.
    pub connections: u64,
    pub connections_refused: u64,
    /// Connections closed because of a malformed or oversized frame.
    pub malformed: u64,
    /// Connections closed because the peer read too slowly.
    pub slow_readers: u64,
    pub submitted: u64,
    pub coalesced: u64,
    /// Submits rejected because a queue was full.
    pub queue_full: u64,
    pub assigned: u64,
    pub completed: u64,
    pub failed: u64,
    pub exceptions: u64,
    /// Jobs that exceeded the timeout their worker set.
    pub timed_out: u64,
    /// Jobs of a lost worker that were requeued, and that were failed.
    pub requeued: u64,
    pub lost: u64,
    /// Foreground jobs dropped because their last client disconnected.
    pub abandoned: u64,
    pub cancelled: u64,
    /// Workers woken by a NOOP.
    pub wakes: u64,
    /// Registrations and submits denied by the access list.
    pub denied: u64,
    /// Packets answered with ERROR.
    pub refused_packets: u64,
}

impl ServerCounters {
    /// Returns all counters with their metric label values.
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

/// A snapshot of the server's counters and gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerMetrics {
    pub counters: ServerCounters,
    pub open_connections: usize,
    pub functions: usize,
    pub waiting_jobs: usize,
    pub running_jobs: usize,
    /// Payload bytes of waiting and running jobs.
    pub job_bytes: usize,
}
