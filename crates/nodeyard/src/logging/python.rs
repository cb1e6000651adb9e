//! Reads logging configurations of Python.
//!
//! `.yaml`, `.yml` and `.json` files are `dictConfig` documents, all others `fileConfig` sections. Levels, loggers,
//! propagation, formats, standard output, standard error and files are supported. Rotating handlers become plain files,
//! which are reopened after another program has rotated them. Anything else is refused, because lines would be lost
//! silently. The formatter class `nodeyard.json` writes JSON.

mod ini;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use serde_json::{Map, Value};

use super::format::{LineTemplate, LogFormat};
use super::routing::{LogHandler, LogRouting, Logger};
use super::sink::Sink;

pub(super) fn read(path: &Path) -> anyhow::Result<LogRouting> {
    let reading = || {
        format!(
            "failed to load the logging configuration {}",
            path.display()
        )
    };
    let text = std::fs::read_to_string(path).with_context(reading)?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    let document = match extension {
        Some("json") => serde_json::from_str(&text).with_context(reading)?,
        Some("yaml" | "yml") => nodeyard_config::yaml_to_json(&text)
            .map_err(anyhow::Error::msg)
            .with_context(reading)?,
        _ => ini::document(&text).with_context(reading)?,
    };
    plan(&document).with_context(reading)
}

/// Reads a `dictConfig` document.
fn plan(document: &Value) -> anyhow::Result<LogRouting> {
    let document = document.as_object().context("expected a mapping")?;
    ensure!(
        !document.contains_key("filters"),
        "`filters` are not supported, because they are Python code; set levels instead"
    );
    let mut formats = BTreeMap::new();
    for (name, formatter) in section(document, "formatters")? {
        let form = form(formatter).with_context(|| format!("formatter {name:?}"))?;
        formats.insert(name.as_str(), form);
    }
    let mut plan = LogRouting::default();
    let mut indices = BTreeMap::new();
    let handlers = section(document, "handlers")?;
    for (name, described) in &handlers {
        let handler = handler(described, &formats).with_context(|| format!("handler {name:?}"))?;
        if let Some(handler) = handler {
            indices.insert(name.as_str(), plan.handlers.len());
            plan.handlers.push(handler);
        }
    }
    let mut loggers: Vec<(&str, &Map<String, Value>)> = Vec::new();
    for (name, described) in section(document, "loggers")? {
        loggers.push((name, described));
    }
    if let Some(root) = document.get("root") {
        loggers.push(("", root.as_object().context("`root` is not a mapping")?));
    }
    for (name, described) in loggers {
        let logger =
            logger(described, &handlers, &indices).with_context(|| format!("logger {name:?}"))?;
        plan.loggers.insert(name.to_owned(), logger);
    }
    ensure!(
        !plan.loggers.is_empty(),
        "no logger is configured, so nothing would be logged; add at least `root`"
    );
    Ok(plan)
}

type SectionEntries<'a> = Vec<(&'a String, &'a Map<String, Value>)>;

fn section<'a>(document: &'a Map<String, Value>, name: &str) -> anyhow::Result<SectionEntries<'a>> {
    let Some(section) = document.get(name).filter(|section| !section.is_null()) else {
        return Ok(Vec::new());
    };
    let section = section
        .as_object()
        .with_context(|| format!("`{name}` is not a mapping"))?;
    let entries = section.iter().map(|(key, entry)| {
        let entry = entry
            .as_object()
            .with_context(|| format!("{key:?} in `{name}` is not a mapping"))?;
        Ok((key, entry))
    });
    entries.collect()
}

fn text<'a>(entry: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    entry.get(key).and_then(Value::as_str)
}

/// Returns the last component of a class name.
fn class(entry: &Map<String, Value>) -> &str {
    let class = text(entry, "class").or_else(|| text(entry, "()"));
    let class = class.unwrap_or_default();
    class.rsplit('.').next().unwrap_or(class)
}

fn form(formatter: &Map<String, Value>) -> anyhow::Result<LogFormat> {
    if text(formatter, "class").or_else(|| text(formatter, "()")) == Some("nodeyard.json") {
        return Ok(LogFormat::Json);
    }
    let prefix_all_lines = match class(formatter) {
        "" | "Formatter" => false,
        "MultiLineFormatter" => true,
        other => bail!(
            "unsupported formatter class {other:?}; use logging.Formatter, \
             nodepool.logconfig.MultiLineFormatter or nodeyard.json"
        ),
    };
    let style = text(formatter, "style").unwrap_or("%");
    ensure!(
        style == "%",
        "style {style:?} is not supported; write %(name)s"
    );
    let format = text(formatter, "format").unwrap_or("%(message)s");
    let date_format = text(formatter, "datefmt").filter(|date_format| !date_format.is_empty());
    let template =
        LineTemplate::parse(format, date_format.map(ToOwned::to_owned), prefix_all_lines)?;
    Ok(LogFormat::Text(template))
}

