//! YAML for readers that only want to know what it says.

use serde_json::Value as Json;

use super::{Kind, Node, Value, parse};

/// A document as JSON; an empty one is null. The error names the line.
pub fn yaml_to_json(text: &str) -> Result<Json, String> {
    // Of two equal keys the last one counts, as in PyYAML.
    let mut doubts = Vec::new();
    match parse(text, 0, &mut doubts) {
        Ok(document) => Ok(document.map_or(Json::Null, |node| json(&node))),
        Err(problem) => {
            let before = text.get(..problem.span.start as usize).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            Err(format!("line {line}: {}", problem.message))
        }
    }
}

fn json(node: &Node) -> Json {
    match &node.value {
        Value::List(items) => items.iter().map(|item| json(item)).collect(),
        Value::Map(map) => {
            let entries = map.entries.iter();
            let entries = entries.map(|entry| (entry.key.clone(), json(&entry.value)));
            Json::Object(entries.collect())
        }
        Value::Scalar(scalar) => match scalar.kind {
            Kind::Null => Json::Null,
            Kind::Bool(value) => value.into(),
            Kind::Int(value) => value.into(),
            Kind::Float(value) => value.into(),
            Kind::Text => scalar.text.as_str().into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_says_what_it_says() {
        let text = "a: &x [1, yes, text]\nb: *x\nc:\n";
        let expected =
            serde_json::json!({"a": [1, true, "text"], "b": [1, true, "text"], "c": null});
        assert_eq!(yaml_to_json(text).unwrap(), expected);
        assert_eq!(yaml_to_json("").unwrap(), Json::Null);
        assert!(yaml_to_json("a: 1\nb: [").unwrap_err().starts_with("line "));
    }
}
