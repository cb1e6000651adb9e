//! A record for printing: named values in a fixed order. The first one is its id.

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

/// A record for printing.
#[derive(Debug, Clone)]
pub(crate) struct RecordEntry(Vec<(&'static str, Value)>);

impl RecordEntry {
    pub(crate) fn new(fields: Vec<(&'static str, Value)>) -> Self {
        Self(fields)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let field = self.0.iter().find(|(name, _)| *name == key);
        field.map(|(_, value)| value)
    }

    pub(crate) fn push(&mut self, key: &'static str, value: Value) {
        self.0.push((key, value));
    }

    pub(crate) fn id(&self) -> &str {
        self.0
            .first()
            .and_then(|(_, id)| id.as_str())
            .unwrap_or_default()
    }

    pub(super) fn cells(&self, columns: &[&str]) -> Vec<String> {
        let cells = columns.iter().map(|column| {
            self.get(column)
                .map_or_else(String::new, |value| cell(column, value))
        });
        cells.collect()
    }

    /// Returns a line for each field.
    pub(crate) fn text(&self) -> String {
        let width = self.0.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
        let lines = self.0.iter().map(|(key, value)| {
            let name = key.replace('_', "-");
            format!("{name:<width$}  {}\n", cell(key, value))
        });
        lines.collect()
    }
}

impl Serialize for RecordEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

fn cell(key: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(seconds) if matches!(key, "age" | "oldest_wait") => {
            span(seconds.as_u64().unwrap_or(0))
        }
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => {
            let separator = match key {
                "trouble" => "; ",
                "quota" => ", ",
                _ => ",",
            };
            let items: Vec<String> = items.iter().map(|item| cell(key, item)).collect();
            items.join(separator)
        }
        Value::Object(amount) if key == "quota" => {
            let part = |name: &str| {
                amount
                    .get(name)
                    .map_or_else(String::new, |part| cell("", part))
            };
            let (used, resource) = (part("used"), part("resource"));
            match amount.get("limit") {
                None | Some(Value::Null) if used == "1" => {
                    format!("{used} {}", resource.trim_end_matches('s'))
                }
                None | Some(Value::Null) => format!("{used} {resource}"),
                Some(limit) => format!("{used}/{limit} {resource}"),
            }
        }
        other => other.to_string(),
    }
}

/// Formats a duration like kubectl: in the largest unit that fits.
pub(crate) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cells_are_formatted_and_documents_keep_the_values() {
        let entry = RecordEntry::new(vec![
            ("name", json!("a")),
            ("age", json!(7300)),
            ("labels", json!(["x", "y"])),
            ("paused", json!(false)),
            ("request", Value::Null),
            (
                "quota",
                json!([
                    {"resource": "servers", "used": 2, "limit": 4},
                    {"resource": "ram", "used": 9, "limit": null},
                ]),
            ),
        ]);
        assert_eq!(
            entry.cells(&["name", "age", "labels", "paused", "request", "quota"]),
            ["a", "2h", "x,y", "no", "-", "2/4 servers, 9 ram"]
        );
        let document = serde_json::to_string(&entry).unwrap();
        let beginning =
            r#"{"name":"a","age":7300,"labels":["x","y"],"paused":false,"request":null,"#;
        assert!(document.starts_with(beginning), "{document}");
    }
}
