//! The same on a cloud that fails: the services are real, and a gateway in front of them injects the faults.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nodeyard_testbeds::openstack::{Calls, Fault, Service};
use serde_json::{Value, json};

use super::bed::{Configuration, Yard, gearmand};
use super::images;
use crate::bed::{run_all, take, wait_until};

const ADDRESSED: Configuration = Configuration {
    provider: "    cloud-images: [{name: disk, username: zuul}]\n    clean-floating-ips: true",
    pool: "        auto-floating-ip: true",
    image: "cloud-image: disk",
};

const BY_NAME: Configuration = Configuration {
    pool: "        auto-floating-ip: false",
    ..ADDRESSED
};

fn compute(method: &str, path: &str) -> Calls {
    Calls::of(Service::Compute).method(method).path(path)
}

#[test]
fn requests_are_served_and_nothing_is_left_while_calls_fail() {
    let Some(mut yard) = Yard::new("trouble") else {
        return;
    };
    yard.project.create_image("disk", json!({})).unwrap();
    yard.project.connect_outside().unwrap();
    let gateway = &yard.gateway;
    let network = |method, path| Calls::of(Service::Network).method(method).path(path);
    for (calls, fault) in [
        (compute("POST", "/servers").nth(0), Fault::AnswerLost),
        (compute("POST", "/servers").nth(2), Fault::CutBefore),
        (
            compute("POST", "/servers").nth(3),
            Fault::status(Service::Compute, 500),
        ),
        (
            compute("POST", "/servers").nth(5),
            Fault::too_many(Service::Compute, 1),
        ),
        (
            compute("POST", "/servers").nth(6),
            Fault::over_quota(Service::Compute),
        ),
        (
            compute("GET", "/servers/detail").from(2).times(2),
            Fault::status(Service::Compute, 503),
        ),
        (compute("GET", "/servers/detail").nth(6), Fault::CutBefore),
        (
            compute("GET", "/servers/detail").nth(8),
            Fault::status(Service::Compute, 401),
        ),
        (compute("DELETE", "/servers/{id}").nth(0), Fault::AnswerLost),
        (
            compute("DELETE", "/servers/{id}").nth(1),
            Fault::status(Service::Compute, 409),
        ),
        (network("POST", "/floatingips").nth(0), Fault::AnswerLost),
        (
            network("POST", "/floatingips").nth(1),
            Fault::over_quota(Service::Network),
        ),
        (
            network("DELETE", "/floatingips/{id}").nth(0),
            Fault::status(Service::Network, 500),
        ),
    ] {
        gateway.fail(calls, fault);
    }
    yard.launch(&ADDRESSED.text());
    let submit = |count: usize| {
        let labels = vec!["small"; count];
        (yard.zuul.submit(&labels).unwrap(), count)
    };
    run_all(&yard.zuul, [1, 2, 1, 2].map(submit).into());
    // In the middle of it all every token becomes worthless.
    yard.gateway.expire_tokens();
    run_all(&yard.zuul, [1, 1].map(submit).into());
    yard.wait_until_empty();
    assert!(yard.gateway.failures() >= 8, "{}", yard.gateway.failures());
}

/// The id of a server, once it was seen.
type Seen = Arc<Mutex<Option<Value>>>;

/// From now on every list and every look shows the first server that was seen as this makes of it.
fn show_first_server(yard: &Yard, change: impl Fn(&mut Value) + Send + Sync + 'static) -> Seen {
    let seen = Seen::default();
    let first = Arc::clone(&seen);
    let change = move |server: &mut Value| {
        let mut first = first.lock().unwrap();
        if *first.get_or_insert_with(|| server["id"].clone()) == server["id"] {
            change(server);
        }
    };
    let change = move |answer: &mut Value| match answer.get_mut("servers") {
        Some(list) => list.as_array_mut().unwrap().iter_mut().for_each(&change),
        None => answer.get_mut("server").into_iter().for_each(&change),
    };
    let shown: Arc<dyn Fn(&mut Value) + Send + Sync> = Arc::new(change);
    for path in ["/servers/detail", "/servers/{id}"] {
        let fault = Fault::Altered(Arc::clone(&shown));
        yard.gateway.fail(compute("GET", path), fault);
    }
    seen
}

