//! The driver in a cloud that works, and in one that refuses and fails.

use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{
    CreateOrder, Error, ErrorClass, ImageFilter, ImageTarget, Images as _, Instance, Machines as _,
    Progress, Readiness, ResourceKind, Target, UploadOrder,
};
use nodeyard_driver_fake::{
    FailureRates, FakeDriver, ImageChoice, InProcess, Options, Quota, Simulate, World,
};
use nodeyard_model::{BuildId, BuildKey, ImageName, Label, ResourceName, Resources, UploadKey};
use serde_json::{Value, json};
use tokio::time::{advance, sleep, timeout};

use crate::common::{PROVIDER, ask, node, options, order, owner, simulate, world};

struct Bench {
    world: Arc<World>,
    driver: FakeDriver,
}

impl Bench {
    fn new(simulate: Simulate, options: Options) -> Self {
        let world = world(simulate);
        let transport = Arc::new(InProcess::new(Arc::clone(&world), PROVIDER));
        let driver = FakeDriver::new(options, transport);
        Self { world, driver }
    }

    async fn create(&self, order: &CreateOrder) -> Result<Instance, Error> {
        self.driver.create(order, &Progress::default()).await
    }

    async fn launch(&self, number: u32) -> Result<Instance, Error> {
        self.create(&order(number)).await
    }

    /// Creates again after a failure.
    async fn retry(&self, number: u32) -> Result<Instance, Error> {
        let mut order = order(number);
        order.first_attempt = false;
        self.create(&order).await
    }

    async fn delete(&self, target: &Target) {
        self.driver.delete(target).await.unwrap();
    }

    fn ask(&self, method: &str) -> Value {
        ask(&self.world, method, &json!({})).unwrap()
    }
}

/// An upload, and the target of its deletion with this id.
fn upload(id: &str) -> (UploadOrder, ImageTarget) {
    let key = UploadKey {
        build: BuildKey {
            image: ImageName::new("ubuntu").unwrap(),
            build: BuildId::from_u128(7),
        },
        provider: owner().provider,
        upload: "0000000001".parse().unwrap(),
    };
    let order = UploadOrder {
        upload: key.clone(),
        name: "ubuntu-1".into(),
        file: "/images/ubuntu.qcow2".into(),
        format: "qcow2".into(),
        md5: None,
        sha256: None,
        metadata: Default::default(),
        marks: Vec::new(),
        tags: owner().upload_tags(key.build.build, key.upload),
        first_attempt: true,
    };
    let target = ImageTarget {
        upload: key,
        external_id: Some(id.into()),
    };
    (order, target)
}

fn failing(call: &str, class: &str) -> Simulate {
    let mut simulate = simulate();
    let rates = FailureRates {
        error: 1.0,
        class: class.to_owned(),
        ..FailureRates::default()
    };
    simulate.failures.insert(call.to_owned(), rates);
    simulate
}

#[tokio::test(start_paused = true)]
async fn an_instance_says_what_the_cloud_says() {
    let bench = Bench::new(simulate(), options(|_| {}));
    let instance = bench.launch(7).await.unwrap();
    assert_eq!(instance.resources, Resources::new(2, 1, 2048));
    assert_eq!(instance.cloud.as_deref(), Some("fake"));
    assert_eq!(instance.host_id.as_deref(), Some("fake"));
    assert_eq!(instance.public_ipv4.as_deref(), Some("fake"));
    assert_eq!(instance.public_ipv6.as_deref(), Some(""));
    assert!(instance.az.is_some());
}

