//! Ids, names, states, quota arithmetic and the records: the words that every part of Nodeyard shares.
//!
//! Nothing here draws a random number or touches a file, and only [`clock`] reads the time. The records are the contract with
//! Zuul and Python Nodepool: [`Record::from_json`] accepts everything those write,
//! [`Record::to_json`] writes what those expect, and what we do not know passes through unchanged.

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
mod json;
mod text;

pub use causes::with_causes;
pub use clock::{Clock, now};
pub use component::{Component, PoolComponent};
pub use error_code::{Coded, ErrorCode, coded};
pub use ids::{BuildId, NodeId, RequestId, UploadId};
pub use image::{BuildKey, Formats, ImageBuild, ImageUpload, UploadKey};
pub use json::{Flaw, Opaque};
pub use names::{ImageName, InvalidName, Label, LauncherId, PoolName, ProviderName, TenantName};
pub use node::{Allocation, ConnectionPort, Node};
pub use quota::{Limits, Quantity, ResourceName, Resources};
pub use record::{OtherKeys, Record, RecordError};
pub use request::{NodeRequest, RequestOrder};
pub use state::{
    BuildState, ComponentKind, ComponentState, NodeState, RequestState, UnknownWord, UploadState,
};
pub use time::Timestamp;
