//! Explains why a request waits: the verdict of every pool, the sums behind it, and the next step.

mod ended;

use std::fmt;

use nodeyard_model::{Label, LauncherId, RequestId, RequestState};
use serde::{Deserialize, Serialize};

use crate::assign::DecisionInputs;
use crate::assign::evaluate::RequestContext;
use crate::scheduler::RequestScheduler;
use crate::scheduler::queue::Stage;
use crate::setup::PoolKey;
use crate::verdict::{CapacityShortage, CommaSeparated, Defer, QuotaScope, RequestVerdict, Skip};

pub use ended::{EndedRequest, PoolMessage, RequestOutcome};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AssignmentExplanation {
    pub request: RequestId,
    pub state: RequestState,
    pub labels: Vec<Label>,
    /// How long this launcher has known the request, in seconds.
    pub waiting: u64,
    /// Waiting requests that are served first; none if it does not wait.
    pub ahead: Option<usize>,
    pub pools: Vec<PoolView>,
    pub next: Next,
}

/// The view of one registered pool on a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PoolView {
    pub pool: PoolKey,
    pub id: LauncherId,
    #[serde(rename = "says")]
    pub verdict: PoolVerdict,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolVerdict {
    Ours(RequestVerdict),
    /// The registered state of a pool of another launcher.
    Theirs {
        declined: bool,
        paused: bool,
        missing: Vec<Label>,
    },
}

/// The next step of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Next {
    /// The request is done.
    Done,
    /// A pool of ours is serving it.
    NodesAreLaunched {
        by: PoolKey,
        /// What the launches wait for, if known.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waits: Vec<String>,
    },
    /// Another launcher is serving it.
    AnotherLauncher,
    /// A pool of ours serves it in its next pass.
    Serve { by: PoolKey },
    /// A pool serves it when it has room.
    Room { at: PoolKey, what: String },
    /// A pool of another launcher can serve it.
    WaitFor { pools: Vec<LauncherId> },
    /// A drain has to end.
    Undrain { scope: String },
    /// No pool can serve it. It fails when these have declined.
    Fail { still_to_decline: Vec<LauncherId> },
}

impl RequestScheduler {
    /// Explains a request. None if it does not exist.
    pub fn explain(&self, request: RequestId, at: DecisionInputs) -> Option<AssignmentExplanation> {
        let ctx = RequestContext::of(self, request)?;
        let waiting = ctx.waiting;
        let pools: Vec<PoolView> = self
            .registry
            .iter()
            .map(|(id, pool)| {
                let ours = self.own.get(&pool.key).filter(|own| own.setup.id == *id);
                let verdict = match ours {
                    Some(_) => {
                        let kept = self.booked_before(&pool.key, waiting.order);
                        PoolVerdict::Ours(self.evaluate(&pool.key, &ctx, &kept, at).verdict)
                    }
                    None => PoolVerdict::Theirs {
                        declined: waiting.spec.declined_by.contains(id),
                        paused: pool.paused,
                        missing: pool.missing(&waiting.spec.labels).cloned().collect(),
                    },
                };
                PoolView {
                    pool: pool.key.clone(),
                    id: id.clone(),
                    verdict,
                }
            })
            .collect();
        let in_line = self.queue.line_of(request).is_some();
        Some(AssignmentExplanation {
            request,
            state: waiting.state,
            labels: waiting.spec.labels.clone(),
            waiting: at.now.since(waiting.known_since).as_secs(),
            ahead: in_line.then(|| self.queue.position(waiting.order)),
            next: next(&waiting.stage, waiting.state, &pools),
            pools,
        })
    }
}

fn next(stage: &Stage, state: RequestState, pools: &[PoolView]) -> Next {
    if state.is_final() {
        return Next::Done;
    }
    match stage {
        Stage::Taken(by) => {
            return Next::NodesAreLaunched {
                by: by.clone(),
                waits: Vec::new(),
            };
        }
        Stage::Held(_) => {}
        _ if state == RequestState::Pending => return Next::AnotherLauncher,
        _ => {}
    }
    let accepts =
        |view: &&PoolView| matches!(view.verdict, PoolVerdict::Ours(RequestVerdict::Accept(_)));
    if let Some(view) = pools.iter().find(accepts) {
        let by = view.pool.clone();
        return Next::Serve { by };
    }
    let room = pools.iter().find_map(|view| match &view.verdict {
        PoolVerdict::Ours(RequestVerdict::Defer(defer)) => Some((view, defer.remedy())),
        PoolVerdict::Ours(RequestVerdict::Reserve(shortage)) => Some((view, shortage.remedy())),
        _ => None,
    });
    if let Some((view, what)) = room {
        let at = view.pool.clone();
        return Next::Room { at, what };
    }
    let scope = pools.iter().find_map(|view| match &view.verdict {
        PoolVerdict::Ours(RequestVerdict::Skip(Skip::Drained { scope })) => Some(scope.to_string()),
        _ => None,
    });
    if let Some(scope) = scope {
        return Next::Undrain { scope };
    }
    let ids = |wanted: fn(&PoolVerdict) -> bool| -> Vec<LauncherId> {
        let wanted = pools.iter().filter(|view| wanted(&view.verdict));
        wanted.map(|view| view.id.clone()).collect()
    };
    let capable = ids(|verdict| {
        matches!(verdict, PoolVerdict::Theirs { declined: false, missing, .. } if missing.is_empty())
            || matches!(
                verdict,
                PoolVerdict::Ours(RequestVerdict::Skip(Skip::Ignoring | Skip::NotRegistered))
            )
    });
    if !capable.is_empty() {
        return Next::WaitFor { pools: capable };
    }
    Next::Fail {
        still_to_decline: ids(|verdict| match verdict {
            PoolVerdict::Theirs { declined, .. } => !declined,
            PoolVerdict::Ours(verdict) => {
                !matches!(verdict, RequestVerdict::Skip(Skip::AlreadyDeclined { .. }))
            }
        }),
    }
}

