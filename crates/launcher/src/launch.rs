//! The launch of one node: from a locked record that is about to be `building` to a machine that answers.
//!
//! Everything that the cloud makes carries the node's id, and its own id is stored as soon as it is known. So
//! wherever this ends, what is left can be found and deleted by the record alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nodeyard_driver::{
    BootImage, CreateOrder, Driver, ErrorClass, ExternalId, Instance, RequestAttributes, State,
    Step, Target, Wait,
};
use nodeyard_model::{
    Clock, Coded, ConnectionPort, ErrorCode, ImageUpload, Label, Node, NodeId, NodeRequest, Opaque,
    PoolName, RequestId, UploadKey, coded,
    layout::{self, Place},
};
use nodeyard_nodescan as nodescan;
use nodeyard_plan::protocol;
use nodeyard_store::ext::persist_in_session;
use nodeyard_store::registry::Held;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::{info, warn};

use crate::context::Context;
use crate::events::{LaunchAttempt, LaunchResult};
use crate::options::Timing;
use crate::provider::Provider;
use crate::settings::{ImageSettings, LabelSettings};

/// Between two tries of a step that may work the next time.
const PAUSE: Duration = Duration::from_millis(500);
/// Tries of one step before the attempt counts as failed.
const STEP_TRIES: u32 = 3;

/// A node that is to be launched, and for whom.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) provider: &'a Arc<Provider>,
    pub(crate) pool: &'a PoolName,
    pub(crate) label: &'a Label,
    pub(crate) request: RequestId,
    pub(crate) record: &'a NodeRequest,
    pub(crate) node: NodeId,
}

/// Why there is no machine.
#[derive(Debug)]
pub(crate) enum LaunchError {
    Quota,
    /// With the last failure and its causes.
    Failed(String),
    Store(nodeyard_store::Error),
}

impl From<nodeyard_store::Error> for LaunchError {
    fn from(error: nodeyard_store::Error) -> Self {
        Self::Store(error)
    }
}

