//! The HTTP API, version 1: requests, leases, nodes, images and change events, for programs other than Zuul.
//!
//! ```text
//!    client ──► server ──► access ──► routes ──► views, registry, leases
//!       ▲                                │
//!       ╰───────── events ◄── views      ╰──► openapi
//! ```
//!
//! * [`server`]: connections, TLS, and limits on what a client can use.
//! * [`access`]: authentication, authorization and rate limits.
//! * [`routes`]: the handlers, with their OpenAPI descriptions.
//! * [`events`]: change events for any number of clients.
//! * [`problem`]: the format of all errors.
//!
//! Reading uses cached views only, so it causes no load on the store. Changes are made by the functions that the
//! command line uses.

mod access;
mod app;
mod events;
mod extract;
mod integer;
mod openapi;
mod page;
mod problem;
mod response;
mod routes;
mod schema;
mod server;
mod time;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use nodeyard_api::{RequestExplainer, StatusViews};
use nodeyard_config::Config;
use nodeyard_lease::Leases;
use nodeyard_model::layout;
use nodeyard_operations::drain::DrainShape;
use nodeyard_store::registry::Registry;
use nodeyard_store::view::View;
use nodeyard_store::{Tree, TreePath};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use access::{LocalToken, LocalTokenError};
pub use server::{ApiBindError, ApiTlsError};

use access::Authenticator;
use app::{ApiState, ApiStateInner};
use events::{EventHub, ViewSource, publish_changes};
use routes::{builds, components, drains, images, leases, nodes, providers, requests, scopes};
use server::{ApiListener, CONNECTIONS};

/// The maximum number of event streams, which leaves connections for other requests.
const STREAMS: usize = CONNECTIONS - 384;

/// The services that the API is an interface to.
#[derive(Debug, Clone)]
pub struct ApiSources {
    pub registry: Registry,
    pub views: StatusViews,
    pub leases: Leases,
    /// The configuration and its changes. The listening address is that of the first one.
    pub config: watch::Receiver<Arc<Config>>,
    pub explain: Arc<dyn RequestExplainer>,
    /// Whether the launcher has completed its first pass.
    pub ready: watch::Receiver<bool>,
    /// The local token, which allows everything.
    pub local_token: Option<LocalToken>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Bind(#[from] ApiBindError),
    #[error("failed to open the store's views for the API")]
    Store(#[from] nodeyard_store::Error),
}

/// A server that listens but does not serve yet.
pub struct HttpApi {
    listener: ApiListener,
    authenticator: Arc<Authenticator>,
    app: ApiState,
}

impl fmt::Debug for HttpApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpApi").finish_non_exhaustive()
    }
}

impl HttpApi {
    /// Opens the configured port. Must be called inside a runtime.
    pub async fn bind(sources: ApiSources) -> Result<Self, Error> {
        let ApiSources {
            registry,
            views,
            leases,
            config,
            explain,
            ready,
            local_token,
        } = sources;
        let first = Arc::clone(&config.borrow());
        let listener = ApiListener::bind(&first.api).await?;
        let tree: &Arc<dyn Tree> = registry.tree();
        let path = TreePath::new(layout::COMPONENTS).map_err(nodeyard_store::Error::from)?;
        let components = View::open(Arc::clone(tree), path, components::ComponentShape);
        let path = TreePath::new(layout::DRAINS).map_err(nodeyard_store::Error::from)?;
        let drains = View::open(Arc::clone(tree), path, DrainShape);
        let authenticator = Arc::new(Authenticator::open(config.clone(), local_token).await);
        let app = ApiState::new(ApiStateInner {
            views,
            leases,
            components,
            drains,
            config,
            explain,
            ready,
            hub: EventHub::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            shutdown: CancellationToken::new(),
            registry,
        });
        Ok(Self {
            listener,
            authenticator,
            app,
        })
    }

    /// Returns the bound address, with the port that the system chose for port 0.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`, then finishes the requests in progress.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self {
            listener,
            authenticator,
            app,
        } = self;
        let publishers = publishers(&app, &shutdown);
        let router = routes::router(app.clone(), authenticator);
        let ending = async {
            shutdown.cancelled().await;
            app.shutdown.cancel();
        };
        tokio::join!(listener.serve(router, shutdown.clone()), ending);
        publishers.close();
        publishers.wait().await;
    }
}

/// Starts an event publisher for each kind of object.
fn publishers(app: &ApiState, shutdown: &CancellationToken) -> TaskTracker {
    let publishers = TaskTracker::new();
    macro_rules! publish {
        ($source:expr) => {
            publishers.spawn(publish_changes(app.hub.clone(), $source, shutdown.clone()));
        };
        ($view:expr, $to_event:path) => {
            publish!(ViewSource {
                view: $view.clone(),
                to_event: $to_event,
            });
        };
    }
    publish!(app.views.requests, requests::to_event);
    publish!(app.views.nodes, nodes::to_event);
    publish!(app.views.images, builds::to_event);
    publish!(app.views.pools, providers::to_event);
    publish!(app.components, components::to_event);
    publish!(app.drains, drains::to_event);
    publish!(images::ImageEventSource(app.views.image_markers.clone()));
    publish!(leases::LeaseSource(app.leases.clone()));
    publish!(scopes::ScopeSource(app.leases.clone()));
    publishers
}
