//! Labels of a configuration, for tests of what is made of them.

use std::path::Path;

use nodeyard_config::{ClusterLabel, Driver, Environment, Mode, load_bytes};

/// The only label of a provider; `text` is the inside of a YAML mapping.
pub(crate) fn label(driver: &str, text: &str) -> ClusterLabel {
    let file = format!(
        "labels: [{{name: small}}]\nproviders: [{{name: p, driver: {driver}, context: c, pools: [{{name: main, \
         labels: [{{name: small, {text}}}]}}]}}]\n"
    );
    let main = (Path::new("nodepool.yaml"), file.as_bytes());
    let (config, problems) = load_bytes(main, None, &Environment::new(), Mode::Daemon);
    let config = config.unwrap_or_else(|| panic!("{file}: {problems:?}"));
    let pools = match &config.providers[0].driver {
        Driver::Kubernetes(section) => &section.pools,
        Driver::OpenShift(section) => &section.pools,
        Driver::OpenShiftPods(section) => &section.pools,
        other => panic!("{other:?}"),
    };
    pools[0].labels[0].clone()
}
