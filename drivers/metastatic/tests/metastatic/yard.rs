//! What other providers and the store do for the driver, in one table that outlives its processes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::{self as config, Environment, Metastatic, Mode};
use nodeyard_driver::backing::{Asked, Backing, HeldNode, Note, Survey};
use nodeyard_driver::kit::{Faults, Injected};
use nodeyard_driver::{Error, Owner, SystemId};
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
    pub(crate) survey: watch::Sender<Survey>,
    state: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    now: f64,
    /// Requests and nodes that others have made; far from those of the kit.
    next: u64,
    /// Which node a request was given.
    given: BTreeMap<RequestId, NodeId>,
    given_back: Vec<NodeId>,
}

impl Yard {
    pub(crate) fn new() -> Arc<Self> {
        let survey = Survey {
            edition: 1,
            ..Survey::default()
        };
        Arc::new(Self {
            survey: watch::Sender::new(survey),
            state: Mutex::new(Inner {
                now: 1_700_000_000.0,
                next: 1_000_000,
                given: BTreeMap::new(),
                given_back: Vec::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap()
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_secs(self.state().now).unwrap()
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.state().now += time.as_secs_f64();
    }

    pub(crate) fn given_back(&self) -> Vec<NodeId> {
        self.state().given_back.clone()
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Survey) -> T) -> T {
        let mut result = None;
        self.survey.send_modify(|survey| {
            survey.edition += 1;
            result = Some(change(survey));
        });
        result.unwrap()
    }

    /// A process of the driver; what an earlier one has asked for ends with its session.
    pub(crate) fn driver(
        self: &Arc<Self>,
        section: &Metastatic,
        faults: &Faults,
    ) -> MetastaticDriver {
        self.change(|survey| survey.asked.clear());
        let backing = Arc::new(Table {
            yard: Arc::clone(self),
            faults: faults.clone(),
        });
        MetastaticDriver::new(section, owner(), backing)
    }

    /// Others serve all requests.
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
        let survey = self.survey.borrow();
        let asked = survey.asked.iter();
        let asked = asked.filter(|(_, asked)| asked.state == RequestState::Requested);
        asked.map(|(id, _)| *id).collect()
    }

    fn serve(&self, request: RequestId) {
        {
            let mut state = self.state();
            state.next += 1;
            let id = node(state.next);
            state.given.insert(request, id);
        }
        self.change(|survey| {
            survey.asked.get_mut(&request).unwrap().state = RequestState::Fulfilled;
        });
    }

    /// Nobody can serve the requests that were not served yet.
    pub(crate) fn fail(&self) {
        self.change(|survey| {
            let asked = survey.asked.values_mut();
            for asked in asked.filter(|asked| asked.state == RequestState::Requested) {
                asked.state = RequestState::Failed;
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
    async fn survey(&self) -> Result<watch::Receiver<Survey>, Error> {
        Ok(self.yard.survey.subscribe())
    }

    async fn refresh(&self) -> Result<(), Error> {
        self.call("refresh", || ()).await
    }

    async fn ask(&self, label: &Label) -> Result<(), Error> {
        self.call("ask", || {
            let number = {
                let mut state = self.yard.state();
                state.next += 1;
                state.next
            };
            let id = format!("100-{number:010}").parse().unwrap();
            let asked = Asked {
                label: label.clone(),
                state: RequestState::Requested,
                mine: true,
            };
            self.yard.change(|survey| survey.asked.insert(id, asked));
        })
        .await
    }

    async fn withdraw(&self, request: RequestId) -> Result<(), Error> {
        self.call("withdraw", || {
            self.yard.change(|survey| survey.asked.remove(&request));
        })
        .await
    }

    async fn take(&self, request: RequestId, note: &Note) -> Result<(), Error> {
        self.call("take", || {
            let given = self.yard.state().given.get(&request).copied();
            let now = self.yard.now();
            self.yard.change(|survey| {
                if survey.asked.remove(&request).is_some()
                    && let Some(id) = given
                {
                    let mut node = Node::new(NodeState::InUse, now);
                    node.interface_ip = Some("192.0.2.1".into());
                    node.host_keys = vec!["ssh-rsa KEY".into()];
                    let held = HeldNode {
                        node: Arc::new(node),
                        version: 1,
                        note: Some(note.clone()),
                    };
                    survey.held.insert(id, held);
                }
            });
        })
        .await
    }

    async fn write(&self, node: NodeId, version: i32, note: &Note) -> Result<bool, Error> {
        self.call("write", || {
            self.yard.change(|survey| match survey.held.get_mut(&node) {
                Some(held) if held.version == version => {
                    held.version += 1;
                    held.note = Some(note.clone());
                    true
                }
                _ => false,
            })
        })
        .await
    }

    async fn give_back(&self, node: NodeId, version: i32) -> Result<(), Error> {
        self.call("give back", || {
            let gone = self.yard.change(|survey| {
                let same = survey
                    .held
                    .get(&node)
                    .is_some_and(|held| held.version == version);
                same && survey.held.remove(&node).is_some()
            });
            if gone {
                self.yard.state().given_back.push(node);
            }
        })
        .await
    }
}
