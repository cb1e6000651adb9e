//! Who may do what.
//!
//! A request comes with a token or without one. [`Gate`] turns that into a [`Caller`] before any handler sees it,
//! and keeps callers to their rate. A handler says which right it needs by taking a [`Reader`], [`Requestor`],
//! [`Operator`] or [`Admin`].
//!
//! A caller who is confined to a tenant sees and touches only what is that tenant's. What is another's is not there
//! for it, so that ids tell nothing. To leave out the token must not show more than to send it: where there are such
//! callers, [`Sight`] is [`Sight::Nothing`] without one.
//!
//! An answer without end must not outlast the right to it: [`Standing`] tells when it does.

mod local;
mod rate;
mod standing;
mod tokens;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use nodeyard_config::{AnonymousAccess, Api, ApiRight, Config};
use nodeyard_model::{TenantName, Timestamp, now};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::problem::Problem;
use rate::{Buckets, Key, Stranger};
use standing::Sent;
use tokens::Tokens;

pub(crate) use standing::Standing;

pub use local::{LocalToken, LocalTokenError};

/// What a token allows; each includes those before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Right {
    /// Look at everything.
    Read,
    /// Get nodes and give them back.
    Request,
    /// Look after nodes and images.
    Operate,
    /// Delete what cannot be had again, and what is somebody else's.
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

/// What there is for somebody of requests, leases, scopes and nodes, which tenants have as their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sight {
    Everything,
    /// What is this tenant's.
    Tenant(TenantName),
    Nothing,
}

impl Sight {
    /// Whether something of this tenant, or of none, is there.
    pub(crate) fn sees(&self, tenant: Option<&TenantName>) -> bool {
        match self {
            Self::Everything => true,
            Self::Tenant(own) => Some(own) == tenant,
            Self::Nothing => false,
        }
    }
}

/// Who asks, as far as we know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name of the token; none without a token.
    pub(crate) name: Option<Arc<str>>,
    /// None may not even look.
    right: Option<Right>,
    pub(crate) sight: Sight,
}

impl Caller {
    /// Whether something of this tenant, or of none, is there for the caller.
    pub(crate) fn sees(&self, tenant: Option<&TenantName>) -> bool {
        self.sight.sees(tenant)
    }

    /// The one that the caller is confined to.
    pub(crate) fn tenant(&self) -> Option<&TenantName> {
        match &self.sight {
            Sight::Tenant(tenant) => Some(tenant),
            Sight::Everything | Sight::Nothing => None,
        }
    }

    /// Everybody who got past a handler's first line may at least look.
    pub(crate) fn right(&self) -> Right {
        self.right.unwrap_or(Right::Read)
    }

    pub(crate) fn may(&self, right: Right) -> bool {
        self.right.is_some_and(|own| own >= right)
    }

    /// As those who hand out nodes know it. They know of no [`Sight::Nothing`]: who gets here is an [`Insider`], or has a
    /// token.
    pub(crate) fn as_lessee(&self) -> nodeyard_lease::Lessee {
        nodeyard_lease::Lessee {
            name: self.name.as_deref().unwrap_or("anonymous").into(),
            tenant: self.tenant().cloned(),
        }
    }

    /// What concerns all tenants is not for a token of one.
    pub(crate) fn concerns_everybody(&self, needed: Right) -> Result<(), Problem> {
        match self.tenant() {
            None => Ok(()),
            Some(tenant) => Err(Problem::forbidden(
                needed,
                format!(
                    "this concerns all tenants, and the token is confined to tenant {tenant:?}"
                ),
            )),
        }
    }

    /// The same caller, if it sees anything of what tenants have.
    pub(crate) fn inside(self) -> Result<Self, Problem> {
        if self.sight == Sight::Nothing {
            return Err(Problem::unauthorized(
                "requests, leases, scopes and nodes belong to tenants here, so looking at them needs a token, \
                 as in the header `authorization: Bearer TOKEN`",
            ));
        }
        Ok(self)
    }

    fn require(self, needed: Right) -> Result<Self, Problem> {
        if self.may(needed) {
            return Ok(self);
        }
        match &self.name {
            None => Err(Problem::unauthorized(format!(
                "this needs a token with the right {needed:?}, as in the header `authorization: Bearer TOKEN`",
                needed = needed.to_string(),
            ))),
            Some(name) => Err(Problem::forbidden(
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
        pub(crate) struct $name(pub(crate) Caller);

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
                let caller = parts.extensions.get::<Caller>().cloned();
                // The gate is in front of every handler.
                let caller = caller.ok_or_else(|| Problem::unauthorized("nobody has asked who you are"))?;
                caller.require(Right::$right).map(Self)
            }
        }
    )*};
}

