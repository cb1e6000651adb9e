//! The client on real services: every way to log in that clouds.yaml has, TLS, regions, and conditions of Neutron.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::path::Path;
use std::time::Duration;

use nodeyard_fetch::Backoff;
use nodeyard_openstack::{
    CloudSettings, Clouds, Compute, Error, ErrorKind, Network, Options, ProcessEnvironment,
    Session, SettingsError, Volumes,
};
use nodeyard_testbeds::openstack::{self as bed, Gateway, GatewayTls, Project, Service};
use nodeyard_testbeds::{Certificates, OpenStack};
use serde_json::json;

struct Bed {
    project: Project,
    gateway: Gateway,
    cloud: OpenStack,
}

impl Bed {
    fn new(purpose: &str) -> Option<Self> {
        let cloud = OpenStack::start_if_possible().unwrap()?;
        Some(Self {
            project: cloud.project(purpose).unwrap(),
            gateway: Gateway::start(&cloud).unwrap(),
            cloud,
        })
    }

    /// What clouds.yaml says of the only cloud.
    fn settings(&self, entry: &str, region: Option<&str>) -> CloudSettings {
        let path = self.project.directory().join("clouds-here.yaml");
        std::fs::write(&path, format!("clouds:\n  here:\n{entry}")).unwrap();
        let path = path.to_str().unwrap().to_owned();
        let around = ProcessEnvironment {
            variables: BTreeMap::from([("OS_CLIENT_CONFIG_FILE".to_owned(), path)]),
            directory: "/".into(),
        };
        let clouds = Clouds::find(&around).unwrap();
        clouds.cloud(None, region).unwrap()
    }

    /// In the region of the project: another test may have one of its own meanwhile.
    fn session(&self, entry: &str) -> Session {
        let region = &self.project.login().region;
        connect(self.settings(entry, Some(region))).unwrap()
    }

    /// The user and the password of the project.
    fn password(&self, auth_url: &str) -> String {
        let login = self.project.login();
        format!(
            "    auth: {{auth_url: '{auth_url}', username: {}, password: {}, project_name: {}, \
             user_domain_id: default, project_domain_id: default}}\n",
            login.user, login.password, login.project
        )
    }

    fn logins(&self) -> usize {
        let counts = self.gateway.counts();
        let logins = counts.get("identity POST /v3/auth/tokens");
        logins.copied().unwrap_or_default()
    }
}

fn connect(settings: CloudSettings) -> Result<Session, SettingsError> {
    let options = Options {
        tries: 2,
        backoff: Backoff {
            initial_delay: Duration::from_millis(20),
            max_delay: Duration::from_secs(1),
        },
        limit: Duration::from_secs(120),
        ..Options::default()
    };
    Session::connect(settings, options)
}

async fn works(session: &Session) -> Result<(), Error> {
    Compute::new(session.clone()).servers().await.map(drop)
}

/// An error and all its causes.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (**error).source());
    let texts: Vec<_> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

