//! JSON that compares independently of order and white space, but with the exact text of numbers.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.trim();
        match text.as_bytes()[0] {
            b'n' => Self::Null,
            b't' | b'f' => Self::Bool(serde_json::from_str(text).unwrap()),
            b'"' => Self::Text(serde_json::from_str(text).unwrap()),
            b'[' => {
                let items: Vec<&RawValue> = serde_json::from_str(text).unwrap();
                Self::List(items.into_iter().map(|i| Self::parse(i.get())).collect())
            }
            b'{' => {
                let entries: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).unwrap();
                Self::Object(
                    entries
                        .into_iter()
                        .map(|(key, value)| (key, Self::parse(value.get())))
                        .collect(),
                )
            }
            _ => Self::Number(text.to_owned()),
        }
    }

    /// The keys of a record.
    pub(crate) fn record(data: &[u8]) -> BTreeMap<String, Self> {
        match Self::parse(std::str::from_utf8(data).unwrap()) {
            Self::Object(keys) => keys,
            other => panic!("not an object: {other:?}"),
        }
    }
}
