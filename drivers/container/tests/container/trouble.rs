//! Containers that do not come up, and runtimes that do not work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hyper::Method;
use nodeyard_driver::{ErrorClass, Machines, Readiness};
use nodeyard_driver_container::{
    ContainerAccess, ContainerImage, ContainerLabelOptions, RuntimeCall, RuntimeCallBody,
    RuntimeCallError, RuntimeResponse, RuntimeTransport, Socket,
};
use nodeyard_testbeds::ContainerRuntime;
use nodeyard_testbeds::containers::Kind;

use crate::common::{
    PATIENCE, chain, count, create, create_again, delete, driver, driver_through, on_both_runtimes,
    options, order,
};

on_both_runtimes!(
    a_container_that_ends_fails_the_launch_with_its_last_words,
    a_container_that_somebody_kills_may_be_tried_again,
    a_container_that_needs_more_memory_says_so,
    a_machine_without_sshd_fails_at_its_boot_timeout,
    what_cannot_start_says_what_to_change,
    a_pull_that_fails_is_remembered_for_a_while,
    a_name_that_somebody_uses_is_not_needed,
    a_container_that_somebody_removes_is_created_again,
    a_successor_takes_over_what_was_begun,
);

fn shell(script: &str) -> Option<Vec<String>> {
    Some(["/bin/sh", "-c", script].map(ToOwned::to_owned).into())
}

/// Neither of them may be waited for until the end of `boot-timeout`, which is an hour here.
async fn a_container_that_ends_fails_the_launch_with_its_last_words(runtime: &ContainerRuntime) {
    let scripts = [
        "echo out; echo no such luck >&2; exit 7",
        "sleep 2; echo no such luck; exit 7",
    ];
    for (number, script) in (1..).zip(scripts) {
        let mut options = options("ends", |label| label.command = shell(script));
        options.boot_timeout = Duration::from_secs(3600);
        let driver = driver(runtime, options);
        let order = order("ends", number);
        let (error, id) = create(&driver, &order).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit code 7"), "{text}");
        assert!(text.contains("no such luck"), "{text}");
        assert_eq!(error.class(), ErrorClass::Permanent, "{text}");
        let id = id.unwrap();
        let evidence = driver.evidence(&order.pool, &order.label, &id);
        assert!(evidence.await.unwrap().unwrap().contains("no such luck"));
        delete(&driver, &order).await;
        assert_eq!(count(&driver, "ends").await, 0);
    }
}

async fn a_container_that_somebody_kills_may_be_tried_again(runtime: &ContainerRuntime) {
    let mut options = options("killed", |label| label.command = shell("exec sleep 3600"));
    options.boot_timeout = Duration::from_secs(3600);
    let driver = driver(runtime, options);
    let order = order("killed", 1);
    let killer = async {
        let named = ["kill", "--signal", "KILL", "np0000000001-killed"];
        while runtime.run(&named).is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let killer = tokio::time::timeout(PATIENCE, killer);
    let (created, killed) = tokio::join!(create(&driver, &order), killer);
    killed.unwrap();
    let (error, _) = created.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry, "{error}");
    assert!(error.to_string().contains("137"), "{error}");
    delete(&driver, &order).await;
}

async fn a_container_that_needs_more_memory_says_so(runtime: &ContainerRuntime) {
    let options = options("hungry", |label| {
        label.memory = Some(16);
        // Keeps what has no lines in memory until the line ends.
        label.command = Some(
            ["/bin/busybox", "tail", "/dev/zero"]
                .map(ToOwned::to_owned)
                .into(),
        );
    });
    let driver = driver(runtime, options);
    // Docker says why it killed the container, but on a busy machine not always in time. Podman does not say it.
    for number in 1..=5 {
        let order = order("hungry", number);
        let (error, _) = create(&driver, &order).await.unwrap_err();
        assert!(error.to_string().contains("`memory`"), "{error}");
        delete(&driver, &order).await;
        if runtime.kind() == Kind::Podman || error.class() == ErrorClass::Permanent {
            return;
        }
    }
    panic!("Docker never said that the container ran out of memory");
}

async fn a_machine_without_sshd_fails_at_its_boot_timeout(runtime: &ContainerRuntime) {
    let mut options = options("deaf", |label| {
        label.command = shell("echo deaf; exec sleep 3600");
    });
    // Long enough to say something on a busy machine.
    options.boot_timeout = Duration::from_secs(15);
    let driver = driver(runtime, options);
    let order = order("deaf", 1);
    let (error, _) = create(&driver, &order).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Failed);
    let text = chain(&error);
    assert!(
        text.contains("deaf") && text.contains("does not answer"),
        "{text}"
    );
    delete(&driver, &order).await;
}

