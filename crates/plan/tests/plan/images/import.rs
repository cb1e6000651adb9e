//! Images that jobs of Zuul make.

use nodeyard_model::BuildState;
use nodeyard_plan::images::{
    Action, BadBuild, BuildVerdict, ImageOrigin, ImportVerdict, Imports, Offer, Subject,
    ZuulBuildList, ZuulSource,
};

use crate::images::yard::{Yard, formats, time};

fn yard() -> Yard {
    let mut yard = Yard::new();
    yard.policy().origin = ImageOrigin::Imported(Imports {
        max_age: None,
        disks: formats(&["qcow2", "raw"]),
        settings: "these".into(),
    });
    yard.functions().build = false;
    yard.functions().import = true;
    yard
}

/// Zuul was asked a minute ago and will be in a minute.
fn offer(yard: &mut Yard, builds: &[&str]) {
    let offers = builds.iter().rev().zip(0_u32..).map(|(uuid, place)| Offer {
        zuul_build: (*uuid).into(),
        end: Some(time(1000.0 + f64::from(place))),
        formats: formats(&["qcow2"]),
        invalid_reason: None,
    });
    let mut offers: Vec<Offer> = offers.collect();
    offers.reverse();
    yard.snapshot.zuul_builds = Some(ZuulBuildList {
        asked: Some(time(yard.now - 60.0)),
        next: Some(time(yard.now + 60.0)),
        offers,
        ..ZuulBuildList::default()
    });
}

fn import(uuid: &str) -> Action {
    Action::Import {
        zuul_build: uuid.into(),
        formats: formats(&["qcow2"]),
    }
}

fn verdict(yard: &Yard) -> ImportVerdict {
    match yard.decide().explanation.build {
        BuildVerdict::Imported(report) => report.verdict,
        other => panic!("{other:?}"),
    }
}

#[test]
fn zuul_is_asked_first_and_then_now_and_again() {
    let mut yard = yard();
    assert_eq!(yard.actions(), [Action::AskZuul]);
    assert_eq!(verdict(&yard), ImportVerdict::Asks);
    offer(&mut yard, &[]);
    assert_eq!(yard.actions(), []);
    assert_eq!(verdict(&yard), ImportVerdict::Nothing);
    assert_eq!(
        yard.decide().explanation.again_at,
        Some(time(yard.now + 60.0))
    );
    yard.now += 61.0;
    assert_eq!(yard.actions(), [Action::AskZuul]);
}

#[test]
fn that_older_builds_were_not_looked_at_is_told_where_it_matters() {
    let mut yard = yard();
    offer(&mut yard, &[]);
    yard.snapshot.zuul_builds.as_mut().unwrap().has_more = true;
    let text_of = |yard: &Yard| {
        let explanation = yard.decide().explanation;
        explanation.display_at(time(yard.now)).to_string()
    };
    assert!(text_of(&yard).contains("older ones are not checked"));
    yard.snapshot.zuul_builds.as_mut().unwrap().has_more = false;
    assert!(!text_of(&yard).contains("older ones"));
}

#[test]
fn the_newest_is_imported_once() {
    let mut yard = yard();
    offer(&mut yard, &["b", "a"]);
    assert_eq!(yard.actions(), [import("b")]);
    let build = yard.add_build(BuildState::Ready, 0.0);
    let (uuid, end) = ("b".into(), Some(time(1001.0)));
    yard.build(build).zuul = Some(ZuulSource { uuid, end });
    assert!(!yard.actions().contains(&import("b")));
    assert!(matches!(verdict(&yard), ImportVerdict::UpToDate { .. }));
    offer(&mut yard, &["c", "b"]);
    yard.build(build).zuul.as_mut().unwrap().end = Some(time(1000.0));
    assert!(yard.actions().contains(&import("c")));
}

#[test]
fn who_asks_for_a_build_has_zuul_asked_and_gets_what_is_there() {
    let mut yard = yard();
    offer(&mut yard, &["a"]);
    let build = yard.add_build(BuildState::Ready, 0.0);
    let (uuid, end) = ("a".into(), Some(time(1000.0)));
    yard.build(build).zuul = Some(ZuulSource { uuid, end });
    yard.request();
    assert!(yard.actions().contains(&Action::AskZuul));
    assert!(!yard.actions().contains(&import("a")));
    let order = yard.snapshot.request.unwrap().order;
    yard.snapshot.zuul_builds.as_mut().unwrap().request = Some(order);
    assert!(yard.actions().contains(&import("a")));
    // It was begun after the request, so the request is served.
    let again = yard.add_build(BuildState::Ready, 0.0);
    yard.build(again).zuul = yard.build(build).zuul.clone();
    assert!(!yard.actions().contains(&import("a")));
    assert!(matches!(yard.actions()[0], Action::ClearRequest { .. }));
}

