//! From a kubeconfig, or the account of the pod that this runs in, to clients.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig as KubeconfigFile, KubeconfigError};
use kube::{Client, Config};
use nodeyard_driver::{Error, ErrorClass};
use secrecy::ExposeSecret as _;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A cluster that is talked to, and what others have to know to talk to it too.
#[derive(Clone)]
pub struct Connection {
    /// For single calls.
    pub client: Client,
    /// For what the cluster tells by itself.
    pub watching: Client,
    /// Address of the API server.
    pub host: String,
    /// Whether its certificate is not checked.
    pub skip_tls: bool,
    /// PEM in base64.
    pub ca: Option<String>,
    /// Who we are, for drivers that hand that on.
    pub token: Option<String>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.host).finish()
    }
}

impl Connection {
    pub async fn new(mut config: Config) -> Result<Self, Error> {
        // Whoever calls knows better when it is worth another try.
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_LIMIT);
        let unusable = |cause| {
            Error::new(ErrorClass::Credentials, "the kubeconfig cannot be used").because(cause)
        };
        let client = Client::try_from(config.clone()).map_err(unusable)?;
        Ok(Self {
            watching: client.clone(),
            client,
            host: config
                .cluster_url
                .to_string()
                .trim_end_matches('/')
                .to_owned(),
            skip_tls: config.accept_invalid_certs,
            ca: config.root_cert.as_deref().map(pem),
            token: token(&config).await,
        })
    }
}

fn pem(certificates: &[Vec<u8>]) -> String {
    const LINE: usize = 64;
    let mut text = String::new();
    for certificate in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = STANDARD.encode(certificate);
        for line in encoded.as_bytes().chunks(LINE) {
            text.extend(line.iter().copied().map(char::from));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    STANDARD.encode(text)
}

async fn token(config: &Config) -> Option<String> {
    let user = &config.auth_info;
    if let Some(token) = &user.token {
        return Some(token.expose_secret().to_owned());
    }
    let text = tokio::fs::read_to_string(user.token_file.as_ref()?)
        .await
        .ok()?;
    Some(text.trim().to_owned())
}

/// Says where the cluster is. Asked again when the cluster does not know us any more: the credentials may have changed.
#[async_trait]
pub trait Connect: fmt::Debug + Send + Sync {
    async fn connect(&self) -> Result<Connection, Error>;
}

/// The file that `KUBECONFIG` names, `~/.kube/config`, or where there is none the account of the pod.
#[derive(Debug, Clone, Default)]
pub struct Kubeconfig {
    pub file: Option<PathBuf>,
    pub context: Option<String>,
}

#[async_trait]
impl Connect for Kubeconfig {
    async fn connect(&self) -> Result<Connection, Error> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &self.file {
            Some(path) => match KubeconfigFile::read_from(path) {
                Ok(file) => Config::from_custom_kubeconfig(file, &options).await,
                Err(error) => Err(error),
            },
            None => Config::from_kubeconfig(&options).await,
        };
        let config = match config {
            Ok(config) => config,
            Err(cause @ (KubeconfigError::ReadConfig(..) | KubeconfigError::FindPath)) => {
                Config::incluster().map_err(|_| {
                    let text =
                        "there is no kubeconfig, and this is no pod of a cluster: set KUBECONFIG";
                    wrong(text.to_owned()).because(cause)
                })?
            }
            Err(cause) => {
                let context = self.context.as_deref().unwrap_or("the current one");
                let text = format!("the kubeconfig has no usable context ({context})");
                return Err(wrong(text).because(cause));
            }
        };
        Connection::new(config).await
    }
}

fn wrong(text: String) -> Error {
    Error::new(ErrorClass::Credentials, text)
}
