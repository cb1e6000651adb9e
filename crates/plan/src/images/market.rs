//! What Zuul has to offer, and which of it is taken.
//!
//! A steward asks Zuul now and then and keeps what it said where all stewards and `image why` find it. From that,
//! [`choose`] takes the newest build that can be used: never one that is older than what is here, never one that
//! turned out to be bad a while ago, and with a word on each that it passed over. The newest is the one that ended
//! last: Zuul lists builds as they began.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodeyard_model::{BuildId, Timestamp};
use serde::{Deserialize, Serialize};

/// What Zuul said when it was last asked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Market {
    /// When it was last asked.
    pub asked: Option<Timestamp>,
    /// When it is to be asked again.
    pub next: Option<Timestamp>,
    /// Somebody asks right now, and nobody else before this.
    pub asking: Option<Timestamp>,
    /// The request for a build that was there when it was last asked, by its place in the order of the store's writes.
    pub request: Option<i64>,
    /// Questions in a row without a good answer, and what came of the last.
    pub failures: u32,
    pub error: Option<String>,
    /// As Zuul lists them: those that began last come first.
    pub offers: Vec<Offer>,
    /// Zuul may have older ones, which it was not asked for.
    pub has_more: bool,
    /// Builds that were tried in vain, by their ids.
    pub bad: BTreeMap<Box<str>, BadBuild>,
}

/// A successful build of the job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Offer {
    pub zuul_build: Box<str>,
    pub end: Option<Timestamp>,
    /// That it has an artifact for.
    pub formats: BTreeSet<Box<str>>,
    /// Why what Zuul says of it makes no sense, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaw: Option<String>,
}

/// A build of Zuul that was tried in vain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BadBuild {
    pub since: Timestamp,
    /// It is left alone until then.
    pub until: Timestamp,
    pub reason: String,
    /// How often it has failed in a way that another try might not; none if another try would fail the same way.
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
pub struct ZuulBuild {
    pub uuid: Box<str>,
    pub end: Option<Timestamp>,
}

/// A build of Zuul that is not taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PassedOver {
    pub zuul_build: Box<str>,
    pub why: Refusal,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// It was tried, and failed in a way that another try would not change.
    Bad { until: Timestamp, reason: String },
    /// It lacks artifacts.
    Incomplete { missing: BTreeSet<Box<str>> },
    /// It ended longer ago than `max-age` allows.
    TooOld { age: Duration, limit: Duration },
    /// What Zuul says of it makes no sense.
    Flawed { reason: String },
}

/// What is wanted.
#[derive(Debug)]
pub(super) struct Wanted<'w> {
    pub(super) formats: &'w BTreeSet<Box<str>>,
    /// Formats that can be made of each other.
    pub(super) disks: &'w BTreeSet<Box<str>>,
    pub(super) max_age: Option<Duration>,
    /// As [`BadBuild::under`] has them.
    pub(super) settings: &'w str,
    /// What is here, and the formats it was fetched in.
    pub(super) current: Option<(&'w ZuulBuild, BTreeSet<&'w str>)>,
    /// Somebody asks for it, at this place in the order of the store's writes: what is here is fetched again, and what
    /// was bad before is tried.
    pub(super) request: Option<i64>,
    pub(super) now: Timestamp,
}

/// Which build to take.
#[derive(Debug, PartialEq)]
pub(super) enum Choice {
    Take {
        zuul_build: Box<str>,
        formats: BTreeSet<Box<str>>,
    },
    /// The newest that can be used is here.
    UpToDate,
    Nothing,
}

impl Wanted<'_> {
    fn is_current(&self, offer: &Offer) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|(current, _)| current.uuid == offer.zuul_build)
    }

    /// It ended before the one that is here.
    fn is_older(&self, offer: &Offer) -> bool {
        self.current.as_ref().is_some_and(|(current, _)| {
            matches!((offer.end, current.end), (Some(offer), Some(current)) if offer < current)
        })
    }
}

pub(super) fn choose(market: &Market, wanted: &Wanted<'_>) -> (Choice, Vec<PassedOver>) {
    let mut passed_over = Vec::new();
    for offer in newest_first(&market.offers) {
        let is_current = wanted.is_current(offer);
        if wanted.is_older(offer) {
            continue;
        }
        let fetch = fetch(offer, wanted);
        if is_current && wanted.request.is_none() {
            // A provider that came later may need another format of it.
            let lacks = fetch.as_ref().is_ok_and(|fetch| {
                let has = wanted.current.as_ref().map(|(_, formats)| formats);
                fetch
                    .iter()
                    .any(|format| has.is_none_or(|has| !has.contains(&**format)))
            });
            if !lacks {
                return (Choice::UpToDate, passed_over);
            }
        }
        match refusal(market, offer, wanted, fetch.as_ref().err()) {
            Some(why) => passed_over.push(PassedOver {
                zuul_build: offer.zuul_build.clone(),
                why,
            }),
            None => {
                let choice = Choice::Take {
                    zuul_build: offer.zuul_build.clone(),
                    formats: fetch.unwrap_or_default(),
                };
                return (choice, passed_over);
            }
        }
        if is_current {
            break;
        }
    }
    let nothing_newer = wanted.current.is_some();
    let choice = if nothing_newer {
        Choice::UpToDate
    } else {
        Choice::Nothing
    };
    (choice, passed_over)
}