#[tokio::test]
async fn an_application_credential_logs_in_by_its_id_and_by_its_name() {
    let Some(bed) = Bed::new("credential") else {
        return;
    };
    let url = bed.gateway.url();
    let login = bed.project.login();
    for by_name in [false, true] {
        let name = format!("robot-{by_name}");
        let credential = bed.project.application_credential(&name).unwrap();
        let who = match by_name {
            false => format!("application_credential_id: {}", credential.id),
            true => format!(
                "application_credential_name: {name}, username: {}, user_domain_id: default",
                login.user
            ),
        };
        let secret = &credential.secret;
        let entry = format!(
            "    auth_type: v3applicationcredential\n    \
             auth: {{auth_url: '{url}', {who}, application_credential_secret: '{secret}'}}\n"
        );
        let session = bed.session(&entry);
        let before = bed.logins();
        works(&session).await.unwrap();
        let project = session.project_id().await.unwrap();
        assert_eq!(project.as_deref(), Some(bed.project.id()));
        // It is good for more than one token.
        bed.gateway.expire_tokens();
        works(&session).await.unwrap();
        assert_eq!(bed.logins(), before + 2);

        bed.project
            .remove_application_credential(&credential.id)
            .unwrap();
        let error = works(&bed.session(&entry)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
        assert!(!chain(&error).contains(secret), "{error}");
    }
}

#[tokio::test]
async fn a_token_logs_in_until_it_ends() {
    let Some(bed) = Bed::new("token") else {
        return;
    };
    let url = bed.gateway.url();
    let given = bed::Session::begin(url, bed.project.login()).unwrap();
    let entry = format!(
        "    auth_type: v3token\n    auth: {{auth_url: '{url}', token: '{}', project_id: {}}}\n",
        given.token(),
        bed.project.id()
    );
    let session = bed.session(&entry);
    works(&session).await.unwrap();
    let project = session.project_id().await.unwrap();
    assert_eq!(project.as_deref(), Some(bed.project.id()));
    assert_eq!(bed.logins(), 2);

    given.end().unwrap();
    let error = works(&bed.session(&entry)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    assert!(error.to_string().contains("clouds.yaml"), "{error}");
}

#[tokio::test]
async fn over_tls_the_authority_and_the_name_count() {
    let Some(bed) = Bed::new("tls") else { return };
    let certificates = Certificates::create(&bed.project.directory().join("tls")).unwrap();
    let usual = GatewayTls::of(&certificates);
    let misnamed = GatewayTls {
        identity: certificates.misnamed_server.clone(),
        ..usual.clone()
    };
    let known_clients = GatewayTls {
        client_ca: Some(certificates.ca.clone()),
        ..usual.clone()
    };
    let cacert = |path: &Path| format!("    cacert: {}\n", path.display());
    let ours = cacert(&certificates.ca);
    let client = format!(
        "{ours}    cert: {}\n    key: {}\n",
        certificates.client.cert.display(),
        certificates.client.key.display()
    );
    for (tls, said, refused) in [
        (&usual, &ours, None),
        (&usual, &String::new(), Some("unknownissuer")),
        (
            &usual,
            &cacert(&certificates.foreign_ca),
            Some("certificate"),
        ),
        (&usual, &"    verify: false\n".to_owned(), None),
        (&misnamed, &ours, Some("not valid for")),
        (&misnamed, &format!("{ours}    verify: false\n"), None),
        // The connection may break before the reason has arrived.
        (&known_clients, &ours, Some("")),
        (&known_clients, &client, None),
    ] {
        let gateway = Gateway::start_with_tls(&bed.cloud, tls).unwrap();
        assert!(gateway.url().starts_with("https://"));
        let session = bed.session(&format!("{}{said}", bed.password(gateway.url())));
        match (works(&session).await, refused) {
            // Not only Keystone was reached this way.
            (Ok(()), None) => assert_eq!(gateway.counts().len(), 2, "{:?}", gateway.counts()),
            (Err(error), Some(reason)) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                let text = chain(&error).to_lowercase();
                assert!(text.contains(reason), "{text}");
            }
            (found, _) => panic!("with {said:?}: {found:?}"),
        }
    }
    let missing = cacert(Path::new("/nowhere/ca.pem"));
    let entry = format!("{}{missing}", bed.password(bed.gateway.url()));
    let error = connect(bed.settings(&entry, None)).unwrap_err();
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
}

#[tokio::test]
async fn each_region_has_services_of_its_own() {
    let Some(bed) = Bed::new("regions") else {
        return;
    };
    let there = Gateway::start(&bed.cloud).unwrap();
    let services = [Service::Compute, Service::Network];
    let region = bed.cloud.region("north", &there, &services).unwrap();
    let (here, north) = (&bed.project.login().region, region.name());
    let entry = format!(
        "{}    regions: [{here}, {north}]\n",
        bed.password(bed.gateway.url())
    );
    let calls = |gateway: &Gateway| {
        let servers = gateway.counts();
        let servers = servers.get("compute GET /v2.1/servers/detail");
        servers.copied().unwrap_or_default()
    };
    for region in [None, Some(here.as_str()), Some(north)] {
        let before = (calls(&bed.gateway), calls(&there));
        let session = connect(bed.settings(&entry, region)).unwrap();
        works(&session).await.unwrap();
        let asked = (calls(&bed.gateway) > before.0, calls(&there) > before.1);
        let is_north = region == Some(north);
        assert_eq!(asked, (!is_north, is_north), "{region:?}");
    }
    let session = connect(bed.settings(&entry, Some(north))).unwrap();
    let volumes = Volumes::new(session).volumes().await;
    let error = volumes.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoService, "{error}");
    let text = error.to_string();
    assert!(
        text.contains(north) && text.contains(here.as_str()),
        "{text}"
    );
}

#[tokio::test]
async fn a_floating_ip_that_somebody_has_changed_is_not_deleted() {
    let Some(bed) = Bed::new("changed") else {
        return;
    };
    let member = bed.project.member();
    let public = "/v2.0/networks?router:external=true";
    let public = member.list(Service::Network, public, "networks").unwrap();
    let body = json!({"floatingip": {"floating_network_id": public[0]["id"]}});
    let made = member.post(Service::Network, "/v2.0/floatingips", &body);
    let id = made.unwrap()["floatingip"]["id"].clone();

    let network = Network::new(bed.session(&bed.password(bed.gateway.url())));
    let seen = network.floating_ips().await.unwrap().remove(0);
    assert_eq!(id, *seen.id);
    let change = json!({"floatingip": {"description": "mine"}});
    let path = format!("/v2.0/floatingips/{}", seen.id);
    member.put(Service::Network, &path, &change).unwrap();
    let error = network.delete_unchanged_floating_ip(&seen).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(bed.project.floating_ips().unwrap().len(), 1);
    let seen = network.floating_ips().await.unwrap().remove(0);
    network.delete_unchanged_floating_ip(&seen).await.unwrap();
    network.delete_unchanged_floating_ip(&seen).await.unwrap();
    assert!(bed.project.floating_ips().unwrap().is_empty());
}
