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

pub use budget::{Bytes, Limits, NoRoom};
pub use convert::{BadHeader, Compression, ConvertError, Converter, Target, inspect};
pub use digest::{Digests, Hasher, Mismatch, digest};
pub use download::{
    Checksum, Download, DownloadError, Downloaded, Form, Meter, Packing, Throttle, download,
};
pub use files::FileError;
pub use format::{BadFormat, Format};
pub use id::{BadImageId, ImageId};
pub use layout::BadBase;
pub use manifest::{Failure, ImageFile, Manifest, Outcome, State, Upload};
pub use repository::{Begin, CommitError, Draft, Error, OpenError, Options, Repository};
pub use signature::{Claims, PublicKey, SignatureError};
pub use sparse::{SparseWriter, copy};
