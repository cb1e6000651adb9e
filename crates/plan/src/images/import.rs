//! Whether an image that Zuul jobs make is fetched, and whether Zuul is asked for a newer one.

use nodeyard_model::Timestamp;

use super::Judge;
use super::market::{Choice, Market, Wanted, choose};
use super::picture::{Build, ImagePolicy, Imports, Services};
use super::verdict::{Action, BuildVerdict, ImportReport, ImportVerdict, Plan, Wait};

pub(super) fn judge(judge: &Judge<'_>, policy: &ImagePolicy, imports: &Imports, plan: &mut Plan) {
    let nothing_yet = Market::default();
    let market = judge.picture.market.as_ref().unwrap_or(&nothing_yet);
    if is_due(judge, market) {
        plan.actions.push(Action::AskZuul);
    } else if let Some(next) = market.next {
        plan.look_again(next);
    }
    let report = report(judge, policy, imports, market);
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

/// Time has come, or somebody wants to know now.
fn is_due(judge: &Judge<'_>, market: &Market) -> bool {
    market.next.is_none_or(|next| next <= judge.now) || asks_anew(judge, market)
}

/// Somebody has asked for a build since Zuul was asked.
fn asks_anew(judge: &Judge<'_>, market: &Market) -> bool {
    request(judge).is_some_and(|made| market.asked.is_none_or(|asked| asked < made))
}

fn request(judge: &Judge<'_>) -> Option<Timestamp> {
    let open = judge
        .picture
        .request
        .filter(|_| judge.picture.served_request().is_none());
    open.map(|request| request.made)
}

/// What is known of Zuul's builds while one is being fetched.
pub(super) fn report_under_way(
    judge: &Judge<'_>,
    policy: &ImagePolicy,
    imports: &Imports,
    fetched: Option<&Build>,
) -> ImportReport {
    let nothing_yet = Market::default();
    let market = judge.picture.market.as_ref().unwrap_or(&nothing_yet);
    let mut report = report(judge, policy, imports, market);
    if let Some(zuul) = fetched.and_then(|build| build.zuul.as_ref()) {
        let zuul_build = zuul.uuid.clone();
        report.verdict = ImportVerdict::UnderWay { zuul_build };
    }
    report
}

fn report(
    judge: &Judge<'_>,
    policy: &ImagePolicy,
    imports: &Imports,
    market: &Market,
) -> ImportReport {
    let mut report = ImportReport {
        asked: market.asked,
        next: market.next,
        error: market.error.clone(),
        has_more: market.has_more,
        passed_over: Vec::new(),
        verdict: ImportVerdict::Asks,
    };
    if market.asked.is_none() || asks_anew(judge, market) {
        return report;
    }
    let picture = judge.picture;
    let newest = picture.ready_builds().into_iter();
    let current = newest.into_iter().find_map(|id| {
        let build = picture.builds.get(&id)?;
        Some((id, build, build.zuul.as_ref()?))
    });
    let wanted = Wanted {
        formats: &policy.formats,
        disks: &imports.disks,
        max_age: imports.max_age,
        settings: &imports.settings,
        current: current.map(|(_, build, zuul)| (zuul, build.formats.iter().collect())),
        request: request(judge),
        now: judge.now,
    };
    let (choice, passed_over) = choose(market, &wanted);
    report.passed_over = passed_over;
    report.verdict = match (choice, current) {
        (
            Choice::Take {
                zuul_build,
                formats,
            },
            _,
        ) => match wait(judge) {
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

fn wait(judge: &Judge<'_>) -> Option<Wait> {
    if let Some(wait) = super::build::back_off(judge) {
        return Some(wait);
    }
    match &judge.picture.services {
        Services::Unknown { reason } => Some(Wait::JobServer {
            reason: reason.clone(),
        }),
        Services::Known(answered) if !answered.import => Some(Wait::Worker {
            function: format!("image-import:{}", judge.picture.image),
        }),
        Services::Known(_) => None,
    }
}
