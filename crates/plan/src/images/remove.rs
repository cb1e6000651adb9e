//! Decides which uploads, builds and files are kept and which are removed.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{BuildId, BuildState, ProviderName, UploadState};

use super::DecideInputs;
use super::state::{
    BuildSnapshot, ImagePolicy, ImageState, Services, Subject, UploadRef, UploadSnapshot,
    UploadTarget,
};
use super::verdict::{
    Action, BuildReport, Plan, RemovalReason, RetentionVerdict, UploadReport, WaitReason, WhyKept,
};

/// Builds and uploads that are kept whether or not others refer to them.
#[derive(Default)]
struct Kept {
    builds: BTreeMap<BuildId, RetentionVerdict>,
    uploads: BTreeMap<UploadRef, RetentionVerdict>,
}

pub(super) fn decide(inputs: &DecideInputs<'_>, plan: &mut Plan) {
    let kept = kept(inputs);
    let mut builds: Vec<(&BuildId, &BuildSnapshot)> = inputs.snapshot.builds.iter().collect();
    builds.sort_by(|(a, x), (b, y)| (y.since, b).cmp(&(x.since, a)));
    for (id, build) in builds {
        let mut left = Vec::new();
        for ((provider, upload), record) in &build.uploads {
            let upload = UploadRef {
                build: *id,
                provider: provider.clone(),
                upload: *upload,
            };
            let verdict = upload_verdict(inputs, &kept, build, &upload, record);
            match &verdict {
                RetentionVerdict::Removed { .. } => {
                    plan.actions.push(Action::RemoveUpload(upload.clone()));
                }
                RetentionVerdict::Resumes => {
                    plan.actions.push(Action::SettleUpload(upload.clone()));
                }
                RetentionVerdict::Lingers { until } => plan.schedule_recheck(*until),
                RetentionVerdict::Waits { wait, .. } => plan.waits(wait),
                _ => {}
            }
            left.push((upload.clone(), record.state));
            plan.explanation.uploads.push(UploadReport {
                upload,
                state: record.state,
                since: record.since,
                verdict,
            });
        }
        let verdict = build_verdict(inputs, &kept, *id, build, &left);
        match &verdict {
            RetentionVerdict::Removed { .. } => {
                plan.actions.push(Action::RemoveBuild { build: *id });
            }
            RetentionVerdict::UploadsFirst { .. } if has_files(inputs, *id, build) => {
                plan.actions.push(Action::RemoveBuild { build: *id });
            }
            RetentionVerdict::Kept { .. }
            | RetentionVerdict::KeptAnyway { .. }
            | RetentionVerdict::Pinned { .. } => {
                drop_files(inputs, *id, build, plan);
            }
            RetentionVerdict::Lingers { until } => plan.schedule_recheck(*until),
            RetentionVerdict::Waits { wait, .. } => plan.waits(wait),
            _ => {}
        }
        plan.explanation.builds.push(BuildReport {
            build: *id,
            state: build.state,
            since: build.since,
            verdict,
        });
    }
}

fn kept(inputs: &DecideInputs<'_>) -> Kept {
    let snapshot = inputs.snapshot;
    match &snapshot.policy {
        Some(policy) => Kept {
            builds: kept_builds(snapshot, policy.retention.get()),
            uploads: kept_uploads(snapshot, policy.retention.get()),
        },
        None => Kept::default(),
    }
}

/// Returns the newest ready builds that were not rolled back, the pinned build, and the newest of all.
fn kept_builds(snapshot: &ImageState, of: usize) -> BTreeMap<BuildId, RetentionVerdict> {
    let mut kept = BTreeMap::new();
    let ready = snapshot.ready_builds();
    let usable = ready.iter().filter(|id| !is_rolled_back(snapshot, **id));
    for (id, rank) in usable.zip(1..=of) {
        kept.insert(*id, RetentionVerdict::Kept { rank, of });
    }
    let pinned = snapshot.canary.pinned.filter(|id| ready.contains(id));
    let newest = ready.first().copied();
    for (id, why) in [(pinned, WhyKept::Pinned), (newest, WhyKept::Newest)] {
        if let Some(id) = id {
            kept.entry(id)
                .or_insert(RetentionVerdict::KeptAnyway { why });
        }
    }
    kept
}

