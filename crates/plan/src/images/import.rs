//! Decides whether a build of Zuul is imported, and whether Zuul is queried.

use nodeyard_model::{BuildId, Timestamp};

use super::DecideInputs;
use super::state::{BuildSnapshot, ImageOrigin, ImagePolicy, ImageState, Imports, Services};
use super::verdict::{Action, BuildVerdict, ImportReport, ImportVerdict, Plan, WaitReason};
use super::zuul_builds::{
    Choice, ImportCriteria, Offer, ZuulBuildList, ZuulSource, choose, needs_no_older,
};

pub(super) fn decide(
    inputs: &DecideInputs<'_>,
    policy: &ImagePolicy,
    imports: &Imports,
    plan: &mut Plan,
) {
    let nothing_yet = ZuulBuildList::default();
    let zuul_builds = inputs.snapshot.zuul_builds.as_ref().unwrap_or(&nothing_yet);
    if let Some(until) = zuul_builds.asking.filter(|until| *until > inputs.now) {
        plan.schedule_recheck(until);
    } else if is_due(inputs, zuul_builds) {
        plan.actions.push(Action::AskZuul);
    } else if let Some(next) = zuul_builds.next {
        plan.schedule_recheck(next);
    }
    let report = report(inputs, policy, imports, zuul_builds);
    match &report.verdict {
        ImportVerdict::Begins {
            zuul_build,
            formats,
        } => plan.actions.push(Action::Import {
            zuul_build: zuul_build.clone(),
            formats: formats.clone(),
        }),
        ImportVerdict::Waits { wait, .. } => plan.waits(wait),
        ImportVerdict::Asks
        | ImportVerdict::Nothing
        | ImportVerdict::UnderWay { .. }
        | ImportVerdict::UpToDate { .. } => {}
    }
    plan.explanation.build = BuildVerdict::Imported(Box::new(report));
}

/// Returns whether older builds in the list of Zuul could be imported instead of these.
pub fn is_worth_more(snapshot: &ImageState, offers: &[Offer], now: Timestamp) -> bool {
    let Some((policy, imports)) = snapshot.policy.as_ref().and_then(|policy| {
        let ImageOrigin::Imported(imports) = &policy.origin else {
            return None;
        };
        Some((policy, imports))
    }) else {
        return false;
    };
    let zuul_builds = ZuulBuildList {
        offers: offers.to_vec(),
        ..snapshot.zuul_builds.clone().unwrap_or_default()
    };
    !needs_no_older(&zuul_builds, &criteria(snapshot, policy, imports, now))
}

/// Returns whether a query of Zuul is due.
fn is_due(inputs: &DecideInputs<'_>, zuul_builds: &ZuulBuildList) -> bool {
    zuul_builds.next.is_none_or(|next| next <= inputs.now) || asks_anew(inputs, zuul_builds)
}

/// Returns whether a build was requested since the last query. Times are not compared, since clocks may differ.
fn asks_anew(inputs: &DecideInputs<'_>, zuul_builds: &ZuulBuildList) -> bool {
    let request = request(inputs.snapshot);
    request.is_some() && zuul_builds.request != request
}

fn request(snapshot: &ImageState) -> Option<i64> {
    let open = snapshot
        .request
        .filter(|_| snapshot.served_request().is_none());
    open.map(|request| request.order)
}

/// Returns the newest imported build that is ready.
fn current(snapshot: &ImageState) -> Option<(BuildId, &BuildSnapshot, &ZuulSource)> {
    let newest = snapshot.ready_builds().into_iter();
    newest.into_iter().find_map(|id| {
        let build = snapshot.builds.get(&id)?;
        Some((id, build, build.zuul.as_ref()?))
    })
}

fn criteria<'p>(
    snapshot: &'p ImageState,
    policy: &'p ImagePolicy,
    imports: &'p Imports,
    now: Timestamp,
) -> ImportCriteria<'p> {
    ImportCriteria {
        formats: &policy.formats,
        disks: &imports.disks,
        max_age: imports.max_age,
        settings: &imports.settings,
        current: current(snapshot).map(|(_, build, zuul)| (zuul, build.formats.iter().collect())),
        request: request(snapshot),
        now,
    }
}

/// Returns the import report while a build is being fetched.
pub(super) fn report_under_way(
    inputs: &DecideInputs<'_>,
    policy: &ImagePolicy,
    imports: &Imports,
    fetched: Option<&BuildSnapshot>,
) -> ImportReport {
    let nothing_yet = ZuulBuildList::default();
    let zuul_builds = inputs.snapshot.zuul_builds.as_ref().unwrap_or(&nothing_yet);
    let mut report = report(inputs, policy, imports, zuul_builds);
    if let Some(zuul) = fetched.and_then(|build| build.zuul.as_ref()) {
        let zuul_build = zuul.uuid.clone();
        report.verdict = ImportVerdict::UnderWay { zuul_build };
    }
    report
}

fn report(
    inputs: &DecideInputs<'_>,
    policy: &ImagePolicy,
    imports: &Imports,
    zuul_builds: &ZuulBuildList,
) -> ImportReport {
    let mut report = ImportReport {
        asked: zuul_builds.asked,
        next: zuul_builds.next,
        error: zuul_builds.error.clone(),
        has_more: zuul_builds.has_more,
        rejected: Vec::new(),
        verdict: ImportVerdict::Asks,
    };
    if zuul_builds.asked.is_none() || asks_anew(inputs, zuul_builds) {
        return report;
    }
    let snapshot = inputs.snapshot;
    let (choice, rejected) = choose(
        zuul_builds,
        &criteria(snapshot, policy, imports, inputs.now),
    );
    report.rejected = rejected;
    report.verdict = match (choice, current(snapshot)) {
        (
            Choice::Take {
                zuul_build,
                formats,
            },
            _,
        ) => match wait(inputs) {
            Some(wait) => ImportVerdict::Waits { zuul_build, wait },
            None => ImportVerdict::Begins {
                zuul_build,
                formats,
            },
        },
        (Choice::UpToDate, Some((build, _, zuul))) => ImportVerdict::UpToDate {
            build,
            zuul_build: zuul.uuid.clone(),
        },
        (Choice::UpToDate | Choice::Nothing, _) => ImportVerdict::Nothing,
    };
    report
}

fn wait(inputs: &DecideInputs<'_>) -> Option<WaitReason> {
    if let Some(wait) = super::build::back_off(inputs) {
        return Some(wait);
    }
    match &inputs.snapshot.services {
        Services::Unknown { reason } => Some(WaitReason::JobServer {
            reason: reason.clone(),
        }),
        Services::Known(functions) if !functions.import => Some(WaitReason::Worker {
            function: format!("image-import:{}", inputs.snapshot.image),
        }),
        Services::Known(_) => None,
    }
}
