//! The job server's state machine, without sockets, tasks or clock.
//!
//! Input is a packet and the connection it came from; output is a list of messages to connections. The caller must
//! deliver the output before the next input, which keeps packets in order (JOB_CREATED before the job's first WORK_
//! packet).

mod abilities;
mod hints;
mod jobs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use indexmap::{IndexMap, IndexSet};

use self::hints::Hints;
use super::metrics::ServerCounters;
use super::rights::Rights;
use crate::codec::{JobPriority, Packet, strip_trailing_nul};

/// The server options that the scheduler depends on.
#[derive(Clone, Debug)]
pub(in crate::server) struct SchedulerOptions {
    pub(in crate::server) coalesce: bool,
    pub(in crate::server) job_attempts: u32,
    pub(in crate::server) strict_exceptions: bool,
    pub(in crate::server) max_jobs: usize,
    pub(in crate::server) max_job_bytes: usize,
    pub(in crate::server) max_functions: usize,
    pub(in crate::server) wake_timeout: Duration,
    /// Prefix of all job handles, unique to this run of the server.
    pub(in crate::server) handle_prefix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::server) struct ConnectionId(pub(in crate::server) u64);

/// Jobs are numbered in order of submission, so a smaller id is an older job.
pub(in crate::server) type JobId = u64;
type QueueKey = (JobPriority, JobId);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::server) struct FunctionId(usize);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) enum OutgoingMessage {
    Packet(Packet),
    Text(String),
}

#[derive(Debug)]
pub(in crate::server) struct FunctionEntry {
    pub(in crate::server) name: Bytes,
    pub(in crate::server) queue: BTreeSet<QueueKey>,
    pub(in crate::server) running: usize,
    pub(in crate::server) workers: IndexMap<ConnectionId, Ability>,
    /// The number of waiting jobs by priority, and its limit.
    pub(in crate::server) waiting: [usize; 3],
    pub(in crate::server) max_waiting: [Option<usize>; 3],
    /// The index in `workers` from which to search for a sleeping worker, for round-robin order.
    wake_cursor: usize,
}

impl FunctionEntry {
    fn insert(&mut self, key: QueueKey) {
        if self.queue.insert(key)
            && let Some(count) = self.waiting.get_mut(key.0 as usize)
        {
            *count += 1;
        }
    }

    fn take(&mut self, key: QueueKey) {
        if self.queue.remove(&key)
            && let Some(count) = self.waiting.get_mut(key.0 as usize)
        {
            *count -= 1;
        }
    }

    fn is_full(&self, priority: JobPriority) -> bool {
        let limit = self.max_waiting.get(priority as usize).copied().flatten();
        let count = self
            .waiting
            .get(priority as usize)
            .copied()
            .unwrap_or_default();
        limit.is_some_and(|limit| count >= limit)
    }
}

