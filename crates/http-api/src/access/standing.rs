//! How long a caller is who it was when it asked.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use nodeyard_model::now;
use tokio::time::sleep;

use super::tokens::{TokenDigest, digest};
use super::{Caller, Gate};
use crate::problem::Problem;

/// The longest sleep until a token expires: the clock may be set meanwhile, and the machine may sleep itself.
const NAP: Duration = Duration::from_secs(60);

/// What a request brings along to be known by.
#[derive(Clone)]
pub(super) enum Sent {
    Nothing,
    Token(TokenDigest),
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Token(_) => "Token",
        })
    }
}

impl Sent {
    pub(super) fn with(headers: &HeaderMap) -> Result<Self, Problem> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Ok(Self::Nothing);
        };
        let token = value.as_bytes();
        match token.get(..7) {
            Some(scheme) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                let token = token.get(7..).unwrap_or_default().trim_ascii();
                Ok(Self::Token(digest(token)))
            }
            _ => Err(Problem::unauthorized(
                "the header `authorization` must be `Bearer` and a token",
            )),
        }
    }
}

/// What a caller was let in with, and as whom.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    gate: Arc<Gate>,
    sent: Sent,
    caller: Caller,
}

impl Standing {
    pub(super) fn new(gate: Arc<Gate>, sent: Sent, caller: Caller) -> Self {
        Self { gate, sent, caller }
    }

    /// Returns when the same request would be refused, or let in as somebody else: the token has left the
    /// configuration, has expired, or allows something else.
    pub(crate) async fn lost(self) {
        let mut tokens = self.gate.tokens.clone();
        loop {
            // Before the look, so that nothing that comes after it is slept through. Tokens are read anew with every
            // configuration, so this tells as well what has become of those who have none.
            tokens.mark_unchanged();
            let expires = match self.gate.caller(&self.sent) {
                Ok((caller, expires)) if caller == self.caller => expires,
                _ => return,
            };
            let expiry = async {
                match expires {
                    Some(expires) => sleep(expires.since(now()).min(NAP)).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                Ok(()) = tokens.changed() => {}
                () = expiry => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use futures_util::FutureExt as _;
    use nodeyard_config::{Config, Environment, Mode, load_bytes};
    use tokio::sync::watch;

    use super::*;
    use crate::time;

    /// With one token, which expires after so long.
    fn config(left: Duration) -> Arc<Config> {
        let expires = time::shown(now() + left).unwrap();
        let text = format!(
            "api: {{tokens: [{{name: alice, token: the-token-of-alice, right: read, expires: '{expires}'}}]}}"
        );
        let main = (Path::new("nodepool.yaml"), text.as_bytes());
        let (config, problems) = load_bytes(main, None, &Environment::default(), Mode::Daemon);
        Arc::new(config.unwrap_or_else(|| panic!("{problems:?}")))
    }

    #[tokio::test]
    async fn a_standing_is_lost_as_soon_as_its_token_expires() {
        let (sender, receiver) = watch::channel(config(Duration::from_secs(9999)));
        let gate = Arc::new(Gate::open(receiver, None).await);
        let sent = Sent::Token(digest(b"the-token-of-alice"));
        let (caller, _) = gate.caller(&sent).unwrap();
        let mut lost = Standing::new(gate, sent, caller).lost().boxed();
        assert_eq!((&mut lost).now_or_never(), None);
        sender.send_replace(config(Duration::from_millis(300)));
        let patience = Duration::from_secs(90);
        tokio::time::timeout(patience, lost).await.unwrap();
    }
}
