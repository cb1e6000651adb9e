//! `image-filters`: conditions on the images of a cloud.
//!
//! Conditions that can never match are reported here, before a launch fails because of them.

use crate::decode::{Decoder, Strictness};
use crate::section::section;
use crate::yaml::{Map, YamlEntry, YamlNode, YamlValue};

section! {
    /// A condition on images; of those that meet all conditions the newest is used.
    pub struct ImageFilter (_outer: ()) {
        /// What to look at: `name`, `id`, `tag`, or a property.
        "name" | "Name" name: String = required;
        /// Values of which one must match; `*` is any text, `?` any character.
        "values" | "Values" values: Vec<String> = required;
    }
}

/// Reports conditions that are missing, empty, or (with strict rules) contradict each other.
pub(super) fn check_filters(
    filters: Option<&Vec<ImageFilter>>,
    map: &Map,
    decoder: &mut Decoder<'_>,
    strictness: Strictness,
) {
    let (Some(filters), Some(entry)) = (filters, map.set("image-filters")) else {
        return;
    };
    let YamlValue::List(nodes) = &entry.value.value else {
        return;
    };
    if nodes.is_empty() {
        let text = "without conditions no image is chosen".to_owned();
        decoder.report_with(strictness, "empty-list", entry.key_span, text);
    }
    let written: Vec<&Map> = nodes.iter().filter_map(|node| as_map(node)).collect();
    // Filters with errors have been reported; the remaining ones cannot be assigned to their nodes.
    if written.len() != filters.len() {
        return;
    }
    for (filter, map) in filters.iter().zip(&written) {
        let Some(values) = given(map, ["values", "Values"]) else {
            continue;
        };
        if filter.values.is_empty() {
            let text = "a filter without values matches nothing".to_owned();
            decoder.report_with(strictness, "empty-list", values.key_span, text);
        }
        if filter.name.is_empty()
            && let Some(name) = given(map, ["name", "Name"])
        {
            let text = "a filter has to name what it looks at".to_owned();
            decoder.report_with(strictness, "empty-text", name.value.span, text);
        }
    }
    if strictness == Strictness::Strict {
        check_pairs(filters, &written, decoder);
    }
}

/// Reports pairs of conditions that no image can meet: an image has one name, one id and one value per property.
fn check_pairs(filters: &[ImageFilter], written: &[&Map], decoder: &mut Decoder<'_>) {
    let looks_at = |filter: &ImageFilter| {
        let name = filter.name.as_str();
        name.strip_prefix("tag:").unwrap_or(name).to_owned()
    };
    for (index, (later, map)) in filters.iter().zip(written).enumerate() {
        if later.name == "tag" || later.values.is_empty() {
            continue;
        }
        let earlier = filters
            .iter()
            .zip(written)
            .take(index)
            .find(|(earlier, _)| {
                let of_same = looks_at(earlier) == looks_at(later) && !earlier.values.is_empty();
                let pair = |a: &String| later.values.iter().any(|b| Ends::of(a).fit(&Ends::of(b)));
                of_same && !earlier.values.iter().any(pair)
            });
        let (Some((_, other)), Some(values)) = (earlier, given(map, ["values", "Values"])) else {
            continue;
        };
        let text = format!(
            "no image can meet this and another condition on `{}`",
            later.name
        );
        if let Some(finding) = decoder.error("contradiction", values.key_span, text) {
            finding.label(other.head(), "the other condition is here");
            finding.help("values of which one is enough belong into one condition");
        }
    }
}

/// The literal prefix and suffix of a pattern.
struct Ends {
    head: String,
    tail: String,
    /// The pattern has no wildcard, so it matches one text only.
    whole: bool,
}

impl Ends {
    fn of(pattern: &str) -> Self {
        let mut head = String::new();
        let mut tail = String::new();
        let mut whole = true;
        let mut chars = pattern.chars();
        while let Some(char) = chars.next() {
            let char = match char {
                '*' | '?' => {
                    whole = false;
                    tail.clear();
                    continue;
                }
                '\\' => chars.next().unwrap_or('\\'),
                char => char,
            };
            if whole {
                head.push(char);
            }
            tail.push(char);
        }
        Self { head, tail, whole }
    }

    /// Returns false only if no text can match both.
    fn fit(&self, other: &Self) -> bool {
        let begins = self.head.starts_with(&other.head) || other.head.starts_with(&self.head);
        let ends = self.tail.ends_with(&other.tail) || other.tail.ends_with(&self.tail);
        match (self.whole, other.whole) {
            (true, true) => self.head == other.head,
            (true, false) => self.head.starts_with(&other.head) && self.head.ends_with(&other.tail),
            (false, true) => other.fit(self),
            (false, false) => begins && ends,
        }
    }
}

fn as_map(node: &YamlNode) -> Option<&Map> {
    match &node.value {
        YamlValue::Map(map) => Some(map),
        _ => None,
    }
}

fn given<'m>(map: &'m Map, keys: [&str; 2]) -> Option<&'m YamlEntry> {
    keys.into_iter().find_map(|key| map.set(key))
}

#[cfg(test)]
mod tests {
    use super::Ends;

    #[test]
    fn only_disjoint_patterns_contradict() {
        for (a, b, fits) in [
            ("jammy", "jammy", true),
            ("jammy", "noble", false),
            ("ubuntu-*", "ubuntu-24.04", true),
            ("ubuntu-*", "debian-12", false),
            ("*-amd64", "noble-arm64", false),
            ("ubuntu-*", "*-amd64", true),
            ("ubuntu-*", "debian-*", false),
            ("*-a", "*-b", false),
            ("*", "anything", true),
            ("a?", "ab", true),
            (r"a\*", "a*", true),
            (r"a\*", "ab", false),
        ] {
            assert_eq!(Ends::of(a).fit(&Ends::of(b)), fits, "{a} {b}");
            assert_eq!(Ends::of(b).fit(&Ends::of(a)), fits, "{b} {a}");
        }
    }
}
