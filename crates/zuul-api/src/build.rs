//! A build, as far as it matters here.
//!
//! Entries of an answer are read one by one, by hand: one that makes no sense is told by the name of what is wrong with
//! it, and hides no other.

use nodeyard_model::Timestamp;
use serde_json::{Map, Value};

/// A longer id is none.
const LONGEST_ID: usize = 64;

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

#[derive(Debug, Clone, PartialEq)]
pub struct Artifact {
    pub name: String,
    /// Not read yet: it may be anything.
    pub url: String,
    pub metadata: Map<String, Value>,
}

/// An entry that is no build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OddBuild {
    /// If at least that is right.
    pub uuid: Option<String>,
    pub reason: String,
}

impl Artifact {
    /// None without an address: there is nothing to fetch.
    fn read(entry: &Value) -> Option<Self> {
        Some(Self {
            name: text(entry, "name").unwrap_or_default(),
            url: text(entry, "url")?,
            metadata: match entry.get("metadata") {
                Some(Value::Object(metadata)) => metadata.clone(),
                _ => Map::new(),
            },
        })
    }

    /// A value of the metadata as text.
    pub fn text(&self, key: &str) -> Option<String> {
        scalar(self.metadata.get(key)?)
    }
}

impl Build {
    /// What a build was for is below `ref` in Zuul 10 and later, and beside it before.
    pub(crate) fn read(entry: &Value) -> Result<Self, OddBuild> {
        let uuid = text(entry, "uuid").filter(|uuid| is_id(uuid));
        let odd = |reason: String| OddBuild {
            uuid: uuid.clone(),
            reason,
        };
        let about = match entry.get("ref") {
            Some(about @ Value::Object(_)) => about,
            _ => &Value::Null,
        };
        let about_or_beside = |key| text(about, key).or_else(|| text(entry, key));
        let truth = |key: &str, usual: bool| match entry.get(key) {
            None | Some(Value::Null) => Ok(usual),
            Some(Value::Bool(truth)) => Ok(*truth),
            Some(_) => Err(odd(format!("its `{key}` is neither true nor false"))),
        };
        let artifacts = entry.get("artifacts").and_then(Value::as_array);
        Ok(Self {
            job_name: text(entry, "job_name")
                .ok_or_else(|| odd("its `job_name` is no text".to_owned()))?,
            project: about_or_beside("project"),
            branch: about_or_beside("branch"),
            pipeline: text(entry, "pipeline"),
            change: about.get("change").and_then(scalar),
            revision: text(about, "newrev"),
            log_url: text(entry, "log_url"),
            end: text(entry, "end_time").as_deref().and_then(time),
            artifacts: artifacts
                .map(|entries| entries.iter().filter_map(Artifact::read).collect())
                .unwrap_or_default(),
            result: text(entry, "result"),
            held: truth("held", false)?,
            is_final: truth("final", true)?,
            uuid: uuid
                .clone()
                .ok_or_else(|| odd("its `uuid` is no id".to_owned()))?,
        })
    }

    /// Successful, complete, and not an attempt that Zuul has repeated.
    pub(crate) fn is_good(&self) -> bool {
        self.result.as_deref() == Some("SUCCESS") && self.is_final && !self.held
    }
}

/// It becomes part of file names, and is shown.
fn is_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    text.len() <= LONGEST_ID
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
        Value::Bool(truth) => Some(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
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
    Some(Timestamp::from_millis(stamp.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Build, OddBuild> {
        Build::read(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn builds_of_old_and_new_zuuls_are_read() {
        let new = r#"{"_id": 3, "uuid": "u", "job_name": "j", "result": "SUCCESS", "held": false,
            "start_time": null, "end_time": "2026-11-15T10:00:00", "final": true, "voting": true,
            "log_url": null, "pipeline": "post",
            "ref": {"project": "p", "branch": "main", "change": 12, "newrev": "abc", "ref": "refs/heads/main"},
            "artifacts": [{"name": "raw", "url": "https://x/y", "metadata": {"type": "t", "sha256": "s", "n": 5}},
                          {"name": "other", "url": "x"}]}"#;
        let build = read(new).unwrap();
        assert!(build.is_good());
        assert_eq!(build.project.as_deref(), Some("p"));
        assert_eq!(build.change.as_deref(), Some("12"));
        assert_eq!(build.end, Timestamp::from_secs(1_794_736_800.0));
        assert_eq!(build.artifacts[0].text("n").as_deref(), Some("5"));
        assert!(build.artifacts[1].metadata.is_empty());

        let old = r#"{"uuid": "u", "job_name": "j", "result": "SUCCESS", "end_time": "2026-11-15T10:00:00",
            "project": "p", "branch": "main", "pipeline": "post", "ref": "refs/heads/main", "artifacts": []}"#;
        let build = read(old).unwrap();
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
            let build = read(&format!(r#"{{"uuid": "u", "job_name": "j", {flaw}}}"#));
            assert!(!build.unwrap().is_good(), "{flaw}");
        }
    }

    #[test]
    fn what_is_no_build_says_what_is_wrong_with_it() {
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
            let odd = read(entry).unwrap_err();
            assert_eq!(odd.uuid.as_deref(), uuid, "{entry}");
            assert!(odd.reason.contains(reason), "{entry}: {}", odd.reason);
        }
    }

    #[test]
    fn an_artifact_without_an_address_hides_no_other() {
        let build = read(
            r#"{"uuid": "u", "job_name": "j", "artifacts":
                [{"name": "a"}, null, {"url": 5}, {"url": "https://x", "metadata": null}]}"#,
        );
        let build = build.unwrap();
        assert_eq!(build.artifacts.len(), 1);
        assert_eq!(build.artifacts[0].url, "https://x");
        for artifacts in ["null", "{}", "5"] {
            let text = format!(r#"{{"uuid": "u", "job_name": "j", "artifacts": {artifacts}}}"#);
            assert!(read(&text).unwrap().artifacts.is_empty());
        }
    }
}
