//! A real cloud on a bad day: the gateway lets its calls fail.

use std::time::Duration;

use nodeyard_driver::{ErrorClass, Machines as _};
use nodeyard_driver_openstack::{LabelOptions, Options};
use nodeyard_testbeds::openstack::{Calls, Fault, Gateway, Project, Service};
use serde_json::json;

use crate::machines::common::{
    change, cloud, create, delete_node, driver, node, options, options_with_floating_ips, order,
    owner,
};

struct Yard {
    project: Project,
    gateway: Gateway,
}

impl Yard {
    fn new(purpose: &str) -> Option<Self> {
        let cloud = cloud()?;
        let project = cloud.project(purpose).unwrap();
        project.create_image("disk", json!({})).unwrap();
        project.connect_outside().unwrap();
        let gateway = Gateway::start(cloud).unwrap();
        Some(Self { project, gateway })
    }

    fn driver(&self, options: Options) -> nodeyard_driver_openstack::OpenStackDriver {
        driver(
            options,
            &self.project.clouds_yaml_through(&self.gateway).unwrap(),
        )
    }

    /// One server, and the driver is none the wiser.
    async fn makes_one(&self, system: &str) {
        let owner = owner(system);
        let driver = self.driver(options_with_floating_ips(owner.clone()));
        create(&driver, &order(&owner, node(1))).await.unwrap();
        assert_eq!(self.project.servers().unwrap().len(), 1);
        assert_eq!(self.project.floating_ips().unwrap().len(), 1);
        delete_node(&driver, node(1)).await;
        assert!(self.project.servers().unwrap().is_empty());
        assert!(self.project.floating_ips().unwrap().is_empty());
    }
}

fn label(options: &mut Options, with: impl Fn(&mut LabelOptions)) {
    change(options, |pool| pool.labels.iter_mut().for_each(with));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_makes_no_second_server() {
    let Some(yard) = Yard::new("lost") else {
        return;
    };
    let post = |service, path| Calls::of(service).method("POST").path(path).nth(0);
    yard.gateway
        .fail(post(Service::Compute, "/servers"), Fault::AnswerLost);
    yard.gateway
        .fail(post(Service::Network, "/floatingips"), Fault::AnswerLost);
    let delete = Calls::of(Service::Compute).method("DELETE").nth(0);
    yard.gateway.fail(delete, Fault::AnswerLost);
    yard.makes_one("lost").await;
    assert_eq!(yard.gateway.failures(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_cloud_and_an_expired_token_are_nothing_to_speak_of() {
    let Some(yard) = Yard::new("busy") else {
        return;
    };
    let gateway = &yard.gateway;
    gateway.fail(
        Calls::of(Service::Identity).nth(0),
        Fault::status(Service::Identity, 503),
    );
    gateway.fail(
        Calls::of(Service::Compute).nth(1),
        Fault::too_many(Service::Compute, 1),
    );
    gateway.fail(
        Calls::of(Service::Compute).nth(3),
        Fault::status(Service::Compute, 503),
    );
    gateway.fail(Calls::of(Service::Network).nth(0), Fault::CutBefore);
    gateway.fail(
        Calls::of(Service::Image).nth(0),
        Fault::status(Service::Image, 503),
    );
    gateway.fail(
        Calls::of(Service::Network).nth(2),
        Fault::status(Service::Network, 401),
    );
    yard.makes_one("busy").await;
    assert_eq!(gateway.failures(), 6);
    gateway.heal();
    gateway.expire_tokens();
    yard.makes_one("busy").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_quota_is_told_as_such_by_each_service() {
    let Some(yard) = Yard::new("over") else {
        return;
    };
    let owner = owner("over");
    yard.project.set_quota(&[("instances", 0)]).unwrap();
    let driver = yard.driver(options_with_floating_ips(owner.clone()));
    let error = create(&driver, &order(&owner, node(1))).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Quota, "{error}");
    assert!(
        error.to_string().contains("Quota exceeded for instances"),
        "{error}"
    );
    yard.project.set_quota(&[("instances", 10)]).unwrap();
    yard.project
        .set_network_quota(&[("floatingip", 0)])
        .unwrap();
    let error = create(&driver, &order(&owner, node(2))).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Quota, "{error}");
    delete_node(&driver, node(2)).await;
    assert!(yard.project.servers().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_error_says_why() {
    let Some(yard) = Yard::new("error") else {
        return;
    };
    let owner = owner("error");
    let mut options = options_with_floating_ips(owner.clone());
    label(&mut options, |label| {
        label.flavor_name = Some("impossible".into());
    });
    let driver = yard.driver(options);
    let error = create(&driver, &order(&owner, node(1))).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Capacity, "{error}");
    assert!(error.to_string().contains("No valid host"), "{error}");
    delete_node(&driver, node(1)).await;
    assert!(yard.project.servers().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_exist_is_named_before_anything_is_made() {
    let Some(yard) = Yard::new("unknown") else {
        return;
    };
    type Spoil = fn(&mut Options);
    let wrong: [(&str, Spoil); 5] = [
        ("flavor \"hug\"", |options| {
            label(options, |label| label.flavor_name = Some("hug".into()));
        }),
        ("network \"nett\"", |options| {
            label(options, |label| label.networks = vec!["nett".into()]);
        }),
        ("key pair \"nobody\"", |options| {
            label(options, |label| label.key_name = Some("nobody".into()));
        }),
        ("security group \"open\"", |options| {
            change(options, |pool| pool.security_groups = vec!["open".into()]);
        }),
        ("availability zone \"moon\"", |options| {
            change(options, |pool| {
                pool.availability_zones = vec!["moon".into()];
            });
        }),
    ];
    for (named, spoil) in wrong {
        let mut options = options(owner("unknown"));
        spoil(&mut options);
        let driver = yard.driver(options);
        let error = driver
            .cost(&"main".into(), &"small".into())
            .await
            .unwrap_err();
        assert_eq!(error.class(), ErrorClass::Permanent, "{error}");
        let text = error.to_string();
        assert!(text.contains(named) && text.contains("there "), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_and_missing_services_are_told() {
    let Some(yard) = Yard::new("wrong") else {
        return;
    };
    let good = std::fs::read_to_string(yard.project.clouds_yaml()).unwrap();
    let file = yard.project.directory().join("wrong.yaml");
    let fails = async |text: String| {
        std::fs::write(&file, text).unwrap();
        let driver = driver(options(owner("wrong")), &file);
        driver.limits().await.unwrap_err()
    };
    let password = format!("password: {}", yard.project.login().password);
    let error = fails(good.replace(&password, "password: not-it")).await;
    assert_eq!(error.class(), ErrorClass::Credentials, "{error}");
    assert!(!error.to_string().contains("not-it"), "{error}");
    let region = format!("region_name: {}", yard.project.login().region);
    let error = fails(good.replace(&region, "region_name: Atlantis")).await;
    assert_eq!(error.class(), ErrorClass::Permanent, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("Atlantis") && text.contains(&yard.project.login().region),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_that_fails_now_and_then_still_gives_servers() {
    let Some(yard) = Yard::new("flaky") else {
        return;
    };
    for number in (3..40).step_by(7) {
        yard.gateway
            .fail(Calls::all().nth(number), Fault::CutBefore);
        yard.gateway
            .fail(Calls::all().nth(number + 2), Fault::AnswerLost);
    }
    yard.gateway.fail(
        Calls::all().nth(11),
        Fault::Delay(Duration::from_millis(500)),
    );
    yard.makes_one("flaky").await;
    yard.makes_one("flaky").await;
}
