//! The tokens of the configuration, and finding the one that was sent.
//!
//! Only digests are kept. A token that is sent is compared with all of them in the same time, whichever it is.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use nodeyard_config::{Api, ApiToken, Config, LOCAL_TOKEN};
use nodeyard_model::{TenantName, Timestamp};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};
use tokio::sync::watch;
use tracing::{error, warn};

use super::{Caller, LocalToken, Right, Sight};
use crate::problem::Problem;

/// A token that is easier to guess than this is probably a mistake.
const SHORT: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Tokens(Vec<Known>);

/// All that is kept of a token.
pub(super) type TokenDigest = [u8; 32];

struct Known {
    digest: TokenDigest,
    name: Arc<str>,
    right: Right,
    sight: Sight,
    expires: Option<Timestamp>,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known")
            .field("name", &self.name)
            .field("right", &self.right)
            .finish_non_exhaustive()
    }
}

impl Tokens {
    /// Reads files, so it belongs on a thread that may wait.
    fn read(api: &Api, local: Option<&LocalToken>) -> Self {
        let mut known: Vec<Known> = api.tokens.iter().filter_map(configured).collect();
        if let Some(local) = local {
            known.push(Known {
                digest: digest(local.reveal().as_bytes()),
                name: LOCAL_TOKEN.into(),
                right: Right::Admin,
                sight: Sight::Everything,
                expires: None,
            });
        }
        Self(known)
    }

    /// Whose token this is, and when it expires.
    pub(super) fn find(
        &self,
        digest: &TokenDigest,
        now: Timestamp,
    ) -> Result<(Caller, Option<Timestamp>), Problem> {
        let mut found = 0_u64;
        for (number, known) in (1_u64..).zip(&self.0) {
            let same: Choice = known.digest.ct_eq(digest);
            found.conditional_assign(&number, same);
        }
        let known = usize::try_from(found)
            .ok()
            .and_then(|number| self.0.get(number.checked_sub(1)?))
            .ok_or_else(|| Problem::unauthorized("nobody has this token"))?;
        if known.expires.is_some_and(|expires| expires <= now) {
            return Err(Problem::unauthorized(format!(
                "the token {:?} has expired",
                known.name
            )));
        }
        let caller = Caller {
            name: Some(Arc::clone(&known.name)),
            right: Some(known.right),
            sight: known.sight.clone(),
        };
        Ok((caller, known.expires))
    }
}

pub(super) fn digest(token: &[u8]) -> TokenDigest {
    Sha256::digest(token).into()
}

/// None if the token cannot be had; the others are good without it.
fn configured(token: &ApiToken) -> Option<Known> {
    let name = token.name.as_str();
    let text = match (&token.token, &token.token_file, &token.token_env) {
        (Some(secret), _, _) => secret.0.clone(),
        (_, Some(file), _) => std::fs::read_to_string(file)
            .inspect_err(
                |error| error!(token = name, file, %error, "a token of the API cannot be read"),
            )
            .ok()?,
        (_, _, Some(variable)) => match std::env::var(variable) {
            Ok(text) => text,
            Err(_) => {
                error!(token = name, variable, "a token of the API is not set");
                return None;
            }
        },
        (None, None, None) => return None,
    };
    let text = text.trim();
    if text.is_empty() {
        error!(
            token = name,
            "a token of the API is empty, so nobody has it"
        );
        return None;
    }
    if text.len() < SHORT {
        warn!(
            token = name,
            "a token of the API is short enough to be guessed; `openssl rand -hex 32` makes a good one"
        );
    }
    Some(Known {
        digest: digest(text.as_bytes()),
        name: name.into(),
        right: token.right.into(),
        sight: match token.tenant.as_deref() {
            Some(tenant) => Sight::Tenant(TenantName::from(tenant)),
            None => Sight::Everything,
        },
        expires: token
            .expires
            .as_ref()
            .map(|expires| SystemTime::from(expires.0).into()),
    })
}

/// The tokens of the configuration in force.
pub(super) async fn follow(
    mut config: watch::Receiver<Arc<Config>>,
    local: Option<LocalToken>,
) -> watch::Receiver<Arc<Tokens>> {
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

async fn read(config: &mut watch::Receiver<Arc<Config>>, local: Option<LocalToken>) -> Arc<Tokens> {
    let config = Arc::clone(&config.borrow_and_update());
    let reading = tokio::task::spawn_blocking(move || Tokens::read(&config.api, local.as_ref()));
    Arc::new(reading.await.unwrap_or_default())
}
