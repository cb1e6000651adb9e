//! `image-filters`: which of the images in a cloud a label boots from. One rule for all drivers.
//!
//! The newest of the active images that meet all conditions is chosen. [`judge`] explains the choice for each image by the
//! same rule.

use std::cmp::Reverse;
use std::fmt;

use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::glob::glob;
use crate::ids::ExternalId;
use crate::image::{CloudImage, ImageStatus};

/// A condition: what `name` refers to must match one of the `values`, which are [patterns](glob).
///
/// `name` is `name`, `id`, `tag` (a mark without value), or the name of a property, which may be written
/// `tag:<name>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageFilter {
    pub name: String,
    pub values: Vec<String>,
}

impl ImageFilter {
    fn admits(&self, image: &CloudImage) -> bool {
        let matches = |text: &str| self.values.iter().any(|pattern| glob(pattern, text));
        match self.name.as_str() {
            "name" => matches(&image.name),
            "id" => matches(&image.id.to_string()),
            "tag" => image.marks.iter().any(|mark| matches(mark)),
            name => property(image, name).is_some_and(matches),
        }
    }

    /// Describes what an image has for `name`.
    pub fn found_in(&self, image: &CloudImage) -> String {
        let name = &self.name;
        match name.as_str() {
            "name" => format!("its name is {:?}", image.name),
            "id" => format!("its id is {}", image.id),
            "tag" if image.marks.is_empty() => "it has no tags".to_owned(),
            "tag" => format!("its tags are {}", either(&image.marks, "and")),
            _ => match property(image, name) {
                Some(text) => format!("its {name} is {text:?}"),
                None => format!("it has no {name}"),
            },
        }
    }
}

fn property<'a>(image: &'a CloudImage, name: &str) -> Option<&'a str> {
    let get = |name: &str| image.properties.get(name).map(String::as_str);
    get(name).or_else(|| get(name.strip_prefix("tag:")?))
}

impl fmt::Display for ImageFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, either(&self.values, "or"))
    }
}

/// Several conditions, in words.
#[derive(Debug, Clone, Copy)]
pub struct Conditions<'a>(pub &'a [ImageFilter]);

impl fmt::Display for Conditions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(ImageFilter::to_string).collect();
        f.write_str(&all.join(", "))
    }
}

/// `"a", "b" or "c"`.
fn either(texts: &[impl AsRef<str>], word: &str) -> String {
    let quoted: Vec<String> = texts
        .iter()
        .map(|text| format!("{:?}", text.as_ref()))
        .collect();
    match quoted.split_last() {
        None => "(nothing)".to_owned(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} {word} {last}", others.join(", ")),
    }
}

/// The result of the rule for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It is the newest one that meets every condition.
    Chosen,
    /// It meets every condition, as a newer one does.
    Older,
    /// It meets every condition, but is not complete, or broken.
    NotActive,
    /// It does not meet these.
    Fails(Vec<&'a ImageFilter>),
}

/// An image and its verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate<'a> {
    pub image: &'a CloudImage,
    pub verdict: Verdict<'a>,
}

/// Returns all images, best first: the chosen one, the others that meet all conditions, and those that come closest.
/// Without conditions none is chosen, so that a mistake in the configuration does not boot an arbitrary image.
pub fn judge<'a>(
    filters: &'a [ImageFilter],
    images: impl IntoIterator<Item = &'a CloudImage>,
) -> Vec<Candidate<'a>> {
    let mut candidates: Vec<Candidate<'a>> = images
        .into_iter()
        .map(|image| {
            let failed: Vec<_> = filters.iter().filter(|one| !one.admits(image)).collect();
            let verdict = match image.status {
                _ if filters.is_empty() || !failed.is_empty() => Verdict::Fails(failed),
                ImageStatus::Active => Verdict::Older,
                ImageStatus::Pending | ImageStatus::Failed => Verdict::NotActive,
            };
            Candidate { image, verdict }
        })
        .collect();
    let rank = |verdict: &Verdict<'_>| match verdict {
        Verdict::Chosen | Verdict::Older => 0,
        Verdict::NotActive => 1,
        Verdict::Fails(failed) => 2 + failed.len(),
    };
    candidates.sort_by_key(|one| (rank(&one.verdict), Reverse(age_key(one.image))));
    if let Some(first) = candidates.first_mut()
        && first.verdict == Verdict::Older
    {
        first.verdict = Verdict::Chosen;
    }
    candidates
}

