//! How an entry looks: a line in the format of Python's logging, or a JSON object.

use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use jiff::Zoned;
use jiff::fmt::strtime;
use serde_json::{Map, Value, json};
use tracing::Level;

use super::entry::{Entry, Facts};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Form {
    Text(Template),
    /// One object per line, with the ids as fields of their own.
    Json,
}

impl Default for Form {
    fn default() -> Self {
        Self::Text(Template::default())
    }
}

impl Form {
    /// With a line feed at the end.
    pub(super) fn render(&self, entry: &Entry) -> String {
        match self {
            Self::Text(template) => template.render(entry),
            Self::Json => format!("{}\n", object(entry)),
        }
    }
}

/// A format string of Python's logging.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Template {
    pieces: Vec<Piece>,
    /// How times are written; none for `2024-01-31 12:00:00,123`.
    dates: Option<String>,
    /// Further lines of a message look like the first, and are indented.
    lines_alike: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    Fact {
        what: What,
        width: usize,
        left: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    Time,
    Level,
    Logger,
    Message,
    Process,
    Thread,
}

impl Default for Template {
    /// Nodepool's own.
    fn default() -> Self {
        let fact = |what| Piece::Fact {
            what,
            width: 0,
            left: false,
        };
        let text = |text: &str| Piece::Text(text.to_owned());
        Self {
            pieces: vec![
                fact(What::Time),
                text(" "),
                fact(What::Level),
                text(" "),
                fact(What::Logger),
                text(": "),
                fact(What::Message),
            ],
            dates: None,
            lines_alike: true,
        }
    }
}

impl Template {
    /// From `%(asctime)s %(levelname)-5s` and the like.
    pub(super) fn parse(
        format: &str,
        dates: Option<String>,
        lines_alike: bool,
    ) -> anyhow::Result<Self> {
        if let Some(dates) = &dates {
            strtime::format(dates, &Zoned::default())
                .with_context(|| format!("datefmt {dates:?} cannot be used"))?;
        }
        let mut pieces = Vec::new();
        let mut rest = format;
        while let Some((text, after)) = rest.split_once('%') {
            pieces.push(Piece::Text(text.to_owned()));
            if let Some(after) = after.strip_prefix('%') {
                pieces.push(Piece::Text("%".to_owned()));
                rest = after;
                continue;
            }
            let named = after
                .strip_prefix('(')
                .and_then(|after| after.split_once(')'));
            let Some((name, after)) = named else {
                bail!("format {format:?} has a % that is neither %(name)s nor %%");
            };
            let end = after.find(|c: char| !(c.is_ascii_digit() || c == '-'));
            let (size, after) = after.split_at(end.unwrap_or(after.len()));
            if !after.starts_with(['s', 'd']) {
                bail!("format {format:?} has a %({name}) without s or d after it");
            }
            pieces.push(Piece::Fact {
                what: What::named(name).with_context(|| {
                    format!(
                        "format {format:?} asks for {name:?}, which log entries do not have here"
                    )
                })?,
                left: size.starts_with('-'),
                width: size.trim_start_matches('-').parse().unwrap_or(0),
            });
            rest = after.get(1..).unwrap_or_default();
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Self {
            pieces,
            dates,
            lines_alike,
        })
    }

    fn render(&self, entry: &Entry) -> String {
        let message = message(&entry.facts);
        if !self.lines_alike {
            return self.line(entry, &message);
        }
        let mut lines = message.split('\n');
        let mut text = self.line(entry, lines.next().unwrap_or_default());
        for line in lines {
            text.push_str(&self.line(entry, &format!("  {line}")));
        }
        text
    }

