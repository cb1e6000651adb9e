//! A simulated cloud that outlives the launchers of a test, and what it says about itself.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use nodeyard_config::Fake;
use nodeyard_driver::Error;
use nodeyard_driver_fake::{
    CallError, Connector, FlavorOptions, InProcess, Quota, Simulate, Span, Transport, World,
};
use nodeyard_model::Clock;
use nodeyard_store::testing::Fuse;
use serde_json::value::RawValue;

use crate::bed::eventually;

pub(crate) const PROVIDER: &str = "fake-cloud";

/// The cloud, and the launchers' way to it.
#[derive(Debug)]
pub(crate) struct FakeCloud {
    world: Arc<World>,
    watch: Arc<Watch>,
    fuse: Option<Arc<Fuse>>,
}

/// Records all calls.
#[derive(Debug, Default)]
struct Watch {
    peak: AtomicUsize,
    creates: AtomicUsize,
    /// How often the whole cloud was listed.
    looks: AtomicUsize,
    /// How often the limits are returned, if not always.
    limits_told: Mutex<Option<usize>>,
    /// The limit of instances that is returned instead of the true one.
    lowered_quota: Mutex<Option<usize>>,
    /// Calls that list servers get no answer.
    lists_fail: AtomicBool,
    /// No flavor is returned.
    flavors_hidden: AtomicBool,
    /// No server is returned.
    boots_held: AtomicBool,
    /// Answers to the next calls of `create_server`, before the cloud is asked.
    refusals: Mutex<Vec<&'static str>>,
    /// Providers that get no answer to any call.
    unreachable: Mutex<HashSet<String>>,
    /// The next calls of these are the end of the task that makes them.
    panics: Mutex<Vec<&'static str>>,
}

impl Watch {
    fn tells_limits(&self) -> bool {
        match &mut *self.limits_told.lock().unwrap() {
            None => true,
            Some(0) => false,
            Some(times) => {
                *times -= 1;
                true
            }
        }
    }
}

pub(crate) fn simulate() -> Simulate {
    Simulate {
        boot_time: Span::exactly(Duration::from_millis(30)),
        delete_time: Span::exactly(Duration::from_millis(10)),
        quota: Quota {
            cores: 100,
            instances: 4,
            ram: 1_000_000,
            volumes: 100,
            volume_gb: 1_000,
        },
        flavors: vec![FlavorOptions {
            name: "tiny".to_owned(),
            ram: 2048,
            vcpus: 2,
            disk: 20,
        }],
        images: vec!["trixie".to_owned()],
        ..Simulate::default()
    }
}

pub(crate) fn config(max_servers: usize, labels: &str) -> String {
    format!(
        "labels:\n{labels}providers:\n  - name: {PROVIDER}\n    driver: fake\n    rate: 0\n    launch-retries: 2\n    \
         cloud-images:\n      - name: trixie\n        username: debian\n    pools:\n      - name: main\n        \
         max-servers: {max_servers}\n        labels:\n          - name: small\n            cloud-image: trixie\n            \
         flavor-name: tiny\n"
    )
}

/// The same with another provider, which is like the first one.
pub(crate) fn with_second(config: &str, name: &str) -> String {
    let (_, first) = config.split_once("providers:\n").unwrap();
    format!("{config}{}", first.replace(PROVIDER, name))
}

impl FakeCloud {
    pub(crate) fn new(simulate: Simulate) -> Arc<Self> {
        let options = HashMap::from([(PROVIDER.to_owned(), simulate)]);
        Arc::new(Self {
            world: Arc::new(World::new(options, Clock::system())),
            watch: Arc::default(),
            fuse: None,
        })
    }

