//! The data model shared by all crates: ids, names, states, resources, and the records with their JSON.
//!
//! The records are shared with Zuul and Python Nodepool: [`Record::from_json`] accepts what those write,
//! [`Record::to_json`] writes what those expect, and unknown keys are preserved. Beyond the clock and
//! the environment of child processes, this crate has no I/O, and no randomness.

pub mod child_environment;
pub mod clock;
pub mod component;
pub mod error_code;
pub mod ids;
pub mod image;
pub mod layout;
pub mod names;
pub mod node;
pub mod quota;
pub mod record;
pub mod request;
pub mod state;
pub mod time;

mod causes;
mod intern;
mod json;

pub use causes::with_causes;
pub use clock::{Clock, now};
pub use component::{Component, PoolComponent};
pub use error_code::{Coded, ErrorCode, coded};
pub use ids::{BuildId, NodeId, RequestId, UploadId};
pub use image::{BuildKey, Formats, ImageBuild, ImageUpload, UploadKey};
pub use json::{DecodeError, Opaque};
pub use names::{ImageName, InvalidName, Label, LauncherId, PoolName, ProviderName, TenantName};
pub use node::{Allocation, ConnectionPort, Node};
pub use quota::{Limits, Quantity, ResourceName, Resources};
pub use record::{Record, RecordError, UnknownKeys};
pub use request::{NodeRequest, RequestOrder};
pub use state::{
    BuildState, ComponentKind, ComponentState, NodeState, RequestState, UnknownVariant, UploadState,
};
pub use time::Timestamp;