async fn what_cannot_start_says_what_to_change(runtime: &ContainerRuntime) {
    type Change<'a> = &'a dyn Fn(&mut ContainerLabelOptions);
    let cases: [(&str, &str, Change<'_>); 2] = [
        ("no-program", "set `command`", &|label| {
            label.command = Some(vec!["/no/such/program".to_owned()]);
        }),
        ("no-limit", "`ulimits`", &|label| {
            label.ulimits.insert("nofile".to_owned(), 1 << 30);
        }),
    ];
    for (system, remedy, change) in cases {
        let options = options(system, |label| {
            label.access = ContainerAccess::Exec;
            change(label);
        });
        let driver = driver(runtime, options);
        let order = order(system, 1);
        let (error, _) = create(&driver, &order).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(remedy), "{system}: {text}");
        assert_eq!(error.class(), ErrorClass::Permanent, "{text}");
        delete(&driver, &order).await;
        assert_eq!(count(&driver, system).await, 0);
    }
}

async fn a_pull_that_fails_is_remembered_for_a_while(runtime: &ContainerRuntime) {
    // Nobody listens on port 1.
    let reference = "127.0.0.1:1/nothing:12";
    let options = options("pull", |label| {
        label.image = ContainerImage::Reference(reference.into());
    });
    let driver = driver(runtime, options);
    let order = order("pull", 1);
    let ready = || driver.readiness(&order.pool, &order.label);
    assert_eq!(ready().await.unwrap(), Readiness::Ready, "it may be there");
    let (error, id) = create(&driver, &order).await.unwrap_err();
    assert!(error.to_string().contains("pull an image"), "{error}");
    assert_eq!(id, None);
    assert!(matches!(ready().await.unwrap(), Readiness::NotReady(_)));
}

async fn a_name_that_somebody_uses_is_not_needed(runtime: &ContainerRuntime) {
    let name = "np0000000001-names";
    runtime
        .run(&["create", "--name", name, crate::common::IMAGE, "true"])
        .unwrap();
    let options = options("names", |label| label.access = ContainerAccess::Exec);
    let driver = driver(runtime, options);
    let order = order("names", 1);
    create(&driver, &order).await.unwrap();
    delete(&driver, &order).await;
    runtime.run(&["rm", name]).unwrap();
}

/// Removes the first container just before it is started.
#[derive(Debug)]
struct Remover {
    socket: Socket,
    has_removed: AtomicBool,
}

#[async_trait]
impl RuntimeTransport for Remover {
    async fn call(&self, call: RuntimeCall) -> Result<RuntimeResponse, RuntimeCallError> {
        let starts = call.uri.ends_with("/start");
        if starts && !self.has_removed.swap(true, Ordering::SeqCst) {
            let removal = RuntimeCall {
                name: "remove a container",
                method: Method::DELETE,
                uri: call.uri.replace("/start", "?force=true"),
                body: RuntimeCallBody::Empty,
                limit: PATIENCE,
            };
            assert!(self.socket.call(removal).await?.status < 300);
        }
        self.socket.call(call).await
    }
}

async fn a_container_that_somebody_removes_is_created_again(runtime: &ContainerRuntime) {
    let options = options("removed", |label| label.access = ContainerAccess::Exec);
    let remover = Remover {
        socket: Socket::new(runtime.socket()),
        has_removed: AtomicBool::new(false),
    };
    let driver = driver_through(options, Arc::new(remover));
    let order = order("removed", 1);
    let (error, id) = create(&driver, &order).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry, "{error}");
    assert_eq!(id, None);
    create_again(&driver, &order).await;
    assert_eq!(count(&driver, "removed").await, 1);
    delete(&driver, &order).await;
}

/// A process that dies leaves a container that its successor finds by the labels.
async fn a_successor_takes_over_what_was_begun(runtime: &ContainerRuntime) {
    let system = "successor";
    let make = || {
        driver(
            runtime,
            options(system, |label| label.access = ContainerAccess::Exec),
        )
    };
    let order = order(system, 1);
    let first = create(&make(), &order).await.unwrap();
    let successor = make();
    let second = create_again(&successor, &order).await;
    assert_eq!(second.external_id, first.external_id);
    delete(&successor, &order).await;
}

#[tokio::test]
async fn a_runtime_that_is_not_there_is_missed_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let socket = Socket::new(directory.path().join("none.sock"));
    let driver = driver_through(options("none", |_| {}), Arc::new(socket));
    let error = driver.limits().await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry);
    assert!(
        error.to_string().contains("systemctl start podman.socket"),
        "{error}"
    );
}

/// Another program listens at the socket and never responds.
#[tokio::test]
async fn a_silent_runtime_is_not_waited_for_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("silent.sock");
    let _listener = tokio::net::UnixListener::bind(&path).unwrap();
    let mut options = options("silent", |_| {});
    options.call_timeout = Duration::from_millis(200);
    let driver = driver_through(options, Arc::new(Socket::new(path)));
    let listed = tokio::time::timeout(PATIENCE, driver.list()).await;
    let error = listed.expect("it waits").unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry);
}