rights! {
    /// Somebody who may look.
    Reader = Read;
    /// Somebody who may have nodes.
    Requestor = Request;
    /// Somebody who may look after nodes and images.
    Operator = Operate;
    /// Somebody who may do everything.
    Admin = Admin;
}

/// Somebody who may look at what tenants have.
#[derive(Debug, Clone)]
pub(crate) struct Insider(pub(crate) Caller);

impl<S: Send + Sync> FromRequestParts<S> for Insider {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Reader(caller) = Reader::from_request_parts(parts, state).await?;
        caller.inside().map(Self)
    }
}

/// How long the store may take for what is asked of it. Leases outlast its absence; clients need not.
const CHANGE_PATIENCE: Duration = Duration::from_secs(30);
/// The same where a client may want to wait, and somewhat more than it may.
const LOOK_PATIENCE: Duration = Duration::from_secs(75);

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Knows the tokens, and who was here how often.
#[derive(Debug)]
pub(crate) struct Gate {
    tokens: watch::Receiver<Arc<Tokens>>,
    config: watch::Receiver<Arc<Config>>,
    buckets: Buckets,
}

impl Gate {
    /// Follows the configuration as long as it lives. Must be called inside a runtime.
    pub(crate) async fn open(
        config: watch::Receiver<Arc<Config>>,
        local: Option<LocalToken>,
    ) -> Self {
        Self {
            tokens: tokens::follow(config.clone(), local).await,
            config,
            buckets: Buckets::default(),
        }
    }

    /// Who has sent this, and until when that is so.
    fn caller(&self, sent: &Sent) -> Result<(Caller, Option<Timestamp>), Problem> {
        match sent {
            Sent::Nothing => Ok((anonymous(&self.config.borrow().api), None)),
            Sent::Token(digest) => self.tokens.borrow().find(digest, now()),
        }
    }

    fn admit(&self, caller: &Caller, peer: Option<Peer>) -> Result<(), Problem> {
        let rate = self.config.borrow().api.rate_limit;
        let key = match (&caller.name, peer) {
            (Some(name), _) => Key::Token(Arc::clone(name)),
            (None, Some(Peer(address))) => Key::Stranger(Stranger::at(address)),
            (None, None) => Key::Stranger(Stranger::Unknown),
        };
        self.buckets.take(key, rate)
    }
}

/// Somebody without a token.
fn anonymous(api: &Api) -> Caller {
    let tenants = api.tokens.iter().any(|token| token.tenant.is_some());
    Caller {
        name: None,
        right: match api.anonymous {
            AnonymousAccess::Read => Some(Right::Read),
            AnonymousAccess::None => None,
        },
        sight: if tenants {
            Sight::Nothing
        } else {
            Sight::Everything
        },
    }
}

/// In front of every handler: who asks, and whether not too often.
pub(crate) async fn check(
    State(gate): State<Arc<Gate>>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let known = Sent::with(request.headers())
        .and_then(|sent| gate.caller(&sent).map(|(caller, _)| (sent, caller)));
    let (sent, caller) = match known {
        Ok(known) => known,
        Err(problem) => {
            // Guessing is limited as well.
            let nobody = Caller {
                name: None,
                right: None,
                sight: Sight::Nothing,
            };
            let problem = gate.admit(&nobody, peer).err().unwrap_or(problem);
            return problem.into_response();
        }
    };
    if let Err(problem) = gate.admit(&caller, peer) {
        return problem.into_response();
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let name = caller.name.clone();
    let standing = Standing::new(gate, sent, caller.clone());
    request.extensions_mut().insert(standing);
    request.extensions_mut().insert(caller);
    let patience = if method.is_safe() {
        LOOK_PATIENCE
    } else {
        CHANGE_PATIENCE
    };
    let response = match tokio::time::timeout(patience, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Problem::unavailable(
            "the store does not answer; what was asked for may or may not have been done",
        )
        .into_response(),
    };
    if !method.is_safe() {
        let (name, status) = (name.as_deref().unwrap_or(""), response.status().as_u16());
        tracing::info!(token = name, %method, path, status, "API");
    }
    response
}
