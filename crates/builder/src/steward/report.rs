//! Reports the state of builds and uploads of an image to launchers.
//!
//! An ephemeral record per image and steward, below `/nodeyard/images`, written when it changes. Without such a record, a launcher
//! knows that no steward manages the image.

use nodeyard_model::layout;
use nodeyard_plan::images::{ImageExplanation, ImageState, StewardReport};
use nodeyard_store::{Result, TreePath, ext};

use super::context::StewardContext;
use super::progress::put_ephemeral;

impl StewardContext {
    /// Writes the report if it has changed. A failed write is retried after the next evaluation of the image.
    pub(super) async fn report(&self, image_state: &ImageState, explanation: &ImageExplanation) {
        let report = StewardReport::new(image_state, explanation);
        if let Err(error) = self.write_report(image_state, &report).await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(image = %image_state.image, error, "failed to write image report for launchers");
        }
    }

    async fn write_report(&self, image_state: &ImageState, report: &StewardReport) -> Result<()> {
        let data = crate::jobs::to_payload(report);
        let dir = TreePath::new(layout::image_stewards(&image_state.image))?;
        let path = dir.join(&self.name)?;
        let tree = &**self.registry.tree();
        // It may have been deleted with a session or with the image.
        let stored = ext::get_opt(tree, &path).await?;
        if stored.is_some_and(|record| *record.data == *data) {
            return Ok(());
        }
        put_ephemeral(tree, &path, data.into()).await
    }
}