#[derive(Debug, Default)]
pub(in crate::server) struct Ability {
    /// This worker's newest hint for the function and the [`Hints`] round it was made in.
    hint: Option<(u64, QueueKey)>,
    timeout: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SleepState {
    Awake,
    Asleep,
    /// NOOP was sent because of this function, and no grab has arrived yet.
    Woken(FunctionId),
}

#[derive(Debug)]
pub(in crate::server) struct ConnectionEntry {
    pub(in crate::server) address: IpAddr,
    pub(in crate::server) client_id: Bytes,
    pub(in crate::server) functions: IndexSet<FunctionId>,
    rights: Option<Arc<Rights>>,
    sleep: SleepState,
    hints: Hints,
    running: HashSet<JobId>,
    submitted: HashSet<JobId>,
    exceptions: bool,
}

#[derive(Debug)]
pub(in crate::server) struct JobEntry {
    pub(in crate::server) handle: Bytes,
    pub(in crate::server) function: FunctionId,
    pub(in crate::server) unique: Bytes,
    pub(in crate::server) worker: Option<ConnectionId>,
    pub(in crate::server) attempts: u32,
    payload: Bytes,
    priority: JobPriority,
    background: bool,
    clients: Vec<ConnectionId>,
    progress: Option<(Bytes, Bytes)>,
    deadline: Option<Instant>,
}

impl JobEntry {
    fn size(&self) -> usize {
        self.payload.len() + self.unique.len()
    }
}

#[derive(Debug)]
pub(in crate::server) struct Scheduler {
    pub(in crate::server) settings: SchedulerOptions,
    pub(in crate::server) counters: ServerCounters,
    pub(in crate::server) connections: HashMap<ConnectionId, ConnectionEntry>,
    pub(in crate::server) jobs: HashMap<JobId, JobEntry>,
    pub(in crate::server) job_bytes: usize,
    functions: Vec<Option<FunctionEntry>>,
    free_functions: Vec<usize>,
    names: HashMap<Bytes, FunctionId>,
    /// Jobs by non-empty unique id, of any function.
    uniques: HashMap<Bytes, BTreeSet<JobId>>,
    last_job: JobId,
    /// Functions that have waiting jobs.
    ready: IndexSet<FunctionId>,
    asleep: usize,
    /// Jobs for which a worker was woken, with the deadline for its grab.
    wakes: VecDeque<(Instant, JobId)>,
    deadlines: BTreeSet<(Instant, JobId)>,
    out: Vec<(ConnectionId, OutgoingMessage)>,
}

impl Scheduler {
    pub(in crate::server) fn new(settings: SchedulerOptions) -> Self {
        Self {
            settings,
            counters: ServerCounters::default(),
            connections: HashMap::new(),
            jobs: HashMap::new(),
            job_bytes: 0,
            functions: Vec::new(),
            free_functions: Vec::new(),
            names: HashMap::new(),
            uniques: HashMap::new(),
            last_job: 0,
            ready: IndexSet::new(),
            asleep: 0,
            wakes: VecDeque::new(),
            deadlines: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    /// Returns the messages to deliver, in order, and clears the list.
    pub(in crate::server) fn drain_deliveries(
        &mut self,
    ) -> std::vec::Drain<'_, (ConnectionId, OutgoingMessage)> {
        self.out.drain(..)
    }

    pub(in crate::server) fn connect(
        &mut self,
        id: ConnectionId,
        address: IpAddr,
        rights: Option<Arc<Rights>>,
    ) {
        let connection = ConnectionEntry {
            address,
            client_id: Bytes::from_static(b"-"),
            functions: IndexSet::new(),
            rights,
            sleep: SleepState::Awake,
            hints: Hints::default(),
            running: HashSet::new(),
            submitted: HashSet::new(),
            exceptions: false,
        };
        self.connections.insert(id, connection);
    }

    /// Removes a connection: the jobs it runs are requeued or failed, the foreground jobs it submitted are dropped.
    pub(in crate::server) fn disconnect(&mut self, id: ConnectionId, now: Instant) {
        self.reset_abilities(id);
        let sleep = self.set_sleep(id, SleepState::Awake);
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        if let Some(SleepState::Woken(function)) = sleep {
            self.wake_replacement(function);
        }
        for job in connection.running {
            self.handle_lost_worker(job, now);
        }
        for job in connection.submitted {
            self.remove_client(job, id);
        }
    }

    pub(in crate::server) fn handle_packet(
        &mut self,
        from: ConnectionId,
        packet: Packet,
        now: Instant,
    ) {
        match packet {
            Packet::CanDo { function } => match without_nul(function) {
                Some(function) => self.can_do(from, &function, None),
                None => self.send_error(from, "BAD_FUNCTION", "a function name holds no NUL"),
            },
            Packet::CanDoTimeout { function, timeout } => match decimal(&timeout) {
                Some(millis) => self.can_do(
                    from,
                    &function,
                    Some(Duration::from_millis(millis)).filter(|t| !t.is_zero()),
                ),
                None => self.send_error(
                    from,
                    "BAD_TIMEOUT",
                    "CAN_DO_TIMEOUT takes milliseconds as a decimal number",
                ),
            },
            Packet::CantDo { function } => {
                if let Some(function) = self.names.get(&function).copied() {
                    self.cant_do(from, function);
                }
            }
            Packet::ResetAbilities => self.reset_abilities(from),
            Packet::SetClientId { id } => {
                if let Some(connection) = self.connections.get_mut(&from) {
                    connection.client_id = Bytes::copy_from_slice(&id);
                }
            }
            Packet::PreSleep => self.pre_sleep(from),
            Packet::GrabJob | Packet::GrabJobUniq | Packet::GrabJobAll => {
                self.grab(from, &packet, now);
            }
            // A hint for connection reuse that does not apply here.
            Packet::AllYours => {}
            Packet::SubmitJob {
                priority,
                background,
                function,
                unique,
                payload,
            } => {
                self.submit(
                    from, priority, background, &function, &unique, &payload, now,
                );
            }
            Packet::SubmitJobSched { .. }
            | Packet::SubmitJobEpoch { .. }
            | Packet::SubmitReduceJob { .. } => {
                self.send_error(
                    from,
                    "NOT_SUPPORTED",
                    "this server runs plain jobs only, as soon as a worker is free",
                );
            }
            Packet::WorkStatus {
                handle,
                numerator,
                denominator,
            } => {
                self.progress(from, handle, numerator, denominator);
            }
            Packet::WorkData { ref handle, .. } | Packet::WorkWarning { ref handle, .. } => {
                if let Some(job) = self.job_assigned_to(from, handle) {
                    self.notify_clients(job, &packet);
                }
            }
            Packet::WorkComplete { ref handle, .. } => {
                if let Some(job) = self.job_assigned_to(from, handle) {
                    self.counters.completed += 1;
                    self.finish_job(job, &packet);
                }
            }
            Packet::WorkFail { handle } => {
                if let Some(job) = self.job_assigned_to(from, &strip_trailing_nul(handle)) {
                    self.counters.failed += 1;
                    self.fail_job(job);
                }
            }
            Packet::WorkException { ref handle, .. } => {
                if let Some(job) = self.job_assigned_to(from, handle) {
                    self.counters.exceptions += 1;
                    self.finish_job(job, &packet);
                }
            }
            Packet::GetStatus { handle } => match without_nul(handle) {
                Some(handle) => self.status(from, handle),
                None => self.send_error(from, "BAD_HANDLE", "a handle holds no NUL"),
            },
            Packet::GetStatusUnique { unique } => match without_nul(unique) {
                Some(unique) => self.status_unique(from, unique),
                None => self.send_error(from, "BAD_UNIQUE", "a unique holds no NUL"),
            },
            Packet::EchoReq { data } => self.send(from, Packet::EchoRes { data }),
            Packet::OptionReq { option } => self.option(from, strip_trailing_nul(option)),
            Packet::Noop
            | Packet::NoJob
            | Packet::JobAssign { .. }
            | Packet::JobAssignUniq { .. }
            | Packet::JobAssignAll { .. }
            | Packet::JobCreated { .. }
            | Packet::StatusRes { .. }
            | Packet::StatusResUnique { .. }
            | Packet::EchoRes { .. }
            | Packet::OptionRes { .. }
            | Packet::Error { .. } => {
                self.send_error(
                    from,
                    "UNEXPECTED_PACKET",
                    "only a job server sends this type of packet",
                );
            }
        }
    }

    /// Returns when [`Scheduler::expire`] must be called next.
    pub(in crate::server) fn next_deadline(&self) -> Option<Instant> {
        let wake = self.wakes.front().map(|(at, _)| *at);
        let job = self.deadlines.first().map(|(at, _)| *at);
        [wake, job].into_iter().flatten().min()
    }

    /// Handles all timeouts that are due at `now`.
    pub(in crate::server) fn expire(&mut self, now: Instant) {
        while let Some((at, id)) = self.wakes.front().copied()
            && at <= now
        {
            self.wakes.pop_front();
            if let Some(function) = self
                .jobs
                .get(&id)
                .filter(|job| job.worker.is_none())
                .map(|job| job.function)
            {
                while self.wake_one(function) {}
            }
        }
        while let Some((at, id)) = self.deadlines.first().copied()
            && at <= now
        {
            self.deadlines.pop_first();
            self.counters.timed_out += 1;
            self.fail_job(id);
        }
    }

    pub(in crate::server) fn functions(&self) -> impl Iterator<Item = &FunctionEntry> {
        self.functions.iter().flatten()
    }

    pub(in crate::server) fn function(&self, id: FunctionId) -> Option<&FunctionEntry> {
        self.functions.get(id.0)?.as_ref()
    }

    pub(in crate::server) fn function_mut(&mut self, id: FunctionId) -> Option<&mut FunctionEntry> {
        self.functions.get_mut(id.0)?.as_mut()
    }

    pub(in crate::server) fn function_named(&self, name: &[u8]) -> Option<FunctionId> {
        self.names.get(name).copied()
    }

    /// Returns the function with this name, adding it if needed. Returns `None` if the limit is reached.
    pub(in crate::server) fn find_or_add_function(&mut self, name: &[u8]) -> Option<FunctionId> {
        if let Some(id) = self.names.get(name) {
            return Some(*id);
        }
        if self.names.len() >= self.settings.max_functions {
            self.drop_idle_functions();
            if self.names.len() >= self.settings.max_functions {
                return None;
            }
        }
        let name = Bytes::copy_from_slice(name);
        let function = FunctionEntry {
            name: name.clone(),
            queue: BTreeSet::new(),
            running: 0,
            workers: IndexMap::new(),
            waiting: [0; 3],
            max_waiting: [None; 3],
            wake_cursor: 0,
        };
        let index = match self.free_functions.pop() {
            Some(index) => index,
            None => {
                self.functions.push(None);
                self.functions.len() - 1
            }
        };
        *self.functions.get_mut(index)? = Some(function);
        self.names.insert(name, FunctionId(index));
        Some(FunctionId(index))
    }

    /// Removes a function if it has neither jobs nor workers. Returns whether it was removed.
    pub(in crate::server) fn drop_function(&mut self, id: FunctionId) -> bool {
        let Some(slot) = self.functions.get_mut(id.0) else {
            return false;
        };
        match slot.take_if(|f| f.queue.is_empty() && f.running == 0 && f.workers.is_empty()) {
            Some(function) => {
                self.names.remove(&function.name);
                self.free_functions.push(id.0);
                true
            }
            None => false,
        }
    }

    fn drop_idle_functions(&mut self) {
        for index in 0..self.functions.len() {
            self.drop_function(FunctionId(index));
        }
    }

    pub(in crate::server) fn job_by_handle(&self, handle: &[u8]) -> Option<JobId> {
        let number = handle.strip_prefix(self.settings.handle_prefix.as_bytes())?;
        decimal(number).filter(|id| self.jobs.contains_key(id))
    }

    pub(in crate::server) fn may_invoke(&self, connection: ConnectionId, function: &[u8]) -> bool {
        self.rights(connection)
            .is_none_or(|rights| rights.may_invoke(function))
    }

    pub(in crate::server) fn may_operate(&self, connection: ConnectionId) -> bool {
        self.rights(connection).is_none_or(Rights::may_operate)
    }

    fn rights(&self, connection: ConnectionId) -> Option<&Rights> {
        self.connections.get(&connection)?.rights.as_deref()
    }

    pub(in crate::server) fn text(&mut self, to: ConnectionId, text: String) {
        self.out.push((to, OutgoingMessage::Text(text)));
    }

    fn send(&mut self, to: ConnectionId, packet: Packet) {
        self.out.push((to, OutgoingMessage::Packet(packet)));
    }

    fn send_error(&mut self, to: ConnectionId, code: &'static str, text: &'static str) {
        self.counters.refused_packets += 1;
        let packet = Packet::Error {
            code: Bytes::from_static(code.as_bytes()),
            text: Bytes::from_static(text.as_bytes()),
        };
        self.send(to, packet);
    }
}

/// Returns the value of a last argument if it is valid as an inner one, where a NUL would end it.
fn without_nul(value: Bytes) -> Option<Bytes> {
    let value = strip_trailing_nul(value);
    (!value.contains(&0)).then_some(value)
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits)
        .ok()?
        .trim_matches('\0')
        .parse()
        .ok()
}
