//! One image with its builds and clouds, which does what the plan says.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use nodeyard_model::{BuildId, BuildState, ProviderName, Timestamp, UploadId, UploadState};
use nodeyard_plan::canary::CanaryState;
use nodeyard_plan::images::{
    Action, AvailableFunctions, BackoffState, BuildSnapshot, ImageBuildRequest, ImageOrigin,
    ImagePolicy, ImageState, JobDurations, Pace, Plan, Services, Subject, UploadRef,
    UploadSnapshot, UploadTarget, decide,
};

pub(crate) const DAY: f64 = 86_400.0;

#[derive(Debug, Clone)]
pub(crate) struct Yard {
    pub(crate) snapshot: ImageState,
    pub(crate) pace: Pace,
    pub(crate) now: f64,
    order: i64,
    next_build: u128,
    next_upload: u64,
}

pub(crate) fn time(seconds: f64) -> Timestamp {
    Timestamp::from_secs(seconds).unwrap()
}

pub(crate) fn provider(name: &str) -> ProviderName {
    ProviderName::new(name).unwrap()
}

pub(crate) fn upload_id(number: u64) -> UploadId {
    format!("{number:010}").parse().unwrap()
}

pub(crate) fn formats(names: &[&str]) -> BTreeSet<Box<str>> {
    names.iter().map(|name| Box::from(*name)).collect()
}

pub(crate) fn takes(format: Option<&str>) -> Option<UploadTarget> {
    Some(UploadTarget {
        pause: false,
        format: format.map(Box::from),
    })
}

impl Yard {
    /// An image that `one` and `two` take, and that a worker can build.
    pub(crate) fn new() -> Self {
        let policy = ImagePolicy {
            origin: ImageOrigin::Built {
                rebuild_age: Duration::from_secs(86_400),
            },
            pause: false,
            formats: formats(&["qcow2"]),
            keep_formats: BTreeSet::new(),
            delete_after_upload: false,
            retention: NonZeroUsize::new(2).unwrap(),
            canary: None,
        };
        let snapshot = ImageState {
            image: "ubuntu".parse().unwrap(),
            policy: Some(policy),
            providers: [
                (provider("one"), takes(Some("qcow2"))),
                (provider("two"), takes(None)),
            ]
            .into(),
            builds: [].into(),
            paused: false,
            request: None,
            building: false,
            backoffs: [].into(),
            services: Services::Known(AvailableFunctions {
                build: true,
                upload_delete: [provider("one"), provider("two")].into(),
                ..AvailableFunctions::default()
            }),
            zuul_builds: None,
            durations: JobDurations::default(),
            canary: CanaryState::default(),
        };
        Self {
            snapshot,
            pace: Pace::default(),
            now: 1000.0 * DAY,
            order: 0,
            next_build: 1,
            next_upload: 1,
        }
    }

    pub(crate) fn policy(&mut self) -> &mut ImagePolicy {
        self.snapshot.policy.as_mut().unwrap()
    }

    pub(crate) fn functions(&mut self) -> &mut AvailableFunctions {
        match &mut self.snapshot.services {
            Services::Known(functions) => functions,
            Services::Unknown { .. } => panic!("no job server"),
        }
    }

    pub(crate) fn decide(&self) -> Plan {
        decide(&self.snapshot, &self.pace, time(self.now))
    }

    pub(crate) fn actions(&self) -> Vec<Action> {
        self.decide().actions
    }

    fn tick(&mut self) -> i64 {
        self.order += 1;
        self.order
    }

    pub(crate) fn request(&mut self) {
        let order = self.tick();
        let made = time(self.now);
        self.snapshot.request = Some(ImageBuildRequest { made, order });
    }

    pub(crate) fn add_build(&mut self, state: BuildState, age: f64) -> BuildId {
        let id = BuildId::from_u128(self.next_build);
        self.next_build += 1;
        let build = BuildSnapshot {
            state,
            since: time(self.now - age),
            order: self.tick(),
            formats: ["qcow2"].into_iter().collect(),
            zuul: None,
            asked: formats(&["qcow2"]),
            dropped: BTreeSet::new(),
            locked: false,
            uploading: BTreeSet::new(),
            uploads: [].into(),
            unreadable: 0,
        };
        self.snapshot.builds.insert(id, build);
        if state == BuildState::Ready {
            self.functions().upload.insert(id);
            self.functions().delete.insert(id);
        }
        id
    }

