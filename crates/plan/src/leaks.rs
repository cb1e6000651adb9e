//! Resources in a cloud that no record accounts for.
//!
//! A record is written before its resource is made, so a resource of ours without a record is left over, provided that
//! the records were read after the cloud was asked. Two looks must show it, with some time and no look to the contrary in between. What
//! does not carry our system id is somebody else's, whatever it looks like. A record that cannot be understood is a
//! record: nobody knows what it says, so what belongs to it stays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodeyard_model::{BuildId, NodeId, ProviderName, Timestamp, UploadId};

use crate::world::World;

/// Something that a driver found in its cloud.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// What kind it is, as the driver calls it: `instances`, `volumes`, `images`.
    pub kind: Box<str>,
    /// What the cloud calls it.
    pub id: Box<str>,
    /// The system id it carries.
    pub system: Option<Box<str>>,
    pub belongs_to: Owner,
}

/// The record that a resource says it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Node(NodeId),
    Upload(BuildId, UploadId),
    /// It does not say, or not legibly.
    Unknown,
}

/// One look at a provider's cloud, and at the store after it.
#[derive(Debug)]
pub struct Look<'a> {
    pub system: &'a str,
    pub provider: &'a ProviderName,
    /// Everything that was found.
    pub listing: &'a [Resource],
    /// Uploads to this provider that have a record, whether it makes sense or not.
    pub uploads: &'a BTreeSet<(BuildId, UploadId)>,
    /// There is a record of an upload to some provider.
    pub any_upload: bool,
    pub at: Timestamp,
}

/// What has been without a record at every look since when, by provider. Lives as long as the launcher; a restart
/// only means one look more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sightings(BTreeMap<ProviderName, BTreeMap<Name, Timestamp>>);

/// Kind and id of a resource.
type Name = (Box<str>, Box<str>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaks {
    /// Seen twice without a record: delete these. What is seen again nevertheless has to be seen twice again.
    Found(Vec<Resource>),
    /// Resources of ours exist, and the store has no record of anything. It was emptied or is the wrong one:
    /// nothing must be deleted, and somebody has to look.
    NoRecords { resources: usize },
}

/// Judges a look, with at least `apart` between the two sightings that make a leak.
pub fn judge(world: &World, look: &Look<'_>, apart: Duration, sightings: &mut Sightings) -> Leaks {
    let ours: Vec<&Resource> = look
        .listing
        .iter()
        .filter(|resource| resource.system.as_deref() == Some(look.system))
        .collect();
    if !ours.is_empty() && world.node_count() == 0 && !look.any_upload {
        sightings.0.remove(look.provider);
        let resources = ours.len();
        return Leaks::NoRecords { resources };
    }
    let is_recorded = |resource: &Resource| match resource.belongs_to {
        Owner::Node(id) => {
            let node = world.fleet.node(id);
            node.is_some_and(|node| node.provider.as_ref() == Some(look.provider))
                || world.fleet.is_illegible(id)
        }
        Owner::Upload(build, upload) => look.uploads.contains(&(build, upload)),
        Owner::Unknown => false,
    };
    let unrecorded = ours.into_iter().filter(|resource| !is_recorded(resource));
    let before = sightings.0.remove(look.provider).unwrap_or_default();
    let mut seen = BTreeMap::new();
    let mut leaked = Vec::new();
    for resource in unrecorded {
        let name = (resource.kind.clone(), resource.id.clone());
        match before.get(&name) {
            Some(first) if look.at.since(*first) >= apart => leaked.push(resource.clone()),
            Some(first) => {
                seen.insert(name, *first);
            }
            None => {
                seen.insert(name, look.at);
            }
        }
    }
    sightings.0.insert(look.provider.clone(), seen);
    Leaks::Found(leaked)
}