/// Whether nothing that Zuul lists further down could be of use: there is one to take, or the list goes down to what
/// is here.
pub(super) fn goes_far_enough(market: &Market, wanted: &Wanted<'_>) -> bool {
    let mut offers = market.offers.iter();
    matches!(choose(market, wanted).0, Choice::Take { .. })
        || offers.any(|offer| wanted.is_current(offer) || wanted.is_older(offer))
}

/// By their ends. One that has none stays beside its neighbour.
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

fn refusal(
    market: &Market,
    offer: &Offer,
    wanted: &Wanted<'_>,
    missing: Option<&BTreeSet<Box<str>>>,
) -> Option<Refusal> {
    if let Some(reason) = offer.flaw.clone() {
        return Some(Refusal::Flawed { reason });
    }
    if let Some(bad) = market.bad.get(&offer.zuul_build)
        && bad.until > wanted.now
        && (bad.under.is_empty() || bad.under.contains(wanted.settings))
        && wanted.request.is_none_or(|request| request < bad.order)
    {
        return Some(Refusal::Bad {
            until: bad.until,
            reason: bad.reason.clone(),
        });
    }
    if let (Some(limit), Some(end)) = (wanted.max_age, offer.end) {
        let age = wanted.now.since(end);
        if age > limit {
            return Some(Refusal::TooOld { age, limit });
        }
    }
    missing.map(|missing| Refusal::Incomplete {
        missing: missing.clone(),
    })
}

