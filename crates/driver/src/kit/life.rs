//! A caller in small: makes nodes and uploads, sees them up, deletes them, and survives its own death.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use nodeyard_model::{BuildId, BuildKey, NodeId, Resources, UploadId, UploadKey};
use tokio::time::timeout;

use super::bed::{Bed, Setup};
use super::faults::Faults;
use super::records::{Key, Phase, Record, Store};
use crate::driver::{Driver, Images, Machines};
use crate::error::{Error, ErrorClass};
use crate::ids::ExternalId;
use crate::image::{ImageStatus, ImageTarget, UploadOrder};
use crate::order::{CreateOrder, RequestAttributes, Target};
use crate::progress::Progress;
use crate::resource::ResourceKind;

/// How often an operation may fail in a row. More than one fault is never injected at the same operation.
const TRIES: usize = 4;
/// Rounds after which a life without end is given up.
const ROUNDS: usize = 100;
/// How long one operation may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Between the rounds after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// All uploads of the kit are of one build.
const BUILD: BuildId = BuildId::from_u128(0x11d);

/// What a new process does with what the dead one was making.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Calls create again.
    Resume,
    /// Deletes it and creates another.
    Abandon,
}

/// A promise that a driver did not keep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(String);

impl Violation {
    fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn record(error: &serde_json::Error) -> Self {
        Self(format!("invalid record: {error}"))
    }

    fn unexpected(place: &str, error: &Error) -> Self {
        Self(format!(
            "{place} failed for good ({}): {error}",
            error.class()
        ))
    }
}

/// One run: the bed and the store, which last, and the processes, which come and go.
pub(super) struct Life<'a> {
    pub(super) bed: &'a dyn Bed,
    pub(super) store: Store,
    pub(super) faults: Faults,
    pub(super) nodes: usize,
    pub(super) uploads: usize,
    /// Call every operation twice.
    pub(super) repeat: bool,
}

