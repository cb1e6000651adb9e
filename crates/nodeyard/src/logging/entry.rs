//! Turns `tracing` events into log entries.
//!
//! The ids of request, node and event are those of the event itself or of its spans, innermost first.

use std::fmt;
use std::time::SystemTime;

use jiff::Zoned;
use jiff::tz::TimeZone;
use nodeyard_model::{now, with_causes};
use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::names;
use super::routing::LogRouting;
use crate::error_codes::code_of;

/// A log entry before formatting.
#[derive(Debug)]
pub(super) struct LogEntry {
    pub(super) time: Zoned,
    pub(super) level: Level,
    pub(super) logger: String,
    pub(super) fields: LogFields,
}

/// The message and the fields of an entry.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LogFields {
    pub(super) message: String,
    /// Correlates the log lines of all programs that handle one Zuul event.
    pub(super) event: Option<String>,
    pub(super) request: Option<String>,
    pub(super) node: Option<String>,
    pub(super) rest: Vec<(&'static str, Value)>,
}

impl LogFields {
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let found = self.rest.iter().find(|(key, _)| *key == name);
        found.and_then(|(_, value)| value.as_str())
    }

    fn put(&mut self, field: &Field, value: Value) {
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        match field.name() {
            "message" => self.message = text(value),
            "event" => self.event = Some(text(value)),
            "request" => self.request = Some(text(value)),
            "node" => self.node = Some(text(value)),
            name => {
                self.rest.retain(|(key, _)| *key != name);
                self.rest.push((name, value));
            }
        }
    }

    /// Adds the fields of an outer span.
    fn inherit(&mut self, outer: &LogFields) {
        for (mine, theirs) in [
            (&mut self.event, &outer.event),
            (&mut self.request, &outer.request),
            (&mut self.node, &outer.node),
        ] {
            if mine.is_none() {
                mine.clone_from(theirs);
            }
        }
        for (name, value) in &outer.rest {
            if !self.rest.iter().any(|(key, _)| key == name) {
                self.rest.push((name, value.clone()));
            }
        }
    }
}

impl Visit for LogFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, with_causes(value).into());
        if let Some(code) = code_of(value) {
            self.rest.push(("code", code.id().into()));
        }
    }
}

/// The `tracing` layer that writes entries according to the logging configuration.
#[derive(Debug)]
pub(super) struct LogLayer {
    plan: LogRouting,
}

impl LogLayer {
    pub(super) fn new(plan: LogRouting) -> Self {
        Self { plan }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = LogFields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<LogFields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = LogFields::default();
        event.record(&mut fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<LogFields>() {
                fields.inherit(outer);
            }
        }
        let metadata = event.metadata();
        self.plan.write(&LogEntry {
            time: local_time(),
            level: *metadata.level(),
            logger: names::logger(metadata.target(), &fields),
            fields,
        });
    }
}

/// Returns the time of the system in its time zone.
fn local_time() -> Zoned {
    let time = jiff::Timestamp::try_from(SystemTime::from(now())).unwrap_or_default();
    time.to_zoned(TimeZone::system())
}
