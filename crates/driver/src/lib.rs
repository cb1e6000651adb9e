//! What a driver is: the seam between the launcher or builder and one kind of cloud.
//!
//! A [`Driver`] translates orders into calls of its cloud's API. It never sees the store, decides nothing about requests,
//! and keeps nothing that has to survive a restart: that is in the caller's records, or can be looked up in the cloud.
//!
//! Four promises hold it together, and the `kit` checks them for every driver:
//!
//! 1. *The record comes first.* A caller has stored the record of a node or an upload before it calls a driver,
//!    and everything a driver makes carries the record's id in its [`Tags`].
//! 2. *Every call can be cancelled and repeated.* [`Machines`] and [`Images`] are plain async functions. A call
//!    looks for what an earlier call of the same order left behind, unless the order is the
//!    [first attempt](CreateOrder::first_attempt). A crash, a lost answer and a timeout all end in the same
//!    place: the call is made again.
//! 3. *Deletion needs no result of create.* The id of a record is enough to find what was made for it.
//! 4. *Every error has a class.* The caller acts on the [class](ErrorClass), a person reads the text.

pub mod backing;
mod clock;
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
mod progress;
mod ratelimit;
mod resource;
mod retries;
mod roster;
mod tags;
pub mod template;

pub use clock::Clock;
pub use driver::{Collected, Driver, Images, Machines, Readiness};
pub use error::{Error, ErrorClass};
pub use ids::{ExternalId, SystemId};
pub use image::{CloudImage, ImageStatus, ImageTarget, UploadOrder, UploadedImage};
pub use image_filters::ImageFilter;
pub use instance::Instance;
pub use order::{BootImage, CreateOrder, RequestAttributes, Target};
pub use poll::{Poll, PollTimer};
pub use progress::{Bytes, Progress, ProgressState};
pub use ratelimit::{CallClass, RateLimiter};
pub use resource::{Resource, ResourceKind};
pub use retries::Retries;
pub use roster::{Identity, Place, Roster, Sighting};
pub use tags::{Owner, Publication, Tags};
