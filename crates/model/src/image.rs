//! Images: builds, and uploads of builds to providers.

use serde_json::value::RawValue;

use crate::ids::{BuildId, UploadId};
use crate::json::{self, Field, Flaw, write_text};
use crate::names::{ImageName, ProviderName};
use crate::record::{record, timed_state};
use crate::state::{BuildState, UploadState};
use crate::time::Timestamp;

/// Which build of which image.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildKey {
    pub image: ImageName,
    pub build: BuildId,
}

/// Which upload of which build to which provider.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UploadKey {
    pub build: BuildKey,
    pub provider: ProviderName,
    pub upload: UploadId,
}

/// What Python assumes of images older than the key `python_path`.
const OLD_PYTHON: &str = "/usr/bin/python2";

record! {
    /// A build of an image. Image and id are in its path.
    ImageBuild, "image build";
    required {
        "state" => state: BuildState;
        /// When `state` was last set. The newest build is the one with the latest.
        "state_time" => state_time: Timestamp;
    }
    optional {
        /// The host that built it.
        "builder" => builder: Option<Box<str>> = None, omits Option::is_none;
        /// The builder, by an id that outlives a change of its host name.
        "builder_id" => builder_id: Option<Box<str>> = None, omits Option::is_none;
        "formats" => formats: Formats = Formats::default(), omits Formats::is_empty;
        /// `zuul` if it was fetched from a build of Zuul, which the next two keys name. Python passes over all three.
        "source" => source: Option<Box<str>> = None, omits Option::is_none;
        "zuul_build_uuid" => zuul_build_uuid: Option<Box<str>> = None, omits Option::is_none;
        "zuul_end_time" => zuul_end_time: Option<Timestamp> = None, omits Option::is_none;
        "username" => username: Option<Box<str>> = None, absent Some("zuul".into());
        "python_path" => python_path: Option<Box<str>> = None, absent Some(OLD_PYTHON.into());
        "shell_type" => shell_type: Option<Box<str>> = None;
    }
}

record! {
    /// An upload of a build to a provider. Image, build, provider and id are in its path.
    ImageUpload, "image upload";
    required {
        "state" => state: UploadState;
        /// When `state` was last set. Nodes boot from the ready upload with the latest.
        "state_time" => state_time: Timestamp;
    }
    optional {
        /// How the provider calls the image.
        "external_id" => external_id: Option<Box<str>> = None;
        "external_name" => external_name: Option<Box<str>> = None;
        "format" => format: Option<Box<str>> = None;
        "username" => username: Option<Box<str>> = None, absent Some("zuul".into());
        "python_path" => python_path: Option<Box<str>> = None, absent Some(OLD_PYTHON.into());
        "shell_type" => shell_type: Option<Box<str>> = None;
    }
}

timed_state!(ImageBuild: BuildState, ImageUpload: UploadState);

/// The formats a build exists in, sorted. On the wire: one string, separated by commas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Formats(Box<[Box<str>]>);

impl Formats {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|format| &**format)
    }

    pub fn contains(&self, format: &str) -> bool {
        self.iter().any(|f| f == format)
    }
}

impl<T: AsRef<str>> FromIterator<T> for Formats {
    fn from_iter<I: IntoIterator<Item = T>>(formats: I) -> Self {
        let mut formats: Vec<Box<str>> = formats.into_iter().map(|f| f.as_ref().into()).collect();
        formats.sort_unstable();
        Self(formats.into())
    }
}

impl Field for Formats {
    fn read(value: &RawValue) -> Result<Self, Flaw> {
        if json::is_null(value) {
            return Ok(Self::default());
        }
        let text = json::text(value)?;
        if text.is_empty() {
            return Ok(Self::default());
        }
        Ok(text.split(',').collect())
    }

    fn write(&self, out: &mut String) {
        write_text(out, &self.0.join(","));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn absent_keys_mean_what_they_mean_in_python() {
        let build = ImageBuild::from_json(br#"{"state": "ready", "state_time": 1}"#).unwrap();
        assert_eq!(build.username.as_deref(), Some("zuul"));
        assert_eq!(build.python_path.as_deref(), Some("/usr/bin/python2"));
        let upload = ImageUpload::from_json(br#"{"state": "ready", "state_time": 1}"#).unwrap();
        assert_eq!(upload.python_path.as_deref(), Some("/usr/bin/python2"));
    }

    #[test]
    fn what_is_unset_is_left_out_and_formats_are_sorted() {
        let time = Timestamp::from_secs(1.5).unwrap();
        let mut build = ImageBuild::new(BuildState::Building, time);
        let json = String::from_utf8(build.to_json()).unwrap();
        assert_eq!(
            json,
            r#"{"python_path": null, "shell_type": null, "state": "building", "state_time": 1.5, "username": null}"#
        );
        build.formats = ["raw", "qcow2"].into_iter().collect();
        let json = String::from_utf8(build.to_json()).unwrap();
        assert!(json.contains(r#""formats": "qcow2,raw""#));
        assert_eq!(ImageBuild::from_json(json.as_bytes()).unwrap(), build);
    }
}
