//! Writes JSON values as YAML in block style, in the subset that YAML 1.1 and 1.2 share.
//!
//! A string is written plain only if it cannot be mistaken for another type; otherwise it is quoted like in JSON.

use std::fmt::Write as _;

use serde_json::Value;

/// Words that some parsers read as a boolean, null or a number.
const RESERVED: [&str; 12] = [
    "true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf", "infinity",
];

/// Returns a document, with a newline at the end.
pub(super) fn text(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Array(items) if !items.is_empty() => sequence(items, 0, &mut out),
        Value::Object(fields) if !fields.is_empty() => mapping(fields, 0, false, &mut out),
        scalar => {
            out.push_str(&flow(scalar));
            out.push('\n');
        }
    }
    out
}

fn indent(depth: usize, out: &mut String) {
    out.extend(std::iter::repeat_n("  ", depth));
}

fn sequence(items: &[Value], depth: usize, out: &mut String) {
    for item in items {
        indent(depth, out);
        match item {
            Value::Object(fields) if !fields.is_empty() => {
                out.push_str("- ");
                mapping(fields, depth + 1, true, out);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push_str("-\n");
                sequence(items, depth + 1, out);
            }
            scalar => {
                let _ = writeln!(out, "- {}", flow(scalar));
            }
        }
    }
}

/// Writes a mapping. `begun` means that the first line is already indented.
fn mapping(
    fields: &serde_json::Map<String, Value>,
    depth: usize,
    mut begun: bool,
    out: &mut String,
) {
    for (key, value) in fields {
        if !begun {
            indent(depth, out);
        }
        begun = false;
        out.push_str(&string(key));
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                out.push_str(":\n");
                mapping(fields, depth + 1, false, out);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push_str(":\n");
                sequence(items, depth + 1, out);
            }
            scalar => {
                let _ = writeln!(out, ": {}", flow(scalar));
            }
        }
    }
}

/// Returns a scalar or an empty collection on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        other => other.to_string(),
    }
}

fn string(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b))
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str());
    if plain {
        return text.to_owned();
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    for c in Value::from(text).to_string().chars() {
        match c {
            ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{2030}'..='\u{d7ff}' => quoted.push(c),
            c => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(quoted, "\\u{unit:04x}");
                }
            }
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::text;

    #[test]
    fn collections_are_blocks_and_ambiguous_strings_are_quoted() {
        let value = json!({
            "a": [], "b": {"c": [1, null, "no", "x: y"]}, "d": [{"e": "1", "f": true}, [2.5]], "g": "debian-12",
            "h": "200-0000000001", "i": "two\nlines\u{85}",
        });
        assert_eq!(
            text(&value),
            "a: []\nb:\n  c:\n    - 1\n    - null\n    - \"no\"\n    - \"x: y\"\nd:\n  - e: \"1\"\n    f: true\n  -\n    \
             - 2.5\ng: debian-12\nh: \"200-0000000001\"\ni: \"two\\nlines\\u0085\"\n"
        );
        assert_eq!(text(&json!([])), "[]\n");
    }
}
