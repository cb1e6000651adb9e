//! Parses builds and artifacts from the API's JSON.
//!
//! Each entry is parsed separately, so an invalid one is reported as [`InvalidBuild`] and does not hide the others.

use nodeyard_model::Timestamp;
use serde_json::{Map, Value};

/// The maximum length of a build's uuid.
const MAX_ID_LEN: usize = 64;

/// A finished build and its artifacts.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedBuild {
    pub uuid: String,
    pub job_name: String,
    pub project: Option<String>,
    pub branch: Option<String>,
    pub pipeline: Option<String>,
    pub change: Option<String>,
    pub revision: Option<String>,
    pub log_url: Option<String>,
    /// When the build ended, if Zuul reports it.
    pub end: Option<Timestamp>,
    pub artifacts: Vec<BuildArtifact>,
    result: Option<String>,
    held: bool,
    is_final: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct BuildArtifact {
    pub name: String,
    /// Unvalidated.
    pub url: String,
    pub metadata: Map<String, Value>,
}

/// An entry that is not a valid build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidBuild {
    /// The uuid, if it is valid.
    pub uuid: Option<String>,
    pub reason: String,
}

impl BuildArtifact {
    /// Parses an artifact. Returns `None` if it has no URL.
    fn parse(entry: &Value) -> Option<Self> {
        Some(Self {
            name: text(entry, "name").unwrap_or_default(),
            url: text(entry, "url")?,
            metadata: match entry.get("metadata") {
                Some(Value::Object(metadata)) => metadata.clone(),
                _ => Map::new(),
            },
        })
    }

    /// Returns a metadata value as text.
    pub fn text(&self, key: &str) -> Option<String> {
        scalar(self.metadata.get(key)?)
    }
}

impl FinishedBuild {
    /// Parses a build. Project, branch and change are below `ref` in Zuul 10 and later, and next to it before.
    pub(crate) fn parse(entry: &Value) -> Result<Self, InvalidBuild> {
        let uuid = text(entry, "uuid").filter(|uuid| is_id(uuid));
        let invalid = |reason: String| InvalidBuild {
            uuid: uuid.clone(),
            reason,
        };
        let reference = match entry.get("ref") {
            Some(reference @ Value::Object(_)) => reference,
            _ => &Value::Null,
        };
        let in_ref_or_build = |key| text(reference, key).or_else(|| text(entry, key));
        let boolean = |key: &str, usual: bool| match entry.get(key) {
            None | Some(Value::Null) => Ok(usual),
            Some(Value::Bool(boolean)) => Ok(*boolean),
            Some(_) => Err(invalid(format!("`{key}` is not a boolean"))),
        };
        let artifacts = entry.get("artifacts").and_then(Value::as_array);
        Ok(Self {
            job_name: text(entry, "job_name")
                .ok_or_else(|| invalid("`job_name` is not a string".to_owned()))?,
            project: in_ref_or_build("project"),
            branch: in_ref_or_build("branch"),
            pipeline: text(entry, "pipeline"),
            change: reference.get("change").and_then(scalar),
            revision: text(reference, "newrev"),
            log_url: text(entry, "log_url"),
            end: text(entry, "end_time").as_deref().and_then(time),
            artifacts: artifacts
                .map(|entries| entries.iter().filter_map(BuildArtifact::parse).collect())
                .unwrap_or_default(),
            result: text(entry, "result"),
            held: boolean("held", false)?,
            is_final: boolean("final", true)?,
            uuid: uuid
                .clone()
                .ok_or_else(|| invalid("`uuid` is missing or invalid".to_owned()))?,
        })
    }

    /// Returns whether the build succeeded, is not held, and is not an attempt that Zuul retried.
    pub(crate) fn is_successful(&self) -> bool {
        self.result.as_deref() == Some("SUCCESS") && self.is_final && !self.held
    }
}

