//! Deletes containers.

use nodeyard_driver::{Error, ResourceKind, Target};

use super::{ContainerDriver, text_id};
use crate::client::ContainerSummary;

impl ContainerDriver {
    pub(super) async fn delete_containers(&self, target: &Target) -> Result<(), Error> {
        let timer = self.options.poll.start();
        loop {
            let containers = self.containers_of(target).await?;
            if containers.is_empty() {
                return Ok(());
            }
            // Repeated at each poll: a busy runtime may drop a removal, and one too many does no harm.
            for container in &containers {
                self.client.remove(&container.id).await?;
            }
            timer.tick().await;
        }
    }

    async fn containers_of(&self, target: &Target) -> Result<Vec<ContainerSummary>, Error> {
        let (node, id) = match target {
            Target::Node { node, external_id } => (Some(*node), external_id.as_ref()),
            Target::Resource { kind, id } if *kind == ResourceKind::INSTANCES => (None, Some(id)),
            Target::Resource { kind, .. } => {
                return Err(Error::unsupported(&format!("delete {kind}")));
            }
        };
        let id = id.map(text_id).transpose()?;
        let owner = &self.options.owner;
        let mut containers = self.client.containers().await?;
        containers.retain(|container| {
            Some(&container.id) == id.as_ref()
                || node.is_some_and(|node| owner.owns_node(&container.tags(), node))
        });
        Ok(containers)
    }
}
