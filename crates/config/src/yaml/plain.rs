//! YAML as JSON: for readers that only want to know what it says, and for data that is handed on.

use serde_json::{Number, Value as Json};

use super::{Kind, Node, Value, parse};
use crate::source::Span;

/// A document as JSON; an empty one is null. The error names the line.
pub fn yaml_to_json(text: &str) -> Result<Json, String> {
    let wrong = |span: Span, message: &str| {
        let before = text.get(..span.start as usize).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        format!("line {line}: {message}")
    };
    // Of two equal keys the last one counts, as in PyYAML.
    let mut doubts = Vec::new();
    let document = parse(text, 0, &mut doubts);
    let document = document.map_err(|problem| wrong(problem.span, &problem.message))?;
    let mut problem = None;
    let json = document.map_or(Json::Null, |node| {
        node.to_json(&mut |span, message| {
            problem.get_or_insert_with(|| wrong(span, message));
        })
    });
    problem.map_or(Ok(json), Err)
}

impl Node {
    /// Numbers that JSON does not have, or not exactly, are told to `problem`, and missing from the result. The recursion
    /// is as deep as the tree, which is limited.
    pub(crate) fn to_json(&self, problem: &mut impl FnMut(Span, &str)) -> Json {
        let mut number = |number: Option<Number>, message| match number {
            Some(number) => Json::Number(number),
            None => {
                problem(self.span, message);
                Json::Null
            }
        };
        match &self.value {
            Value::Scalar(scalar) => match scalar.kind {
                Kind::Null => Json::Null,
                Kind::Bool(value) => value.into(),
                Kind::Int(value) => number(
                    Number::from_i128(value),
                    "this number has more than 64 bits, and would lose digits",
                ),
                Kind::Float(value) => number(
                    Number::from_f64(value),
                    "JSON, as which this is handed on, has no such number",
                ),
                Kind::Text => scalar.text.as_str().into(),
            },
            Value::List(items) => items.iter().map(|item| item.to_json(problem)).collect(),
            Value::Map(map) => {
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
    fn a_document_says_what_it_says() {
        let text = "a: &x [1, yes, text]\nb: *x\nc:\n";
        let expected =
            serde_json::json!({"a": [1, true, "text"], "b": [1, true, "text"], "c": null});
        assert_eq!(yaml_to_json(text).unwrap(), expected);
        assert_eq!(yaml_to_json("").unwrap(), Json::Null);
        assert!(yaml_to_json("a: 1\nb: [").unwrap_err().starts_with("line "));
    }

    #[test]
    fn numbers_keep_their_digits_or_are_refused() {
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
