//! Lives of servers on the real services.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{Collected, ErrorClass, Machines as _, Readiness, ResourceKind, Target};
use nodeyard_driver_openstack::{ImageChoice, LabelImage};
use nodeyard_model::{ResourceName, Resources};
use nodeyard_testbeds::openstack::{Gateway, Service};
use serde_json::json;
use tokio::task::JoinSet;

use crate::machines::common::{
    change, cloud, connected_project, create, delete, delete_node, driver, eventually, node,
    options, options_with_floating_ips, order, owner, project,
};

const PUBLIC_KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBAiCJn5SkJBlwEMtKhKFGTrOOyZSfhJ9T1sqAtAqZ5u zuul";

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_made_described_and_deleted() {
    let Some(project) = connected_project("life") else {
        return;
    };
    let key = json!({"keypair": {"name": "zuul", "public_key": PUBLIC_KEY}});
    project
        .member()
        .post(Service::Compute, "/os-keypairs", &key)
        .unwrap();
    let owner = owner("life");
    let mut options = options_with_floating_ips(owner.clone());
    for image in &mut options.cloud.cloud_images {
        image.config_drive = Some(true);
    }
    change(&mut options, |pool| {
        pool.security_groups = vec!["default".into()];
        pool.availability_zones = vec!["nova".into()];
        for label in &mut pool.labels {
            label.key_name = Some("zuul".into());
            label.dynamic_instance_properties =
                [("tenant".to_owned(), "{request.tenant_name}".to_owned())].into();
        }
    });
    let driver = driver(options, &project.clouds_yaml());
    let cost = driver.cost(&"main".into(), &"small".into()).await.unwrap();
    assert_eq!(cost, Resources::new(1, 1, 2048));
    assert_eq!(driver.zones(&"main".into()).await.unwrap(), ["nova".into()]);
    let mut order = order(&owner, node(1));
    order.az = Some("nova".into());
    order.request.tenant_name = Some("acme".into());
    let instance = create(&driver, &order).await.unwrap();

    let servers = project.servers().unwrap();
    let [server] = &servers[..] else {
        panic!("{servers:?}")
    };
    assert_eq!(server["name"], "np0000000001");
    assert_eq!(server["key_name"], "zuul");
    assert_eq!(server["config_drive"], "True");
    assert_eq!(server["security_groups"][0]["name"], "default");
    let metadata = &server["metadata"];
    for (key, value) in [
        ("nodepool_node_id", "0000000001"),
        ("nodepool_provider_name", "cloud"),
        ("nodepool_pool_name", "main"),
        ("nodeyard_system_id", "life"),
        ("groups", "cloud,disk,small"),
        ("purpose", "test"),
        ("tenant", "acme"),
    ] {
        assert_eq!(metadata[key], value, "{metadata}");
    }
    assert_eq!(
        instance.external_id.as_text().as_deref(),
        server["id"].as_str()
    );
    assert_eq!(instance.az.as_deref(), Some("nova"));
    assert_eq!(instance.cloud.as_deref(), Some("nodepool"));
    assert!(instance.host_id.is_some_and(|host| !host.is_empty()));
    assert_eq!(instance.resources, cost);

    // It was given an address that leads to it.
    let ips = project.floating_ips().unwrap();
    assert_eq!(ips.len(), 1);
    assert_eq!(
        instance.public_ipv4.as_deref(),
        ips[0]["floating_ip_address"].as_str()
    );
    assert_eq!(instance.interface_ip, instance.public_ipv4);
    assert!(instance.private_ipv4.unwrap().starts_with("10.9."));

    let console = driver
        .evidence(&"main".into(), &"small".into(), &instance.external_id)
        .await;
    assert!(console.unwrap().is_some_and(|text| !text.is_empty()));

    let listed = driver.list().await.unwrap();
    let ours = |kind: ResourceKind| {
        let of_kind = listed.iter().filter(move |thing| thing.kind == kind);
        of_kind
            .filter(|thing| owner.owns_node(&thing.tags, node(1)))
            .count()
    };
    assert_eq!(ours(ResourceKind::INSTANCES), 1);
    assert_eq!(ours(ResourceKind::FLOATING_IPS), 1);

    delete_node(&driver, node(1)).await;
    assert!(project.servers().unwrap().is_empty());
    assert!(project.floating_ips().unwrap().is_empty());
    assert!(project.ports().unwrap().is_empty());
    delete_node(&driver, node(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_calls_does_not_grow_with_looking() {
    let Some(project) = project("calls") else {
        return;
    };
    let gateway = Gateway::start(cloud().unwrap()).unwrap();
    let owner = owner("calls");
    let mut options = options(owner.clone());
    options.list_age = Duration::from_secs(1);
    let driver = driver(options, &project.clouds_yaml_through(&gateway).unwrap());
    let driver = Arc::new(driver);
    let mut made = JoinSet::new();
    for number in 1..=6 {
        let (driver, order) = (Arc::clone(&driver), order(&owner, node(number)));
        made.spawn(async move { create(&driver, &order).await });
    }
    for instance in made.join_all().await {
        instance.unwrap();
    }
    let counts = gateway.counts();
    let count = |kind: &str| counts.get(kind).copied().unwrap_or_default();
    assert_eq!(count("compute POST /v2.1/servers"), 6, "{counts:?}");
    // What is looked up once for all.
    for kind in [
        "identity POST /v3/auth/tokens",
        "compute GET /v2.1/flavors/detail",
        "network GET /v2.0/networks",
        "image GET /v2/images",
    ] {
        assert_eq!(count(kind), 1, "{kind} in {counts:?}");
    }
    // Nobody is asked for by itself, except for one that a list was too early for.
    assert!(count("compute GET /v2.1/servers/{id}") <= 6, "{counts:?}");
    for number in 1..=6 {
        delete_node(&driver, node(number)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_of_the_cloud_counts() {
    let Some(project) = project("limits") else {
        return;
    };
    project
        .set_quota(&[("instances", 3), ("cores", -1), ("ram", 8192)])
        .unwrap();
    project
        .set_volume_quota(&[("volumes", 4), ("gigabytes", -1)])
        .unwrap();
    let mut options = options(owner("limits"));
    change(&mut options, |pool| {
        for label in &mut pool.labels {
            label.boot_volume = Some(11);
        }
    });
    let driver = driver(options, &project.clouds_yaml());
    let limits = driver.limits().await.unwrap();
    assert_eq!(limits.get(&ResourceName::INSTANCES), Some(3.into()));
    assert_eq!(limits.get(&ResourceName::CORES), None);
    assert_eq!(limits.get(&ResourceName::RAM), Some(8192.into()));
    assert_eq!(limits.get(&"volumes".into()), Some(4.into()));
    assert_eq!(limits.get(&"volume-gb".into()), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_smallest_flavor_that_is_large_enough_is_taken() {
    let Some(project) = project("flavors") else {
        return;
    };
    for (ram, name, expected) in [
        (Some(1000), None, Ok(2048)),
        (Some(2048), Some("edium"), Ok(8192)),
        (Some(9000), None, Ok(16384)),
        (None, Some("medium"), Ok(8192)),
        (Some(99_999), None, Err("16384 MiB")),
        (None, Some("edium"), Err("medium")),
    ] {
        let mut options = options(owner("flavors"));
        change(&mut options, |pool| {
            for label in &mut pool.labels {
                label.min_ram = ram;
                label.flavor_name = name.map(Into::into);
            }
        });
        let driver = driver(options, &project.clouds_yaml());
        match (driver.cost(&"main".into(), &"small".into()).await, expected) {
            (Ok(cost), Ok(ram)) => assert_eq!(cost.get(&ResourceName::RAM), ram.into()),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, _) => panic!("{ram:?} {name:?}: {found:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_waits_for_its_image() {
    let Some(project) = project("readiness") else {
        return;
    };
    let mut options = options(owner("readiness"));
    for image in &mut options.cloud.cloud_images {
        image.choice = ImageChoice::Name("later".into());
    }
    options.image_age = Duration::ZERO;
    options.list_age = Duration::ZERO;
    assert_eq!(
        options.cloud.pools[0].labels[0].image,
        LabelImage::Cloud("disk".into())
    );
    let driver = driver(options, &project.clouds_yaml());
    let ask = async || {
        driver
            .readiness(&"main".into(), &"small".into())
            .await
            .unwrap()
    };
    let Readiness::NotReady(reason) = ask().await else {
        panic!("it is not there")
    };
    assert!(reason.contains("later"), "{reason}");
    let error = create(&driver, &order(&owner("readiness"), node(1)))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("later"), "{error}");
    project.create_image("later", json!({})).unwrap();
    assert_eq!(ask().await, Readiness::Ready);
}

/// What it lacked before is found although lists are believed for minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_label_works_once_the_cloud_has_what_it_asks_for() {
    let Some(project) = project("mended") else {
        return;
    };
    let name = project.name();
    let mut options = options(owner("mended"));
    change(&mut options, |pool| {
        for label in &mut pool.labels {
            label.flavor_name = Some(name.into());
            label.networks = vec!["later".into()];
            label.key_name = Some("later".into());
        }
    });
    let driver = driver(options, &project.clouds_yaml());
    let lacks = async |what: &str| {
        eventually(&format!("only {what} is missing"), async || {
            let error = driver.cost(&"main".into(), &"small".into()).await;
            let error = error.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Permanent, "{error}");
            error.to_string().contains(what)
        })
        .await;
    };
    lacks(&format!("no flavor {name:?}")).await;
    project.create_flavor().unwrap();
    lacks("no network \"later\"").await;
    let member = project.member();
    let network = json!({"network": {"name": "later"}});
    let network = member.post(Service::Network, "/v2.0/networks", &network);
    let network = network.unwrap()["network"]["id"].clone();
    lacks("no key pair \"later\"").await;
    let key = json!({"keypair": {"name": "later", "public_key": PUBLIC_KEY}});
    member.post(Service::Compute, "/os-keypairs", &key).unwrap();
    eventually("nothing is missing", async || {
        let cost = driver.cost(&"main".into(), &"small".into()).await;
        cost.is_ok_and(|cost| cost.get(&ResourceName::RAM) == 256.into())
    })
    .await;
    let path = format!("/v2.0/networks/{}", network.as_str().unwrap());
    member.delete(Service::Network, &path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_ports_and_floating_ips_are_deleted_and_others_are_not() {
    let Some(project) = connected_project("tidy") else {
        return;
    };
    let member = project.member();
    let port = |name: &str, owner: &str, device: &str| {
        let port = json!({"port": {
            "name": name, "network_id": project.network(), "device_owner": owner, "device_id": device,
        }});
        let made = member.post(Service::Network, "/v2.0/ports", &port).unwrap();
        made["port"]["id"].as_str().unwrap().to_owned()
    };
    let mut options = options_with_floating_ips(owner("tidy"));
    options.tidy.port_interval = Duration::from_secs(1);
    options.tidy.floating_ips = true;
    let driver = driver(options, &project.clouds_yaml());
    let order = order(&owner("tidy"), node(1));
    create(&driver, &order).await.unwrap();
    let gone = port("left", "", "");
    let load_balancer = port("kept", "Octavia", "lb");
    let public = member.list(
        Service::Network,
        "/v2.0/networks?router:external=true",
        "networks",
    );
    let ip = json!({"floatingip": {"floating_network_id": public.unwrap()[0]["id"]}});
    member
        .post(Service::Network, "/v2.0/floatingips", &ip)
        .unwrap();

    let collected = driver.collect_garbage().await.unwrap();
    let floating_ip = Collected {
        kind: ResourceKind::FLOATING_IPS,
        count: 1,
    };
    assert_eq!(collected, [floating_ip]);
    let port = Collected {
        kind: ResourceKind::PORTS,
        count: 1,
    };
    eventually("the port is deleted", async || {
        driver.collect_garbage().await.unwrap() == [port.clone()]
    })
    .await;
    let left: Vec<_> = project
        .ports()
        .unwrap()
        .iter()
        .map(|port| port["id"].clone())
        .collect();
    assert!(
        !left.contains(&json!(gone)) && left.contains(&json!(load_balancer)),
        "{left:?}"
    );
    assert_eq!(project.servers().unwrap().len(), 1);
    assert_eq!(project.floating_ips().unwrap().len(), 1);
    delete_node(&driver, node(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_record_names_is_deleted_whoever_made_it() {
    let Some(project) = project("named") else {
        return;
    };
    let theirs = driver(options(owner("python")), &project.clouds_yaml());
    let ours = driver(options(owner("named")), &project.clouds_yaml());
    let instance = create(&theirs, &order(&owner("python"), node(1)))
        .await
        .unwrap();
    // Of what only looks like ours nothing is touched.
    delete_node(&ours, node(1)).await;
    assert_eq!(project.servers().unwrap().len(), 1);
    let target = Target::Node {
        node: node(1),
        external_id: Some(instance.external_id),
    };
    delete(&ours, &target).await.unwrap();
    assert!(project.servers().unwrap().is_empty());
    ours.delete(&target).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_boots_from_a_volume_that_goes_with_it() {
    let Some(project) = project("volume") else {
        return;
    };
    let mut options = options(owner("volume"));
    change(&mut options, |pool| {
        for label in &mut pool.labels {
            label.boot_volume = Some(11);
        }
    });
    let driver = driver(options, &project.clouds_yaml());
    let instance = create(&driver, &order(&owner("volume"), node(1)))
        .await
        .unwrap();
    assert_eq!(instance.resources.get(&"volume-gb".into()), 11.into());
    let volumes = project.volumes().unwrap();
    assert_eq!(volumes.len(), 1);
    assert_eq!(volumes[0]["size"], 11);
    assert_eq!(volumes[0]["metadata"]["nodepool_node_id"], "0000000001");
    let listed = driver.list().await.unwrap();
    let server = listed
        .iter()
        .find(|thing| thing.kind == ResourceKind::INSTANCES);
    assert_eq!(server.unwrap().takes, instance.resources);
    delete_node(&driver, node(1)).await;
    assert!(project.servers().unwrap().is_empty());
    assert!(project.volumes().unwrap().is_empty());
}
