//! Configurations loaded for display, with `Mode::Show`.

use std::path::Path;

use nodeyard_config::{Environment, Mode, load_bytes, render};
use serde_json::Value;

const FILE: &str = r#"
labels: [{name: "%(NODEPOOL_LABEL)"}, {name: pod}, {name: container}, {name: machine}, {name: local}]
diskimages:
  - name: img
    env-vars: {OWN: from-the-file, GIVEN: "%(NODEPOOL_SECRET)"}
    metadata: {given: "a-%(NODEPOOL_SECRET)-b"}
providers:
  - name: openstack
    cloud: c
    diskimages: [{name: img, meta: {given: "%(NODEPOOL_SECRET)"}}]
    pools:
      - name: main
        node-attributes: {given: "%(NODEPOOL_SECRET)"}
        labels:
          - name: "%(NODEPOOL_LABEL)"
            diskimage: img
            min-ram: 1
            instance-properties: {own: from-the-file, given: "%(NODEPOOL_SECRET)", pin: %(NODEPOOL_PIN)}
            dynamic-instance-properties: {given: "{request.id} %(NODEPOOL_SECRET)"}
            userdata: |
              #cloud-config
              password: %(NODEPOOL_SECRET)
          - {name: machine, diskimage: img, min-ram: 1, userdata: from-the-file}
  - name: cluster
    driver: kubernetes
    context: c
    pools:
      - name: main
        labels:
          - {name: pod, type: pod, image: i, env: [{name: GIVEN, value: "%(NODEPOOL_SECRET)"}]}
          - name: machine
            type: pod
            spec: {containers: [{name: x, args: ["%(NODEPOOL_SECRET)"]}]}
  - name: host
    driver: container
    pools: [{name: main, labels: [{name: container, image: i, env: {GIVEN: "%(NODEPOOL_SECRET)"}}]}]
  - name: machines
    driver: qemu
    cloud-images: [{name: i, path: /i.qcow2}]
    pools: [{name: main, labels: [{name: local, cloud-image: i, userdata: "%(NODEPOOL_SECRET)"}]}]
"#;

fn read(mode: Mode) -> Value {
    let variables = [
        ("NODEPOOL_LABEL", "large"),
        ("NODEPOOL_PIN", "271828"),
        ("NODEPOOL_SECRET", "hunter2"),
    ];
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let environment: Environment = variables.into_iter().map(owned).collect();
    let main = (Path::new("nodepool.yaml"), FILE.as_bytes());
    let (config, problems) = load_bytes(main, None, &environment, mode);
    let config = config.unwrap_or_else(|| panic!("{}", render(&problems, false)));
    serde_json::to_value(config).unwrap()
}

#[test]
fn values_from_the_environment_are_masked_for_display() {
    let shown = read(Mode::Show).to_string();
    for secret in ["hunter2", "271828"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    // Names that the file itself refers to, and what it says itself, are no secret.
    for public in ["large", "from-the-file"] {
        assert!(shown.contains(public), "{shown}");
    }
}

/// Otherwise it is not what the machines are for.
#[test]
fn values_are_not_masked_for_daemons() {
    let all = read(Mode::Daemon).to_string();
    // Every place but the variable of the build, which is never written out.
    assert_eq!(all.matches("hunter2").count(), 10, "{all}");
    assert!(all.contains("271828"), "{all}");
}
