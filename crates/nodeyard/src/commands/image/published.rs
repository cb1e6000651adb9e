//! Images that jobs have published: which there are, which of them are superfluous, and which were left behind.
//!
//! Their mark is the publisher's name together with the name of the image and of the publication. Nothing without it is
//! ever touched: neither what builders upload, which has a record, nor what people make.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use clap::Args;
use nodeyard_driver::{CloudImage, ExternalId, ImageStatus, Publication, SystemId, Tags};
use nodeyard_model::{
    BuildId, BuildKey, ImageName, InvalidName, ProviderName, Timestamp, UploadKey,
};

/// On whose behalf.
#[derive(Debug, Clone, Args)]
pub(super) struct Publisher {
    /// Who publishes; tells apart those who share a project of a cloud
    #[arg(long, default_value = "jobs", value_name = "NAME", value_parser = word)]
    publisher: String,
}

/// What ends up in the metadata of clouds.
pub(super) fn word(text: &str) -> Result<String, &'static str> {
    let fits = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    if text.is_empty() || text.len() > 200 || !text.chars().all(fits) {
        return Err("use letters, digits, dashes, dots and underscores");
    }
    Ok(text.to_owned())
}

impl Publisher {
    /// No installation has such an id, so no launcher takes a published image for its own.
    pub(super) fn system(&self) -> SystemId {
        SystemId::new(format!("publisher:{}", self.publisher))
    }

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

    /// Those of `images` that carry our mark, and the name of `image` if one is given; the newest first.
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

/// Drivers are told the record of an upload. A publication has none: they go by its tags, or by what the cloud calls it.
pub(super) fn no_record(
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

/// An image with our mark.
#[derive(Debug, Clone)]
pub(super) struct Published {
    pub(super) publication: Publication,
    pub(super) cloud: CloudImage,
}

/// What is to become of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Stays(&'static str),
    Goes(&'static str),
}

/// All but the newest `keep` that are complete, of each image, unless machines are made from them.
pub(super) fn superfluous(
    images: &[Published],
    keep: usize,
    in_use: &BTreeSet<ExternalId>,
) -> Vec<Fate> {
    let mut complete = HashMap::new();
    let fate = |one: &Published| {
        if one.cloud.status != ImageStatus::Active {
            return Fate::Stays("not complete; `nodeyard image leaks` looks after it");
        }
        let newer = complete.entry(one.publication.image.clone()).or_insert(0);
        *newer += 1;
        if *newer <= keep {
            Fate::Stays("among the newest")
        } else if in_use.contains(&one.cloud.id) {
            Fate::Stays("in use")
        } else {
            Fate::Goes("superfluous")
        }
    };
    images.iter().map(fate).collect()
}

/// When something counts as left behind.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience<'a> {
    /// What is not complete after this time never will be.
    pub(super) older_than: Duration,
    /// The publications of this build are over.
    pub(super) ended: Option<&'a str>,
    pub(super) now: Timestamp,
}

/// What aborted jobs have left: images that will never be complete, and the second of two that one job made because the
/// answer to the first was lost.
pub(super) fn left_behind(
    images: &[Published],
    patience: Patience<'_>,
    in_use: &BTreeSet<ExternalId>,
) -> Vec<Fate> {
    let mut seen = BTreeSet::new();
    let fate = |one: &Published| {
        let old = one
            .cloud
            .created
            .is_some_and(|created| patience.now.since(created) >= patience.older_than);
        let ended = patience.ended == Some(&*one.publication.id);
        match one.cloud.status {
            ImageStatus::Failed => Fate::Goes("broken"),
            ImageStatus::Pending if ended => Fate::Goes("not complete, and its job is over"),
            ImageStatus::Pending if old => Fate::Goes("not complete after so long"),
            ImageStatus::Pending => Fate::Stays("not complete; its job may be at it"),
            ImageStatus::Active if seen.insert(one.publication.clone()) => Fate::Stays("complete"),
            ImageStatus::Active if in_use.contains(&one.cloud.id) => Fate::Stays("in use"),
            ImageStatus::Active => Fate::Goes("published twice"),
        }
    };
    images.iter().map(fate).collect()
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

    fn ids(images: &[Published], fates: &[Fate]) -> Vec<String> {
        let gone = images.iter().zip(fates);
        gone.filter(|(_, fate)| matches!(fate, Fate::Goes(_)))
            .map(|(image, _)| image.cloud.id.to_string())
            .collect()
    }

    #[test]
    fn only_what_carries_the_mark_is_selected() {
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
    fn the_newest_of_each_image_and_those_in_use_stay() {
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
        let fates = superfluous(&images, 2, &in_use);
        let mut gone = ids(&images, &fates);
        gone.sort();
        assert_eq!(gone, ["jammy-2", "noble-2", "noble-3"]);
        assert!(ids(&images, &superfluous(&images, 9, &in_use)).is_empty());
    }

    #[test]
    fn what_nobody_finishes_is_left_behind() {
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
        let mut patience = Patience {
            older_than: Duration::from_secs(60),
            ended: None,
            now: Timestamp::from_secs(100.0).unwrap(),
        };
        let judge = |patience, in_use: &[&str]| {
            let in_use = in_use.iter().map(|id| (*id).into()).collect();
            let mut gone = ids(&images, &left_behind(&images, patience, &in_use));
            gone.sort();
            gone
        };
        assert_eq!(judge(patience, &[]), ["broken", "first", "old"]);
        assert_eq!(judge(patience, &["first"]), ["broken", "old"]);
        patience.ended = Some("b2");
        assert_eq!(judge(patience, &[]), ["broken", "first", "old", "young"]);
    }
}
