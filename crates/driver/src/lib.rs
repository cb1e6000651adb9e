#![doc = include_str!("../README.md")]

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
