//! Several job servers, of which one has no workers.

use std::sync::Arc;

use nodeyard_builder::jobs::Function;
use nodeyard_builder::steward::NoopStewardEvents;
use nodeyard_gearman::client::AdminClient;
use nodeyard_image::ImageId;
use nodeyard_testbeds::gearman::Kind;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::steward::fixtures::{
    PATIENCE, Records, RunningSteward, Store, TWO_PROVIDERS, TestJobServer, eventually, impatient,
    logs,
};
use crate::steward::worker::{ScriptedCloud, ScriptedWorker};

/// Returns the numbers of build jobs and of registered workers on a server.
async fn builds_on(server: &TestJobServer) -> Option<(u64, u64)> {
    let mut admin = AdminClient::connect(&server.endpoint, PATIENCE)
        .await
        .ok()?;
    let mut listed = admin.status().await.ok()?.into_iter();
    let builds = listed.find(|listed| listed.function == "image-build:ubuntu")?;
    Some((builds.total, builds.workers))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_nobody_can_take_is_given_up_though_others_offer_the_same_elsewhere() {
    logs();
    let (store, cloud) = (Store::embedded(), ScriptedCloud::default());
    let (deserted, other) = (TestJobServer::start().await, TestJobServer::start().await);
    // It offers builds on the first server, and never asks for one.
    let mut idle = TcpStream::connect(("127.0.0.1", deserted.port))
        .await
        .unwrap();
    idle.write_all(b"\0REQ\0\0\0\x01\0\0\0\x12image-build:ubuntu")
        .await
        .unwrap();
    eventually("builds are offered", || async {
        (builds_on(&deserted).await? == (0, 1)).then_some(())
    })
    .await;
    let worker = ScriptedWorker::start(&other, &cloud, &["ubuntu"]).await;
    let records = Records::of(&store).await;
    let servers = vec![deserted.endpoint.clone(), other.endpoint.clone()];
    let tree = store.session().await;
    let events = Arc::new(NoopStewardEvents);
    let steward = RunningSteward::start_at(tree, servers, TWO_PROVIDERS, events, impatient());
    eventually("the build is asked for there", || async {
        (builds_on(&deserted).await? == (1, 1)).then_some(())
    })
    .await;
    drop(idle);
    records.settled(1, &cloud).await;
    assert_eq!(worker.calls("image-build:"), 1);
    steward.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_of_images_that_are_gone_do_not_stay_on_the_job_server() {
    logs();
    for server in [
        TestJobServer::start().await,
        TestJobServer::foreign(Kind::Gearmand),
    ] {
        let (store, cloud) = (Store::embedded(), ScriptedCloud::default());
        let worker = ScriptedWorker::start(&server, &cloud, &["ubuntu"]).await;
        let gone: ImageId = "0123456789abcdef0123456789abcdef".parse().unwrap();
        let functions = [Function::Info, Function::Upload, Function::Delete];
        let functions = functions.map(|function| function(gone.clone()));
        let listed = || async {
            let admin = AdminClient::connect(&server.endpoint, PATIENCE).await;
            let listed = admin.ok()?.status().await.ok()?.into_iter();
            let gone = gone.to_string();
            Some(listed.filter(|line| line.function.ends_with(&gone)).count())
        };
        functions.iter().for_each(|function| worker.offer(function));
        eventually("they are listed", || async {
            (listed().await? == 3).then_some(())
        })
        .await;
        for function in &functions {
            worker.withdraw(function);
        }
        let steward = RunningSteward::start(&store, &server, TWO_PROVIDERS).await;
        eventually("they are listed no more", || async {
            (listed().await? == 0).then_some(())
        })
        .await;
        Records::of(&store).await.settled(1, &cloud).await;
        steward.stop().await;
        worker.stop().await;
    }
}
