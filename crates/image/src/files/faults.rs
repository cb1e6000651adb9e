//! Faults for tests: a process that is killed before a change, or a change that fails.
//!
//! The plan is one of the thread, and so are the changes it counts.

use std::cell::Cell;
use std::io;

thread_local! {
    static PLAN: Cell<Plan> = const { Cell::new(Plan::None) };
}

#[derive(Clone, Copy, PartialEq)]
enum Plan {
    None,
    /// This many changes happen, and then no more.
    Killed {
        left: usize,
    },
    /// This many changes happen, and the one after them does not.
    Full {
        left: usize,
    },
    Done,
}

/// Runs `work` as a process that is killed before its `number`th change. False if it ended before that.
pub(crate) fn killed_at(number: usize, work: &dyn Fn()) -> bool {
    under(Plan::Killed { left: number }, work)
}

/// Runs `work` on a disk that has no room for its `number`th change. False if it ended before that.
pub(crate) fn full_at(number: usize, work: &dyn Fn()) -> bool {
    under(Plan::Full { left: number }, work)
}

fn under(plan: Plan, work: &dyn Fn()) -> bool {
    PLAN.set(plan);
    work();
    let left = PLAN.replace(Plan::None);
    matches!(left, Plan::Killed { left: 0 } | Plan::Done)
}

pub(super) fn hazard() -> io::Result<()> {
    match PLAN.get() {
        Plan::Killed { left: 0 } => Err(io::Error::other("killed")),
        Plan::Killed { left } => {
            PLAN.set(Plan::Killed { left: left - 1 });
            Ok(())
        }
        Plan::Full { left: 0 } => {
            PLAN.set(Plan::Done);
            Err(io::ErrorKind::StorageFull.into())
        }
        Plan::Full { left } => {
            PLAN.set(Plan::Full { left: left - 1 });
            Ok(())
        }
        Plan::None | Plan::Done => Ok(()),
    }
}
