//! What stewards remember of an image, beside Nodepool's records.
//!
//! One JSON record for each image, below `/nodeyard/images`. Several stewards may write it at once, each about its
//! own piece of work, so it is changed by compare and swap. Nothing depends on it for safety: without it failures
//! are retried sooner and files are deleted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use nodeyard_model::{BuildId, ImageName, Timestamp, layout};
use nodeyard_plan::images::{BackoffState, JobDurations, Subject};
use nodeyard_store::{CreateMode, Error, Record, Result, Tree, TreePath, Version, ext};
use serde::{Deserialize, Serialize};

use crate::jobs::Provenance;

/// How long a build that was given up can be taken over.
const LOST_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// How often in a row an attempt may come to nothing without being a failure.
const MAX_UNCOUNTED: u32 = 5;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Notes {
    /// What failed lately, how often and why.
    pub setbacks: BTreeMap<Subject, BackoffState>,
    pub builds: BTreeMap<BuildId, BuildNotes>,
    /// How long the last builds and uploads took.
    pub durations: JobDurations,
    /// Builds that were given up because no worker knew of them, and when. They are taken over if one does after all.
    pub lost: BTreeMap<BuildId, Timestamp>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuildNotes {
    /// Formats that its worker was asked for, if it made fewer.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub asked: BTreeSet<Box<str>>,
    /// Files that went by `delete-after-upload`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub dropped: BTreeSet<Box<str>>,
    /// Where it was fetched from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// The build is gone. Where it came from is kept as long as nodes that booted from it are there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

/// As it is stored: keys of a JSON object are texts, and a subject is more than that.
#[derive(Default, Serialize, Deserialize)]
struct Stored {
    #[serde(default)]
    setbacks: Vec<(Subject, BackoffState)>,
    #[serde(default)]
    builds: BTreeMap<BuildId, BuildNotes>,
    #[serde(default)]
    durations: JobDurations,
    #[serde(default)]
    lost: BTreeMap<BuildId, Timestamp>,
}

impl Notes {
    pub async fn read(tree: &dyn Tree, image: &ImageName) -> Result<Self> {
        let path = TreePath::new(layout::image_status(image))?;
        let record = ext::get_opt(tree, &path).await?;
        Ok(record.map_or_else(Self::default, |record| Self::parse(&path, &record)))
    }

    /// Changes the notes, whoever else does so at the same time. The change may be made several times.
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

    /// Forgets an image that there is nothing left of.
    pub(super) async fn remove(tree: &dyn Tree, image: &ImageName) -> Result<()> {
        let path = TreePath::new(layout::image_status(image))?;
        ext::delete_recursive(tree, &path).await
    }

    /// Records a failure; `latest` says by its numbers whether it counts. Too many in a row that do not count are one that
    /// does.
    pub(super) fn fail(&mut self, subject: Subject, latest: BackoffState, counts_anew: bool) {
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

    /// Remembers a build that was given up, and forgets those of long ago.
    pub(super) fn lose(&mut self, build: BuildId, now: Timestamp) {
        self.lost.retain(|_, at| now.since(*at) < LOST_FOR);
        self.lost.insert(build, now);
    }

    /// Forgets a build that is gone, but for where it came from if it is `in_use`; and those that went before it and are
    /// not in use any more.
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

    /// Notes that make no sense are as good as none.
    fn parse(path: &TreePath, record: &Record) -> Self {
        if record.data.is_empty() {
            return Self::default();
        }
        let stored: Stored = serde_json::from_slice(&record.data).unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%path, error, "malformed notes are passed over");
            Stored::default()
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
        let stored = Stored {
            setbacks: setbacks.map(|(s, b)| (s.clone(), b.clone())).collect(),
            builds: self.builds.clone(),
            durations: self.durations.clone(),
            lost: self.lost.clone(),
        };
        crate::jobs::to_payload(&stored).into()
    }
}
