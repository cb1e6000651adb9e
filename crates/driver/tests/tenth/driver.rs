//! A tenth driver, written against the public contract only.
//!
//! Its cloud has no tags. Machines have names, so the driver puts into the name what leads back to the record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Faults, Injected};
use nodeyard_driver::{
    CreateOrder, Driver, Error, Instance, Machines, Owner, Poll, Progress, Resource, ResourceKind,
    Tags, Target,
};
use nodeyard_model::{Label, Limits, NodeId, PoolName, Resources};
use tokio::time::Instant;

/// The driver: all that a tenth kind of cloud needs.
#[derive(Debug)]
pub(crate) struct NamedDriver {
    pub(crate) owner: Owner,
    pub(crate) pool: PoolName,
    pub(crate) cloud: Client,
}

impl NamedDriver {
    fn name(&self, node: NodeId) -> String {
        let Owner { system, provider } = &self.owner;
        format!("{system}.{provider}.{node}")
    }

    fn tags(&self, name: &str) -> Option<Tags> {
        let node = name.rsplit('.').next()?.parse().ok()?;
        (name == self.name(node)).then(|| self.owner.node_tags(node, self.pool.clone()))
    }
}

impl Driver for NamedDriver {
    fn machines(&self) -> Option<&dyn Machines> {
        Some(self)
    }
}

#[async_trait]
impl Machines for NamedDriver {
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error> {
        let name = self.name(order.node);
        if order.first_attempt || self.cloud.status(&name).await?.is_none() {
            self.cloud.start(&name).await?;
        }
        progress.set_external_id(name.as_str());
        let timer = Poll::default().start();
        loop {
            match self.cloud.status(&name).await? {
                Some(Status::Running) => {
                    let cost = self.cost(&order.pool, &order.label).await?;
                    return Ok(Instance::new(name.as_str().into(), cost));
                }
                Some(Status::Booting) => timer.tick().await,
                Some(Status::Stopping) | None => {
                    return Err(Error::retry(format!(
                        "machine {name} was stopped while it booted"
                    )));
                }
            }
        }
    }

    async fn delete(&self, target: &Target) -> Result<(), Error> {
        let name = match target {
            Target::Node { node, .. } => self.name(*node),
            Target::Resource { id, .. } => id.to_string(),
        };
        self.cloud.stop(&name).await?;
        let timer = Poll::default().start();
        while self.cloud.status(&name).await?.is_some() {
            timer.tick().await;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        let names = self.cloud.names().await?;
        let resources = names.into_iter().map(|name| Resource {
            kind: ResourceKind::INSTANCES,
            id: name.as_str().into(),
            tags: self.tags(&name).unwrap_or_default(),
            name: Some(name.into()),
            takes: Resources::new(0, 1, 0),
        });
        Ok(resources.collect())
    }

    async fn limits(&self) -> Result<Limits, Error> {
        Ok(Limits::unlimited())
    }

    async fn cost(&self, _: &PoolName, _: &Label) -> Result<Resources, Error> {
        Ok(Resources::new(0, 1, 0))
    }
}

/// The simulated cloud.
#[derive(Debug, Default)]
pub(crate) struct Cloud(Mutex<BTreeMap<String, Machine>>);

#[derive(Debug)]
struct Machine {
    started: Instant,
    stopped: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Status {
    Booting,
    Running,
    Stopping,
}

const BOOT_TIME: Duration = Duration::from_secs(2);
const STOP_TIME: Duration = Duration::from_secs(1);

impl Cloud {
    fn machines(&self) -> MutexGuard<'_, BTreeMap<String, Machine>> {
        let mut machines = self.0.lock().unwrap();
        let is_gone = |stopped: Instant| stopped.elapsed() >= STOP_TIME;
        machines.retain(|_, machine| !machine.stopped.is_some_and(is_gone));
        machines
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.machines().keys().cloned().collect()
    }

    fn status(&self, name: &str) -> Option<Status> {
        let machines = self.machines();
        let machine = machines.get(name)?;
        Some(if machine.stopped.is_some() {
            Status::Stopping
        } else if machine.started.elapsed() < BOOT_TIME {
            Status::Booting
        } else {
            Status::Running
        })
    }

    /// Fails if there is a machine of this name.
    pub(crate) fn start(&self, name: &str) -> Result<(), Error> {
        let machine = Machine {
            started: Instant::now(),
            stopped: None,
        };
        match self.machines().insert(name.to_owned(), machine) {
            None => Ok(()),
            Some(_) => Err(Error::permanent(format!("machine {name} exists"))),
        }
    }

    fn stop(&self, name: &str) {
        if let Some(machine) = self.machines().get_mut(name) {
            machine.stopped.get_or_insert_with(Instant::now);
        }
    }
}

/// The client library of the cloud, with the faults of the kit in between.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) cloud: Arc<Cloud>,
    pub(crate) faults: Faults,
}

impl Client {
    async fn call<T>(&self, name: &str, call: impl FnOnce(&Cloud) -> T) -> Result<T, Error> {
        let result = self.faults.call(name, async { call(&self.cloud) }).await;
        result.map_err(|injected| match injected {
            Injected::Lost => Error::retry(format!("connection lost during {name}")),
            Injected::Refused(class) => Error::new(class, format!("{name} was refused")),
        })
    }

    async fn names(&self) -> Result<BTreeSet<String>, Error> {
        self.call("names", Cloud::names).await
    }

    async fn status(&self, name: &str) -> Result<Option<Status>, Error> {
        self.call("status", |cloud| cloud.status(name)).await
    }

    async fn start(&self, name: &str) -> Result<(), Error> {
        self.call("start", |cloud| cloud.start(name)).await?
    }

    async fn stop(&self, name: &str) -> Result<(), Error> {
        self.call("stop", |cloud| cloud.stop(name)).await
    }
}
