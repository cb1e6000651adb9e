use nodeyard_openstack::{Clouds, Net, ProcessEnvironment};
use serde_json::{Value, json};

use super::*;

/// A cloud whose entry has these keys besides the necessary ones.
fn settings(more: &str) -> CloudSettings {
    let directory = tempfile::tempdir().unwrap();
    let text = format!(
        "clouds:\n  c:\n    auth: {{auth_url: 'http://c/v3', username: u, password: p, project_name: x, domain_name: d}}\n{more}"
    );
    std::fs::write(directory.path().join("clouds.yaml"), text).unwrap();
    let around = ProcessEnvironment {
        directory: directory.path().to_owned(),
        ..ProcessEnvironment::default()
    };
    Clouds::find(&around)
        .unwrap()
        .cloud(Some("c"), None)
        .unwrap()
}

fn networks(settings: &CloudSettings) -> Networks {
    let net = |id: &str, name: &str, external| Net {
        id: id.into(),
        name: name.into(),
        external,
        physical: None,
    };
    let all = vec![
        net("1", "ci-net", false),
        net("2", "public", true),
        net("3", "lab", false),
    ];
    Networks::new(settings, all).unwrap()
}

fn server(addresses: &Value) -> Server {
    serde_json::from_value(json!({"id": "s", "status": "ACTIVE", "addresses": addresses})).unwrap()
}

fn address(addr: &str, kind: &str, mac: &str) -> Value {
    let version = if addr.contains(':') { 6 } else { 4 };
    json!({"addr": addr, "version": version, "OS-EXT-IPS:type": kind, "OS-EXT-IPS-MAC:mac_addr": mac})
}

fn choose(more: &str, local_ipv6: bool, server: &Server) -> ServerAddresses {
    let settings = settings(more);
    let networks = networks(&settings);
    let choice = AddressChoice {
        settings: &settings,
        networks: &networks,
        local_ipv6,
    };
    choice.of(server)
}

fn interface(more: &str, local_ipv6: bool, server: &Server) -> Option<String> {
    choose(more, local_ipv6, server).interface.map(Into::into)
}

#[test]
fn a_private_server_has_no_interface_until_it_has_a_floating_ip() {
    let plain = server(&json!({"ci-net": [address("10.9.0.4", "fixed", "a")]}));
    let chosen = choose("", false, &plain);
    assert_eq!(chosen.interface, None);
    assert_eq!(chosen.private_v4.as_deref(), Some("10.9.0.4"));
    assert!(lacks_public_address(&plain, &chosen));
    let with = server(&json!({"ci-net": [
        address("10.9.0.4", "fixed", "a"), address("203.0.113.9", "floating", "a"),
    ]}));
    let chosen = choose("", false, &with);
    assert_eq!(chosen.public_v4.as_deref(), Some("203.0.113.9"));
    assert_eq!(chosen.interface.as_deref(), Some("203.0.113.9"));
    assert!(!lacks_public_address(&with, &chosen));
    assert_eq!(
        interface("    private: true\n", false, &with).as_deref(),
        Some("10.9.0.4")
    );
}

#[test]
fn the_private_address_is_the_one_behind_the_floating_ip() {
    let two = server(&json!({
        "ci-net": [address("10.9.0.4", "fixed", "a")],
        "lab": [address("10.1.0.4", "fixed", "b"), address("203.0.113.9", "floating", "b")],
    }));
    assert_eq!(
        choose("", false, &two).private_v4.as_deref(),
        Some("10.1.0.4")
    );
}

#[test]
fn an_external_network_needs_no_floating_ip() {
    let direct = server(
        &json!({"public": [address("198.51.100.7", "fixed", "a"), address("2001:db8::7", "fixed", "a")]}),
    );
    let chosen = choose("", false, &direct);
    assert_eq!(chosen.public_v4.as_deref(), Some("198.51.100.7"));
    assert_eq!(chosen.public_v6.as_deref(), Some("2001:db8::7"));
    assert!(!lacks_public_address(&direct, &chosen));
    // IPv6 goes first where this host has it, unless somebody objects.
    assert_eq!(
        interface("", false, &direct).as_deref(),
        Some("198.51.100.7")
    );
    assert_eq!(interface("", true, &direct).as_deref(), Some("2001:db8::7"));
    assert_eq!(
        interface("    force_ipv4: true\n", true, &direct).as_deref(),
        Some("198.51.100.7")
    );
    assert_eq!(
        choose("    force_ipv4: true\n", true, &direct).public_v6,
        None
    );
}

#[test]
fn clouds_yaml_may_name_the_network_to_use() {
    let two = server(&json!({
        "ci-net": [address("10.9.0.4", "fixed", "a")],
        "public": [address("198.51.100.7", "fixed", "b")],
    }));
    assert_eq!(interface("", false, &two).as_deref(), Some("198.51.100.7"));
    let named = "    networks:\n    - {name: ci-net, default_interface: true}\n";
    assert_eq!(interface(named, false, &two).as_deref(), Some("10.9.0.4"));
    // A network that leads out although it does not look like it.
    let routed =
        "    networks:\n    - {name: ci-net, routes_externally: true}\n    - {name: public}\n";
    assert_eq!(interface(routed, false, &two).as_deref(), Some("10.9.0.4"));
}

#[test]
fn what_nova_was_told_goes_before_everything() {
    let mut told = server(&json!({"public": [address("198.51.100.7", "fixed", "a")]}));
    told.access_ipv4 = Some("192.0.2.1".into());
    assert_eq!(
        choose("", false, &told).public_v4.as_deref(),
        Some("192.0.2.1")
    );
    told.access_ipv4 = Some("".into());
    assert_eq!(
        choose("", false, &told).public_v4.as_deref(),
        Some("198.51.100.7")
    );
}

#[test]
fn an_address_of_the_world_is_public_wherever_it_is() {
    let odd = server(
        &json!({"lab": [address("10.1.0.4", "fixed", "a"), address("8.8.4.4", "fixed", "a")]}),
    );
    assert_eq!(
        choose("", false, &odd).public_v4.as_deref(),
        Some("8.8.4.4")
    );
}

#[test]
fn a_network_of_clouds_yaml_has_to_exist() {
    let settings = settings("    networks:\n    - {name: nowhere}\n");
    let error = Networks::new(&settings, Vec::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"clouds.yaml: the cloud has no network "nowhere"; there is none"#
    );
}
