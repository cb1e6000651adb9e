//! The history of requests for some time after they ended.
//!
//! Most requests are served quickly and their history is never read, so it must be cheap: the last [`KEPT`] are kept
//! in memory for [`KEPT_FOR`], by the launcher that served them. Requests that failed or took longer than [`SLOW`] are
//! also stored ([`archive`]), so that they can be explained after a restart. They are written in batches in the
//! background, and what exceeds a batch is not stored.
//!
//! What a request waits for is only known while it waits. So the dispatcher samples waiting requests periodically
//! ([`History::sampled`]), a few at a time.

mod archive;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodeyard_model::{NodeRequest, RequestId, RequestState, Timestamp};
use nodeyard_plan::PoolKey;
use nodeyard_plan::explain::{EndedRequest, PoolMessage, RequestOutcome};
use tokio::sync::mpsc;

pub(crate) use archive::Archive;
pub use archive::read;

const KEPT: usize = 4096;
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// A request that took longer than this is worth storing.
const SLOW: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(crate) struct History {
    memory: Mutex<Memory>,
    archive: mpsc::Sender<Arc<EndedRequest>>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Of requests that exist.
    notes: HashMap<RequestId, Note>,
    ended: HashMap<RequestId, Arc<EndedRequest>>,
    /// In the order of their ends.
    order: VecDeque<(Timestamp, RequestId)>,
}

#[derive(Debug, Default)]
struct Note {
    /// The record at its last sample. Cancellations are reported only with one.
    record: Option<Arc<NodeRequest>>,
    accepted: Option<Timestamp>,
    waited_for: Vec<PoolMessage>,
    declined: Vec<PoolMessage>,
}

