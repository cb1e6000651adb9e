//! Simulated clouds, and the configuration that uses them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_config::Fake;
use nodeyard_driver::{Error, Poll};
use nodeyard_driver_common::DriverKinds;
use nodeyard_driver_fake::{
    Connector, FakeKind, FlavorOptions, InProcess, Simulate, Span, Transport, World,
};
use nodeyard_model::Clock;

const PROVIDERS: [&str; 2] = ["east", "west"];

/// The clouds, which outlive the launchers of a test.
#[derive(Debug)]
pub(crate) struct Clouds(Arc<World>);

impl Clouds {
    pub(crate) fn new() -> Arc<Self> {
        let simulate = Simulate {
            boot_time: Span::exactly(Duration::from_millis(20)),
            delete_time: Span::exactly(Duration::from_millis(10)),
            flavors: vec![FlavorOptions {
                name: "tiny".to_owned(),
                ram: 2048,
                vcpus: 2,
                disk: 20,
            }],
            images: vec!["trixie".to_owned()],
            ..Simulate::default()
        };
        let options = PROVIDERS.map(|name| (name.to_owned(), simulate.clone()));
        let world = World::new(HashMap::from(options), Clock::system());
        Arc::new(Self(Arc::new(world)))
    }

    /// How many servers there are.
    pub(crate) async fn servers(&self) -> usize {
        let mut count = 0;
        for provider in PROVIDERS {
            let cloud = InProcess::new(Arc::clone(&self.0), provider);
            let list = cloud.call("list_servers", b"{}".to_vec()).await.unwrap();
            let list: Vec<serde_json::Value> = serde_json::from_str(list.get()).unwrap();
            count += list.len();
        }
        count
    }
}

/// Each provider with its labels.
pub(crate) fn config(max_servers: usize, providers: &[(&str, &[&str])]) -> String {
    let mut text = "labels:\n".to_owned();
    let mut labels: Vec<&str> = providers
        .iter()
        .flat_map(|(_, labels)| labels.iter().copied())
        .collect();
    labels.sort_unstable();
    labels.dedup();
    for label in labels {
        text += &format!("  - {{name: {label}}}\n");
    }
    text += "providers:\n";
    for (provider, labels) in providers {
        text += &format!(
            "  - name: {provider}\n    driver: fake\n    rate: 0\n    cloud-images:\n      - {{name: trixie, username: \
             debian, python-path: /usr/bin/python3}}\n    pools:\n      - name: main\n        max-servers: \
             {max_servers}\n        labels:\n"
        );
        for label in *labels {
            text +=
                &format!("          - {{name: {label}, cloud-image: trixie, flavor-name: tiny}}\n");
        }
    }
    text
}

/// One provider with two labels.
pub(crate) fn small_and_large(max_servers: usize) -> String {
    config(max_servers, &[("east", &["small", "large"])])
}

impl Connector for Clouds {
    fn connect(&self, provider: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        Ok(Arc::new(InProcess::new(Arc::clone(&self.0), provider)))
    }
}

/// Returns the drivers of the clouds.
pub(crate) fn kinds(clouds: &Arc<Clouds>) -> DriverKinds {
    let poll = Poll {
        least: Duration::from_millis(5),
        most: Duration::from_millis(50),
    };
    let fake = FakeKind::new(Arc::clone(clouds) as _);
    DriverKinds::default().with(fake.with_poll(poll))
}