/// Returns whether a uuid is safe for file names and logs.
fn is_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    text.len() <= MAX_ID_LEN
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(allowed)
}

fn text(entry: &Value, key: &str) -> Option<String> {
    entry.get(key)?.as_str().map(ToOwned::to_owned)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(boolean) => Some(boolean.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Parses a time; without an offset it is UTC, as Zuul writes it.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<FinishedBuild, InvalidBuild> {
        FinishedBuild::parse(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn builds_of_old_and_new_zuuls_are_parsed() {
        let new = r#"{"_id": 3, "uuid": "u", "job_name": "j", "result": "SUCCESS", "held": false,
            "start_time": null, "end_time": "2026-11-15T10:00:00", "final": true, "voting": true,
            "log_url": null, "pipeline": "post",
            "ref": {"project": "p", "branch": "main", "change": 12, "newrev": "abc", "ref": "refs/heads/main"},
            "artifacts": [{"name": "raw", "url": "https://x/y", "metadata": {"type": "t", "sha256": "s", "n": 5}},
                          {"name": "other", "url": "x"}]}"#;
        let build = parse(new).unwrap();
        assert!(build.is_successful());
        assert_eq!(build.project.as_deref(), Some("p"));
        assert_eq!(build.change.as_deref(), Some("12"));
        assert_eq!(build.end, Timestamp::from_secs(1_794_736_800.0));
        assert_eq!(build.artifacts[0].text("n").as_deref(), Some("5"));
        assert!(build.artifacts[1].metadata.is_empty());

        let old = r#"{"uuid": "u", "job_name": "j", "result": "SUCCESS", "end_time": "2026-11-15T10:00:00",
            "project": "p", "branch": "main", "pipeline": "post", "ref": "refs/heads/main", "artifacts": []}"#;
        let build = parse(old).unwrap();
        assert!(build.is_successful());
        assert_eq!(build.branch.as_deref(), Some("main"));
    }

    #[test]
    fn held_builds_and_retried_attempts_are_not_successful() {
        for flaw in [
            r#""result": "SUCCESS", "held": true"#,
            r#""result": "SUCCESS", "final": false"#,
            r#""result": "FAILURE""#,
            r#""result": null"#,
        ] {
            let build = parse(&format!(r#"{{"uuid": "u", "job_name": "j", {flaw}}}"#));
            assert!(!build.unwrap().is_successful(), "{flaw}");
        }
    }

    #[test]
    fn invalid_builds_have_a_reason() {
        for (entry, uuid, reason) in [
            ("null", None, "job_name"),
            (r#"{"uuid": "u", "job_name": null}"#, Some("u"), "job_name"),
            (r#"{"job_name": "j"}"#, None, "uuid"),
            (r#"{"uuid": "../../etc", "job_name": "j"}"#, None, "uuid"),
            (r#"{"uuid": "", "job_name": "j"}"#, None, "uuid"),
            (
                r#"{"uuid": "u", "job_name": "j", "final": "yes"}"#,
                Some("u"),
                "final",
            ),
        ] {
            let invalid = parse(entry).unwrap_err();
            assert_eq!(invalid.uuid.as_deref(), uuid, "{entry}");
            assert!(
                invalid.reason.contains(reason),
                "{entry}: {}",
                invalid.reason
            );
        }
    }

    #[test]
    fn artifacts_without_url_are_skipped() {
        let build = parse(
            r#"{"uuid": "u", "job_name": "j", "artifacts":
                [{"name": "a"}, null, {"url": 5}, {"url": "https://x", "metadata": null}]}"#,
        );
        let build = build.unwrap();
        assert_eq!(build.artifacts.len(), 1);
        assert_eq!(build.artifacts[0].url, "https://x");
        for artifacts in ["null", "{}", "5"] {
            let text = format!(r#"{{"uuid": "u", "job_name": "j", "artifacts": {artifacts}}}"#);
            assert!(parse(&text).unwrap().artifacts.is_empty());
        }
    }
}
