//! Launches one node: from a locked record that is about to be `building` to a machine that responds.
//!
//! Everything that the cloud creates carries the id of the node, and its own id is stored as soon as the driver
//! reports it. So after a failure at any point the record is enough to find and delete the leftovers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{
    BootImage, CreateOrder, ErrorClass, ExternalId, Instance, Machines, Progress,
    RequestAttributes, Retries, Target,
};
use nodeyard_driver_common::{ImageSettings, LabelSettings};
use nodeyard_model::{
    Coded, ConnectionPort, ErrorCode, ImageUpload, Label, Node, NodeId, NodeRequest, Opaque,
    PoolName, RequestId, UploadKey, coded,
    layout::{self, RecordPath},
};
use nodeyard_nodescan as nodescan;
use nodeyard_plan::protocol;
use nodeyard_store::ext::persist_in_session;
use nodeyard_store::registry::Held;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, info, warn};

use crate::context::Context;
use crate::events::{LaunchAttempt, LaunchResult};
use crate::provider::Provider;
use crate::report::TaskReport;

/// How often a call of a driver is repeated that failed with [`ErrorClass::Retry`].
const RETRY_LIMIT: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// A node to launch, and the request it is for.
#[derive(Debug)]
pub(crate) struct NodeLaunch<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) provider: &'a Arc<Provider>,
    pub(crate) pool: &'a PoolName,
    pub(crate) label: &'a Label,
    pub(crate) request: RequestId,
    pub(crate) record: &'a NodeRequest,
    pub(crate) node: NodeId,
}

/// Why a launch failed.
#[derive(Debug)]
pub(crate) enum LaunchError {
    Quota,
    /// With the error of the last attempt and its causes.
    Failed(String),
    Store(nodeyard_store::Error),
}

impl From<nodeyard_store::Error> for LaunchError {
    fn from(error: nodeyard_store::Error) -> Self {
        Self::Store(error)
    }
}

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    #[error("failed to create machine")]
    Driver(#[from] nodeyard_driver::Error),
    #[error("machine not up within launch-timeout ({0:?})")]
    Timeout(Duration),
    #[error("machine does not answer")]
    Scan(#[from] nodescan::ScanError),
    #[error("image {0:?} has no ready upload")]
    NoImage(String),
    #[error("failed to store node record")]
    Store(#[from] nodeyard_store::Error),
}

impl Coded for AttemptError {
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Driver(error) => error.code(),
            Self::Timeout(_) => Some(ErrorCode::LaunchTimeout),
            Self::Scan(_) => Some(ErrorCode::MachineSilent),
            Self::NoImage(_) => Some(ErrorCode::NoImage),
            Self::Store(error) => error.code(),
        }
    }
}

impl AttemptError {
    fn result(&self) -> LaunchResult {
        match self {
            Self::Driver(error) => match error.class() {
                ErrorClass::Quota => LaunchResult::Quota,
                ErrorClass::Capacity => LaunchResult::Capacity,
                _ => LaunchResult::Unknown,
            },
            Self::Timeout(_) => LaunchResult::CreateTimeout,
            Self::Scan(_) => LaunchResult::KeyScan,
            Self::NoImage(_) => LaunchResult::Unknown,
            Self::Store(_) => LaunchResult::Session,
        }
    }

    /// Returns whether the image may be the cause. A cloud without room, or that does not respond, is not.
    fn may_be_the_image(&self) -> bool {
        match self {
            Self::Driver(error) => {
                matches!(error.class(), ErrorClass::Failed | ErrorClass::Permanent)
            }
            Self::Timeout(_) | Self::Scan(_) => true,
            Self::NoImage(_) | Self::Store(_) => false,
        }
    }

    /// Returns whether another attempt would fail the same way.
    fn is_final(&self) -> bool {
        match self {
            Self::Driver(error) => matches!(
                error.class(),
                ErrorClass::Quota | ErrorClass::Permanent | ErrorClass::Credentials
            ),
            Self::NoImage(_) | Self::Store(_) => true,
            Self::Timeout(_) | Self::Scan(_) => false,
        }
    }
}

