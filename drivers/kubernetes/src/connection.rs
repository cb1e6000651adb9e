//! Clients, from a kubeconfig or from the service account of the pod that this runs in.

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

/// Clients of a cluster, and what jobs need to connect to it.
#[derive(Clone)]
pub struct Connection {
    /// For single calls.
    pub client: Client,
    /// For watches.
    pub watching: Client,
    /// Address of the API server.
    pub host: String,
    /// Whether its certificate is not checked.
    pub skip_tls: bool,
    /// PEM in base64.
    pub ca: Option<String>,
    /// Our token, for drivers that give it to jobs.
    pub token: Option<String>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.host).finish()
    }
}

impl Connection {
    pub async fn new(mut config: Config) -> Result<Self, Error> {
        // The caller decides about retries.
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_LIMIT);
        let unusable = |cause| {
            Error::new(ErrorClass::Credentials, "failed to use the kubeconfig").because(cause)
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

/// Connects to the cluster; called again when the cluster rejects the credentials, because they may have changed.
#[async_trait]
pub trait Connect: fmt::Debug + Send + Sync {
    async fn connect(&self) -> Result<Connection, Error>;
}

/// The file that `KUBECONFIG` names, else `~/.kube/config`, else the service account of the pod.
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
                        "no kubeconfig found, and this is not a pod of a cluster; set KUBECONFIG";
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
