//! The store and the other providers, as one table that outlives the processes of the driver.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use nodeyard_config::{self as config, Environment, Metastatic, Mode};
use nodeyard_driver::backing::{Backing, BackingNode, BackingRequest, BackingSnapshot, SlotTable};
use nodeyard_driver::kit::{Faults, Injected, tokio_clock};
use nodeyard_driver::{Clock, Error, Owner, SystemId};
use nodeyard_driver_metastatic::MetastaticDriver;
use nodeyard_model::{
    Label, Node, NodeId, NodeState, ProviderName, RequestId, RequestState, Timestamp,
};
use tokio::sync::watch;

pub(crate) fn owner() -> Owner {
    Owner {
        system: SystemId::new("s1"),
        provider: ProviderName::new("meta").unwrap(),
    }
}

pub(crate) fn node(number: u64) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

pub(crate) fn section(keys: &str) -> Metastatic {
    let text = format!(
        "labels: [{{name: slot}}, {{name: other}}, {{name: small}}]\nproviders:\n- name: meta\n  driver: metastatic\n  \
         pools:\n  - name: main\n    labels:\n    - {{name: slot, backing-label: small, {keys}}}\n    \
         - {{name: other, backing-label: small, {keys}}}\n"
    );
    let main = (Path::new("nodepool.yaml"), text.as_bytes());
    let (config, problems) = config::load_bytes(main, None, &Environment::default(), Mode::Daemon);
    let config = config.unwrap_or_else(|| panic!("{problems:?}"));
    match &config.providers["meta"].driver {
        config::Driver::Metastatic(section) => Metastatic::clone(section),
        other => panic!("{}", other.name()),
    }
}

#[derive(Debug)]
pub(crate) struct Yard {
    pub(crate) snapshot: watch::Sender<BackingSnapshot>,
    clock: Clock,
    state: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The last number of a request or node of others; far from those of the kit.
    next: u64,
    /// Which node a request was given.
    given: BTreeMap<RequestId, NodeId>,
    released: Vec<NodeId>,
}

impl Yard {
    pub(crate) fn new() -> Arc<Self> {
        let snapshot = BackingSnapshot {
            revision: 1,
            ..BackingSnapshot::default()
        };
        Arc::new(Self {
            snapshot: watch::Sender::new(snapshot),
            clock: tokio_clock(),
            state: Mutex::new(Inner {
                next: 1_000_000,
                given: BTreeMap::new(),
                released: Vec::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn released(&self) -> Vec<NodeId> {
        self.state().released.clone()
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut BackingSnapshot) -> T) -> T {
        let mut result = None;
        self.snapshot.send_modify(|snapshot| {
            snapshot.revision += 1;
            result = Some(change(snapshot));
        });
        result.unwrap()
    }

    /// Starts a process of the driver. The requests of the one before end with its session.
    pub(crate) fn driver(
        self: &Arc<Self>,
        section: &Metastatic,
        faults: &Faults,
    ) -> MetastaticDriver {
        self.change(|snapshot| snapshot.requests.clear());
        let backing = Arc::new(Table {
            yard: Arc::clone(self),
            faults: faults.clone(),
        });
        MetastaticDriver::new(section, owner(), backing, self.clock.clone())
    }

    /// Other providers serve all requests.
    pub(crate) fn fulfil(&self) {
        for request in self.unserved() {
            self.serve(request);
        }
    }

    pub(crate) fn fulfil_youngest(&self) {
        if let Some(request) = self.unserved().last() {
            self.serve(*request);
        }
    }

    fn unserved(&self) -> Vec<RequestId> {
        let snapshot = self.snapshot.borrow();
        let requests = snapshot.requests.iter();
        let unserved = requests.filter(|(_, request)| request.state == RequestState::Requested);
        unserved.map(|(id, _)| *id).collect()
    }

    fn serve(&self, request: RequestId) {
        {
            let mut state = self.state();
            state.next += 1;
            let id = node(state.next);
            state.given.insert(request, id);
        }
        self.change(|snapshot| {
            snapshot.requests.get_mut(&request).unwrap().state = RequestState::Fulfilled;
        });
    }

    /// Other providers decline the requests that were not served yet.
    pub(crate) fn fail(&self) {
        self.change(|snapshot| {
            let requests = snapshot.requests.values_mut();
            for request in requests.filter(|request| request.state == RequestState::Requested) {
                request.state = RequestState::Failed;
            }
        });
    }
}

#[derive(Debug)]
struct Table {
    yard: Arc<Yard>,
    faults: Faults,
}

impl Table {
    async fn call<T>(&self, name: &str, call: impl FnOnce() -> T) -> Result<T, Error> {
        let result = self.faults.call(name, async { call() }).await;
        result.map_err(|injected| match injected {
            Injected::Lost => Error::retry("the answer was lost"),
            Injected::Refused(class) => Error::new(class, "refused"),
        })
    }
}

#[async_trait]
impl Backing for Table {
    async fn snapshot(&self) -> Result<watch::Receiver<BackingSnapshot>, Error> {
        Ok(self.yard.snapshot.subscribe())
    }

    async fn refresh(&self) -> Result<(), Error> {
        self.call("refresh", || ()).await
    }

    async fn request_node(&self, label: &Label) -> Result<(), Error> {
        self.call("request node", || {
            let number = {
                let mut state = self.yard.state();
                state.next += 1;
                state.next
            };
            let id = format!("100-{number:010}").parse().unwrap();
            let request = BackingRequest {
                label: label.clone(),
                state: RequestState::Requested,
                of_this_process: true,
            };
            self.yard
                .change(|snapshot| snapshot.requests.insert(id, request));
        })
        .await
    }

    async fn withdraw_request(&self, request: RequestId) -> Result<(), Error> {
        self.call("withdraw request", || {
            self.yard
                .change(|snapshot| snapshot.requests.remove(&request));
        })
        .await
    }

    async fn accept_node(&self, request: RequestId, slots: &SlotTable) -> Result<(), Error> {
        self.call("accept node", || {
            let given = self.yard.state().given.get(&request).copied();
            let now = self.yard.now();
            self.yard.change(|snapshot| {
                if snapshot.requests.remove(&request).is_some()
                    && let Some(id) = given
                {
                    let mut node = Node::new(NodeState::InUse, now);
                    node.interface_ip = Some("192.0.2.1".into());
                    node.host_keys = vec!["ssh-rsa KEY".into()];
                    let backing = BackingNode {
                        node: Arc::new(node),
                        version: 1,
                        slots: Some(slots.clone()),
                    };
                    snapshot.backing_nodes.insert(id, backing);
                }
            });
        })
        .await
    }

    async fn write_slots(
        &self,
        node: NodeId,
        version: i32,
        slots: &SlotTable,
    ) -> Result<bool, Error> {
        self.call("write slots", || {
            self.yard
                .change(|snapshot| match snapshot.backing_nodes.get_mut(&node) {
                    Some(backing) if backing.version == version => {
                        backing.version += 1;
                        backing.slots = Some(slots.clone());
                        true
                    }
                    _ => false,
                })
        })
        .await
    }

    async fn release_node(&self, node: NodeId, version: i32) -> Result<(), Error> {
        self.call("release node", || {
            let released = self.yard.change(|snapshot| {
                let nodes = &mut snapshot.backing_nodes;
                let backing = nodes.get(&node);
                let same = backing.is_some_and(|backing| backing.version == version);
                same && nodes.remove(&node).is_some()
            });
            if released {
                self.yard.state().released.push(node);
            }
        })
        .await
    }
}
