//! A scripted worker that follows the contract of the functions, except for the faults that a test sets.
//!
//! Its disk and the clouds outlive it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use nodeyard_builder::jobs::{
    BuildJob, BuildResult, DeleteJob, FailureKind, FormatInfo, Function, ImageInfo, JobFailure,
    LocalState, UploadDeleteJob, UploadInfo, UploadJob, UploadProgress, UploadResult, from_payload,
    to_payload,
};
use nodeyard_gearman::worker::{Job, JobError, JobWorker, JobWorkerOptions, WorkerHandle};
use nodeyard_image::ImageId;
use nodeyard_model::{ImageName, ProviderName, Timestamp, UploadId};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::steward::fixtures::{PATIENCE, TestJobServer, UploadedImages, image, provider};

/// Which calls something happens to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerCall {
    Build,
    Upload,
    Delete,
    UploadDelete,
}

/// The fault of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkerFault {
    /// The call fails with a reason.
    Fails,
    /// It is done, and the answer is a failure without a reason, as when a job server loses a worker.
    AnswerLost,
    /// The call succeeds with an invalid response.
    Garbage,
    /// It is done, the answer is lost, and the worker does not remember.
    Forgotten,
}

/// All clouds.
#[derive(Debug, Clone, Default)]
pub(crate) struct ScriptedCloud(Arc<Mutex<CloudState>>);

#[derive(Debug, Default)]
struct CloudState {
    made: usize,
    images: BTreeMap<String, ScriptedImage>,
}

#[derive(Debug, Clone, PartialEq)]
struct ScriptedImage {
    provider: ProviderName,
    build: ImageId,
    managed: Option<Box<str>>,
    upload: Option<UploadId>,
}

impl UploadedImages for ScriptedCloud {
    async fn ids(&self) -> BTreeSet<String> {
        let state = self.0.lock().unwrap();
        let images = state.images.iter();
        images
            .map(|(id, image)| format!("{}/{id}", image.provider))
            .collect()
    }
}

impl ScriptedCloud {
    pub(crate) fn ids(&self) -> BTreeSet<String> {
        self.0.lock().unwrap().images.keys().cloned().collect()
    }

    fn add(&self, image: ScriptedImage) -> String {
        let mut state = self.0.lock().unwrap();
        state.made += 1;
        let id = format!("{}-{}", image.provider, state.made);
        state.images.insert(id.clone(), image);
        id
    }

    fn remove(&self, provider: &ProviderName, job: &UploadDeleteJob) {
        let mut state = self.0.lock().unwrap();
        state.images.retain(|id, image| match &job.external_id {
            Some(external) => **external != **id,
            None => {
                image.provider != *provider
                    || image.build != job.image_id
                    || image.managed != job.managed
                    || image.upload != job.upload_id
            }
        });
    }
}

/// The images of one worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<BTreeMap<ImageId, ImageInfo>>>);

impl Disk {
    pub(crate) fn ids(&self) -> BTreeSet<ImageId> {
        self.0.lock().unwrap().keys().cloned().collect()
    }

    pub(crate) fn formats(&self, id: &ImageId) -> Vec<String> {
        let disk = self.0.lock().unwrap();
        let formats = disk[id].formats.keys();
        formats.map(ToString::to_string).collect()
    }

    /// Returns whether no build is running.
    pub(crate) fn is_complete(&self) -> bool {
        let disk = self.0.lock().unwrap();
        disk.values().all(|info| info.state == LocalState::Ready)
    }

    fn change(&self, id: &ImageId, change: impl FnOnce(&mut ImageInfo)) {
        if let Some(info) = self.0.lock().unwrap().get_mut(id) {
            change(info);
        }
    }

    /// Adds an image of another client, or an orphan.
    pub(crate) fn put(&self, id: &str, managed: Option<&str>) -> ImageId {
        let id: ImageId = id.parse().unwrap();
        let info = info(&id, &image(), managed.map(Box::from), LocalState::Ready);
        self.0.lock().unwrap().insert(id.clone(), info);
        id
    }
}

