//! Templates that cannot be created.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::common::{Yard, label, launch, order};

/// Hangs for machines of 32 MiB, and ends at once for others.
const HANGS_OR_ENDS: &str = "#!/bin/sh
case \" $* \" in *\" -m 32M \"*) exec sleep 3600;; esac
exit 1
";

#[tokio::test]
async fn a_hanging_template_does_not_block_other_labels() {
    let yard = Yard::with(|options| {
        let warm = |name: &str, memory| {
            let mut warm = label();
            (warm.name, warm.memory, warm.warm_template) = (name.into(), memory, true);
            warm
        };
        let binary = options.directory.join("qemu");
        fs::create_dir_all(&options.directory).unwrap();
        fs::write(&binary, HANGS_OR_ENDS).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        options.binary = binary.to_str().unwrap().into();
        options.pools[0].labels = vec![warm("small", 32), warm("other", 64)];
    });
    let driver = yard.driver();
    let (hanging, mut other) = (order(1), order(2));
    other.label = "other".into();
    let launch_other = async {
        while yard.processes().is_empty() {
            tokio::task::yield_now().await;
        }
        launch(&driver, &other).await
    };
    tokio::select! {
        end = launch(&driver, &hanging) => panic!("its template never boots: {end:?}"),
        end = launch_other => assert!(end.is_err()),
    }
}
