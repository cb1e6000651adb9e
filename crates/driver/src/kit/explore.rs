//! Runs a life under every schedule of faults.

use std::future::Future;

use super::bed::Bed;
use super::faults::{Fault, Faults, Point};
use super::life::{Life, Recovery, Violation};
use super::records::Store;
use crate::error::ErrorClass;

/// How much to try.
#[derive(Debug, Clone, Copy)]
pub struct Suite {
    /// How many nodes live side by side.
    pub nodes: usize,
    pub uploads: usize,
    /// Of the faults that strike alone, every n-th: for clouds that take their time.
    pub singles: usize,
    /// Also two faults in one run, crashes and lost answers: every n-th of all combinations.
    pub pairs: Option<usize>,
}

impl Default for Suite {
    fn default() -> Self {
        Self {
            nodes: 2,
            uploads: 0,
            singles: 1,
            pairs: None,
        }
    }
}

/// What was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Points of a run without faults.
    pub points: usize,
    pub runs: usize,
}

/// A run in which a promise was broken, and how to have it again.
#[derive(Debug, thiserror::Error)]
#[error("with {faults}, recovery {recovery:?}, operations repeated: {repeat}")]
pub struct Failure {
    pub faults: String,
    pub recovery: Recovery,
    pub repeat: bool,
    #[source]
    pub violation: Violation,
}

/// Tries everything in `suite`, each run in a bed of its own.
pub async fn explore<B, F>(suite: Suite, bed: impl Fn() -> F) -> Result<Report, Failure>
where
    B: Bed,
    F: Future<Output = B>,
{
    let mut explorer = Explorer {
        suite,
        bed,
        runs: 0,
    };
    let points = explorer.run(&[], Recovery::Resume, false).await?;
    explorer.run(&[], Recovery::Resume, true).await?;
    for recovery in [Recovery::Resume, Recovery::Abandon] {
        for schedule in singles(&points).step_by(suite.singles.max(1)) {
            explorer.run(&[schedule], recovery, false).await?;
        }
        if let Some(nth) = suite.pairs {
            for schedule in pairs(&points).step_by(nth.max(1)) {
                explorer.run(&schedule, recovery, false).await?;
            }
        }
    }
    Ok(Report {
        points: points.len(),
        runs: explorer.runs,
    })
}

fn singles(points: &[Point]) -> impl Iterator<Item = (usize, Fault)> {
    points.iter().enumerate().flat_map(|(at, point)| {
        single_faults()
            .filter(|fault| fault.suits(point.kind))
            .map(move |fault| (at, fault))
    })
}

fn single_faults() -> impl Iterator<Item = Fault> {
    let refusals = ErrorClass::ALL.iter().copied().map(Fault::Refused);
    [
        Fault::CrashBefore,
        Fault::CrashAfter,
        Fault::Lost,
        Fault::CancelBefore,
        Fault::CancelAfter,
    ]
    .into_iter()
    .chain(refusals)
}

/// A second fault may strike what the first one made necessary, so its points are those of a longer run.
fn pairs(points: &[Point]) -> impl Iterator<Item = [(usize, Fault); 2]> {
    const FAULTS: [Fault; 3] = [Fault::CrashBefore, Fault::CrashAfter, Fault::Lost];
    let end = points.len() + points.len() / 2;
    points.iter().enumerate().flat_map(move |(first, point)| {
        FAULTS
            .into_iter()
            .filter(|fault| fault.suits(point.kind))
            .flat_map(move |fault| {
                (first + 1..end)
                    .flat_map(move |second| FAULTS.map(|other| [(first, fault), (second, other)]))
            })
    })
}

struct Explorer<M> {
    suite: Suite,
    bed: M,
    runs: usize,
}

impl<M> Explorer<M> {
    async fn run<B, F>(
        &mut self,
        schedule: &[(usize, Fault)],
        recovery: Recovery,
        repeat: bool,
    ) -> Result<Vec<Point>, Failure>
    where
        M: Fn() -> F,
        B: Bed,
        F: Future<Output = B>,
    {
        self.runs += 1;
        let bed = (self.bed)().await;
        let faults = Faults::at(schedule);
        let life = Life {
            bed: &bed,
            store: Store::default(),
            faults: faults.clone(),
            nodes: self.suite.nodes,
            uploads: self.suite.uploads,
            repeat,
        };
        let end = life.run(recovery).await;
        let passed = faults.passed();
        match end {
            Ok(()) => Ok(passed),
            Err(violation) => Err(Failure {
                faults: describe(schedule, &passed),
                recovery,
                repeat,
                violation,
            }),
        }
    }
}

fn describe(schedule: &[(usize, Fault)], passed: &[Point]) -> String {
    if schedule.is_empty() {
        return "no fault".to_owned();
    }
    let texts: Vec<_> = schedule
        .iter()
        .map(|(at, fault)| {
            let name = passed.get(*at).map_or("not reached", |point| &point.name);
            format!("{fault:?} at point {at} ({name})")
        })
        .collect();
    texts.join(", ")
}