impl NodeLaunch<'_> {
    /// Launches the node. Leaves the record `ready`, `failed` or `aborted`, and in every case locked.
    pub(crate) async fn run(&self, held: &mut Held<Node>) -> Result<(), LaunchError> {
        let attempts = self.provider.settings.launch_attempts;
        let mut attempt = 1;
        loop {
            let begun = Instant::now();
            let deadline = begun + self.provider.settings.launch_timeout;
            let failure = match self.attempt(held, attempt == 1, deadline).await {
                Ok(()) => {
                    self.measure(held, LaunchResult::Ready, begun);
                    self.check_image(held, None).await;
                    return Ok(());
                }
                Err(failure) => failure,
            };
            self.measure(held, failure.result(), begun);
            if let AttemptError::Store(error) = failure {
                return Err(error.into());
            }
            if failure.may_be_the_image() {
                self.check_image(held, Some(&failure)).await;
            }
            warn!(
                attempt,
                attempts,
                error = &failure as &dyn std::error::Error,
                "failed to launch node"
            );
            if failure.is_final() || attempt >= attempts {
                let quota = failure.result() == LaunchResult::Quota;
                let failed = protocol::node::launch_failed(
                    Some(&held.value),
                    self.request,
                    quota,
                    self.ctx.clock.now(),
                );
                if let Ok(failed) = failed {
                    held.value = failed;
                    self.store(held).await?;
                }
                return Err(if quota {
                    LaunchError::Quota
                } else {
                    LaunchError::Failed(coded(&failure))
                });
            }
            self.clear(held).await?;
            if failure.result() == LaunchResult::Capacity {
                self.replace_lost_zone(held).await;
            }
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        held: &mut Held<Node>,
        first: bool,
        deadline: Instant,
    ) -> Result<(), AttemptError> {
        let settings = self.provider.label(self.pool, self.label);
        let settings = settings.ok_or_else(|| {
            nodeyard_driver::Error::permanent(format!(
                "label {} is no longer in its pool",
                self.label
            ))
        })?;
        let upload = match &settings.image {
            ImageSettings::Managed(image) => {
                self.ctx.choose_upload(image, &self.provider.name).await?
            }
            ImageSettings::Cloud(_) | ImageSettings::None => None,
        };
        let image = self.prepare(held, settings, upload)?;
        self.store(held).await?;
        let order = self.order(held, image, first);
        let instance = self.create(held, order, deadline).await?;
        describe(&mut held.value, instance);
        if settings.host_key_checking && held.value.host_keys.is_empty() {
            // The address is of interest while nothing answers there.
            self.store(held).await?;
            held.value.host_keys = self.scan(held).await?;
        }
        let ready = protocol::node::launched(Some(&held.value), self.request, self.ctx.clock.now());
        held.value = ready.map_err(|refused| {
            nodeyard_driver::Error::permanent("node is no longer allocated to this launch")
                .because(refused)
        })?;
        self.store(held).await?;
        info!(label = %self.label, "node is ready");
        Ok(())
    }

    /// Counts the result of a launch for the build that it booted from, if that is one of ours.
    async fn check_image(&self, held: &Held<Node>, failure: Option<&AttemptError>) {
        let upload = held.value.image_id.as_deref();
        if let Some(RecordPath::Upload(key)) = upload.and_then(RecordPath::parse) {
            let reason = failure.map(coded);
            self.ctx.judge_upload(&key, reason.as_deref()).await;
        }
    }

    /// Writes what is known about the machine before it exists. Returns what it boots from.
    fn prepare(
        &self,
        held: &mut Held<Node>,
        settings: &LabelSettings,
        upload: Option<(UploadKey, ImageUpload)>,
    ) -> Result<BootImage, AttemptError> {
        let node = &mut held.value;
        let access = &settings.access;
        node.connection_type = Some(Arc::clone(&access.connection_type));
        node.connection_port = access.connection_port.clone();
        node.username.clone_from(&access.username);
        node.python_path = Some(Arc::clone(&access.python_path));
        node.shell_type.clone_from(&access.shell_type);
        node.host_keys.clear();
        if let Some(pool) = self.provider.settings.pools.get(self.pool) {
            node.attributes = pool.attributes.clone();
        }
        match &settings.image {
            ImageSettings::Managed(image) => {
                let missing = || AttemptError::NoImage(image.to_string());
                let (key, upload) = upload.ok_or_else(missing)?;
                let external_id = upload.external_id.as_deref().ok_or_else(missing)?;
                node.image_id = Some(layout::upload(&key).into());
                node.username = upload.username.as_deref().map(Into::into);
                node.python_path = Some(upload.python_path.as_deref().unwrap_or("auto").into());
                node.shell_type = upload.shell_type.as_deref().map(Into::into);
                Ok(BootImage::Upload {
                    image: image.clone(),
                    external_id: external_id.into(),
                })
            }
            ImageSettings::Cloud(name) => {
                node.image_id = Some(Arc::clone(name));
                Ok(BootImage::Cloud)
            }
            ImageSettings::None => Ok(BootImage::Cloud),
        }
    }

    fn order(&self, held: &Held<Node>, image: BootImage, first_attempt: bool) -> CreateOrder {
        let record = self.record;
        CreateOrder {
            node: self.node,
            pool: self.pool.clone(),
            label: self.label.clone(),
            image,
            tags: self.provider.owner.node_tags(self.node, self.pool.clone()),
            first_attempt,
            az: held.value.az.as_deref().map(Into::into),
            request: RequestAttributes {
                id: Some(self.request),
                labels: record.labels.clone(),
                requestor: record.requestor.as_deref().map(Into::into),
                requestor_data: record.requestor_data.clone(),
                relative_priority: record.relative_priority,
                event_id: record.event_id.clone(),
                created_time: record.created_time,
                tenant_name: record.tenant_name.clone(),
            },
        }
    }

    /// Creates the machine, and stores its id as soon as the driver reports it.
    async fn create(
        &self,
        held: &mut Held<Node>,
        order: CreateOrder,
        deadline: Instant,
    ) -> Result<Instance, AttemptError> {
        let machines = self.provider.machines();
        let machines =
            machines.ok_or_else(|| nodeyard_driver::Error::unsupported("create machines"))?;
        let launch = self.ctx.launches.begin(self.node);
        let progress = launch.progress();
        let mut reported = progress.subscribe();
        let created = timeout_at(deadline, create_with_retries(machines, order, progress));
        tokio::pin!(created);
        let mut is_accepted = false;
        let mut accept = || {
            if !std::mem::replace(&mut is_accepted, true) {
                let request = self.request;
                self.ctx.report(TaskReport::LaunchAccepted { request });
            }
        };
        let created = loop {
            tokio::select! {
                biased;
                created = &mut created => break created,
                Ok(()) = reported.changed() => {
                    let id = reported.borrow_and_update().external_id.clone();
                    if id.is_some() {
                        accept();
                    }
                    self.store_external_id(held, id).await?;
                }
            }
        };
        let failure = match created {
            Ok(Ok(instance)) => {
                accept();
                return Ok(instance);
            }
            Ok(Err(error)) => error.into(),
            Err(_) => AttemptError::Timeout(self.provider.settings.launch_timeout),
        };
        self.store_external_id(held, progress.external_id()).await?;
        Err(failure)
    }

    async fn store_external_id(
        &self,
        held: &mut Held<Node>,
        id: Option<ExternalId>,
    ) -> nodeyard_store::Result<()> {
        if ExternalId::from_record(&held.value.external_id) == id {
            return Ok(());
        }
        held.value.external_id = id.map_or(Opaque::NULL, |id| id.to_record());
        self.store(held).await
    }

    async fn scan(&self, held: &Held<Node>) -> Result<Vec<Box<str>>, AttemptError> {
        let node = &held.value;
        let (Some(address), ConnectionPort::Number(port)) =
            (&node.interface_ip, &node.connection_port)
        else {
            return Ok(Vec::new());
        };
        let target = nodescan::ScanTarget {
            provider: self.provider.name.as_str().into(),
            address: address.clone(),
            port: *port,
            connection_type: node.connection_type.as_deref().unwrap_or("ssh").into(),
            timeout: self.provider.settings.boot_timeout,
        };
        match self.ctx.scanner.scan(&target).await {
            Ok(scan) => Ok(scan.keys.iter().map(|key| key.as_str().into()).collect()),
            Err(error) => {
                self.log_evidence(node).await;
                Err(error.into())
            }
        }
    }

    /// Logs what the cloud recorded about a machine that does not answer.
    async fn log_evidence(&self, node: &Node) {
        let Some(id) = ExternalId::from_record(&node.external_id) else {
            return;
        };
        let Some(machines) = self.provider.machines() else {
            return;
        };
        if let Err(error) = machines.mark_unreachable(self.node, &id).await {
            let error = &error as &dyn std::error::Error;
            warn!(error, "failed to mark unreachable machine");
        }
        match machines.evidence(self.pool, self.label, &id).await {
            Ok(Some(text)) => {
                for line in text.lines() {
                    info!(console = line, "console");
                }
            }
            Ok(None) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                warn!(error, "failed to fetch console");
            }
        }
    }

    /// Deletes what a failed attempt left, before the next one.
    async fn clear(&self, held: &mut Held<Node>) -> nodeyard_store::Result<()> {
        let target = Target::Node {
            node: self.node,
            external_id: ExternalId::from_record(&held.value.external_id),
        };
        let limit = self.provider.settings.launch_timeout;
        if let Some(machines) = self.provider.machines()
            && let Err(error) = delete_in_cloud(machines, &target, limit).await
        {
            let error = &error as &dyn std::error::Error;
            warn!(error, "failed to delete machine of failed launch");
        }
        held.value.external_id = Opaque::NULL;
        held.value.slot = None;
        held.value.driver_data = Opaque::NULL;
        self.store(held).await
    }

    /// Chooses another zone for a node whose zone is no longer available.
    async fn replace_lost_zone(&self, held: &mut Held<Node>) {
        let (Some(machines), Some(zone)) = (self.provider.machines(), &held.value.az) else {
            return;
        };
        match machines.zones(self.pool).await {
            Ok(zones) => {
                if let Some(other) = zone_instead_of(zone, &zones) {
                    info!(lost = %zone, zone = other, "zone is no longer available; using another one");
                    held.value.az = Some(other.into());
                }
            }
            Err(error) => debug!(%error, "failed to list zones; keeping the zone of the node"),
        }
    }

    async fn store(&self, held: &mut Held<Node>) -> nodeyard_store::Result<()> {
        let nodes = self.ctx.registry.nodes();
        let store = || nodes.store(&held.guard, self.node, &held.value);
        held.stat = persist_in_session(&**held.guard.tree(), store).await?;
        Ok(())
    }

    fn measure(&self, held: &Held<Node>, result: LaunchResult, begun: Instant) {
        self.ctx.events.launched(&LaunchAttempt {
            provider: &self.provider.name,
            label: self.label,
            zone: held.value.az.as_deref(),
            requestor: self.record.requestor.as_deref(),
            result,
            took: begun.elapsed(),
        });
    }
}

