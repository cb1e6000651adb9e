//! The life cycle of a job: submitting, coalescing, queueing, assigning, finishing, losing its worker.

use std::collections::hash_map::Entry;
use std::time::Instant;

use bytes::Bytes;

use super::{
    ConnectionId, FunctionId, JobEntry, JobId, OutgoingMessage, QueueKey, Scheduler, SleepState,
};
use crate::codec::{JobPriority, Packet};

impl Scheduler {
    #[expect(
        clippy::too_many_arguments,
        reason = "they are the fields of one packet"
    )]
    pub(super) fn submit(
        &mut self,
        from: ConnectionId,
        priority: JobPriority,
        background: bool,
        name: &[u8],
        unique: &[u8],
        payload: &[u8],
        now: Instant,
    ) {
        if !self.may_invoke(from, name) {
            self.counters.denied += 1;
            return self.send_error(from, "0", "Permission denied by ACL");
        }
        if name.is_empty() {
            return self.send_error(from, "NO_FUNCTION", "a job needs the name of a function");
        }
        let Some(id) = self.find_or_add_function(name) else {
            return self.send_error(
                from,
                "TOO_MANY_FUNCTIONS",
                "the server holds as many functions as it may",
            );
        };
        if let Some(job) = self.find_duplicate(id, unique) {
            return self.join(from, job, priority, background, now);
        }
        let full = self
            .function(id)
            .is_some_and(|function| function.is_full(priority));
        let size = payload.len() + unique.len();
        if full
            || self.jobs.len() >= self.settings.max_jobs
            || self.job_bytes + size > self.settings.max_job_bytes
        {
            self.counters.queue_full += 1;
            return self.send_error(
                from,
                "QUEUE_FULL",
                "the job queue is full, try again later or another server",
            );
        }
        self.last_job += 1;
        self.counters.submitted += 1;
        let job = JobEntry {
            handle: format!("{}{}", self.settings.handle_prefix, self.last_job).into(),
            function: id,
            // Copied, because slices would keep the whole read buffer alive while the job waits.
            unique: Bytes::copy_from_slice(unique),
            payload: Bytes::copy_from_slice(payload),
            worker: None,
            attempts: 0,
            priority,
            background,
            clients: if background { Vec::new() } else { vec![from] },
            progress: None,
            deadline: None,
        };
        if !background && let Some(connection) = self.connections.get_mut(&from) {
            connection.submitted.insert(self.last_job);
        }
        if !job.unique.is_empty() {
            self.uniques
                .entry(job.unique.clone())
                .or_default()
                .insert(self.last_job);
        }
        self.job_bytes += job.size();
        self.send(
            from,
            Packet::JobCreated {
                handle: job.handle.clone(),
            },
        );
        self.jobs.insert(self.last_job, job);
        self.enqueue(self.last_job, now);
    }

    /// Returns the existing job that a submit with this unique id joins.
    fn find_duplicate(&self, function: FunctionId, unique: &[u8]) -> Option<JobId> {
        if !self.settings.coalesce || unique.is_empty() {
            return None;
        }
        let same = self.uniques.get(unique)?;
        same.iter().copied().find(|id| {
            self.jobs
                .get(id)
                .is_some_and(|job| job.function == function)
        })
    }

    /// Adds a submitter to an existing job. The higher priority wins; a background submit keeps the job without
    /// clients.
    fn join(
        &mut self,
        from: ConnectionId,
        id: JobId,
        priority: JobPriority,
        background: bool,
        now: Instant,
    ) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        let handle = job.handle.clone();
        if background {
            job.background = true;
        } else if !job.clients.contains(&from) {
            job.clients.push(from);
            if let Some(connection) = self.connections.get_mut(&from) {
                connection.submitted.insert(id);
            }
        }
        let before = (job.priority, id);
        let (function, raised) = (
            job.function,
            job.worker.is_none() && priority < job.priority,
        );
        if raised {
            job.priority = priority;
        }
        self.counters.coalesced += 1;
        self.send(from, Packet::JobCreated { handle });
        if raised {
            self.dequeue(function, before);
            self.enqueue(id, now);
        }
    }

    /// Adds a job to its function's queue, adds hints if it is the first there, and wakes a worker.
    pub(super) fn enqueue(&mut self, id: JobId, now: Instant) {
        let Some(job) = self.jobs.get(&id) else {
            return;
        };
        let (key, function_id) = ((job.priority, id), job.function);
        let Some(Some(function)) = self.functions.get_mut(function_id.0) else {
            return;
        };
        function.insert(key);
        self.ready.insert(function_id);
        if function.queue.first() == Some(&key) {
            for (worker, ability) in &mut function.workers {
                if let Some(connection) = self.connections.get_mut(worker)
                    && connection.sleep != SleepState::Asleep
                {
                    connection.hints.add(ability, key, function_id);
                }
            }
        }
        if self.wake_one(function_id) {
            self.wakes.push_back((now + self.settings.wake_timeout, id));
        }
    }

    fn dequeue(&mut self, id: FunctionId, key: QueueKey) {
        let Some(function) = self.function_mut(id) else {
            return;
        };
        function.take(key);
        if function.queue.is_empty() {
            self.ready.swap_remove(&id);
        }
    }

    pub(super) fn grab(&mut self, worker: ConnectionId, request: &Packet, now: Instant) {
        let before = self.set_sleep(worker, SleepState::Awake);
        let Some((key, function_id)) = self.next_job(worker) else {
            return self.send(worker, Packet::NoJob);
        };
        let Some(Some(function)) = self.functions.get_mut(function_id.0) else {
            return;
        };
        let Some(job) = self.jobs.get_mut(&key.1) else {
            return;
        };
        function.running += 1;
        job.worker = Some(worker);
        job.attempts += 1;
        let timeout = function
            .workers
            .get(&worker)
            .and_then(|ability| ability.timeout);
        job.deadline = timeout.map(|timeout| now + timeout);
        self.deadlines.extend(job.deadline.map(|at| (at, key.1)));
        if let Some(connection) = self.connections.get_mut(&worker) {
            connection.running.insert(key.1);
        }
        let (handle, unique, payload) =
            (job.handle.clone(), job.unique.clone(), job.payload.clone());
        let name = function.name.clone();
        let assignment = match request {
            Packet::GrabJobUniq => Packet::JobAssignUniq {
                handle,
                function: name,
                unique,
                payload,
            },
            Packet::GrabJobAll => Packet::JobAssignAll {
                handle,
                function: name,
                unique,
                reducer: Bytes::new(),
                payload,
            },
            _ => Packet::JobAssign {
                handle,
                function: name,
                payload,
            },
        };
        self.dequeue(function_id, key);
        self.counters.assigned += 1;
        self.send(worker, assignment);
        if let Some(SleepState::Woken(reason)) = before
            && reason != function_id
        {
            self.wake_replacement(reason);
        }
    }

    /// Returns the job with this handle if it is assigned to this worker.
    pub(super) fn job_assigned_to(&self, worker: ConnectionId, handle: &[u8]) -> Option<JobId> {
        let id = self.job_by_handle(handle)?;
        self.jobs
            .get(&id)
            .filter(|job| job.worker == Some(worker))
            .map(|_| id)
    }

    pub(super) fn progress(
        &mut self,
        from: ConnectionId,
        handle: Bytes,
        numerator: Bytes,
        denominator: Bytes,
    ) {
        let Some(id) = self.job_assigned_to(from, &handle) else {
            return;
        };
        let keep = |value: &Bytes| Bytes::copy_from_slice(value.get(..20).unwrap_or(value));
        if let Some(job) = self.jobs.get_mut(&id) {
            job.progress = Some((keep(&numerator), keep(&denominator)));
        }
        self.notify_clients(
            id,
            &Packet::WorkStatus {
                handle,
                numerator,
                denominator,
            },
        );
    }

    pub(super) fn notify_clients(&mut self, id: JobId, packet: &Packet) {
        if let Some(job) = self.jobs.get(&id) {
            self.out.extend(
                job.clients
                    .iter()
                    .map(|client| (*client, OutgoingMessage::Packet(packet.clone()))),
            );
        }
    }

    pub(super) fn fail_job(&mut self, id: JobId) {
        if let Some(handle) = self.jobs.get(&id).map(|job| job.handle.clone()) {
            self.finish_job(id, &Packet::WorkFail { handle });
        }
    }

    /// Sends the final packet to the clients and removes the job.
    pub(super) fn finish_job(&mut self, id: JobId, last: &Packet) {
        let Some(job) = self.remove(id) else { return };
        for client in job.clients {
            let Some(connection) = self.connections.get_mut(&client) else {
                continue;
            };
            connection.submitted.remove(&id);
            let plain = matches!(last, Packet::WorkException { .. })
                && self.settings.strict_exceptions
                && !connection.exceptions;
            let packet = if plain {
                Packet::WorkFail {
                    handle: job.handle.clone(),
                }
            } else {
                last.clone()
            };
            self.send(client, packet);
        }
    }

    /// Removes a job from every index except those of its clients.
    pub(in crate::server) fn remove(&mut self, id: JobId) -> Option<JobEntry> {
        let job = self.jobs.remove(&id)?;
        self.job_bytes -= job.size();
        if let Some(at) = job.deadline {
            self.deadlines.remove(&(at, id));
        }
        if let Entry::Occupied(mut same) = self.uniques.entry(job.unique.clone()) {
            same.get_mut().remove(&id);
            if same.get().is_empty() {
                same.remove();
            }
        }
        match job.worker {
            None => self.dequeue(job.function, (job.priority, id)),
            Some(_) => {
                if let Some(function) = self.function_mut(job.function) {
                    function.running -= 1;
                }
            }
        }
        if let Some(worker) = job
            .worker
            .and_then(|worker| self.connections.get_mut(&worker))
        {
            worker.running.remove(&id);
        }
        Some(job)
    }

    /// Removes a waiting job without notifying its submitter. Returns false if it is not waiting.
    pub(in crate::server) fn cancel(&mut self, id: JobId) -> bool {
        if self.jobs.get(&id).is_none_or(|job| job.worker.is_some()) {
            return false;
        }
        let Some(job) = self.remove(id) else {
            return false;
        };
        for client in job.clients {
            if let Some(connection) = self.connections.get_mut(&client) {
                connection.submitted.remove(&id);
            }
        }
        self.counters.cancelled += 1;
        true
    }

    pub(super) fn handle_lost_worker(&mut self, id: JobId, now: Instant) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        if job.attempts >= self.settings.job_attempts {
            self.counters.lost += 1;
            return self.fail_job(id);
        }
        job.worker = None;
        job.progress = None;
        if let Some(at) = job.deadline.take() {
            self.deadlines.remove(&(at, id));
        }
        let function = job.function;
        if let Some(function) = self.function_mut(function) {
            function.running -= 1;
        }
        self.counters.requeued += 1;
        self.enqueue(id, now);
    }

    pub(super) fn remove_client(&mut self, id: JobId, client: ConnectionId) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.clients.retain(|other| *other != client);
        if job.clients.is_empty() && !job.background {
            self.counters.abandoned += 1;
            self.remove(id);
        }
    }

    pub(super) fn status(&mut self, from: ConnectionId, handle: Bytes) {
        let job = self
            .job_by_handle(&handle)
            .and_then(|id| self.jobs.get(&id));
        let (known, running, (numerator, denominator)) = job_state(job);
        self.send(
            from,
            Packet::StatusRes {
                handle,
                known,
                running,
                numerator,
                denominator,
            },
        );
    }

    pub(super) fn status_unique(&mut self, from: ConnectionId, unique: Bytes) {
        // Without coalescing there may be several; the oldest is reported.
        let id = self.uniques.get(&unique).and_then(|same| same.first());
        let job = id.and_then(|id| self.jobs.get(id));
        let clients = job.map_or(0, |job| job.clients.len()).to_string().into();
        let (known, running, (numerator, denominator)) = job_state(job);
        self.send(
            from,
            Packet::StatusResUnique {
                unique,
                known,
                running,
                numerator,
                denominator,
                clients,
            },
        );
    }

    pub(super) fn option(&mut self, from: ConnectionId, option: Bytes) {
        if option.as_ref() != b"exceptions" {
            return self.send_error(
                from,
                "UNKNOWN_OPTION",
                "the server does not know this option",
            );
        }
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.exceptions = true;
        }
        self.send(from, Packet::OptionRes { option });
    }
}

fn job_state(job: Option<&JobEntry>) -> (Bytes, Bytes, (Bytes, Bytes)) {
    let bit = |set: bool| Bytes::from_static(if set { b"1" } else { b"0" });
    let progress = job
        .and_then(|job| job.progress.clone())
        .unwrap_or((bit(false), bit(false)));
    (
        bit(job.is_some()),
        bit(job.is_some_and(|job| job.worker.is_some())),
        progress,
    )
}
