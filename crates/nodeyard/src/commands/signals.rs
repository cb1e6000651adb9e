//! Signal handling of long-running processes.
//!
//! | signal | meaning |
//! |---|---|
//! | SIGINT, SIGTERM, SIGUSR1 | graceful shutdown; the second one stops at once |
//! | SIGUSR2 | a launcher logs what it is doing |
//! | SIGHUP | ignored: configuration files are reloaded when they change |

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Returns a token that the first signal to stop cancels.
pub(crate) fn stop() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // The signal of older Nodepool releases.
    let mut legacy = signal(SignalKind::user_defined1())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let asked = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = legacy.recv() => {}
                _ = hangup.recv() => continue,
            }
            if asked.is_cancelled() {
                std::process::exit(130);
            }
            info!("stopping; send the signal again to stop at once");
            asked.cancel();
        }
    });
    Ok(stop)
}

/// Receives SIGUSR2, on which a launcher logs its state.
pub(crate) fn status_requests() -> anyhow::Result<Signal> {
    Ok(signal(SignalKind::user_defined2())?)
}
