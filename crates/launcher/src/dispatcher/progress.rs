//! Adds to explanations what drivers and stewards report about launches and images under way.

use nodeyard_plan::explain::{AssignmentExplanation, Next};

use super::Dispatcher;

impl Dispatcher {
    /// Adds what the launches for a request wait for, as far as their drivers report it, and the progress of its images.
    pub(super) fn with_progress(
        &self,
        explanation: Option<AssignmentExplanation>,
    ) -> Option<AssignmentExplanation> {
        let mut explanation = explanation?;
        self.with_image_progress(&mut explanation);
        if let Next::NodesAreLaunched { waits, .. } = &mut explanation.next {
            for node in self.scheduler.nodes_of(explanation.request) {
                let stage = self.ctx.launches.stage(node);
                waits.extend(stage.as_deref().map(str::to_owned));
            }
        }
        Some(explanation)
    }
}
