//! What drivers and stewards know about launches and images under way.

use nodeyard_plan::explain::{Explanation, Next};

use super::Dispatcher;

impl Dispatcher {
    /// Adds what the launches for a request wait for, if their driver can tell, and how far its images are.
    pub(super) fn with_progress(&self, explanation: Option<Explanation>) -> Option<Explanation> {
        let mut explanation = explanation?;
        self.with_image_progress(&mut explanation);
        let Next::NodesAreLaunched { by, waits } = &mut explanation.next else {
            return Some(explanation);
        };
        if let Some(running) = self.providers.get(&by.provider) {
            self.ctx.nodes.for_each(|node| {
                if node.value.request() == Some(explanation.request) {
                    waits.extend(running.provider.driver.progress(node.id));
                }
            });
        }
        Some(explanation)
    }
}
