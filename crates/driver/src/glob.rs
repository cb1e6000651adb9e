//! Patterns of names.

/// Returns whether a text matches a pattern: `*` is any text, `?` any character, and a backslash escapes the next one.
///
/// In the worst case the time is proportional to the product of the lengths.
pub fn glob(pattern: &str, text: &str) -> bool {
    enum Part {
        Star,
        Any,
        Char(char),
    }
    let mut parts = Vec::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        parts.push(match char {
            '*' => Part::Star,
            '?' => Part::Any,
            '\\' => Part::Char(chars.next().unwrap_or('\\')),
            char => Part::Char(char),
        });
    }
    // The positions in pattern and text to continue from when the text after the last star does not match.
    let mut star = None;
    let (mut at, mut rest) = (0, text.chars());
    loop {
        let mut ahead = rest.clone();
        match (parts.get(at), ahead.next()) {
            (Some(Part::Star), _) => {
                at += 1;
                star = Some((at, rest.clone()));
                continue;
            }
            (Some(Part::Any), Some(_)) => {
                at += 1;
                rest = ahead;
                continue;
            }
            (Some(Part::Char(wanted)), Some(found)) if *wanted == found => {
                at += 1;
                rest = ahead;
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        let Some((after, from)) = &mut star else {
            return false;
        };
        if from.next().is_none() {
            return false;
        }
        at = *after;
        rest = from.clone();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*b*c", "aXXbYYc", true),
            ("a*b*c", "aXXbYY", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            (r"a\*c", "a*c", true),
            (r"a\*c", "abc", false),
            ("*ab", "aab", true),
            ("ü*", "über", true),
            ("\\", "\\", true),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn a_text_matches_itself_and_its_ends(text in "[a-c]{0,8}", cut in 0_usize..9) {
            prop_assert!(glob(&text, &text));
            let (head, tail) = text.split_at(cut.min(text.len()));
            let (head, tail) = (format!("{head}*"), format!("*{tail}"));
            prop_assert!(glob(&head, &text));
            prop_assert!(glob(&tail, &text));
        }

        #[test]
        fn stars_do_not_explode(text in "a{0,200}") {
            prop_assert!(!glob("*a*a*a*a*a*a*a*a*a*b", &text));
        }
    }
}
