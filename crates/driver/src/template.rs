//! Templates in the part of Python's format syntax that refers to fields. Those of the `dynamic-*` keys refer to a request.
//!
//! `{request.tenant_name}` is replaced, `{{` and `}}` are braces, and `[…]` selects an entry of a list or a
//! mapping. Values have Python's format. Conversions and format specifications are errors.

use nodeyard_model::Label;
use serde_json::Value;

use crate::order::RequestAttributes;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("a brace is not closed; a brace that stands for itself is doubled")]
    Unclosed,
    #[error("a brace is closed that was not opened; a brace that stands for itself is doubled")]
    Unopened,
    #[error("`{{{field}}}` is not a part of a request such as `{{request.tenant_name}}`")]
    UnknownField { field: String },
}

/// Renders `template` for a request.
pub fn render(template: &str, request: &RequestAttributes) -> Result<String, TemplateError> {
    fill(template, |field| {
        let mut text = String::new();
        write_value(&mut text, &lookup(field, request)?, Quotes::No);
        Some(text)
    })
}

/// Renders `template` with the values that `value` returns for its fields. A field without value is an error.
pub fn fill(
    template: &str,
    value: impl Fn(&str) -> Option<String>,
) -> Result<String, TemplateError> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        let (text, brace) = rest.split_at(at);
        out.push_str(text);
        if let Some(after) = brace.strip_prefix("{{") {
            out.push('{');
            rest = after;
        } else if let Some(after) = brace.strip_prefix("}}") {
            out.push('}');
            rest = after;
        } else if let Some(after) = brace.strip_prefix('{') {
            let (field, after) = after.split_once('}').ok_or(TemplateError::Unclosed)?;
            let text = value(field).ok_or_else(|| TemplateError::UnknownField {
                field: field.chars().take(60).collect(),
            })?;
            out.push_str(&text);
            rest = after;
        } else {
            return Err(TemplateError::Unopened);
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn lookup(field: &str, request: &RequestAttributes) -> Option<Value> {
    let path = field.strip_prefix("request.")?;
    let (name, mut keys) = path.split_at(path.find('[').unwrap_or(path.len()));
    let mut value = attribute(name, request)?;
    while !keys.is_empty() {
        let (key, after) = keys.strip_prefix('[')?.split_once(']')?;
        value = match &value {
            Value::Array(list) => list.get(key.parse::<usize>().ok()?)?.clone(),
            Value::Object(map) => map.get(key)?.clone(),
            _ => return None,
        };
        keys = after;
    }
    Some(value)
}

fn attribute(name: &str, request: &RequestAttributes) -> Option<Value> {
    fn text(value: Option<impl ToString>) -> Value {
        value.map_or(Value::Null, |value| Value::String(value.to_string()))
    }
    Some(match name {
        "id" => text(request.id),
        "labels" => request.labels.iter().map(Label::as_str).collect(),
        "requestor" => text(request.requestor.as_ref()),
        "requestor_data" => request.requestor_data.decode().ok()?,
        "relative_priority" => request.relative_priority.into(),
        "event_id" => text(request.event_id.as_ref()),
        "created_time" => request
            .created_time
            .map_or(Value::Null, |t| t.as_secs().into()),
        "tenant_name" => text(request.tenant_name.as_ref()),
        _ => return None,
    })
}

#[derive(Clone, Copy)]
enum Quotes {
    Yes,
    No,
}

fn write_value(out: &mut String, value: &Value, quotes: Quotes) {
    match (value, quotes) {
        (Value::Null, _) => out.push_str("None"),
        (Value::Bool(true), _) => out.push_str("True"),
        (Value::Bool(false), _) => out.push_str("False"),
        (Value::Number(number), _) => out.push_str(&number.to_string()),
        (Value::String(text), Quotes::No) => out.push_str(text),
        (Value::String(text), Quotes::Yes) => write_quoted(out, text),
        (Value::Array(list), _) => {
            out.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_value(out, item, Quotes::Yes);
            }
            out.push(']');
        }
        (Value::Object(map), _) => {
            out.push('{');
            for (index, (key, item)) in map.iter().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_quoted(out, key);
                out.push_str(": ");
                write_value(out, item, Quotes::Yes);
            }
            out.push('}');
        }
    }
}

fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str(r"\\"),
            '\n' => out.push_str(r"\n"),
            char if char == quote => {
                out.push('\\');
                out.push(char);
            }
            char => out.push(char),
        }
    }
    out.push(quote);
}

#[cfg(test)]
mod tests {
    use nodeyard_model::Opaque;
    use serde_json::json;

    use super::*;

    fn request() -> RequestAttributes {
        RequestAttributes {
            id: Some("200-0000000042".parse().unwrap()),
            labels: vec!["small".into(), "it's".into()],
            requestor_data: Opaque::encode(&json!({"build": "b1", "ok": true})).unwrap(),
            tenant_name: Some("acme".into()),
            ..RequestAttributes::default()
        }
    }

    #[test]
    fn fields_are_written_as_python_writes_them() {
        for (template, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("{request.tenant_name}-x", "acme-x"),
            ("{request.id}", "200-0000000042"),
            ("{request.requestor}", "None"),
            ("{request.relative_priority}", "0"),
            ("{request.labels}", r#"['small', "it's"]"#),
            ("{request.labels[0]}", "small"),
            ("{request.requestor_data[build]}", "b1"),
            ("{request.requestor_data}", "{'build': 'b1', 'ok': True}"),
            ("{{{request.tenant_name}}}", "{acme}"),
        ] {
            assert_eq!(
                render(template, &request()).as_deref(),
                Ok(expected),
                "{template}"
            );
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for bad in [
            "{",
            "}",
            "{request.tenant_name",
            "{}",
            "{request}",
            "{request.nothing}",
            "{request.labels[9]}",
            "{request.labels[x}",
            "{request.id:>9}",
            "{request.id!r}",
            "{request.__class__}",
            "{label.name}",
        ] {
            assert!(render(bad, &request()).is_err(), "{bad}");
        }
    }
}