/// Returns the chosen image.
pub fn newest<'a>(
    filters: &'a [ImageFilter],
    images: impl IntoIterator<Item = &'a CloudImage>,
) -> Option<&'a CloudImage> {
    let best = judge(filters, images).into_iter().next()?;
    (best.verdict == Verdict::Chosen).then_some(best.image)
}

/// Explains why no image was chosen, with the one that comes closest.
pub fn nothing_found<'a>(
    filters: &'a [ImageFilter],
    images: impl IntoIterator<Item = &'a CloudImage>,
) -> String {
    if filters.is_empty() {
        return "`image-filters` is empty, and that chooses nothing".to_owned();
    }
    let wanted = format!("there is no active image with {}", Conditions(filters));
    let candidates = judge(filters, images);
    let Some(best) = candidates.first() else {
        return format!("{wanted}; there are no images at all");
    };
    let CloudImage { name, id, .. } = best.image;
    let lacking = match &best.verdict {
        Verdict::Fails(failed) if failed.len() < filters.len() => {
            let found: Vec<_> = failed.iter().map(|one| one.found_in(best.image)).collect();
            found.join(", ")
        }
        Verdict::NotActive if best.image.status == ImageStatus::Pending => {
            "it is not complete yet".to_owned()
        }
        Verdict::NotActive => "it is broken".to_owned(),
        _ => return format!("{wanted}; none of {} meets any of this", candidates.len()),
    };
    format!("{wanted}; {name} ({id}) comes closest, but {lacking}")
}

/// Images of the same age are ordered by id, so that all launchers choose the same one.
fn age_key(image: &CloudImage) -> (Option<Timestamp>, &ExternalId) {
    (image.created, &image.id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

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
    fn every_image_gets_its_verdict_and_the_chosen_one_comes_first() {
        let mut images = [
            image("a", 1.0, &[("os", "jammy"), ("arch", "x86_64")]),
            image("b", 3.0, &[("os", "jammy"), ("arch", "x86_64")]),
            image("c", 9.0, &[("os", "noble"), ("arch", "arm64")]),
            image("d", 5.0, &[("os", "noble"), ("arch", "x86_64")]),
            image("e", 4.0, &[("os", "jammy"), ("arch", "x86_64")]),
        ];
        images[4].status = ImageStatus::Pending;
        let filters = [filter("os", &["jammy"]), filter("arch", &["x86*"])];
        let judged = judge(&filters, &images);
        let told: Vec<_> = judged
            .iter()
            .map(|one| (one.image.id.to_string(), one.verdict.clone()))
            .collect();
        let [os, arch] = &filters;
        assert_eq!(
            told,
            [
                ("b".to_owned(), Verdict::Chosen),
                ("a".to_owned(), Verdict::Older),
                ("e".to_owned(), Verdict::NotActive),
                ("d".to_owned(), Verdict::Fails(vec![os])),
                ("c".to_owned(), Verdict::Fails(vec![os, arch])),
            ]
        );
    }

    #[test]
    fn what_was_looked_for_is_told_with_the_nearest_miss() {
        let mut near = image("a", 1.0, &[("os", "noble")]);
        let filters = [filter("os", &["jammy", "focal"]), filter("tag", &["gold"])];
        assert_eq!(
            nothing_found(&filters, [&near]),
            "there is no active image with os \"jammy\" or \"focal\", tag \"gold\"; ubuntu-a (a) comes closest, but \
             its os is \"noble\""
        );
        near.properties.insert("os".to_owned(), "jammy".to_owned());
        near.status = ImageStatus::Pending;
        assert!(nothing_found(&filters, [&near]).ends_with("but it is not complete yet"));
        near.status = ImageStatus::Failed;
        assert!(nothing_found(&filters, [&near]).ends_with("but it is broken"));
        assert!(nothing_found(&filters, []).ends_with("there are no images at all"));
        let far = [filter("os", &["x"]), filter("tag", &["y"])];
        assert!(nothing_found(&far, [&near]).ends_with("none of 1 meets any of this"));
        assert!(nothing_found(&[], [&near]).contains("empty"));
        assert_eq!(filter("kernel", &["6"]).found_in(&near), "it has no kernel");
        assert_eq!(
            filter("tag", &["6"]).found_in(&near),
            "its tags are \"gold\""
        );
    }
}
