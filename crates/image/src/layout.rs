//! What is called how in images-dir.
//!
//! ```text
//! builder_id.txt
//! <image>-<id>.<format>            an image file
//! <image>-<id>.<format>.md5        its digests, as diskimage-builder writes them
//! <image>-<id>.<format>.sha256
//! <image>-<id>.d/nodeyard.json     the manifest, beside what diskimage-builder puts there
//! .nodeyard/lock                   held by the process that uses the directory
//! .nodeyard/drafts/<id>.json       an image that is being made
//! .nodeyard/deleting/<id>.json     an image that is being removed
//! .nodeyard/scratch/<id>/          work files of an image that is being made; a start clears it
//! .nodeyard/converting/<number>/   those of a conversion; a start clears it
//! .zuul-downloads/<image>/         what was fetched of artifacts that are not complete yet
//! ```
//!
//! Image names and ids may contain dashes and dots, so a file name alone does not say where one ends and the other
//! begins; only the manifest does. What belongs to a base is still certain: a format has neither dot nor dash and is
//! none of `d`, `md5`, `sha256`, `tmp`, so no name belongs to two bases.

use std::path::{Path, PathBuf};

use nodeyard_model::{BuildId, ImageName};

use crate::{Format, ImageId};

pub(crate) const BUILDER_ID: &str = "builder_id.txt";
pub(crate) const MANIFEST: &str = "nodeyard.json";
/// What ends the name of a manifest's directory.
pub(crate) const MANIFEST_DIR: &str = ".d";

/// File names have 255 bytes; this leaves room for the longest extension.
const LONGEST_BASE: usize = 220;

/// What diskimage-builder adds to the name of a file while it makes it.
const HALF_MADE: [&str; 3] = ["-new", "-intermediate", "-intermediate.bak"];

/// `<image>-<id>`: what the names of all files of an image begin with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Base(Box<str>);

/// An image whose files cannot have names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("files cannot be named after image {image} and id {id}: {reason}")]
pub struct BadBase {
    image: ImageName,
    id: ImageId,
    reason: &'static str,
}

impl Base {
    pub(crate) fn new(image: &ImageName, id: &ImageId) -> Result<Self, BadBase> {
        let name = image.as_str();
        let reason = if name.contains(['/', '\0']) {
            "the name of the image contains a slash or a zero byte"
        } else if name.starts_with('.') {
            "the name of the image begins with a dot"
        } else if name.len() + 1 + id.as_str().len() > LONGEST_BASE {
            "together they have more than 219 bytes"
        } else {
            return Ok(Self(format!("{image}-{id}").into()));
        };
        Err(BadBase {
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

    /// Whether a file of this name goes when the image goes.
    pub(crate) fn owns(&self, name: &str) -> bool {
        let Some(rest) = name
            .strip_prefix(&*self.0)
            .and_then(|rest| rest.strip_prefix('.'))
        else {
            return false;
        };
        ["", ".md5", ".sha256", ".md5.tmp", ".sha256.tmp"]
            .into_iter()
            .chain(HALF_MADE)
            .filter_map(|ending| rest.strip_suffix(ending))
            .any(|format| format.parse::<Format>().is_ok())
    }
}

/// An image file that Python Nodepool made: `<image>-<32 hexadecimal digits>.<format>`.
pub(crate) fn parse_foreign(name: &str) -> Option<(ImageName, ImageId, Format)> {
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

    pub(crate) fn base(&self, base: &Base) -> PathBuf {
        self.dir.join(base.as_str())
    }

    pub(crate) fn file(&self, base: &Base, format: &Format) -> PathBuf {
        self.dir.join(base.file(format))
    }

    pub(crate) fn manifest_dir(&self, base: &Base) -> PathBuf {
        self.dir.join(format!("{}{MANIFEST_DIR}", base.as_str()))
    }

    pub(crate) fn manifest(&self, base: &Base) -> PathBuf {
        self.manifest_dir(base).join(MANIFEST)
    }

    pub(crate) fn own(&self) -> PathBuf {
        self.dir.join(".nodeyard")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.own().join("lock")
    }

    pub(crate) fn drafts(&self) -> PathBuf {
        self.own().join("drafts")
    }

    pub(crate) fn draft(&self, id: &ImageId) -> PathBuf {
        self.drafts().join(format!("{id}.json"))
    }

    pub(crate) fn deleting(&self) -> PathBuf {
        self.own().join("deleting")
    }

    pub(crate) fn deletion(&self, id: &ImageId) -> PathBuf {
        self.deleting().join(format!("{id}.json"))
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.own().join("scratch")
    }

    pub(crate) fn converting(&self) -> PathBuf {
        self.own().join("converting")
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

    fn base(image: &str, id: &str) -> Base {
        Base::new(&image.parse().unwrap(), &id.parse().unwrap()).unwrap()
    }

    #[test]
    fn a_base_owns_its_files_and_no_others() {
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
    fn names_that_make_no_file_are_refused() {
        let id: ImageId = "1".parse().unwrap();
        for bad in ["...", ".nodeyard", &"x".repeat(250)] {
            assert!(Base::new(&bad.parse().unwrap(), &id).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_images_are_taken_for_images_of_python() {
        let hex = "0123456789abcdef0123456789abcdef";
        let (image, id, format) = parse_foreign(&format!("ubuntu-22.04-{hex}.qcow2")).unwrap();
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
            assert!(parse_foreign(&other).is_none(), "{other}");
        }
    }
}
