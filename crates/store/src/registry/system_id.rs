//! The system id, which tags all cloud resources of this installation. Created on first use.

use bytes::Bytes;
use nodeyard_model::layout;
use uuid::Uuid;

use super::{Registry, path};
use crate::error::{Error, Result};
use crate::ext;
use crate::tree::CreateMode;

impl Registry {
    /// Returns the id of this installation, creating it if needed.
    pub async fn system_id(&self) -> Result<Box<str>> {
        let path = path(layout::SYSTEM_ID)?;
        if let Some(parent) = path.parent() {
            ext::ensure_path(&*self.tree, &parent).await?;
        }
        let made = Bytes::from(Uuid::new_v4().simple().to_string());
        match self.tree.create(&path, made, CreateMode::Persistent).await {
            Ok(_) => {}
            Err(error) if error.is_node_exists() => {}
            Err(error) => return Err(error),
        }
        let data = self.tree.get(&path).await?.data;
        match std::str::from_utf8(&data) {
            Ok(text) if !text.is_empty() && !text.contains(char::is_whitespace) => Ok(text.into()),
            _ => Err(Error::BadSystemId { path }),
        }
    }
}
