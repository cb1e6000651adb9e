//! Where log lines go: always standard error, so that results stay alone on standard output.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

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

/// `NODEYARD_LOG` overrides the level, in the syntax `debug` or `nodeyard_store=trace,info`.
pub(crate) fn start(level: Level) {
    let filter =
        EnvFilter::try_from_env("NODEYARD_LOG").unwrap_or_else(|_| EnvFilter::new(level.0));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
}
