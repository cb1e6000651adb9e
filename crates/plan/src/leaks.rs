//! Finds resources in a cloud that have no record.
//!
//! A record is written before its resource is created, so a resource of ours without a record is left over, provided
//! that the records were read after the cloud was listed. Two scans must find it, with a minimum time and no scan to
//! the contrary in between. Resources without our system id are never ours. A record that cannot be decoded still
//! protects its resource.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nodeyard_model::{BuildId, NodeId, ProviderName, Timestamp, UploadId};

use crate::scheduler::RequestScheduler;

/// A resource that a driver listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundResource {
    /// Its kind as the driver names it: `instances`, `volumes`, `images`.
    pub kind: Box<str>,
    /// Its id in the cloud.
    pub id: Box<str>,
    /// The system id it carries.
    pub system: Option<Box<str>>,
    pub belongs_to: ResourceOwner,
}

/// The record that a resource names in its tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceOwner {
    Node(NodeId),
    Upload(BuildId, UploadId),
    /// Its tags name none, or are invalid.
    Unknown,
}

/// One listing of the cloud of a provider, and the store records read after it.
#[derive(Debug)]
pub struct LeakScan<'a> {
    pub system: &'a str,
    pub provider: &'a ProviderName,
    /// All listed resources.
    pub listing: &'a [FoundResource],
    /// Uploads to this provider that have a record, valid or not.
    pub uploads: &'a BTreeSet<(BuildId, UploadId)>,
    /// Any provider has an upload with a record.
    pub any_upload: bool,
    pub at: Timestamp,
}

/// The resources without a record, with the time of the first scan that found each, by provider. In memory only; a
/// restart costs one more scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeakSightings(BTreeMap<ProviderName, BTreeMap<ResourceKey, Timestamp>>);

/// Kind and id of a resource.
type ResourceKey = (Box<str>, Box<str>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaks {
    /// Found twice without a record: delete these. A resource that remains has to be found twice again.
    Found(Vec<FoundResource>),
    /// Resources of ours exist, but the store has no records. It was emptied or is the wrong one: nothing may be
    /// deleted, and an operator has to check.
    NoRecords { resources: usize },
}

/// Returns the leaked resources of a scan. At least `apart` must lie between the two scans that find one.
pub fn find_leaks(
    scheduler: &RequestScheduler,
    scan: &LeakScan<'_>,
    apart: Duration,
    sightings: &mut LeakSightings,
) -> Leaks {
    let ours: Vec<&FoundResource> = scan
        .listing
        .iter()
        .filter(|resource| resource.system.as_deref() == Some(scan.system))
        .collect();
    if !ours.is_empty() && scheduler.node_count() == 0 && !scan.any_upload {
        sightings.0.remove(scan.provider);
        let resources = ours.len();
        return Leaks::NoRecords { resources };
    }
    let is_recorded = |resource: &FoundResource| match resource.belongs_to {
        ResourceOwner::Node(id) => {
            let node = scheduler.node_index.node(id);
            node.is_some_and(|node| node.provider.as_ref() == Some(scan.provider))
                || scheduler.node_index.is_unreadable(id)
        }
        ResourceOwner::Upload(build, upload) => scan.uploads.contains(&(build, upload)),
        ResourceOwner::Unknown => false,
    };
    let unrecorded = ours.into_iter().filter(|resource| !is_recorded(resource));
    let before = sightings.0.remove(scan.provider).unwrap_or_default();
    let mut seen = BTreeMap::new();
    let mut leaked = Vec::new();
    for resource in unrecorded {
        let name = (resource.kind.clone(), resource.id.clone());
        match before.get(&name) {
            Some(first) if scan.at.since(*first) >= apart => leaked.push(resource.clone()),
            Some(first) => {
                seen.insert(name, *first);
            }
            None => {
                seen.insert(name, scan.at);
            }
        }
    }
    sightings.0.insert(scan.provider.clone(), seen);
    Leaks::Found(leaked)
}
