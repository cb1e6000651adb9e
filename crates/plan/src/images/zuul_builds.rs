//! The builds of Zuul for an imported image, and which of them is imported.
//!
//! A steward queries Zuul periodically and stores the result as a [`ZuulBuildList`]. [`choose`] selects the newest
//! usable build from it: never one that is older than the current build, never one that is marked bad, and with a
//! [`RejectReason`] for each newer one. The newest build is the one that ended last, while Zuul lists builds by start
//! time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodeyard_model::{BuildId, Timestamp};
use serde::{Deserialize, Serialize};

/// The result of the last query of Zuul, as stored.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ZuulBuildList {
    /// When Zuul was last queried.
    pub asked: Option<Timestamp>,
    /// When the next query is due.
    pub next: Option<Timestamp>,
    /// A query is in progress; no other starts before this time.
    pub asking: Option<Timestamp>,
    /// The build request at the time of the last query, by its position in the order of store writes.
    pub request: Option<i64>,
    /// Consecutive failed queries, and the error of the last.
    pub failures: u32,
    pub error: Option<String>,
    /// In the order of the response: by start time, the newest first.
    pub offers: Vec<Offer>,
    /// Zuul may have older builds that were not queried.
    pub has_more: bool,
    /// Builds whose import failed, by id.
    pub bad: BTreeMap<Box<str>, BadBuild>,
}

/// A successful build of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Offer {
    pub zuul_build: Box<str>,
    pub end: Option<Timestamp>,
    /// The formats it has an artifact for.
    pub formats: BTreeSet<Box<str>>,
    /// Why the entry is invalid, if it is.
    #[serde(rename = "flaw", default, skip_serializing_if = "Option::is_none")]
    pub invalid_reason: Option<String>,
}

/// A build of Zuul whose import failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BadBuild {
    pub since: Timestamp,
    /// It is not imported before this time.
    pub until: Timestamp,
    pub reason: String,
    /// How often it failed with an error that may be temporary. Zero if the error is permanent.
    #[serde(default)]
    pub tries: u32,
    /// The build of ours that came to nothing last.
    #[serde(default)]
    pub build: Option<BuildId>,
    /// Where that build has its place in the order of the store's writes.
    #[serde(default)]
    pub order: i64,
    /// The settings it was tried with. With others it may be of use. Several, since not all stewards need have the
    /// same ones; empty for any.
    #[serde(default)]
    pub under: BTreeSet<Box<str>>,
}

/// Where a build of ours comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct ZuulSource {
    pub uuid: Box<str>,
    pub end: Option<Timestamp>,
}

/// A build of Zuul that is not imported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RejectedBuild {
    pub zuul_build: Box<str>,
    pub why: RejectReason,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RejectReason {
    /// Its import failed permanently.
    Bad { until: Timestamp, reason: String },
    /// It lacks artifacts.
    Incomplete { missing: BTreeSet<Box<str>> },
    /// It ended longer ago than `max-age` allows.
    TooOld { age: Duration, limit: Duration },
    /// Its entry in the response is invalid.
    #[serde(rename = "flawed")]
    Invalid { reason: String },
}

/// What an imported build has to provide.
#[derive(Debug)]
pub(super) struct ImportCriteria<'w> {
    pub(super) formats: &'w BTreeSet<Box<str>>,
    /// Formats that can be made of each other.
    pub(super) disks: &'w BTreeSet<Box<str>>,
    pub(super) max_age: Option<Duration>,
    /// As [`BadBuild::under`] has them.
    pub(super) settings: &'w str,
    /// The current build, and the formats it was fetched in.
    pub(super) current: Option<(&'w ZuulSource, BTreeSet<&'w str>)>,
    /// The open build request, by its position in the order of store writes. It causes the current build to be fetched
    /// again and builds that were marked bad earlier to be retried.
    pub(super) request: Option<i64>,
    pub(super) now: Timestamp,
}

/// The build to import.
#[derive(Debug, PartialEq)]
pub(super) enum Choice {
    Take {
        zuul_build: Box<str>,
        formats: BTreeSet<Box<str>>,
    },
    /// The current build is the newest usable one.
    UpToDate,
    Nothing,
}

impl ImportCriteria<'_> {
    fn is_current(&self, offer: &Offer) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|(current, _)| current.uuid == offer.zuul_build)
    }

    /// Returns whether a build ended before the current one.
    fn is_older(&self, offer: &Offer) -> bool {
        self.current.as_ref().is_some_and(|(current, _)| {
            matches!((offer.end, current.end), (Some(offer), Some(current)) if offer < current)
        })
    }
}

