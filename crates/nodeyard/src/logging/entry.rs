//! From events of `tracing` to log entries that know which request, node and event they are about.
//!
//! The ids are those of the event itself or of the spans around it, innermost first.

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
use super::plan::Plan;
use crate::error_codes::code_of;

/// A line of a log before it has a form.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) time: Zoned,
    pub(super) level: Level,
    pub(super) logger: String,
    pub(super) facts: Facts,
}

/// What was said, and what about.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Facts {
    pub(super) message: String,
    /// Joins the lines of all programs that work on one event of Zuul.
    pub(super) event: Option<String>,
    pub(super) request: Option<String>,
    pub(super) node: Option<String>,
    pub(super) others: Vec<(&'static str, Value)>,
}

impl Facts {
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let found = self.others.iter().find(|(key, _)| *key == name);
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
                self.others.retain(|(key, _)| *key != name);
                self.others.push((name, value));
            }
        }
    }

    /// Fills in what a span around it knows.
    fn inherit(&mut self, outer: &Facts) {
        for (mine, theirs) in [
            (&mut self.event, &outer.event),
            (&mut self.request, &outer.request),
            (&mut self.node, &outer.node),
        ] {
            if mine.is_none() {
                mine.clone_from(theirs);
            }
        }
        for (name, value) in &outer.others {
            if !self.others.iter().any(|(key, _)| key == name) {
                self.others.push((name, value.clone()));
            }
        }
    }
}

impl Visit for Facts {
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
            self.others.push(("code", code.id().into()));
        }
    }
}

/// Writes entries as a plan says.
#[derive(Debug)]
pub(super) struct Entries {
    plan: Plan,
}

impl Entries {
    pub(super) fn new(plan: Plan) -> Self {
        Self { plan }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Entries {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut facts = Facts::default();
        attributes.record(&mut facts);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(facts);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(facts) = span.extensions_mut().get_mut::<Facts>()
        {
            values.record(facts);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut facts = Facts::default();
        event.record(&mut facts);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(outer) = span.extensions().get::<Facts>() {
                facts.inherit(outer);
            }
        }
        let metadata = event.metadata();
        self.plan.write(&Entry {
            time: local_time(),
            level: *metadata.level(),
            logger: names::logger(metadata.target(), &facts),
            facts,
        });
    }
}

/// Returns the time of the system in its time zone.
fn local_time() -> Zoned {
    let time = jiff::Timestamp::try_from(SystemTime::from(now())).unwrap_or_default();
    time.to_zoned(TimeZone::system())
}
