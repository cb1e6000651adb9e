//! A login to a cloud.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{CallClass, RateLimiter};
use nodeyard_fetch::Backoff;
use reqwest::{Method, Url};

use crate::auth::{Token, TokenPurpose, Tokens};
use crate::call::Call;
use crate::clouds::{CloudSettings, SettingsError};
use crate::error::Error;
use crate::service::Service;
use crate::transport::{Http, Transport};

/// Rate, retries and timeouts of calls.
#[derive(Debug, Clone)]
pub struct Options {
    /// Time between two calls of one service; zero is unlimited. Logins are not counted.
    pub interval: Duration,
    /// Attempts of an idempotent call.
    pub tries: u32,
    pub backoff: Backoff,
    /// The timeout of one call, unless clouds.yaml has one (`api_timeout`).
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            interval: Duration::ZERO,
            tries: 4,
            backoff: Backoff {
                initial_delay: Duration::from_secs(1),
                max_delay: Duration::from_secs(30),
            },
            limit: Duration::from_secs(60),
        }
    }
}

/// Logs in with the first call. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Session(Arc<SessionState>);

#[derive(Debug)]
struct SessionState {
    settings: CloudSettings,
    options: Options,
    transport: Arc<dyn Transport>,
    tokens: Tokens,
    pace: BTreeMap<Service, RateLimiter>,
}

impl Session {
    pub fn new(
        settings: CloudSettings,
        transport: Arc<dyn Transport>,
        mut options: Options,
    ) -> Self {
        options.limit = settings.api_timeout.unwrap_or(options.limit);
        let pace = Service::ALL
            .iter()
            .map(|service| (*service, RateLimiter::every(options.interval)));
        Self(Arc::new(SessionState {
            pace: pace.collect(),
            settings,
            options,
            transport,
            tokens: Tokens::default(),
        }))
    }

    /// Creates a session over HTTP. Reads certificate files, and so blocks for a moment.
    pub fn connect(settings: CloudSettings, options: Options) -> Result<Self, SettingsError> {
        let http = Http::new(&settings.tls)?;
        Ok(Self::new(settings, Arc::new(http), options))
    }

    pub fn settings(&self) -> &CloudSettings {
        &self.0.settings
    }

    /// Builds a call of a service. `what` describes it in the infinitive, for errors.
    pub fn call(&self, service: Service, method: Method, what: impl Into<Box<str>>) -> Call<'_> {
        Call::new(self, service, method, what.into())
    }

    /// Returns the project of the login.
    pub async fn project_id(&self) -> Result<Option<Box<str>>, Error> {
        Ok(self.token().await?.project_id.clone())
    }

    /// Whether the cloud has a service.
    pub async fn has(&self, service: Service) -> Result<bool, Error> {
        let token = self.token().await?;
        Ok(self.endpoint(&token, service, "").is_ok())
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    pub(crate) fn transport(&self) -> &dyn Transport {
        &*self.0.transport
    }

    pub(crate) async fn token(&self) -> Result<Arc<Token>, Error> {
        self.token_for(TokenPurpose::Call).await
    }

    pub(crate) async fn token_for(&self, purpose: TokenPurpose) -> Result<Arc<Token>, Error> {
        let shared = &*self.0;
        let limit = shared.options.limit;
        shared
            .tokens
            .get(&shared.settings, &*shared.transport, limit, purpose)
            .await
    }

    pub(crate) async fn discard_token(&self, token: &Arc<Token>) {
        self.0.tokens.discard(token).await;
    }

    pub(crate) fn endpoint(
        &self,
        token: &Token,
        service: Service,
        call: &str,
    ) -> Result<Url, Error> {
        token.catalog.endpoint(service, &self.0.settings, call)
    }

    pub(crate) async fn turn(&self, service: Service, class: CallClass) {
        if let Some(pace) = self.0.pace.get(&service) {
            pace.turn(class).await;
        }
    }
}
