//! Whether an image that Zuul jobs make is fetched, and whether Zuul is asked for a newer one.

use nodeyard_model::{BuildId, Timestamp};

use super::Judge;
use super::market::{Choice, Market, Offer, Wanted, ZuulBuild, choose, goes_far_enough};
use super::picture::{Build, ImagePolicy, Imports, Origin, Picture, Services};
use super::verdict::{Action, BuildVerdict, ImportReport, ImportVerdict, Plan, Wait};

pub(super) fn judge(judge: &Judge<'_>, policy: &ImagePolicy, imports: &Imports, plan: &mut Plan) {
    let nothing_yet = Market::default();
    let market = judge.picture.market.as_ref().unwrap_or(&nothing_yet);
    if let Some(until) = market.asking.filter(|until| *until > judge.now) {
        plan.look_again(until);
    } else if is_due(judge, market) {
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

/// Whether builds that Zuul lists further down than these could be of use.
pub fn is_worth_more(picture: &Picture, offers: &[Offer], now: Timestamp) -> bool {
    let Some((policy, imports)) = picture.policy.as_ref().and_then(|policy| {
        let Origin::Imported(imports) = &policy.origin else {
            return None;
        };
        Some((policy, imports))
    }) else {
        return false;
    };
    let market = Market {
        offers: offers.to_vec(),
        ..picture.market.clone().unwrap_or_default()
    };
    !goes_far_enough(&market, &wanted(picture, policy, imports, now))
}

/// Time has come, or somebody wants to know now.
fn is_due(judge: &Judge<'_>, market: &Market) -> bool {
    market.next.is_none_or(|next| next <= judge.now) || asks_anew(judge, market)
}

/// Somebody asks for a build, and Zuul was not asked since. The clocks of those who ask and of the store may differ, so
/// no times are compared.
fn asks_anew(judge: &Judge<'_>, market: &Market) -> bool {
    let request = request(judge.picture);
    request.is_some() && market.request != request
}

fn request(picture: &Picture) -> Option<i64> {
    let open = picture
        .request
        .filter(|_| picture.served_request().is_none());
    open.map(|request| request.order)
}

/// The newest build that was imported and is ready.
fn current(picture: &Picture) -> Option<(BuildId, &Build, &ZuulBuild)> {
    let newest = picture.ready_builds().into_iter();
    newest.into_iter().find_map(|id| {
        let build = picture.builds.get(&id)?;
        Some((id, build, build.zuul.as_ref()?))
    })
}

fn wanted<'p>(
    picture: &'p Picture,
    policy: &'p ImagePolicy,
    imports: &'p Imports,
    now: Timestamp,
) -> Wanted<'p> {
    Wanted {
        formats: &policy.formats,
        disks: &imports.disks,
        max_age: imports.max_age,
        settings: &imports.settings,
        current: current(picture).map(|(_, build, zuul)| (zuul, build.formats.iter().collect())),
        request: request(picture),
        now,
    }
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
    let (choice, passed_over) = choose(market, &wanted(picture, policy, imports, judge.now));
    report.passed_over = passed_over;
    report.verdict = match (choice, current(picture)) {
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
