//! Which images there are, and what is asked of each.
//!
//! These are facts by their mere existence: an image is a directory, a pause or a request for a build is a
//! record without data, and somebody builds an image while the lock of its builds has a contender.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::layout::RecordPath;
use nodeyard_model::{ImageName, Timestamp};
use nodeyard_status::{BuildRequest, ImageRow};
use nodeyard_store::TreePath;
use nodeyard_store::view::{Kind, Shape, View};

#[derive(Debug, Clone, Copy)]
pub struct MarkShape;

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mark {
    Image(ImageName),
    Paused(ImageName),
    Asked(ImageName),
    /// With the name of the contender.
    Building(ImageName, String),
}

impl Mark {
    pub fn image(&self) -> &ImageName {
        match self {
            Self::Image(image) | Self::Paused(image) | Self::Asked(image) => image,
            Self::Building(image, _) => image,
        }
    }
}

impl Shape for MarkShape {
    type Id = Mark;
    type Value = ();

    fn kind(&self, path: &TreePath) -> Kind<Mark> {
        let record = |id, branch| Kind::Record {
            id,
            branch,
            lock: false,
        };
        match RecordPath::parse(path.as_str()) {
            Some(RecordPath::Image(image)) => record(Mark::Image(image), true),
            Some(RecordPath::ImagePause(image)) => record(Mark::Paused(image), false),
            Some(RecordPath::BuildRequest(image)) => record(Mark::Asked(image), false),
            Some(RecordPath::Builds(_) | RecordPath::BuildsLock(_)) => Kind::Directory,
            Some(RecordPath::LockEntry(lock, name)) => match *lock {
                RecordPath::BuildsLock(image) => record(Mark::Building(image, name), false),
                _ => Kind::Nothing,
            },
            _ => Kind::Nothing,
        }
    }

    fn parse(&self, _: &Mark, _: &[u8]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

pub(crate) fn paused(marks: &View<MarkShape>) -> BTreeSet<ImageName> {
    let image = |(mark, _)| match mark {
        Mark::Paused(image) => Some(image),
        _ => None,
    };
    all(marks).filter_map(image).collect()
}

/// What is asked of each image, in the order of names.
pub fn images(marks: &View<MarkShape>) -> impl Iterator<Item = ImageRow> + use<> {
    #[derive(Default)]
    struct Found {
        exists: bool,
        paused: bool,
        asked: Option<i64>,
        building: bool,
    }
    let mut found: BTreeMap<ImageName, Found> = BTreeMap::new();
    for (mark, created) in all(marks) {
        match mark {
            Mark::Image(image) => found.entry(image).or_default().exists = true,
            Mark::Paused(image) => found.entry(image).or_default().paused = true,
            Mark::Asked(image) => found.entry(image).or_default().asked = Some(created),
            Mark::Building(image, _) => found.entry(image).or_default().building = true,
        }
    }
    let row = |(image, found): (_, Found)| ImageRow {
        image,
        paused: found.paused,
        request: found.asked.map(|created| BuildRequest {
            asked: Timestamp::from_millis(created),
            building: found.building,
        }),
    };
    let exists = |(_, found): &(_, Found)| found.exists;
    found.into_iter().filter(exists).map(row)
}

/// With the time of creation, in milliseconds since 1970. Some have data: people write to anything.
fn all(marks: &View<MarkShape>) -> impl Iterator<Item = (Mark, i64)> + use<> {
    let with_data = marks.items().into_iter().map(|item| (item.id, item.stat));
    let without = marks.empty();
    let all = with_data.chain(without);
    all.map(|(mark, stat)| (mark, stat.ctime))
}
