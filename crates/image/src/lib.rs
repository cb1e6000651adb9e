//! Image files on this host: the repository of a builder, digests, sparse files, conversion, disk limits.
//!
//! * [`Repository`]: the images in images-dir with a [`Manifest`] each; crash-safe.
//! * [`Draft`]: an image that is being built.
//! * [`digest()`], [`SparseWriter`], [`copy()`]: compute both digests in one pass and preserve holes.
//! * [`download()`]: fetches, decompresses and verifies a file.
//! * [`Repository::convert`]: converts an image to another format with `qemu-img`.
//! * [`PublicKey`]: verifies that a file was signed by a certain job.
//! * [`DiskLimits`]: limits the disk space of images.
//!
//! Blocking functions are documented as such. This crate does not use the store, gearman or clouds.

mod budget;
mod checksum;
mod convert;
mod digest;
mod download;
mod files;
mod format;
mod id;
mod layout;
mod manifest;
mod repository;
mod signature;
mod sparse;

pub use budget::{ByteSize, DiskLimits, InsufficientSpace};
pub use convert::{
    ConversionTarget, ConvertError, Converter, DiskCompression, InvalidHeader, inspect,
};
pub use digest::{DigestMismatch, Digests, Hasher, digest};
pub use download::{
    ChecksumPolicy, ContentInfo, Download, DownloadError, Downloaded, Packing, ProgressFn,
    Throttle, download,
};
pub use files::FileError;
pub use format::{Format, InvalidFormat};
pub use id::{ImageId, InvalidImageId};
pub use layout::InvalidBaseName;
pub use manifest::{
    ImageFailure, ImageFile, Manifest, ManifestState, ManifestUpload, UploadOutcome,
};
pub use repository::{CommitError, Draft, DraftRequest, Error, OpenError, Options, Repository};
pub use signature::{Claims, PublicKey, SignatureError};
pub use sparse::{SparseWriter, copy};
