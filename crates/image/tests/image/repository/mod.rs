//! The repository with real files, processes and `qemu-img`.

mod budget;
mod convert;
mod digests;
mod killed;
mod life;
mod scan;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use nodeyard_image::{
    DiskLimits, Draft, DraftRequest, Error, Format, ImageId, Options, Repository,
};

pub(crate) const HEX: &str = "0123456789abcdef0123456789abcdef";

pub(crate) const UNLIMITED: DiskLimits = DiskLimits {
    keep_free: 0,
    max_used: None,
    first_build: 0,
};

pub(crate) fn options(dir: &Path) -> Options {
    Options {
        dir: dir.to_owned(),
        builder: "builder.example".into(),
        limits: UNLIMITED,
    }
}

pub(crate) fn open(dir: &Path) -> Repository {
    Repository::open(options(dir)).unwrap()
}

pub(crate) fn id(text: &str) -> ImageId {
    text.parse().unwrap()
}

pub(crate) fn format(text: &str) -> Format {
    text.parse().unwrap()
}

pub(crate) fn create_draft(repository: &Repository, image: &str, id: &str) -> Result<Draft, Error> {
    repository.create_draft(DraftRequest {
        image: image.parse().unwrap(),
        id: id.parse().unwrap(),
        managed: None,
        need: None,
    })
}

/// Builds an image with one file.
pub(crate) fn build(repository: &Repository, image: &str, id: &str, content: &[u8]) {
    let draft = create_draft(repository, image, id).unwrap();
    fs::write(draft.path(&format("raw")), content).unwrap();
    draft.commit(&[format("raw")]).unwrap();
}

/// Creates a sparse file with non-zero bytes at the start, in the middle and at the end.
pub(crate) fn sparse_file(path: &Path, size: u64) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for at in [0, size / 2, size - 5000] {
        let bytes: Vec<u8> = (0..5000_u32).map(|n| (n % 251) as u8 + 1).collect();
        file.write_all_at(&bytes, at).unwrap();
    }
    file.sync_all().unwrap();
}

/// Returns the size on disk.
pub(crate) fn allocated(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}
