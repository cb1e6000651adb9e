//! Nodepool's own tests, on our launcher and our builder.

use std::os::unix::fs::symlink;
use std::path::Path;

use nodeyard_testbeds::{ZooKeeperServer, nodepool_suite};

#[test]
fn pass_with_our_programs() {
    let zookeeper = ZooKeeperServer::start().unwrap();
    let programs = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_nodeyard"));
    for name in ["nodepool-launcher", "nodepool-builder"] {
        symlink(binary, programs.path().join(name)).unwrap();
    }
    let report = nodepool_suite::run(&zookeeper, programs.path()).unwrap();
    for (test, output) in &report.failed {
        eprintln!("==== {test}\n{output}");
    }
    for (test, _) in &report.repeated {
        eprintln!("{test} did not pass at its first try");
    }
    let failed: Vec<&String> = report.failed.iter().map(|(test, _)| test).collect();
    assert!(failed.is_empty(), "{failed:?}");
    eprintln!("{} tests of Nodepool passed", report.passed);
    assert!(report.passed > 0, "the list is empty");
}