#[derive(Debug, Default)]
struct WorkerScript {
    faults: Vec<(WorkerCall, WorkerFault)>,
    calls: BTreeMap<String, usize>,
    building: usize,
    most_building: usize,
}

/// A worker at work. Dropping it ends it without a word.
pub(crate) struct ScriptedWorker {
    pub(crate) disk: Disk,
    inner: ScriptedWorkerState,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct ScriptedWorkerState {
    name: &'static str,
    disk: Disk,
    cloud: ScriptedCloud,
    script: Arc<Mutex<WorkerScript>>,
    /// Builds that are to succeed, and uploads, do not end while this is true.
    held: Arc<watch::Sender<bool>>,
    uploads_held: Arc<watch::Sender<bool>>,
    /// No call is answered while this is true.
    mute: Arc<watch::Sender<bool>>,
    handle: WorkerHandle,
}

fn info(
    id: &ImageId,
    image: &ImageName,
    managed: Option<Box<str>>,
    state: LocalState,
) -> ImageInfo {
    let file = FormatInfo {
        size: 1,
        allocated: 1,
        md5: None,
        sha256: None,
    };
    ImageInfo {
        provenance: None,
        log_next: None,
        image_id: id.clone(),
        image: image.clone(),
        state,
        since: Timestamp::from_secs(1.0).unwrap(),
        builder: "worker.example.com".into(),
        builder_id: "w1".into(),
        managed,
        formats: [("qcow2".into(), file)].into(),
        failure: None,
        uploads: Vec::new(),
    }
}

impl ScriptedWorker {
    /// It can build `images`, and knows the providers `one` and `two`.
    pub(crate) async fn start(
        server: &TestJobServer,
        cloud: &ScriptedCloud,
        images: &[&str],
    ) -> Self {
        Self::start_again(server, cloud, Disk::default(), images).await
    }

    /// Builds and uploads do not end before [`ScriptedWorker::hold`] lets them.
    pub(crate) async fn start_held(
        server: &TestJobServer,
        cloud: &ScriptedCloud,
        images: &[&str],
    ) -> Self {
        Self::launch(server, cloud, Disk::default(), images, true).await
    }

    /// On the disk of an earlier one.
    pub(crate) async fn start_again(
        server: &TestJobServer,
        cloud: &ScriptedCloud,
        disk: Disk,
        images: &[&str],
    ) -> Self {
        Self::launch(server, cloud, disk, images, false).await
    }

    async fn launch(
        server: &TestJobServer,
        cloud: &ScriptedCloud,
        disk: Disk,
        images: &[&str],
        held: bool,
    ) -> Self {
        let worker = JobWorker::new(JobWorkerOptions::new(
            "Scripted",
            vec![server.endpoint.clone()],
            6,
        ));
        let inner = ScriptedWorkerState {
            name: "worker.example.com",
            disk: disk.clone(),
            cloud: cloud.clone(),
            script: Arc::default(),
            held: Arc::new(watch::Sender::new(held)),
            uploads_held: Arc::new(watch::Sender::new(false)),
            mute: Arc::new(watch::Sender::new(false)),
            handle: worker.handle(),
        };
        for name in images {
            inner.serve(&Function::Build(name.parse().unwrap()));
        }
        for name in ["one", "two"] {
            inner.serve(&Function::UploadDelete(provider(name)));
        }
        for id in disk.ids() {
            // Builds of the previous worker will never complete.
            disk.change(&id, |info| {
                if info.state == LocalState::Building {
                    info.state = LocalState::Failed;
                }
                info.uploads
                    .retain(|upload| upload.state != UploadProgress::Uploading);
            });
            inner.serve_image(&id);
        }
        let stop = CancellationToken::new();
        let task = tokio::spawn(worker.run(stop.clone()));
        inner.handle.wait_connected(6).await;
        Self {
            disk,
            inner,
            stop,
            task,
        }
    }

    pub(crate) fn next(&self, call: WorkerCall, fault: WorkerFault) {
        self.inner.script.lock().unwrap().faults.push((call, fault));
    }

    pub(crate) fn hold(&self, held: bool) {
        self.inner.held.send_replace(held);
    }

