//! What a listener hears of leases, and how late.
//!
//! The server states when it noticed a change, and when a lease was made. Both processes read the same clock, so what
//! arrives can be compared with that. An answer to a client is no such moment: an event may well overtake it.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use serde::Deserialize;

use super::client::Events;

/// How late events came.
#[derive(Debug, Default)]
pub(super) struct Delays {
    /// Of each lease: from the time in its record, taken before it is written, to the first event of it.
    pub(super) from_record: Vec<Duration>,
    /// Of each change: from the moment at which the server noticed it.
    pub(super) from_notice: Vec<Duration>,
}

impl Delays {
    pub(super) fn extend(&mut self, other: Self) {
        self.from_record.extend(other.from_record);
        self.from_notice.extend(other.from_notice);
    }
}

/// Listens until so many leases have come and gone.
pub(super) async fn listen(mut events: Events, leases: usize) -> anyhow::Result<Delays> {
    let mut heard = Heard::default();
    while heard.ended.len() < leases {
        let data = events.next().await?;
        let now = SystemTime::from(nodeyard_model::now());
        heard.note(&data, now.try_into()?)?;
    }
    Ok(heard.delays)
}

/// On one stream.
#[derive(Debug, Default)]
struct Heard {
    delays: Delays,
    created: HashSet<String>,
    ended: HashSet<String>,
}

#[derive(Deserialize)]
struct Event<'a> {
    id: String,
    change: &'a str,
    time: &'a str,
    #[serde(borrow)]
    object: Option<Lease<'a>>,
}

#[derive(Deserialize)]
struct Lease<'a> {
    phase: &'a str,
    created: &'a str,
}

impl Heard {
    fn note(&mut self, data: &[u8], now: Timestamp) -> anyhow::Result<()> {
        let event: Event<'_> = serde_json::from_slice(data)
            .with_context(|| format!("no event of a lease: {}", String::from_utf8_lossy(data)))?;
        self.delays.from_notice.push(since(event.time, now)?);
        let Some(lease) = event.object else {
            return Ok(());
        };
        if event.change == "created" {
            ensure!(
                self.created.insert(event.id.clone()),
                "lease {} was created twice",
                event.id
            );
            self.delays.from_record.push(since(lease.created, now)?);
        }
        if lease.phase == "ended" {
            ensure!(
                self.created.contains(&event.id),
                "lease {} ended and was never heard of before",
                event.id
            );
            self.ended.insert(event.id);
        }
        Ok(())
    }
}

fn since(stated: &str, now: Timestamp) -> anyhow::Result<Duration> {
    let stated: Timestamp = stated.parse()?;
    Duration::try_from(now.duration_since(stated))
        .with_context(|| format!("heard at {now} of what happened at {stated}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, change: &str, time: &str, phase: &str) -> Vec<u8> {
        let object =
            format!(r#"{{"id":"{id}","phase":"{phase}","created":"2026-01-01T00:00:00Z"}}"#);
        format!(r#"{{"kind":"lease","id":"{id}","change":"{change}","time":"{time}","object":{object}}}"#)
            .into_bytes()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn delays_are_counted_from_what_the_server_states() {
        let mut heard = Heard::default();
        let created = event("a", "created", "2026-01-01T00:00:00.02Z", "waiting");
        heard.note(&created, at("2026-01-01T00:00:00.03Z")).unwrap();
        let changed = event("a", "changed", "2026-01-01T00:00:05Z", "ended");
        heard
            .note(&changed, at("2026-01-01T00:00:05.004Z"))
            .unwrap();
        let millis = Duration::from_millis;
        assert_eq!(heard.delays.from_notice, [millis(10), millis(4)]);
        assert_eq!(heard.delays.from_record, [millis(30)]);
        assert_eq!(heard.ended.len(), 1);
    }

    #[test]
    fn what_cannot_be_is_no_figure() {
        let early = event("a", "created", "2026-01-01T00:00:01Z", "waiting");
        let unheard = event("b", "changed", "2026-01-01T00:00:00Z", "ended");
        let now = at("2026-01-01T00:00:00.5Z");
        for data in [
            &early[..],
            &unheard[..],
            br#"{"reason":"events are missing; list again"}"#,
        ] {
            assert!(Heard::default().note(data, now).is_err());
        }
    }
}