/// Returns, for each provider that uses the image, the newest ready uploads of ready builds that were not rolled back,
/// and those that its launches use with or without the pin.
fn kept_uploads(snapshot: &ImageState, of: usize) -> BTreeMap<UploadRef, RetentionVerdict> {
    let mut kept = BTreeMap::new();
    for provider in snapshot.providers.keys() {
        if snapshot.takes(provider).is_none() {
            continue;
        }
        let uploads = snapshot.usable_uploads(provider);
        let usable = uploads.iter();
        let usable = usable.filter(|upload| !is_rolled_back(snapshot, upload.build));
        for (upload, rank) in usable.zip(1..=of) {
            kept.insert(upload.clone(), RetentionVerdict::Kept { rank, of });
        }
        // Launches use these as soon as the pin is removed.
        let launches = [
            snapshot.launches(provider),
            snapshot.launches_unpinned(provider),
        ];
        let builds = launches.into_iter().flatten().flat_map(|launches| {
            let tried = launches.trial.map(|tried| tried.build);
            tried.into_iter().chain([launches.build])
        });
        for build in builds {
            if let Some(upload) = uploads.iter().find(|upload| upload.build == build) {
                let why = WhyKept::InUse;
                let verdict = kept.entry(upload.clone());
                verdict.or_insert(RetentionVerdict::KeptAnyway { why });
            }
        }
    }
    kept
}

fn is_rolled_back(snapshot: &ImageState, build: BuildId) -> bool {
    snapshot.canary.is_rolled_back(build)
}

/// Returns why a ready build or upload is not kept.
fn surplus(snapshot: &ImageState, build: BuildId) -> RemovalReason {
    if is_rolled_back(snapshot, build) {
        RemovalReason::RolledBack
    } else {
        RemovalReason::Surplus
    }
}

fn upload_verdict(
    inputs: &DecideInputs<'_>,
    kept: &Kept,
    build: &BuildSnapshot,
    upload: &UploadRef,
    record: &UploadSnapshot,
) -> RetentionVerdict {
    let snapshot = inputs.snapshot;
    let provider = &upload.provider;
    let Some(takes) = snapshot.providers.get(provider) else {
        return RetentionVerdict::NotOurs;
    };
    if record.locked {
        return RetentionVerdict::UnderWay;
    }
    if record.state == UploadState::Uploading {
        if build.uploading.contains(provider) {
            return RetentionVerdict::UnderWay;
        }
        let subject = Subject::RemoveUpload(upload.clone());
        return match inputs
            .active_backoff(&subject)
            .or_else(|| no_job_server(inputs))
        {
            Some(wait) => RetentionVerdict::Waits {
                why: RemovalReason::Failed,
                wait,
            },
            None => RetentionVerdict::Resumes,
        };
    }
    let why = if snapshot.policy.is_none() {
        RemovalReason::ImageGone
    } else if takes.is_none() {
        RemovalReason::NotTaken
    } else {
        match record.state {
            UploadState::Deleting => RemovalReason::Deleting,
            UploadState::Failed => {
                if let Some(until) = inputs.retained_until(record.since) {
                    return RetentionVerdict::Lingers { until };
                }
                RemovalReason::Failed
            }
            _ => {
                if let Some(verdict) = kept.uploads.get(upload) {
                    return verdict.clone();
                }
                if kept.builds.contains_key(&upload.build) {
                    return RetentionVerdict::KeptWithBuild;
                }
                surplus(snapshot, upload.build)
            }
        }
    };
    let subject = Subject::RemoveUpload(upload.clone());
    let wait = inputs.active_backoff(&subject).or_else(|| {
        no_job_server(inputs).or_else(|| match &snapshot.services {
            Services::Known(functions) if !functions.upload_delete.contains(provider) => {
                Some(WaitReason::Worker {
                    function: format!("upload-delete:{provider}"),
                })
            }
            _ => None,
        })
    });
    match wait {
        Some(wait) => RetentionVerdict::Waits { why, wait },
        None => RetentionVerdict::Removed { why },
    }
}

