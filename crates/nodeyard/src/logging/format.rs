//! Formats entries: lines in the format of Python's logging, or JSON objects.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use jiff::Zoned;
use jiff::fmt::strtime;
use serde_json::{Map, Value, json};
use tracing::Level;

use super::entry::{LogEntry, LogFields};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum LogFormat {
    Text(LineTemplate),
    /// One object per line, with the ids as separate fields.
    Json,
}

impl Default for LogFormat {
    fn default() -> Self {
        Self::Text(LineTemplate::default())
    }
}

impl LogFormat {
    /// Formats an entry, with a newline at the end.
    pub(super) fn render(&self, entry: &LogEntry) -> String {
        match self {
            Self::Text(template) => template.render(entry),
            Self::Json => format!("{}\n", object(entry)),
        }
    }
}

/// A format string of Python's logging.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LineTemplate {
    pieces: Vec<FormatPiece>,
    /// The date format; None means `2024-01-31 12:00:00,123`.
    date_format: Option<String>,
    /// Formats further lines of a message like the first, indented.
    prefix_all_lines: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum FormatPiece {
    Text(String),
    Field {
        field: FormatField,
        width: usize,
        left: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum FormatField {
    Time,
    Level,
    Logger,
    Message,
    Process,
    Thread,
}

impl Default for LineTemplate {
    /// Nodepool's format.
    fn default() -> Self {
        let value = |field| FormatPiece::Field {
            field,
            width: 0,
            left: false,
        };
        let text = |text: &str| FormatPiece::Text(text.to_owned());
        Self {
            pieces: vec![
                value(FormatField::Time),
                text(" "),
                value(FormatField::Level),
                text(" "),
                value(FormatField::Logger),
                text(": "),
                value(FormatField::Message),
            ],
            date_format: None,
            prefix_all_lines: true,
        }
    }
}

impl LineTemplate {
    /// Parses a format such as `%(asctime)s %(levelname)-5s`.
    pub(super) fn parse(
        format: &str,
        date_format: Option<String>,
        prefix_all_lines: bool,
    ) -> anyhow::Result<Self> {
        if let Some(date_format) = &date_format {
            strtime::format(date_format, &Zoned::default())
                .with_context(|| format!("invalid datefmt {date_format:?}"))?;
        }
        let mut pieces = Vec::new();
        let mut rest = format;
        while let Some((text, after)) = rest.split_once('%') {
            pieces.push(FormatPiece::Text(text.to_owned()));
            if let Some(after) = after.strip_prefix('%') {
                pieces.push(FormatPiece::Text("%".to_owned()));
                rest = after;
                continue;
            }
            let named = after
                .strip_prefix('(')
                .and_then(|after| after.split_once(')'));
            let Some((name, after)) = named else {
                bail!("invalid format {format:?}: expected %(name)s or %% after %");
            };
            let end = after.find(|c: char| !(c.is_ascii_digit() || c == '-'));
            let (size, after) = after.split_at(end.unwrap_or(after.len()));
            if !after.starts_with(['s', 'd']) {
                bail!("invalid format {format:?}: expected s or d after %({name})");
            }
            pieces.push(FormatPiece::Field {
                field: FormatField::named(name).with_context(|| {
                    format!("invalid format {format:?}: unsupported field {name:?}")
                })?,
                left: size.starts_with('-'),
                width: size.trim_start_matches('-').parse().unwrap_or(0),
            });
            rest = after.get(1..).unwrap_or_default();
        }
        pieces.push(FormatPiece::Text(rest.to_owned()));
        Ok(Self {
            pieces,
            date_format,
            prefix_all_lines,
        })
    }

    fn render(&self, entry: &LogEntry) -> String {
        let message = message(&entry.fields);
        if !self.prefix_all_lines {
            return self.line(entry, &message);
        }
        let mut lines = message.split('\n');
        let mut text = self.line(entry, lines.next().unwrap_or_default());
        for line in lines {
            text.push_str(&self.line(entry, &format!("  {line}")));
        }
        text
    }

    fn line(&self, entry: &LogEntry, message: &str) -> String {
        let mut line = String::with_capacity(message.len() + 64);
        for piece in &self.pieces {
            match piece {
                FormatPiece::Text(text) => line.push_str(text),
                FormatPiece::Field { field, width, left } => {
                    let value = match field {
                        FormatField::Time => self.time(&entry.time),
                        FormatField::Level => level(entry.level).to_owned(),
                        FormatField::Logger => entry.logger.clone(),
                        FormatField::Message => message.to_owned(),
                        FormatField::Process => std::process::id().to_string(),
                        FormatField::Thread => {
                            let thread = std::thread::current();
                            thread.name().unwrap_or("worker").to_owned()
                        }
                    };
                    // Writing to a string cannot fail.
                    let _ = if *left {
                        write!(line, "{value:<width$}")
                    } else {
                        write!(line, "{value:>width$}")
                    };
                }
            }
        }
        line.push('\n');
        line
    }

    fn time(&self, time: &Zoned) -> String {
        let format = self
            .date_format
            .as_deref()
            .unwrap_or("%Y-%m-%d %H:%M:%S,%3f");
        strtime::format(format, time).unwrap_or_else(|_| time.to_string())
    }
}

impl FormatField {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "asctime" => Self::Time,
            "levelname" => Self::Level,
            "name" => Self::Logger,
            "message" => Self::Message,
            "process" => Self::Process,
            "threadName" | "thread" | "processName" => Self::Thread,
            _ => return None,
        })
    }
}