    /// The same cloud for a process that can die.
    pub(crate) fn until(&self, fuse: Arc<Fuse>) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(&self.world),
            watch: Arc::clone(&self.watch),
            fuse: Some(fuse),
        })
    }

    /// The same cloud for another launcher, whose looks are counted apart.
    pub(crate) fn beside(&self) -> Arc<Self> {
        Arc::new(Self {
            world: Arc::clone(&self.world),
            watch: Arc::default(),
            fuse: None,
        })
    }

    /// The names of the servers there are.
    pub(crate) async fn servers(&self) -> Vec<String> {
        let list = self.list("list_servers").await;
        let names = list
            .iter()
            .map(|server| server["name"].as_str().unwrap().to_owned());
        names.collect()
    }

    /// The ids of the images that the servers boot from.
    pub(crate) async fn boot_images(&self) -> Vec<String> {
        let servers = self.list("list_servers").await;
        let images = servers.iter().map(|server| server["image"]["id"].as_str());
        images.map(|id| id.unwrap().to_owned()).collect()
    }

    /// The id of an image that the cloud has.
    pub(crate) async fn image_id(&self, name: &str) -> String {
        let images = self.list("list_images").await;
        let image = images.iter().find(|image| image["name"] == name).unwrap();
        image["id"].as_str().unwrap().to_owned()
    }

    /// The names of the images that the cloud has.
    pub(crate) async fn images(&self) -> Vec<String> {
        let images = self.list("list_images").await;
        let names = images.iter().map(|image| image["name"].as_str());
        names.map(|name| name.unwrap().to_owned()).collect()
    }

    async fn list(&self, method: &str) -> Vec<serde_json::Value> {
        let cloud = InProcess::new(Arc::clone(&self.world), PROVIDER);
        let list = cloud.call(method, b"{}".to_vec()).await.unwrap();
        serde_json::from_str(list.get()).unwrap()
    }

    /// Makes a server that no record of ours knows.
    pub(crate) async fn create(&self, name: &str, meta: &[(&str, &str)]) {
        let cloud = InProcess::new(Arc::clone(&self.world), PROVIDER);
        let flavors = self.list("list_flavors").await;
        let images = self.list("list_images").await;
        let meta: HashMap<&str, &str> = meta.iter().copied().collect();
        let arguments = serde_json::json!({
            "name": name, "meta": meta, "flavor": flavors[0]["id"], "image": images[0]["id"],
        });
        cloud
            .call("create_server", arguments.to_string().into_bytes())
            .await
            .unwrap();
    }

    /// Makes an image that no record of ours knows.
    pub(crate) async fn create_image(&self, name: &str, meta: &[(&str, &str)]) {
        let cloud = InProcess::new(Arc::clone(&self.world), PROVIDER);
        let mut arguments = serde_json::json!({"name": name, "filename": "x", "wait": false});
        for (key, value) in meta {
            arguments[key] = (*value).into();
        }
        cloud
            .call("create_image", arguments.to_string().into_bytes())
            .await
            .unwrap();
    }

    /// Removes an image, whosever it is.
    pub(crate) async fn delete_image(&self, id: &str) {
        let arguments = serde_json::json!({"id": id});
        InProcess::new(Arc::clone(&self.world), PROVIDER)
            .call("delete_image", arguments.to_string().into_bytes())
            .await
            .unwrap();
    }

    /// Removes a server, whosever it is.
    pub(crate) async fn remove(&self, name: &str) {
        let servers = self.list("list_servers").await;
        let server = servers.iter().find(|server| server["name"] == name);
        let arguments = serde_json::json!({"id": server.unwrap()["id"]});
        InProcess::new(Arc::clone(&self.world), PROVIDER)
            .call("delete_server", arguments.to_string().into_bytes())
            .await
            .unwrap();
    }

    /// Waits until launchers have listed the whole cloud so many times more.
    pub(crate) async fn listed_times(&self, times: usize) {
        let before = self.watch.looks.load(Ordering::SeqCst);
        eventually("the cloud is listed", || async {
            (self.watch.looks.load(Ordering::SeqCst) >= before + times).then_some(())
        })
        .await;
    }

    /// The most servers that ever were there at once.
    pub(crate) fn peak(&self) -> usize {
        self.watch.peak.load(Ordering::SeqCst)
    }

    pub(crate) fn creates(&self) -> usize {
        self.watch.creates.load(Ordering::SeqCst)
    }

    /// Returns when so many servers were asked for.
    pub(crate) async fn created(&self, count: usize) {
        eventually("servers are asked for", || async {
            (self.creates() >= count).then_some(())
        })
        .await;
    }

    /// Launches get no further than to a server that boots.
    pub(crate) fn hold_boots(&self, hold: bool) {
        self.watch.boots_held.store(hold, Ordering::SeqCst);
    }

    /// Providers do not get to know their limits, so that none starts.
    pub(crate) fn hold_limits(&self, hold: bool) {
        *self.watch.limits_told.lock().unwrap() = hold.then_some(0);
    }

    /// Stops returning limits after so many more times.
    pub(crate) fn tell_limits(&self, times: usize) {
        *self.watch.limits_told.lock().unwrap() = Some(times);
    }

    /// Returns this limit of instances from now on.
    pub(crate) fn lower_quota(&self, instances: usize) {
        *self.watch.lowered_quota.lock().unwrap() = Some(instances);
    }

    /// Gives no answer to calls that list servers.
    pub(crate) fn fail_lists(&self, fail: bool) {
        self.watch.lists_fail.store(fail, Ordering::SeqCst);
    }

    /// Hides all flavors of the cloud.
    pub(crate) fn hide_flavors(&self, hide: bool) {
        self.watch.flavors_hidden.store(hide, Ordering::SeqCst);
    }

    /// A provider gets no answer to any call.
    pub(crate) fn cut_off(&self, provider: &str, off: bool) {
        let mut unreachable = self.watch.unreachable.lock().unwrap();
        if off {
            unreachable.insert(provider.to_owned());
        } else {
            unreachable.remove(provider);
        }
    }

    /// The next calls that create a server are refused with these classes.
    pub(crate) fn refuse(&self, classes: &[&'static str]) {
        self.watch.refusals.lock().unwrap().extend(classes);
    }

    /// The driver panics in the next call of each of these.
    pub(crate) fn panic_in(&self, methods: &[&'static str]) {
        self.watch.panics.lock().unwrap().extend(methods);
    }

    /// Whether it has panicked wherever it was to.
    pub(crate) fn has_panicked(&self) -> bool {
        self.watch.panics.lock().unwrap().is_empty()
    }

    /// Refuses nothing more.
    pub(crate) fn relent(&self) {
        self.watch.refusals.lock().unwrap().clear();
    }
}

#[derive(Debug)]
struct Watched {
    provider: String,
    cloud: InProcess,
    watch: Arc<Watch>,
    fuse: Option<Arc<Fuse>>,
}

#[async_trait]
impl Transport for Watched {
    async fn call(&self, method: &str, arguments: Vec<u8>) -> Result<Box<RawValue>, CallError> {
        let Some(fuse) = &self.fuse else {
            return self.watched(method, arguments).await;
        };
        fuse.around(self.watched(method, arguments)).await
    }
}

impl Watched {
    async fn watched(&self, method: &str, arguments: Vec<u8>) -> Result<Box<RawValue>, CallError> {
        let panics = {
            let mut panics = self.watch.panics.lock().unwrap();
            let place = panics.iter().position(|panics| *panics == method);
            place.map(|place| panics.swap_remove(place))
        };
        assert!(panics.is_none(), "the driver panics in {method}");
        if self
            .watch
            .unreachable
            .lock()
            .unwrap()
            .contains(&self.provider)
        {
            return Err(CallError::NoResponse(None));
        }
        while method == "get_server" && self.watch.boots_held.load(Ordering::SeqCst)
            || method == "get_compute_limits" && !self.watch.tells_limits()
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if method == "list_servers" && self.watch.lists_fail.load(Ordering::SeqCst) {
            return Err(CallError::NoResponse(None));
        }
        let lowered = *self.watch.lowered_quota.lock().unwrap();
        if method == "get_compute_limits"
            && let Some(instances) = lowered
        {
            let limits = self.cloud.call(method, arguments).await?;
            let mut limits: serde_json::Value = serde_json::from_str(limits.get()).unwrap();
            limits["max_total_instances"] = instances.into();
            return Ok(serde_json::value::to_raw_value(&limits).unwrap());
        }
        if method == "list_flavors" && self.watch.flavors_hidden.load(Ordering::SeqCst) {
            return Ok(serde_json::value::to_raw_value(&[(); 0]).unwrap());
        }
        if method == "list_images" {
            self.watch.looks.fetch_add(1, Ordering::SeqCst);
        }
        if method != "create_server" {
            return self.cloud.call(method, arguments).await;
        }
        self.watch.creates.fetch_add(1, Ordering::SeqCst);
        let refusal = self.watch.refusals.lock().unwrap().pop();
        if let Some(text) = refusal {
            let error = serde_json::json!({"class": "HttpException", "message": text});
            return Err(CallError::Refused(serde_json::from_value(error).unwrap()));
        }
        let result = self.cloud.call(method, arguments).await;
        let list = self
            .cloud
            .call("list_servers", b"{}".to_vec())
            .await
            .unwrap();
        let list: Vec<serde_json::Value> = serde_json::from_str(list.get()).unwrap();
        self.watch.peak.fetch_max(list.len(), Ordering::SeqCst);
        result
    }
}

impl Connector for FakeCloud {
    fn connect(&self, provider: &str, _: &Fake) -> Result<Arc<dyn Transport>, Error> {
        Ok(Arc::new(Watched {
            provider: provider.to_owned(),
            cloud: InProcess::new(Arc::clone(&self.world), PROVIDER),
            watch: Arc::clone(&self.watch),
            fuse: self.fuse.clone(),
        }))
    }
}
