//! Images as files on this host: the repository of a builder, digests, sparse files, conversion, disk budget.
//!
//! * [`Repository`]: the images in images-dir and what is known of each. A killed process leaves no half of anything.
//! * [`Draft`]: an image that is being made, until it is one or has failed.
//! * [`digest()`], [`SparseWriter`], [`copy()`]: both digests while the bytes go by once, holes kept.
//! * [`download()`]: a file from elsewhere, in pieces, unpacked and checked on the way.
//! * [`Repository::convert`]: another format of an image, by `qemu-img`.
//! * [`PublicKey`]: whether a file was signed as coming from a certain job.
//! * [`Limits`]: how much of the disk images may use.
//!
//! Most of it blocks, and says so. Nothing here knows the store, gearman or a cloud.

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
