//! Reads and checks nodepool.yaml.
//!
//! A file is read in two stages. `source` and `yaml` interpolate variables and parse the text into a tree in which
//! every node has its position. `file`, `images`, `provider`, `drivers` and `service` decode the tree into typed values
//! with defaults and inheritance applied, which `config` combines and `check` validates. Every section is declared once
//! (`section`); its type, decoder, JSON schema and reference are generated from the declaration. [`clouds`] reads
//! clouds.yaml, which image formats depend on.
//!
//! Problems never stop reading. They are collected and returned as [`Diagnostics`], which contain no secrets.

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

pub use config::{Config, ZooKeeperConfig};
pub use decode::Mode;
pub use diagnostic::{Diagnostic, DiagnosticLabel, Diagnostics, Severity, SourceRange};
pub use drivers::*;
pub use file::{
    LabelConfig, TenantLimits, TenantLimitsNamed, WebappConfig, ZooKeeperServerConfig, ZooKeeperTls,
};
pub use images::{
    ArtifactCompression, ArtifactConfig, Auth, AuthKind, BuildConfig, BuilderKind, Canary,
    ChecksumRequirement, DownloadAuth, FormatName, ImageDefinition, ImageSource, SignaturePolicy,
    ZuulImage,
};
pub use load::{ConfigSource, ConfigStamp, Loaded, load, load_bytes};
pub use point_in_time::PointInTime;
pub use provider::{Driver, LabelRef, PoolCommon, PoolRef, Provider, ProviderCommon};
pub use reference::reference;
pub use reload::{ConfigHandle, Reloader};
pub use render::render;
pub use schema::schema;
pub use service::{
    AnonymousAccess, ApiConfig, ApiRight, ApiTls, ApiToken, BuilderWebapp, GearmanClient,
    GearmanListen, GearmanRight, GearmanServer, LOCAL_TOKEN,
};
pub use size::Size;
pub use source::Environment;
pub use values::{
    Concurrency, EnvValue, Limit, MaybeSeconds, Name, Object, OneOrMany, PathName, Port, Seconds,
    SecretText, Spanned, Table,
};
pub use yaml::yaml_to_json;
