//! Volumes that servers boot from.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Cloud, CloudError, Reply};

#[derive(Debug, Clone, Serialize)]
pub(super) struct Volume {
    pub(super) id: String,
    name: String,
    status: &'static str,
    pub(super) size: i64,
    bootable: bool,
    attachments: Vec<Attachment>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize)]
struct Attachment {
    server_id: String,
}

#[derive(Debug, Default)]
pub(super) struct Volumes(BTreeMap<String, Volume>);

impl Volumes {
    pub(super) fn add(&mut self, id: &str, server: &str, size: i64) {
        let volume = Volume {
            id: id.to_owned(),
            name: String::new(),
            status: "in-use",
            size,
            bootable: true,
            attachments: vec![Attachment {
                server_id: server.to_owned(),
            }],
            metadata: BTreeMap::new(),
        };
        self.0.insert(volume.id.clone(), volume);
    }

    /// Detaches a volume from its deleted server, or deletes it too. Returns the size of a deleted volume.
    pub(super) fn release(&mut self, id: &str, terminate: bool) -> Option<i64> {
        if terminate {
            return self.0.remove(id).map(|volume| volume.size);
        }
        if let Some(volume) = self.0.get_mut(id) {
            volume.status = "available";
            volume.attachments.clear();
        }
        None
    }
}

impl Cloud {
    pub(super) fn list_volumes(&self) -> Result<Reply, CloudError> {
        Reply::now(&self.volumes.0.values().collect::<Vec<_>>())
    }
}
