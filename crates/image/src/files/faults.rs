//! Fault injection for tests: a process killed before a change, or a change that fails because the disk is full.
//!
//! The plan and its counter are thread-local.

use std::cell::Cell;
use std::io;

thread_local! {
    static PLAN: Cell<FaultPlan> = const { Cell::new(FaultPlan::None) };
}

#[derive(Clone, Copy, PartialEq)]
enum FaultPlan {
    None,
    /// All changes after this many fail.
    Killed {
        left: usize,
    },
    /// The change after this many fails.
    Full {
        left: usize,
    },
    Done,
}

/// Runs `work` as if the process were killed before its `number`th change. Returns false if it made fewer changes.
pub(crate) fn killed_at(number: usize, work: &dyn Fn()) -> bool {
    run_with_plan(FaultPlan::Killed { left: number }, work)
}

/// Runs `work` as if the disk were full at its `number`th change. Returns false if it made fewer changes.
pub(crate) fn full_at(number: usize, work: &dyn Fn()) -> bool {
    run_with_plan(FaultPlan::Full { left: number }, work)
}

fn run_with_plan(plan: FaultPlan, work: &dyn Fn()) -> bool {
    PLAN.set(plan);
    work();
    let left = PLAN.replace(FaultPlan::None);
    matches!(left, FaultPlan::Killed { left: 0 } | FaultPlan::Done)
}

pub(super) fn inject_fault() -> io::Result<()> {
    match PLAN.get() {
        FaultPlan::Killed { left: 0 } => Err(io::Error::other("killed")),
        FaultPlan::Killed { left } => {
            PLAN.set(FaultPlan::Killed { left: left - 1 });
            Ok(())
        }
        FaultPlan::Full { left: 0 } => {
            PLAN.set(FaultPlan::Done);
            Err(io::ErrorKind::StorageFull.into())
        }
        FaultPlan::Full { left } => {
            PLAN.set(FaultPlan::Full { left: left - 1 });
            Ok(())
        }
        FaultPlan::None | FaultPlan::Done => Ok(()),
    }
}
