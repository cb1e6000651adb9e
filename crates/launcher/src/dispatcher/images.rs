//! Updates whether labels have an image to boot from, and the progress of images being made.

use std::collections::BTreeMap;

use nodeyard_model::{ImageName, ProviderName, Timestamp};
use nodeyard_plan::LabelReadiness;
use nodeyard_plan::explain::{AssignmentExplanation, PoolVerdict};
use nodeyard_plan::images::ImageJobProgress;
use nodeyard_plan::images::availability::{
    ImageAvailability, ImageEvidence, ImageVerdict, availability,
};
use nodeyard_plan::verdict::{AwaitedImage, Defer, RequestVerdict};
use nodeyard_store::view::Change;

use super::{Dispatcher, Timer};
use crate::image_work::{ImageWork, ImageWorkId, Reports};
use crate::provider::uploaded_images;

/// Since when no worker could make an image for a provider.
pub(super) type Unattended = BTreeMap<(ProviderName, ImageName), Timestamp>;

impl Dispatcher {
    /// Judges anew which labels have an image to boot from, or will have one, where it is one of the images that have
    /// changed. Costs one pass over the uploads, however many providers and labels there are.
    pub(super) fn images_changed(&mut self, changed: &Change<ImageName>) {
        let concerns = |image: &ImageName| match changed {
            Change::Ids(images) => images.contains(image),
            Change::Everything => true,
        };
        if matches!(changed, Change::Ids(images) if images.is_empty()) {
            return;
        }
        let uploaded = uploaded_images(&self.ctx.images, concerns);
        let reports = Reports::of(&self.image_work);
        let now = self.ctx.clock.now();
        let unattended = std::mem::take(&mut self.unattended).into_iter();
        let (before, others): (Unattended, Unattended) =
            unattended.partition(|((_, image), _)| concerns(image));
        self.unattended = others;
        for running in self.providers.values() {
            let provider = &running.provider;
            let images = provider.managed_images();
            for (image, labels) in images.filter(|(image, _)| concerns(image)) {
                let key = (provider.name.clone(), image.clone());
                let evidence = ImageEvidence {
                    provider: &provider.name,
                    is_uploaded: uploaded.contains(&key),
                    reports: reports.on(image),
                    unattended_since: before.get(&key).copied(),
                };
                let grace = self.ctx.timing.builder_grace;
                let verdict = availability(&evidence, grace, now);
                if let Some(since) = verdict.unattended_since {
                    self.unattended.insert(key, since);
                }
                if let Some(at) = verdict.again_at {
                    self.timers.within(at.since(now), Timer::Images);
                }
                let readiness = readiness(image, verdict);
                for (pool, label) in labels {
                    self.scheduler.set_readiness(pool, label, readiness.clone());
                }
            }
        }
    }

    /// Adds how far the images are that a request waits for.
    pub(super) fn with_image_progress(&self, explanation: &mut AssignmentExplanation) {
        for view in &mut explanation.pools {
            if let PoolVerdict::Ours(RequestVerdict::Defer(Defer::Image(awaited))) =
                &mut view.verdict
            {
                awaited.percent = self.percent(awaited);
            }
        }
    }

    fn percent(&self, awaited: &AwaitedImage) -> Option<u8> {
        let build = awaited.stage.build()?;
        let provider = awaited.stage.is_upload().then_some(&awaited.provider);
        let is_it =
            |job: &ImageJobProgress| job.build == build && job.provider.as_ref() == provider;
        let mut percent = None;
        self.image_work.for_each(|item| {
            if let (ImageWorkId::Job(image, _), ImageWork::Job(job)) = (&item.id, &*item.value)
                && *image.as_str() == *awaited.image
                && is_it(job)
            {
                percent = job.percent();
            }
        });
        percent
    }
}

fn readiness(image: &ImageName, verdict: ImageVerdict) -> LabelReadiness {
    let missing = |reason, pending| LabelReadiness::ImageMissing {
        image: image.as_str().into(),
        reason,
        pending,
    };
    match verdict.availability {
        ImageAvailability::Ready => LabelReadiness::Ready,
        ImageAvailability::Pending(pending) => missing(None, Some(Box::new(pending))),
        ImageAvailability::Unavailable { reason } => missing(Some(reason.into()), None),
    }
}
