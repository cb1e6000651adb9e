//! The HTTP API, version 1: requests, leases, nodes, images and their changes, for programs that are not Zuul.
//!
//! ```text
//!    client ──► server ──► access ──► routes ──► views, registry, leases
//!       ▲                                │
//!       ╰───────── events ◄── views      ╰──► openapi
//! ```
//!
//! * [`server`]: from a port to a request, with limits on everything a client could take too much of.
//! * [`access`]: who asks, and what that one may do.
//! * [`routes`]: every path, with its description beside its handler.
//! * [`events`]: every change as it happens, to any number of listeners.
//! * [`problem`]: the one shape of all errors.
//!
//! Reading looks at views only, so it costs the store nothing. What is changed is changed by the same functions that
//! the command line uses.

mod access;
mod answer;
mod app;
mod events;
mod extract;
mod openapi;
mod page;
mod problem;
mod routes;
mod schema;
mod server;
mod time;
mod whole;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use nodeyard_api::{Explain, Views};
use nodeyard_config::Config;
use nodeyard_launcher::drain::DrainShape;
use nodeyard_lease::Leases;
use nodeyard_model::layout;
use nodeyard_store::registry::Registry;
use nodeyard_store::view::View;
use nodeyard_store::{Tree, TreePath};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use access::{LocalToken, LocalTokenError};
pub use server::{BindError, TlsError};

use access::Gate;
use app::{App, Inner};
use events::{Hub, Records, follow};
use routes::{builds, components, drains, images, leases, nodes, providers, requests, scopes};
use server::{CONNECTIONS, Listener};

/// The rest of the connections is for everything else.
const STREAMS: usize = CONNECTIONS - 384;

/// What the API is made from.
#[derive(Debug, Clone)]
pub struct Sources {
    pub registry: Registry,
    pub views: Views,
    pub leases: Leases,
    /// The configuration in force, and those that follow it. The address is that of the first one.
    pub config: watch::Receiver<Arc<Config>>,
    pub explain: Arc<dyn Explain>,
    /// True once the launcher works.
    pub ready: watch::Receiver<bool>,
    /// Allows everything; for commands on this host.
    pub local_token: Option<LocalToken>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error("the API cannot follow the store")]
    Store(#[from] nodeyard_store::Error),
}

/// A server that has its port but does not answer yet.
pub struct HttpApi {
    listener: Listener,
    gate: Arc<Gate>,
    app: App,
}

impl fmt::Debug for HttpApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpApi").finish_non_exhaustive()
    }
}

impl HttpApi {
    /// Takes the port of the configuration. Must be called inside a runtime.
    pub async fn bind(sources: Sources) -> Result<Self, Error> {
        let Sources {
            registry,
            views,
            leases,
            config,
            explain,
            ready,
            local_token,
        } = sources;
        let first = Arc::clone(&config.borrow());
        let listener = Listener::bind(&first.api).await?;
        let tree: &Arc<dyn Tree> = registry.tree();
        let path = TreePath::new(layout::COMPONENTS).map_err(nodeyard_store::Error::from)?;
        let components = View::open(Arc::clone(tree), path, components::ComponentShape);
        let path = TreePath::new(layout::DRAINS).map_err(nodeyard_store::Error::from)?;
        let drains = View::open(Arc::clone(tree), path, DrainShape);
        let gate = Arc::new(Gate::open(config.clone(), local_token).await);
        let app = App::new(Inner {
            views,
            leases,
            components,
            drains,
            config,
            explain,
            ready,
            hub: Hub::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            shutdown: CancellationToken::new(),
            registry,
        });
        Ok(Self {
            listener,
            gate,
            app,
        })
    }

    /// Tells the port that the system has chosen for port 0.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `shutdown`, then finishes the answers under way.
    pub async fn run(self, shutdown: CancellationToken) {
        let Self {
            listener,
            gate,
            app,
        } = self;
        let feeds = feeds(&app, &shutdown);
        let router = routes::router(app.clone(), gate);
        let ending = async {
            shutdown.cancelled().await;
            app.shutdown.cancel();
        };
        tokio::join!(listener.serve(router, shutdown.clone()), ending);
        feeds.close();
        feeds.wait().await;
    }
}

/// A task for each kind of record.
fn feeds(app: &App, shutdown: &CancellationToken) -> TaskTracker {
    let feeds = TaskTracker::new();
    macro_rules! feed {
        ($by:expr) => {
            feeds.spawn(follow(app.hub.clone(), $by, shutdown.clone()));
        };
        ($view:expr, $tell:path) => {
            feed!(Records {
                view: $view.clone(),
                tell: $tell,
            });
        };
    }
    feed!(app.views.requests, requests::tell);
    feed!(app.views.nodes, nodes::tell);
    feed!(app.views.images, builds::tell);
    feed!(app.views.pools, providers::tell);
    feed!(app.components, components::tell);
    feed!(app.drains, drains::tell);
    feed!(images::ImageFeed(app.views.marks.clone()));
    feed!(leases::LeaseFeed(app.leases.clone()));
    feed!(scopes::ScopeFeed(app.leases.clone()));
    feeds
}

/// The OpenAPI document, as it is checked in.
pub fn openapi_json() -> String {
    let json = routes::document().to_pretty_json();
    json.unwrap_or_default() + "\n"
}
