//! Removing what cannot carry tags: floating IPs without a server, and ports that stay down.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nodeyard_driver::{ResourceKind, Tidied};
use nodeyard_model::Timestamp;

/// How many were removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Removed {
    pub floating_ips: usize,
    pub ports: usize,
}

impl Removed {
    pub fn tidied(self) -> Vec<Tidied> {
        let counts = [
            (ResourceKind::FLOATING_IPS, self.floating_ips),
            (ResourceKind::PORTS, self.ports),
        ];
        let some = counts.into_iter().filter(|(_, count)| *count > 0);
        some.map(|(kind, count)| Tidied { kind, count }).collect()
    }
}

/// Ports that were down at the last look. A port is down for a moment while its server is made: only what is down at two
/// looks that are an interval apart may go.
#[derive(Debug, Default)]
pub struct DownPorts(Mutex<Option<Look>>);

#[derive(Debug)]
struct Look {
    at: Timestamp,
    ports: BTreeSet<Box<str>>,
}

impl DownPorts {
    /// Those of the last look. None if that is less than an interval ago: it is too early for another.
    pub fn before(&self, now: Timestamp, interval: Duration) -> Option<BTreeSet<Box<str>>> {
        match &*self.lock() {
            Some(last) if now.since(last.at) < interval => None,
            Some(last) => Some(last.ports.clone()),
            None => Some(BTreeSet::new()),
        }
    }

    /// `ports` are down, and stay for the next look to judge.
    pub fn seen(&self, now: Timestamp, ports: BTreeSet<Box<str>>) {
        *self.lock() = Some(Look { at: now, ports });
    }

    fn lock(&self) -> MutexGuard<'_, Option<Look>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_may_go_at_the_second_look_that_finds_it() {
        let at = |secs| Timestamp::from_secs(secs).unwrap();
        let interval = Duration::from_secs(10);
        let down = DownPorts::default();
        assert_eq!(down.before(at(0.0), interval), Some(BTreeSet::new()));
        let ports = BTreeSet::from(["a".into()]);
        down.seen(at(0.0), ports.clone());
        assert_eq!(down.before(at(9.0), interval), None);
        assert_eq!(down.before(at(10.0), interval), Some(ports));
    }
}
