//! The bed with which the tenth driver passes the kit.
#![allow(clippy::unwrap_used, clippy::panic)]

mod driver;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{Bed, Faults, Setup, Suite, explore};
use nodeyard_driver::{BootImage, Driver, Owner, SystemId};
use nodeyard_model::{ProviderName, Resources};
use tokio::time::sleep;

use driver::{Client, Cloud, NamedDriver};

/// What the kit needs: the cloud, and how to make a driver.
struct NamedBed {
    owner: Owner,
    cloud: Arc<Cloud>,
}

impl NamedBed {
    fn new() -> Self {
        let cloud = Cloud::default();
        cloud.start("theirs.names.0000000001").unwrap();
        let owner = Owner {
            system: SystemId::new("ours"),
            provider: ProviderName::new("names").unwrap(),
        };
        Self {
            owner,
            cloud: Arc::new(cloud),
        }
    }
}

#[async_trait]
impl Bed for NamedBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        Box::new(NamedDriver {
            owner: self.owner.clone(),
            pool: "main".into(),
            cloud: Client {
                cloud: Arc::clone(&self.cloud),
                faults: faults.clone(),
            },
        })
    }

    fn setup(&self) -> Setup {
        Setup {
            owner: self.owner.clone(),
            pool: "main".into(),
            label: "small".into(),
            image: BootImage::Cloud,
            upload: None,
        }
    }

    async fn exists(&self) -> BTreeSet<String> {
        self.cloud.names()
    }

    async fn used(&self) -> Resources {
        let count = i64::try_from(self.cloud.names().len()).unwrap();
        Resources::new(0, count, 0)
    }

    async fn wait(&self, time: Duration) {
        sleep(time).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_tenth_driver_passes_the_kit() {
    let suite = Suite {
        pairs: Some(17),
        ..Suite::default()
    };
    let result = explore(suite, || async { NamedBed::new() }).await;
    let report = result.unwrap_or_else(|failure| panic!("{failure}: {}", failure.violation));
    assert!(report.runs > 100, "{report:?}");
}
