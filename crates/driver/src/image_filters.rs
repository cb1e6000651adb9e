//! `image-filters`: which of the images in a cloud a label boots from. One rule for all drivers.

use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};

use crate::image::{CloudImage, ImageStatus};

/// A condition: what `name` refers to must match one of the `values`.
///
/// `name` is `name`, `id`, `tag` (a mark without value), or the name of a property, which may be written
/// `tag:<name>`. In values, `*` is any text, `?` any character, and a backslash takes the next character
/// as it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageFilter {
    pub name: String,
    pub values: Vec<String>,
}

impl ImageFilter {
    fn admits(&self, image: &CloudImage) -> bool {
        let matches = |text: &str| self.values.iter().any(|pattern| glob(pattern, text));
        let property = |name: &str| image.properties.get(name).is_some_and(|text| matches(text));
        match self.name.as_str() {
            "name" => matches(&image.name),
            "id" => matches(&image.id.to_string()),
            "tag" => image.marks.iter().any(|mark| matches(mark)),
            name => property(name) || name.strip_prefix("tag:").is_some_and(property),
        }
    }
}

/// The newest active image that meets all conditions. Without conditions there is no image: a mistake in
/// the configuration must not boot the newest thing in the cloud.
pub fn newest<'a>(
    filters: &[ImageFilter],
    images: impl IntoIterator<Item = &'a CloudImage>,
) -> Option<&'a CloudImage> {
    if filters.is_empty() {
        return None;
    }
    images
        .into_iter()
        .filter(|image| image.status == ImageStatus::Active)
        .filter(|image| filters.iter().all(|filter| filter.admits(image)))
        .max_by(|a, b| age_key(a).cmp(&age_key(b)))
}

/// Equally old images are told apart by id, so that all launchers choose the same one.
fn age_key(image: &CloudImage) -> (Option<Timestamp>, &crate::ids::ExternalId) {
    (image.created, &image.id)
}

/// Takes time in proportion to the product of the lengths at worst.
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
    // After a star, the place in the pattern and in the text to go on from when the rest does not fit.
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
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn image(id: &str, created: f64, properties: &[(&str, &str)]) -> CloudImage {
        CloudImage {
            id: id.into(),
            name: format!("ubuntu-{id}").into(),
            status: ImageStatus::Active,
            created: Timestamp::from_secs(created),
            properties: properties
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>(),
            marks: vec!["gold".into()],
        }
    }

    fn filter(name: &str, values: &[&str]) -> ImageFilter {
        ImageFilter {
            name: name.to_owned(),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        }
    }

    fn chosen(filters: &[ImageFilter], images: &[CloudImage]) -> Option<String> {
        newest(filters, images).map(|image| image.id.to_string())
    }

    #[test]
    fn the_newest_active_match_wins() {
        let mut images = [
            image("a", 1.0, &[("os", "jammy")]),
            image("b", 3.0, &[("os", "jammy")]),
            image("c", 2.0, &[("os", "jammy")]),
            image("d", 9.0, &[("os", "noble")]),
        ];
        let jammy = [filter("os", &["jammy"])];
        assert_eq!(chosen(&jammy, &images).as_deref(), Some("b"));
        images[1].status = ImageStatus::Pending;
        assert_eq!(chosen(&jammy, &images).as_deref(), Some("c"));
        images[2].status = ImageStatus::Failed;
        assert_eq!(chosen(&jammy, &images).as_deref(), Some("a"));
    }

    #[test]
    fn every_condition_must_hold_and_any_value_will_do() {
        let images = [
            image("a", 1.0, &[("os", "jammy"), ("arch", "x86_64")]),
            image("b", 2.0, &[("os", "jammy"), ("arch", "arm64")]),
        ];
        let one = [
            filter("os", &["focal", "jam*"]),
            filter("tag:arch", &["x86_64"]),
        ];
        assert_eq!(chosen(&one, &images).as_deref(), Some("a"));
        assert_eq!(
            chosen(&[filter("tag", &["gold"])], &images).as_deref(),
            Some("b")
        );
        assert_eq!(
            chosen(&[filter("name", &["*-a"])], &images).as_deref(),
            Some("a")
        );
        assert_eq!(
            chosen(&[filter("id", &["a"])], &images).as_deref(),
            Some("a")
        );
        assert_eq!(chosen(&[filter("os", &[])], &images), None);
        assert_eq!(chosen(&[filter("nothing", &["*"])], &images), None);
    }

    #[test]
    fn no_conditions_choose_nothing() {
        assert_eq!(chosen(&[], &[image("a", 1.0, &[])]), None);
    }

    #[test]
    fn equally_old_images_have_an_order() {
        let images = [
            image("b", 1.0, &[]),
            image("c", 1.0, &[]),
            image("a", 1.0, &[]),
        ];
        assert_eq!(
            chosen(&[filter("name", &["*"])], &images).as_deref(),
            Some("c")
        );
    }

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
