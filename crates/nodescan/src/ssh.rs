//! Reads a server's host key by an SSH key exchange, without logging in.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use russh::Preferred;
use russh::client::{Config, Handler, connect_stream};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PublicKeyOrCertificate};
use tokio::net::TcpStream;

use crate::HostKey;

/// Host key types, in the order in which they are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyType {
    Ed25519,
    EcdsaP256,
    EcdsaP384,
    EcdsaP521,
    Rsa,
}

impl KeyType {
    pub(crate) const ALL: &[Self] = &[
        Self::Ed25519,
        Self::EcdsaP256,
        Self::EcdsaP384,
        Self::EcdsaP521,
        Self::Rsa,
    ];

    /// Returns the signature algorithms of this key type. Old servers support only the last one of RSA.
    fn algorithms(self) -> Vec<Algorithm> {
        let ecdsa = |curve| vec![Algorithm::Ecdsa { curve }];
        match self {
            Self::Ed25519 => vec![Algorithm::Ed25519],
            Self::EcdsaP256 => ecdsa(EcdsaCurve::NistP256),
            Self::EcdsaP384 => ecdsa(EcdsaCurve::NistP384),
            Self::EcdsaP521 => ecdsa(EcdsaCurve::NistP521),
            Self::Rsa => [Some(HashAlg::Sha512), Some(HashAlg::Sha256), None]
                .map(|hash| Algorithm::Rsa { hash })
                .into(),
        }
    }

    fn of(algorithm: &Algorithm) -> Option<Self> {
        Some(match algorithm {
            Algorithm::Ed25519 => Self::Ed25519,
            Algorithm::Ecdsa { curve } => match curve {
                EcdsaCurve::NistP256 => Self::EcdsaP256,
                EcdsaCurve::NistP384 => Self::EcdsaP384,
                EcdsaCurve::NistP521 => Self::EcdsaP521,
            },
            Algorithm::Rsa { .. } => Self::Rsa,
            _ => return None,
        })
    }
}

/// Requests a host key of one of these types. The signature over the key exchange is verified, so the server owns the
/// private key.
pub(crate) async fn host_key(
    stream: TcpStream,
    types: &[KeyType],
) -> Result<(KeyType, HostKey), String> {
    let algorithms: Vec<_> = types.iter().flat_map(|kind| kind.algorithms()).collect();
    let config = Config {
        preferred: Preferred {
            key: Cow::Owned(algorithms),
            ..Preferred::DEFAULT
        },
        ..Config::default()
    };
    let seen = HostKeyCollector::default();
    let end = connect_stream(Arc::new(config), stream, seen.clone()).await;
    let key = seen.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (key, end) {
        (Some(key), _) => Ok(key),
        (None, Err(error)) => Err(error.to_string()),
        (None, Ok(_)) => Err("the server presented no host key".to_owned()),
    }
}

/// Stores the host key and rejects it, which ends the connection.
#[derive(Debug, Clone, Default)]
struct HostKeyCollector(Arc<Mutex<Option<(KeyType, HostKey)>>>);

impl Handler for HostKeyCollector {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        shown: &PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        if let PublicKeyOrCertificate::PublicKey { key, .. } = shown
            && let Some(kind) = KeyType::of(&key.algorithm())
            && let Ok(line) = key.to_openssh()
        {
            // Without the comment that may follow.
            let mut parts = line.split_whitespace();
            if let (Some(name), Some(base64)) = (parts.next(), parts.next()) {
                let text = format!("{name} {base64}");
                let found = (kind, HostKey::from(text.as_str()));
                *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            }
        }
        Ok(false)
    }
}
