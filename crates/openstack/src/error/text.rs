//! Extracts the message from an error response.
//!
//! Nova and Cinder have an object whose only key names the kind of error, Keystone has `error`, Neutron has
//! `NeutronError` with its own type, Glance has an HTML page, and proxies have other pages.

use serde_json::Value;

/// A longer text is cut.
const LONGEST: usize = 600;

/// The message of a response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceMessage {
    pub(crate) text: Option<Box<str>>,
    /// The type of the error, where it has one beside its text.
    kind: Option<Box<str>>,
}

impl ServiceMessage {
    pub(crate) fn read(body: &[u8]) -> Self {
        let body = String::from_utf8_lossy(body);
        match serde_json::from_str::<Value>(&body) {
            Ok(value) => Self::of_json(&value),
            Err(_) => Self {
                text: short(&plain(&body)),
                kind: None,
            },
        }
    }

    fn of_json(value: &Value) -> Self {
        let Value::Object(object) = value else {
            return Self {
                text: value.as_str().and_then(short),
                kind: None,
            };
        };
        // The message itself, or an object below a key that names the kind of error.
        let (kind, inner) = match object.iter().find(|(_, inner)| words(inner).is_some()) {
            Some((key, inner)) if object.get("message").is_none() => (Some(key.as_str()), inner),
            _ => (None, value),
        };
        let own = inner.get("type").and_then(Value::as_str);
        Self {
            text: words(inner).and_then(short),
            kind: own.or(kind).map(Into::into),
        }
    }

    /// Whether one of the words, in lower case, is in the text or the type.
    pub(crate) fn mentions(&self, words: &[&str]) -> bool {
        [&self.text, &self.kind].into_iter().flatten().any(|text| {
            let text = text.to_lowercase();
            words.iter().any(|word| text.contains(word))
        })
    }
}

fn words(value: &Value) -> Option<&str> {
    match value {
        Value::Object(object) => ["message", "detail", "title", "faultstring"]
            .into_iter()
            .find_map(|key| object.get(key)?.as_str().filter(|text| !text.is_empty())),
        Value::String(text) => Some(text),
        // Placement, and some proxies, have a list.
        Value::Array(errors) => errors.first().and_then(words),
        _ => None,
    }
}

fn short(text: &str) -> Option<Box<str>> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        return None;
    }
    Some(match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(&text)).into(),
        None => text.into(),
    })
}

/// Removes the markup of a page.
fn plain(page: &str) -> String {
    let mut text = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once('<') {
        text.push_str(before);
        // The head repeats the body, and styles are no text.
        let skipped = ["head", "style", "script"].into_iter().find_map(|name| {
            let inside = after.strip_prefix(name)?;
            inside
                .split_once(&format!("</{name}>"))
                .map(|(_, after)| after)
        });
        rest = match skipped {
            Some(after) => after,
            None => after.split_once('>').map_or("", |(_, after)| after),
        };
        text.push(' ');
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: &str) -> Option<String> {
        ServiceMessage::read(body.as_bytes()).text.map(Into::into)
    }

    #[test]
    fn each_service_has_its_own_shape() {
        for (body, expected) in [
            (
                r#"{"itemNotFound": {"code": 404, "message": "Flavor x could not be found."}}"#,
                "Flavor x could not be found.",
            ),
            (
                r#"{"error": {"code": 401, "message": "requires authentication", "title": "Unauthorized"}}"#,
                "requires authentication",
            ),
            (
                r#"{"NeutronError": {"type": "PortNotFound", "message": "Port x could not be found.", "detail": ""}}"#,
                "Port x could not be found.",
            ),
            (r#"{"NeutronError": "in old times"}"#, "in old times"),
            (
                "<html>\n <head>\n  <title>403 Forbidden</title>\n </head>\n <body>\n  <h1>403 Forbidden</h1>\n  Image x is not yours.<br /><br />\n </body>\n</html>",
                "403 Forbidden Image x is not yours.",
            ),
            (
                r#"{"errors": [{"status": 400, "detail": "no such trait"}]}"#,
                "no such trait",
            ),
            (
                r#"{"message": "from a gateway", "other": {"message": "no"}}"#,
                "from a gateway",
            ),
            ("upstream connect error", "upstream connect error"),
        ] {
            assert_eq!(text(body).as_deref(), Some(expected), "{body}");
        }
        for silent in ["", "  ", "{}", "null", "[1]", "<html></html>"] {
            assert_eq!(text(silent), None, "{silent:?}");
        }
    }

    #[test]
    fn the_type_of_an_error_counts() {
        let body = r#"{"NeutronError": {"type": "OverQuota", "message": "No."}}"#;
        assert!(ServiceMessage::read(body.as_bytes()).mentions(&["quota"]));
    }

    #[test]
    fn a_page_is_cut() {
        let long = "ä".repeat(5000);
        assert_eq!(text(&long).unwrap().chars().count(), LONGEST + 1);
        assert_eq!(text("<unclosed"), None);
    }
}
