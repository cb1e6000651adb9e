//! Authentication, authorization and rate limits.
//!
//! The [`Authenticator`] turns the token of a request into an [`ApiCaller`] before any handler runs. A handler demands
//! a right by taking [`ReadAccess`], [`RequestAccess`], [`OperateAccess`] or [`AdminAccess`]. A caller of a tenant sees
//! and changes only that tenant's data; data of other tenants is reported as not found, so that ids reveal nothing.
//! Where tokens have tenants, requests without a token see no tenant data at all ([`Visibility::None`]), because
//! sending less must never show more. A [`RevocationWatch`] ends open event streams when their token expires or
//! changes.

mod local;
mod rate;
mod revocation;
mod tokens;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use nodeyard_config::{AnonymousAccess, ApiConfig, ApiRight, Config};
use nodeyard_model::{TenantName, Timestamp, now};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::problem::ApiProblem;
use rate::{AnonymousPeer, ApiRateLimiter, RateKey};
use revocation::RequestCredentials;
use tokens::TokenTable;

pub(crate) use revocation::RevocationWatch;

pub use local::{LocalToken, LocalTokenError};

/// What a token allows; each right includes those before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Right {
    /// Read everything.
    Read,
    /// Request nodes and release them.
    Request,
    /// Manage nodes and images.
    Operate,
    /// Delete builds and uploads.
    Admin,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Request => "request",
            Self::Operate => "operate",
            Self::Admin => "admin",
        })
    }
}

impl From<ApiRight> for Right {
    fn from(right: ApiRight) -> Self {
        match right {
            ApiRight::Read => Self::Read,
            ApiRight::Request => Self::Request,
            ApiRight::Operate => Self::Operate,
            ApiRight::Admin => Self::Admin,
        }
    }
}

/// Which requests, leases, scopes and nodes a caller can see; these belong to tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Visibility {
    All,
    /// Those of this tenant.
    Tenant(TenantName),
    None,
}

impl Visibility {
    /// Returns whether an object of this tenant, or of none, is visible.
    pub(crate) fn sees(&self, tenant: Option<&TenantName>) -> bool {
        match self {
            Self::All => true,
            Self::Tenant(own) => Some(own) == tenant,
            Self::None => false,
        }
    }
}

/// The authenticated sender of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiCaller {
    /// The name of the token; None for anonymous callers.
    pub(crate) name: Option<Arc<str>>,
    /// None allows nothing, not even reading.
    right: Option<Right>,
    pub(crate) visibility: Visibility,
}

impl ApiCaller {
    /// Returns whether an object of this tenant, or of none, is visible to the caller.
    pub(crate) fn sees(&self, tenant: Option<&TenantName>) -> bool {
        self.visibility.sees(tenant)
    }

    /// Returns the tenant that the caller is confined to.
    pub(crate) fn tenant(&self) -> Option<&TenantName> {
        match &self.visibility {
            Visibility::Tenant(tenant) => Some(tenant),
            Visibility::All | Visibility::None => None,
        }
    }

    /// Returns the caller's right. Handlers run only for callers who may at least read.
    pub(crate) fn right(&self) -> Right {
        self.right.unwrap_or(Right::Read)
    }

    /// Returns whether the caller has this right.
    pub(crate) fn may(&self, right: Right) -> bool {
        self.right.is_some_and(|own| own >= right)
    }

    /// Converts the caller for the lease service, which has no [`Visibility::None`]: lease handlers require
    /// [`TenantDataAccess`] or a token.
    pub(crate) fn to_lease_caller(&self) -> nodeyard_lease::Lessee {
        nodeyard_lease::Lessee {
            name: self.name.as_deref().unwrap_or("anonymous").into(),
            tenant: self.tenant().cloned(),
        }
    }

    /// Refuses callers of a single tenant, for changes that affect all tenants.
    pub(crate) fn require_all_tenants(&self, needed: Right) -> Result<(), ApiProblem> {
        match self.tenant() {
            None => Ok(()),
            Some(tenant) => Err(ApiProblem::forbidden(
                needed,
                format!("this affects all tenants, and the token is confined to tenant {tenant:?}"),
            )),
        }
    }

    /// Refuses callers who cannot see any tenant data.
    pub(crate) fn require_tenant_data(self) -> Result<Self, ApiProblem> {
        if self.visibility == Visibility::None {
            return Err(ApiProblem::unauthorized(
                "requests, leases, scopes and nodes belong to tenants here, so reading them needs a token, \
                 as in the header `authorization: Bearer TOKEN`",
            ));
        }
        Ok(self)
    }

    fn require(self, needed: Right) -> Result<Self, ApiProblem> {
        if self.may(needed) {
            return Ok(self);
        }
        match &self.name {
            None => Err(ApiProblem::unauthorized(format!(
                "this needs a token with the right {needed:?}, as in the header `authorization: Bearer TOKEN`",
                needed = needed.to_string(),
            ))),
            Some(name) => Err(ApiProblem::forbidden(
                needed,
                format!(
                    "this needs the right {:?}, which the token {name:?} does not have",
                    needed.to_string()
                ),
            )),
        }
    }
}

