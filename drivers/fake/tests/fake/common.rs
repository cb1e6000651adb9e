//! A simulated cloud on tokio's clock that has resources of others, and a transport with faults.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_driver::kit::{self, Bed, Faults, Injected, Setup};
use nodeyard_driver::{BootImage, CreateOrder, Driver, ErrorClass, Owner, SystemId};
use nodeyard_driver_fake::{
    CallError, CloudError, CloudImageOptions, FakeDriver, FlavorOptions, ImageChoice, LabelImage,
    LabelOptions, Options, Outcome, PoolOptions, Quota, Simulate, Span, Transport, World, connect,
    serve,
};
use nodeyard_model::{ImageName, NodeId, ProviderName, Resources};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::sleep;

pub(crate) const PROVIDER: &str = "fake-cloud";

pub(crate) fn owner() -> Owner {
    Owner {
        system: SystemId::new("ours"),
        provider: ProviderName::new(PROVIDER).unwrap(),
    }
}

pub(crate) fn node(number: u32) -> NodeId {
    format!("{number:010}").parse().unwrap()
}

pub(crate) fn order(number: u32) -> CreateOrder {
    kit::order(&owner(), node(number))
}

/// One pool with one label.
pub(crate) fn options(label: impl FnOnce(&mut LabelOptions)) -> Options {
    let mut small = LabelOptions::new("small".into(), LabelImage::Cloud("precise".into()), "tiny");
    label(&mut small);
    let mut options = Options::new(owner());
    options.cloud.pools = vec![PoolOptions {
        name: "main".into(),
        availability_zones: Vec::new(),
        security_groups: Vec::new(),
        auto_floating_ip: true,
        labels: vec![small],
    }];
    options.cloud.cloud_images = vec![CloudImageOptions {
        name: "precise".into(),
        choice: ImageChoice::Name("Fake Precise".into()),
        config_drive: None,
    }];
    options.call_timeout = Duration::from_secs(30);
    options
}

pub(crate) fn simulate() -> Simulate {
    Simulate {
        boot_time: Span::exactly(Duration::from_millis(100)),
        delete_time: Span::exactly(Duration::from_millis(50)),
        upload_time: Span::exactly(Duration::from_millis(100)),
        quota: Quota::default(),
        flavors: vec![FlavorOptions {
            name: "tiny".to_owned(),
            ram: 2048,
            vcpus: 2,
            disk: 20,
        }],
        ..Simulate::default()
    }
}

pub(crate) fn world(simulate: Simulate) -> Arc<World> {
    let options = HashMap::from([(PROVIDER.to_owned(), simulate)]);
    Arc::new(World::new(options, kit::tokio_clock()))
}

/// Calls the cloud directly.
pub(crate) fn ask(world: &World, method: &str, arguments: &Value) -> Result<Value, CloudError> {
    match world.call(PROVIDER, method, arguments.to_string().as_bytes()) {
        Outcome::Answer(answer) => {
            answer.map(|reply| serde_json::from_str(reply.result.get()).unwrap())
        }
        other => panic!("{method}: {other:?}"),
    }
}

/// A cloud for the kit.
pub(crate) struct SimulatedBed {
    /// None if the cloud is in the process.
    url: Option<String>,
    /// Ends the server when dropped.
    stop: Option<oneshot::Sender<()>>,
    pub(crate) world: Arc<World>,
    pub(crate) options: Options,
}

impl SimulatedBed {
    /// The cloud has resources of others with the names that ours will have.
    pub(crate) async fn new(simulate: Simulate, options: Options) -> Self {
        // So that the others' resources are up.
        let started = simulate.boot_time.max.max(simulate.upload_time.max);
        let world = world(simulate);
        for number in 1..4 {
            let mut others = order(number).tags;
            others.system = Some(SystemId::new("theirs"));
            let server = json!({
                "name": order(number).hostname(), "image": "Fake Precise", "flavor": "tiny",
                "meta": others.to_metadata(),
            });
            // In a bad cloud this fails for some of them.
            let _result = ask(&world, "create_server", &server);
            let image = json!({
                "name": "ubuntu", "filename": "/x", "wait": false,
                "nodepool_provider_name": PROVIDER, "nodepool_upload_id": node(number).to_string(),
                "nodepool_build_id": "0000000000000000000000000000011d",
            });
            ask(&world, "create_image", &image).unwrap();
        }
        sleep(started).await;
        Self {
            url: None,
            stop: None,
            world,
            options,
        }
    }

