//! Transitions of requests, under the lock of the request.

use std::collections::HashSet;

use nodeyard_model::{Label, LauncherId, NodeId, NodeRequest, RequestState, Timestamp};

use super::WriteRefused;

/// Marks a waiting request as `pending`.
pub fn take(
    record: Option<&NodeRequest>,
    own: &LauncherId,
    now: Timestamp,
) -> Result<NodeRequest, WriteRefused> {
    let record = in_state(record, &[RequestState::Requested])?;
    if record.declined_by.contains(own) {
        return Err(WriteRefused::Declined);
    }
    let mut record = record.clone();
    record.set_state(RequestState::Pending, now);
    Ok(record)
}

/// Declines a request that waits or that this pool has taken. It fails only when every registered pool has declined.
/// Without registered pools it keeps waiting.
pub fn decline<'a>(
    record: Option<&NodeRequest>,
    own: &LauncherId,
    registered: impl IntoIterator<Item = &'a LauncherId>,
    now: Timestamp,
) -> Result<NodeRequest, WriteRefused> {
    let record = in_state(record, &[RequestState::Requested, RequestState::Pending])?;
    let mut record = record.clone();
    if !record.declined_by.contains(own) {
        record.declined_by.push(own.clone());
    }
    record.nodes.clear();
    let state = if all_declined(&record, registered) {
        RequestState::Failed
    } else {
        RequestState::Requested
    };
    record.set_state(state, now);
    Ok(record)
}

/// Fails a waiting request that every registered pool has declined: the others left the registry after the last
/// decline.
pub fn fail<'a>(
    record: Option<&NodeRequest>,
    registered: impl IntoIterator<Item = &'a LauncherId>,
    now: Timestamp,
) -> Result<NodeRequest, WriteRefused> {
    let record = in_state(record, &[RequestState::Requested])?;
    if !all_declined(record, registered) {
        let state = record.state;
        return Err(WriteRefused::RequestIs { state });
    }
    let mut record = record.clone();
    record.set_state(RequestState::Failed, now);
    Ok(record)
}

/// Returns whether every registered pool has declined the request. False if none is registered.
pub fn all_declined<'a>(
    record: &NodeRequest,
    registered: impl IntoIterator<Item = &'a LauncherId>,
) -> bool {
    let declined: HashSet<&LauncherId> = record.declined_by.iter().collect();
    let mut registered = registered.into_iter().peekable();
    registered.peek().is_some() && registered.all(|id| declined.contains(id))
}

/// Fulfils a request. Its nodes must be unlocked already: Zuul locks them as soon as it sees this.
pub fn fulfil(
    record: Option<&NodeRequest>,
    given: Vec<(Label, NodeId)>,
    now: Timestamp,
) -> Result<NodeRequest, WriteRefused> {
    let mut record = in_state(record, &[RequestState::Pending])?.clone();
    record.fulfil(given, now)?;
    Ok(record)
}

/// Requeues a pending request whose launcher died or stops.
pub fn requeue(record: Option<&NodeRequest>, now: Timestamp) -> Result<NodeRequest, WriteRefused> {
    let mut record = in_state(record, &[RequestState::Pending])?.clone();
    record.nodes.clear();
    record.set_state(RequestState::Requested, now);
    Ok(record)
}

fn in_state<'a>(
    record: Option<&'a NodeRequest>,
    allowed: &[RequestState],
) -> Result<&'a NodeRequest, WriteRefused> {
    let record = record.ok_or(WriteRefused::Gone)?;
    if allowed.contains(&record.state) {
        Ok(record)
    } else {
        let state = record.state;
        Err(WriteRefused::RequestIs { state })
    }
}
