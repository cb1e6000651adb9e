//! Output of commands: tables for people, JSON and YAML for programs.

mod yaml;

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use clap::ValueEnum;
use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Table, Width};
use serde::Serialize;

/// The gap between columns.
const GAP: u16 = 2;
/// The minimum width of a wrapped column.
const NARROWEST: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table for people.
    #[default]
    Table,
    /// JSON with stable keys, in one document.
    Json,
    /// The same in YAML.
    Yaml,
}

impl OutputFormat {
    /// Returns whether the output is a document for programs.
    pub(crate) fn is_document(self) -> bool {
        self != OutputFormat::Table
    }

    /// Returns JSON instead of a table, for results without a table form.
    pub(crate) fn or_json(self) -> Self {
        match self {
            OutputFormat::Table => OutputFormat::Json,
            document => document,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Color {
    /// If standard output or error is a terminal.
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// Applies the choice to everything that is printed through `anstream`.
    pub(crate) fn apply(self) {
        match self {
            Color::Auto => anstream::ColorChoice::Auto,
            Color::Always => anstream::ColorChoice::Always,
            Color::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

/// Prints one document.
pub(crate) fn document(value: &impl Serialize, format: OutputFormat) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if format == OutputFormat::Yaml {
        let value = serde_json::to_value(value).map_err(io::Error::from)?;
        out.write_all(yaml::text(&value).as_bytes())?;
        return Ok(());
    }
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Prints one of many values: a line of JSON, or a YAML document of its own.
pub(crate) fn stream(value: &impl Serialize, format: OutputFormat) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if format == OutputFormat::Yaml {
        let value = serde_json::to_value(value).map_err(io::Error::from)?;
        write!(out, "---\n{}", yaml::text(&value))?;
    } else {
        serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

/// Prints a table with upper-case headings and two spaces between columns.
pub(crate) fn table<const N: usize>(
    headings: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> anyhow::Result<()> {
    let headings = headings.map(str::to_owned).to_vec();
    self::rows(headings, rows.into_iter().map(Vec::from).collect())
}

/// Like [`table`], with a number of columns that is not known at compile time.
pub(crate) fn rows(headings: Vec<String>, rows: Vec<Vec<String>>) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let width = width_of(&out);
    for line in lines(headings, rows, width) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Lays out a table. The last column, which contains long texts, is wrapped if the terminal is wide enough.
fn lines(headings: Vec<String>, rows: Vec<Vec<String>>, width: Option<usize>) -> Vec<String> {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(headings);
    table.add_rows(rows);
    let last = table.column_count().saturating_sub(1);
    for column in table.column_iter_mut() {
        column.set_padding(if column.index == last {
            (0, 0)
        } else {
            (0, GAP)
        });
    }
    let widths = table.column_max_content_widths();
    let before: usize = widths
        .iter()
        .take(last)
        .map(|width| usize::from(width + GAP))
        .sum();
    let room = width.map_or(0, |width| width.saturating_sub(before));
    if room >= NARROWEST
        && let Some(column) = table.column_mut(last)
    {
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(room)));
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::MAX);
    }
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect()
}

/// Returns the width of a terminal in columns.
pub(crate) fn width_of(file: &(impl AsFd + IsTerminal)) -> Option<usize> {
    let size = file
        .is_terminal()
        .then(|| rustix::termios::tcgetwinsize(file).ok())??;
    (size.ws_col > 0).then(|| usize::from(size.ws_col))
}

/// Prints that a list is empty.
pub(crate) fn none(thing: &str) -> anyhow::Result<()> {
    Ok(writeln!(io::stdout(), "no {thing}s")?)
}

/// Returns `1 record`, `2 records`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(width: Option<usize>) -> String {
        let headings = ["IMAGE", "TROUBLE"].map(str::to_owned).to_vec();
        let rows = [
            ["debian", "upload to cloud failed: the quota is used up"],
            ["tiny", "-"],
        ];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec()).to_vec();
        lines(headings, rows, width).join("\n")
    }

    #[test]
    fn the_last_column_is_wrapped_on_a_terminal() {
        let plain =
            "IMAGE   TROUBLE\ndebian  upload to cloud failed: the quota is used up\ntiny    -";
        assert_eq!(shown(None), plain);
        assert_eq!(shown(Some(80)), plain);
        assert_eq!(
            shown(Some(32)),
            "IMAGE   TROUBLE\ndebian  upload to cloud failed:\n        the quota is used up\ntiny    -"
        );
        assert_eq!(shown(Some(16)), plain);
    }
}