    /// The same cloud, reached over HTTP.
    pub(crate) async fn served(mut self) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.url = Some(format!("http://{}", listener.local_addr().unwrap()));
        let (stop, stopped) = oneshot::channel::<()>();
        self.stop = Some(stop);
        tokio::spawn(serve(listener, Arc::clone(&self.world), async {
            let _dropped = stopped.await;
        }));
        self
    }
}

#[async_trait]
impl Bed for SimulatedBed {
    async fn driver(&self, faults: &Faults) -> Box<dyn Driver> {
        let cloud = connect(self.url.as_deref(), &self.world, PROVIDER).unwrap();
        let faults = faults.clone();
        let transport = Arc::new(FaultyTransport { cloud, faults });
        Box::new(FakeDriver::new(self.options.clone(), transport))
    }

    fn setup(&self) -> Setup {
        Setup {
            owner: owner(),
            pool: "main".into(),
            label: "small".into(),
            image: BootImage::Cloud,
            upload: Some((
                ImageName::new("ubuntu").unwrap(),
                "/images/ubuntu.qcow2".into(),
                "qcow2".into(),
            )),
        }
    }

    async fn exists(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for method in [
            "list_servers",
            "list_images",
            "list_volumes",
            "list_ports",
            "list_floating_ips",
        ] {
            let list = ask(&self.world, method, &json!({})).unwrap();
            let lines = list.as_array().unwrap().iter();
            all.extend(lines.map(|thing| format!("{method} {}", thing["id"])));
        }
        all
    }

    async fn used(&self) -> Resources {
        let compute = ask(&self.world, "get_compute_limits", &json!({})).unwrap();
        let volumes = ask(&self.world, "get_volume_limits", &json!({})).unwrap();
        let number = |value: &Value| value.as_i64().unwrap();
        let mut used = Resources::new(
            number(&compute["total_cores_used"]),
            number(&compute["total_instances_used"]),
            number(&compute["total_ram_used"]),
        );
        let volumes = &volumes["absolute"];
        used.set("volumes".into(), number(&volumes["totalVolumesUsed"]));
        used.set("volume-gb".into(), number(&volumes["totalGigabytesUsed"]));
        used
    }

    async fn wait(&self, time: Duration) {
        // A cloud behind a server needs real time.
        let haste = if self.url.is_some() { 1000 } else { 1 };
        sleep(time / haste).await;
    }
}

/// Injects the faults of the kit into each call.
#[derive(Debug)]
struct FaultyTransport {
    cloud: Arc<dyn Transport>,
    faults: Faults,
}

#[async_trait]
impl Transport for FaultyTransport {
    async fn call(&self, method: &str, arguments: Vec<u8>) -> Result<Box<RawValue>, CallError> {
        match self
            .faults
            .call(method, self.cloud.call(method, arguments))
            .await
        {
            Ok(answer) => answer,
            Err(Injected::Lost) => Err(CallError::NoResponse(None)),
            Err(Injected::Refused(class)) => Err(CallError::Refused(refusal(class))),
        }
    }
}

/// Returns an error of this cloud that has the class.
fn refusal(class: ErrorClass) -> CloudError {
    let (status, message) = match class {
        ErrorClass::Retry => (503, "try again"),
        ErrorClass::Failed => (500, "it went wrong"),
        ErrorClass::Quota => (403, "Quota exceeded for cores"),
        ErrorClass::Capacity => (500, "No valid host was found"),
        ErrorClass::Permanent => (404, "there is no such thing"),
        ErrorClass::Credentials => (401, "who are you?"),
    };
    CloudError {
        status,
        class: CloudError::HTTP.to_owned(),
        message: message.to_owned(),
        resource_id: None,
    }
}
