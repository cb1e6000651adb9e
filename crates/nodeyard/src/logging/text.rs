//! The form that suits people: that of `tracing-subscriber`, with the code of an error behind it.

use std::error::Error;
use std::fmt;

use tracing::field::{Field, Visit};
use tracing_subscriber::field::{RecordFields, VisitFmt as _, VisitOutput as _};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};

use crate::error_codes::code_of;

#[derive(Debug)]
pub(super) struct FieldsWithCodes;

impl<'writer> FormatFields<'writer> for FieldsWithCodes {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = CodeVisitor(DefaultVisitor::new(writer, true));
        fields.record(&mut visitor);
        visitor.0.finish()
    }
}

struct CodeVisitor<'writer>(DefaultVisitor<'writer>);

impl Visit for CodeVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.record_debug(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.record_str(field, value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.0.record_error(field, value);
        if let Some(code) = code_of(value) {
            // A writer that fails here has failed before, and `finish` tells.
            let _ = write!(self.0.writer(), " code={code}");
        }
    }
}
