//! Faults, and the points at which they strike.

use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::error::ErrorClass;

/// What happens at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies; the call or write does not happen.
    CrashBefore,
    /// The call or write happens, then the process dies.
    CrashAfter,
    /// The call happens, but its answer does not arrive.
    Lost,
    /// The caller gives its operations up before the call happens, and repeats them.
    CancelBefore,
    /// The caller gives its operations up after the call happened, and repeats them.
    CancelAfter,
    /// The call does not happen; the cloud answers with an error of this class.
    Refused(ErrorClass),
}

impl Fault {
    /// A write to the store either happens or does not, as far as the process lives to see it.
    pub(super) fn suits(self, kind: PointKind) -> bool {
        kind == PointKind::Call || matches!(self, Self::CrashBefore | Self::CrashAfter)
    }
}

/// What a bed's transport is to answer instead of what the cloud said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injected {
    /// As if the connection broke.
    Lost,
    /// As this cloud tells an error of that class.
    Refused(ErrorClass),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PointKind {
    Call,
    Write,
}

#[derive(Debug, Clone)]
pub(super) struct Point {
    pub(super) kind: PointKind,
    pub(super) name: String,
}

/// The faults of one run. Clones share everything.
#[derive(Debug, Clone, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    schedule: Mutex<Schedule>,
    crashed: Notify,
    cancellations: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Schedule {
    planned: Vec<(usize, Fault)>,
    passed: Vec<Point>,
    refused: Option<ErrorClass>,
}

impl Faults {
    pub fn none() -> Self {
        Self::default()
    }

    /// Each fault strikes at the point with its number, counted from the start over all restarts.
    pub(super) fn at(planned: &[(usize, Fault)]) -> Self {
        let faults = Self::default();
        faults.schedule().planned = planned.to_vec();
        faults
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.0
            .schedule
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, kind: PointKind, name: &str) -> Option<Fault> {
        let mut schedule = self.schedule();
        let number = schedule.passed.len();
        let name = name.to_owned();
        schedule.passed.push(Point { kind, name });
        let (_, fault) = schedule
            .planned
            .iter()
            .find(|(at, fault)| *at == number && fault.suits(kind))?;
        let fault = *fault;
        if let Fault::Refused(class) = fault {
            schedule.refused = Some(class);
        }
        Some(fault)
    }

    /// Passes one call to the cloud through. `Err` is what the transport is to make of it.
    pub async fn call<T>(&self, name: &str, call: impl Future<Output = T>) -> Result<T, Injected> {
        match self.pass(PointKind::Call, name) {
            None => Ok(call.await),
            Some(Fault::CrashBefore) => self.crash().await,
            Some(Fault::CrashAfter) => {
                call.await;
                self.crash().await
            }
            Some(Fault::Lost) => {
                call.await;
                Err(Injected::Lost)
            }
            Some(Fault::CancelBefore) => self.cancel().await,
            Some(Fault::CancelAfter) => {
                call.await;
                self.cancel().await
            }
            Some(Fault::Refused(class)) => Err(Injected::Refused(class)),
        }
    }

    pub(super) async fn write(&self, name: &str, write: impl FnOnce()) {
        match self.pass(PointKind::Write, name) {
            Some(Fault::CrashBefore) => self.crash().await,
            Some(Fault::CrashAfter) => {
                write();
                self.crash::<()>().await;
            }
            _ => write(),
        }
    }

    /// Nothing of this process runs on from here: whoever waits for [`Faults::crashed`] drops it.
    async fn crash<T>(&self) -> T {
        self.0.crashed.notify_one();
        pending().await
    }

    pub(super) async fn crashed(&self) {
        self.0.crashed.notified().await;
    }

    async fn cancel<T>(&self) -> T {
        self.0.cancellations.send_modify(|count| *count += 1);
        pending().await
    }

    /// Runs an operation until it ends, or until the caller is to give it up.
    pub(super) async fn cancellable<T>(&self, operation: impl Future<Output = T>) -> Option<T> {
        let mut cancellations = self.0.cancellations.subscribe();
        tokio::select! {
            biased;
            end = operation => Some(end),
            _ = cancellations.changed() => None,
        }
    }

    /// The class of the last refusal, once.
    pub(super) fn take_refusal(&self) -> Option<ErrorClass> {
        self.schedule().refused.take()
    }

    pub(super) fn passed(&self) -> Vec<Point> {
        self.schedule().passed.clone()
    }
}