#[test]
fn a_store_whose_clock_is_ahead_does_not_have_zuul_asked_again_and_again() {
    let mut yard = yard();
    offer(&mut yard, &["a"]);
    yard.request();
    let request = yard.snapshot.request.as_mut().unwrap();
    request.made = time(yard.now + 3600.0);
    let order = request.order;
    let zuul_builds = yard.snapshot.zuul_builds.as_mut().unwrap();
    zuul_builds.request = Some(order);
    zuul_builds.asked = Some(time(yard.now));
    assert_eq!(yard.actions(), [import("a")]);
    // Nor is what has failed for this request tried for it once more.
    let failed = yard.add_build(BuildState::Failed, 0.0);
    let bad = BadBuild {
        since: time(yard.now),
        until: time(yard.now + 100.0),
        reason: "status 404".to_owned(),
        tries: 0,
        build: Some(failed),
        order: yard.build(failed).order,
        under: formats(&[]),
    };
    let zuul_builds = yard.snapshot.zuul_builds.as_mut().unwrap();
    zuul_builds.bad.insert("a".into(), bad);
    assert!(!yard.actions().contains(&import("a")));
    yard.request();
    let order = yard.snapshot.request.unwrap().order;
    yard.snapshot.zuul_builds.as_mut().unwrap().request = Some(order);
    assert!(yard.actions().contains(&import("a")));
}

#[test]
fn only_one_steward_queries_zuul_at_a_time() {
    let mut yard = yard();
    offer(&mut yard, &[]);
    let until = yard.now + 30.0;
    let zuul_builds = yard.snapshot.zuul_builds.as_mut().unwrap();
    (zuul_builds.next, zuul_builds.asking) = (None, Some(time(until)));
    assert_eq!(yard.actions(), []);
    assert_eq!(yard.decide().explanation.again_at, Some(time(until)));
    yard.request();
    assert_eq!(yard.actions(), []);
    assert_eq!(verdict(&yard), ImportVerdict::Asks);
    // The steward of the last query has died.
    yard.now = until;
    assert_eq!(yard.actions(), [Action::AskZuul]);
}

#[test]
fn pauses_failures_and_missing_workers_hold_it_back() {
    let mut yard = yard();
    offer(&mut yard, &["a"]);
    yard.functions().import = false;
    assert_eq!(yard.actions(), []);
    assert!(matches!(verdict(&yard), ImportVerdict::Waits { .. }));
    yard.functions().import = true;
    let build = yard.add_build(BuildState::Failed, 0.0);
    yard.fail(Subject::Build, build);
    assert!(!yard.actions().contains(&import("a")));
    yard.snapshot.backoffs.clear();
    assert!(yard.actions().contains(&import("a")));
    yard.snapshot.paused = true;
    assert!(!yard.actions().contains(&import("a")));
    assert!(!yard.actions().contains(&Action::AskZuul));
}

#[test]
fn what_zuul_said_is_told_while_a_build_is_fetched() {
    let mut yard = yard();
    offer(&mut yard, &["b", "a"]);
    let zuul_builds = yard.snapshot.zuul_builds.as_mut().unwrap();
    zuul_builds.error = Some("status 502".to_owned());
    zuul_builds.offers[0].formats = formats(&["tar"]);
    let build = yard.add_build(BuildState::Building, 30.0);
    let (uuid, end) = ("a".into(), Some(time(1000.0)));
    yard.build(build).zuul = Some(ZuulSource { uuid, end });
    yard.snapshot.building = true;
    assert_eq!(yard.actions(), []);
    let text = yard
        .decide()
        .explanation
        .display_at(time(yard.now))
        .to_string();
    let expected = format!(
        "  next build: under way as {build} for 30 s, fetched from Zuul's a; queried 1 min ago\n    \
         the last query failed: status 502\n    \
         Zuul's b is rejected: it has no artifact for qcow2\n"
    );
    assert!(text.contains(&expected), "{text}");
}
