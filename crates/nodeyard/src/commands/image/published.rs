//! Images published by jobs: which exist, which are superseded, and which were left behind.
//!
//! They are tagged with the publisher's name, the image's name and the publication's id. Images without these tags,
//! such as those uploaded by builders or by hand, are never touched.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use clap::Args;
use nodeyard_driver::{CloudImage, ExternalId, ImageStatus, Publication, SystemId, Tags};
use nodeyard_model::{
    BuildId, BuildKey, ImageName, InvalidName, ProviderName, Timestamp, UploadKey,
};

/// The publisher of images.
#[derive(Debug, Clone, Args)]
pub(super) struct Publisher {
    /// Name of the publisher; distinguishes publishers that share a project of a cloud
    #[arg(long, default_value = "jobs", value_name = "NAME", value_parser = parse_identifier)]
    publisher: String,
}

/// Parses a text that becomes part of metadata in clouds.
pub(super) fn parse_identifier(text: &str) -> Result<String, &'static str> {
    let fits = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    if text.is_empty() || text.len() > 200 || !text.chars().all(fits) {
        return Err("use letters, digits, dashes, dots and underscores");
    }
    Ok(text.to_owned())
}

impl Publisher {
    /// Returns a system id that no installation has, so that launchers ignore published images.
    pub(super) fn system(&self) -> SystemId {
        SystemId::new(format!("publisher:{}", self.publisher))
    }

    /// Returns the tags of a publication.
    pub(super) fn tags(&self, image: &str, id: &str) -> Tags {
        Tags {
            system: Some(self.system()),
            publication: Some(Publication {
                image: image.into(),
                id: id.into(),
            }),
            ..Tags::default()
        }
    }

    /// Returns those of `images` with our tags, and of `image` if it is given, the newest first.
    pub(super) fn select(&self, image: Option<&str>, images: Vec<CloudImage>) -> Vec<Published> {
        let system = self.system();
        let mut ours: Vec<Published> = images
            .into_iter()
            .filter_map(|cloud| {
                let tags = cloud.tags();
                let publication = tags.publication?;
                let ours = tags.system.as_ref() == Some(&system)
                    && image.is_none_or(|image| *publication.image == *image);
                ours.then_some(Published { publication, cloud })
            })
            .collect();
        ours.sort_by_cached_key(|one| Reverse((one.cloud.created, one.cloud.id.clone())));
        ours
    }
}

/// Returns an upload key for drivers. A publication has no upload record; drivers find it by tags or by its cloud id.
pub(super) fn publication_key(
    image: &str,
    provider: &ProviderName,
    build: BuildId,
) -> Result<UploadKey, InvalidName> {
    Ok(UploadKey {
        build: BuildKey {
            image: ImageName::new(image)?,
            build,
        },
        provider: provider.clone(),
        upload: "0000000000".parse()?,
    })
}

/// An image with our tags.
#[derive(Debug, Clone)]
pub(super) struct Published {
    pub(super) publication: Publication,
    pub(super) cloud: CloudImage,
}

/// Whether an image is kept or deleted, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PruneDecision {
    Keep(&'static str),
    Delete(&'static str),
}

/// Selects all complete images but the newest `keep` of each name, unless nodes boot from them.
pub(super) fn find_superseded(
    images: &[Published],
    keep: usize,
    in_use: &BTreeSet<ExternalId>,
) -> Vec<PruneDecision> {
    let mut complete = HashMap::new();
    let decision = |one: &Published| {
        if one.cloud.status != ImageStatus::Active {
            return PruneDecision::Keep("not complete; see `nodeyard image leaks`");
        }
        let newer = complete.entry(one.publication.image.clone()).or_insert(0);
        *newer += 1;
        if *newer <= keep {
            PruneDecision::Keep("among the newest")
        } else if in_use.contains(&one.cloud.id) {
            PruneDecision::Keep("in use")
        } else {
            PruneDecision::Delete("superfluous")
        }
    };
    images.iter().map(decision).collect()
}

/// When an incomplete image counts as left behind.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeakCriteria<'a> {
    /// The age after which an incomplete image counts as left behind.
    pub(super) older_than: Duration,
    /// The id of a publication whose job has ended.
    pub(super) ended: Option<&'a str>,
    pub(super) now: Timestamp,
}

