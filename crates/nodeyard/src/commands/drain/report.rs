//! Reports the remaining work of a drain as text and as JSON.

use anstream::println;
use jiff::Timestamp;
use nodeyard_model::{Label, LauncherId, NodeId, RequestId};
use nodeyard_operations::drain::DrainScope;
use nodeyard_operations::drain::{RemainingItem, RemainingWork};
use serde::{Serialize, Serializer};

use crate::output::{self, count};

pub(super) struct DrainReport {
    pub(super) scope: DrainScope,
    /// Milliseconds since 1970.
    pub(super) since: i64,
    pub(super) remaining: RemainingWork,
}

impl DrainReport {
    /// Returns a summary of one line.
    pub(super) fn summary(&self) -> String {
        let RemainingWork {
            accepting,
            requests,
            nodes,
            ..
        } = &self.remaining;
        if self.remaining.is_drained() {
            return format!("{} is drained", self.scope);
        }
        let pools = match accepting.len() {
            1 => "1 accepting pool".to_owned(),
            number => format!("{number} accepting pools"),
        };
        let left = [
            (accepting.len(), pools),
            (requests.len(), count(requests.len(), "request")),
            (nodes.len(), count(nodes.len(), "node")),
        ];
        let left = left.into_iter().filter(|(number, _)| *number > 0);
        let left: Vec<String> = left.map(|(_, words)| words).collect();
        format!("{} is draining: {} left", self.scope, left.join(", "))
    }

    pub(super) fn print(&self) -> anyhow::Result<()> {
        let remaining = &self.remaining;
        println!("{}", self.summary());
        for (ids, what) in [
            (remaining.idle.len(), "idle"),
            (remaining.held.len(), "held"),
        ] {
            if ids > 0 {
                println!("{} {what}, not waited for", count(ids, "node"));
            }
        }
        if !remaining.waiting.is_empty() {
            let waiting = count(remaining.waiting.len(), "request");
            println!("{waiting} waiting until the drain ends");
        }
        for pool in &remaining.accepting {
            println!("{pool} still accepts requests; launchers of Python Nodepool ignore drains");
        }
        let requests = remaining.requests.iter().map(|left| row("request", left));
        let nodes = remaining.nodes.iter().map(|left| row("node", left));
        let rows: Vec<_> = requests.chain(nodes).collect();
        if rows.is_empty() {
            return Ok(());
        }
        output::table(["KIND", "ID", "STATE", "LABELS", "POOL", "FOR"], rows)
    }
}

fn row<I: ToString, S: ToString>(kind: &str, left: &RemainingItem<I, S>) -> [String; 6] {
    let labels: Vec<&str> = left.labels.iter().map(Label::as_str).collect();
    [
        kind.to_owned(),
        left.id.to_string(),
        left.state.to_string(),
        labels.join(","),
        text(left.pool.as_ref()),
        text(left.allocated_to.as_ref()),
    ]
}

fn text(value: Option<&impl ToString>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// Prints all drains, one line each.
pub(super) fn overview(reports: &[DrainReport]) -> anyhow::Result<()> {
    let rows = reports.iter().map(|report| {
        let remaining = &report.remaining;
        [
            report.scope.to_string(),
            state(remaining).to_owned(),
            time(report.since),
            remaining.accepting.len().to_string(),
            remaining.requests.len().to_string(),
            remaining.nodes.len().to_string(),
            remaining.idle.len().to_string(),
            remaining.held.len().to_string(),
            remaining.waiting.len().to_string(),
        ]
    });
    output::table(
        [
            "DRAIN",
            "STATE",
            "SINCE",
            "ACCEPTING",
            "REQUESTS",
            "NODES",
            "IDLE",
            "HELD",
            "WAITING",
        ],
        rows,
    )
}

fn state(remaining: &RemainingWork) -> &'static str {
    if remaining.is_drained() {
        "drained"
    } else {
        "draining"
    }
}

fn time(milliseconds: i64) -> String {
    Timestamp::from_millisecond(milliseconds)
        .map_or_else(|_| milliseconds.to_string(), |time| format!("{time:.0}"))
}

#[derive(Serialize)]
struct DrainReportItem {
    id: String,
    state: String,
    labels: Vec<Label>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocated_to: Option<String>,
}

impl<I: ToString, S: ToString> From<&RemainingItem<I, S>> for DrainReportItem {
    fn from(left: &RemainingItem<I, S>) -> Self {
        Self {
            id: left.id.to_string(),
            state: left.state.to_string(),
            labels: left.labels.clone(),
            pool: left.pool.as_ref().map(ToString::to_string),
            allocated_to: left.allocated_to.as_ref().map(ToString::to_string),
        }
    }
}

/// The JSON form of a report.
#[derive(Serialize)]
struct Document<'a> {
    scope: String,
    drained: bool,
    since: String,
    accepting: &'a [LauncherId],
    requests: Vec<DrainReportItem>,
    nodes: Vec<DrainReportItem>,
    idle: &'a [NodeId],
    held: &'a [NodeId],
    waiting: &'a [RequestId],
}

impl Serialize for DrainReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let remaining = &self.remaining;
        let document = Document {
            scope: self.scope.to_string(),
            drained: remaining.is_drained(),
            since: time(self.since),
            accepting: &remaining.accepting,
            requests: remaining
                .requests
                .iter()
                .map(DrainReportItem::from)
                .collect(),
            nodes: remaining.nodes.iter().map(DrainReportItem::from).collect(),
            idle: &remaining.idle,
            held: &remaining.held,
            waiting: &remaining.waiting,
        };
        document.serialize(serializer)
    }
}