/// What to fetch of an offer so that every wanted format is there or can be made; else what is missing.
fn fetch(offer: &Offer, wanted: &Wanted<'_>) -> Result<BTreeSet<Box<str>>, BTreeSet<Box<str>>> {
    let (mut fetch, missing): (BTreeSet<_>, BTreeSet<_>) = wanted
        .formats
        .iter()
        .cloned()
        .partition(|format| offer.formats.contains(format));
    let lost: BTreeSet<Box<str>> = missing
        .iter()
        .filter(|format| !wanted.disks.contains(*format))
        .cloned()
        .collect();
    if missing.is_empty() {
        return Ok(fetch);
    }
    let mut sources = offer.formats.intersection(wanted.disks);
    let has_source = fetch.iter().any(|format| wanted.disks.contains(format));
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

    fn market(offers: &[(&str, u32, &str)]) -> Market {
        let offers = offers.iter().map(|(uuid, end, formats)| Offer {
            zuul_build: (*uuid).into(),
            end: Some(time(*end)),
            formats: set(formats),
            flaw: None,
        });
        Market {
            offers: offers.collect(),
            ..Market::default()
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
        current: Option<(ZuulBuild, &'static str)>,
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
            let build = ZuulBuild {
                uuid: uuid.into(),
                end: Some(time(end)),
            };
            self.current = Some((build, formats));
            self
        }

        fn choose(&self, market: &Market) -> (Choice, Vec<PassedOver>) {
            self.with(|wanted| choose(market, wanted))
        }

        fn with<T>(&self, judge: impl FnOnce(&Wanted<'_>) -> T) -> T {
            judge(&Wanted {
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
        let offers = market(&[
            ("c", 30, "vmdk"),
            ("b", 20, "raw tgz"),
            ("a", 10, "raw tgz"),
        ]);
        let (choice, passed_over) = case("raw tgz").choose(&offers);
        assert_eq!(choice, take("b", "raw tgz"));
        let missing = set("raw tgz");
        assert_eq!(passed_over[0].why, Refusal::Incomplete { missing });
        assert_eq!(case("raw").choose(&market(&[])).0, Choice::Nothing);
    }

    #[test]
    fn never_older_than_what_is_here() {
        let offers = market(&[("c", 30, "tgz"), ("b", 20, "raw"), ("a", 10, "raw")]);
        let (choice, passed_over) = case("raw").has("x", 25, "raw").choose(&offers);
        assert_eq!(choice, Choice::UpToDate);
        assert_eq!(passed_over.len(), 1);
        let (choice, _) = case("raw").has("b", 20, "raw").choose(&offers);
        assert_eq!(choice, Choice::UpToDate);
        let (choice, _) = case("raw").has("a", 10, "raw").choose(&offers);
        assert_eq!(choice, take("b", "raw"));
    }

    #[test]
    fn the_newest_is_the_one_that_ended_last() {
        // As they began: the one that took longest is not at the top.
        let offers = market(&[("c", 30, "raw"), ("a", 10, "raw"), ("b", 40, "raw")]);
        assert_eq!(case("raw").choose(&offers).0, take("b", "raw"));
        let (choice, _) = case("raw").has("c", 30, "raw").choose(&offers);
        assert_eq!(choice, take("b", "raw"));
        let (choice, _) = case("raw").has("x", 35, "raw").choose(&offers);
        assert_eq!(choice, take("b", "raw"));
        let (choice, passed_over) = case("raw").has("b", 40, "raw").choose(&offers);
        assert_eq!((choice, passed_over), (Choice::UpToDate, vec![]));
        // One without an end stays where it was listed.
        let mut offers = market(&[("d", 0, "raw"), ("c", 30, "raw"), ("b", 20, "raw")]);
        offers.offers[0].end = None;
        assert_eq!(case("raw").choose(&offers).0, take("d", "raw"));
        offers.offers.swap(0, 1);
        assert_eq!(case("raw").choose(&offers).0, take("c", "raw"));
    }

    #[test]
    fn what_is_listed_further_down_matters_while_nothing_fits() {
        let enough =
            |case: &Case, offers: &Market| case.with(|wanted| goes_far_enough(offers, wanted));
        let useless = market(&[("c", 30, "tgz"), ("b", 20, "tgz")]);
        assert!(!enough(&case("raw"), &useless));
        assert!(!enough(&case("raw").has("a", 10, "raw"), &useless));
        assert!(enough(&case("raw").has("b", 20, "raw"), &useless));
        assert!(enough(&case("raw").has("x", 25, "raw"), &useless));
        assert!(enough(&case("tgz"), &useless));
        assert!(!enough(&case("raw"), &market(&[])));
    }

    #[test]
    fn a_format_that_is_needed_later_is_fetched_from_the_same_build() {
        let offers = market(&[("b", 20, "raw tgz")]);
        let (choice, _) = case("raw tgz").has("b", 20, "raw").choose(&offers);
        assert_eq!(choice, take("b", "raw tgz"));
    }

    #[test]
    fn a_disk_is_made_of_another_if_it_must() {
        let offers = market(&[("b", 20, "raw")]);
        assert_eq!(case("qcow2 vhd").choose(&offers).0, take("b", "raw"));
        assert_eq!(case("qcow2 raw").choose(&offers).0, take("b", "raw"));
        assert_eq!(
            case("qcow2").has("b", 20, "raw").choose(&offers).0,
            Choice::UpToDate
        );
        assert_eq!(case("qcow2 tgz").choose(&offers).0, Choice::Nothing);
    }

    #[test]
    fn bad_builds_are_passed_over_until_somebody_asks() {
        let mut offers = market(&[("b", 20, "raw"), ("a", 10, "raw")]);
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
        let (choice, passed_over) = case("raw").choose(&offers);
        assert_eq!(choice, take("a", "raw"));
        assert!(matches!(passed_over[0].why, Refusal::Bad { .. }));
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
        let mut offers = market(&[("b", 20, "raw"), ("a", 10, "raw")]);
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
    fn what_makes_no_sense_hides_nothing_else() {
        let mut offers = market(&[("?", 30, "raw"), ("b", 20, "raw")]);
        offers.offers[0].flaw = Some("it has no `uuid`".to_owned());
        let (choice, passed_over) = case("raw").choose(&offers);
        assert_eq!(choice, take("b", "raw"));
        assert!(matches!(passed_over[0].why, Refusal::Flawed { .. }));
    }

    #[test]
    fn somebody_who_asks_gets_the_same_build_again() {
        let offers = market(&[("b", 20, "raw")]);
        let mut again = case("raw").has("b", 20, "raw");
        assert_eq!(again.choose(&offers).0, Choice::UpToDate);
        again.request = Some(90);
        assert_eq!(again.choose(&offers).0, take("b", "raw"));
    }

    #[test]
    fn what_is_too_old_is_left() {
        let offers = market(&[("b", 20, "raw")]);
        let mut case = case("raw");
        case.max_age = Some(970);
        let (choice, passed_over) = case.choose(&offers);
        assert_eq!(choice, Choice::Nothing);
        assert!(matches!(passed_over[0].why, Refusal::TooOld { .. }));
    }
}
