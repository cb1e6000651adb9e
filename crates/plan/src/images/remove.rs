//! What is kept and what goes: uploads, builds and files.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{BuildId, BuildState, ProviderName, UploadState};

use super::Judge;
use super::picture::{Build, ImagePolicy, Picture, Services, Subject, Takes, Upload, UploadRef};
use super::verdict::{Action, BuildReport, Fate, Plan, RemovalReason, UploadReport, Wait, WhyKept};

/// What is kept for its own sake, and why.
#[derive(Default)]
struct Kept {
    builds: BTreeMap<BuildId, Fate>,
    uploads: BTreeMap<UploadRef, Fate>,
}

pub(super) fn judge(judge: &Judge<'_>, plan: &mut Plan) {
    let kept = kept(judge);
    let mut builds: Vec<(&BuildId, &Build)> = judge.picture.builds.iter().collect();
    builds.sort_by(|(a, x), (b, y)| (y.since, b).cmp(&(x.since, a)));
    for (id, build) in builds {
        let mut left = Vec::new();
        for ((provider, upload), record) in &build.uploads {
            let upload = UploadRef {
                build: *id,
                provider: provider.clone(),
                upload: *upload,
            };
            let fate = upload_fate(judge, &kept, build, &upload, record);
            match &fate {
                Fate::Removed { .. } => {
                    plan.actions.push(Action::RemoveUpload(upload.clone()));
                }
                Fate::Resumes => plan.actions.push(Action::SettleUpload(upload.clone())),
                Fate::Lingers { until } => plan.look_again(*until),
                Fate::Waits { wait, .. } => plan.waits(wait),
                _ => {}
            }
            left.push((upload.clone(), record.state));
            plan.explanation.uploads.push(UploadReport {
                upload,
                state: record.state,
                since: record.since,
                fate,
            });
        }
        let fate = build_fate(judge, &kept, *id, build, &left);
        match &fate {
            Fate::Removed { .. } => plan.actions.push(Action::RemoveBuild { build: *id }),
            Fate::UploadsFirst { .. } if has_files(judge, *id, build) => {
                plan.actions.push(Action::RemoveBuild { build: *id });
            }
            Fate::Kept { .. } | Fate::KeptAnyway { .. } | Fate::Pinned { .. } => {
                drop_files(judge, *id, build, plan);
            }
            Fate::Lingers { until } => plan.look_again(*until),
            Fate::Waits { wait, .. } => plan.waits(wait),
            _ => {}
        }
        plan.explanation.builds.push(BuildReport {
            build: *id,
            state: build.state,
            since: build.since,
            fate,
        });
    }
}

fn kept(judge: &Judge<'_>) -> Kept {
    let picture = judge.picture;
    match &picture.policy {
        Some(policy) => Kept {
            builds: kept_builds(picture, policy.retention.get()),
            uploads: kept_uploads(picture, policy.retention.get()),
        },
        None => Kept::default(),
    }
}

/// The newest ready builds that were not taken back, and some whatever their place.
fn kept_builds(picture: &Picture, of: usize) -> BTreeMap<BuildId, Fate> {
    let mut kept = BTreeMap::new();
    let ready = picture.ready_builds();
    let usable = ready.iter().filter(|id| !is_taken_back(picture, **id));
    for (id, rank) in usable.zip(1..=of) {
        kept.insert(*id, Fate::Kept { rank, of });
    }
    let pinned = picture.canary.pinned.filter(|id| ready.contains(id));
    let newest = ready.first().copied();
    for (id, why) in [(pinned, WhyKept::Pinned), (newest, WhyKept::Newest)] {
        if let Some(id) = id {
            kept.entry(id).or_insert(Fate::KeptAnyway { why });
        }
    }
    kept
}

