//! What operators and their programs see of launchers and builders.
//!
//! * [`webapp`]: Nodepool's lists over HTTP, `/ready`, `/live`, `/metrics`, and why a request waits.
//! * [`builder`]: what a builder counts, for Prometheus and statsd, and its pages.
//! * [`metrics`]: what is counted. One cheap handle, read by Prometheus and sent to statsd.
//! * [`index`]: the HTML page at `/`, a list of links.
//! * [`server`]: what all HTTP servers of this program have in common.
//! * [`statsd`]: Nodepool's names on the wire, and the reports of the elected launcher.
//!
//! All of them look at [`Views`] only, so that being watched costs the store nothing.

pub mod builder;
pub mod index;
pub mod metrics;
pub mod server;
pub mod statsd;
pub mod webapp;

mod census;
mod views;

pub use census::{Census, PerState};
pub use metrics::{LaunchResult, Metrics};
pub use nodeyard_status::ImageRow;
pub use statsd::Statsd;
pub use views::{Views, marks::Mark, marks::MarkShape, marks::images as image_rows};
pub use webapp::{Explain, Reasons, Sources, Webapp};
