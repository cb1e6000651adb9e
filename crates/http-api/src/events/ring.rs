//! The newest events, in a place of bounded size.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use nodeyard_model::now;

use super::Event;

/// Whichever comes first: enough for a client that is away for a while.
const EVENTS: usize = 32_768;
const BYTES: usize = 32 << 20;

/// `<run>-<number>`: which run of the process, and where in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventId {
    run: u64,
    number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.run, self.number)
    }
}

impl FromStr for EventId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (run, number) = text.split_once('-').ok_or(())?;
        let hex = |text| u64::from_str_radix(text, 16).map_err(|_| ());
        Ok(Self {
            run: hex(run)?,
            number: hex(number)?,
        })
    }
}

#[derive(Debug)]
pub(super) struct Ring {
    run: u64,
    kept: RwLock<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// The number of the first event.
    first: u64,
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

/// Where a stream goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resume {
    /// Everything from now on.
    Now,
    /// What came after this event.
    After(EventId),
    /// An id that cannot be ours.
    Lost,
}

/// What a stream finds at its place.
pub(super) enum Found {
    /// With the number of the event after it.
    Event(Arc<Event>, u64),
    Nothing,
    /// Events are missing; it goes on from here.
    Gap(EventId, u64),
}

impl Ring {
    pub(super) fn new() -> Self {
        Self {
            run: (now().as_secs() * 1e9) as u64,
            kept: RwLock::new(Kept {
                first: 1,
                events: VecDeque::new(),
                bytes: 0,
            }),
        }
    }

    pub(super) fn push(&self, make: impl FnOnce(&EventId) -> Event) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        let id = EventId {
            run: self.run,
            number: kept.end(),
        };
        let event = make(&id);
        kept.bytes += event.frame.len();
        kept.events.push_back(Arc::new(event));
        while kept.events.len() > EVENTS || kept.bytes > BYTES {
            let Some(oldest) = kept.events.pop_front() else {
                break;
            };
            kept.bytes -= oldest.frame.len();
            kept.first += 1;
        }
    }

    /// Forgets everything, and leaves a hole that every stream notices.
    pub(super) fn interrupt(&self) {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        kept.first = kept.end() + 1;
        kept.events.clear();
        kept.bytes = 0;
    }

    /// The number to begin with; a number before the first event is noticed as a gap.
    pub(super) fn begin(&self, resume: Resume) -> u64 {
        let end = self.kept().end();
        match resume {
            Resume::Now => end,
            Resume::After(id) if id.run == self.run && id.number < end => id.number + 1,
            Resume::After(_) | Resume::Lost => 0,
        }
    }

    pub(super) fn find(&self, number: u64) -> Found {
        let kept = self.kept();
        let Some(place) = number.checked_sub(kept.first) else {
            let end = kept.end();
            let last = EventId {
                run: self.run,
                number: end - 1,
            };
            return Found::Gap(last, end);
        };
        let event = usize::try_from(place)
            .ok()
            .and_then(|place| kept.events.get(place));
        match event {
            Some(event) => Found::Event(Arc::clone(event), number + 1),
            None => Found::Nothing,
        }
    }

    fn kept(&self) -> std::sync::RwLockReadGuard<'_, Kept> {
        self.kept.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::Kind;
    use super::*;

    fn push(ring: &Ring, size: usize) -> EventId {
        let mut pushed = None;
        ring.push(|id| {
            pushed = Some(*id);
            Event {
                kind: Kind::Node,
                id: "n".into(),
                tenant: None,
                related: Box::default(),
                frame: Bytes::from(vec![b'x'; size]),
            }
        });
        pushed.unwrap()
    }

    #[test]
    fn a_stream_goes_on_where_it_was() {
        let ring = Ring::new();
        let now = ring.begin(Resume::Now);
        assert!(matches!(ring.find(now), Found::Nothing));
        let first = push(&ring, 1);
        push(&ring, 1);
        assert!(matches!(ring.find(now), Found::Event(..)));
        let id: EventId = first.to_string().parse().unwrap();
        let after = ring.begin(Resume::After(id));
        let Found::Event(_, next) = ring.find(after) else {
            panic!("the second event is gone");
        };
        assert!(matches!(ring.find(next), Found::Nothing));
    }

    #[test]
    fn what_is_missing_is_noticed() {
        let ring = Ring::new();
        let old = push(&ring, 1);
        push(&ring, BYTES);
        push(&ring, BYTES);
        assert_eq!(ring.kept().events.len(), 1);
        let place = ring.begin(Resume::After(old));
        let Found::Gap(last, next) = ring.find(place) else {
            panic!("nothing is missing");
        };
        assert!(matches!(ring.find(next), Found::Nothing));
        // The id of a gap is good for coming back.
        let place = ring.begin(Resume::After(last));
        assert!(matches!(ring.find(place), Found::Nothing));

        for strange in [
            Resume::Lost,
            Resume::After(EventId {
                run: 1,
                number: last.number,
            }),
            Resume::After(EventId {
                run: ring.run,
                number: u64::MAX,
            }),
        ] {
            let place = ring.begin(strange);
            assert!(matches!(ring.find(place), Found::Gap(..)), "{strange:?}");
        }
        let before = ring.begin(Resume::Now);
        ring.interrupt();
        assert!(matches!(ring.find(before), Found::Gap(..)));
    }

    #[test]
    fn what_is_no_id_is_not_read() {
        for text in ["", "-", "1", "x-1", "1-1-1", "-1-1"] {
            assert!(text.parse::<EventId>().is_err(), "{text}");
        }
    }
}