fn build_verdict(
    inputs: &DecideInputs<'_>,
    kept: &Kept,
    id: BuildId,
    build: &BuildSnapshot,
    uploads: &[(UploadRef, UploadState)],
) -> RetentionVerdict {
    if let Some(verdict) = kept.builds.get(&id) {
        return verdict.clone();
    }
    let why = match build.state {
        BuildState::Building if inputs.snapshot.building => return RetentionVerdict::UnderWay,
        BuildState::Building => return RetentionVerdict::Resumes,
        _ if inputs.snapshot.policy.is_none() => RemovalReason::ImageGone,
        BuildState::Failed => {
            if let Some(until) = inputs.retained_until(build.since) {
                return RetentionVerdict::Lingers { until };
            }
            RemovalReason::Failed
        }
        BuildState::Deleting => RemovalReason::Deleting,
        BuildState::Ready => surplus(inputs.snapshot, id),
    };
    if build.unreadable > 0 {
        let uploads = build.unreadable;
        return RetentionVerdict::Unreadable { uploads };
    }
    let in_use = uploads
        .iter()
        .filter(|(_, state)| *state != UploadState::Deleting);
    let by: Vec<UploadRef> = in_use.map(|(upload, _)| upload.clone()).collect();
    if !by.is_empty() {
        return RetentionVerdict::Pinned { by };
    }
    if build.locked {
        return RetentionVerdict::UnderWay;
    }
    if !uploads.is_empty() {
        return RetentionVerdict::UploadsFirst { why };
    }
    let subject = Subject::RemoveBuild { build: id };
    match inputs
        .active_backoff(&subject)
        .or_else(|| no_job_server(inputs))
    {
        Some(wait) => RetentionVerdict::Waits { why, wait },
        None => RetentionVerdict::Removed { why },
    }
}

fn no_job_server(inputs: &DecideInputs<'_>) -> Option<WaitReason> {
    match &inputs.snapshot.services {
        Services::Unknown { reason } => Some(WaitReason::JobServer {
            reason: reason.clone(),
        }),
        Services::Known(_) => None,
    }
}

/// Returns whether removing the build has an effect while its uploads are still being deleted.
fn has_files(inputs: &DecideInputs<'_>, id: BuildId, build: &BuildSnapshot) -> bool {
    let failed_lately = inputs.active_backoff(&Subject::RemoveBuild { build: id });
    match &inputs.snapshot.services {
        _ if failed_lately.is_some() => false,
        Services::Unknown { .. } => false,
        Services::Known(functions) => {
            build.state != BuildState::Deleting || functions.delete.contains(&id)
        }
    }
}

/// Plans the deletion of files by `delete-after-upload`, per format.
fn drop_files(inputs: &DecideInputs<'_>, id: BuildId, build: &BuildSnapshot, plan: &mut Plan) {
    let snapshot = inputs.snapshot;
    let Some(policy) = snapshot
        .policy
        .as_ref()
        .filter(|policy| policy.delete_after_upload)
    else {
        return;
    };
    let held =
        matches!(&snapshot.services, Services::Known(functions) if functions.delete.contains(&id));
    if build.state != BuildState::Ready || build.locked || !held {
        return;
    }
    let takers: Vec<(&ProviderName, &UploadTarget)> = snapshot
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
    match inputs.active_backoff(&Subject::DropFiles { build: id }) {
        Some(wait) => plan.waits(&wait),
        None => plan.actions.push(Action::DropFiles { build: id, formats }),
    }
}

fn unneeded(
    policy: &ImagePolicy,
    build: &BuildSnapshot,
    takers: &[(&ProviderName, &UploadTarget)],
) -> BTreeSet<Box<str>> {
    let waiting: Vec<&UploadTarget> = takers
        .iter()
        .filter(|(provider, _)| !build.has_ready_upload(provider))
        .map(|(_, takes)| *takes)
        .collect();
    // A format that was not built is converted from any of those that were; the worker chooses which.
    let converts = |takes: &&UploadTarget| {
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