/// Returns a zone to use in place of one that is not available; the same for all nodes of a request.
fn zone_instead_of<'a>(zone: &str, available: &'a [Box<str>]) -> Option<&'a str> {
    let is_lost = available.iter().all(|other| **other != *zone);
    let first = available.iter().min().filter(|_| is_lost)?;
    Some(first)
}

async fn create_with_retries(
    machines: &dyn Machines,
    mut order: CreateOrder,
    progress: &Progress,
) -> Result<Instance, nodeyard_driver::Error> {
    let mut retries = Retries::new(RETRY_LIMIT, FIRST_PAUSE);
    loop {
        retries.start();
        let error = match machines.create(&order, progress).await {
            Ok(instance) => return Ok(instance),
            Err(error) => error,
        };
        let Some(pause) = retries.after(&error) else {
            return Err(error);
        };
        debug!(%error, retry_in = ?pause, "failed to create machine; retrying");
        sleep(pause).await;
        order.first_attempt = false;
    }
}

/// Deletes a target in its cloud, for at most `limit`.
pub(crate) async fn delete_in_cloud(
    machines: &dyn Machines,
    target: &Target,
    limit: Duration,
) -> Result<(), nodeyard_driver::Error> {
    let deleted = async {
        let mut retries = Retries::new(RETRY_LIMIT, FIRST_PAUSE);
        loop {
            retries.start();
            let Err(error) = machines.delete(target).await else {
                return Ok(());
            };
            let Some(pause) = retries.after(&error) else {
                return Err(error);
            };
            debug!(%error, retry_in = ?pause, "failed to delete machine; retrying");
            sleep(pause).await;
        }
    };
    timeout(limit, deleted).await.unwrap_or_else(|_| {
        let text = format!("deletion took longer than {limit:?}");
        Err(nodeyard_driver::Error::retry(text))
    })
}

