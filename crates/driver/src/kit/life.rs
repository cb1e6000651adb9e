//! A caller in small: makes nodes and uploads, sees them up, deletes them, and survives its own death.

use std::collections::BTreeSet;
use std::time::Duration;

use nodeyard_model::{BuildId, BuildKey, NodeId, Resources, UploadId, UploadKey};
use tokio::time::{sleep, timeout};

use super::bed::{Bed, Setup};
use super::faults::Faults;
use super::records::{Key, Phase, Record, Store};
use crate::driver::Driver;
use crate::error::{Error, ErrorClass};
use crate::image::{ImageStatus, ImageTarget, UploadOrder};
use crate::order::{CreateOrder, RequestAttributes, Target};
use crate::resource::ResourceKind;
use crate::step::Step;

/// How often a step may fail in a row. More than one fault is never injected at the same step.
const TRIES: usize = 4;
/// Rounds after which a life without end is given up.
const ROUNDS: usize = 2000;
/// How long a step may take of which no call hangs, as far as the kit knows.
const PATIENCE: Duration = Duration::from_secs(600);
/// All uploads of the kit are of one build.
const BUILD: BuildId = BuildId::from_u128(0x11d);

/// What a new process does with what the dead one was making.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recovery {
    /// Goes on with the stored state.
    Resume,
    /// Deletes it and makes another.
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

    pub(super) fn state(error: &serde_json::Error) -> Self {
        Self(format!("a state cannot be stored: {error}"))
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
    /// Take every step twice from the same stored state.
    pub(super) repeat: bool,
    pub(super) step_limit: Duration,
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
            for record in records.iter_mut().filter(|r| r.phase == Phase::Making) {
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
            let mut pause = None;
            let mut kept = Vec::with_capacity(records.len());
            for mut record in records {
                let wait = self.advance(driver, &mut record).await?;
                if let Progress::Wait(wait) = wait {
                    pause = Some(pause.map_or(wait, |least: Duration| least.min(wait)));
                }
                if !matches!(wait, Progress::Gone) {
                    kept.push(record);
                }
            }
            records = kept;
            self.bed.wait(pause.unwrap_or_default()).await;
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

    async fn advance(
        &self,
        driver: &dyn Driver,
        record: &mut Record,
    ) -> Result<Progress, Violation> {
        if record.phase == Phase::Up {
            return Ok(Progress::Idle);
        }
        if self.repeat
            && let Some(stored) = self.store.get(record.key)?
        {
            *record = stored.clone();
            // What this comes to is forgotten, as after a crash.
            let _forgotten = self.step(driver, &mut stored.clone()).await;
        }
        let deleting = record.phase == Phase::Deleting;
        match self.step(driver, record).await {
            Ok(Step::Done(())) if deleting => {
                self.store.remove(&self.faults, record.key).await;
                Ok(Progress::Gone)
            }
            Ok(Step::Done(())) => {
                record.phase = Phase::Up;
                self.store.put(&self.faults, record).await?;
                Ok(Progress::Idle)
            }
            Ok(Step::Wait(wait)) => {
                record.failures = 0;
                self.store.put(&self.faults, record).await?;
                Ok(Progress::Wait(wait.at_most))
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
                Ok(Progress::Wait(Duration::from_secs(1)))
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

    /// One step of whatever the record is at.
    async fn step(&self, driver: &dyn Driver, record: &mut Record) -> Result<Step<()>, Error> {
        let setup = self.bed.setup();
        let now = self.bed.now();
        let step = async {
            match (record.key, record.phase) {
                (Key::Node(node), Phase::Deleting) => {
                    let external_id = record.external_id.clone();
                    let target = Target::Node { node, external_id };
                    driver.delete(&target, &mut record.state, now).await
                }
                (Key::Node(node), _) => {
                    let order = node_order(&setup, node);
                    let step = driver.create(&order, &mut record.state, now).await;
                    record.external_id.clone_from(&record.state.external_id);
                    Ok(match step? {
                        Step::Wait(wait) => Step::Wait(wait),
                        Step::Done(instance) => {
                            record.external_id = Some(instance.external_id);
                            record.slot = instance.slot;
                            Step::Done(())
                        }
                    })
                }
                (Key::Upload(upload), Phase::Deleting) => {
                    let target = ImageTarget {
                        upload: upload_key(&setup, upload)?,
                        external_id: record.external_id.clone(),
                    };
                    driver.delete_image(&target, &mut record.state, now).await
                }
                (Key::Upload(upload), _) => {
                    let order = upload_order(&setup, upload)?;
                    let step = driver.upload(&order, &mut record.state, now).await;
                    record.external_id.clone_from(&record.state.external_id);
                    Ok(match step? {
                        Step::Wait(wait) => Step::Wait(wait),
                        Step::Done(image) => {
                            record.external_id = Some(image.external_id);
                            Step::Done(())
                        }
                    })
                }
            }
        };
        // A busy machine must not look like a cloud that hangs.
        let given_up = async {
            let _endless = timeout(PATIENCE, self.faults.hung()).await;
            sleep(self.step_limit).await;
        };
        tokio::select! {
            biased;
            end = step => end,
            () = given_up => Err(Error::retry("the step took too long")),
        }
    }

    /// While all are up: each has its own, nothing else is ours, and the sums are right.
    async fn check(&self, records: &[Record]) -> Result<(), Violation> {
        let place = "looking around";
        let unexpected = |error: Error| Violation::unexpected(place, &error);
        let setup = self.bed.setup();
        let driver = self.bed.driver(&Faults::none()).await;
        self.bed.lists_catch_up().await;
        let listed = driver.list().await.map_err(unexpected)?;
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
        let cost = driver
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
        let limits = driver.limits().await.map_err(unexpected)?;
        if !limits.allows(&self.bed.used().await) {
            return Err(Violation::new("more is used than the limits allow"));
        }
        if self.uploads > 0 {
            let images = driver.list_images().await.map_err(unexpected)?;
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

enum Progress {
    Idle,
    Wait(Duration),
    Gone,
}

fn node_order(setup: &Setup, node: NodeId) -> CreateOrder {
    CreateOrder {
        node,
        pool: setup.pool.clone(),
        label: setup.label.clone(),
        image: setup.image.clone(),
        tags: setup.owner.node_tags(node, setup.pool.clone()),
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

fn upload_order(setup: &Setup, upload: UploadId) -> Result<UploadOrder, Error> {
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
        progress: Default::default(),
    })
}