impl Life<'_> {
    /// Lets processes live and die until everything was made and is gone.
    pub(super) async fn run(&self, recovery: Recovery) -> Result<(), Violation> {
        let before = (self.bed.exists().await, self.bed.used().await);
        loop {
            let driver = self.bed.driver(&self.faults).await;
            tokio::select! {
                biased;
                () = self.faults.crashed() => {}
                end = self.process(&*driver, recovery) => break end?,
            }
        }
        let after = (self.bed.exists().await, self.bed.used().await);
        if before.0 != after.0 {
            let lost: Vec<_> = before.0.difference(&after.0).collect();
            let left: Vec<_> = after.0.difference(&before.0).collect();
            return Err(Violation::new(format!(
                "left over: {left:?}; of others, lost: {lost:?}"
            )));
        }
        if before.1 != after.1 {
            return Err(Violation::new("the cloud counts other sums than before"));
        }
        Ok(())
    }

    async fn process(&self, driver: &dyn Driver, recovery: Recovery) -> Result<(), Violation> {
        let mut records = self.store.load()?;
        if recovery == Recovery::Abandon {
            for record in records.iter_mut().filter(|r| r.phase == Phase::Creating) {
                record.begin_delete();
                self.store.put(&self.faults, record).await?;
            }
        }
        for _ in 0..ROUNDS {
            if !self.store.draining() {
                self.order_missing(&mut records).await?;
                let all_up = records.iter().all(|record| record.phase == Phase::Up);
                if all_up {
                    self.check(&records).await?;
                    self.store.drain(&self.faults).await;
                }
            }
            if self.store.draining() {
                for record in records.iter_mut().filter(|r| r.phase != Phase::Deleting) {
                    record.begin_delete();
                    self.store.put(&self.faults, record).await?;
                }
                if records.is_empty() {
                    return Ok(());
                }
            }
            let operations = records
                .iter_mut()
                .map(|record| self.advance(driver, record));
            let outcomes = join_all(operations).await;
            let mut failed = false;
            for (record, outcome) in std::mem::take(&mut records).into_iter().zip(outcomes) {
                let outcome = outcome?;
                failed |= outcome == Outcome::Failed;
                if outcome != Outcome::Gone {
                    records.push(record);
                }
            }
            if failed {
                self.bed.wait(PAUSE).await;
            }
        }
        Err(Violation::new(format!("no end after {ROUNDS} rounds")))
    }

    /// Puts down a record for each thing that is wanted and neither there nor on its way.
    async fn order_missing(&self, records: &mut Vec<Record>) -> Result<(), Violation> {
        for (count, is_node) in [(self.nodes, true), (self.uploads, false)] {
            let have = records
                .iter()
                .filter(|record| matches!(record.key, Key::Node(_)) == is_node)
                .filter(|record| record.phase != Phase::Deleting)
                .count();
            for _ in have..count {
                let number = format!("{:010}", self.store.next_number());
                let key = if is_node {
                    number.parse().map(Key::Node)
                } else {
                    number.parse().map(Key::Upload)
                };
                let key = key.map_err(|error| Violation::new(error.to_string()))?;
                let record = Record::new(key);
                self.store.put(&self.faults, &record).await?;
                records.push(record);
            }
        }
        Ok(())
    }

    /// Runs the operation that a record waits for.
    async fn advance(
        &self,
        driver: &dyn Driver,
        record: &mut Record,
    ) -> Result<Outcome, Violation> {
        if record.phase == Phase::Up {
            return Ok(Outcome::Up);
        }
        if self.repeat {
            // The result is forgotten, as after a lost answer.
            let _forgotten = self.operate(driver, &mut record.clone()).await?;
            record.first_attempt = false;
        }
        let deleting = record.phase == Phase::Deleting;
        let result = self.operate(driver, record).await?;
        record.first_attempt = false;
        match result {
            Ok(()) if deleting => {
                self.store.remove(&self.faults, record.key).await;
                Ok(Outcome::Gone)
            }
            Ok(()) => {
                record.phase = Phase::Up;
                record.failures = 0;
                self.store.put(&self.faults, record).await?;
                Ok(Outcome::Up)
            }
            Err(error) => {
                self.check_class(&error)?;
                record.failures += 1;
                let again = matches!(error.class(), ErrorClass::Retry | ErrorClass::Credentials);
                if record.failures > TRIES {
                    return Err(Violation::unexpected(&format!("{:?}", record.key), &error));
                }
                if !deleting && !again {
                    record.begin_delete();
                }
                self.store.put(&self.faults, record).await?;
                Ok(Outcome::Failed)
            }
        }
    }

    /// The cloud refused with an error of some class: the driver must not make another one of it.
    fn check_class(&self, error: &Error) -> Result<(), Violation> {
        match self.faults.take_refusal() {
            Some(injected) if injected != error.class() => Err(Violation::new(format!(
                "the cloud refused with an error of class {injected}, the driver said {}: {error}",
                error.class()
            ))),
            _ => Ok(()),
        }
    }

    /// Calls the driver for whatever the record is at. The outer error is a broken promise, the inner one the driver's.
    async fn operate(
        &self,
        driver: &dyn Driver,
        record: &mut Record,
    ) -> Result<Result<(), Error>, Violation> {
        let progress = Progress::default();
        let key = record.key;
        let operation = self.call(driver, record.clone(), &progress);
        let operation = self.faults.cancellable(timeout(PATIENCE, operation));
        tokio::pin!(operation);
        let mut reported = progress.subscribe();
        let end = loop {
            tokio::select! {
                biased;
                end = &mut operation => break end,
                Ok(()) = reported.changed() => {
                    let id = reported.borrow_and_update().external_id.clone();
                    if record.external_id != id {
                        record.external_id = id;
                        self.store.put(&self.faults, record).await?;
                    }
                }
            }
        };
        match end {
            Some(Ok(Ok(made))) => {
                if let Some((external_id, slot)) = made {
                    record.external_id = Some(external_id);
                    record.slot = slot;
                }
                Ok(Ok(()))
            }
            Some(Ok(Err(error))) => {
                if let Some(id) = progress.external_id() {
                    record.external_id = Some(id);
                }
                Ok(Err(error))
            }
            Some(Err(_)) => Err(Violation::new(format!(
                "{key:?}: no end after {PATIENCE:?}"
            ))),
            None => Ok(Err(Error::retry("the operation was cancelled"))),
        }
    }

    /// Returns the id and slot of what was created, or None for a deletion.
    async fn call(
        &self,
        driver: &dyn Driver,
        record: Record,
        progress: &Progress,
    ) -> Result<Option<(ExternalId, Option<i64>)>, Error> {
        let setup = self.bed.setup();
        match (record.key, record.phase) {
            (Key::Node(node), Phase::Deleting) => {
                let target = Target::Node {
                    node,
                    external_id: record.external_id,
                };
                machines(driver)?.delete(&target).await?;
                Ok(None)
            }
            (Key::Node(node), _) => {
                let order = node_order(&setup, node, record.first_attempt);
                let instance = machines(driver)?.create(&order, progress).await?;
                Ok(Some((instance.external_id, instance.slot)))
            }
            (Key::Upload(upload), Phase::Deleting) => {
                let target = ImageTarget {
                    upload: upload_key(&setup, upload)?,
                    external_id: record.external_id,
                };
                images(driver)?.delete_image(&target).await?;
                Ok(None)
            }
            (Key::Upload(upload), _) => {
                let order = upload_order(&setup, upload, record.first_attempt)?;
                let image = images(driver)?.upload(&order, progress).await?;
                Ok(Some((image.external_id, None)))
            }
        }
    }

    /// While all are up: each has its own, nothing else is ours, and the sums are right.
    async fn check(&self, records: &[Record]) -> Result<(), Violation> {
        let place = "looking around";
        let unexpected = |error: Error| Violation::unexpected(place, &error);
        let setup = self.bed.setup();
        let driver = self.bed.driver(&Faults::none()).await;
        self.bed.lists_catch_up().await;
        let machines = machines(&*driver).map_err(unexpected)?;
        let listed = machines.list().await.map_err(unexpected)?;
        let ours: Vec<_> = listed
            .iter()
            .filter(|resource| setup.owner.owns(&resource.tags))
            .collect();
        let mut given = BTreeSet::new();
        for record in records {
            if !given.insert((record.external_id.clone(), record.slot)) {
                return Err(Violation::new(format!(
                    "{:?} is given twice",
                    record.external_id
                )));
            }
            let (kind, found): (_, Vec<_>) = match record.key {
                Key::Node(node) => (
                    ResourceKind::INSTANCES,
                    ours.iter().filter(|r| r.tags.node == Some(node)).collect(),
                ),
                Key::Upload(upload) => (
                    ResourceKind::IMAGES,
                    ours.iter()
                        .filter(|r| r.tags.upload == Some(upload))
                        .collect(),
                ),
            };
            let of_kind = found
                .iter()
                .filter(|resource| resource.kind == kind)
                .count();
            if of_kind != 1 {
                let key = record.key;
                return Err(Violation::new(format!(
                    "{key:?} has {of_kind} {kind}, not one"
                )));
            }
        }
        let instances = ours
            .iter()
            .filter(|r| r.kind == ResourceKind::INSTANCES)
            .count();
        if instances != self.nodes {
            let nodes = self.nodes;
            return Err(Violation::new(format!(
                "{instances} instances for {nodes} nodes"
            )));
        }
        let cost = machines
            .cost(&setup.pool, &setup.label)
            .await
            .map_err(unexpected)?;
        let expected: Resources = std::iter::repeat_n(&cost, self.nodes).sum();
        let taken: Resources = ours.iter().map(|resource| &resource.takes).sum();
        if taken != expected {
            return Err(Violation::new(format!(
                "nodes take {taken:?}, not {expected:?}"
            )));
        }
        let limits = machines.limits().await.map_err(unexpected)?;
        if !limits.allows(&self.bed.used().await) {
            return Err(Violation::new("more is used than the limits allow"));
        }
        if self.uploads > 0 {
            let images = images(&*driver).map_err(unexpected)?;
            let images = images.list_images().await.map_err(unexpected)?;
            let active = images
                .iter()
                .filter(|image| setup.owner.owns(&image.tags()))
                .filter(|image| image.status == ImageStatus::Active)
                .count();
            if active != self.uploads {
                return Err(Violation::new(format!("{active} images are active")));
            }
        }
        Ok(())
    }
}

