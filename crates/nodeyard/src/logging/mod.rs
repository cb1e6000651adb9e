//! Where log lines go, and how they look.
//!
//! Commands log to standard error, so that results stay alone on standard output, in a form for people. Daemons log
//! as Nodepool's do ([`entry`], [`form`]): same line format, same loggers, same ids in front of the message,
//! because operators search for these. What is written where is a [`plan::Plan`]: the default one, or one read
//! from a Python logging configuration ([`python`]).
//!
//! | variable | meaning |
//! |---|---|
//! | `NODEYARD_LOG` | levels, such as `debug` or `nodeyard_store=trace,info`; overrides all others |
//! | `NODEYARD_LOG_FORMAT` | `text` for people, `nodepool`, or `json` for programs |

mod entry;
mod form;
mod names;
mod plan;
mod python;
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

use entry::Entries;
use form::Form;
use plan::Plan;
use sink::Sink;

const LEVELS: &str = "NODEYARD_LOG";
const FORMAT: &str = "NODEYARD_LOG_FORMAT";

#[derive(Debug, Clone, Copy)]
pub(crate) struct Level(&'static str);

impl Level {
    /// Commands speak through their results; only warnings interrupt.
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
    /// Appended to, and opened again when it was moved away.
    File(&'a Path),
    /// As a Python logging configuration says.
    Configured(&'a Path),
}

/// For commands, and for `up` in the hands of a person: on standard error.
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
        Some(form) => install(Plan::simple(form, Sink::Stderr), level),
    }
    Ok(())
}

/// For daemons that are called by Nodepool's names.
pub(crate) fn start_daemon(level: Level, destination: Destination<'_>) -> anyhow::Result<()> {
    let form = format()?.unwrap_or_default();
    match destination {
        Destination::Stdout => install(Plan::simple(form, Sink::Stdout), level),
        Destination::File(path) => install(Plan::simple(form, Sink::file(path)?), level),
        Destination::Configured(path) => {
            let plan = python::read(path).code(ErrorCode::LoggingConfiguration)?;
            if std::env::var_os(LEVELS).is_some() {
                install(plan.without_levels(), level);
            } else {
                let lowest = plan.lowest();
                tracing_subscriber::registry()
                    .with(Entries::new(plan).with_filter(lowest))
                    .init();
            }
        }
    }
    Ok(())
}

fn install(plan: Plan, level: Level) {
    tracing_subscriber::registry()
        .with(Entries::new(plan).with_filter(levels(level)))
        .init();
}

fn levels(level: Level) -> EnvFilter {
    EnvFilter::try_from_env(LEVELS).unwrap_or_else(|_| EnvFilter::new(level.0))
}

/// None for the form that suits people.
fn format() -> anyhow::Result<Option<Form>> {
    match std::env::var(FORMAT).as_deref() {
        Ok("nodepool") => Ok(Some(Form::default())),
        Ok("json") => Ok(Some(Form::Json)),
        Ok("" | "text") | Err(_) => Ok(None),
        Ok(other) => bail!("{FORMAT} is {other:?}; it must be text, nodepool or json"),
    }
}

/// From the number of a level in Python.
fn filter(rank: u32) -> LevelFilter {
    match rank {
        0..10 => LevelFilter::TRACE,
        10..20 => LevelFilter::DEBUG,
        20..30 => LevelFilter::INFO,
        30..40 => LevelFilter::WARN,
        _ => LevelFilter::ERROR,
    }
}

/// The number of a level in Python.
fn rank(level: tracing::Level) -> u32 {
    match level {
        tracing::Level::TRACE => 5,
        tracing::Level::DEBUG => 10,
        tracing::Level::INFO => 20,
        tracing::Level::WARN => 30,
        tracing::Level::ERROR => 40,
    }
}
