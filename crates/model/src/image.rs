//! Records of image builds and of their uploads to providers.

use serde_json::value::RawValue;

use crate::ids::{BuildId, UploadId};
use crate::json::{self, DecodeError, JsonField, write_string};
use crate::names::{ImageName, ProviderName};
use crate::record::{impl_set_state, record};
use crate::state::{BuildState, UploadState};
use crate::time::Timestamp;

/// Identifies a build of an image.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildKey {
    pub image: ImageName,
    pub build: BuildId,
}

/// Identifies an upload of a build to a provider.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UploadKey {
    pub build: BuildKey,
    pub provider: ProviderName,
    pub upload: UploadId,
}

/// Python Nodepool's default for records without the key `python_path`.
const DEFAULT_PYTHON: &str = "/usr/bin/python2";

record! {
    /// A build of an image. Its image and id are in its path.
    ImageBuild, "image build";
    required {
        "state" => state: BuildState;
        /// When `state` was last set. Determines the newest build.
        "state_time" => state_time: Timestamp;
    }
    optional {
        /// The host that built it.
        "builder" => builder: Option<Box<str>> = None, omits Option::is_none;
        /// The id of the builder, which is independent of its host name.
        "builder_id" => builder_id: Option<Box<str>> = None, omits Option::is_none;
        "formats" => formats: Formats = Formats::default(), omits Formats::is_empty;
        /// `zuul` if it was imported from the Zuul build in the next two keys. Python ignores all three.
        "source" => source: Option<Box<str>> = None, omits Option::is_none;
        "zuul_build_uuid" => zuul_build_uuid: Option<Box<str>> = None, omits Option::is_none;
        "zuul_end_time" => zuul_end_time: Option<Timestamp> = None, omits Option::is_none;
        "username" => username: Option<Box<str>> = None, absent Some("zuul".into());
        "python_path" => python_path: Option<Box<str>> = None, absent Some(DEFAULT_PYTHON.into());
        "shell_type" => shell_type: Option<Box<str>> = None;
    }
}

record! {
    /// An upload of a build to a provider. Its image, build, provider and id are in its path.
    ImageUpload, "image upload";
    required {
        "state" => state: UploadState;
        /// When `state` was last set. Nodes boot from the ready upload with the latest time.
        "state_time" => state_time: Timestamp;
    }
    optional {
        /// The provider's id of the image.
        "external_id" => external_id: Option<Box<str>> = None;
        "external_name" => external_name: Option<Box<str>> = None;
        "format" => format: Option<Box<str>> = None;
        "username" => username: Option<Box<str>> = None, absent Some("zuul".into());
        "python_path" => python_path: Option<Box<str>> = None, absent Some(DEFAULT_PYTHON.into());
        "shell_type" => shell_type: Option<Box<str>> = None;
    }
}

impl_set_state!(ImageBuild: BuildState, ImageUpload: UploadState);

/// The formats of a build, sorted. In JSON, one string separated by commas.
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

impl JsonField for Formats {
    fn read(value: &RawValue) -> Result<Self, DecodeError> {
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
        write_string(out, &self.0.join(","));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn absent_keys_have_pythons_defaults() {
        let build = ImageBuild::from_json(br#"{"state": "ready", "state_time": 1}"#).unwrap();
        assert_eq!(build.username.as_deref(), Some("zuul"));
        assert_eq!(build.python_path.as_deref(), Some("/usr/bin/python2"));
        let upload = ImageUpload::from_json(br#"{"state": "ready", "state_time": 1}"#).unwrap();
        assert_eq!(upload.python_path.as_deref(), Some("/usr/bin/python2"));
    }

    #[test]
    fn unset_keys_are_omitted_and_formats_sorted() {
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
