//! What signals mean to a process that works until it is told to stop.
//!
//! | signal | meaning |
//! |---|---|
//! | SIGINT, SIGTERM, SIGUSR1 | stop in order; the second one at once |
//! | SIGUSR2 | a launcher logs what it is doing |
//! | SIGHUP | nothing: files are read again when they change |

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Cancelled by the first signal to stop.
pub(crate) fn stop() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Nodepool's older name for the first.
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
            info!("stopping; once more to stop at once");
            asked.cancel();
        }
    });
    Ok(stop)
}

/// Arrives whenever somebody wants to know what goes on.
pub(crate) fn questions() -> anyhow::Result<Signal> {
    Ok(signal(SignalKind::user_defined2())?)
}
