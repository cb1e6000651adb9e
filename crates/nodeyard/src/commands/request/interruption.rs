//! Signals that interrupt the use of machines.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The offset of the exit code for a signal.
const SIGNALLED: u8 = 128;

/// Waits for SIGINT, SIGTERM or SIGHUP.
pub(super) struct Interruption {
    signals: [(u8, Signal); 3],
}

impl Interruption {
    pub(super) fn listen() -> anyhow::Result<Self> {
        Ok(Self {
            signals: [
                (2, signal(SignalKind::interrupt())?),
                (15, signal(SignalKind::terminate())?),
                (1, signal(SignalKind::hangup())?),
            ],
        })
    }

    /// Waits for a signal and returns its exit code. The next signal ends the process at once.
    pub(super) async fn wait(&mut self) -> u8 {
        let code = self.next().await;
        let again = Self::listen();
        tokio::spawn(async move {
            if let Ok(mut again) = again {
                let code = again.next().await;
                std::process::exit(i32::from(code));
            }
        });
        code
    }

    async fn next(&mut self) -> u8 {
        let [(interrupt, a), (terminate, b), (hangup, c)] = &mut self.signals;
        let number = tokio::select! {
            _ = a.recv() => interrupt,
            _ = b.recv() => terminate,
            _ = c.recv() => hangup,
        };
        SIGNALLED + *number
    }
}
