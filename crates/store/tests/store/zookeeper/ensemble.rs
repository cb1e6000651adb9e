//! Loss of one of three servers.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_store::zookeeper::{Options, ZooKeeperTlsFiles};
use nodeyard_store::{CreateMode, Error, Tree, TreePath, WatchEvent};
use nodeyard_testbeds::Ensemble;

use super::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_on_when_the_leader_is_killed() {
    let ensemble = Arc::new(blocking(|| Ensemble::start(3).unwrap()).await);
    let certificates = ensemble.certificates();
    let hosts = ensemble.servers().iter().map(|s| host(s.tls_port()));
    let tree = connect(Options {
        session_timeout: Duration::from_secs(60),
        tls: Some(ZooKeeperTlsFiles {
            ca: certificates.ca.clone(),
            cert: certificates.client.cert.clone(),
            key: certificates.client.key.clone(),
            verify_hostname: true,
        }),
        ..Options::new(hosts.collect())
    })
    .await;
    let session = session_id(&*tree).await;
    let mut watcher = tree.watch(&TreePath::root()).await.unwrap();

    let mut acknowledged = Vec::new();
    for i in 0..300 {
        if i == 100 {
            let ensemble = ensemble.clone();
            blocking(move || ensemble.leader().unwrap().kill()).await;
        }
        let record = path(&format!("/{i:03}"));
        loop {
            match within(
                "a write",
                tree.create(&record, data(""), CreateMode::Ephemeral),
            )
            .await
            {
                Ok(_) => break,
                Err(Error::NodeExists { .. }) => break,
                Err(Error::ConnectionLoss) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        acknowledged.push(record.name().to_owned());
    }
    assert_eq!(session_id(&*tree).await, session);

    // A client that knows only one of the two survivors sees all of it.
    let survivor = {
        let ensemble = ensemble.clone();
        blocking(move || ensemble.leader().unwrap().port()).await
    };
    let observer = connect(options(survivor)).await;
    observer.sync().await.unwrap();
    let mut names = observer.children(&TreePath::root()).await.unwrap().names;
    names.retain(|name| name != "zookeeper");
    assert_eq!(names, acknowledged);

    let last = path("/last");
    observer
        .create(&last, data(""), CreateMode::Persistent)
        .await
        .unwrap();
    until_event(&mut watcher, &WatchEvent::Created(last)).await;
}
