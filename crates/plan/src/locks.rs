//! Lock directories of requests that are gone.
//!
//! A request's lock lies beside it, so that Zuul can delete the request without looking; nobody deletes the
//! lock with it. It stays for a while, for those who still stand in line.

use std::time::Duration;

use nodeyard_model::{RequestId, Timestamp};

use crate::world::World;

/// How long a lock outlives its request.
pub const MAX_AGE: Duration = Duration::from_secs(8 * 3600);

/// Those of `locks`, each with the time it was last changed, that can be removed.
pub fn outlived(
    world: &World,
    locks: impl IntoIterator<Item = (RequestId, Timestamp)>,
    max_age: Duration,
    now: Timestamp,
) -> Vec<RequestId> {
    locks
        .into_iter()
        .filter(|(id, changed)| world.queue.get(*id).is_none() && now.since(*changed) > max_age)
        .map(|(id, _)| id)
        .collect()
}
