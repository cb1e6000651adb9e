//! Credentials for one origin.
//!
//! Secrets are read for each request and not cached, so renewed tokens are used immediately.

use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::header::HeaderValue;

use crate::error::Error;

/// The maximum size of a secret file.
const MAX_SECRET_LEN: usize = 64 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum HttpCredentials {
    #[default]
    None,
    Bearer(SecretSource),
    Basic {
        username: Box<str>,
        password: SecretSource,
    },
    /// Files with a certificate and its key.
    Mtls {
        cert: PathBuf,
        key: PathBuf,
    },
}

/// Where a secret is read from.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    File(PathBuf),
    Env(Box<str>),
    Inline(Box<str>),
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Env(name) => write!(f, "Env({name})"),
            Self::Inline(_) => f.write_str("Inline(…)"),
        }
    }
}

impl SecretSource {
    fn invalid_error(&self) -> Error {
        let place = match self {
            Self::File(path) => format!("in {}", path.display()),
            Self::Env(name) => format!("in the variable {name}"),
            Self::Inline(_) => "in the configuration".to_owned(),
        };
        Error::InvalidSecret { place }
    }

    async fn read(&self) -> Result<String, Error> {
        let text = match self {
            Self::File(path) => {
                let bytes =
                    tokio::fs::read(path)
                        .await
                        .map_err(|source| Error::UnreadableSecret {
                            path: path.clone(),
                            source,
                        })?;
                if bytes.len() > MAX_SECRET_LEN {
                    return Err(self.invalid_error());
                }
                String::from_utf8(bytes).map_err(|_| self.invalid_error())?
            }
            Self::Env(name) => {
                std::env::var(&**name).map_err(|_| Error::MissingVariable { name: name.clone() })?
            }
            Self::Inline(text) => text.to_string(),
        };
        Ok(text.trim().to_owned())
    }
}

impl HttpCredentials {
    /// Returns the value of the Authorization header, if any.
    pub(crate) async fn authorization(&self) -> Result<Option<HeaderValue>, Error> {
        let (secret, text) = match self {
            Self::None | Self::Mtls { .. } => return Ok(None),
            Self::Bearer(token) => (token, format!("Bearer {}", token.read().await?)),
            Self::Basic { username, password } => {
                let pair = format!("{username}:{}", password.read().await?);
                let text = format!("Basic {}", BASE64_STANDARD.encode(pair));
                (password, text)
            }
        };
        let mut value = HeaderValue::from_str(&text).map_err(|_| secret.invalid_error())?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}
