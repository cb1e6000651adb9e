//! Whether the image is to be built.

use std::collections::BTreeSet;

use nodeyard_model::{BuildId, BuildState};

use super::Judge;
use super::picture::{ImagePolicy, Imports, Origin, Services, Subject};
use super::verdict::{Action, BuildVerdict, Plan, Wait, WhyBuild, WhyPaused};

pub(super) fn judge(judge: &Judge<'_>, plan: &mut Plan) {
    let picture = judge.picture;
    // Whatever else holds: who has asked for a build that was begun later has what they wanted.
    if let Some(request) = picture.served_request() {
        let order = request.order;
        plan.actions.push(Action::ClearRequest { order });
    }
    let under_way = under_way(judge);
    if !picture.building
        && let Some(build) = under_way
    {
        plan.actions.push(Action::ResumeBuild { build });
        plan.explanation.build = BuildVerdict::Resumes { build };
        return;
    }
    let Some(policy) = &picture.policy else {
        return;
    };
    let verdict = match verdict(judge, policy, under_way) {
        Ok(verdict) => verdict,
        Err(imports) => return super::import::judge(judge, policy, imports, plan),
    };
    match &verdict {
        BuildVerdict::Begins { .. } => {
            let formats = policy.formats.clone();
            plan.actions.push(Action::Build { formats });
        }
        BuildVerdict::UpToDate { due, .. } => plan.look_again(*due),
        BuildVerdict::Waits { wait, .. } => plan.waits(wait),
        _ => {}
    }
    plan.explanation.build = verdict;
}

/// The build that was begun last and has not ended.
fn under_way(judge: &Judge<'_>) -> Option<BuildId> {
    let builds = judge.picture.builds.iter();
    builds
        .filter(|(_, build)| build.state == BuildState::Building)
        .max_by_key(|(_, build)| build.order)
        .map(|(id, _)| *id)
}

/// The verdict on an image that is built here; else how it is imported, if nothing speaks against it.
fn verdict<'p>(
    judge: &Judge<'_>,
    policy: &'p ImagePolicy,
    under_way: Option<BuildId>,
) -> Result<BuildVerdict, &'p Imports> {
    let picture = judge.picture;
    if picture.building {
        let build = under_way.and_then(|id| picture.builds.get(&id));
        let import = match &policy.origin {
            Origin::Imported(imports) => {
                let report = super::import::report_under_way(judge, policy, imports, build);
                Some(Box::new(report))
            }
            Origin::Built { .. } => None,
        };
        return Ok(BuildVerdict::UnderWay {
            build: under_way,
            since: build.map(|build| build.since),
            import,
        });
    }
    if policy.pause || picture.paused {
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
        Origin::Built { rebuild_age } => *rebuild_age,
        Origin::Imported(imports) => return Err(imports),
    };
    let why = match need(judge, policy, rebuild_age) {
        Ok(why) => why,
        Err(up_to_date) => return Ok(up_to_date),
    };
    if let Some(wait) = back_off(judge) {
        return Ok(BuildVerdict::Waits { why, wait });
    }
    Ok(match &picture.services {
        Services::Unknown { reason } => BuildVerdict::Waits {
            why,
            wait: Wait::JobServer {
                reason: reason.clone(),
            },
        },
        Services::Known(answered) if !answered.build => BuildVerdict::Waits {
            why,
            wait: Wait::Worker {
                function: format!("image-build:{}", picture.image),
            },
        },
        Services::Known(_) => BuildVerdict::Begins { why },
    })
}

/// Why a build is needed, or the verdict that none is.
fn need(
    judge: &Judge<'_>,
    policy: &ImagePolicy,
    rebuild_age: std::time::Duration,
) -> Result<WhyBuild, BuildVerdict> {
    let picture = judge.picture;
    let newest = picture.ready_builds().first().copied();
    let newest = newest.and_then(|id| Some((id, picture.builds.get(&id)?)));
    if let Some(request) = picture.request
        && picture.served_request().is_none()
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
        // One that was asked for and not made would not be made the next time either.
        .filter(|format| !build.formats.contains(format) && !build.asked.contains(*format))
        .cloned()
        .collect();
    if !missing.is_empty() {
        let build = id;
        return Ok(WhyBuild::Formats { build, missing });
    }
    let age = judge.now.since(build.since);
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

/// Somebody who asks for a build after the last failure does not have to wait.
pub(super) fn back_off(judge: &Judge<'_>) -> Option<Wait> {
    let setback = judge.picture.setbacks.get(&Subject::Build)?;
    let asked_since = |request: super::Request| request.order > setback.order;
    if judge.picture.request.is_some_and(asked_since) {
        return None;
    }
    judge.holds_back(&Subject::Build)
}
