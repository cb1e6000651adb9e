//! What commands print: tables for people, JSON and YAML for programs.

mod yaml;

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: stable keys, one document.
    Json,
    /// The same as YAML.
    Yaml,
}

impl Format {
    /// True if programs read it.
    pub(crate) fn is_document(self) -> bool {
        self != Format::Table
    }

    /// For results that have no form for people.
    pub(crate) fn or_json(self) -> Self {
        match self {
            Format::Table => Format::Json,
            document => document,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Color {
    /// Where standard output or error is a terminal.
    #[default]
    Auto,
    Always,
    Never,
}

impl Color {
    /// Decides for all that is printed through `anstream` from now on.
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
pub(crate) fn document(value: &impl Serialize, format: Format) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if format == Format::Yaml {
        let value = serde_json::to_value(value).map_err(io::Error::from)?;
        out.write_all(yaml::text(&value).as_bytes())?;
        return Ok(());
    }
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Prints one of many values: a line of JSON, or a YAML document of its own.
pub(crate) fn stream(value: &impl Serialize, format: Format) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if format == Format::Yaml {
        let value = serde_json::to_value(value).map_err(io::Error::from)?;
        write!(out, "---\n{}", yaml::text(&value))?;
    } else {
        serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    out.flush()?;
    Ok(())
}

/// Columns under underlined headings, no frame: easy on the eye and on `awk`.
pub(crate) fn table<const N: usize>(
    headings: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> anyhow::Result<()> {
    let headings = headings.map(str::to_owned).to_vec();
    self::rows(headings, rows.into_iter().map(Vec::from).collect())
}

/// As [`table`], where the number of columns is not known to the compiler.
pub(crate) fn rows(headings: Vec<String>, rows: Vec<Vec<String>>) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(headings);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    let mut out = io::stdout().lock();
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// `1 record`, `2 records`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{plural}")
}
