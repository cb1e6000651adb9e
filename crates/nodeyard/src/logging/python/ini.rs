//! Converts `fileConfig` sections to an equivalent `dictConfig` document.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

type Sections = BTreeMap<String, BTreeMap<String, String>>;

pub(super) fn document(text: &str) -> anyhow::Result<Value> {
    let sections = sections(text)?;
    let mut formatters = Map::new();
    for (name, section) in named(&sections, "formatter")? {
        formatters.insert(name, json!(section));
    }
    let mut handlers = Map::new();
    for (name, section) in named(&sections, "handler")? {
        handlers.insert(name, handler(section));
    }
    let mut loggers = Map::new();
    let mut root = Value::Null;
    for (name, section) in named(&sections, "logger")? {
        let mut logger = Map::new();
        let own = section.get("handlers").map(String::as_str);
        logger.insert("handlers".to_owned(), json!(list(own.unwrap_or_default())));
        if let Some(level) = section.get("level") {
            logger.insert("level".to_owned(), json!(level));
        }
        if section
            .get("propagate")
            .is_some_and(|propagate| propagate == "0")
        {
            logger.insert("propagate".to_owned(), json!(false));
        }
        if name == "root" {
            root = Value::Object(logger);
        } else {
            let name = section.get("qualname").cloned().unwrap_or(name);
            loggers.insert(name, Value::Object(logger));
        }
    }
    let mut document = Map::from_iter([
        ("formatters".to_owned(), Value::Object(formatters)),
        ("handlers".to_owned(), Value::Object(handlers)),
        ("loggers".to_owned(), Value::Object(loggers)),
    ]);
    if !root.is_null() {
        document.insert("root".to_owned(), root);
    }
    Ok(Value::Object(document))
}

/// Returns the sections of a kind that are listed in the `keys` of its main section.
fn named<'a>(
    sections: &'a Sections,
    kind: &str,
) -> anyhow::Result<Vec<(String, &'a BTreeMap<String, String>)>> {
    let keys = sections.get(&format!("{kind}s"));
    let keys = keys.and_then(|section| section.get("keys"));
    let names = list(keys.map(String::as_str).unwrap_or_default());
    let found = names.into_iter().map(|name| {
        let section = sections
            .get(&format!("{kind}_{name}"))
            .with_context(|| format!("no section [{kind}_{name}]"))?;
        Ok((name.to_owned(), section))
    });
    found.collect()
}

/// Converts a handler. `args` is Python code; only a string or standard stream as first argument is supported.
fn handler(section: &BTreeMap<String, String>) -> Value {
    let mut handler = Map::new();
    for key in ["class", "level", "formatter"] {
        if let Some(value) = section.get(key) {
            handler.insert(key.to_owned(), json!(value));
        }
    }
    let args = section.get("args").map(String::as_str).unwrap_or_default();
    let first = args.trim().trim_start_matches('(').trim_start();
    if let Some(quote) = first.chars().next().filter(|c| matches!(c, '\'' | '"')) {
        let text = first.get(1..).and_then(|rest| rest.split(quote).next());
        handler.insert("filename".to_owned(), json!(text));
    } else {
        let end = first.find([',', ')']).unwrap_or(first.len());
        let stream = first.get(..end).unwrap_or_default().trim();
        if !stream.is_empty() {
            handler.insert("stream".to_owned(), json!(stream));
        }
    }
    Value::Object(handler)
}

fn list(text: &str) -> Vec<&str> {
    let items = text.split(',').map(str::trim);
    items.filter(|item| !item.is_empty()).collect()
}

fn sections(text: &str) -> anyhow::Result<Sections> {
    let mut sections = Sections::new();
    let mut current: Option<&mut BTreeMap<String, String>> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|line| line.strip_suffix(']'))
        {
            current = Some(sections.entry(name.to_owned()).or_default());
            continue;
        }
        let pair = line.split_once(['=', ':']);
        let (Some((key, value)), Some(section)) = (pair, current.as_deref_mut()) else {
            bail!("line {} is neither [section] nor key=value", index + 1);
        };
        section.insert(key.trim().to_owned(), value.trim().to_owned());
    }
    Ok(sections)
}
