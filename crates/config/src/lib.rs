//! nodepool.yaml: what the file says, what it means, and what is wrong with it.
//!
//! A file goes through two stages. The first (`source`, `yaml`) is what it says: text with variables
//! interpolated, and a tree in which every node knows its place. The second (`file`, `images`,
//! `provider`, `drivers`, `service`) is what it means: typed values with defaults and inheritance
//! applied, in `config` put together and in `check` held against each other. Every section is
//! declared once (`section`), and from that declaration come its type, its decoder, its place in
//! the JSON schema and its text in the reference.
//!
//! Beside it, [`clouds`] reads clouds.yaml, on which the formats of images depend.
//!
//! Problems never stop the reading. They are collected and leave as [`Diagnostics`], which have no
//! secret in them.

pub mod clouds;

mod check;
mod config;
mod decode;
mod diagnostic;
mod drivers;
mod excerpt;
mod file;
mod images;
mod listeners;
mod load;
mod point_in_time;
mod provider;
mod reference;
mod reload;
mod render;
mod schema;
mod section;
mod service;
mod size;
mod source;
mod values;
mod yaml;

pub use config::{Config, ZooKeeper};
pub use decode::Mode;
pub use diagnostic::{Diagnostic, Diagnostics, Label as DiagnosticLabel, Place, Severity};
pub use drivers::*;
pub use file::{Label, TenantLimits, TenantLimitsNamed, Webapp, ZooKeeperServer, ZooKeeperTls};
pub use images::{
    Artifact, Auth, AuthKind, Build, Builder, Canary, Checksum, Compression, DownloadAuth,
    FormatName, Image, ImageSource, SignaturePolicy, ZuulImage,
};
pub use load::{Loaded, Source, Stamp, load, load_bytes};
pub use point_in_time::PointInTime;
pub use provider::{Driver, LabelRef, PoolCommon, PoolRef, Provider, ProviderCommon};
pub use reference::reference;
pub use reload::{Handle, Reloader};
pub use render::render;
pub use schema::schema;
pub use service::{
    AnonymousAccess, Api, ApiRight, ApiTls, ApiToken, BuilderWebapp, GearmanClient, GearmanListen,
    GearmanRight, GearmanServer, LOCAL_TOKEN,
};
pub use size::Size;
pub use source::Environment;
pub use values::{
    Concurrency, EnvValue, Limit, MaybeSeconds, Name, Object, OneOrMany, PathName, Port, Seconds,
    Secret, Spanned, Table,
};
pub use yaml::yaml_to_json;
