//! Signals that end the use of machines.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a shell reports for a program that a signal has ended.
const SIGNALLED: u8 = 128;

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

    /// Returns the exit code when one arrives. The next one ends the process at once.
    pub(super) async fn arrives(&mut self) -> u8 {
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
