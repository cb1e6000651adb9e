//! Images as files on this host.

mod id;

pub use id::{BadImageId, ImageId};
