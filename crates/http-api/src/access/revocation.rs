//! Expiry and revocation of an authenticated caller.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use nodeyard_model::now;
use tokio::time::sleep;

use super::tokens::{TokenDigest, digest};
use super::{ApiCaller, Authenticator};
use crate::problem::ApiProblem;

/// The longest sleep until a token expires, because the clock may be set and the machine may be suspended meanwhile.
const MAX_SLEEP: Duration = Duration::from_secs(60);

/// The credentials that a request was sent with.
#[derive(Clone)]
pub(super) enum RequestCredentials {
    None,
    Token(TokenDigest),
}

impl fmt::Debug for RequestCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Token(_) => "Token",
        })
    }
}

impl RequestCredentials {
    pub(super) fn from_headers(headers: &HeaderMap) -> Result<Self, ApiProblem> {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Ok(Self::None);
        };
        let token = value.as_bytes();
        match token.get(..7) {
            Some(scheme) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                let token = token.get(7..).unwrap_or_default().trim_ascii();
                Ok(Self::Token(digest(token)))
            }
            _ => Err(ApiProblem::unauthorized(
                "the header `authorization` must be `Bearer` and a token",
            )),
        }
    }
}

/// Watches whether the credentials of a request still authenticate the same caller.
#[derive(Debug, Clone)]
pub(crate) struct RevocationWatch {
    authenticator: Arc<Authenticator>,
    credentials: RequestCredentials,
    caller: ApiCaller,
}

impl RevocationWatch {
    pub(super) fn new(
        authenticator: Arc<Authenticator>,
        credentials: RequestCredentials,
        caller: ApiCaller,
    ) -> Self {
        Self {
            authenticator,
            credentials,
            caller,
        }
    }

    /// Returns when the same credentials would be refused or authenticate another caller: the token was removed from
    /// the configuration, has expired, or has other rights.
    pub(crate) async fn revoked(self) {
        let mut tokens = self.authenticator.tokens.clone();
        loop {
            // Before the check, so that no later change is missed. Tokens are reloaded with every configuration, so
            // this also covers anonymous callers.
            tokens.mark_unchanged();
            let expires = match self.authenticator.find_caller(&self.credentials) {
                Ok((caller, expires)) if caller == self.caller => expires,
                _ => return,
            };
            let expiry = async {
                match expires {
                    Some(expires) => sleep(expires.since(now()).min(MAX_SLEEP)).await,
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

    /// A configuration with one token, which expires after `left`.
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
    async fn access_is_revoked_as_soon_as_the_token_expires() {
        let (sender, receiver) = watch::channel(config(Duration::from_secs(9999)));
        let authenticator = Arc::new(Authenticator::open(receiver, None).await);
        let credentials = RequestCredentials::Token(digest(b"the-token-of-alice"));
        let (caller, _) = authenticator.find_caller(&credentials).unwrap();
        let mut revoked = RevocationWatch::new(authenticator, credentials, caller)
            .revoked()
            .boxed();
        assert_eq!((&mut revoked).now_or_never(), None);
        sender.send_replace(config(Duration::from_millis(300)));
        let timeout = Duration::from_secs(90);
        tokio::time::timeout(timeout, revoked).await.unwrap();
    }
}