#[test]
fn a_server_that_fails_is_made_again_elsewhere_or_later() {
    let Some(mut yard) = Yard::new("broken") else {
        return;
    };
    yard.project.create_image("disk", json!({})).unwrap();
    show_first_server(&yard, |server| {
        server["status"] = json!("ERROR");
        server["fault"] = json!({"code": 500, "message": "the hypervisor is on fire"});
    });
    yard.launch(&BY_NAME.text());
    let (taken, node) = yard.take_one("small");
    let log = yard.launcher_log();
    assert!(log.contains("the hypervisor is on fire"), "{log}");
    yard.give_back(&taken, &node["id"]);
    yard.wait_until_empty();
}

#[test]
fn a_server_that_never_boots_is_given_up_and_made_again() {
    let Some(mut yard) = Yard::new("stuck") else {
        return;
    };
    yard.project.create_image("disk", json!({})).unwrap();
    show_first_server(&yard, |server| server["status"] = json!("BUILD"));
    yard.launch(
        &Configuration {
            provider: "    cloud-images: [{name: disk, username: zuul}]
    launch-timeout: 45
    launch-retries: 20",
            ..BY_NAME
        }
        .text(),
    );
    let (taken, node) = yard.take_one("small");
    yard.give_back(&taken, &node["id"]);
    yard.wait_until_empty();
}

#[test]
fn a_server_that_vanishes_while_it_boots_is_made_again() {
    let Some(mut yard) = Yard::new("vanished") else {
        return;
    };
    yard.project.create_image("disk", json!({})).unwrap();
    let seen = show_first_server(&yard, |server| server["status"] = json!("BUILD"));
    yard.launch(&BY_NAME.text());
    let waiting = yard.zuul.submit(&["small"]).unwrap();
    let mut booting = None;
    wait_until("a server boots", || {
        booting = seen.lock().unwrap().clone();
        booting.is_some()
    });
    let booting = booting.unwrap();
    let path = format!("/servers/{}", booting.as_str().unwrap());
    let member = yard.project.member();
    member.delete(Service::Compute, &path).unwrap();
    let node = take(&yard.zuul, &waiting).remove(0);
    assert_ne!(node["external_id"], booting);
    yard.give_back(&waiting, &node["id"]);
    yard.wait_until_empty();
}

#[test]
fn an_upload_that_is_cut_is_made_again_and_leaves_nothing() {
    let Some(mut yard) = Yard::new("cut") else {
        return;
    };
    let jobs = gearmand();
    let image = |method, path| Calls::of(Service::Image).method(method).path(path);
    for (calls, fault) in [
        (image("PUT", "/file").nth(0), Fault::CutUpload(100_000)),
        (image("PUT", "/file").nth(1), Fault::AnswerLost),
        (
            image("POST", "/images").nth(0),
            Fault::status(Service::Image, 503),
        ),
        (image("POST", "/images").nth(1), Fault::AnswerLost),
        (
            image("DELETE", "/images/{id}").nth(0),
            Fault::status(Service::Image, 500),
        ),
        (
            Calls::of(Service::Image).from(3).times(1),
            Fault::Delay(Duration::from_millis(500)),
        ),
    ] {
        yard.gateway.fail(calls, fault);
    }
    let program = yard.image_program(
        r#"qemu-img create -q -f "$format" "$file" 4M; qemu-io -c 'write -P 7 0 1M' "$file" > /dev/null"#,
    );
    yard.launch(&images::launcher());
    yard.build(&jobs, &images::builder(&program));
    let (waiting, node) = yard.take_one_when_there_is_an_image("small");
    // The failed attempts are gone, or go.
    let image = yard.only_active_image();
    wait_until("the server has the image", || {
        yard.server(&node)["image"]["id"] == image["id"]
    });
    assert!(yard.gateway.failures() >= 2);
    yard.give_back(&waiting, &node["id"]);
    yard.wait_until_empty();
}
