//! Who we are, to one origin.
//!
//! Secrets are read when they are needed and not kept, so that a token that was renewed is used at the next request.

use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::header::HeaderValue;

use crate::error::Error;

/// A longer file is no token and no password.
const LONGEST_SECRET: usize = 64 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Credentials {
    #[default]
    None,
    Bearer(Secret),
    Basic {
        username: Box<str>,
        password: Secret,
    },
    /// Files with a certificate and its key.
    Mtls {
        cert: PathBuf,
        key: PathBuf,
    },
}

/// Where a secret is.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    File(PathBuf),
    Env(Box<str>),
    Inline(Box<str>),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Env(name) => write!(f, "Env({name})"),
            Self::Inline(_) => f.write_str("Inline(…)"),
        }
    }
}

impl Secret {
    fn is_bad(&self) -> Error {
        let place = match self {
            Self::File(path) => format!("in {}", path.display()),
            Self::Env(name) => format!("in the variable {name}"),
            Self::Inline(_) => "in the configuration".to_owned(),
        };
        Error::BadSecret { place }
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
                if bytes.len() > LONGEST_SECRET {
                    return Err(self.is_bad());
                }
                String::from_utf8(bytes).map_err(|_| self.is_bad())?
            }
            Self::Env(name) => {
                std::env::var(&**name).map_err(|_| Error::NoVariable { name: name.clone() })?
            }
            Self::Inline(text) => text.to_string(),
        };
        Ok(text.trim().to_owned())
    }
}

impl Credentials {
    /// What to put into a request, if anything.
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
        let mut value = HeaderValue::from_str(&text).map_err(|_| secret.is_bad())?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}
