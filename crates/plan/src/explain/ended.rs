//! What is told of a request after it ended: how long it waited for what, and by whom it was served or refused.

use std::fmt;

use nodeyard_model::{Label, NodeId, RequestId};
use serde::{Deserialize, Serialize};

use crate::setup::PoolKey;
use crate::span::Span;
use crate::verdict::List;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub request: RequestId,
    #[serde(flatten)]
    pub end: End,
    pub labels: Vec<Label>,
    pub requestor: Option<Box<str>>,
    pub event_id: Option<Box<str>>,
    /// Seconds since 1970.
    pub ended: f64,
    /// Seconds from its creation until a pool began to serve it, or until its end.
    pub waited: f64,
    /// Seconds from then until its end; none if no pool has begun.
    pub worked: Option<f64>,
    /// What the pools said when it was last looked at while it waited.
    pub waited_for: Vec<Remark>,
    pub declined: Vec<Remark>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum End {
    Fulfilled {
        by: PoolKey,
        nodes: Vec<NodeId>,
        /// How many of the nodes were made for it.
        launched: usize,
    },
    Failed,
    /// Its requestor took it back, or has gone.
    Cancelled,
}

/// What a pool said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remark {
    pub pool: PoolKey,
    pub says: String,
}

impl Ended {
    /// From its creation to its end, in seconds.
    pub fn took(&self) -> f64 {
        self.waited + self.worked.unwrap_or(0.0)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let took = Span::of_secs(self.took());
        write!(f, "request {} for {} ", self.request, List(&self.labels))?;
        match &self.end {
            End::Fulfilled {
                by,
                nodes,
                launched,
            } => {
                write!(
                    f,
                    "was fulfilled by {by} after {took:.1} with nodes {}",
                    List(nodes)
                )?;
                match launched {
                    0 => writeln!(f, ", which were ready")?,
                    launched => writeln!(f, ", {launched} of them launched for it")?,
                }
            }
            End::Failed => writeln!(f, "failed after {took:.1}")?,
            End::Cancelled => writeln!(f, "was taken back after {took:.1}")?,
        }
        write!(f, "waited {:.1}", Span::of_secs(self.waited))?;
        match self.worked.map(Span::of_secs) {
            Some(worked) => writeln!(f, ", then its nodes took {worked:.1}")?,
            None => writeln!(f)?,
        }
        remarks(f, "while it waited", &self.waited_for)?;
        remarks(f, "declined", &self.declined)
    }
}

fn remarks(f: &mut fmt::Formatter<'_>, heading: &str, remarks: &[Remark]) -> fmt::Result {
    if !remarks.is_empty() {
        writeln!(f, "{heading}:")?;
    }
    for Remark { pool, says } in remarks {
        writeln!(f, "  {pool}: {says}")?;
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

    fn ended(end: End, worked: Option<f64>) -> Ended {
        Ended {
            request: "200-0000000001".parse().unwrap(),
            end,
            labels: vec!["small".into(), "large".into()],
            requestor: Some("zuul".into()),
            event_id: None,
            ended: 100.0,
            waited: 12.5,
            worked,
            waited_for: vec![Remark {
                pool: pool(),
                says: "lacks room".to_owned(),
            }],
            declined: Vec::new(),
        }
    }

    #[test]
    fn it_reads_well_and_survives_the_store() {
        let fulfilled = End::Fulfilled {
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
        assert_eq!(serde_json::from_str::<Ended>(&json).unwrap(), ended);
    }

    #[test]
    fn one_that_nobody_served_only_waited() {
        let text = ended(End::Cancelled, None).to_string();
        assert!(
            text.contains("was taken back after 12.5 s\nwaited 12.5 s\n"),
            "{text}"
        );
    }
}