/// Returns Python's name of a level.
fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
    }
}

/// Returns the message with the ids in front, as in Nodepool, and all other fields behind.
fn message(fields: &LogFields) -> String {
    let mut text = String::new();
    for (name, id) in [
        ("e", &fields.event),
        ("node_request", &fields.request),
        ("node", &fields.node),
    ] {
        if let Some(id) = id {
            let _ = write!(text, "[{name}: {id}] ");
        }
    }
    text.push_str(&fields.message);
    for (name, value) in fields.rest.iter().filter(|(name, _)| !is_implied(name)) {
        let _ = match value.as_str() {
            Some(words) => write!(text, ", {name}: {words}"),
            None => write!(text, ", {name}: {value}"),
        };
    }
    text
}

/// Returns whether the logger's name contains the field.
fn is_implied(name: &str) -> bool {
    name == "launcher"
}

fn object(entry: &LogEntry) -> Value {
    let fields = &entry.fields;
    let mut object = Map::new();
    object.insert(
        "timestamp".to_owned(),
        json!(entry.time.timestamp().to_string()),
    );
    object.insert("level".to_owned(), json!(level(entry.level)));
    object.insert("logger".to_owned(), json!(entry.logger));
    object.insert("message".to_owned(), json!(fields.message));
    for (name, id) in [
        ("event_id", &fields.event),
        ("node_request", &fields.request),
        ("node", &fields.node),
    ] {
        if let Some(id) = id {
            object.insert(name.to_owned(), json!(id));
        }
    }
    let rest = fields.rest.iter();
    let rest: Map<String, Value> = rest
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    if !rest.is_empty() {
        object.insert("fields".to_owned(), Value::Object(rest));
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(message: &str) -> LogEntry {
        LogEntry {
            time: "2024-01-31T12:00:00.123456[UTC]".parse().unwrap(),
            level: Level::WARN,
            logger: "nodepool.NodePool".to_owned(),
            fields: LogFields {
                message: message.to_owned(),
                event: Some("e1".to_owned()),
                request: Some("200-0000000001".to_owned()),
                node: Some("0000000002".to_owned()),
                rest: vec![("pool", "main".into()), ("count", 3.into())],
            },
        }
    }

    #[test]
    fn lines_have_nodepools_format() {
        assert_eq!(
            LogFormat::default().render(&entry("one\ntwo")),
            "2024-01-31 12:00:00,123 WARNING nodepool.NodePool: \
             [e: e1] [node_request: 200-0000000001] [node: 0000000002] one\n\
             2024-01-31 12:00:00,123 WARNING nodepool.NodePool:   two, pool: main, count: 3\n"
        );
    }

    #[test]
    fn the_ids_are_fields_in_json() {
        let line = LogFormat::Json.render(&entry("one\ntwo"));
        assert_eq!(line.matches('\n').count(), 1);
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            object,
            json!({
                "timestamp": "2024-01-31T12:00:00.123456Z", "level": "WARNING", "logger": "nodepool.NodePool",
                "message": "one\ntwo", "event_id": "e1", "node_request": "200-0000000001",
                "node": "0000000002", "fields": {"pool": "main", "count": 3},
            })
        );
    }

    #[test]
    fn python_formats_are_supported_or_rejected() {
        let date_format = Some("%H:%M".to_owned());
        let format = "%(asctime)s|%(levelname)-9s|%(name)s%%";
        let template = LineTemplate::parse(format, date_format, false).unwrap();
        assert_eq!(
            LogFormat::Text(template).render(&entry("")),
            "12:00|WARNING  |nodepool.NodePool%\n"
        );
        for format in ["%(lineno)d", "%(message)", "%d", "%(message"] {
            assert!(
                LineTemplate::parse(format, None, false).is_err(),
                "{format}"
            );
        }
    }
}
