//! Where the sources are of what is tested.

use std::env;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// The root of the checkout that the running test belongs to.
///
/// Cargo says so at run time. What the compiler was told is another checkout if two of them share a target
/// directory, so it counts only for a program that somebody starts by hand.
pub fn checkout() -> &'static Path {
    static CHECKOUT: LazyLock<PathBuf> = LazyLock::new(|| {
        let compiled = Path::new(env!("CARGO_MANIFEST_DIR"));
        let package = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let root = package.as_deref().and_then(root_of);
        let root = root.or_else(|| root_of(compiled)).unwrap_or(compiled);
        root.to_owned()
    });
    &CHECKOUT
}

/// The directory that has this crate as well as the package.
fn root_of(package: &Path) -> Option<&Path> {
    let mut above = package.ancestors();
    above.find(|directory| directory.join("testbeds/Cargo.toml").is_file())
}

/// The directory of this crate, where the scripts are.
pub(crate) fn testbeds() -> PathBuf {
    checkout().join("testbeds")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkout_is_found_from_any_of_its_packages_and_from_no_other_place() {
        let root = tempfile::tempdir().unwrap();
        let package = root.path().join("drivers/deep/inside");
        std::fs::create_dir_all(&package).unwrap();
        assert_eq!(root_of(&package), None);
        let crate_of_testbeds = root.path().join("testbeds");
        std::fs::create_dir_all(&crate_of_testbeds).unwrap();
        std::fs::write(crate_of_testbeds.join("Cargo.toml"), "").unwrap();
        assert_eq!(root_of(&package), Some(root.path()));
        assert_eq!(root_of(&crate_of_testbeds), Some(root.path()));
        assert!(checkout().join("testbeds/src/checkout.rs").is_file());
    }
}
