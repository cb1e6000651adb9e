//! Excerpts of source lines with secrets hidden.
//!
//! Values of keys that are declared secret are hidden. Where decoding did not reach (a syntax error, a misspelt key), a
//! value is hidden if its key looks like that of a secret.

use std::ops::Range;

/// The maximum length of an excerpt.
const MAX_LENGTH: usize = 240;
/// How far around the mark secrets are searched for.
const NEARBY: usize = 4096;

/// The text that replaces a secret.
pub(crate) const HIDDEN: &str = "(hidden)";

/// A line with its secrets replaced, cut to a readable length.
pub(crate) struct Excerpt {
    pub(crate) text: String,
    /// The bytes of `text` to mark.
    pub(crate) marked: Range<usize>,
}

impl Excerpt {
    /// Creates an excerpt. `secrets` and `marked` are byte ranges of `line`.
    pub(crate) fn new(line: &str, secrets: Vec<Range<usize>>, marked: Range<usize>) -> Self {
        // A line may be as long as the file; text far from the mark is never shown.
        let from = line.floor_char_boundary(marked.start.saturating_sub(NEARBY));
        let to = line.floor_char_boundary(marked.start.saturating_add(NEARBY).min(line.len()));
        let shift = |range: Range<usize>| {
            range.start.clamp(from, to) - from..range.end.clamp(from, to) - from
        };
        let secrets = secrets.into_iter().map(shift).collect();
        Self::of_window(
            line.get(from..to).unwrap_or_default(),
            secrets,
            &shift(marked),
        )
    }

    fn of_window(line: &str, secrets: Vec<Range<usize>>, marked: &Range<usize>) -> Self {
        let hidden = with_guesses(line, secrets);
        let mut text = String::with_capacity(line.len().min(2 * MAX_LENGTH));
        let (mut start, mut end) = (None, None);
        let mut hidden = hidden.iter().peekable();
        for (at, c) in line.char_indices() {
            while hidden.peek().is_some_and(|range| range.end <= at) {
                hidden.next();
            }
            if at >= marked.start && start.is_none() {
                start = Some(text.len());
            }
            if at >= marked.end && end.is_none() {
                end = Some(text.len());
            }
            match hidden.peek() {
                Some(range) if range.start == at => text.push_str(HIDDEN),
                Some(range) if range.contains(&at) => {}
                _ => text.push(c),
            }
        }
        let start = start.unwrap_or(text.len());
        let end = end.unwrap_or(text.len()).max(start);
        Self {
            text,
            marked: start..end,
        }
        .shortened()
    }

    fn shortened(self) -> Self {
        if self.text.len() <= MAX_LENGTH {
            return self;
        }
        let from = self
            .text
            .floor_char_boundary(self.marked.start.saturating_sub(MAX_LENGTH / 3));
        let to = self
            .text
            .floor_char_boundary((from + MAX_LENGTH).min(self.text.len()));
        let shift = |at: usize| at.clamp(from, to) - from;
        Self {
            text: self.text.get(from..to).unwrap_or_default().to_owned(),
            marked: shift(self.marked.start)..shift(self.marked.end),
        }
    }
}

/// Returns whether a key looks like that of a secret.
pub(crate) fn looks_secret(key: &str) -> bool {
    const WORDS: &[&str] = &[
        "password",
        "passwd",
        "passphrase",
        "secret",
        "token",
        "credential",
        "apikey",
        "accesskey",
        "privatekey",
    ];
    const LAST_WORDS: &[&str] = &["pass", "pwd"];
    const HARMLESS: &[&str] = &["file", "env", "ttl", "path", "name"];
    let key = key.to_lowercase();
    let last = key.rsplit(['-', '_']).next().unwrap_or_default();
    let joined = key.replace(['-', '_'], "");
    (WORDS.iter().any(|word| joined.contains(word)) || LAST_WORDS.contains(&last))
        && !HARMLESS.contains(&last)
        && !key.ends_with("secrets")
}

/// Returns whether the value of a key should be hidden.
pub(crate) fn holds_secrets(key: &str) -> bool {
    looks_secret(key) || matches!(key, "env" | "env-vars" | "userdata")
}

/// Returns the ranges to hide, sorted and disjoint: known secrets, and values of keys that look secret. The latter
/// extend to the end of the line, because their end is unknown.
fn with_guesses(line: &str, mut known: Vec<Range<usize>>) -> Vec<Range<usize>> {
    known.retain(|range| !range.is_empty());
    known.sort_by_key(|range| range.start);
    for (colon, _) in line.match_indices(':') {
        let before = line
            .get(..colon)
            .unwrap_or_default()
            .trim_end_matches([' ', '"', '\'']);
        let key_start = before
            .rfind(|c: char| !c.is_alphanumeric() && c != '-' && c != '_')
            .map_or(0, |at| at + 1);
        let key = before.get(key_start..).unwrap_or_default();
        let rest = line.get(colon + 1..).unwrap_or_default();
        let value = colon + 1 + (rest.len() - rest.trim_start().len());
        let covered = known
            .iter()
            .any(|range| range.start <= value && value < range.end);
        if looks_secret(key)
            && !covered
            && value < line.len()
            && !rest.trim_start().starts_with(['{', '[', '#'])
        {
            known.retain(|range| range.end <= value);
            known.push(value..line.len());
            break;
        }
    }
    known.dedup_by(|next, earlier| {
        let overlap = next.start < earlier.end;
        if overlap {
            earlier.end = earlier.end.max(next.end);
        }
        overlap
    });
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &str) -> String {
        Excerpt::new(line, Vec::new(), 0..0).text
    }

    #[test]
    fn secrets_in_a_line_are_replaced_and_the_mark_moves() {
        let line = "{token: s3cr3t-value, nmae: x}";
        let excerpt = Excerpt::new(line, std::iter::once(8..20).collect(), 22..26);
        assert_eq!(excerpt.text, "{token: (hidden), nmae: x}");
        assert_eq!(&excerpt.text[excerpt.marked], "nmae");
    }

    #[test]
    fn values_of_secret_keys_are_hidden_to_the_end_of_the_line() {
        assert_eq!(
            shown("  AWS_SECRET_ACCESS_KEY: abc # x"),
            "  AWS_SECRET_ACCESS_KEY: (hidden)"
        );
        assert_eq!(
            shown("{name: a, \"api_token\" : \"x"),
            "{name: a, \"api_token\" : (hidden)"
        );
        for key in ["API_KEY", "DB_PASS", "private-key"] {
            assert_eq!(shown(&format!("{key}: \"abc")), format!("{key}: (hidden)"));
        }
        assert_eq!(shown("token-file: /etc/token"), "token-file: /etc/token");
        assert_eq!(shown("key-name: mine"), "key-name: mine");
        assert_eq!(
            shown("image-pull-secrets: [{name: a}]"),
            "image-pull-secrets: [{name: a}]"
        );
        assert_eq!(shown("token:"), "token:");
    }

    #[test]
    fn long_lines_are_cut_around_the_mark() {
        let line = format!("{}é{}", "a".repeat(1000), "b".repeat(1000));
        let excerpt = Excerpt::new(&line, Vec::new(), 1000..1002);
        assert!(excerpt.text.len() <= MAX_LENGTH);
        assert_eq!(&excerpt.text[excerpt.marked], "é");
    }
}
