//! Converts YAML to JSON.

use serde_json::{Number, Value as Json};

use super::{ScalarType, YamlNode, YamlValue, parse};
use crate::source::Span;

/// Parses a document as JSON; an empty one is null. Errors name the line.
pub fn yaml_to_json(text: &str) -> Result<Json, String> {
    let wrong = |span: Span, message: &str| {
        let before = text.get(..span.start as usize).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        format!("line {line}: {message}")
    };
    // Of duplicate keys the last one is used, as in PyYAML.
    let mut warnings = Vec::new();
    let document = parse(text, 0, &mut warnings);
    let document = document.map_err(|problem| wrong(problem.span, &problem.message))?;
    let mut problem = None;
    let json = document.map_or(Json::Null, |node| {
        node.to_json(&mut |span, message| {
            problem.get_or_insert_with(|| wrong(span, message));
        })
    });
    problem.map_or(Ok(json), Err)
}

impl YamlNode {
    /// Converts the node. Numbers that JSON cannot represent exactly are reported to `problem` and become null. The
    /// recursion is bounded by the depth of the tree.
    pub(crate) fn to_json(&self, problem: &mut impl FnMut(Span, &str)) -> Json {
        let mut number = |number: Option<Number>, message| match number {
            Some(number) => Json::Number(number),
            None => {
                problem(self.span, message);
                Json::Null
            }
        };
        match &self.value {
            YamlValue::Scalar(scalar) => match scalar.kind {
                ScalarType::Null => Json::Null,
                ScalarType::Bool(value) => value.into(),
                ScalarType::Int(value) => number(
                    Number::from_i128(value),
                    "this number has more than 64 bits, and would lose digits",
                ),
                ScalarType::Float(value) => {
                    number(Number::from_f64(value), "JSON cannot represent this number")
                }
                ScalarType::Text => scalar.text.as_str().into(),
            },
            YamlValue::List(items) => items.iter().map(|item| item.to_json(problem)).collect(),
            YamlValue::Map(map) => {
                let entries = map.entries.iter();
                let entries =
                    entries.map(|entry| (entry.key.clone(), entry.value.to_json(problem)));
                Json::Object(entries.collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_become_json() {
        let text = "a: &x [1, yes, text]\nb: *x\nc:\n";
        let expected =
            serde_json::json!({"a": [1, true, "text"], "b": [1, true, "text"], "c": null});
        assert_eq!(yaml_to_json(text).unwrap(), expected);
        assert_eq!(yaml_to_json("").unwrap(), Json::Null);
        assert!(yaml_to_json("a: 1\nb: [").unwrap_err().starts_with("line "));
    }

    #[test]
    fn numbers_are_exact_or_refused() {
        let all =
            yaml_to_json("[12345678901234567890, -9223372036854775808, 0xffff_ffff_ffff_ffff]");
        let expected = serde_json::json!([12_345_678_901_234_567_890_u64, i64::MIN, u64::MAX]);
        assert_eq!(all.unwrap(), expected);
        for number in [
            "18446744073709551616",
            "-9223372036854775809",
            ".inf",
            "-.inf",
            ".nan",
        ] {
            let error = yaml_to_json(&format!("a: 1\nb: [{number}]")).unwrap_err();
            assert!(error.starts_with("line 2: "), "{number}: {error}");
        }
    }
}
