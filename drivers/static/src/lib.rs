//! `driver: static`: machines that exist already.
//!
//! Nothing is launched and nothing is deleted here. The driver knows which places for nodes the configuration
//! gives, and finds out whether a machine answers and shows the host keys it should.

mod roster;

use std::sync::Arc;

use async_trait::async_trait;
use nodeyard_config::Static;
use nodeyard_driver::{
    Capabilities, CreateOrder, Driver, Error, Instance, Readiness, Resource, Roster, State, Step,
    Target,
};
use nodeyard_model::{Label, Limits, PoolName, Resources, Timestamp};
use nodeyard_nodescan::Scanner;

use roster::Machines;

#[derive(Debug)]
pub struct StaticDriver {
    machines: Machines,
}

impl StaticDriver {
    pub fn new(section: &Static, scanner: Arc<dyn Scanner>) -> Self {
        Self {
            machines: Machines::new(section, scanner),
        }
    }
}

#[async_trait]
impl Driver for StaticDriver {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            launches: false,
            manages_images: false,
        }
    }

    fn roster(&self) -> Option<&dyn Roster> {
        Some(&self.machines)
    }

    async fn list(&self) -> Result<Vec<Resource>, Error> {
        Ok(Vec::new())
    }

    async fn create(
        &self,
        _: &CreateOrder,
        _: &mut State,
        _: Timestamp,
    ) -> Result<Step<Instance>, Error> {
        Err(Error::unsupported("launch machines"))
    }

    /// The machine stays; only its record goes.
    async fn delete(&self, _: &Target, _: &mut State, _: Timestamp) -> Result<Step<()>, Error> {
        Ok(Step::Done(()))
    }

    async fn limits(&self) -> Result<Limits, Error> {
        Ok(Limits::unlimited())
    }

    async fn cost(&self, _: &PoolName, _: &Label) -> Result<Resources, Error> {
        Ok(Resources::default())
    }

    async fn zones(&self, _: &PoolName) -> Result<Vec<Box<str>>, Error> {
        Ok(Vec::new())
    }

    async fn readiness(&self, _: &PoolName, _: &Label, _: Timestamp) -> Result<Readiness, Error> {
        Ok(Readiness::Ready)
    }
}