    fn line(&self, entry: &Entry, message: &str) -> String {
        let mut line = String::with_capacity(message.len() + 64);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => line.push_str(text),
                Piece::Fact { what, width, left } => {
                    let fact = match what {
                        What::Time => self.time(&entry.time),
                        What::Level => level(entry.level).to_owned(),
                        What::Logger => entry.logger.clone(),
                        What::Message => message.to_owned(),
                        What::Process => std::process::id().to_string(),
                        What::Thread => {
                            let thread = std::thread::current();
                            thread.name().unwrap_or("worker").to_owned()
                        }
                    };
                    // Writing to a string cannot fail.
                    let _ = if *left {
                        write!(line, "{fact:<width$}")
                    } else {
                        write!(line, "{fact:>width$}")
                    };
                }
            }
        }
        line.push('\n');
        line
    }

    fn time(&self, time: &Zoned) -> String {
        let format = self.dates.as_deref().unwrap_or("%Y-%m-%d %H:%M:%S,%3f");
        strtime::format(format, time).unwrap_or_else(|_| time.to_string())
    }
}

impl What {
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

/// In Python's words.
fn level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "ERROR",
        Level::WARN => "WARNING",
        Level::INFO => "INFO",
        Level::DEBUG | Level::TRACE => "DEBUG",
    }
}

/// With the ids in front, as Nodepool writes them, and everything else behind.
fn message(facts: &Facts) -> String {
    let mut text = String::new();
    for (name, id) in [
        ("e", &facts.event),
        ("node_request", &facts.request),
        ("node", &facts.node),
    ] {
        if let Some(id) = id {
            let _ = write!(text, "[{name}: {id}] ");
        }
    }
    text.push_str(&facts.message);
    for (name, value) in facts.others.iter().filter(|(name, _)| !is_implied(name)) {
        let _ = match value.as_str() {
            Some(words) => write!(text, ", {name}: {words}"),
            None => write!(text, ", {name}: {value}"),
        };
    }
    text
}

/// The name of the logger says it.
fn is_implied(name: &str) -> bool {
    name == "launcher"
}

fn object(entry: &Entry) -> Value {
    let facts = &entry.facts;
    let mut object = Map::new();
    object.insert(
        "timestamp".to_owned(),
        json!(entry.time.timestamp().to_string()),
    );
    object.insert("level".to_owned(), json!(level(entry.level)));
    object.insert("logger".to_owned(), json!(entry.logger));
    object.insert("message".to_owned(), json!(facts.message));
    for (name, id) in [
        ("event_id", &facts.event),
        ("node_request", &facts.request),
        ("node", &facts.node),
    ] {
        if let Some(id) = id {
            object.insert(name.to_owned(), json!(id));
        }
    }
    let others = facts.others.iter();
    let others: Map<String, Value> = others
        .map(|(name, value)| ((*name).to_owned(), value.clone()))
        .collect();
    if !others.is_empty() {
        object.insert("fields".to_owned(), Value::Object(others));
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(message: &str) -> Entry {
        Entry {
            time: "2024-01-31T12:00:00.123456[UTC]".parse().unwrap(),
            level: Level::WARN,
            logger: "nodepool.NodePool".to_owned(),
            facts: Facts {
                message: message.to_owned(),
                event: Some("e1".to_owned()),
                request: Some("200-0000000001".to_owned()),
                node: Some("0000000002".to_owned()),
                others: vec![("pool", "main".into()), ("count", 3.into())],
            },
        }
    }

    #[test]
    fn a_line_is_as_nodepool_writes_it() {
        assert_eq!(
            Form::default().render(&entry("one\ntwo")),
            "2024-01-31 12:00:00,123 WARNING nodepool.NodePool: \
             [e: e1] [node_request: 200-0000000001] [node: 0000000002] one\n\
             2024-01-31 12:00:00,123 WARNING nodepool.NodePool:   two, pool: main, count: 3\n"
        );
    }

    #[test]
    fn the_ids_are_fields_in_json() {
        let line = Form::Json.render(&entry("one\ntwo"));
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
    fn formats_of_python_are_followed_or_refused() {
        let dates = Some("%H:%M".to_owned());
        let format = "%(asctime)s|%(levelname)-9s|%(name)s%%";
        let template = Template::parse(format, dates, false).unwrap();
        assert_eq!(
            Form::Text(template).render(&entry("")),
            "12:00|WARNING  |nodepool.NodePool%\n"
        );
        for format in ["%(lineno)d", "%(message)", "%d", "%(message"] {
            assert!(Template::parse(format, None, false).is_err(), "{format}");
        }
    }
}