pub(super) fn choose(
    zuul_builds: &ZuulBuildList,
    criteria: &ImportCriteria<'_>,
) -> (Choice, Vec<RejectedBuild>) {
    let mut rejected = Vec::new();
    for offer in newest_first(&zuul_builds.offers) {
        let is_current = criteria.is_current(offer);
        if criteria.is_older(offer) {
            continue;
        }
        let fetch = fetch(offer, criteria);
        if is_current && criteria.request.is_none() {
            // A provider that was added later may need another format of it.
            let lacks = fetch.as_ref().is_ok_and(|fetch| {
                let has = criteria.current.as_ref().map(|(_, formats)| formats);
                fetch
                    .iter()
                    .any(|format| has.is_none_or(|has| !has.contains(&**format)))
            });
            if !lacks {
                return (Choice::UpToDate, rejected);
            }
        }
        match reject_reason(zuul_builds, offer, criteria, fetch.as_ref().err()) {
            Some(why) => rejected.push(RejectedBuild {
                zuul_build: offer.zuul_build.clone(),
                why,
            }),
            None => {
                let choice = Choice::Take {
                    zuul_build: offer.zuul_build.clone(),
                    formats: fetch.unwrap_or_default(),
                };
                return (choice, rejected);
            }
        }
        if is_current {
            break;
        }
    }
    let nothing_newer = criteria.current.is_some();
    let choice = if nothing_newer {
        Choice::UpToDate
    } else {
        Choice::Nothing
    };
    (choice, rejected)
}

/// Returns whether older builds need not be queried: a usable one is in the list, or the list reaches the current
/// build.
pub(super) fn needs_no_older(zuul_builds: &ZuulBuildList, criteria: &ImportCriteria<'_>) -> bool {
    let mut offers = zuul_builds.offers.iter();
    matches!(choose(zuul_builds, criteria).0, Choice::Take { .. })
        || offers.any(|offer| criteria.is_current(offer) || criteria.is_older(offer))
}

/// Sorts by end time. A build without one keeps its position after its neighbour.
fn newest_first(offers: &[Offer]) -> Vec<&Offer> {
    let mut end = offers.iter().find_map(|offer| offer.end);
    let mut placed: Vec<(Option<Timestamp>, &Offer)> = offers
        .iter()
        .map(|offer| {
            end = offer.end.or(end);
            (end, offer)
        })
        .collect();
    placed.sort_by_key(|(end, _)| Reverse(*end));
    placed.into_iter().map(|(_, offer)| offer).collect()
}

fn reject_reason(
    zuul_builds: &ZuulBuildList,
    offer: &Offer,
    criteria: &ImportCriteria<'_>,
    missing: Option<&BTreeSet<Box<str>>>,
) -> Option<RejectReason> {
    if let Some(reason) = offer.invalid_reason.clone() {
        return Some(RejectReason::Invalid { reason });
    }
    if let Some(bad) = zuul_builds.bad.get(&offer.zuul_build)
        && bad.until > criteria.now
        && (bad.under.is_empty() || bad.under.contains(criteria.settings))
        && criteria.request.is_none_or(|request| request < bad.order)
    {
        return Some(RejectReason::Bad {
            until: bad.until,
            reason: bad.reason.clone(),
        });
    }
    if let (Some(limit), Some(end)) = (criteria.max_age, offer.end) {
        let age = criteria.now.since(end);
        if age > limit {
            return Some(RejectReason::TooOld { age, limit });
        }
    }
    missing.map(|missing| RejectReason::Incomplete {
        missing: missing.clone(),
    })
}

