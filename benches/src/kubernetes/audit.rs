//! What the API server has written down: who asked for what, and when it was answered.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

/// Everything since the cluster was started.
pub(crate) struct Audit {
    calls: Vec<Call>,
    /// By namespace: each has one pod.
    pods: HashMap<String, Pod>,
}

struct Call {
    user: String,
    at: SystemTime,
}

#[derive(Debug, Clone, Copy, Default)]
struct Pod {
    created: Option<SystemTime>,
    running: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    user: User,
    object_ref: Option<Object>,
    request_received_timestamp: String,
    stage_timestamp: String,
    request_object: Option<Value>,
    response_status: Option<Status>,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    code: u16,
}

impl Audit {
    /// As soon as it tells of something that was asked after `time`.
    pub(crate) async fn read_until(time: SystemTime, path: &Path) -> anyhow::Result<Self> {
        loop {
            let audit = Self::read(path)?;
            if audit.calls.iter().any(|call| call.at > time) {
                return Ok(audit);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).context("the API server keeps no record")?;
        let mut audit = Self {
            calls: Vec::new(),
            pods: HashMap::new(),
        };
        // The last line may still be being written.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            audit.note(serde_json::from_str(line)?)?;
        }
        Ok(audit)
    }

    fn note(&mut self, entry: Entry) -> anyhow::Result<()> {
        let answered = time(&entry.stage_timestamp)?;
        if let Some(object) = entry.object_ref
            && object.resource == "pods"
        {
            let status = entry.request_object.unwrap_or_default();
            let phase = status.pointer("/status/phase").and_then(Value::as_str);
            let accepted = entry
                .response_status
                .is_some_and(|status| status.code < 300);
            let pod = self.pods.entry(object.namespace).or_default();
            match (&*entry.verb, &*object.subresource) {
                // Who comes later uses the same names again.
                ("create", "") if accepted => {
                    *pod = Pod {
                        created: Some(answered),
                        running: None,
                    };
                }
                ("patch", "status") if phase == Some("Running") => {
                    pod.running.get_or_insert(answered);
                }
                _ => {}
            }
        }
        self.calls.push(Call {
            user: entry.user.username,
            at: time(&entry.request_received_timestamp)?,
        });
        Ok(())
    }

    /// When the pod of a namespace was there, and when it ran.
    pub(crate) fn pod(&self, namespace: &str) -> Option<(SystemTime, SystemTime)> {
        let pod = self.pods.get(namespace)?;
        pod.created.zip(pod.running)
    }

    /// How often somebody has called in that time.
    pub(crate) fn calls(&self, user: &str, from: SystemTime, until: SystemTime) -> usize {
        let calls = self.calls.iter();
        calls
            .filter(|call| call.user == user && (from..until).contains(&call.at))
            .count()
    }
}

fn time(text: &str) -> anyhow::Result<SystemTime> {
    let time: jiff::Timestamp = text.parse()?;
    Ok(time.into())
}