/// For each provider that takes the image the newest ready uploads of ready builds that were not taken back, and what
/// its launches use, now or without a pin.
fn kept_uploads(picture: &Picture, of: usize) -> BTreeMap<UploadRef, Fate> {
    let mut kept = BTreeMap::new();
    for provider in picture.providers.keys() {
        if picture.takes(provider).is_none() {
            continue;
        }
        let uploads = picture.usable_uploads(provider);
        let usable = uploads.iter();
        let usable = usable.filter(|upload| !is_taken_back(picture, upload.build));
        for (upload, rank) in usable.zip(1..=of) {
            kept.insert(upload.clone(), Fate::Kept { rank, of });
        }
        // What is used when a pin goes is needed as much.
        let launches = [
            picture.launches(provider),
            picture.launches_by_merit(provider),
        ];
        let builds = launches.into_iter().flatten().flat_map(|launches| {
            let tried = launches.trial.map(|tried| tried.build);
            tried.into_iter().chain([launches.build])
        });
        for build in builds {
            if let Some(upload) = uploads.iter().find(|upload| upload.build == build) {
                let why = WhyKept::InUse;
                let fate = kept.entry(upload.clone());
                fate.or_insert(Fate::KeptAnyway { why });
            }
        }
    }
    kept
}

fn is_taken_back(picture: &Picture, build: BuildId) -> bool {
    picture.canary.is_taken_back(build)
}

/// Why something ready is not kept.
fn surplus(picture: &Picture, build: BuildId) -> RemovalReason {
    if is_taken_back(picture, build) {
        RemovalReason::TakenBack
    } else {
        RemovalReason::Surplus
    }
}

fn upload_fate(
    judge: &Judge<'_>,
    kept: &Kept,
    build: &Build,
    upload: &UploadRef,
    record: &Upload,
) -> Fate {
    let picture = judge.picture;
    let provider = &upload.provider;
    let Some(takes) = picture.providers.get(provider) else {
        return Fate::NotOurs;
    };
    if record.locked {
        return Fate::UnderWay;
    }
    if record.state == UploadState::Uploading {
        if build.uploading.contains(provider) {
            return Fate::UnderWay;
        }
        let subject = Subject::RemoveUpload(upload.clone());
        return match judge.holds_back(&subject).or_else(|| no_job_server(judge)) {
            Some(wait) => Fate::Waits {
                why: RemovalReason::Failed,
                wait,
            },
            None => Fate::Resumes,
        };
    }
    let why = if picture.policy.is_none() {
        RemovalReason::ImageGone
    } else if takes.is_none() {
        RemovalReason::NotTaken
    } else {
        match record.state {
            UploadState::Deleting => RemovalReason::Deleting,
            UploadState::Failed => {
                if let Some(until) = judge.lingers_until(record.since) {
                    return Fate::Lingers { until };
                }
                RemovalReason::Failed
            }
            _ => {
                if let Some(fate) = kept.uploads.get(upload) {
                    return fate.clone();
                }
                if kept.builds.contains_key(&upload.build) {
                    return Fate::KeptWithBuild;
                }
                surplus(picture, upload.build)
            }
        }
    };
    let subject = Subject::RemoveUpload(upload.clone());
    let wait = judge.holds_back(&subject).or_else(|| {
        no_job_server(judge).or_else(|| match &picture.services {
            Services::Known(answered) if !answered.upload_delete.contains(provider) => {
                Some(Wait::Worker {
                    function: format!("upload-delete:{provider}"),
                })
            }
            _ => None,
        })
    });
    match wait {
        Some(wait) => Fate::Waits { why, wait },
        None => Fate::Removed { why },
    }
}

