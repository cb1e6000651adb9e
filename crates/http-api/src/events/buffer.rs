//! A bounded buffer of the newest events.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use nodeyard_model::now;

use super::ChangeEvent;

/// The buffer is limited by the number of events and by their size.
const MAX_EVENTS: usize = 32_768;
const MAX_BYTES: usize = 32 << 20;

/// The id of an event, `<run>-<number>`: the run of the process, and the event's number in it.
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

/// The newest events.
#[derive(Debug)]
pub(super) struct EventBuffer {
    run: u64,
    contents: RwLock<BufferContents>,
}

#[derive(Debug)]
struct BufferContents {
    /// The number of the first event.
    first: u64,
    events: VecDeque<Arc<ChangeEvent>>,
    bytes: usize,
}

/// Where a stream starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resume {
    /// With the next event.
    Now,
    /// After this event.
    After(EventId),
    /// After an event with an invalid id, so with a `reset`.
    Unknown,
}

/// What a stream finds at its position.
pub(super) enum NextEvent {
    /// An event, and the position after it.
    Event(Arc<ChangeEvent>, u64),
    Nothing,
    /// Events are missing; the stream continues with this id and position.
    Gap(EventId, u64),
}

impl EventBuffer {
    pub(super) fn new() -> Self {
        Self {
            run: (now().as_secs() * 1e9) as u64,
            contents: RwLock::new(BufferContents {
                first: 1,
                events: VecDeque::new(),
                bytes: 0,
            }),
        }
    }

    /// Adds an event, and drops the oldest ones beyond the limits.
    pub(super) fn push(&self, make: impl FnOnce(&EventId) -> ChangeEvent) {
        let mut contents = self
            .contents
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let id = EventId {
            run: self.run,
            number: contents.end(),
        };
        let event = make(&id);
        contents.bytes += event.frame.len();
        contents.events.push_back(Arc::new(event));
        while contents.events.len() > MAX_EVENTS || contents.bytes > MAX_BYTES {
            let Some(oldest) = contents.events.pop_front() else {
                break;
            };
            contents.bytes -= oldest.frame.len();
            contents.first += 1;
        }
    }

    /// Drops all events and skips a number, so that every stream notices a gap.
    pub(super) fn interrupt(&self) {
        let mut contents = self
            .contents
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        contents.first = contents.end() + 1;
        contents.events.clear();
        contents.bytes = 0;
    }

    /// Returns the position to start at; a position before the first event is reported as a gap.
    pub(super) fn begin(&self, resume: Resume) -> u64 {
        let end = self.contents().end();
        match resume {
            Resume::Now => end,
            Resume::After(id) if id.run == self.run && id.number < end => id.number + 1,
            Resume::After(_) | Resume::Unknown => 0,
        }
    }

    /// Returns the event at a position.
    pub(super) fn find(&self, number: u64) -> NextEvent {
        let contents = self.contents();
        let Some(position) = number.checked_sub(contents.first) else {
            let end = contents.end();
            let last = EventId {
                run: self.run,
                number: end - 1,
            };
            return NextEvent::Gap(last, end);
        };
        let event = usize::try_from(position)
            .ok()
            .and_then(|position| contents.events.get(position));
        match event {
            Some(event) => NextEvent::Event(Arc::clone(event), number + 1),
            None => NextEvent::Nothing,
        }
    }

    fn contents(&self) -> std::sync::RwLockReadGuard<'_, BufferContents> {
        self.contents.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BufferContents {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::ObjectKind;
    use super::*;

    fn push(buffer: &EventBuffer, size: usize) -> EventId {
        let mut pushed = None;
        buffer.push(|id| {
            pushed = Some(*id);
            ChangeEvent {
                kind: ObjectKind::Node,
                id: "n".into(),
                tenant: None,
                related: Box::default(),
                frame: Bytes::from(vec![b'x'; size]),
            }
        });
        pushed.unwrap()
    }

    #[test]
    fn a_stream_resumes_at_its_position() {
        let buffer = EventBuffer::new();
        let now = buffer.begin(Resume::Now);
        assert!(matches!(buffer.find(now), NextEvent::Nothing));
        let first = push(&buffer, 1);
        push(&buffer, 1);
        assert!(matches!(buffer.find(now), NextEvent::Event(..)));
        let id: EventId = first.to_string().parse().unwrap();
        let after = buffer.begin(Resume::After(id));
        let NextEvent::Event(_, next) = buffer.find(after) else {
            panic!("the second event is gone");
        };
        assert!(matches!(buffer.find(next), NextEvent::Nothing));
    }

    #[test]
    fn missing_events_are_reported_as_a_gap() {
        let buffer = EventBuffer::new();
        let old = push(&buffer, 1);
        push(&buffer, MAX_BYTES);
        push(&buffer, MAX_BYTES);
        assert_eq!(buffer.contents().events.len(), 1);
        let position = buffer.begin(Resume::After(old));
        let NextEvent::Gap(last, next) = buffer.find(position) else {
            panic!("nothing is missing");
        };
        assert!(matches!(buffer.find(next), NextEvent::Nothing));
        // The id of a gap can be resumed from.
        let position = buffer.begin(Resume::After(last));
        assert!(matches!(buffer.find(position), NextEvent::Nothing));

        for strange in [
            Resume::Unknown,
            Resume::After(EventId {
                run: 1,
                number: last.number,
            }),
            Resume::After(EventId {
                run: buffer.run,
                number: u64::MAX,
            }),
        ] {
            let position = buffer.begin(strange);
            assert!(
                matches!(buffer.find(position), NextEvent::Gap(..)),
                "{strange:?}"
            );
        }
        let before = buffer.begin(Resume::Now);
        buffer.interrupt();
        assert!(matches!(buffer.find(before), NextEvent::Gap(..)));
    }

    #[test]
    fn invalid_ids_are_rejected() {
        for text in ["", "-", "1", "x-1", "1-1-1", "-1-1"] {
            assert!(text.parse::<EventId>().is_err(), "{text}");
        }
    }
}
