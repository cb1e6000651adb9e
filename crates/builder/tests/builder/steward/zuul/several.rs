//! Several stewards and several workers, and one image.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// An API without builds that delays a response until a concurrent request arrives.
struct Patient {
    server: WebServer,
    most: Arc<AtomicUsize>,
}

impl Patient {
    fn start() -> Self {
        let most: Arc<AtomicUsize> = Arc::default();
        let (now, highest) = (AtomicUsize::new(0), Arc::clone(&most));
        let server = WebServer::start(move |asked| {
            if !asked.target.starts_with("/api/tenant/infra/builds?") {
                return Reply::new(404, "");
            }
            now.fetch_add(1, Ordering::SeqCst);
            let end = Instant::now() + Duration::from_secs(2);
            loop {
                let here = now.load(Ordering::SeqCst);
                highest.fetch_max(here, Ordering::SeqCst);
                if here > 1 || Instant::now() > end {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            now.fetch_sub(1, Ordering::SeqCst);
            json_reply(&json!([]))
        });
        let server = server.unwrap();
        Self { server, most }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stewards_do_not_ask_at_the_same_time_nor_one_after_the_other() {
    let zuul = Patient::start();
    let test = ZuulTest::new(TENANT).await;
    let text = test.text.replace("poll-interval: 5", "poll-interval: 3600");
    let text = text.replace(&test.zuul.server.url("/"), &zuul.server.url("/"));
    let test = ZuulTest { text, ..test };
    let worker = test.worker().await;
    let stewards = [
        test.steward().await,
        test.steward().await,
        test.steward().await,
    ];
    let records = Records::of(&test.store).await;
    let images = records.0.images();
    for round in 1..=3 {
        eventually("the question is answered", || async {
            let why = test.why(&records).await;
            let answered = zuul.server.asked().len() >= round;
            (answered && why.contains("no successful build")).then_some(())
        })
        .await;
        images.delete_build_request(&image()).await.unwrap();
        records.request().await;
    }
    for steward in stewards {
        steward.stop().await;
    }
    assert_eq!(zuul.most.load(Ordering::SeqCst), 1);
    assert!(
        zuul.server.asked().len() <= 4,
        "each request is one question"
    );
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_workers_fetches_and_the_others_do_not() {
    let test = ZuulTest::new(TENANT).await;
    let other = WorkerHost::new();
    let (here, there) = (test.host.0.path(), other.0.path());
    let here = here.display().to_string();
    let text = test.text.replace(&here, &there.display().to_string());
    test.zuul.publish("aaaa", |_| {});
    let workers = [
        test.worker().await,
        RunningWorker::start_at("builder02.example.com", &test.server, &test.clouds, &text).await,
    ];
    let stewards = [test.steward().await, test.steward().await];
    let records = Records::of(&test.store).await;
    for (uuid, builds) in [("aaaa", 1), ("bbbb", 2), ("cccc", 2), ("dddd", 2)] {
        if uuid != "aaaa" {
            test.zuul.publish(uuid, |_| {});
            records.request().await;
        }
        let (id, build) = eventually("it is imported", || ready(&records, uuid)).await;
        records.settled(builds, &test.clouds).await;
        let path = format!("/artifacts/{uuid}.qcow2.zst");
        let asked = test.zuul.server.asked();
        let fetched = asked.iter().filter(|asked| asked.method == "GET");
        let fetched = fetched.filter(|asked| asked.target == path);
        assert_eq!(fetched.count(), 1, "{uuid} is fetched once");
        let name = format!("images/ubuntu-{id}.qcow2");
        let holds = |host: &WorkerHost| host.0.path().join(&name).exists();
        let holder = match (holds(&test.host), holds(&other)) {
            (true, false) => "builder01.example.com",
            (false, true) => "builder02.example.com",
            both => panic!("{uuid}: {both:?}"),
        };
        assert_eq!(build.builder.as_deref(), Some(holder));
    }
    eventually("nothing else is left", || async {
        (test.host.files() + other.files() == 2).then_some(())
    })
    .await;
    for steward in stewards {
        steward.stop().await;
    }
    for worker in workers {
        worker.stop().await;
    }
}