fn build_fate(
    judge: &Judge<'_>,
    kept: &Kept,
    id: BuildId,
    build: &Build,
    uploads: &[(UploadRef, UploadState)],
) -> Fate {
    if let Some(fate) = kept.builds.get(&id) {
        return fate.clone();
    }
    let why = match build.state {
        BuildState::Building if judge.picture.building => return Fate::UnderWay,
        BuildState::Building => return Fate::Resumes,
        _ if judge.picture.policy.is_none() => RemovalReason::ImageGone,
        BuildState::Failed => {
            if let Some(until) = judge.lingers_until(build.since) {
                return Fate::Lingers { until };
            }
            RemovalReason::Failed
        }
        BuildState::Deleting => RemovalReason::Deleting,
        BuildState::Ready => surplus(judge.picture, id),
    };
    if build.unreadable > 0 {
        let uploads = build.unreadable;
        return Fate::Unreadable { uploads };
    }
    let in_use = uploads
        .iter()
        .filter(|(_, state)| *state != UploadState::Deleting);
    let by: Vec<UploadRef> = in_use.map(|(upload, _)| upload.clone()).collect();
    if !by.is_empty() {
        return Fate::Pinned { by };
    }
    if build.locked {
        return Fate::UnderWay;
    }
    if !uploads.is_empty() {
        return Fate::UploadsFirst { why };
    }
    let subject = Subject::RemoveBuild { build: id };
    match judge.holds_back(&subject).or_else(|| no_job_server(judge)) {
        Some(wait) => Fate::Waits { why, wait },
        None => Fate::Removed { why },
    }
}

fn no_job_server(judge: &Judge<'_>) -> Option<Wait> {
    match &judge.picture.services {
        Services::Unknown { reason } => Some(Wait::JobServer {
            reason: reason.clone(),
        }),
        Services::Known(_) => None,
    }
}

/// Whether removing the build would do anything while uploads of it are still being deleted.
fn has_files(judge: &Judge<'_>, id: BuildId, build: &Build) -> bool {
    let failed_lately = judge.holds_back(&Subject::RemoveBuild { build: id });
    match &judge.picture.services {
        _ if failed_lately.is_some() => false,
        Services::Unknown { .. } => false,
        Services::Known(answered) => {
            build.state != BuildState::Deleting || answered.delete.contains(&id)
        }
    }
}

/// `delete-after-upload`, by format.
fn drop_files(judge: &Judge<'_>, id: BuildId, build: &Build, plan: &mut Plan) {
    let picture = judge.picture;
    let Some(policy) = picture
        .policy
        .as_ref()
        .filter(|policy| policy.delete_after_upload)
    else {
        return;
    };
    let held =
        matches!(&picture.services, Services::Known(answered) if answered.delete.contains(&id));
    if build.state != BuildState::Ready || build.locked || !held {
        return;
    }
    let takers: Vec<(&ProviderName, &Takes)> = picture
        .providers
        .iter()
        .filter_map(|(provider, takes)| Some((provider, takes.as_ref()?)))
        .collect();
    if !takers
        .iter()
        .any(|(provider, _)| build.has_ready_upload(provider))
    {
        return;
    }
    let formats = unneeded(policy, build, &takers);
    if formats.is_empty() {
        return;
    }
    match judge.holds_back(&Subject::DropFiles { build: id }) {
        Some(wait) => plan.waits(&wait),
        None => plan.actions.push(Action::DropFiles { build: id, formats }),
    }
}

fn unneeded(
    policy: &ImagePolicy,
    build: &Build,
    takers: &[(&ProviderName, &Takes)],
) -> BTreeSet<Box<str>> {
    let waiting: Vec<&Takes> = takers
        .iter()
        .filter(|(provider, _)| !build.has_ready_upload(provider))
        .map(|(_, takes)| *takes)
        .collect();
    // A format that was not built is converted from one that was; which one is the worker's choice.
    let converts = |takes: &&Takes| {
        let format = takes.format.as_deref();
        format.is_none_or(|format| !build.formats.contains(format))
    };
    if waiting.iter().any(converts) {
        return BTreeSet::new();
    }
    let is_needed = |format: &str| {
        let mut waiting = waiting.iter();
        policy.keep_formats.contains(format)
            || waiting.any(|takes| takes.format.as_deref() == Some(format))
    };
    let built = build.formats.iter();
    let converted = build.uploads.values();
    let converted = converted.filter_map(|upload| upload.format.as_deref());
    built
        .chain(converted)
        .filter(|format| !build.dropped.contains(*format) && !is_needed(format))
        .map(Box::from)
        .collect()
}
