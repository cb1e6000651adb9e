//! Monitoring of launchers and builders: web pages, Prometheus metrics and statsd.
//!
//! * [`webapp`]: Nodepool's lists over HTTP, `/ready`, `/live`, `/metrics` and `/explain`.
//! * [`builder`]: the metrics and pages of a builder.
//! * [`metrics`]: the metrics of a launcher, recorded through one cheap handle.
//! * [`index`]: the HTML page at `/`.
//! * [`server`]: the HTTP/1.1 connection handling that all servers of this program share.
//! * [`statsd`]: Nodepool's metric names, and the reports of the elected launcher.
//!
//! Pages and metrics read cached [`StatusViews`] only, so that requests cause no load on the store.

pub mod builder;
pub mod index;
pub mod metrics;
pub mod server;
pub mod statsd;
pub mod webapp;

mod counts;
mod views;

pub use counts::{NodeStateCounts, RecordCounts};
pub use metrics::{LaunchOutcome, Metrics};
pub use nodeyard_status::ImageRow;
pub use statsd::Statsd;
pub use views::{
    StatusViews, image_markers::ImageMarker, image_markers::ImageMarkerShape,
    image_markers::images as image_rows,
};
pub use webapp::{RenderedExplanation, RequestExplainer, WebappServer, WebappSources};