/// Returns where to reach the machine: where the driver says, or its first address.
fn any_address(instance: &Instance) -> Option<Box<str>> {
    let addresses = [
        &instance.interface_ip,
        &instance.public_ipv4,
        &instance.public_ipv6,
        &instance.private_ipv4,
    ];
    let mut addresses = addresses.into_iter().flatten();
    addresses.find(|address| !address.is_empty()).cloned()
}

/// Copies what the driver knows about the machine to the record.
fn describe(node: &mut Node, instance: Instance) {
    fn put<T: From<Box<str>>>(field: &mut Option<T>, value: Option<Box<str>>) {
        if let Some(value) = value {
            *field = Some(value.into());
        }
    }
    node.external_id = instance.external_id.to_record();
    node.interface_ip = any_address(&instance);
    node.public_ipv4 = instance.public_ipv4;
    node.public_ipv6 = instance.public_ipv6;
    node.private_ipv4 = instance.private_ipv4;
    put(&mut node.cloud, instance.cloud);
    put(&mut node.region, instance.region);
    put(&mut node.az, instance.az);
    put(&mut node.host_id, instance.host_id);
    put(&mut node.connection_type, instance.connection_type);
    if let Some(port) = instance.connection_port {
        node.connection_port = port;
    }
    put(&mut node.username, instance.username);
    put(&mut node.python_path, instance.python_path);
    put(&mut node.shell_type, instance.shell_type);
    node.host_keys = instance.host_keys;
    node.resources = Some(instance.resources);
    if !instance.node_properties.is_null() {
        node.node_properties = instance.node_properties;
    }
    node.attributes = merge(&instance.attributes, &node.attributes);
    if instance.slot.is_some() {
        node.slot = instance.slot;
    }
    node.driver_data = instance.driver_data;
}

