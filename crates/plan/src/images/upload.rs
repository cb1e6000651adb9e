//! Decides whether the newest build is uploaded to the providers that use the image.

use nodeyard_model::{BuildId, ProviderName, UploadState};

use super::DecideInputs;
use super::state::{BuildSnapshot, Services, Subject, UploadRef, UploadTarget};
use super::verdict::{Action, Plan, ProviderReport, UploadVerdict, WaitReason};

pub(super) fn decide(inputs: &DecideInputs<'_>, plan: &mut Plan) {
    let snapshot = inputs.snapshot;
    if snapshot.policy.is_none() {
        return;
    }
    let newest = snapshot.ready_builds().first().copied();
    let newest = newest.and_then(|id| Some((id, snapshot.builds.get(&id)?)));
    for (provider, takes) in &snapshot.providers {
        let Some(takes) = takes else { continue };
        let verdict = match newest {
            Some((id, build)) => verdict(inputs, id, build, provider, takes),
            None => UploadVerdict::NoBuild,
        };
        match &verdict {
            UploadVerdict::Begins { build } => plan.actions.push(Action::Upload {
                build: *build,
                provider: provider.clone(),
            }),
            UploadVerdict::Waits { wait, .. } => plan.waits(wait),
            _ => {}
        }
        plan.explanation.providers.push(ProviderReport {
            provider: provider.clone(),
            verdict,
            launches: snapshot.launches(provider),
        });
    }
}

fn verdict(
    inputs: &DecideInputs<'_>,
    id: BuildId,
    build: &BuildSnapshot,
    provider: &ProviderName,
    takes: &UploadTarget,
) -> UploadVerdict {
    let mut uploads = build.uploads_to(provider);
    if let Some((_, ready)) = uploads.find(|(_, upload)| upload.state == UploadState::Ready) {
        let since = ready.since;
        return UploadVerdict::Done { build: id, since };
    }
    if build.uploading.contains(provider) {
        return UploadVerdict::UnderWay { build: id };
    }
    let mut uploads = build.uploads_to(provider);
    if let Some((upload, _)) = uploads.find(|(_, upload)| upload.state == UploadState::Uploading) {
        return UploadVerdict::Settles(UploadRef {
            build: id,
            provider: provider.clone(),
            upload,
        });
    }
    if takes.pause {
        return UploadVerdict::Paused;
    }
    match wait(inputs, id, provider) {
        Some(wait) => UploadVerdict::Waits { build: id, wait },
        None => UploadVerdict::Begins { build: id },
    }
}

fn wait(inputs: &DecideInputs<'_>, build: BuildId, provider: &ProviderName) -> Option<WaitReason> {
    let subject = Subject::Upload {
        provider: provider.clone(),
    };
    // Failures of an earlier build do not delay a new one.
    let backoff = inputs.snapshot.backoffs.get(&subject);
    if backoff.is_some_and(|backoff| backoff.build == build)
        && let Some(wait) = inputs.active_backoff(&subject)
    {
        return Some(wait);
    }
    match &inputs.snapshot.services {
        Services::Unknown { reason } => {
            let reason = reason.clone();
            Some(WaitReason::JobServer { reason })
        }
        Services::Known(functions) if !functions.upload.contains(&build) => {
            Some(WaitReason::Worker {
                function: format!("image-upload:{build}"),
            })
        }
        Services::Known(_) => None,
    }
}
