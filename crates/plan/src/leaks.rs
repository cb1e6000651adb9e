//! Resources in a cloud that no record accounts for.
//!
//! A record is written before its resource is made, so a resource of ours without a record is left over. Two
//! looks in a row must show it, because a look at the cloud and one at the store are never of the same moment.
//! What does not carry our system id is somebody else's, whatever it looks like.

use std::collections::{BTreeMap, BTreeSet};

use nodeyard_model::{NodeId, ProviderName, UploadKey};

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    Node(NodeId),
    Upload(UploadKey),
    /// It does not say, or not legibly.
    Unknown,
}

/// What was without a record at the last look, by provider. Lives as long as the launcher; a restart
/// only means one look more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sightings(BTreeMap<ProviderName, BTreeSet<Name>>);

/// Kind and id of a resource.
type Name = (Box<str>, Box<str>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaks {
    /// Seen twice without a record: delete these.
    Found(Vec<Resource>),
    /// Resources of ours exist, and the store has no record of anything. It was emptied or is the wrong one:
    /// nothing must be deleted, and somebody has to look.
    NoRecords { resources: usize },
}

/// Judges one complete listing of a provider's resources. `uploads` says whether an upload is recorded.
pub fn judge(
    world: &World,
    system: &str,
    provider: &ProviderName,
    listing: &[Resource],
    uploads: &Uploads<'_>,
    sightings: &mut Sightings,
) -> Leaks {
    let ours: Vec<&Resource> = listing
        .iter()
        .filter(|resource| resource.system.as_deref() == Some(system))
        .collect();
    if !ours.is_empty() && world.node_count() == 0 && uploads.none_recorded {
        sightings.0.remove(provider);
        let resources = ours.len();
        return Leaks::NoRecords { resources };
    }
    let is_recorded = |resource: &Resource| match &resource.belongs_to {
        Owner::Node(id) => {
            let node = world.fleet.node(*id);
            node.is_some_and(|node| node.provider.as_ref() == Some(provider))
        }
        Owner::Upload(key) => (uploads.is_recorded)(key),
        Owner::Unknown => false,
    };
    let unrecorded = ours.into_iter().filter(|resource| !is_recorded(resource));
    let before = sightings.0.remove(provider).unwrap_or_default();
    let mut seen = BTreeSet::new();
    let mut leaked = Vec::new();
    for resource in unrecorded {
        let name = (resource.kind.clone(), resource.id.clone());
        if before.contains(&name) {
            leaked.push(resource.clone());
        }
        seen.insert(name);
    }
    sightings.0.insert(provider.clone(), seen);
    Leaks::Found(leaked)
}

/// What the store says of uploads.
pub struct Uploads<'a> {
    pub is_recorded: &'a dyn Fn(&UploadKey) -> bool,
    pub none_recorded: bool,
}

impl std::fmt::Debug for Uploads<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uploads")
            .field("none_recorded", &self.none_recorded)
            .finish_non_exhaustive()
    }
}
