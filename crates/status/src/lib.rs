//! Nodepool's lists: nodes, uploads, builds, image status, requests, labels.
//!
//! Operators and their scripts read these as `+---+` tables and as JSON, from the command line and from the
//! web; columns, keys and forms are those of Nodepool. A [`Table`] is made from records by one of the
//! modules here, and rendered by [`Table::text`] or serialised.

mod images;
mod labels;
mod nodes;
mod requests;
mod table;

pub use images::{
    BuildRequest, BuildRow, ImageRow, build_table, builds, image_status, image_table, upload_table,
    uploads,
};
pub use labels::labels;
pub use nodes::{NodeRow, all_nodes, nodes};
pub use requests::requests;
pub use table::{Cell, Table};