/// How one attempt failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the cloud did not make it")]
    Driver(#[from] nodeyard_driver::Error),
    #[error("the machine was not there within {0:?}")]
    Timeout(Duration),
    #[error("nobody answers on the machine")]
    Scan(#[from] nodescan::ScanError),
    #[error("image {0:?} has no upload that is ready")]
    NoImage(String),
    #[error("the record could not be written")]
    Store(#[from] nodeyard_store::Error),
}

impl Coded for Failure {
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

impl Failure {
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

    /// A cloud that has no room, or no time for us, says nothing of the image.
    fn may_be_the_image(&self) -> bool {
        match self {
            Self::Driver(error) => {
                matches!(error.class(), ErrorClass::Failed | ErrorClass::Permanent)
            }
            Self::Timeout(_) | Self::Scan(_) => true,
            Self::NoImage(_) | Self::Store(_) => false,
        }
    }

    /// Another attempt would end the same way.
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

impl Launch<'_> {
    /// Leaves the record `ready`, `failed` or `aborted`, and in every case locked.
    pub(crate) async fn run(&self, held: &mut Held<Node>) -> Result<(), LaunchError> {
        let attempts = self.provider.settings.launch_attempts;
        let mut attempt = 1;
        loop {
            let begun = Instant::now();
            let deadline = begun + self.provider.settings.launch_timeout;
            let failure = match self.attempt(held, attempt == 1, deadline).await {
                Ok(()) => {
                    self.measure(held, LaunchResult::Ready, begun);
                    self.judge_image(held, None).await;
                    return Ok(());
                }
                Err(failure) => failure,
            };
            self.measure(held, failure.result(), begun);
            if let Failure::Store(error) = failure {
                return Err(error.into());
            }
            if failure.may_be_the_image() {
                self.judge_image(held, Some(&failure)).await;
            }
            warn!(
                attempt,
                attempts,
                error = &failure as &dyn std::error::Error,
                "launch failed"
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
            attempt += 1;
        }
    }

    async fn attempt(
        &self,
        held: &mut Held<Node>,
        first: bool,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let settings = self.provider.label(self.pool, self.label);
        let settings = settings.ok_or_else(|| {
            nodeyard_driver::Error::permanent(format!("label {} has left its pool", self.label))
        })?;
        let upload = match &settings.image {
            ImageSettings::Managed(image) => {
                self.ctx.choose_upload(image, &self.provider.name).await?
            }
            ImageSettings::Cloud(_) | ImageSettings::None => None,
        };
        let image = self.prepare(held, settings, upload)?;
        self.store(held).await?;
        let order = self.order(held, image);
        let mut state = if first {
            State::fresh()
        } else {
            State::default()
        };
        let instance = self.create(held, &order, &mut state, deadline).await?;
        describe(&mut held.value, instance);
        if settings.host_key_checking && held.value.host_keys.is_empty() {
            // Where it is looked for may be of interest while nobody answers there.
            self.store(held).await?;
            held.value.host_keys = self.scan(held).await?;
        }
        let ready = protocol::node::launched(Some(&held.value), self.request, self.ctx.clock.now());
        held.value = ready.map_err(|refused| {
            nodeyard_driver::Error::permanent("the node is not ours to launch any more")
                .because(refused)
        })?;
        self.store(held).await?;
        info!(label = %self.label, "node is ready");
        Ok(())
    }

    /// What a launch says of the build that it booted from, if it did from one of ours.
    async fn judge_image(&self, held: &Held<Node>, failure: Option<&Failure>) {
        let upload = held.value.image_id.as_deref();
        if let Some(Place::Upload(key)) = upload.and_then(Place::parse) {
            let reason = failure.map(coded);
            self.ctx.judge_upload(&key, reason.as_deref()).await;
        }
    }

    /// What is known of the machine before it exists, and what it boots from.
    fn prepare(
        &self,
        held: &mut Held<Node>,
        settings: &LabelSettings,
        upload: Option<(UploadKey, ImageUpload)>,
    ) -> Result<BootImage, Failure> {
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
                let missing = || Failure::NoImage(image.to_string());
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

    fn order(&self, held: &Held<Node>, image: BootImage) -> CreateOrder {
        let record = self.record;
        CreateOrder {
            node: self.node,
            pool: self.pool.clone(),
            label: self.label.clone(),
            image,
            tags: self.provider.owner.node_tags(self.node, self.pool.clone()),
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

    async fn create(
        &self,
        held: &mut Held<Node>,
        order: &CreateOrder,
        state: &mut State,
        deadline: Instant,
    ) -> Result<Instance, Failure> {
        let driver = &self.provider.driver;
        let too_late = || Failure::Timeout(self.provider.settings.launch_timeout);
        let mut tries = 0;
        loop {
            let step = driver.create(order, state, self.ctx.clock.now());
            let step = timeout_at(deadline, step).await.map_err(|_| too_late())?;
            self.note_id(held, state.external_id.as_ref()).await?;
            match step {
                Ok(Step::Done(instance)) => return Ok(instance),
                Ok(Step::Wait(wait)) => {
                    tries = 0;
                    if timeout_at(deadline, pause(&**driver, wait, self.ctx.timing))
                        .await
                        .is_err()
                    {
                        return Err(too_late());
                    }
                }
                Err(error) if error.class() == ErrorClass::Retry && tries < STEP_TRIES => {
                    tries += 1;
                    if timeout_at(deadline, sleep(PAUSE)).await.is_err() {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Stores what the cloud calls the machine, as soon as it has said so.
    async fn note_id(
        &self,
        held: &mut Held<Node>,
        id: Option<&ExternalId>,
    ) -> nodeyard_store::Result<()> {
        let Some(id) = id else { return Ok(()) };
        if ExternalId::from_record(&held.value.external_id).as_ref() == Some(id) {
            return Ok(());
        }
        held.value.external_id = id.to_record();
        self.store(held).await
    }

    async fn scan(&self, held: &Held<Node>) -> Result<Vec<Box<str>>, Failure> {
        let node = &held.value;
        let (Some(address), ConnectionPort::Number(port)) =
            (&node.interface_ip, &node.connection_port)
        else {
            return Ok(Vec::new());
        };
        let target = nodescan::Target {
            address: address.clone(),
            port: *port,
            connection_type: node.connection_type.as_deref().unwrap_or("ssh").into(),
            limit: self.provider.settings.boot_timeout,
        };
        match self.ctx.scanner.scan(&target).await {
            Ok(scan) => Ok(scan.keys.iter().map(|key| key.as_str().into()).collect()),
            Err(error) => {
                self.collect_evidence(node).await;
                Err(error.into())
            }
        }
    }

    /// What the cloud can tell about a machine that does not answer.
    async fn collect_evidence(&self, node: &Node) {
        let Some(id) = ExternalId::from_record(&node.external_id) else {
            return;
        };
        let driver = &self.provider.driver;
        if let Err(error) = driver.unreachable(self.node, &id).await {
            warn!(%error, "the cloud was not told about a machine that does not answer");
        }
        match driver.evidence(self.pool, self.label, &id).await {
            Ok(Some(text)) => {
                for line in text.lines() {
                    info!(console = line, "console");
                }
            }
            Ok(None) => {}
            Err(error) => warn!(%error, "there is no console to show"),
        }
    }

    /// Deletes what a failed attempt has made, before the next one.
    async fn clear(&self, held: &mut Held<Node>) -> nodeyard_store::Result<()> {
        let target = Target::Node {
            node: self.node,
            external_id: ExternalId::from_record(&held.value.external_id),
        };
        let limit = self.provider.settings.launch_timeout;
        if let Err(error) = remove(self.ctx, self.provider, &target, limit).await {
            warn!(%error, "what a failed launch left could not be deleted yet");
        }
        held.value.external_id = Opaque::NULL;
        held.value.slot = None;
        held.value.driver_data = Opaque::NULL;
        self.store(held).await
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

pub(crate) async fn remove(
    ctx: &Context,
    provider: &Provider,
    target: &Target,
    limit: Duration,
) -> Result<(), nodeyard_driver::Error> {
    let timing = Timing {
        delete_limit: limit,
        ..ctx.timing
    };
    delete_in_cloud(&*provider.driver, target, &ctx.clock, timing).await
}

/// Takes the steps of a deletion until nothing is left, for at most [`Timing::delete_limit`].
pub async fn delete_in_cloud(
    driver: &dyn Driver,
    target: &Target,
    clock: &Clock,
    timing: Timing,
) -> Result<(), nodeyard_driver::Error> {
    let limit = timing.delete_limit;
    let deadline = Instant::now() + limit;
    let too_late =
        || nodeyard_driver::Error::retry(format!("the deletion took longer than {limit:?}"));
    let mut state = State::default();
    let mut tries = 0;
    loop {
        let step = driver.delete(target, &mut state, clock.now());
        match timeout_at(deadline, step).await.map_err(|_| too_late())? {
            Ok(Step::Done(())) => return Ok(()),
            Ok(Step::Wait(wait)) => {
                tries = 0;
                let waited = timeout_at(deadline, pause(driver, wait, timing)).await;
                waited.map_err(|_| too_late())?;
            }
            Err(error) if error.class() == ErrorClass::Retry && tries < STEP_TRIES => {
                tries += 1;
                timeout_at(deadline, sleep(PAUSE))
                    .await
                    .map_err(|_| error)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the next step of a machine can be taken.
pub(crate) async fn pause(driver: &dyn Driver, wait: Wait, timing: Timing) {
    let (least, most) = timing.poll;
    let at_most = wait.at_most.max(least).min(most);
    match &wait.event {
        Some(event) => {
            tokio::select! {
                () = driver.event(event) => {}
                () = sleep(at_most) => {}
            }
        }
        None => sleep(at_most).await,
    }
}

/// Where to reach the machine: where the cloud says, or at the first address it has.
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

/// Copies what the cloud knows of the machine.
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

/// Two objects as one; of a key that both have, the value of `over` counts.
fn merge(under: &Opaque, over: &Opaque) -> Opaque {
    type Object = BTreeMap<String, Opaque>;
    let (Ok(mut merged), Ok(values)) = (under.decode::<Object>(), over.decode::<Object>()) else {
        let given = if over.is_null() { under } else { over };
        return given.clone();
    };
    merged.extend(values);
    Opaque::encode(&merged).unwrap_or_else(|_| over.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