    /// Builds go on, uploads do not.
    pub(crate) fn hold_uploads(&self, held: bool) {
        self.inner.uploads_held.send_replace(held);
    }

    /// It is connected and takes jobs, and that is all.
    pub(crate) fn hang(&self, hangs: bool) {
        self.inner.mute.send_replace(hangs);
    }

    /// How often a function whose name begins so was called.
    pub(crate) fn calls(&self, prefix: &str) -> usize {
        let script = self.inner.script.lock().unwrap();
        let calls = script.calls.iter();
        let named = calls.filter(|(name, _)| name.starts_with(prefix));
        named.map(|(_, count)| count).sum()
    }

    pub(crate) fn most_building(&self) -> usize {
        self.inner.script.lock().unwrap().most_building
    }

    /// Ends it as `kill -9` would.
    pub(crate) async fn kill(self) -> Disk {
        self.task.abort();
        let _ = self.task.await;
        self.disk
    }

    /// Forgets a function, as a worker does that was configured anew.
    pub(crate) fn withdraw(&self, function: &Function) {
        self.inner.handle.unregister(&function.to_string());
    }

    pub(crate) fn offer(&self, function: &Function) {
        self.inner.serve(function);
    }

    pub(crate) async fn stop(self) -> Disk {
        self.stop.cancel();
        let _ = tokio::time::timeout(PATIENCE, self.task).await;
        self.disk
    }
}

impl ScriptedWorkerState {
    fn serve(&self, function: &Function) {
        let inner = self.clone();
        let served = function.clone();
        let handler = move |job: Job| {
            let inner = inner.clone();
            let function = served.clone();
            async move { inner.run(function, job).await }
        };
        let name = function.to_string();
        self.handle.register(&name, handler).unwrap();
    }

    fn serve_image(&self, id: &ImageId) {
        for function in [Function::Info, Function::Upload, Function::Delete] {
            self.serve(&function(id.clone()));
        }
    }

    async fn run(&self, function: Function, job: Job) -> Result<Bytes, JobError> {
        *self
            .script
            .lock()
            .unwrap()
            .calls
            .entry(function.to_string())
            .or_default() += 1;
        let answer = self.answer(&function, &job).await;
        let _ = self.mute.subscribe().wait_for(|mute| !mute).await;
        answer
    }

    async fn answer(&self, function: &Function, job: &Job) -> Result<Bytes, JobError> {
        let payload = job.payload();
        match function {
            Function::Import(_) | Function::Cancel(_) => Err(JobError::Fail),
            Function::Build(image) => {
                let order: BuildJob = from_payload(function, payload).unwrap();
                self.build(image, &order, job).await
            }
            Function::Upload(id) => {
                let order: UploadJob = from_payload(function, payload).unwrap();
                self.upload(id, &order, job).await
            }
            Function::Delete(id) => {
                let order: DeleteJob = from_payload(function, payload).unwrap();
                self.delete(id, &order, job).await
            }
            Function::Info(id) => {
                let known = self.disk.0.lock().unwrap().get(id).cloned();
                Ok(to_payload(&known.unwrap()).into())
            }
            Function::UploadDelete(provider) => {
                let order: UploadDeleteJob = from_payload(function, payload).unwrap();
                let fault = self.fault(WorkerCall::UploadDelete);
                if fault != Some(WorkerFault::Fails) {
                    self.cloud.remove(provider, &order);
                }
                answer(job, fault, Bytes::new()).await
            }
        }
    }

    fn fault(&self, call: WorkerCall) -> Option<WorkerFault> {
        let faults = &mut self.script.lock().unwrap().faults;
        let index = faults.iter().position(|(to, _)| *to == call)?;
        Some(faults.remove(index).1)
    }

    async fn until_let_go(&self) {
        let _ = self.held.subscribe().wait_for(|held| !held).await;
    }