/// Reads a handler; None for one that writes nothing.
fn handler(
    described: &Map<String, Value>,
    formats: &BTreeMap<&str, LogFormat>,
) -> anyhow::Result<Option<LogHandler>> {
    let sink = match class(described) {
        "NullHandler" => return Ok(None),
        "StreamHandler" => match text(described, "stream") {
            None | Some("ext://sys.stderr" | "sys.stderr") => Sink::Stderr,
            Some("ext://sys.stdout" | "sys.stdout") => Sink::Stdout,
            Some(other) => {
                bail!("unsupported stream {other:?}; use ext://sys.stdout or ext://sys.stderr")
            }
        },
        "FileHandler"
        | "WatchedFileHandler"
        | "RotatingFileHandler"
        | "TimedRotatingFileHandler" => {
            let file = text(described, "filename").context("missing `filename`")?;
            Sink::file(Path::new(file))?
        }
        other => {
            bail!("unsupported handler class {other:?}; use StreamHandler or WatchedFileHandler")
        }
    };
    let form = match text(described, "formatter") {
        Some(name) => formats
            .get(name)
            .with_context(|| format!("no formatter {name:?}"))?
            .clone(),
        None => LogFormat::Text(LineTemplate::parse("%(message)s", None, false)?),
    };
    Ok(Some(LogHandler {
        level: level(described)?.unwrap_or(0),
        form,
        sink,
    }))
}

fn logger(
    described: &Map<String, Value>,
    handlers: &[(&String, &Map<String, Value>)],
    indices: &BTreeMap<&str, usize>,
) -> anyhow::Result<Logger> {
    let named = described.get("handlers").and_then(Value::as_array);
    let mut own = Vec::new();
    for name in named.into_iter().flatten() {
        let name = name.as_str().unwrap_or_default();
        let known = handlers.iter().any(|(handler, _)| *handler == name);
        ensure!(known, "no handler {name:?}");
        own.extend(indices.get(name));
    }
    Ok(Logger {
        level: level(described)?,
        handlers: own,
        propagate: described
            .get("propagate")
            .is_none_or(|propagate| propagate != false && propagate != 0),
    })
}

/// Reads a level; None for NOTSET, or if it is missing.
fn level(entry: &Map<String, Value>) -> anyhow::Result<Option<u32>> {
    let Some(level) = entry.get("level").filter(|level| !level.is_null()) else {
        return Ok(None);
    };
    if let Some(number) = level.as_u64() {
        return Ok(u32::try_from(number).ok().filter(|number| *number > 0));
    }
    Ok(Some(match level.as_str().unwrap_or_default() {
        "DEBUG" => 10,
        "INFO" => 20,
        "WARNING" | "WARN" => 30,
        "ERROR" => 40,
        "CRITICAL" | "FATAL" => 50,
        "NOTSET" | "" => return Ok(None),
        other => bail!("unknown level {other:?}"),
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The example in the documentation of Zuul and Nodepool.
    #[test]
    fn a_typical_configuration_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("nodepool.log");
        let document = json!({
            "version": 1,
            "disable_existing_loggers": false,
            "formatters": {"simple": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
            "handlers": {
                "console": {"class": "logging.StreamHandler", "formatter": "simple", "stream": "ext://sys.stdout"},
                "file": {"class": "logging.handlers.TimedRotatingFileHandler", "level": "INFO",
                         "formatter": "simple", "filename": log, "when": "midnight", "backupCount": 30},
            },
            "loggers": {
                "nodepool": {"handlers": ["file"], "level": "DEBUG"},
                "kazoo": {"handlers": ["console"], "level": "WARNING", "propagate": false},
            },
            "root": {"handlers": ["console"], "level": "WARNING"},
        });
        let plan = plan(&document).unwrap();
        assert_eq!(plan.handlers.len(), 2);
        assert!(log.exists());
        let nodepool = &plan.loggers["nodepool"];
        assert_eq!((nodepool.level, nodepool.propagate), (Some(10), true));
        assert_eq!(plan.loggers[""].level, Some(30));
        assert!(!plan.loggers["kazoo"].propagate);
    }

    #[test]
    fn unsupported_settings_are_rejected_by_name() {
        let refused = |document: Value| format!("{:#}", plan(&document).unwrap_err());
        let with_handler = |class: &str| json!({"handlers": {"h": {"class": class}}, "root": {}});
        assert!(refused(with_handler("logging.handlers.SysLogHandler")).contains("SysLogHandler"));
        assert!(refused(json!({"root": {"handlers": ["none"]}})).contains("\"none\""));
        assert!(refused(json!({"root": {"level": "LOUD"}})).contains("LOUD"));
        assert!(refused(json!({"filters": {}, "root": {}})).contains("filters"));
        assert!(refused(json!({})).contains("no logger"));
        assert!(refused(json!([])).contains("mapping"));
    }

    #[test]
    fn all_three_kinds_of_file_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            read(&path)
        };
        let yaml = "version: 1\nhandlers: {c: {class: logging.StreamHandler}}\nroot: {level: INFO, handlers: [c]}\n";
        let json = r#"{"handlers": {"c": {"class": "logging.StreamHandler"}}, "root": {"level": "INFO", "handlers": ["c"]}}"#;
        let ini = "[loggers]\nkeys=root,zk\n[handlers]\nkeys=c\n[formatters]\nkeys=f\n\
                   [logger_root]\nlevel=INFO\nhandlers=c\n\
                   [logger_zk]\nqualname=nodepool.zk\nlevel=ERROR\nhandlers=\npropagate=0\n\
                   [handler_c]\nclass=StreamHandler\nformatter=f\nargs=(sys.stdout,)\n\
                   [formatter_f]\nformat=%(levelname)s %(message)s\n";
        for plan in [
            write("a.yaml", yaml),
            write("a.json", json),
            write("a.conf", ini),
        ] {
            let plan = plan.unwrap();
            assert_eq!(plan.loggers[""].level, Some(20));
            assert_eq!(plan.handlers.len(), 1);
        }
        let plan = write("a.conf", ini).unwrap();
        assert!(!plan.loggers["nodepool.zk"].propagate);
        assert!(matches!(plan.handlers[0].sink, Sink::Stdout));
        assert!(write("b.yaml", "a: [").is_err());
    }
}
