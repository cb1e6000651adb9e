//! The API tokens of the configuration.
//!
//! Only digests are kept. A received token is compared with all of them in constant time.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nodeyard_config::{ApiConfig, ApiToken, Config, LOCAL_TOKEN};
use nodeyard_model::{TenantName, Timestamp};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};
use tokio::sync::watch;
use tracing::{error, warn};

use super::{ApiCaller, LocalToken, Right, Visibility};
use crate::problem::ApiProblem;

/// Tokens shorter than this can be guessed.
const MIN_SECURE_LENGTH: usize = 16;

/// The valid tokens.
#[derive(Debug, Default)]
pub(super) struct TokenTable(Vec<TokenEntry>);

/// The SHA-256 digest of a token.
pub(super) type TokenDigest = [u8; 32];

/// A valid token without its secret.
struct TokenEntry {
    digest: TokenDigest,
    name: Arc<str>,
    right: Right,
    visibility: Visibility,
    expires: Option<Timestamp>,
}

impl fmt::Debug for TokenEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenEntry")
            .field("name", &self.name)
            .field("right", &self.right)
            .finish_non_exhaustive()
    }
}

impl TokenTable {
    /// Loads the tokens. Reads files, so call it on a blocking thread.
    fn read(api: &ApiConfig, local: Option<&LocalToken>) -> Self {
        let mut entries: Vec<TokenEntry> = api.tokens.iter().filter_map(load_token).collect();
        if let Some(local) = local {
            entries.push(TokenEntry {
                digest: digest(local.reveal().as_bytes()),
                name: LOCAL_TOKEN.into(),
                right: Right::Admin,
                visibility: Visibility::All,
                expires: None,
            });
        }
        Self(entries)
    }

    /// Returns the caller with this token, and when the token expires.
    pub(super) fn find(
        &self,
        digest: &TokenDigest,
        now: Timestamp,
    ) -> Result<(ApiCaller, Option<Timestamp>), ApiProblem> {
        let mut found = 0_u64;
        for (number, entry) in (1_u64..).zip(&self.0) {
            let same: Choice = entry.digest.ct_eq(digest);
            found.conditional_assign(&number, same);
        }
        let entry = usize::try_from(found)
            .ok()
            .and_then(|number| self.0.get(number.checked_sub(1)?))
            .ok_or_else(|| ApiProblem::unauthorized("unknown token"))?;
        if entry.expires.is_some_and(|expires| expires <= now) {
            return Err(ApiProblem::unauthorized(format!(
                "the token {:?} has expired",
                entry.name
            )));
        }
        let caller = ApiCaller {
            name: Some(Arc::clone(&entry.name)),
            right: Some(entry.right),
            visibility: entry.visibility.clone(),
        };
        Ok((caller, entry.expires))
    }
}

pub(super) fn digest(token: &[u8]) -> TokenDigest {
    Sha256::digest(token).into()
}

/// Loads a token. Returns None if it cannot be read; the other tokens are used without it.
fn load_token(token: &ApiToken) -> Option<TokenEntry> {
    let name = token.name.as_str();
    let text = match (&token.token, &token.token_file, &token.token_env) {
        (Some(secret), _, _) => secret.0.clone(),
        (_, Some(file), _) => std::fs::read_to_string(file)
            .inspect_err(|error| error!(token = name, file, %error, "failed to read API token"))
            .ok()?,
        (_, _, Some(variable)) => match std::env::var(variable) {
            Ok(text) => text,
            Err(_) => {
                error!(
                    token = name,
                    variable, "failed to read API token: environment variable not set"
                );
                return None;
            }
        },
        (None, None, None) => return None,
    };
    let text = text.trim();
    if text.is_empty() {
        error!(token = name, "API token is empty; ignoring it");
        return None;
    }
    if text.len() < MIN_SECURE_LENGTH {
        warn!(
            token = name,
            "API token is short enough to be guessed; create one with `openssl rand -hex 32`"
        );
    }
    Some(TokenEntry {
        digest: digest(text.as_bytes()),
        name: name.into(),
        right: token.right.into(),
        visibility: match token.tenant.as_deref() {
            Some(tenant) => Visibility::Tenant(TenantName::from(tenant)),
            None => Visibility::All,
        },
        expires: token
            .expires
            .as_ref()
            .map(|expires| SystemTime::from(expires.0).into()),
    })
}

/// Loads the tokens, and again with every new configuration.
pub(super) async fn follow(
    mut config: watch::Receiver<Arc<Config>>,
    local: Option<LocalToken>,
) -> watch::Receiver<Arc<TokenTable>> {
    let first = read(&mut config, local.clone()).await;
    let (sender, receiver) = watch::channel(first);
    tokio::spawn(async move {
        loop {
            let changed = tokio::select! {
                changed = config.changed() => changed,
                () = sender.closed() => return,
            };
            if changed.is_err() {
                return;
            }
            let tokens = read(&mut config, local.clone()).await;
            sender.send_replace(tokens);
        }
    });
    receiver
}

async fn read(
    config: &mut watch::Receiver<Arc<Config>>,
    local: Option<LocalToken>,
) -> Arc<TokenTable> {
    let config = Arc::clone(&config.borrow_and_update());
    let reading =
        tokio::task::spawn_blocking(move || TokenTable::read(&config.api, local.as_ref()));
    Arc::new(reading.await.unwrap_or_default())
}
