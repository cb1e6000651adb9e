//! Why a request waits: every pool's verdict, the sums behind it, and what has to happen next.

mod ended;

use std::fmt;

use nodeyard_model::{Label, LauncherId, RequestId, RequestState};
use serde::{Deserialize, Serialize};

use crate::assign::Moment;
use crate::assign::judge::Case;
use crate::setup::PoolKey;
use crate::verdict::{Defer, Ledger, List, Shortage, Skip, Verdict};
use crate::world::World;
use crate::world::queue::Stage;

pub use ended::{End, Ended, Remark};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    pub request: RequestId,
    pub state: RequestState,
    pub labels: Vec<Label>,
    /// How long this launcher has known it, in seconds.
    pub waiting: u64,
    /// Waiting requests that are served first; none if it does not wait.
    pub ahead: Option<usize>,
    pub pools: Vec<Opinion>,
    pub next: Next,
}

/// What is known of one registered pool's view of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Opinion {
    pub pool: PoolKey,
    pub id: LauncherId,
    pub says: Says,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Says {
    Ours(Verdict),
    /// A pool of another launcher, which decides for itself.
    Theirs {
        declined: bool,
        paused: bool,
        missing: Vec<Label>,
    },
}

/// What has to happen for the request to get on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Next {
    /// Nothing: it is done.
    Done,
    /// A pool of ours is at work.
    NodesAreLaunched {
        by: PoolKey,
        /// What the launches wait for, as far as it is known.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waits: Vec<String>,
    },
    /// Another launcher is at work.
    AnotherLauncher,
    /// It will be served as soon as it is looked at.
    Serve { by: PoolKey },
    /// A pool serves it when it has room.
    Room { at: PoolKey, what: String },
    /// It waits for a pool of another launcher.
    WaitFor { pools: Vec<LauncherId> },
    /// A drain has to be taken back.
    Undrain { scope: String },
    /// It fails once these have declined, too; no pool can serve it.
    Fail { still_to_decline: Vec<LauncherId> },
}

impl World {
    /// None if there is no such request.
    pub fn explain(&self, request: RequestId, at: Moment) -> Option<Explanation> {
        let case = Case::of(self, request)?;
        let waiting = case.waiting;
        let pools: Vec<Opinion> = self
            .registry
            .iter()
            .map(|(id, pool)| {
                let ours = self.own.get(&pool.key).filter(|own| own.setup.id == *id);
                let says = match ours {
                    Some(_) => {
                        let kept = self.kept_before(&pool.key, waiting.order);
                        Says::Ours(self.judge(&pool.key, &case, &kept, at).verdict)
                    }
                    None => Says::Theirs {
                        declined: waiting.ask.declined_by.contains(id),
                        paused: pool.paused,
                        missing: pool.missing(&waiting.ask.labels).cloned().collect(),
                    },
                };
                Opinion {
                    pool: pool.key.clone(),
                    id: id.clone(),
                    says,
                }
            })
            .collect();
        let in_line = self.queue.line_of(request).is_some();
        Some(Explanation {
            request,
            state: waiting.state,
            labels: waiting.ask.labels.clone(),
            waiting: at.now.since(waiting.known_since).as_secs(),
            ahead: in_line.then(|| self.queue.position(waiting.order)),
            next: next(&waiting.stage, waiting.state, &pools),
            pools,
        })
    }
}

fn next(stage: &Stage, state: RequestState, pools: &[Opinion]) -> Next {
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
    let accepts = |opinion: &&Opinion| matches!(opinion.says, Says::Ours(Verdict::Accept(_)));
    if let Some(opinion) = pools.iter().find(accepts) {
        let by = opinion.pool.clone();
        return Next::Serve { by };
    }
    let room = pools.iter().find_map(|opinion| match &opinion.says {
        Says::Ours(Verdict::Defer(defer)) => Some((opinion, defer.remedy())),
        Says::Ours(Verdict::Reserve(shortage)) => Some((opinion, shortage.remedy())),
        _ => None,
    });
    if let Some((opinion, what)) = room {
        let at = opinion.pool.clone();
        return Next::Room { at, what };
    }
    let scope = pools.iter().find_map(|opinion| match &opinion.says {
        Says::Ours(Verdict::Skip(Skip::Drained { scope })) => Some(scope.to_string()),
        _ => None,
    });
    if let Some(scope) = scope {
        return Next::Undrain { scope };
    }
    let ids = |wanted: fn(&Says) -> bool| -> Vec<LauncherId> {
        let wanted = pools.iter().filter(|opinion| wanted(&opinion.says));
        wanted.map(|opinion| opinion.id.clone()).collect()
    };
    let capable = ids(|says| {
        matches!(says, Says::Theirs { declined: false, missing, .. } if missing.is_empty())
            || matches!(
                says,
                Says::Ours(Verdict::Skip(Skip::Ignoring | Skip::NotRegistered))
            )
    });
    if !capable.is_empty() {
        return Next::WaitFor { pools: capable };
    }
    Next::Fail {
        still_to_decline: ids(|says| match says {
            Says::Theirs { declined, .. } => !declined,
            Says::Ours(verdict) => !matches!(verdict, Verdict::Skip(Skip::AlreadyDeclined { .. })),
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

impl Shortage {
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
                match &sum.ledger {
                    Ledger::Tenant(_) if sum.needed > sum.limit => {
                        format!("the limit on {resource} of {} has to be raised", sum.ledger)
                    }
                    ledger => format!("{lack} {resource} have to come free in {ledger}"),
                }
            }
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = List(&self.labels);
        write!(f, "request {} for {labels} is {}", self.request, self.state)?;
        match self.ahead {
            Some(ahead) => writeln!(f, ", known for {} s, {ahead} before it", self.waiting)?,
            None => writeln!(f)?,
        }
        for opinion in &self.pools {
            writeln!(f, "  {}: {}", opinion.pool, opinion.says)?;
        }
        writeln!(f, "next: {}", self.next)
    }
}

impl fmt::Display for Says {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(verdict) => verdict.fmt(f),
            Self::Theirs { declined: true, .. } => {
                f.write_str("another launcher's, has declined it")
            }
            Self::Theirs { missing, .. } if !missing.is_empty() => {
                write!(f, "another launcher's, does not offer {}", List(missing))
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
                write!(f, "{by} gets its nodes ready")?;
                waits.iter().try_for_each(|wait| write!(f, "; {wait}"))
            }
            Self::AnotherLauncher => f.write_str("another launcher is at work on it"),
            Self::Serve { by } => write!(f, "{by} serves it now"),
            Self::Room { at, what } => write!(f, "{what}, then {at} serves it"),
            Self::WaitFor { pools } => write!(f, "one of these takes it: {}", List(pools)),
            Self::Undrain { scope } => {
                write!(f, "the drain has to end: nodeyard undrain {scope}")
            }
            Self::Fail { still_to_decline } if still_to_decline.is_empty() => {
                f.write_str("it fails, every pool has declined")
            }
            Self::Fail { still_to_decline } => {
                let ids = List(still_to_decline);
                write!(
                    f,
                    "no pool can serve it; it fails when these have declined: {ids}"
                )
            }
        }
    }
}
