//! Nodepool's lists: nodes, uploads, builds, image status, requests and labels.
//!
//! Columns, JSON keys and formats are those of Nodepool, because operators' scripts parse them. The other modules turn
//! records into a [`RecordTable`], which renders itself as a `+---+` table ([`RecordTable::text`]) and as JSON.

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
pub use table::{Cell, RecordTable};
