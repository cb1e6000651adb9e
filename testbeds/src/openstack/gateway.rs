//! Stands between the services and a client, counts the calls, and lets some of them fail.
//!
//! Every service has a port here. What Keystone says about where the services are is changed on its way, so a client that
//! logs in through the gateway finds all of them through it. The services themselves speak to each other directly: what is
//! counted is what the client asks.
//!
//! Answers are held back until they are complete; bodies of requests flow through, however large they are.
//!
//! With [`GatewayTls`] clients reach all services by https, as they do in most clouds; behind the gateway it is http.

mod fault;
mod relay;
mod tls;

use std::collections::{BTreeMap, HashSet};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::Result;
use rustls::ServerConfig;

pub use self::fault::{Answer, Calls, Fault, Passage, Toll};
pub use self::tls::GatewayTls;
use super::api::Service;
use super::{OpenStack, http};

/// A call that was made.
#[derive(Debug, Clone)]
pub struct Call {
    pub service: Service,
    pub method: String,
    /// With `{id}` for whatever names one thing, and without the query.
    pub path: String,
    pub query: String,
    pub began: Instant,
    /// None while nothing has been answered, and where the answer was lost.
    pub status: Option<u16>,
}

#[derive(Debug)]
pub struct Gateway {
    urls: BTreeMap<Service, String>,
    ca: Option<PathBuf>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    doors: Vec<Door>,
    tls: Option<Arc<ServerConfig>>,
    ended: AtomicBool,
    state: Mutex<State>,
}

/// Where one service is reached.
#[derive(Debug, Clone, Copy)]
struct Door {
    service: Service,
    port: u16,
    target: SocketAddr,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    rules: Vec<fault::Rule>,
    toll: Option<Arc<dyn Toll>>,
    /// Tokens that were given out, and are good.
    tokens: HashSet<String>,
    expired: HashSet<String>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}

impl Gateway {
    pub fn start(cloud: &OpenStack) -> Result<Self> {
        Self::open(cloud, None)
    }

    pub fn start_with_tls(cloud: &OpenStack, tls: &GatewayTls) -> Result<Self> {
        Self::open(cloud, Some(tls))
    }

    fn open(cloud: &OpenStack, tls: Option<&GatewayTls>) -> Result<Self> {
        let scheme = tls.map_or("http", |_| "https");
        let mut doors = Vec::new();
        let mut listeners = Vec::new();
        let mut urls = BTreeMap::new();
        for (service, url) in cloud.services() {
            let (host, path) = http::split_url(url)?;
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let port = listener.local_addr()?.port();
            urls.insert(service, format!("{scheme}://127.0.0.1:{port}{path}"));
            doors.push(Door {
                service,
                port,
                target: host.parse()?,
            });
            listeners.push(listener);
        }
        let shared = Arc::new(Shared {
            doors: doors.clone(),
            tls: tls.map(GatewayTls::server).transpose()?,
            ended: AtomicBool::new(false),
            state: Mutex::default(),
        });
        for (door, listener) in doors.into_iter().zip(listeners) {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.accept(door, &listener));
        }
        Ok(Self {
            urls,
            ca: tls.map(|tls| tls.ca.clone()),
            shared,
        })
    }

    /// Where to log in.
    pub fn url(&self) -> &str {
        self.url_of(Service::Identity)
    }

    /// Where a service is, for clients of the gateway.
    pub fn url_of(&self, service: Service) -> &str {
        self.urls.get(&service).map_or("", String::as_str)
    }

    /// Whom clients have to trust, if it speaks TLS.
    pub(super) fn ca(&self) -> Option<&Path> {
        self.ca.as_deref()
    }

    /// The port of Keystone, by which gateways differ.
    pub fn port(&self) -> u16 {
        let mut doors = self.shared.doors.iter();
        let identity = doors.find(|door| door.service == Service::Identity);
        identity.map_or(0, |door| door.port)
    }

    /// Lets calls fail. Of several rules that fit a call, the oldest has effect; it counts for all.
    pub fn fail(&self, calls: Calls, fault: Fault) {
        let rule = fault::Rule::new(calls, fault);
        self.shared.state().rules.push(rule);
    }

    /// From now on everything works.
    pub fn heal(&self) {
        let mut state = self.shared.state();
        state.rules.clear();
        state.toll = None;
    }

    /// Asks somebody about each call that no rule lets fail.
    pub fn set_toll(&self, toll: Arc<dyn Toll>) {
        self.shared.state().toll = Some(toll);
    }

    /// Tokens that were given out so far are answered with 401. Logging in gives a new one.
    pub fn expire_tokens(&self) {
        let mut state = self.shared.state();
        let tokens = std::mem::take(&mut state.tokens);
        state.expired.extend(tokens);
    }

    /// How often the rules had an effect so far.
    pub fn failures(&self) -> usize {
        let state = self.shared.state();
        state.rules.iter().map(fault::Rule::effects).sum()
    }

    /// All calls so far, in the order in which they began.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.state().calls.clone()
    }

    /// How often each kind of call was made, such as `compute POST /v2.1/servers`.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for call in &self.shared.state().calls {
            *counts.entry(call.kind()).or_default() += 1;
        }
        counts
    }

    /// Forgets the calls so far.
    pub fn reset_counts(&self) {
        self.shared.state().calls.clear();
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        for door in &self.shared.doors {
            // Wakes the thread that accepts.
            let _ = TcpStream::connect(("127.0.0.1", door.port));
        }
    }
}

impl Call {
    pub fn kind(&self) -> String {
        format!("{} {} {}", self.service, self.method, self.path)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: &Arc<Self>, door: Door, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            if let Ok(client) = client {
                let shared = Arc::clone(self);
                thread::spawn(move || {
                    // A client sees a connection that breaks, and so does a service.
                    let _ = relay::serve(&shared, door, client);
                });
            }
        }
    }

    /// Notes a call and says what is to become of it. The number is its place in the list.
    fn begin(
        &self,
        call: Call,
        token: Option<&str>,
    ) -> (usize, Option<Fault>, Option<Arc<dyn Toll>>) {
        let mut state = self.state();
        let number = state.calls.len();
        let mut fault = None;
        for rule in &mut state.rules {
            let struck = rule.strikes(&call, fault.is_some());
            fault = fault.or(struck);
        }
        if fault.is_none() && token.is_some_and(|token| state.expired.contains(token)) {
            fault = Some(Fault::status(call.service, 401));
        }
        state.calls.push(call);
        (number, fault, state.toll.clone())
    }

    fn end(&self, number: usize, answer: &Answer) {
        let mut state = self.state();
        if let Some(call) = state.calls.get_mut(number) {
            call.status = Some(answer.status);
        }
        if let Some(token) = answer.header("x-subject-token") {
            state.tokens.insert(token.to_owned());
        }
    }
}
