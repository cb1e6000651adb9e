//! Deleting containers.

use nodeyard_driver::{Error, ResourceKind, State, Step, Target};
use nodeyard_model::Timestamp;
use serde::{Deserialize, Serialize};

use super::{ContainerDriver, text_id};
use crate::engine::Container;

#[derive(Debug, Default, Serialize, Deserialize)]
enum Delete {
    #[default]
    Asked,
    /// The runtime was told.
    Going { since: Timestamp },
}

impl ContainerDriver {
    pub(super) async fn step_delete(
        &self,
        target: &Target,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        if let Target::Resource { kind, id } = target
            && *kind == ResourceKind::IMAGES
        {
            let id = text_id(id)?;
            return self.remove_images(&[id], state, now).await;
        }
        let containers = self.containers_of(target).await?;
        if containers.is_empty() {
            return Ok(Step::Done(()));
        }
        // A runtime that was busy with it may have forgotten: it is told again, and does not mind.
        for container in &containers {
            self.engine.remove(&container.id).await?;
        }
        match state.read()? {
            Delete::Asked => {
                state.write(&Delete::Going { since: now })?;
                Ok(Step::go_on())
            }
            Delete::Going { since } => Ok(Step::wait(self.options.poll.after(now.since(since)))),
        }
    }

    async fn containers_of(&self, target: &Target) -> Result<Vec<Container>, Error> {
        let (node, id) = match target {
            Target::Node { node, external_id } => (Some(*node), external_id.as_ref()),
            Target::Resource { kind, id } if *kind == ResourceKind::INSTANCES => (None, Some(id)),
            Target::Resource { kind, .. } => {
                return Err(Error::unsupported(&format!("delete {kind}")));
            }
        };
        let id = id.map(text_id).transpose()?;
        let owner = &self.options.owner;
        let mut containers = self.engine.containers().await?;
        containers.retain(|container| {
            Some(&container.id) == id.as_ref()
                || node.is_some_and(|node| owner.owns_node(&container.tags(), node))
        });
        Ok(containers)
    }
}