impl Defer {
    fn remedy(&self) -> String {
        match self {
            Self::Shortage(shortage) => shortage.remedy(),
            Self::Launching { .. } => "a launch has to finish".to_owned(),
            Self::Refused { .. } => "the cloud has to accept launches again".to_owned(),
            Self::Unreachable { .. } => "the provider has to start".to_owned(),
            Self::Image(awaited) if awaited.stage.is_upload() => {
                let (image, provider) = (&awaited.image, &awaited.provider);
                format!("image {image} has to be uploaded to {provider}")
            }
            Self::Image(awaited) => {
                let (image, provider) = (&awaited.image, &awaited.provider);
                format!("image {image} has to be built and uploaded to {provider}")
            }
        }
    }
}

impl CapacityShortage {
    fn remedy(&self) -> String {
        match self {
            Self::Machines {
                label,
                needed,
                free,
            } => {
                let more = needed.saturating_sub(*free);
                format!("{more} more machines with label {label} have to be returned")
            }
            Self::Quota(sum) => {
                let taken = sum.foreign + sum.used + sum.launching + sum.kept;
                let lack = taken + sum.needed - sum.limit;
                let resource = &sum.resource;
                match &sum.scope {
                    QuotaScope::Tenant(_) if sum.needed > sum.limit => {
                        format!("the limit on {resource} of {} has to be raised", sum.scope)
                    }
                    scope => format!("{lack} {resource} have to come free in {scope}"),
                }
            }
        }
    }
}

impl fmt::Display for AssignmentExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = CommaSeparated(&self.labels);
        write!(f, "request {} for {labels} is {}", self.request, self.state)?;
        match self.ahead {
            Some(ahead) => writeln!(f, ", known for {} s, {ahead} before it", self.waiting)?,
            None => writeln!(f)?,
        }
        for view in &self.pools {
            writeln!(f, "  {}: {}", view.pool, view.verdict)?;
        }
        writeln!(f, "next: {}", self.next)
    }
}

impl fmt::Display for PoolVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(verdict) => verdict.fmt(f),
            Self::Theirs { declined: true, .. } => {
                f.write_str("another launcher's, has declined it")
            }
            Self::Theirs { missing, .. } if !missing.is_empty() => {
                write!(
                    f,
                    "another launcher's, does not offer {}",
                    CommaSeparated(missing)
                )
            }
            Self::Theirs { paused: true, .. } => f.write_str("another launcher's, waits for room"),
            Self::Theirs { .. } => f.write_str("another launcher's, can serve it"),
        }
    }
}

impl fmt::Display for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("nothing, it is done"),
            Self::NodesAreLaunched { by, waits } => {
                write!(f, "{by} is preparing its nodes")?;
                waits.iter().try_for_each(|wait| write!(f, "; {wait}"))
            }
            Self::AnotherLauncher => f.write_str("another launcher is serving it"),
            Self::Serve { by } => write!(f, "{by} serves it now"),
            Self::Room { at, what } => write!(f, "{what}, then {at} serves it"),
            Self::WaitFor { pools } => {
                write!(f, "one of these takes it: {}", CommaSeparated(pools))
            }
            Self::Undrain { scope } => {
                write!(f, "the drain has to end: nodeyard undrain {scope}")
            }
            Self::Fail { still_to_decline } if still_to_decline.is_empty() => {
                f.write_str("it fails, every pool has declined")
            }
            Self::Fail { still_to_decline } => {
                let ids = CommaSeparated(still_to_decline);
                write!(
                    f,
                    "no pool can serve it; it fails when these have declined: {ids}"
                )
            }
        }
    }
}
