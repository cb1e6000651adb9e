//! File names in images-dir.
//!
//! ```text
//! builder_id.txt
//! <image>-<id>.<format>            an image file
//! <image>-<id>.<format>.md5        its digests, as diskimage-builder writes them
//! <image>-<id>.<format>.sha256
//! <image>-<id>.d/nodeyard.json     the manifest, next to files of diskimage-builder
//! .nodeyard/lock                   held by the process that uses the directory
//! .nodeyard/drafts/<id>.json       an image that is being built
//! .nodeyard/deleting/<id>.json     an image that is being removed
//! .nodeyard/scratch/<id>/          work files of a build; cleared at start
//! .nodeyard/converting/<number>/   work files of a conversion; cleared at start
//! .zuul-downloads/<image>/         incomplete downloads of artifacts
//! ```
//!
//! Image names and ids may contain dashes and dots, so a file name cannot be split into them; the manifest has both. A
//! file still belongs to exactly one [`BaseName`], because a format contains neither dot nor dash and is none of `d`,
//! `md5`, `sha256`, `tmp`.

use std::path::{Path, PathBuf};

use nodeyard_model::{BuildId, ImageName};

use crate::{Format, ImageId};

pub(crate) const BUILDER_ID: &str = "builder_id.txt";
pub(crate) const MANIFEST: &str = "nodeyard.json";
/// The suffix of a manifest's directory.
pub(crate) const MANIFEST_DIR: &str = ".d";

/// File names are limited to 255 bytes; this leaves room for the longest extension.
const MAX_BASE_LEN: usize = 220;

/// Suffixes of diskimage-builder's unfinished files.
const TEMPORARY_SUFFIXES: [&str; 3] = ["-new", "-intermediate", "-intermediate.bak"];

/// `<image>-<id>`, the common prefix of the names of an image's files.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BaseName(Box<str>);

/// An image name and id that are not valid in file names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid file name for image {image} with id {id}: {reason}")]
pub struct InvalidBaseName {
    image: ImageName,
    id: ImageId,
    reason: &'static str,
}

impl BaseName {
    pub(crate) fn new(image: &ImageName, id: &ImageId) -> Result<Self, InvalidBaseName> {
        let name = image.as_str();
        let reason = if name.contains(['/', '\0']) {
            "the image name contains a slash or a NUL byte"
        } else if name.starts_with('.') {
            "the image name begins with a dot"
        } else if name.len() + 1 + id.as_str().len() > MAX_BASE_LEN {
            "name and id together exceed 219 bytes"
        } else {
            return Ok(Self(format!("{image}-{id}").into()));
        };
        Err(InvalidBaseName {
            image: image.clone(),
            id: id.clone(),
            reason,
        })
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn file(&self, format: &Format) -> String {
        format!("{}.{format}", self.0)
    }

    /// Returns whether a file of this name belongs to the image.
    pub(crate) fn owns(&self, name: &str) -> bool {
        let Some(rest) = name
            .strip_prefix(&*self.0)
            .and_then(|rest| rest.strip_prefix('.'))
        else {
            return false;
        };
        ["", ".md5", ".sha256", ".md5.tmp", ".sha256.tmp"]
            .into_iter()
            .chain(TEMPORARY_SUFFIXES)
            .filter_map(|ending| rest.strip_suffix(ending))
            .any(|format| format.parse::<Format>().is_ok())
    }
}

/// Parses the name of an image file of Python Nodepool: `<image>-<32 hexadecimal digits>.<format>`.
pub(crate) fn parse_python_name(name: &str) -> Option<(ImageName, ImageId, Format)> {
    let (stem, format) = name.rsplit_once('.')?;
    let (image, build) = stem.rsplit_once('-')?;
    let image: ImageName = image.parse().ok()?;
    let build: BuildId = build.parse().ok()?;
    Some((image, build.into(), format.parse().ok()?))
}

/// The paths of one repository.
#[derive(Debug)]
pub(crate) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn base(&self, base: &BaseName) -> PathBuf {
        self.dir.join(base.as_str())
    }

    pub(crate) fn file(&self, base: &BaseName, format: &Format) -> PathBuf {
        self.dir.join(base.file(format))
    }

    pub(crate) fn manifest_dir(&self, base: &BaseName) -> PathBuf {
        self.dir.join(format!("{}{MANIFEST_DIR}", base.as_str()))
    }

    pub(crate) fn manifest(&self, base: &BaseName) -> PathBuf {
        self.manifest_dir(base).join(MANIFEST)
    }

    pub(crate) fn nodeyard_dir(&self) -> PathBuf {
        self.dir.join(".nodeyard")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.nodeyard_dir().join("lock")
    }

    pub(crate) fn drafts(&self) -> PathBuf {
        self.nodeyard_dir().join("drafts")
    }

    pub(crate) fn draft(&self, id: &ImageId) -> PathBuf {
        self.drafts().join(format!("{id}.json"))
    }

    pub(crate) fn deleting(&self) -> PathBuf {
        self.nodeyard_dir().join("deleting")
    }

    pub(crate) fn deletion(&self, id: &ImageId) -> PathBuf {
        self.deleting().join(format!("{id}.json"))
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.nodeyard_dir().join("scratch")
    }

    pub(crate) fn converting(&self) -> PathBuf {
        self.nodeyard_dir().join("converting")
    }

    pub(crate) fn downloads(&self) -> PathBuf {
        self.dir.join(".zuul-downloads")
    }

    pub(crate) fn scratch_of(&self, id: &ImageId) -> PathBuf {
        self.scratch().join(id.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(image: &str, id: &str) -> BaseName {
        BaseName::new(&image.parse().unwrap(), &id.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_base_name_owns_its_files_and_no_others() {
        let short = base("a", "b");
        for own in [
            "a-b.raw",
            "a-b.raw.md5",
            "a-b.qcow2.sha256",
            "a-b.qcow2.sha256.tmp",
            "a-b.vhd-intermediate",
            "a-b.vhd-intermediate.bak",
            "a-b.qcow2-new",
            "a-b.vmlinuz",
        ] {
            assert!(short.owns(own), "{own}");
        }
        for other in [
            "a-b",
            "a-b.d",
            "a-b.md5",
            "a-b.",
            "a-b.c.raw",
            "a-b.c-x.raw",
            "a-b-c.raw",
            "a-bc.raw",
            "a-b.c.d",
            "a-b.raw.md5.sha256",
            "a-b.raw.tmp",
        ] {
            assert!(!short.owns(other), "{other}");
        }
    }

    #[test]
    fn invalid_file_names_are_rejected() {
        let id: ImageId = "1".parse().unwrap();
        for bad in ["...", ".nodeyard", &"x".repeat(250)] {
            assert!(BaseName::new(&bad.parse().unwrap(), &id).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_images_of_python_are_parsed() {
        let hex = "0123456789abcdef0123456789abcdef";
        let (image, id, format) = parse_python_name(&format!("ubuntu-22.04-{hex}.qcow2")).unwrap();
        assert_eq!(
            (image.as_str(), id.as_str(), format.as_str()),
            ("ubuntu-22.04", hex, "qcow2")
        );
        for other in [
            format!("a-{hex}.qcow2.md5"),
            format!("a-{hex}.qcow2.sha256"),
            format!("a-{hex}.d"),
            format!("a-{hex}"),
            format!("{hex}.raw"),
            format!("a-{}.raw", hex.to_uppercase()),
            "a-0123.raw".to_owned(),
            BUILDER_ID.to_owned(),
        ] {
            assert!(parse_python_name(&other).is_none(), "{other}");
        }
    }
}
