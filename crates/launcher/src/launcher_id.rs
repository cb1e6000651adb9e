//! The ids of pools in one run of a launcher. They are in the format of Nodepool, with a mark that distinguishes them
//! from those of Python launchers.

use nodeyard_model::{LauncherId, PoolName, ProviderName};
use uuid::Uuid;

/// Begins the last part of our ids. In Python's that is a hexadecimal number.
const MARK: &str = "nodeyard.";

/// Returns a new id.
pub(crate) fn generate(host: &str, provider: &ProviderName, pool: &PoolName) -> LauncherId {
    let run = Uuid::new_v4().simple();
    LauncherId::new(format!("{host}-PoolWorker.{provider}-{pool}-{MARK}{run}"))
}

/// Returns whether the launcher is one of Nodeyard.
pub(crate) fn is_nodeyard(id: &LauncherId) -> bool {
    let last = id.as_str().rsplit('-').next();
    last.is_some_and(|last| last.starts_with(MARK))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_ids_are_told_from_those_of_python() {
        let provider = ProviderName::new("cloud").unwrap();
        let id = generate("host", &provider, &"main".into());
        assert!(is_nodeyard(&id), "{id}");
        for python in [
            "host-PoolWorker.cloud-main-0123456789abcdef0123456789abcdef",
            "nodeyard.host-PoolWorker.cloud-nodeyard.-0123456789abcdef0123456789abcdef",
            "",
        ] {
            assert!(!is_nodeyard(&python.into()), "{python}");
        }
    }
}