/// Merges two objects. `over` wins where both have a key.
fn merge(under: &Opaque, over: &Opaque) -> Opaque {
    type JsonObject = BTreeMap<String, Opaque>;
    let (Ok(mut merged), Ok(values)) = (under.decode::<JsonObject>(), over.decode::<JsonObject>())
    else {
        let given = if over.is_null() { under } else { over };
        return given.clone();
    };
    merged.extend(values);
    Opaque::encode(&merged).unwrap_or_else(|_| over.clone())
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use nodeyard_driver::{Error, Resource, ResourceKind, Tags};
    use nodeyard_model::{Limits, Resources};
    use serde_json::json;

    use super::*;

    /// A cloud whose deletions do not end, and whose creations fail with these classes, the last first.
    #[derive(Debug, Default)]
    struct FailingCloud {
        failures: Mutex<Vec<ErrorClass>>,
        /// Whether each call of create was a first attempt.
        creates: Mutex<Vec<bool>>,
    }

    #[async_trait]
    impl Machines for FailingCloud {
        async fn create(&self, order: &CreateOrder, _: &Progress) -> Result<Instance, Error> {
            self.creates.lock().unwrap().push(order.first_attempt);
            let failure = self.failures.lock().unwrap().pop();
            match failure {
                Some(class) => Err(Error::new(class, "not now")),
                None => pending().await,
            }
        }

        async fn delete(&self, _: &Target) -> Result<(), Error> {
            pending().await
        }

        async fn list(&self) -> Result<Vec<Resource>, Error> {
            Ok(Vec::new())
        }

        async fn limits(&self) -> Result<Limits, Error> {
            Ok(Limits::unlimited())
        }

        async fn cost(&self, _: &PoolName, _: &Label) -> Result<Resources, Error> {
            Ok(Resources::default())
        }
    }

    fn order() -> CreateOrder {
        CreateOrder {
            node: "0000000001".parse().unwrap(),
            pool: "main".into(),
            label: "small".into(),
            image: BootImage::Cloud,
            tags: Tags::default(),
            first_attempt: true,
            az: None,
            request: RequestAttributes::default(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_passing_error_is_retried_and_the_machine_looked_for() {
        let cloud = FailingCloud::default();
        *cloud.failures.lock().unwrap() = vec![ErrorClass::Quota, ErrorClass::Retry];
        let progress = Progress::default();
        let created = create_with_retries(&cloud, order(), &progress).await;
        assert_eq!(created.unwrap_err().class(), ErrorClass::Quota);
        assert_eq!(*cloud.creates.lock().unwrap(), [true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_does_not_pass_is_returned() {
        let cloud = FailingCloud::default();
        *cloud.failures.lock().unwrap() = vec![ErrorClass::Retry; 100];
        let progress = Progress::default();
        let created = create_with_retries(&cloud, order(), &progress).await;
        assert_eq!(created.unwrap_err().class(), ErrorClass::Retry);
        assert_eq!(cloud.creates.lock().unwrap().len(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_ends_at_its_limit() {
        let target = Target::Resource {
            kind: ResourceKind::INSTANCES,
            id: "a".into(),
        };
        let cloud = FailingCloud::default();
        let limit = Duration::from_secs(600);
        let error = delete_in_cloud(&cloud, &target, limit).await.unwrap_err();
        assert_eq!(error.class(), ErrorClass::Retry);
    }

    #[test]
    fn a_zone_that_went_away_is_chosen_anew() {
        let zones = |names: &[&str]| names.iter().map(|name| (*name).into()).collect::<Vec<_>>();
        assert_eq!(zone_instead_of("a", &zones(&["c", "b"])), Some("b"));
        assert_eq!(zone_instead_of("b", &zones(&["c", "b"])), None);
        assert_eq!(zone_instead_of("a", &[]), None);
    }

    #[test]
    fn attributes_of_the_pool_go_before_those_of_the_machine() {
        let of = |value: serde_json::Value| Opaque::encode(&value).unwrap();
        let machine = of(json!({"zone": "a", "disk": {"size": 1}}));
        let pool = of(json!({"disk": {"kind": "ssd"}}));
        let both: serde_json::Value = merge(&machine, &pool).decode().unwrap();
        assert_eq!(both, json!({"zone": "a", "disk": {"kind": "ssd"}}));
        assert_eq!(merge(&machine, &Opaque::NULL), machine);
        assert_eq!(merge(&Opaque::NULL, &pool), pool);
        assert_eq!(merge(&Opaque::NULL, &Opaque::NULL), Opaque::NULL);
    }
}
