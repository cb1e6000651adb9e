//! Notes of stewards about an image, in addition to Nodepool's records.
//!
//! One JSON record per image, below `/nodeyard/images`. Stewards change it concurrently by compare-and-swap. It is not needed
//! for safety: without it, failures are retried sooner and files are deleted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use nodeyard_model::{BuildId, ImageName, Timestamp, layout};
use nodeyard_plan::images::{BackoffState, JobDurations, Subject};
use nodeyard_store::{CreateMode, Error, Record, Result, Tree, TreePath, Version, ext};
use serde::{Deserialize, Serialize};

use crate::jobs::Provenance;

/// How long a lost build can be adopted.
const LOST_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// The maximum number of consecutive interruptions that do not count as a failure.
const MAX_UNCOUNTED: u32 = 5;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct ImageNotes {
    /// Recent failures, their numbers and reasons.
    pub setbacks: BTreeMap<Subject, BackoffState>,
    pub builds: BTreeMap<BuildId, BuildNotes>,
    /// The durations of recent builds and uploads.
    pub durations: JobDurations,
    /// Lost builds by the time of their loss. They are adopted if a worker reports them later.
    pub lost: BTreeMap<BuildId, Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuildNotes {
    /// The requested formats, if the worker built fewer.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub asked: BTreeSet<Box<str>>,
    /// Formats deleted by `delete-after-upload`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dropped: BTreeSet<Box<str>>,
    /// The origin of an imported image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// Whether the build was deleted. Its provenance is kept while nodes that booted from it exist.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

/// The stored form, because a subject cannot be a key of a JSON object.
#[derive(Default, Serialize, Deserialize)]
struct StoredNotes {
    #[serde(default)]
    setbacks: Vec<(Subject, BackoffState)>,
    #[serde(default)]
    builds: BTreeMap<BuildId, BuildNotes>,
    #[serde(default)]
    durations: JobDurations,
    #[serde(default)]
    lost: BTreeMap<BuildId, Timestamp>,
}

impl ImageNotes {
    pub async fn read(tree: &dyn Tree, image: &ImageName) -> Result<Self> {
        let path = TreePath::new(layout::image_status(image))?;
        let record = ext::get_opt(tree, &path).await?;
        Ok(record.map_or_else(Self::default, |record| Self::parse(&path, &record)))
    }

    /// Changes the notes by compare-and-swap. `change` may be called several times.
    pub(super) async fn change(
        tree: &dyn Tree,
        image: &ImageName,
        change: impl Fn(&mut Self),
    ) -> Result<()> {
        let path = TreePath::new(layout::image_status(image))?;
        loop {
            let record = ext::get_opt(tree, &path).await?;
            let before = record.as_ref().map(|record| Self::parse(&path, record));
            let mut notes = before.clone().unwrap_or_default();
            change(&mut notes);
            if before.unwrap_or_default() == notes {
                return Ok(());
            }
            let written = match record {
                Some(record) => {
                    let version = Version::Exactly(record.stat.version);
                    tree.set(&path, notes.to_json(), version).await.map(drop)
                }
                None => {
                    let mode = CreateMode::Persistent;
                    tree.create(&path, notes.to_json(), mode).await.map(drop)
                }
            };
            match written {
                Err(Error::BadVersion { .. } | Error::NodeExists { .. }) => {}
                Err(Error::NoNode { .. }) => {
                    let parent = TreePath::new(layout::IMAGE_STATUS)?;
                    ext::ensure_path(tree, &parent).await?;
                }
                result => return result,
            }
        }
    }

    /// Deletes the notes of an image.
    pub(super) async fn remove(tree: &dyn Tree, image: &ImageName) -> Result<()> {
        let path = TreePath::new(layout::image_status(image))?;
        ext::delete_recursive(tree, &path).await
    }

    /// Records a failure; the numbers of `latest` define whether it counts. Too many consecutive failures that do not count are
    /// counted as one.
    pub(super) fn record_failure(
        &mut self,
        subject: Subject,
        latest: BackoffState,
        counts_anew: bool,
    ) {
        let last = self.setbacks.get(&subject);
        let failures = last.map_or(0, |last| last.failures);
        let failures = if counts_anew { 0 } else { failures };
        let uncounted = last.map_or(0, |last| last.uncounted) + latest.uncounted;
        let counts = latest.uncounted == 0 || uncounted > MAX_UNCOUNTED;
        let (failures, uncounted) = if counts {
            (failures + 1, 0)
        } else {
            (failures, uncounted)
        };
        let setback = BackoffState {
            failures,
            uncounted,
            ..latest
        };
        self.setbacks.insert(subject, setback);
    }

    /// Records a lost build and removes old ones.
    pub(super) fn add_lost(&mut self, build: BuildId, now: Timestamp) {
        self.lost.retain(|_, at| now.since(*at) < LOST_RETENTION);
        self.lost.insert(build, now);
    }

    /// Removes the notes of a deleted build, except for the provenance of builds that are `in_use`.
    pub(super) fn forget_build(&mut self, build: BuildId, in_use: &BTreeSet<BuildId>) {
        if let Some(known) = self.builds.remove(&build)
            && known.provenance.is_some()
        {
            let gone = BuildNotes {
                provenance: known.provenance,
                gone: true,
                ..BuildNotes::default()
            };
            self.builds.insert(build, gone);
        }
        self.builds
            .retain(|id, known| !known.gone || in_use.contains(id));
        self.setbacks.retain(|subject, _| match subject {
            Subject::Build | Subject::Upload { .. } => true,
            Subject::RemoveUpload(upload) => upload.build != build,
            Subject::RemoveBuild { build: other } | Subject::DropFiles { build: other } => {
                *other != build
            }
        });
    }

    /// Parses the notes. Malformed notes are treated as empty.
    fn parse(path: &TreePath, record: &Record) -> Self {
        if record.data.is_empty() {
            return Self::default();
        }
        let stored: StoredNotes = serde_json::from_slice(&record.data).unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%path, error, "failed to parse image notes; using empty notes");
            StoredNotes::default()
        });
        Self {
            setbacks: stored.setbacks.into_iter().collect(),
            builds: stored.builds,
            durations: stored.durations,
            lost: stored.lost,
        }
    }

    fn to_json(&self) -> Bytes {
        let setbacks = self.setbacks.iter();
        let stored = StoredNotes {
            setbacks: setbacks.map(|(s, b)| (s.clone(), b.clone())).collect(),
            builds: self.builds.clone(),
            durations: self.durations.clone(),
            lost: self.lost.clone(),
        };
        crate::jobs::to_payload(&stored).into()
    }
}