macro_rules! rights {
    ($($(#[$meta:meta])* $name:ident = $right:ident;)*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone)]
        pub(crate) struct $name(pub(crate) ApiCaller);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = ApiProblem;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiProblem> {
                let caller = parts.extensions.get::<ApiCaller>().cloned();
                // The authenticator runs before every handler.
                let caller = caller.ok_or_else(|| ApiProblem::unauthorized("the request was not authenticated"))?;
                caller.require(Right::$right).map(Self)
            }
        }
    )*};
}

rights! {
    /// A caller who may read.
    ReadAccess = Read;
    /// A caller who may request nodes.
    RequestAccess = Request;
    /// A caller who may manage nodes and images.
    OperateAccess = Operate;
    /// A caller who may do everything.
    AdminAccess = Admin;
}

/// A caller who may read tenant data.
#[derive(Debug, Clone)]
pub(crate) struct TenantDataAccess(pub(crate) ApiCaller);

impl<S: Send + Sync> FromRequestParts<S> for TenantDataAccess {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiProblem> {
        let ReadAccess(caller) = ReadAccess::from_request_parts(parts, state).await?;
        caller.require_tenant_data().map(Self)
    }
}

/// Timeout of requests that change something. The store keeps trying to reach its servers for longer than this.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of reading requests, somewhat more than the longest `wait` that a client can ask for.
const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// The address that a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerAddress(pub(crate) IpAddr);

/// Authenticates requests and limits their rate.
#[derive(Debug)]
pub(crate) struct Authenticator {
    tokens: watch::Receiver<Arc<TokenTable>>,
    config: watch::Receiver<Arc<Config>>,
    rate_limiter: ApiRateLimiter,
}

impl Authenticator {
    /// Follows the tokens in the configuration as long as it lives. Must be called inside a runtime.
    pub(crate) async fn open(
        config: watch::Receiver<Arc<Config>>,
        local: Option<LocalToken>,
    ) -> Self {
        Self {
            tokens: tokens::follow(config.clone(), local).await,
            config,
            rate_limiter: ApiRateLimiter::default(),
        }
    }

    /// Returns the caller with these credentials, and when they expire.
    fn find_caller(
        &self,
        credentials: &RequestCredentials,
    ) -> Result<(ApiCaller, Option<Timestamp>), ApiProblem> {
        match credentials {
            RequestCredentials::None => Ok((anonymous(&self.config.borrow().api), None)),
            RequestCredentials::Token(digest) => self.tokens.borrow().find(digest, now()),
        }
    }

    /// Counts a request against the caller's rate limit.
    fn check_rate(&self, caller: &ApiCaller, peer: Option<PeerAddress>) -> Result<(), ApiProblem> {
        let rate = self.config.borrow().api.rate_limit;
        let key = match (&caller.name, peer) {
            (Some(name), _) => RateKey::Token(Arc::clone(name)),
            (None, Some(PeerAddress(address))) => RateKey::Anonymous(AnonymousPeer::at(address)),
            (None, None) => RateKey::Anonymous(AnonymousPeer::Unknown),
        };
        self.rate_limiter.acquire(key, rate)
    }
}

/// Returns the caller without a token.
fn anonymous(api: &ApiConfig) -> ApiCaller {
    let tenants = api.tokens.iter().any(|token| token.tenant.is_some());
    ApiCaller {
        name: None,
        right: match api.anonymous {
            AnonymousAccess::Read => Some(Right::Read),
            AnonymousAccess::None => None,
        },
        visibility: if tenants {
            Visibility::None
        } else {
            Visibility::All
        },
    }
}

/// The middleware in front of every handler: authenticates the request and limits its rate.
pub(crate) async fn authenticate(
    State(authenticator): State<Arc<Authenticator>>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<PeerAddress>().copied();
    let known = RequestCredentials::from_headers(request.headers()).and_then(|credentials| {
        authenticator
            .find_caller(&credentials)
            .map(|(caller, _)| (credentials, caller))
    });
    let (credentials, caller) = match known {
        Ok(known) => known,
        Err(problem) => {
            // Wrong tokens count as well, so that guessing is limited.
            let anonymous_caller = ApiCaller {
                name: None,
                right: None,
                visibility: Visibility::None,
            };
            let problem = authenticator
                .check_rate(&anonymous_caller, peer)
                .err()
                .unwrap_or(problem);
            return problem.into_response();
        }
    };
    if let Err(problem) = authenticator.check_rate(&caller, peer) {
        return problem.into_response();
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let name = caller.name.clone();
    let revocation = RevocationWatch::new(authenticator, credentials, caller.clone());
    request.extensions_mut().insert(revocation);
    request.extensions_mut().insert(caller);
    let timeout = if method.is_safe() {
        READ_TIMEOUT
    } else {
        CHANGE_TIMEOUT
    };
    let response = match tokio::time::timeout(timeout, next.run(request)).await {
        Ok(response) => response,
        Err(_) => ApiProblem::unavailable(
            "the store does not respond; the change may or may not have been made",
        )
        .into_response(),
    };
    if !method.is_safe() {
        let (name, status) = (name.as_deref().unwrap_or(""), response.status().as_u16());
        tracing::info!(token = name, %method, path, status, "API request");
    }
    response
}
