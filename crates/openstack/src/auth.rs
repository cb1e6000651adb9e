//! Tokens: requested from Keystone, and renewed before they expire and when a service rejects them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::catalog::{self, Catalog};
use crate::clouds::{CloudSettings, Credentials, Scope, User};
use crate::error::{Error, ErrorKind};
use crate::service::Service;
use crate::transport::{Body, Request, Transport};

const CALL: &str = "log in";
/// A token is renewed this long before it expires, or after nine tenths of a shorter lifetime.
const MARGIN: Duration = Duration::from_secs(300);

/// A transfer begins with a token that has used up at most this part of its lifetime.
const TRANSFER_SHARE: u32 = 10;

/// What a token is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenPurpose {
    /// A call that ends soon.
    Call,
    /// A transfer that may take as long as a token lives. Services may check the token again at its end.
    Transfer,
}

#[derive(Debug)]
pub(crate) struct Token {
    /// Marked as a secret, so that nothing prints it.
    pub(crate) header: HeaderValue,
    pub(crate) catalog: Catalog,
    pub(crate) project_id: Option<Box<str>>,
    renew_at: Option<Instant>,
    /// Until when a transfer may begin.
    transfers_until: Option<Instant>,
}

impl Token {
    fn is_good_for(&self, purpose: TokenPurpose) -> bool {
        let until = match purpose {
            TokenPurpose::Call => self.renew_at,
            TokenPurpose::Transfer => self.transfers_until,
        };
        until.is_none_or(|until| Instant::now() < until)
    }
}

/// The current token. One call requests a new one, and the others wait for it.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<Option<Arc<Token>>>);

impl Tokens {
    pub(crate) async fn get(
        &self,
        settings: &CloudSettings,
        transport: &dyn Transport,
        limit: Duration,
        purpose: TokenPurpose,
    ) -> Result<Arc<Token>, Error> {
        let mut current = self.0.lock().await;
        if let Some(token) = &*current
            && token.is_good_for(purpose)
        {
            return Ok(Arc::clone(token));
        }
        let token = Arc::new(fetch(settings, transport, limit).await?);
        *current = Some(Arc::clone(&token));
        Ok(token)
    }

    /// Discards a token that a service rejected, unless it has been replaced.
    pub(crate) async fn discard(&self, refused: &Arc<Token>) {
        let mut current = self.0.lock().await;
        if current
            .as_ref()
            .is_some_and(|token| Arc::ptr_eq(token, refused))
        {
            *current = None;
        }
    }
}

#[derive(Deserialize)]
struct TokenResponse {
    token: Described,
}

#[derive(Deserialize)]
struct Described {
    #[serde(default)]
    catalog: Catalog,
    #[serde(default)]
    issued_at: Option<String>,
    #[serde(default)]
    expires_at: Option<String>,
    #[serde(default)]
    project: Option<Project>,
}

#[derive(Deserialize)]
struct Project {
    id: Box<str>,
}

async fn fetch(
    settings: &CloudSettings,
    transport: &dyn Transport,
    limit: Duration,
) -> Result<Token, Error> {
    let error = |kind| Error::new(kind, Service::Identity, CALL);
    let url = catalog::tokens(&settings.auth_url).ok_or_else(|| {
        error(ErrorKind::Setup).with_message(format!("auth_url {} has no path", settings.auth_url))
    })?;
    let mut headers = HeaderMap::new();
    let json = HeaderValue::from_static("application/json");
    headers.insert(ACCEPT, json.clone());
    headers.insert(CONTENT_TYPE, json);
    let body = json!({"auth": request(&settings.credentials)}).to_string();
    let begun = Instant::now();
    let request = Request {
        method: Method::POST,
        url,
        headers,
        body: Body::Bytes(Bytes::from(body)),
        limit: Some(limit),
    };
    let answer = transport
        .send(request)
        .await
        .map_err(|cause| error(ErrorKind::Unavailable).because(cause))?;
    if !matches!(answer.status, StatusCode::CREATED | StatusCode::OK) {
        let (status, headers) = (answer.status, &answer.headers);
        return Err(Error::from_response(
            Service::Identity,
            CALL,
            status,
            headers,
            &answer.body,
        ));
    }
    let malformed = || error(ErrorKind::Malformed);
    let described: TokenResponse =
        serde_json::from_slice(&answer.body).map_err(|cause| malformed().because(cause))?;
    let mut header = answer
        .headers
        .get("x-subject-token")
        .cloned()
        .ok_or_else(|| malformed().with_message("there is no token in it"))?;
    header.set_sensitive(true);
    let life = described.token.life();
    Ok(Token {
        header,
        renew_at: life.map(|life| begun + renew_after(life)),
        transfers_until: life.map(|life| begun + life / TRANSFER_SHARE),
        catalog: described.token.catalog,
        project_id: described.token.project.map(|project| project.id),
    })
}

impl Described {
    /// Measured by the clock of the cloud alone: ours may be wrong.
    fn life(&self) -> Option<Duration> {
        let time = |text: &Option<String>| text.as_ref()?.parse::<jiff::Timestamp>().ok();
        let life = time(&self.expires_at)?.duration_since(time(&self.issued_at)?);
        Some(life.try_into().unwrap_or_default())
    }
}

fn renew_after(life: Duration) -> Duration {
    life.saturating_sub(MARGIN).max(life / 10 * 9)
}

fn request(credentials: &Credentials) -> Value {
    match credentials {
        Credentials::Password {
            user,
            password,
            scope,
        } => {
            let mut described = user_json(user);
            put(&mut described, "password", password);
            scoped(
                &json!({"methods": ["password"], "password": {"user": described}}),
                scope,
            )
        }
        // An application credential has its own scope.
        Credentials::ApplicationCredentialId { id, secret } => {
            let mut described = json!({"id": id});
            put(&mut described, "secret", secret);
            json!({"identity": {"methods": ["application_credential"], "application_credential": described}})
        }
        Credentials::ApplicationCredentialName { name, user, secret } => {
            let mut described = json!({"name": name, "user": user_json(user)});
            put(&mut described, "secret", secret);
            json!({"identity": {"methods": ["application_credential"], "application_credential": described}})
        }
        Credentials::Token { token, scope } => {
            let mut described = json!({});
            put(&mut described, "id", token);
            scoped(&json!({"methods": ["token"], "token": described}), scope)
        }
    }
}

fn put(object: &mut Value, key: &str, secret: &SecretString) {
    if let Value::Object(object) = object {
        object.insert(key.to_owned(), secret.expose_secret().into());
    }
}

fn user_json(user: &User) -> Value {
    match user {
        User::Id(id) => json!({"id": id}),
        User::Named { name, domain } => json!({"name": name, "domain": domain.to_json()}),
    }
}

fn scoped(identity: &Value, scope: &Scope) -> Value {
    let scope = match scope {
        Scope::None => return json!({"identity": identity}),
        Scope::ProjectId(id) => json!({"project": {"id": id}}),
        Scope::Project { name, domain } => {
            json!({"project": {"name": name, "domain": domain.to_json()}})
        }
        Scope::Domain(domain) => json!({"domain": domain.to_json()}),
        Scope::System => json!({"system": {"all": true}}),
    };
    json!({"identity": identity, "scope": scope})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_renewed_before_it_ends() {
        let seconds = Duration::from_secs;
        assert_eq!(renew_after(seconds(3600)), seconds(3300));
        assert_eq!(renew_after(seconds(60)), seconds(54));
        assert_eq!(renew_after(Duration::ZERO), Duration::ZERO);
    }
}
