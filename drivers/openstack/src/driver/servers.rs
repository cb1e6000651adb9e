//! The list of servers that all operations share, kept current by listing what has changed.
//!
//! Nova does not list a server as changed before a compute host works on it. So whoever looks for a server by its metadata
//! uses [`OpenStackDriver::all_servers`].

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use nodeyard_driver::Error;
use nodeyard_openstack::Server;
use tokio::time::Instant;

use super::{List, OpenStackDriver};
use crate::failure::driver_error;

/// How old the last complete list may be.
const COMPLETE_LIST_AGE: Duration = Duration::from_secs(60);
/// Changes are listed from this long before the newest known one, since the clocks of Nova's hosts differ.
const OVERLAP: Duration = Duration::from_secs(30);

/// The servers of the project as of the last list.
#[derive(Debug, Default)]
pub(super) struct ServerSnapshot {
    /// When the last complete list was requested.
    complete: Option<Instant>,
    servers: BTreeMap<Box<str>, Server>,
}

impl ServerSnapshot {
    /// Returns the time from which to list changes; None if the list has to be complete.
    fn changes_since(&self) -> Option<String> {
        self.complete
            .filter(|requested| requested.elapsed() < COMPLETE_LIST_AGE)?;
        let times = self.servers.values().filter_map(|server| {
            let updated = server.updated.as_deref()?;
            updated.parse::<jiff::Timestamp>().ok()
        });
        let since = times.max()?.checked_sub(OVERLAP).ok()?;
        Some(since.to_string())
    }

    fn replace(&mut self, requested: Instant, servers: Vec<Server>) {
        self.complete = Some(requested);
        let servers = servers.into_iter();
        self.servers = servers.map(|server| (server.id.clone(), server)).collect();
    }

    fn list(&self) -> Vec<Server> {
        self.servers.values().cloned().collect()
    }

    /// Nova lists changes of deleted servers for good, and shows one as deleted a moment before it stops counting it. So a
    /// deleted server stays here until the next list, which is a complete one.
    fn apply(&mut self, changed: Vec<Server>) {
        for server in changed {
            if !server.is_gone() {
                self.servers.insert(server.id.clone(), server);
            } else if let Some(known) = self.servers.get_mut(&server.id) {
                *known = server;
                self.complete = None;
            }
        }
    }
}

impl OpenStackDriver {
    /// Lists the servers as of `age` ago or later.
    pub(super) async fn servers(&self, age: Duration) -> List<Server> {
        let fetch = async {
            let since = self.server_snapshot().changes_since();
            let Some(since) = since else {
                return self.fetch_all_servers().await;
            };
            let changed = self.compute.servers_changed_since(&since).await;
            let changed = changed.map_err(driver_error)?;
            let mut snapshot = self.server_snapshot();
            snapshot.apply(changed);
            Ok(snapshot.list())
        };
        self.servers.within(age, fetch).await
    }

    /// Lists all servers as of now, including those that Nova still shows as deleted.
    pub(super) async fn all_servers(&self) -> List<Server> {
        let fetch = self.fetch_all_servers();
        self.complete_servers.within(Duration::ZERO, fetch).await
    }

    async fn fetch_all_servers(&self) -> Result<Vec<Server>, Error> {
        let requested = Instant::now();
        let servers = self.compute.servers().await.map_err(driver_error)?;
        let mut snapshot = self.server_snapshot();
        snapshot.replace(requested, servers);
        Ok(snapshot.list())
    }

    fn server_snapshot(&self) -> MutexGuard<'_, ServerSnapshot> {
        self.server_snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn server(status: &str) -> Server {
        let record = json!({"id": "one", "status": status, "updated": "2026-01-01T00:00:00Z"});
        serde_json::from_value(record).unwrap()
    }

    #[test]
    fn a_server_that_nova_shows_as_deleted_counts_until_a_complete_list() {
        let mut snapshot = ServerSnapshot::default();
        snapshot.replace(Instant::now(), vec![server("ACTIVE")]);
        assert!(snapshot.changes_since().is_some());
        snapshot.apply(vec![server("DELETED")]);
        assert_eq!(snapshot.list().len(), 1);
        assert_eq!(snapshot.changes_since(), None);
        snapshot.replace(Instant::now(), Vec::new());
        // The change is listed again, since the lists overlap.
        snapshot.apply(vec![server("DELETED")]);
        assert!(snapshot.list().is_empty());
    }
}
