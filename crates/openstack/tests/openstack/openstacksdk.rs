//! The real openstacksdk reads the same files and makes the same of them.
//!
//! Needs the Python environment with Nodepool that `make testbeds` installs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use nodeyard_openstack::{
    CloudSettings, Clouds, Credentials, Domain, ProcessEnvironment, Scope, Service, User,
};
use nodeyard_testbeds::checkout;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

const CLOUDS: &str = "
clouds:
  plain:
    auth:
      auth_url: https://keystone.example/v3
      username: zuul
      password: from-clouds
      project_name: ci
      user_domain_name: Default
      project_domain_id: default
    region_name: RegionOne
    image_format: raw
    cacert: /etc/ssl/own.pem
    cert: /etc/ssl/me.pem
    key: /etc/ssl/me.key
    api_timeout: 17
    image_endpoint_override: https://glance.example/v2
    volume-interface: internal
  one-domain:
    auth: {auth_url: https://k/v3, username: zuul, password: 'p', project_name: ci, domain_name: Default}
    identity_api_version: 3
    endpoint_type: internal
    verify: false
  old-words:
    auth: {auth_url: https://k/v3, username: zuul, password: p, tenant_name: ci, user_domain_id: d, project_domain_id: d}
    insecure: 'True'
  of-a-provider:
    profile: provider
    auth: {username: zuul, password: p, project_id: 42}
  its-second-region:
    profile: provider
    auth: {username: zuul, password: p, project_id: '42'}
  app-id:
    auth_type: v3applicationcredential
    auth: {auth_url: https://k, application_credential_id: abc, application_credential_secret: s}
  app-name:
    auth_type: v3applicationcredential
    auth: {auth_url: https://k, application_credential_name: n, application_credential_secret: s, username: u, user_domain_id: d}
  token:
    auth_type: v3token
    auth: {auth_url: https://k/v3, token: t, project_id: p}
  regions:
    auth: {auth_url: 'https://{region_name}.example/v3', username: zuul, password: 'a{b}', project_id: p, user_domain_id: d}
    regions:
    - name: north
      values: {image_format: vhd, auth: {project_id: of-north}}
    - south
  networked:
    auth: {auth_url: https://k/v3, username: zuul, password: p, project_id: p, user_domain_id: d}
    private: true
    force_ipv4: true
    networks:
    - {name: inner, nat_destination: true, default_interface: true}
    - {name: outer, routes_externally: true, routes_ipv6_externally: false}
    - {name: from, nat_source: true}
";

const SECURE: &str = "
clouds:
  plain:
    auth: {password: from-secure}
";

const PUBLIC: &str = "
public-clouds:
  provider:
    auth: {auth_url: 'https://{region_name}.provider.example/v3', user_domain_name: Default}
    regions: [east, west]
    image_format: vmdk
";

/// Asks openstacksdk, with the loader of its session left out: it would want to log in.
const ASK: &str = r#"
import json, sys, warnings
warnings.simplefilter("ignore")
from openstack.config import loader
asked = json.load(sys.stdin)
config = loader.OpenStackConfig()
answers = []
for name, region in asked:
    try:
        c = config.get_one(cloud=name, **({"region_name": region} if region else {}))
    except Exception as error:
        answers.append({"error": type(error).__name__})
        continue
    verify, cert = c.get_requests_verify_args()
    auth = {k: v for k, v in c.config["auth"].items()}
    answers.append({
        "auth_type": c.config["auth_type"], "auth": auth, "region": c.config["region_name"] or None,
        "image_format": c.config["image_format"], "verify": verify, "cert": list(cert) if cert else None,
        "interface": c.get_interface(), "volume_interface": c.get_interface("block-storage"),
        "image_endpoint": c.get_endpoint("image"), "force_ipv4": bool(c.force_ipv4),
        "private": c.config.get("private", False),
        "api_timeout": c.config.get("api_timeout") and float(c.config["api_timeout"]),
        "default_network": c.get_default_network(), "nat_destination": c.get_nat_destination(),
        "nat_source": c.get_nat_source(),
        "external_v4": c.get_external_ipv4_networks(), "external_v6": c.get_external_ipv6_networks(),
    })
print(json.dumps(answers))
"#;

fn python() -> PathBuf {
    let script = checkout().join("testbeds/python/install.sh");
    let found = Command::new(script)
        .args(["--find", "nodepool"])
        .output()
        .unwrap();
    assert!(
        found.status.success(),
        "the Python environment with Nodepool is missing: run `make testbeds`"
    );
    PathBuf::from(String::from_utf8(found.stdout).unwrap().trim()).join("bin/python")
}

struct Bed {
    directory: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl Bed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("clouds.yaml", CLOUDS),
            ("secure.yaml", SECURE),
            ("clouds-public.yaml", PUBLIC),
        ] {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let home = directory.path().to_str().unwrap().to_owned();
        Self {
            variables: BTreeMap::from([("HOME".to_owned(), home)]),
            directory,
        }
    }

    fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    fn openstacksdk(&self, asked: &[(Option<&str>, Option<&str>)]) -> Vec<Value> {
        let question = self.directory.path().join("question.json");
        std::fs::write(&question, json!(asked).to_string()).unwrap();
        let output = Command::new(python())
            .args(["-c", ASK])
            .current_dir(self.directory.path())
            .env_clear()
            .envs(&self.variables)
            .stdin(std::fs::File::open(question).unwrap())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn clouds(&self) -> Clouds {
        let around = ProcessEnvironment {
            variables: self.variables.clone(),
            directory: self.directory.path().to_owned(),
        };
        Clouds::find(&around).unwrap()
    }
}

fn domain(auth: &mut Value, prefix: &str, domain: &Domain) {
    match domain {
        Domain::Id(id) => auth[format!("{prefix}_id")] = json!(id),
        Domain::Name(name) => auth[format!("{prefix}_name")] = json!(name),
    }
}

fn user(auth: &mut Value, user: &User) {
    match user {
        User::Id(id) => auth["user_id"] = json!(id),
        User::Named { name, domain: of } => {
            auth["username"] = json!(name);
            domain(auth, "user_domain", of);
        }
    }
}

fn scope(auth: &mut Value, scope: &Scope) {
    match scope {
        Scope::ProjectId(id) => auth["project_id"] = json!(id),
        Scope::Project { name, domain: of } => {
            auth["project_name"] = json!(name);
            domain(auth, "project_domain", of);
        }
        Scope::Domain(of) => domain(auth, "domain", of),
        Scope::System => auth["system_scope"] = json!("all"),
        Scope::None => {}
    }
}

/// Ours in the words of openstacksdk.
fn told(cloud: &CloudSettings) -> Value {
    let mut auth = json!({"auth_url": cloud.auth_url.as_str()});
    let kind = match &cloud.credentials {
        Credentials::Password {
            user: of,
            password,
            scope: to,
        } => {
            user(&mut auth, of);
            auth["password"] = json!(password.expose_secret());
            scope(&mut auth, to);
            "password"
        }
        Credentials::ApplicationCredentialId { id, secret } => {
            auth["application_credential_id"] = json!(id);
            auth["application_credential_secret"] = json!(secret.expose_secret());
            "v3applicationcredential"
        }
        Credentials::ApplicationCredentialName {
            name,
            user: of,
            secret,
        } => {
            auth["application_credential_name"] = json!(name);
            auth["application_credential_secret"] = json!(secret.expose_secret());
            user(&mut auth, of);
            "v3applicationcredential"
        }
        Credentials::Token { token, scope: to } => {
            auth["token"] = json!(token.expose_secret());
            scope(&mut auth, to);
            "v3token"
        }
    };
    let of = |service| cloud.services.get(&service).cloned().unwrap_or_default();
    let first = cloud.interfaces.first().cloned();
    let network = |is: fn(&nodeyard_openstack::NetworkSettings) -> bool| -> Vec<_> {
        let networks = cloud.networks.iter().filter(|network| is(network));
        networks.map(|network| network.name.clone()).collect()
    };
    json!({
        "auth_type": kind, "auth": auth, "region": cloud.region,
        "image_format": cloud.image_format,
        "verify": match (&cloud.tls.cacert, cloud.tls.verify) {
            (Some(path), true) => json!(path),
            (_, verify) => json!(verify),
        },
        "cert": cloud.tls.identity.as_ref().map(|(cert, key)| json!([cert, key])),
        "interface": first,
        "volume_interface": of(Service::Volume).interface.or(first),
        "image_endpoint": of(Service::Image).endpoint_override,
        "force_ipv4": cloud.force_ipv4, "private": cloud.private,
        "api_timeout": cloud.api_timeout.map(|limit| limit.as_secs_f64()),
        "default_network": network(|n| n.default_interface).first(),
        "nat_destination": network(|n| n.nat_destination).first(),
        "nat_source": network(|n| n.nat_source).first(),
        "external_v4": network(|n| n.routes_ipv4_externally),
        "external_v6": network(|n| n.routes_ipv6_externally),
    })
}

/// What both make of the address of Keystone: ours is normalised as addresses are.
fn compare(asked: (Option<&str>, Option<&str>), theirs: &Value, ours: &CloudSettings) {
    let mut theirs = theirs.clone();
    if let Some(url) = theirs["auth"]["auth_url"].as_str() {
        let url: nodeyard_openstack::Url = url.parse().unwrap();
        theirs["auth"]["auth_url"] = json!(url.as_str());
    }
    assert_eq!(told(ours), theirs, "{asked:?}");
}

#[test]
fn openstacksdk_and_we_read_the_same() {
    let bed = Bed::new();
    let asked = [
        (Some("plain"), None),
        (Some("one-domain"), None),
        (Some("old-words"), None),
        (Some("of-a-provider"), None),
        (Some("its-second-region"), Some("west")),
        (Some("app-id"), None),
        (Some("app-name"), None),
        (Some("token"), None),
        (Some("regions"), None),
        (Some("regions"), Some("south")),
        (Some("networked"), None),
    ];
    let clouds = bed.clouds();
    for (asked, theirs) in asked.into_iter().zip(bed.openstacksdk(&asked)) {
        let ours = clouds.cloud(asked.0, asked.1).unwrap();
        compare(asked, &theirs, &ours);
    }
    let wrong = [
        (Some("nowhere"), None),
        (Some("regions"), Some("east")),
        (Some("plain"), Some("RegionTwo")),
    ];
    for (asked, theirs) in wrong.into_iter().zip(bed.openstacksdk(&wrong)) {
        assert!(theirs["error"].is_string(), "{asked:?}: {theirs}");
        assert!(clouds.cloud(asked.0, asked.1).is_err(), "{asked:?}");
    }
}

#[test]
fn the_environment_describes_a_cloud_and_names_files() {
    let mut bed = Bed::new();
    for (name, value) in [
        ("OS_AUTH_URL", "https://of.environment/v3"),
        ("OS_USERNAME", "me"),
        ("OS_PASSWORD", "secret"),
        ("OS_PROJECT_NAME", "ci"),
        ("OS_USER_DOMAIN_NAME", "Default"),
        ("OS_PROJECT_DOMAIN_NAME", "Default"),
        ("OS_CACERT", "/etc/ssl/env.pem"),
        ("OS_INTERFACE", "internal"),
        ("OS_FORCE_IPV4", "true"),
    ] {
        bed.set(name, value);
    }
    let asked = [(None, None), (Some("envvars"), None), (Some("plain"), None)];
    for (asked, theirs) in asked.into_iter().zip(bed.openstacksdk(&asked)) {
        compare(
            asked,
            &theirs,
            &bed.clouds().cloud(asked.0, asked.1).unwrap(),
        );
    }

    let mut bed = Bed::new();
    let other = bed.directory.path().join("other.yaml");
    let text = "clouds:\n  only: {auth: {auth_url: https://o/v3, username: u, password: p, project_id: p, user_domain_id: d}}\n";
    std::fs::write(&other, text).unwrap();
    std::fs::remove_file(bed.directory.path().join("secure.yaml")).unwrap();
    bed.set("OS_CLIENT_CONFIG_FILE", other.to_str().unwrap());
    let asked = [(None, None), (Some("only"), None)];
    for (asked, theirs) in asked.into_iter().zip(bed.openstacksdk(&asked)) {
        compare(
            asked,
            &theirs,
            &bed.clouds().cloud(asked.0, asked.1).unwrap(),
        );
    }
}

#[test]
fn what_is_missing_is_named_and_no_secret_is_shown() {
    let bed = Bed::new();
    let clouds = bed.clouds();
    let error = clouds.cloud(Some("nowhere"), None).unwrap_err().to_string();
    assert!(
        error.contains("\"nowhere\"") && error.contains("plain"),
        "{error}"
    );
    let error = clouds
        .cloud(Some("plain"), Some("RegionTwo"))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("RegionTwo") && error.contains("RegionOne"),
        "{error}"
    );
    let plain = clouds.cloud(Some("plain"), None).unwrap();
    let shown = format!("{plain:?} {clouds:?}");
    assert!(
        !shown.contains("from-secure") && !shown.contains("from-clouds"),
        "{shown}"
    );

    let clouds = |text: &str| {
        std::fs::write(bed.directory.path().join("clouds.yaml"), text).unwrap();
        let around = ProcessEnvironment {
            variables: BTreeMap::new(),
            directory: bed.directory.path().to_owned(),
        };
        Clouds::find(&around)
    };
    let error = clouds("clouds: [").unwrap_err().to_string();
    assert!(
        error.contains("clouds.yaml") && error.contains("line"),
        "{error}"
    );
    for (entry, named) in [
        ("{}", "auth_url"),
        ("{auth: {auth_url: 'http://k'}}", "username"),
        ("{auth: {auth_url: 'http://k', username: u}}", "user_domain"),
        (
            "{auth: {auth_url: 'http://k', username: u, user_domain_id: d}}",
            "password",
        ),
        (
            "{auth_type: v3kerberos, auth: {auth_url: 'http://k'}}",
            "v3kerberos",
        ),
        ("{profile: nobody}", "nobody"),
    ] {
        let clouds = clouds(&format!("clouds:\n  c: {entry}\n")).unwrap();
        let error = clouds.cloud(Some("c"), None).unwrap_err().to_string();
        assert!(error.contains(named), "{entry}: {error}");
    }
}
