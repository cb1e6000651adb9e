//! The services that build and upload images.
//!
//! A worker builds, converts, uploads and deletes images and holds their files. A steward decides what to do and writes the
//! records. They communicate only through gearman, with the functions and payloads of [`jobs`], so a worker runs on any
//! host without access to the store.

mod codes;
pub mod jobs;
pub mod source;
pub mod steward;
pub mod worker;
mod zuul;
