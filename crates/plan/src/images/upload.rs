//! Whether the newest build is to be uploaded to the providers that take the image.

use nodeyard_model::{BuildId, ProviderName, UploadState};

use super::Judge;
use super::picture::{Build, Services, Subject, Takes, UploadRef};
use super::verdict::{Action, Plan, ProviderReport, UploadVerdict, Wait};

pub(super) fn judge(judge: &Judge<'_>, plan: &mut Plan) {
    let picture = judge.picture;
    if picture.policy.is_none() {
        return;
    }
    let newest = picture.ready_builds().first().copied();
    let newest = newest.and_then(|id| Some((id, picture.builds.get(&id)?)));
    for (provider, takes) in &picture.providers {
        let Some(takes) = takes else { continue };
        let verdict = match newest {
            Some((id, build)) => verdict(judge, id, build, provider, takes),
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
            launches: picture.launches(provider),
        });
    }
}

fn verdict(
    judge: &Judge<'_>,
    id: BuildId,
    build: &Build,
    provider: &ProviderName,
    takes: &Takes,
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
    match wait(judge, id, provider) {
        Some(wait) => UploadVerdict::Waits { build: id, wait },
        None => UploadVerdict::Begins { build: id },
    }
}

fn wait(judge: &Judge<'_>, build: BuildId, provider: &ProviderName) -> Option<Wait> {
    let subject = Subject::Upload {
        provider: provider.clone(),
    };
    // A new build is new luck.
    let setback = judge.picture.setbacks.get(&subject);
    if setback.is_some_and(|setback| setback.build == build)
        && let Some(wait) = judge.holds_back(&subject)
    {
        return Some(wait);
    }
    match &judge.picture.services {
        Services::Unknown { reason } => {
            let reason = reason.clone();
            Some(Wait::JobServer { reason })
        }
        Services::Known(answered) if !answered.upload.contains(&build) => Some(Wait::Worker {
            function: format!("image-upload:{build}"),
        }),
        Services::Known(_) => None,
    }
}