/// Selects what aborted jobs have left: incomplete images, and duplicates that a job created because the response to
/// the first request was lost.
pub(super) fn find_leaks(
    images: &[Published],
    criteria: LeakCriteria<'_>,
    in_use: &BTreeSet<ExternalId>,
) -> Vec<PruneDecision> {
    let mut seen = BTreeSet::new();
    let decision = |one: &Published| {
        let old = one
            .cloud
            .created
            .is_some_and(|created| criteria.now.since(created) >= criteria.older_than);
        let ended = criteria.ended == Some(&*one.publication.id);
        match one.cloud.status {
            ImageStatus::Failed => PruneDecision::Delete("broken"),
            ImageStatus::Pending if ended => {
                PruneDecision::Delete("not complete, and its job has ended")
            }
            ImageStatus::Pending if old => PruneDecision::Delete("not complete for too long"),
            ImageStatus::Pending => PruneDecision::Keep("not complete; its job may be running"),
            ImageStatus::Active if seen.insert(one.publication.clone()) => {
                PruneDecision::Keep("complete")
            }
            ImageStatus::Active if in_use.contains(&one.cloud.id) => PruneDecision::Keep("in use"),
            ImageStatus::Active => PruneDecision::Delete("published twice"),
        }
    };
    images.iter().map(decision).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publisher(name: &str) -> Publisher {
        Publisher {
            publisher: name.to_owned(),
        }
    }

    fn image(id: &str, created: f64, status: ImageStatus, tags: &Tags) -> CloudImage {
        CloudImage {
            id: id.into(),
            name: id.into(),
            status,
            created: Timestamp::from_secs(created),
            properties: tags
                .to_metadata()
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value))
                .collect(),
            marks: Vec::new(),
        }
    }

    fn ids(images: &[Published], decisions: &[PruneDecision]) -> Vec<String> {
        let gone = images.iter().zip(decisions);
        gone.filter(|(_, decision)| matches!(decision, PruneDecision::Delete(_)))
            .map(|(image, _)| image.cloud.id.to_string())
            .collect()
    }

    #[test]
    fn only_tagged_images_are_selected() {
        let ours = publisher("jobs");
        let tags = ours.tags("jammy", "b1");
        let unnamed = Tags {
            publication: None,
            ..tags.clone()
        };
        let images = vec![
            image("ours", 1.0, ImageStatus::Active, &tags),
            image("newer", 2.0, ImageStatus::Active, &ours.tags("jammy", "b2")),
            image("noble", 3.0, ImageStatus::Active, &ours.tags("noble", "b1")),
            image(
                "others",
                4.0,
                ImageStatus::Active,
                &publisher("x").tags("jammy", "b1"),
            ),
            image("uploaded", 5.0, ImageStatus::Active, &unnamed),
            image("foreign", 6.0, ImageStatus::Active, &Tags::default()),
        ];
        let names = |image| {
            let selected = ours.select(image, images.clone());
            let names = selected.iter().map(|one| one.cloud.id.to_string());
            names.collect::<Vec<_>>()
        };
        assert_eq!(names(Some("jammy")), ["newer", "ours"]);
        assert_eq!(names(None), ["noble", "newer", "ours"]);
    }

    #[test]
    fn the_newest_images_and_those_in_use_are_kept() {
        let ours = publisher("jobs");
        let mut images = Vec::new();
        for (number, name) in ["jammy", "noble"].into_iter().enumerate() {
            for age in 0..4 {
                let tags = ours.tags(name, &format!("b{age}"));
                let id = format!("{name}-{age}");
                let created = f64::from(100 - age) + number as f64;
                images.push(image(&id, created, ImageStatus::Active, &tags));
            }
        }
        images.push(image(
            "half",
            200.0,
            ImageStatus::Pending,
            &ours.tags("jammy", "b9"),
        ));
        let images = ours.select(None, images);
        let in_use = BTreeSet::from(["jammy-3".into()]);
        let decisions = find_superseded(&images, 2, &in_use);
        let mut gone = ids(&images, &decisions);
        gone.sort();
        assert_eq!(gone, ["jammy-2", "noble-2", "noble-3"]);
        assert!(ids(&images, &find_superseded(&images, 9, &in_use)).is_empty());
    }

    #[test]
    fn abandoned_uploads_and_duplicates_are_leaks() {
        let ours = publisher("jobs");
        let images = vec![
            image("old", 10.0, ImageStatus::Pending, &ours.tags("jammy", "b1")),
            image(
                "young",
                90.0,
                ImageStatus::Pending,
                &ours.tags("jammy", "b2"),
            ),
            image(
                "broken",
                95.0,
                ImageStatus::Failed,
                &ours.tags("jammy", "b3"),
            ),
            image(
                "first",
                20.0,
                ImageStatus::Active,
                &ours.tags("jammy", "b4"),
            ),
            image(
                "second",
                21.0,
                ImageStatus::Active,
                &ours.tags("jammy", "b4"),
            ),
            image(
                "same-build",
                5.0,
                ImageStatus::Active,
                &ours.tags("noble", "b4"),
            ),
        ];
        let images = ours.select(None, images);
        let mut criteria = LeakCriteria {
            older_than: Duration::from_secs(60),
            ended: None,
            now: Timestamp::from_secs(100.0).unwrap(),
        };
        let judge = |criteria, in_use: &[&str]| {
            let in_use = in_use.iter().map(|id| (*id).into()).collect();
            let mut gone = ids(&images, &find_leaks(&images, criteria, &in_use));
            gone.sort();
            gone
        };
        assert_eq!(judge(criteria, &[]), ["broken", "first", "old"]);
        assert_eq!(judge(criteria, &["first"]), ["broken", "old"]);
        criteria.ended = Some("b2");
        assert_eq!(judge(criteria, &[]), ["broken", "first", "old", "young"]);
    }
}
