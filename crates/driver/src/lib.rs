//! What a driver is: the seam between the launcher or builder and one kind of cloud.
//!
//! A [`Driver`] knows how to ask its cloud for things and how to read the answers. It never sees the
//! store, decides nothing about requests, and keeps nothing that a restart would miss: what must be
//! remembered is in the caller's records, what must be known is looked up in the cloud.
//!
//! Four promises hold it together, and the [`kit`] checks them for every driver:
//!
//! 1. *The record comes first.* A caller has stored the record of a node or an upload before it takes the
//!    first step, and everything a driver makes carries the record's id in its [`Tags`].
//! 2. *A step may run twice.* A machine is a [`State`] and a method that takes it one step on. A step looks
//!    before it makes something, unless the state is [fresh](State::take_fresh). A crash, a lost answer and
//!    a time-out all end in the same place: the step runs again.
//! 3. *Deleting needs no answer of create.* The id of a record is enough to find what was made for it.
//! 4. *Every error has a class.* The caller acts on the [class](ErrorClass), a person reads the text.

pub mod backing;
mod driver;
mod error;
mod glob;
mod ids;
mod image;
pub mod image_filters;
mod instance;
#[cfg(feature = "kit")]
pub mod kit;
mod order;
mod poll;
pub mod ratelimit;
mod resource;
mod roster;
mod step;
mod tags;
pub mod template;

pub use driver::{Capabilities, Driver, Readiness, Tidied};
pub use error::{Error, ErrorClass};
pub use ids::{ExternalId, SystemId};
pub use image::{
    Bytes, CloudImage, ImageStatus, ImageTarget, Progress, UploadOrder, UploadedImage,
};
pub use image_filters::ImageFilter;
pub use instance::Instance;
pub use order::{BootImage, CreateOrder, RequestAttributes, Target};
pub use poll::Poll;
pub use ratelimit::RateLimiter;
pub use resource::{Resource, ResourceKind};
pub use roster::{Identity, Place, Roster, Sighting};
pub use step::{EventKey, State, Step, Wait};
pub use tags::{Owner, Publication, Tags};
