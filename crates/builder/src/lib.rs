//! The services that make images.
//!
//! A worker does the work: it builds, converts, uploads and deletes, and holds the files. A steward decides what
//! is to be done and writes the records. They meet in gearman only, by the functions and payloads of [`jobs`]; that
//! is what lets a worker sit on any host, without the store.

mod codes;
pub mod jobs;
pub mod source;
pub mod steward;
pub mod worker;
mod zuul;
