//! Lists of what the cloud has, shared by all operations.

use std::collections::HashMap;
use std::time::Duration;

use nodeyard_driver::{Error, Resource, ResourceKind, Tags};
use nodeyard_driver_common::openstack::takes;
use nodeyard_model::{NodeId, Resources};
use nodeyard_openstack::{FloatingIp, Port, Server};

use super::volumes::volume_tags;
use super::{List, OpenStackDriver};
use crate::failure::driver_error;
use crate::{description, images};

impl OpenStackDriver {
    pub(super) async fn ports(&self, age: Duration) -> List<Port> {
        let fetch = async { self.network.ports().await.map_err(driver_error) };
        self.ports.within(age, fetch).await
    }

    pub(super) async fn floating_ips(&self, age: Duration) -> List<FloatingIp> {
        let fetch = async { self.network.floating_ips().await.map_err(driver_error) };
        self.floating_ips.within(age, fetch).await
    }

    /// Whether the server exists and carries the id of the node.
    pub(super) fn is_of_node(&self, server: &Server, node: NodeId) -> bool {
        !server.is_gone() && self.options.owner.owns_node(&tags(server), node)
    }

    pub(super) async fn list_resources(&self) -> Result<Vec<Resource>, Error> {
        let servers = self.all_servers().await?;
        let flavors = self.flavors().await?;
        let flavors: HashMap<_, _> = flavors.iter().map(|f| (&*f.id, f)).collect();
        let volumes = self.volumes_of(&servers).await?;
        let sizes: HashMap<_, _> = volumes.iter().map(|v| (&*v.id, v.size)).collect();
        let mut all: Vec<_> = servers
            .iter()
            .filter(|server| !server.is_gone())
            .map(|server| {
                let attached = server.volumes.iter().map(|volume| &*volume.id);
                let sizes = attached.filter_map(|id| sizes.get(id).copied());
                let flavor = server
                    .flavor
                    .as_ref()
                    .and_then(|flavor| flavor.id.as_deref());
                let flavor = flavor.and_then(|id| flavors.get(id));
                // A server of a deleted flavor counts as one machine.
                let takes = flavor
                    .map_or_else(|| Resources::new(0, 1, 0), |f| takes(f.vcpus, f.ram, sizes));
                resource(
                    ResourceKind::INSTANCES,
                    &server.id,
                    &server.name,
                    tags(server),
                    takes,
                )
            })
            .collect();
        let nothing = Resources::default;
        all.extend(volumes.iter().map(|volume| {
            let name = volume.name.as_deref().unwrap_or_default();
            resource(
                ResourceKind::VOLUMES,
                &volume.id,
                name,
                volume_tags(volume),
                nothing(),
            )
        }));
        if self.has_floating_ips().await? {
            let ips = self.floating_ips(Duration::ZERO).await?;
            all.extend(ips.iter().map(|ip| {
                let tags = description::tags(&ip.description);
                resource(
                    ResourceKind::FLOATING_IPS,
                    &ip.id,
                    &ip.address,
                    tags,
                    nothing(),
                )
            }));
        }
        let images = images::list(&self.session).await.map_err(driver_error)?;
        all.extend(images.into_iter().map(|image| Resource {
            kind: ResourceKind::IMAGES,
            tags: image.tags(),
            id: image.id,
            name: Some(image.name),
            takes: nothing(),
        }));
        Ok(all)
    }
}

pub(super) fn tags(server: &Server) -> Tags {
    Tags::from_metadata(server.texts())
}

fn resource(kind: ResourceKind, id: &str, name: &str, tags: Tags, takes: Resources) -> Resource {
    Resource {
        kind,
        id: id.into(),
        name: (!name.is_empty()).then(|| name.into()),
        tags,
        takes,
    }
}
