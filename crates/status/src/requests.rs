//! The list of requests.

use nodeyard_model::{NodeRequest, RequestId, Timestamp};

use crate::table::{Cell, RecordTable};

const COLUMNS: &[(&str, &str)] = &[
    ("id", "Request ID"),
    ("relative_priority", "Priority"),
    ("state", "State"),
    ("requestor", "Requestor"),
    ("node_types", "Node Types"),
    ("nodes", "Nodes"),
    ("declined_by", "Declined By"),
    ("event_id", "Event ID"),
];

pub fn requests<'a>(
    requests: impl IntoIterator<Item = (RequestId, &'a NodeRequest)>,
    now: Timestamp,
) -> RecordTable {
    let rows = requests.into_iter().map(|(id, request)| {
        let labels = request.labels.iter().map(|label| label.as_str().to_owned());
        let declined = request.declined_by.iter().map(|id| id.as_str().to_owned());
        vec![
            Cell::text(id),
            Cell::Number(request.relative_priority),
            Cell::text(request.state.as_str()),
            Cell::from(request.requestor.as_deref()),
            Cell::List(labels.collect()),
            Cell::List(request.nodes.iter().map(ToString::to_string).collect()),
            Cell::List(declined.collect()),
            Cell::from(request.event_id.as_deref()),
        ]
    });
    RecordTable::new(COLUMNS, rows.collect(), now)
}