#[tokio::test(start_paused = true)]
async fn metadata_of_people_does_not_hide_the_record() {
    let bench = Bench::new(
        simulate(),
        options(|label| {
            label.instance_properties = [("a", "b"), ("nodepool_node_id", "evil")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into();
            label.dynamic_instance_properties = [
                ("tenant", "{request.tenant_name}"),
                ("broken", "{request.nothing}"),
            ]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        }),
    );
    let mut order = order(7);
    order.request.tenant_name = Some("acme".into());
    bench.create(&order).await.unwrap();
    let metadata = &bench.ask("list_servers")[0]["metadata"];
    assert_eq!(
        *metadata,
        json!({
            "groups": "fake-cloud,precise,small", "a": "b", "tenant": "acme",
            "nodepool_node_id": "0000000007", "nodepool_pool_name": "main",
            "nodepool_provider_name": "fake-cloud", "nodeyard_system_id": "ours",
        })
    );
}

#[tokio::test(start_paused = true)]
async fn a_quota_that_is_used_up_is_an_error_of_its_class_and_leaves_nothing() {
    let mut simulate = simulate();
    simulate.quota = Quota {
        cores: 5,
        ..Quota::default()
    };
    let bench = Bench::new(simulate, options(|_| {}));
    bench.launch(1).await.unwrap();
    bench.launch(2).await.unwrap();
    let error = bench.launch(3).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Quota);
    assert!(error.to_string().contains("cores"), "{error}");
    assert_eq!(bench.ask("list_servers").as_array().unwrap().len(), 2);
    let used = bench.ask("get_compute_limits")["total_cores_used"].clone();
    assert_eq!(used, 4);
}