/// The result of one operation on a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Up,
    Gone,
    Failed,
}

fn machines(driver: &dyn Driver) -> Result<&dyn Machines, Error> {
    driver
        .machines()
        .ok_or_else(|| Error::unsupported("create machines"))
}

fn images(driver: &dyn Driver) -> Result<&dyn Images, Error> {
    driver
        .images()
        .ok_or_else(|| Error::unsupported("upload images"))
}

fn node_order(setup: &Setup, node: NodeId, first_attempt: bool) -> CreateOrder {
    CreateOrder {
        node,
        pool: setup.pool.clone(),
        label: setup.label.clone(),
        image: setup.image.clone(),
        tags: setup.owner.node_tags(node, setup.pool.clone()),
        first_attempt,
        az: None,
        request: RequestAttributes::default(),
    }
}

fn upload_key(setup: &Setup, upload: UploadId) -> Result<UploadKey, Error> {
    let (image, ..) = setup
        .upload
        .as_ref()
        .ok_or_else(|| Error::permanent("the bed has nothing to upload"))?;
    Ok(UploadKey {
        build: BuildKey {
            image: image.clone(),
            build: BUILD,
        },
        provider: setup.owner.provider.clone(),
        upload,
    })
}

fn upload_order(
    setup: &Setup,
    upload: UploadId,
    first_attempt: bool,
) -> Result<UploadOrder, Error> {
    let key = upload_key(setup, upload)?;
    let (image, file, format) = setup
        .upload
        .clone()
        .ok_or_else(|| Error::permanent("the bed has nothing to upload"))?;
    Ok(UploadOrder {
        upload: key,
        name: format!("{image}-{upload}").into(),
        file,
        format,
        md5: None,
        sha256: None,
        metadata: Default::default(),
        marks: Vec::new(),
        tags: setup.owner.upload_tags(BUILD, upload),
        first_attempt,
    })
}