impl History {
    pub(crate) fn new() -> (Self, Archive) {
        let (archive, inbox) = archive::channel();
        let history = Self {
            memory: Mutex::default(),
            archive,
        };
        (history, inbox)
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<Arc<EndedRequest>> {
        self.memory().ended.get(&id).cloned()
    }

    /// Requests that something is known of and that have not gone yet.
    pub(crate) fn noted(&self) -> Vec<RequestId> {
        self.memory().notes.keys().copied().collect()
    }

    /// Records that a pool begins to serve a request.
    pub(crate) fn accepted(&self, id: RequestId, now: Timestamp) {
        self.memory().notes.entry(id).or_default().accepted = Some(now);
    }

    /// Records the messages of the pools while a request waits.
    pub(crate) fn sampled(&self, id: RequestId, record: Arc<NodeRequest>, says: Vec<PoolMessage>) {
        let mut memory = self.memory();
        let note = memory.notes.entry(id).or_default();
        note.record = Some(record);
        note.waited_for = says;
    }

    pub(crate) fn fulfilled(
        &self,
        id: RequestId,
        record: &NodeRequest,
        by: &PoolKey,
        launched: usize,
        now: Timestamp,
    ) {
        let end = RequestOutcome::Fulfilled {
            by: by.clone(),
            nodes: record.nodes.clone(),
            launched,
        };
        let ended = self.memory().end(id, record, end, now);
        if ended.took() > SLOW.as_secs_f64() {
            self.archive(ended);
        }
    }

    /// Records a decline by a pool of ours, which may have failed the request.
    pub(crate) fn declined(
        &self,
        id: RequestId,
        record: &NodeRequest,
        by: &PoolKey,
        reason: &str,
        now: Timestamp,
    ) {
        let mut memory = self.memory();
        let declined = &mut memory.notes.entry(id).or_default().declined;
        declined.retain(|remark| remark.pool != *by);
        declined.push(PoolMessage {
            pool: by.clone(),
            message: reason.to_owned(),
        });
        if record.state == RequestState::Failed {
            let ended = memory.end(id, record, RequestOutcome::Failed, now);
            drop(memory);
            self.archive(ended);
        }
    }

    /// The last decline was by a pool of another launcher, which stores the history.
    pub(crate) fn failed(&self, id: RequestId, record: &NodeRequest, now: Timestamp) {
        let mut memory = self.memory();
        if !memory.ended.contains_key(&id) {
            memory.end(id, record, RequestOutcome::Failed, now);
        }
    }

    /// Its record has gone.
    pub(crate) fn gone(&self, id: RequestId, now: Timestamp) {
        let mut memory = self.memory();
        let Some(note) = memory.notes.get(&id) else {
            return;
        };
        if let Some(record) = note.record.clone()
            && !memory.ended.contains_key(&id)
        {
            memory.end(id, &record, RequestOutcome::Cancelled, now);
        }
        memory.notes.remove(&id);
    }

    /// Sends a history to the archive. It is dropped if the queue is full.
    fn archive(&self, ended: Arc<EndedRequest>) {
        let _ = self.archive.try_send(ended);
    }

    /// Nothing panics while it holds the lock, so poison is ignored.
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory {
    fn end(
        &mut self,
        id: RequestId,
        record: &NodeRequest,
        end: RequestOutcome,
        now: Timestamp,
    ) -> Arc<EndedRequest> {
        let nothing = Note::default();
        let note = self.notes.get(&id).unwrap_or(&nothing);
        let created = record.created_time.unwrap_or(now);
        let accepted = note.accepted.filter(|_| end != RequestOutcome::Cancelled);
        let ended = Arc::new(EndedRequest {
            request: id,
            end,
            labels: record.labels.clone(),
            requestor: record.requestor.as_deref().map(Box::from),
            event_id: record.event_id.clone(),
            ended: now.as_secs(),
            waited: accepted.unwrap_or(now).since(created).as_secs_f64(),
            worked: accepted.map(|at| now.since(at).as_secs_f64()),
            waited_for: note.waited_for.clone(),
            declined: note.declined.clone(),
        });
        if self.ended.insert(id, Arc::clone(&ended)).is_none() {
            self.order.push_back((now, id));
        }
        self.forget(now);
        ended
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some((at, id)) = self.order.front()
            && (self.order.len() > KEPT || now.since(*at) > KEPT_FOR)
        {
            self.ended.remove(id);
            self.order.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use nodeyard_model::ProviderName;

    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_secs(seconds).unwrap()
    }

    fn id(number: u32) -> RequestId {
        format!("100-{number:010}").parse().unwrap()
    }

    fn pool() -> PoolKey {
        PoolKey::new(ProviderName::new("cloud").unwrap(), "main".into())
    }

    fn request(state: RequestState) -> NodeRequest {
        let mut request = NodeRequest::new(state, at(0.0));
        request.labels = vec!["small".into()];
        request.created_time = Some(at(0.0));
        request
    }

    #[test]
    fn a_fast_request_is_remembered_and_not_stored() {
        let (history, mut archive) = History::new();
        history.accepted(id(1), at(2.0));
        history.fulfilled(
            id(1),
            &request(RequestState::Fulfilled),
            &pool(),
            1,
            at(5.0),
        );
        history.gone(id(1), at(6.0));
        let ended = history.get(id(1)).unwrap();
        assert_eq!((ended.waited, ended.worked), (2.0, Some(3.0)));
        assert!(matches!(
            ended.end,
            RequestOutcome::Fulfilled { launched: 1, .. }
        ));
        assert!(archive.try_next().is_none());
        assert!(history.noted().is_empty());
    }

    #[test]
    fn slow_and_failed_ones_are_stored_with_all_reasons() {
        let (history, mut archive) = History::new();
        history.fulfilled(
            id(1),
            &request(RequestState::Fulfilled),
            &pool(),
            0,
            at(301.0),
        );
        assert_eq!(archive.try_next().unwrap().request, id(1));
        history.declined(
            id(2),
            &request(RequestState::Requested),
            &pool(),
            "full",
            at(1.0),
        );
        assert!(history.get(id(2)).is_none());
        let other = PoolKey::new(ProviderName::new("other").unwrap(), "main".into());
        history.failed(id(2), &request(RequestState::Failed), at(2.0));
        history.declined(
            id(2),
            &request(RequestState::Failed),
            &other,
            "no image",
            at(2.0),
        );
        let stored = archive.try_next().unwrap();
        assert_eq!(stored.end, RequestOutcome::Failed);
        let says: Vec<&str> = stored
            .declined
            .iter()
            .map(|message| &*message.message)
            .collect();
        assert_eq!(says, ["full", "no image"]);
        assert_eq!(history.get(id(2)).unwrap(), stored);
    }

    #[test]
    fn a_request_that_waited_and_was_cancelled_is_kept() {
        let (history, _archive) = History::new();
        let record = Arc::new(request(RequestState::Requested));
        let says = vec![PoolMessage {
            pool: pool(),
            message: "no room".to_owned(),
        }];
        history.sampled(id(1), record, says.clone());
        history.gone(id(1), at(9.0));
        let ended = history.get(id(1)).unwrap();
        assert_eq!(
            (&ended.end, &ended.waited_for),
            (&RequestOutcome::Cancelled, &says)
        );
        assert_eq!((ended.waited, ended.worked), (9.0, None));
        history.gone(id(2), at(9.0));
        assert!(history.get(id(2)).is_none());
    }

    #[test]
    fn memory_has_an_end() {
        let (history, _archive) = History::new();
        for number in 0..5000 {
            let record = request(RequestState::Fulfilled);
            history.fulfilled(
                id(number),
                &record,
                &pool(),
                0,
                at(f64::from(number) / 100.0),
            );
        }
        assert!(history.get(id(0)).is_none());
        assert!(history.get(id(4999)).is_some());
        assert_eq!(history.memory().ended.len(), KEPT);
        history.fulfilled(
            id(6000),
            &request(RequestState::Fulfilled),
            &pool(),
            0,
            at(9999.0),
        );
        assert_eq!(history.memory().ended.len(), 1);
        assert_eq!(history.memory().order.len(), 1);
    }
}
