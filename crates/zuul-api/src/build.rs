//! A build, as far as it matters here.

use nodeyard_model::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// A build and what it has published.
#[derive(Debug, Clone, PartialEq)]
pub struct Build {
    pub uuid: String,
    pub job_name: String,
    pub project: Option<String>,
    pub branch: Option<String>,
    pub pipeline: Option<String>,
    pub change: Option<String>,
    pub revision: Option<String>,
    pub log_url: Option<String>,
    /// When it ended; none if Zuul does not say.
    pub end: Option<Timestamp>,
    pub artifacts: Vec<Artifact>,
    result: Option<String>,
    held: bool,
    is_final: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Artifact {
    pub name: String,
    /// Not read yet: it may be anything.
    pub url: String,
    #[serde(default, deserialize_with = "map_or_nothing")]
    pub metadata: Map<String, Value>,
}

impl Artifact {
    /// A value of the metadata as text.
    pub fn text(&self, key: &str) -> Option<String> {
        match self.metadata.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(truth) => Some(truth.to_string()),
            _ => None,
        }
    }
}

impl Build {
    /// Successful, complete, and not an attempt that Zuul has repeated.
    pub(crate) fn is_good(&self) -> bool {
        self.result.as_deref() == Some("SUCCESS") && self.is_final && !self.held
    }
}

/// As Zuul writes it. What a build was for is below `ref` in Zuul 10 and later, and beside it before.
#[derive(Deserialize)]
struct Written {
    uuid: String,
    job_name: String,
    result: Option<String>,
    #[serde(default)]
    held: bool,
    #[serde(default = "yes", rename = "final")]
    is_final: bool,
    end_time: Option<String>,
    log_url: Option<String>,
    pipeline: Option<String>,
    #[serde(default, rename = "ref")]
    about: Option<Value>,
    project: Option<String>,
    branch: Option<String>,
    #[serde(default)]
    artifacts: Vec<Artifact>,
}

#[derive(Deserialize, Default)]
struct Ref {
    project: Option<String>,
    branch: Option<String>,
    change: Option<Value>,
    newrev: Option<String>,
}

fn yes() -> bool {
    true
}

impl<'de> Deserialize<'de> for Build {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Written::deserialize(deserializer)?;
        let about = match written.about {
            Some(about @ Value::Object(_)) => {
                serde_json::from_value(about).map_err(serde::de::Error::custom)?
            }
            _ => Ref::default(),
        };
        Ok(Self {
            uuid: written.uuid,
            job_name: written.job_name,
            project: about.project.or(written.project),
            branch: about.branch.or(written.branch),
            pipeline: written.pipeline,
            change: about.change.and_then(|change| match change {
                Value::Null => None,
                Value::String(text) => Some(text),
                other => Some(other.to_string()),
            }),
            revision: about.newrev,
            log_url: written.log_url,
            end: written.end_time.as_deref().and_then(time),
            artifacts: written.artifacts,
            result: written.result,
            held: written.held,
            is_final: written.is_final,
        })
    }
}

/// Zuul writes times of UTC without saying so.
fn time(text: &str) -> Option<Timestamp> {
    let stamp = match text.parse::<jiff::Timestamp>() {
        Ok(stamp) => stamp,
        Err(_) => {
            let civil: jiff::civil::DateTime = text.parse().ok()?;
            civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp()
        }
    };
    #[expect(
        clippy::cast_precision_loss,
        reason = "milliseconds since 1970 are exact in 53 bits"
    )]
    Timestamp::from_secs(stamp.as_millisecond() as f64 / 1000.0)
}

fn map_or_nothing<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Map<String, Value>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::Object(map) => map,
        _ => Map::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_of_old_and_new_zuuls_are_read() {
        let new = r#"{"_id": 3, "uuid": "u", "job_name": "j", "result": "SUCCESS", "held": false,
            "start_time": null, "end_time": "2026-11-15T10:00:00", "final": true, "voting": true,
            "log_url": null, "pipeline": "post",
            "ref": {"project": "p", "branch": "main", "change": 12, "newrev": "abc", "ref": "refs/heads/main"},
            "artifacts": [{"name": "raw", "url": "https://x/y", "metadata": {"type": "t", "sha256": "s", "n": 5}},
                          {"name": "other", "url": "x"}]}"#;
        let build: Build = serde_json::from_str(new).unwrap();
        assert!(build.is_good());
        assert_eq!(build.project.as_deref(), Some("p"));
        assert_eq!(build.change.as_deref(), Some("12"));
        assert_eq!(build.end, Timestamp::from_secs(1_794_736_800.0));
        assert_eq!(build.artifacts[0].text("n").as_deref(), Some("5"));
        assert!(build.artifacts[1].metadata.is_empty());

        let old = r#"{"uuid": "u", "job_name": "j", "result": "SUCCESS", "end_time": "2026-11-15T10:00:00",
            "project": "p", "branch": "main", "pipeline": "post", "ref": "refs/heads/main", "artifacts": []}"#;
        let build: Build = serde_json::from_str(old).unwrap();
        assert!(build.is_good());
        assert_eq!(build.branch.as_deref(), Some("main"));
    }

    #[test]
    fn held_builds_and_repeated_attempts_do_not_count() {
        for flaw in [
            r#""result": "SUCCESS", "held": true"#,
            r#""result": "SUCCESS", "final": false"#,
            r#""result": "FAILURE""#,
            r#""result": null"#,
        ] {
            let text = format!(r#"{{"uuid": "u", "job_name": "j", {flaw}}}"#);
            let build: Build = serde_json::from_str(&text).unwrap();
            assert!(!build.is_good(), "{flaw}");
        }
    }
}
