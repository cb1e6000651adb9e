//! The tenth driver in a launcher, which finds it in the table of kinds and knows nothing else about it.

#[path = "../../../driver/tests/tenth/driver.rs"]
mod driver;

use std::sync::Arc;

use nodeyard_config::Fake;
use nodeyard_driver::kit::Faults;
use nodeyard_driver::{Driver, Error};
use nodeyard_driver_common::{
    DriverContext, DriverKind, DriverKinds, LabelSettings, PoolSettings, ProviderSettings,
};
use nodeyard_model::{Label, NodeState};
use nodeyard_nodescan::NetworkScanner;

use crate::bed::{Running, Store, eventually, logs, nodes, quick};
use crate::cloud::SMALL;
use crate::fake::config;
use crate::zuul::Zuul;

use driver::{Client, Cloud, NamedDriver};

#[derive(Debug)]
struct NamedKind(Arc<Cloud>);

impl DriverKind for NamedKind {
    /// The keys of `driver: fake` have what this driver needs.
    type Section = Fake;

    fn name(&self) -> &'static str {
        "fake"
    }

    fn settings(&self, section: &Fake) -> Result<ProviderSettings, Error> {
        let settings = &section.settings;
        let pools = settings.pools.iter().map(|pool| {
            let labels = pool.labels.iter().map(|label| {
                let name = Label::new(label.name.as_str());
                (name, LabelSettings::without_image())
            });
            PoolSettings::of(&pool.common, [], labels.collect())
        });
        Ok(ProviderSettings::new(
            settings.launch_timeout,
            settings.boot_timeout,
            settings.launch_retries,
            pools.collect(),
        ))
    }

    fn make(&self, _: &Fake, context: DriverContext<'_>) -> Result<Arc<dyn Driver>, Error> {
        Ok(Arc::new(NamedDriver {
            owner: context.owner,
            pool: "main".into(),
            cloud: Client {
                cloud: Arc::clone(&self.0),
                faults: Faults::none(),
            },
        }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenth_driver_serves_a_launcher_from_its_configuration() {
    logs();
    let store = Store::embedded();
    let cloud = Arc::new(Cloud::default());
    cloud.start("theirs").unwrap();
    let kinds = DriverKinds::default().with(NamedKind(Arc::clone(&cloud)));
    let scanner = Arc::new(NetworkScanner::default());
    let tree = store.session().await;
    let text = config(2, SMALL);
    let launcher = Running::start_with_kinds(tree, kinds, scanner, &text, quick()).await;
    let zuul = Zuul::new(store.session().await);
    let id = zuul.submit(&["small", "small"]).await;
    let mut nodeset = zuul.accept(id).await;
    let names = cloud.names();
    assert_eq!(names.len(), 3, "{names:?}");
    for (_, held) in &nodeset.nodes {
        let machine = held.value.external_id.as_string().unwrap();
        assert!(names.contains(&machine), "{machine} is not in {names:?}");
    }
    zuul.set_state(&mut nodeset, NodeState::Used).await;
    zuul.unlock(nodeset).await;
    eventually("the machines are deleted", || async {
        let is_clean = nodes(&zuul.registry).await.is_empty() && cloud.names().len() == 1;
        is_clean.then_some(())
    })
    .await;
    launcher.stop().await;
}
