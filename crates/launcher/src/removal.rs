//! Deletes the resources of a node in a cloud, including the machine of a Python launcher that was killed before it
//! stored the id of the machine.

use std::time::Duration;

use nodeyard_driver::{Error, ExternalId, Machines, Resource, ResourceKind, Target};
use nodeyard_model::{Node, NodeId};

use crate::launch::delete_in_cloud;
use crate::launcher_id;

/// Deletes the machine of a node, for at most `limit`.
pub async fn delete_machine(
    machines: &dyn Machines,
    id: NodeId,
    node: &Node,
    limit: Duration,
) -> Result<(), Error> {
    let recorded = ExternalId::from_record(&node.external_id);
    if recorded.is_none() && !is_of_nodeyard(node) {
        let listed = machines.list().await?;
        for machine in listed.iter().filter(|found| is_of_python(found, id, node)) {
            let target = Target::Node {
                node: id,
                external_id: Some(machine.id.clone()),
            };
            delete_in_cloud(machines, &target, limit).await?;
        }
    }
    let target = Target::Node {
        node: id,
        external_id: recorded,
    };
    delete_in_cloud(machines, &target, limit).await
}

fn is_of_nodeyard(node: &Node) -> bool {
    node.launcher.as_ref().is_some_and(launcher_id::is_nodeyard)
}

/// Returns whether a Python launcher created the machine for the node: it has Nodepool's tags, and no system id.
fn is_of_python(machine: &Resource, id: NodeId, node: &Node) -> bool {
    let tags = &machine.tags;
    machine.kind == ResourceKind::INSTANCES
        && tags.system.is_none()
        && tags.provider.is_some()
        && tags.provider == node.provider
        && tags.node == Some(id)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use nodeyard_driver::{CreateOrder, Instance, Progress, SystemId, Tags};
    use nodeyard_model::{Label, Limits, NodeState, PoolName, ProviderName, Resources, now};

    use super::*;

    #[derive(Debug)]
    struct Cloud {
        listed: Vec<Resource>,
        deleted: Mutex<Vec<Target>>,
    }

    #[async_trait]
    impl Machines for Cloud {
        async fn create(&self, _: &CreateOrder, _: &Progress) -> Result<Instance, Error> {
            Err(Error::unsupported("create machines"))
        }

        async fn delete(&self, target: &Target) -> Result<(), Error> {
            self.deleted.lock().unwrap().push(target.clone());
            Ok(())
        }

        async fn list(&self) -> Result<Vec<Resource>, Error> {
            Ok(self.listed.clone())
        }

        async fn limits(&self) -> Result<Limits, Error> {
            Ok(Limits::unlimited())
        }

        async fn cost(&self, _: &PoolName, _: &Label) -> Result<Resources, Error> {
            Ok(Resources::default())
        }
    }

    fn node_id(number: u32) -> NodeId {
        format!("{number:010}").parse().unwrap()
    }

    fn machine(id: &str, system: Option<&str>, provider: &str, node: u32) -> Resource {
        Resource {
            kind: ResourceKind::INSTANCES,
            id: id.into(),
            name: None,
            tags: Tags {
                system: system.map(SystemId::new),
                provider: Some(ProviderName::new(provider).unwrap()),
                node: Some(node_id(node)),
                ..Tags::default()
            },
            takes: Resources::default(),
        }
    }

    /// Returns the ids that the deletion of node 1 names.
    async fn deleted(launcher: &str, external_id: Option<&str>) -> Vec<Option<ExternalId>> {
        let cloud = Cloud {
            listed: vec![
                machine("lost", None, "cloud", 1),
                machine("of another node", None, "cloud", 2),
                machine("of another provider", None, "other", 1),
                machine("of another system", Some("other"), "cloud", 1),
            ],
            deleted: Mutex::default(),
        };
        let mut node = Node::new(NodeState::Deleting, now());
        node.provider = Some(ProviderName::new("cloud").unwrap());
        node.launcher = Some(launcher.into());
        if let Some(id) = external_id {
            node.external_id = ExternalId::from(id).to_record();
        }
        let limit = Duration::from_secs(600);
        delete_machine(&cloud, node_id(1), &node, limit)
            .await
            .unwrap();
        let targets = cloud.deleted.into_inner().unwrap().into_iter();
        let named = targets.map(|target| match target {
            Target::Node { external_id, .. } => external_id,
            Target::Resource { id, .. } => Some(id),
        });
        named.collect()
    }

    #[tokio::test]
    async fn a_machine_whose_id_a_killed_python_launcher_did_not_store_is_deleted() {
        let python = "host-PoolWorker.cloud-main-0123456789abcdef0123456789abcdef";
        assert_eq!(deleted(python, None).await, [Some("lost".into()), None]);
        assert_eq!(deleted(python, Some("known")).await, [Some("known".into())]);
        let ours = launcher_id::generate("host", &"cloud".parse().unwrap(), &"main".into());
        assert_eq!(deleted(ours.as_str(), None).await, [None]);
    }
}
