//! Configures logging.
//!
//! Commands log to standard error in a readable format, so that standard output contains results only. Daemons log like
//! Nodepool's ([`entry`], [`format`]): the same line format, logger names and ids in front of the message, because
//! operators search for these. A [`routing::LogRouting`] determines what is written where: a default one, or one read
//! from a Python logging configuration ([`python`]).
//!
//! | variable | meaning |
//! |---|---|
//! | `NODEYARD_LOG` | levels, such as `debug` or `nodeyard_store=trace,info`; overrides all others |
//! | `NODEYARD_LOG_FORMAT` | `text`, `nodepool` or `json` |

mod entry;
mod format;
mod names;
mod python;
mod routing;
mod sink;
mod text;

use std::io;
use std::path::Path;

use anstream::{AutoStream, ColorChoice};
use anyhow::bail;
use nodeyard_model::ErrorCode;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use crate::error_codes::WithCode as _;

use entry::LogLayer;
use format::LogFormat;
use routing::LogRouting;
use sink::Sink;

const LEVELS: &str = "NODEYARD_LOG";
const FORMAT: &str = "NODEYARD_LOG_FORMAT";

#[derive(Debug, Clone, Copy)]
pub(crate) struct Level(&'static str);

impl Level {
    /// Returns the level for commands, which log warnings only unless they are verbose.
    pub(crate) fn commands(verbose: u8) -> Self {
        Self(match verbose {
            0 => "warn",
            1 => "nodeyard=info,nodeyard_store=info,nodeyard_config=info,warn",
            _ => "debug",
        })
    }

    pub(crate) fn daemons(verbose: u8) -> Self {
        Self(if verbose == 0 { "info" } else { "debug" })
    }
}

/// Where a daemon logs to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Destination<'a> {
    Stdout,
    /// Appends to a file, and reopens it after it was renamed.
    File(&'a Path),
    /// According to a Python logging configuration.
    Configured(&'a Path),
}

/// Starts logging to standard error, for commands and `nodeyard up`.
pub(crate) fn start(level: Level) -> anyhow::Result<()> {
    match format()? {
        None => {
            tracing_subscriber::fmt()
                .fmt_fields(text::FieldsWithCodes)
                .with_env_filter(levels(level))
                .with_ansi(AutoStream::choice(&io::stderr()) != ColorChoice::Never)
                .with_writer(io::stderr)
                .init();
        }
        Some(form) => install(LogRouting::simple(form, Sink::Stderr), level),
    }
    Ok(())
}

/// Starts logging for Nodepool's daemons.
pub(crate) fn start_daemon(level: Level, destination: Destination<'_>) -> anyhow::Result<()> {
    let form = format()?.unwrap_or_default();
    match destination {
        Destination::Stdout => install(LogRouting::simple(form, Sink::Stdout), level),
        Destination::File(path) => install(LogRouting::simple(form, Sink::file(path)?), level),
        Destination::Configured(path) => {
            let plan = python::read(path).code(ErrorCode::LoggingConfiguration)?;
            if std::env::var_os(LEVELS).is_some() {
                install(plan.without_levels(), level);
            } else {
                let lowest = plan.lowest();
                tracing_subscriber::registry()
                    .with(LogLayer::new(plan).with_filter(lowest))
                    .init();
            }
        }
    }
    Ok(())
}

fn install(plan: LogRouting, level: Level) {
    tracing_subscriber::registry()
        .with(LogLayer::new(plan).with_filter(levels(level)))
        .init();
}

fn levels(level: Level) -> EnvFilter {
    EnvFilter::try_from_env(LEVELS).unwrap_or_else(|_| EnvFilter::new(level.0))
}

/// Returns the configured format; None for the default of commands.
fn format() -> anyhow::Result<Option<LogFormat>> {
    match std::env::var(FORMAT).as_deref() {
        Ok("nodepool") => Ok(Some(LogFormat::default())),
        Ok("json") => Ok(Some(LogFormat::Json)),
        Ok("" | "text") | Err(_) => Ok(None),
        Ok(other) => bail!("invalid {FORMAT} {other:?}: expected text, nodepool or json"),
    }
}

/// Returns the filter for a numeric level of Python.
fn filter(rank: u32) -> LevelFilter {
    match rank {
        0..10 => LevelFilter::TRACE,
        10..20 => LevelFilter::DEBUG,
        20..30 => LevelFilter::INFO,
        30..40 => LevelFilter::WARN,
        _ => LevelFilter::ERROR,
    }
}

/// Returns Python's number of a level.
fn rank(level: tracing::Level) -> u32 {
    match level {
        tracing::Level::TRACE => 5,
        tracing::Level::DEBUG => 10,
        tracing::Level::INFO => 20,
        tracing::Level::WARN => 30,
        tracing::Level::ERROR => 40,
    }
}
