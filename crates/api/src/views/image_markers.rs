//! Image states that are stored as mere existence of a record.
//!
//! An image exists as a directory, its pause and its build request as records without data, and it is being built while
//! the lock of its builds has a contender.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::layout::RecordPath;
use nodeyard_model::{ImageName, Timestamp};
use nodeyard_status::{BuildRequest, ImageRow};
use nodeyard_store::TreePath;
use nodeyard_store::view::{Kind, Shape, View};

/// Parses [`ImageMarker`]s out of the store's paths.
#[derive(Debug, Clone, Copy)]
pub struct ImageMarkerShape;

/// One fact about an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ImageMarker {
    Image(ImageName),
    Paused(ImageName),
    BuildRequested(ImageName),
    /// With the name of the lock's contender.
    Building(ImageName, String),
}

impl ImageMarker {
    pub fn image(&self) -> &ImageName {
        match self {
            Self::Image(image) | Self::Paused(image) | Self::BuildRequested(image) => image,
            Self::Building(image, _) => image,
        }
    }
}

impl Shape for ImageMarkerShape {
    type Id = ImageMarker;
    type Value = ();

    fn kind(&self, path: &TreePath) -> Kind<ImageMarker> {
        let record = |id, branch| Kind::Record {
            id,
            branch,
            lock: false,
        };
        match RecordPath::parse(path.as_str()) {
            Some(RecordPath::Image(image)) => record(ImageMarker::Image(image), true),
            Some(RecordPath::ImagePause(image)) => record(ImageMarker::Paused(image), false),
            Some(RecordPath::BuildRequest(image)) => {
                record(ImageMarker::BuildRequested(image), false)
            }
            Some(RecordPath::Builds(_) | RecordPath::BuildsLock(_)) => Kind::Directory,
            Some(RecordPath::LockEntry(lock, name)) => match *lock {
                RecordPath::BuildsLock(image) => record(ImageMarker::Building(image, name), false),
                _ => Kind::Nothing,
            },
            _ => Kind::Nothing,
        }
    }

    fn parse(
        &self,
        _: &ImageMarker,
        _: &[u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

pub(crate) fn paused(image_markers: &View<ImageMarkerShape>) -> BTreeSet<ImageName> {
    let image = |(mark, _)| match mark {
        ImageMarker::Paused(image) => Some(image),
        _ => None,
    };
    all(image_markers).filter_map(image).collect()
}

/// Returns the state of each image, in the order of names.
pub fn images(image_markers: &View<ImageMarkerShape>) -> impl Iterator<Item = ImageRow> + use<> {
    #[derive(Default)]
    struct ImageFlags {
        exists: bool,
        paused: bool,
        asked: Option<i64>,
        building: bool,
    }
    let mut found: BTreeMap<ImageName, ImageFlags> = BTreeMap::new();
    for (mark, created) in all(image_markers) {
        match mark {
            ImageMarker::Image(image) => found.entry(image).or_default().exists = true,
            ImageMarker::Paused(image) => found.entry(image).or_default().paused = true,
            ImageMarker::BuildRequested(image) => {
                found.entry(image).or_default().asked = Some(created);
            }
            ImageMarker::Building(image, _) => found.entry(image).or_default().building = true,
        }
    }
    let row = |(image, found): (_, ImageFlags)| ImageRow {
        image,
        paused: found.paused,
        request: found.asked.map(|created| BuildRequest {
            requested_at: Timestamp::from_millis(created),
            building: found.building,
        }),
    };
    let exists = |(_, found): &(_, ImageFlags)| found.exists;
    found.into_iter().filter(exists).map(row)
}

/// Returns all markers with their creation times in milliseconds since 1970. Some have data, because
/// people edit records.
fn all(image_markers: &View<ImageMarkerShape>) -> impl Iterator<Item = (ImageMarker, i64)> + use<> {
    let with_data = image_markers
        .items()
        .into_iter()
        .map(|item| (item.id, item.stat));
    let without = image_markers.empty();
    let all = with_data.chain(without);
    all.map(|(mark, stat)| (mark, stat.ctime))
}