/// Returns which formats to fetch so that every wanted format is present or can be converted, or else the missing
/// formats.
fn fetch(
    offer: &Offer,
    criteria: &ImportCriteria<'_>,
) -> Result<BTreeSet<Box<str>>, BTreeSet<Box<str>>> {
    let (mut fetch, missing): (BTreeSet<_>, BTreeSet<_>) = criteria
        .formats
        .iter()
        .cloned()
        .partition(|format| offer.formats.contains(format));
    let lost: BTreeSet<Box<str>> = missing
        .iter()
        .filter(|format| !criteria.disks.contains(*format))
        .cloned()
        .collect();
    if missing.is_empty() {
        return Ok(fetch);
    }
    let mut sources = offer.formats.intersection(criteria.disks);
    let has_source = fetch.iter().any(|format| criteria.disks.contains(format));
    match sources.next() {
        Some(_) if lost.is_empty() && has_source => Ok(fetch),
        Some(source) if lost.is_empty() => {
            fetch.insert(source.clone());
            Ok(fetch)
        }
        Some(_) => Err(lost),
        None => Err(missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(secs: u32) -> Timestamp {
        Timestamp::from_secs(f64::from(secs)).unwrap()
    }

    fn set(formats: &str) -> BTreeSet<Box<str>> {
        formats.split_whitespace().map(Box::from).collect()
    }

    fn zuul_builds(offers: &[(&str, u32, &str)]) -> ZuulBuildList {
        let offers = offers.iter().map(|(uuid, end, formats)| Offer {
            zuul_build: (*uuid).into(),
            end: Some(time(*end)),
            formats: set(formats),
            invalid_reason: None,
        });
        ZuulBuildList {
            offers: offers.collect(),
            ..ZuulBuildList::default()
        }
    }

    fn take(uuid: &str, formats: &str) -> Choice {
        Choice::Take {
            zuul_build: uuid.into(),
            formats: set(formats),
        }
    }

    struct Case {
        formats: BTreeSet<Box<str>>,
        disks: BTreeSet<Box<str>>,
        current: Option<(ZuulSource, &'static str)>,
        max_age: Option<u64>,
        request: Option<i64>,
    }

    fn case(formats: &str) -> Case {
        Case {
            formats: set(formats),
            disks: set("raw qcow2 vhd"),
            current: None,
            max_age: None,
            request: None,
        }
    }

    impl Case {
        fn has(mut self, uuid: &str, end: u32, formats: &'static str) -> Self {
            let build = ZuulSource {
                uuid: uuid.into(),
                end: Some(time(end)),
            };
            self.current = Some((build, formats));
            self
        }

        fn choose(&self, zuul_builds: &ZuulBuildList) -> (Choice, Vec<RejectedBuild>) {
            self.with(|criteria| choose(zuul_builds, criteria))
        }

        fn with<T>(&self, check: impl FnOnce(&ImportCriteria<'_>) -> T) -> T {
            check(&ImportCriteria {
                formats: &self.formats,
                disks: &self.disks,
                max_age: self.max_age.map(Duration::from_secs),
                settings: "these",
                current: self
                    .current
                    .as_ref()
                    .map(|(build, formats)| (build, formats.split_whitespace().collect())),
                request: self.request,
                now: time(1000),
            })
        }
    }

    #[test]
    fn the_newest_complete_build_is_taken() {
        let offers = zuul_builds(&[
            ("c", 30, "vmdk"),
            ("b", 20, "raw tgz"),
            ("a", 10, "raw tgz"),
        ]);
        let (choice, rejected) = case("raw tgz").choose(&offers);
        assert_eq!(choice, take("b", "raw tgz"));
        let missing = set("raw tgz");
        assert_eq!(rejected[0].why, RejectReason::Incomplete { missing });
        assert_eq!(case("raw").choose(&zuul_builds(&[])).0, Choice::Nothing);
    }

    #[test]
    fn never_older_than_what_is_here() {
        let offers = zuul_builds(&[("c", 30, "tgz"), ("b", 20, "raw"), ("a", 10, "raw")]);
        let (choice, rejected) = case("raw").has("x", 25, "raw").choose(&offers);
        assert_eq!(choice, Choice::UpToDate);
        assert_eq!(rejected.len(), 1);
        let (choice, _) = case("raw").has("b", 20, "raw").choose(&offers);
        assert_eq!(choice, Choice::UpToDate);
        let (choice, _) = case("raw").has("a", 10, "raw").choose(&offers);
        assert_eq!(choice, take("b", "raw"));
    }

    #[test]
    fn the_newest_is_the_one_that_ended_last() {
        // As they began: the one that took longest is not at the top.
        let offers = zuul_builds(&[("c", 30, "raw"), ("a", 10, "raw"), ("b", 40, "raw")]);
        assert_eq!(case("raw").choose(&offers).0, take("b", "raw"));
        let (choice, _) = case("raw").has("c", 30, "raw").choose(&offers);
        assert_eq!(choice, take("b", "raw"));
        let (choice, _) = case("raw").has("x", 35, "raw").choose(&offers);
        assert_eq!(choice, take("b", "raw"));
        let (choice, rejected) = case("raw").has("b", 40, "raw").choose(&offers);
        assert_eq!((choice, rejected), (Choice::UpToDate, vec![]));
        // One without an end stays where it was listed.
        let mut offers = zuul_builds(&[("d", 0, "raw"), ("c", 30, "raw"), ("b", 20, "raw")]);
        offers.offers[0].end = None;
        assert_eq!(case("raw").choose(&offers).0, take("d", "raw"));
        offers.offers.swap(0, 1);
        assert_eq!(case("raw").choose(&offers).0, take("c", "raw"));
    }

    #[test]
    fn what_is_listed_further_down_matters_while_nothing_fits() {
        let enough = |case: &Case, offers: &ZuulBuildList| {
            case.with(|criteria| needs_no_older(offers, criteria))
        };
        let useless = zuul_builds(&[("c", 30, "tgz"), ("b", 20, "tgz")]);
        assert!(!enough(&case("raw"), &useless));
        assert!(!enough(&case("raw").has("a", 10, "raw"), &useless));
        assert!(enough(&case("raw").has("b", 20, "raw"), &useless));
        assert!(enough(&case("raw").has("x", 25, "raw"), &useless));
        assert!(enough(&case("tgz"), &useless));
        assert!(!enough(&case("raw"), &zuul_builds(&[])));
    }

    #[test]
    fn a_format_that_is_needed_later_is_fetched_from_the_same_build() {
        let offers = zuul_builds(&[("b", 20, "raw tgz")]);
        let (choice, _) = case("raw tgz").has("b", 20, "raw").choose(&offers);
        assert_eq!(choice, take("b", "raw tgz"));
    }

    #[test]
    fn a_disk_is_made_of_another_if_it_must() {
        let offers = zuul_builds(&[("b", 20, "raw")]);
        assert_eq!(case("qcow2 vhd").choose(&offers).0, take("b", "raw"));
        assert_eq!(case("qcow2 raw").choose(&offers).0, take("b", "raw"));
        assert_eq!(
            case("qcow2").has("b", 20, "raw").choose(&offers).0,
            Choice::UpToDate
        );
        assert_eq!(case("qcow2 tgz").choose(&offers).0, Choice::Nothing);
    }

    #[test]
    fn bad_builds_are_rejected_until_a_build_is_requested() {
        let mut offers = zuul_builds(&[("b", 20, "raw"), ("a", 10, "raw")]);
        let bad = BadBuild {
            since: time(900),
            until: time(2000),
            reason: "404".to_owned(),
            tries: 0,
            build: None,
            order: 90,
            under: set("those these"),
        };
        offers.bad.insert("b".into(), bad);
        let (choice, rejected) = case("raw").choose(&offers);
        assert_eq!(choice, take("a", "raw"));
        assert!(matches!(rejected[0].why, RejectReason::Bad { .. }));
        let mut asked = case("raw");
        asked.request = Some(95);
        assert_eq!(asked.choose(&offers).0, take("b", "raw"));
        asked.request = Some(85);
        assert_eq!(asked.choose(&offers).0, take("a", "raw"));
        offers.bad.get_mut("b").unwrap().until = time(999);
        assert_eq!(case("raw").choose(&offers).0, take("b", "raw"));
    }

    #[test]
    fn what_was_bad_with_other_settings_is_tried_with_these() {
        let mut offers = zuul_builds(&[("b", 20, "raw"), ("a", 10, "raw")]);
        let mut bad = BadBuild {
            since: time(900),
            until: time(2000),
            reason: "too large".to_owned(),
            tries: 0,
            build: None,
            order: 90,
            under: set("those"),
        };
        offers.bad.insert("b".into(), bad.clone());
        assert_eq!(case("raw").choose(&offers).0, take("b", "raw"));
        // As it was written before settings were.
        bad.under.clear();
        offers.bad.insert("b".into(), bad);
        assert_eq!(case("raw").choose(&offers).0, take("a", "raw"));
    }

    #[test]
    fn an_invalid_entry_hides_no_other() {
        let mut offers = zuul_builds(&[("?", 30, "raw"), ("b", 20, "raw")]);
        offers.offers[0].invalid_reason = Some("it has no `uuid`".to_owned());
        let (choice, rejected) = case("raw").choose(&offers);
        assert_eq!(choice, take("b", "raw"));
        assert!(matches!(rejected[0].why, RejectReason::Invalid { .. }));
    }

    #[test]
    fn a_request_imports_the_same_build_again() {
        let offers = zuul_builds(&[("b", 20, "raw")]);
        let mut again = case("raw").has("b", 20, "raw");
        assert_eq!(again.choose(&offers).0, Choice::UpToDate);
        again.request = Some(90);
        assert_eq!(again.choose(&offers).0, take("b", "raw"));
    }

    #[test]
    fn what_is_too_old_is_left() {
        let offers = zuul_builds(&[("b", 20, "raw")]);
        let mut case = case("raw");
        case.max_age = Some(970);
        let (choice, rejected) = case.choose(&offers);
        assert_eq!(choice, Choice::Nothing);
        assert!(matches!(rejected[0].why, RejectReason::TooOld { .. }));
    }
}
