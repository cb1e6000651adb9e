//! What this steward tells launchers of an image: how its build and its uploads stand.
//!
//! An ephemeral record for each image and steward, below `/nodeyard/images`, written when it changes. Without any, a
//! launcher knows that nobody looks after the image.

use nodeyard_model::layout;
use nodeyard_plan::images::{ImageExplanation, ImageState, StewardReport};
use nodeyard_store::{Result, TreePath, ext};

use super::context::Context;
use super::progress::put;

impl Context {
    /// Writes the report if it has changed. What cannot be written is written after the next look at the image.
    pub(super) async fn report(&self, picture: &ImageState, explanation: &ImageExplanation) {
        let report = StewardReport::new(picture, explanation);
        if let Err(error) = self.write_report(picture, &report).await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(image = %picture.image, error, "failed to report the state of an image to launchers");
        }
    }

    async fn write_report(&self, picture: &ImageState, report: &StewardReport) -> Result<()> {
        let data = crate::jobs::to_payload(report);
        let dir = TreePath::new(layout::image_stewards(&picture.image))?;
        let path = dir.join(&self.name)?;
        let tree = &**self.registry.tree();
        // It may have gone with a session, or with the image.
        let stored = ext::get_opt(tree, &path).await?;
        if stored.is_some_and(|record| *record.data == *data) {
            return Ok(());
        }
        put(tree, &path, data.into()).await
    }
}
