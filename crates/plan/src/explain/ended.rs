//! The history of an ended request: how long it waited for what, and which pools served or declined it.

use std::fmt;

use nodeyard_model::{Label, NodeId, RequestId};
use serde::{Deserialize, Serialize};

use crate::setup::PoolKey;
use crate::span::HumanDuration;
use crate::verdict::CommaSeparated;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedRequest {
    pub request: RequestId,
    #[serde(flatten)]
    pub end: RequestOutcome,
    pub labels: Vec<Label>,
    pub requestor: Option<Box<str>>,
    pub event_id: Option<Box<str>>,
    /// Seconds since 1970.
    pub ended: f64,
    /// Seconds from its creation until a pool began to serve it, or until its end.
    pub waited: f64,
    /// Seconds from then until its end; none if no pool has begun.
    pub worked: Option<f64>,
    /// The messages of the pools when it was last sampled while it waited.
    pub waited_for: Vec<PoolMessage>,
    pub declined: Vec<PoolMessage>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum RequestOutcome {
    Fulfilled {
        by: PoolKey,
        nodes: Vec<NodeId>,
        /// How many of the nodes were launched for it.
        launched: usize,
    },
    Failed,
    /// Its requestor deleted it or disconnected.
    Cancelled,
}

/// A message of a pool about a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolMessage {
    pub pool: PoolKey,
    #[serde(rename = "says")]
    pub message: String,
}

impl EndedRequest {
    /// Returns the time from its creation to its end, in seconds.
    pub fn took(&self) -> f64 {
        self.waited + self.worked.unwrap_or(0.0)
    }
}

impl fmt::Display for EndedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = HumanDuration::of_secs(self.took());
        write!(
            f,
            "request {} for {} ",
            self.request,
            CommaSeparated(&self.labels)
        )?;
        match &self.end {
            RequestOutcome::Fulfilled {
                by,
                nodes,
                launched,
            } => {
                write!(
                    f,
                    "was fulfilled by {by} after {took:.1} with nodes {}",
                    CommaSeparated(nodes)
                )?;
                match launched {
                    0 => writeln!(f, ", which were ready")?,
                    launched => writeln!(f, ", {launched} of them launched for it")?,
                }
            }
            RequestOutcome::Failed => writeln!(f, "failed after {took:.1}")?,
            RequestOutcome::Cancelled => writeln!(f, "was cancelled after {took:.1}")?,
        }
        write!(f, "waited {:.1}", HumanDuration::of_secs(self.waited))?;
        match self.worked.map(HumanDuration::of_secs) {
            Some(worked) => writeln!(f, ", then its nodes took {worked:.1}")?,
            None => writeln!(f)?,
        }
        messages(f, "while it waited", &self.waited_for)?;
        messages(f, "declined", &self.declined)
    }
}

fn messages(f: &mut fmt::Formatter<'_>, heading: &str, messages: &[PoolMessage]) -> fmt::Result {
    if !messages.is_empty() {
        writeln!(f, "{heading}:")?;
    }
    for PoolMessage { pool, message } in messages {
        writeln!(f, "  {pool}: {message}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nodeyard_model::ProviderName;

    use super::*;

    fn pool() -> PoolKey {
        PoolKey::new(ProviderName::new("cloud").unwrap(), "main".into())
    }

    fn ended(end: RequestOutcome, worked: Option<f64>) -> EndedRequest {
        EndedRequest {
            request: "200-0000000001".parse().unwrap(),
            end,
            labels: vec!["small".into(), "large".into()],
            requestor: Some("zuul".into()),
            event_id: None,
            ended: 100.0,
            waited: 12.5,
            worked,
            waited_for: vec![PoolMessage {
                pool: pool(),
                message: "lacks room".to_owned(),
            }],
            declined: Vec::new(),
        }
    }

    #[test]
    fn it_reads_well_and_survives_the_store() {
        let fulfilled = RequestOutcome::Fulfilled {
            by: pool(),
            nodes: vec!["0000000003".parse().unwrap(), "0000000004".parse().unwrap()],
            launched: 1,
        };
        let ended = ended(fulfilled, Some(3.0));
        assert_eq!(
            ended.to_string(),
            "request 200-0000000001 for small, large was fulfilled by cloud/main after 15.5 s with nodes \
             0000000003, 0000000004, 1 of them launched for it\n\
             waited 12.5 s, then its nodes took 3.0 s\n\
             while it waited:\n  cloud/main: lacks room\n"
        );
        let json = serde_json::to_string(&ended).unwrap();
        assert!(json.contains(r#""state":"fulfilled""#), "{json}");
        assert_eq!(serde_json::from_str::<EndedRequest>(&json).unwrap(), ended);
    }

    #[test]
    fn a_cancelled_request_only_waited() {
        let text = ended(RequestOutcome::Cancelled, None).to_string();
        assert!(
            text.contains("was cancelled after 12.5 s\nwaited 12.5 s\n"),
            "{text}"
        );
    }
}
