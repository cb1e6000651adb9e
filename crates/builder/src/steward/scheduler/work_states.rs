//! Reports changes of work states as events, for metrics.

use std::collections::HashMap;
use std::sync::Arc;

use nodeyard_model::{ImageName, ProviderName};
use nodeyard_plan::images::{BuildVerdict, ImageExplanation, UploadVerdict, WhyBuild};

use crate::steward::events::{StewardEvents, WorkState};

/// The states that were last reported.
#[derive(Debug)]
pub(super) struct WorkStates {
    events: Arc<dyn StewardEvents>,
    builds: HashMap<ImageName, WorkState>,
    uploads: HashMap<(ImageName, ProviderName), WorkState>,
    requests: HashMap<ImageName, bool>,
}

impl WorkStates {
    pub(super) fn new(events: Arc<dyn StewardEvents>) -> Self {
        Self {
            events,
            builds: HashMap::new(),
            uploads: HashMap::new(),
            requests: HashMap::new(),
        }
    }

    pub(super) fn update(&mut self, explanation: &ImageExplanation) {
        let image = &explanation.image;
        let state = match explanation.build {
            BuildVerdict::Paused { .. } => WorkState::Paused,
            BuildVerdict::UnderWay { .. } => WorkState::Building,
            _ => WorkState::Idle,
        };
        if self.builds.insert(image.clone(), state) != Some(state) {
            self.events.building(image, state);
        }
        let waits = matches!(
            explanation.build,
            BuildVerdict::Waits {
                why: WhyBuild::Requested { .. },
                ..
            } | BuildVerdict::Begins {
                why: WhyBuild::Requested { .. }
            }
        );
        if self.requests.insert(image.clone(), waits).unwrap_or(false) != waits {
            self.events.requested(image, waits);
        }
        for report in &explanation.providers {
            let state = match report.verdict {
                UploadVerdict::Paused => WorkState::Paused,
                UploadVerdict::UnderWay { .. } => WorkState::Uploading,
                _ => WorkState::Idle,
            };
            let provider = &report.provider;
            let key = (image.clone(), provider.clone());
            if self.uploads.insert(key, state) != Some(state) {
                self.events.uploading(image, provider, state);
            }
        }
    }
}
