#![doc = include_str!("../README.md")]

mod budget;
mod checksum;
mod codes;
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