#[tokio::test(start_paused = true)]
async fn no_host_for_a_server_is_a_lack_of_capacity() {
    for (class, expected) in [
        ("NoValidHost", ErrorClass::Capacity),
        ("quota", ErrorClass::Quota),
    ] {
        let bench = Bench::new(failing("boot", class), options(|_| {}));
        let progress = Progress::default();
        let error = bench.driver.create(&order(1), &progress).await;
        let error = error.unwrap_err();
        assert_eq!(error.class(), expected, "{error}");
        // The caller knows what to delete.
        assert!(progress.external_id().is_some());
        let target = Target::Node {
            node: node(1),
            external_id: progress.external_id(),
        };
        bench.delete(&target).await;
        assert_eq!(bench.ask("list_servers"), json!([]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_half_made_is_known_to_the_caller() {
    let bench = Bench::new(
        failing("create_server", "OpenStackCloudCreateException"),
        options(|_| {}),
    );
    let progress = Progress::default();
    let error = bench.driver.create(&order(1), &progress).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Failed, "{error}");
    let made = bench.ask("list_servers")[0]["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(progress.external_id(), Some(made.as_str().into()));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_ends_after_its_time() {
    let mut simulate = simulate();
    let rates = FailureRates {
        hang: 1.0,
        ..FailureRates::default()
    };
    simulate.failures.insert("create_server".to_owned(), rates);
    let bench = Bench::new(simulate, options(|_| {}));
    let error = bench.launch(1).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Retry);
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_was_cancelled_is_continued() {
    let bench = Bench::new(simulate(), options(|_| {}));
    let progress = Progress::default();
    let order = order(1);
    let create = bench.driver.create(&order, &progress);
    assert!(timeout(Duration::from_millis(50), create).await.is_err());
    let instance = bench.retry(1).await.unwrap();
    assert_eq!(progress.external_id(), Some(instance.external_id));
    assert_eq!(bench.ask("list_servers").as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_deleted_while_it_boots_is_created_again() {
    let bench = Bench::new(simulate(), options(|_| {}));
    let (instance, ()) = tokio::join!(bench.launch(1), async {
        sleep(Duration::from_millis(30)).await;
        let id = bench.ask("list_servers")[0]["id"].clone();
        ask(&bench.world, "delete_server", &json!({"id": id})).unwrap();
    });
    assert_eq!(instance.unwrap_err().class(), ErrorClass::Retry);
    bench.retry(1).await.unwrap();
    assert_eq!(bench.ask("list_servers").as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_upload_whose_recorded_id_is_outdated_is_deleted_by_its_tags() {
    let bench = Bench::new(simulate(), options(|_| {}));
    let (upload, target) = upload("gone");
    let image = bench.driver.upload(&upload, &Progress::default()).await;
    assert_eq!(bench.driver.list_images().await.unwrap().len(), 2);
    assert_ne!(Some(image.unwrap().external_id), target.external_id);
    bench.driver.delete_image(&target).await.unwrap();
    assert_eq!(bench.driver.list_images().await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_is_deleted_by_its_id_alone_with_all_its_parts() {
    let bench = Bench::new(
        simulate(),
        options(|label| {
            label.boot_volume = Some(30);
            label.networks = vec!["fake-nat-network-name".into()];
        }),
    );
    let instance = bench.launch(1).await.unwrap();
    assert_eq!(
        instance.resources.get(&ResourceName::from("volume-gb")),
        30.into()
    );
    assert_eq!(bench.ask("list_floating_ips").as_array().unwrap().len(), 1);
    let cost = bench
        .driver
        .cost(&"main".into(), &"small".into())
        .await
        .unwrap();
    let listed = bench.driver.list().await.unwrap();
    let taken: Resources = listed.iter().map(|resource| &resource.takes).sum();
    assert_eq!(taken, cost);
    let target = Target::Node {
        node: node(1),
        external_id: None,
    };
    bench.delete(&target).await;
    for list in ["list_servers", "list_volumes", "list_floating_ips"] {
        assert_eq!(bench.ask(list), json!([]), "{list}");
    }
    assert_eq!(
        bench.ask("get_volume_limits")["absolute"]["totalGigabytesUsed"],
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_leak_is_deleted_as_it_was_listed() {
    let bench = Bench::new(simulate(), options(|_| {}));
    bench.launch(1).await.unwrap();
    for resource in bench.driver.list().await.unwrap() {
        if resource.tags.node.is_some() {
            let (kind, id) = (resource.kind, resource.id);
            bench.delete(&Target::Resource { kind, id }).await;
        }
    }
    assert_eq!(bench.ask("list_servers"), json!([]));
}

#[tokio::test(start_paused = true)]
async fn limits_leave_out_what_is_not_limited() {
    let mut simulate = simulate();
    simulate.quota.ram = -1;
    let limits = Bench::new(simulate, options(|_| {}))
        .driver
        .limits()
        .await
        .unwrap();
    assert_eq!(limits.get(&ResourceName::RAM), None);
    assert_eq!(limits.get(&ResourceName::INSTANCES), Some(20.into()));
}

#[tokio::test(start_paused = true)]
async fn flavors_are_chosen_by_ram_or_by_name() {
    let mut cloud = simulate();
    let flavor = |name: &str, ram| nodeyard_driver_fake::FlavorOptions {
        name: name.to_owned(),
        ram,
        vcpus: 1,
        disk: 1,
    };
    cloud.flavors = vec![
        flavor("big gold", 8192),
        flavor("tiny", 512),
        flavor("mid gold", 4096),
        flavor("mid", 2048),
    ];
    for (min_ram, name, expected) in [
        (Some(1000), None, Some(2048)),
        (Some(1000), Some("gold"), Some(4096)),
        (None, Some("tiny"), Some(512)),
        (None, Some("gold"), None),
        (Some(100_000), None, None),
    ] {
        let bench = Bench::new(
            cloud.clone(),
            options(|label| {
                label.min_ram = min_ram;
                label.flavor_name = name.map(Into::into);
            }),
        );
        let cost = bench.driver.cost(&"main".into(), &"small".into()).await;
        let ram = cost.as_ref().ok().map(|cost| cost.get(&ResourceName::RAM));
        assert_eq!(
            ram,
            expected.map(|ram: i64| ram.into()),
            "{min_ram:?} {name:?}"
        );
        if let Err(error) = cost {
            assert_eq!(error.class(), ErrorClass::Permanent);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cloud_image_is_ready_when_the_cloud_has_it() {
    let filters = vec![ImageFilter {
        name: "os".to_owned(),
        values: vec!["jam*".to_owned()],
    }];
    let mut with_filters = options(|_| {});
    with_filters.cloud.cloud_images[0].choice = ImageChoice::Filters(filters);
    let bench = Bench::new(simulate(), with_filters);
    let small: Label = "small".into();
    let ready = async || {
        bench
            .driver
            .readiness(&"main".into(), &small)
            .await
            .unwrap()
    };
    let Readiness::NotReady(reason) = ready().await else {
        panic!("there is no such image")
    };
    assert!(reason.contains("os \"jam*\""), "{reason}");
    let upload = json!({"name": "i", "filename": "/i", "wait": false, "os": "jammy"});
    ask(&bench.world, "create_image", &upload).unwrap();
    advance(Duration::from_millis(99)).await;
    assert!(matches!(ready().await, Readiness::NotReady(_)));
    advance(Duration::from_millis(2)).await;
    assert_eq!(ready().await, Readiness::Ready);
    bench.launch(1).await.unwrap();
    let image = ask(&bench.world, "get_image", &json!({"name_or_id": "i"})).unwrap();
    assert_eq!(bench.ask("list_servers")[0]["image"]["id"], image["id"]);
}

#[tokio::test(start_paused = true)]
async fn filters_follow_the_images() {
    let mut with_filters = options(|_| {});
    with_filters.cloud.cloud_images[0].choice = ImageChoice::Filters(vec![ImageFilter {
        name: "tag".to_owned(),
        values: vec!["ci".to_owned()],
    }]);
    let bench = Bench::new(simulate(), with_filters);
    let create = async |name: &str| {
        let image = json!({"name": name, "filename": "/i", "tags": ["ci"], "wait": false});
        let id = ask(&bench.world, "create_image", &image).unwrap()["id"].clone();
        advance(Duration::from_secs(1)).await;
        id
    };
    let image_of = |number: usize| bench.ask("list_servers")[number]["image"]["id"].clone();
    let first = create("first").await;
    bench.launch(1).await.unwrap();
    assert_eq!(image_of(0), first);

    // A newer one is noticed after a while.
    let second = create("second").await;
    advance(Duration::from_secs(31)).await;
    bench.launch(2).await.unwrap();
    assert_eq!(image_of(1), second);

    // One that is gone is noticed when it is missed.
    ask(&bench.world, "delete_image", &json!({"id": second})).unwrap();
    let error = bench.launch(3).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Failed);
    bench.retry(3).await.unwrap();
    assert_eq!(image_of(2), first);

    let used = bench.driver.images_in_use().await.unwrap();
    let used: Vec<String> = used.iter().map(ToString::to_string).collect();
    let mut expected = [first, second].map(|id| id.as_str().unwrap().to_owned());
    expected.sort();
    assert_eq!(used, expected);
}

#[tokio::test(start_paused = true)]
async fn what_the_cloud_calls_stale_is_looked_up_again() {
    let bench = Bench::new(simulate(), options(|_| {}));
    bench.launch(1).await.unwrap();
    let newer = json!({"name": "Fake Precise", "filename": "/i", "wait": false});
    let newer = ask(&bench.world, "create_image", &newer).unwrap();
    ask(
        &bench.world,
        "delete_image",
        &json!({"id": "fake-image-id"}),
    )
    .unwrap();
    advance(Duration::from_secs(1)).await;
    let error = bench.launch(2).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Failed);
    bench.retry(2).await.unwrap();
    assert_eq!(bench.ask("list_servers")[1]["image"]["id"], newer["id"]);
}

#[tokio::test(start_paused = true)]
async fn ports_that_stay_down_are_deleted_at_the_second_scan() {
    let bench = Bench::new(simulate(), options(|_| {}));
    bench.launch(1).await.unwrap();
    let collect = async || bench.driver.collect_garbage().await.unwrap();
    assert_eq!(collect().await, []);
    advance(Duration::from_secs(599)).await;
    assert_eq!(collect().await, []);
    advance(Duration::from_secs(2)).await;
    let collected = collect().await;
    assert_eq!(
        (collected[0].kind.clone(), collected[0].count),
        (ResourceKind::PORTS, 2)
    );
    let left = bench.ask("list_ports");
    assert_eq!(left.as_array().unwrap().len(), 1);
    assert_eq!(left[0]["status"], "ACTIVE");
}

#[tokio::test(start_paused = true)]
async fn the_console_is_shown_where_the_label_asks_for_it() {
    for wanted in [false, true] {
        let bench = Bench::new(simulate(), options(|label| label.console_log = wanted));
        let instance = bench.launch(1).await.unwrap();
        let console = bench
            .driver
            .evidence(&"main".into(), &"small".into(), &instance.external_id)
            .await
            .unwrap();
        assert_eq!(
            console.is_some_and(|text| text.contains("np0000000001")),
            wanted
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_cloud() {
    let story = async |seed| {
        let mut simulate = failing("create_server", "HttpException");
        simulate.seed = seed;
        simulate.failures.get_mut("create_server").unwrap().error = 0.5;
        let bench = Bench::new(simulate, options(|_| {}));
        let mut story = Vec::new();
        for number in 0..20 {
            story.push(bench.launch(number).await.map(|i| i.external_id).ok());
        }
        story
    };
    assert_eq!(story(1).await, story(1).await);
    assert_ne!(story(1).await, story(2).await);
}