    pub(crate) fn build(&mut self, id: BuildId) -> &mut BuildSnapshot {
        self.snapshot.builds.get_mut(&id).unwrap()
    }

    pub(crate) fn add_upload(
        &mut self,
        build: BuildId,
        to: &str,
        state: UploadState,
        age: f64,
    ) -> UploadRef {
        let upload = upload_id(self.next_upload);
        self.next_upload += 1;
        let record = UploadSnapshot {
            state,
            since: time(self.now - age),
            format: None,
            locked: false,
        };
        let key = (provider(to), upload);
        self.build(build).uploads.insert(key, record);
        UploadRef {
            build,
            provider: provider(to),
            upload,
        }
    }

    pub(crate) fn fail(&mut self, subject: Subject, build: BuildId) {
        let order = self.order;
        let at = time(self.now);
        let backoff = self
            .snapshot
            .backoffs
            .entry(subject)
            .or_insert(BackoffState {
                failures: 0,
                uncounted: 0,
                at,
                build,
                order,
                reason: "the cloud is down".to_owned(),
            });
        backoff.failures += 1;
        (backoff.at, backoff.build, backoff.order) = (at, build, order);
    }

    /// Carries one action out; it works, or it fails.
    pub(crate) fn carry_out(&mut self, action: &Action, works: bool) {
        match action {
            Action::Build { formats } => {
                let state = if works {
                    BuildState::Ready
                } else {
                    BuildState::Failed
                };
                let id = self.add_build(state, 0.0);
                self.build(id).formats = formats.iter().collect();
                self.build(id).asked = formats.clone();
                if works {
                    self.snapshot.backoffs.remove(&Subject::Build);
                } else {
                    self.fail(Subject::Build, id);
                }
            }
            Action::AskZuul | Action::Import { .. } => {}
            Action::ResumeBuild { build } => {
                let now = time(self.now);
                self.build(*build).state = if works {
                    BuildState::Ready
                } else {
                    BuildState::Failed
                };
                self.build(*build).since = now;
                if works {
                    self.functions().upload.insert(*build);
                    self.functions().delete.insert(*build);
                } else {
                    self.fail(Subject::Build, *build);
                }
            }
            Action::ClearRequest { .. } => self.snapshot.request = None,
            Action::Upload { build, provider } => {
                let state = if works {
                    UploadState::Ready
                } else {
                    UploadState::Failed
                };
                self.add_upload(*build, provider.as_str(), state, 0.0);
                let subject = Subject::Upload {
                    provider: provider.clone(),
                };
                if works {
                    self.snapshot.backoffs.remove(&subject);
                } else {
                    self.fail(subject, *build);
                }
            }
            Action::SettleUpload(upload) if works => self.forget(upload),
            Action::RemoveUpload(upload) if works => self.forget(upload),
            Action::SettleUpload(upload) | Action::RemoveUpload(upload) => {
                self.fail(Subject::RemoveUpload(upload.clone()), upload.build);
            }
            Action::RemoveBuild { build } if works => {
                self.functions().delete.remove(build);
                self.functions().upload.remove(build);
                self.build(*build).state = BuildState::Deleting;
                if self.build(*build).uploads.is_empty() {
                    self.snapshot.builds.remove(build);
                    self.snapshot.canary.forget(*build);
                }
            }
            Action::RemoveBuild { build } => {
                self.fail(Subject::RemoveBuild { build: *build }, *build);
            }
            Action::DropFiles { build, formats } => {
                self.build(*build).dropped.extend(formats.iter().cloned());
            }
        }
    }

    fn forget(&mut self, upload: &UploadRef) {
        let key = (upload.provider.clone(), upload.upload);
        self.build(upload.build).uploads.remove(&key);
    }

    /// The uploads that the next nodes of a provider boot from.
    pub(crate) fn in_use(&self, provider: &ProviderName) -> Vec<UploadRef> {
        let Some(launches) = self.snapshot.launches(provider) else {
            return Vec::new();
        };
        let tried = launches.trial.map(|trial| trial.build);
        let builds = tried.into_iter().chain([launches.build]);
        let newest = builds.map(|build| {
            let uploads = self.snapshot.builds[&build].uploads.iter();
            let ready = uploads
                .filter(|((to, _), upload)| to == provider && upload.state == UploadState::Ready);
            let newest = ready.max_by_key(|((_, number), upload)| (upload.since, *number));
            let ((_, number), _) = newest.unwrap();
            UploadRef {
                build,
                provider: provider.clone(),
                upload: *number,
            }
        });
        newest.collect()
    }
}
