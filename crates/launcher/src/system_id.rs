//! The id that marks everything this installation makes in a cloud. Made once, by whoever comes first.

use bytes::Bytes;
use nodeyard_driver::SystemId;
use nodeyard_model::layout;
use nodeyard_store::{CreateMode, Tree, TreePath, ext};
use uuid::Uuid;

use crate::error::Error;

/// The system id of this installation, which is made if there is none.
pub async fn obtain(tree: &dyn Tree) -> Result<SystemId, Error> {
    ext::persist(tree, || read_or_make(tree))
        .await
        .map_err(Error::from)
        .and_then(|data| {
            let bad = || Error::BadSystemId {
                path: layout::SYSTEM_ID.to_owned(),
            };
            let text = std::str::from_utf8(&data).map_err(|_| bad())?;
            if text.is_empty() || text.contains(char::is_whitespace) {
                return Err(bad());
            }
            Ok(SystemId::new(text))
        })
}

async fn read_or_make(tree: &dyn Tree) -> nodeyard_store::Result<Bytes> {
    let path = TreePath::new(layout::SYSTEM_ID)?;
    if let Some(parent) = path.parent() {
        ext::ensure_path(tree, &parent).await?;
    }
    let made = Bytes::from(Uuid::new_v4().simple().to_string());
    match tree.create(&path, made, CreateMode::Persistent).await {
        Ok(_) => {}
        Err(error) if error.is_node_exists() => {}
        Err(error) => return Err(error),
    }
    Ok(tree.get(&path).await?.data)
}