    async fn build(
        &self,
        image: &ImageName,
        order: &BuildJob,
        job: &Job,
    ) -> Result<Bytes, JobError> {
        let id = &order.image_id;
        let fault = self.fault(WorkerCall::Build);
        let managed = order.managed.clone();
        let mut made = info(id, image, managed, LocalState::Building);
        made.since = nodeyard_model::now();
        self.disk.0.lock().unwrap().insert(id.clone(), made);
        self.serve(&Function::Info(id.clone()));
        self.handle.synced().await;
        self.count(1);
        job.progress(1, 2).await;
        if fault != Some(WorkerFault::Fails) {
            self.until_let_go().await;
        }
        self.count(-1);
        if fault == Some(WorkerFault::Forgotten) {
            self.disk.0.lock().unwrap().remove(id);
            self.handle
                .unregister(&Function::Info(id.clone()).to_string());
            self.handle.synced().await;
            return Err(JobError::Fail);
        }
        let failed = fault == Some(WorkerFault::Fails);
        self.disk.change(id, |info| {
            info.state = if failed {
                LocalState::Failed
            } else {
                LocalState::Ready
            };
        });
        self.serve_image(id);
        self.handle.synced().await;
        let result = BuildResult {
            image_id: id.clone(),
            builder: self.name.into(),
            builder_id: "w1".into(),
            formats: self.disk.0.lock().unwrap()[id].formats.clone(),
            provenance: None,
        };
        answer(job, fault, to_payload(&result).into()).await
    }

    fn count(&self, change: isize) {
        let script = &mut *self.script.lock().unwrap();
        script.building = script.building.checked_add_signed(change).unwrap();
        script.most_building = script.most_building.max(script.building);
    }

    async fn upload(&self, id: &ImageId, order: &UploadJob, job: &Job) -> Result<Bytes, JobError> {
        let fault = self.fault(WorkerCall::Upload);
        let known = |state| UploadInfo {
            provider: order.provider.clone(),
            upload_id: order.upload_id,
            state,
        };
        self.disk.change(id, |info| {
            info.uploads.push(known(UploadProgress::Uploading));
        });
        let _ = self.uploads_held.subscribe().wait_for(|held| !held).await;
        self.until_let_go().await;
        let forget = |info: &mut ImageInfo| {
            info.uploads.retain(|upload| {
                upload.upload_id != order.upload_id || upload.provider != order.provider
            });
        };
        self.disk.change(id, forget);
        if fault == Some(WorkerFault::Fails) {
            return answer(job, fault, Bytes::new()).await;
        }
        let external = self.cloud.add(ScriptedImage {
            provider: order.provider.clone(),
            build: id.clone(),
            managed: order.managed.clone(),
            upload: order.upload_id,
        });
        let result = UploadResult {
            external_id: external.into(),
            external_name: "ubuntu-1".into(),
            format: "qcow2".into(),
        };
        if fault != Some(WorkerFault::Forgotten) {
            self.disk.change(id, |info| {
                info.uploads
                    .push(known(UploadProgress::Ready(result.clone())));
            });
        }
        answer(job, fault, to_payload(&result).into()).await
    }

    async fn delete(&self, id: &ImageId, order: &DeleteJob, job: &Job) -> Result<Bytes, JobError> {
        let fault = self.fault(WorkerCall::Delete);
        if fault == Some(WorkerFault::Fails) {
            return answer(job, fault, Bytes::new()).await;
        }
        if order.formats.is_empty() {
            self.disk.0.lock().unwrap().remove(id);
            for function in [Function::Info, Function::Upload, Function::Delete] {
                self.handle.unregister(&function(id.clone()).to_string());
            }
        } else {
            self.disk.change(id, |info| {
                info.formats
                    .retain(|format, _| !order.formats.contains(format));
            });
        }
        answer(job, fault, Bytes::new()).await
    }
}

async fn answer(job: &Job, fault: Option<WorkerFault>, good: Bytes) -> Result<Bytes, JobError> {
    match fault {
        None => Ok(good),
        Some(WorkerFault::Fails) => {
            let failure = JobFailure::new(FailureKind::Failed, "the script says so");
            job.data(failure.to_line()).await;
            Err(JobError::Fail)
        }
        Some(WorkerFault::Garbage) => Ok(Bytes::from_static(b"{\"image-id\": 42,")),
        Some(WorkerFault::AnswerLost | WorkerFault::Forgotten) => Err(JobError::Fail),
    }
}
