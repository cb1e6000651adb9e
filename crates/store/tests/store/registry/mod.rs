//! Requests, nodes, images and components, as the launcher and the builder use them.

mod components;
mod images;
mod json;
mod nodes;
mod requests;

use std::sync::Arc;

use nodeyard_model::{Node, ProviderName, Timestamp};
use nodeyard_store::TreePath;
use nodeyard_store::embedded::Embedded;
use nodeyard_store::registry::Registry;
use tempfile::TempDir;

struct Bed {
    store: Arc<Embedded>,
    registry: Registry,
    _directory: TempDir,
}

fn bed() -> Bed {
    let directory = tempfile::tempdir().unwrap();
    let store = Embedded::open(directory.path()).unwrap();
    let registry = Registry::new(store.session());
    Bed {
        store,
        registry,
        _directory: directory,
    }
}

fn p(path: &str) -> TreePath {
    TreePath::new(path).unwrap()
}

fn at(seconds: f64) -> Timestamp {
    Timestamp::from_secs(seconds).unwrap()
}

fn node() -> Node {
    let mut node = Node::init(at(1.0));
    node.provider = Some(ProviderName::new("cloud").unwrap());
    node
}

async fn names(registry: &Registry, path: &str) -> Vec<String> {
    nodeyard_store::ext::child_names(&**registry.tree(), &p(path))
        .await
        .unwrap()
}
