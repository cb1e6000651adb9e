//! Decides whether the image is built.

use std::collections::BTreeSet;

use nodeyard_model::{BuildId, BuildState};

use super::DecideInputs;
use super::state::{ImageOrigin, ImagePolicy, Imports, Services, Subject};
use super::verdict::{Action, BuildVerdict, Plan, WaitReason, WhyBuild, WhyPaused};

pub(super) fn decide(inputs: &DecideInputs<'_>, plan: &mut Plan) {
    let snapshot = inputs.snapshot;
    // A build that began after the request has served it, whatever else applies.
    if let Some(request) = snapshot.served_request() {
        let order = request.order;
        plan.actions.push(Action::ClearRequest { order });
    }
    let under_way = under_way(inputs);
    if !snapshot.building
        && let Some(build) = under_way
    {
        plan.actions.push(Action::ResumeBuild { build });
        plan.explanation.build = BuildVerdict::Resumes { build };
        return;
    }
    let Some(policy) = &snapshot.policy else {
        return;
    };
    let verdict = match verdict(inputs, policy, under_way) {
        Ok(verdict) => verdict,
        Err(imports) => return super::import::decide(inputs, policy, imports, plan),
    };
    match &verdict {
        BuildVerdict::Begins { .. } => {
            let formats = policy.formats.clone();
            plan.actions.push(Action::Build { formats });
        }
        BuildVerdict::UpToDate { due, .. } => plan.schedule_recheck(*due),
        BuildVerdict::Waits { wait, .. } => plan.waits(wait),
        _ => {}
    }
    plan.explanation.build = verdict;
}

/// Returns the unfinished build that began last.
fn under_way(inputs: &DecideInputs<'_>) -> Option<BuildId> {
    let builds = inputs.snapshot.builds.iter();
    builds
        .filter(|(_, build)| build.state == BuildState::Building)
        .max_by_key(|(_, build)| build.order)
        .map(|(id, _)| *id)
}

/// Returns the verdict on an image that is built here, or the import settings if it is imported and an import is
/// allowed.
fn verdict<'p>(
    inputs: &DecideInputs<'_>,
    policy: &'p ImagePolicy,
    under_way: Option<BuildId>,
) -> Result<BuildVerdict, &'p Imports> {
    let snapshot = inputs.snapshot;
    if snapshot.building {
        let build = under_way.and_then(|id| snapshot.builds.get(&id));
        let import = match &policy.origin {
            ImageOrigin::Imported(imports) => {
                let report = super::import::report_under_way(inputs, policy, imports, build);
                Some(Box::new(report))
            }
            ImageOrigin::Built { .. } => None,
        };
        return Ok(BuildVerdict::UnderWay {
            build: under_way,
            since: build.map(|build| build.since),
            import,
        });
    }
    if policy.pause || snapshot.paused {
        let by = if policy.pause {
            WhyPaused::Configuration
        } else {
            WhyPaused::Person
        };
        return Ok(BuildVerdict::Paused { by });
    }
    if policy.formats.is_empty() {
        return Ok(BuildVerdict::NoFormats);
    }
    let rebuild_age = match &policy.origin {
        ImageOrigin::Built { rebuild_age } => *rebuild_age,
        ImageOrigin::Imported(imports) => return Err(imports),
    };
    let why = match need(inputs, policy, rebuild_age) {
        Ok(why) => why,
        Err(up_to_date) => return Ok(up_to_date),
    };
    if let Some(wait) = back_off(inputs) {
        return Ok(BuildVerdict::Waits { why, wait });
    }
    Ok(match &snapshot.services {
        Services::Unknown { reason } => BuildVerdict::Waits {
            why,
            wait: WaitReason::JobServer {
                reason: reason.clone(),
            },
        },
        Services::Known(functions) if !functions.build => BuildVerdict::Waits {
            why,
            wait: WaitReason::Worker {
                function: format!("image-build:{}", snapshot.image),
            },
        },
        Services::Known(_) => BuildVerdict::Begins { why },
    })
}

/// Returns why a build is needed, or the verdict that none is.
fn need(
    inputs: &DecideInputs<'_>,
    policy: &ImagePolicy,
    rebuild_age: std::time::Duration,
) -> Result<WhyBuild, BuildVerdict> {
    let snapshot = inputs.snapshot;
    let newest = snapshot.ready_builds().first().copied();
    let newest = newest.and_then(|id| Some((id, snapshot.builds.get(&id)?)));
    if let Some(request) = snapshot.request
        && snapshot.served_request().is_none()
    {
        let since = request.made;
        return Ok(WhyBuild::Requested { since });
    }
    let Some((id, build)) = newest else {
        return Ok(WhyBuild::None);
    };
    let missing: BTreeSet<Box<str>> = policy
        .formats
        .iter()
        // A format that was requested and not built would not be built the next time either.
        .filter(|format| !build.formats.contains(format) && !build.asked.contains(*format))
        .cloned()
        .collect();
    if !missing.is_empty() {
        let build = id;
        return Ok(WhyBuild::Formats { build, missing });
    }
    let age = inputs.now.since(build.since);
    if age >= rebuild_age {
        return Ok(WhyBuild::Old {
            build: id,
            age,
            limit: rebuild_age,
        });
    }
    Err(BuildVerdict::UpToDate {
        build: id,
        due: build.since + rebuild_age,
    })
}

/// Returns the backoff of failed builds. A build request that is newer than the last failure clears it.
pub(super) fn back_off(inputs: &DecideInputs<'_>) -> Option<WaitReason> {
    let backoff = inputs.snapshot.backoffs.get(&Subject::Build)?;
    let asked_since = |request: super::ImageBuildRequest| request.order > backoff.order;
    if inputs.snapshot.request.is_some_and(asked_since) {
        return None;
    }
    inputs.active_backoff(&Subject::Build)
}
