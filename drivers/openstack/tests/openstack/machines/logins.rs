//! A cloud as many have it: TLS with an authority of one's own, application credentials, several regions.

use nodeyard_driver::Machines as _;
use nodeyard_driver_openstack::{OpenStackDriver, ProcessEnvironment};
use nodeyard_testbeds::Certificates;
use nodeyard_testbeds::openstack::{Gateway, GatewayTls, Service};

use crate::machines::common::{
    cloud, connected_project, create, delete_node, node, options_with_floating_ips, order, owner,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_made_over_tls_with_a_credential_in_another_region() {
    let Some(project) = connected_project("secure") else {
        return;
    };
    let cloud = cloud().unwrap();
    let certificates = Certificates::create(&project.directory().join("tls")).unwrap();
    let tls = GatewayTls::of(&certificates);
    let login = Gateway::start_with_tls(cloud, &tls).unwrap();
    let services = Gateway::start_with_tls(cloud, &tls).unwrap();
    let all = [
        Service::Compute,
        Service::Network,
        Service::Image,
        Service::BlockStorage,
    ];
    let region = cloud.region("secure", &services, &all).unwrap();
    let credential = project.application_credential("launcher").unwrap();
    let file = project.directory().join("clouds-secure.yaml");
    let text = format!(
        "clouds:\n  nodepool:\n    cacert: {ca}\n    auth_type: v3applicationcredential\n    \
         auth: {{auth_url: '{url}', application_credential_id: {id}, application_credential_secret: '{secret}'}}\n",
        ca = certificates.ca.display(),
        url = login.url(),
        id = credential.id,
        secret = credential.secret,
    );
    std::fs::write(&file, text).unwrap();
    let named = (
        "OS_CLIENT_CONFIG_FILE".to_owned(),
        file.to_str().unwrap().to_owned(),
    );
    let around = ProcessEnvironment {
        variables: [named].into(),
        directory: "/".into(),
    };
    let owner = owner("secure");
    let mut options = options_with_floating_ips(owner.clone());
    options.cloud.region = Some(region.name().into());
    let driver = OpenStackDriver::connect(options, &around).unwrap();
    let instance = create(&driver, &order(&owner, node(1))).await.unwrap();
    assert_eq!(instance.region.as_deref(), Some(region.name()));
    assert_eq!(project.servers().unwrap().len(), 1);
    assert_eq!(project.floating_ips().unwrap().len(), 1);
    assert!(!driver.list().await.unwrap().is_empty());
    delete_node(&driver, node(1)).await;
    assert!(project.servers().unwrap().is_empty());
    // The gateway where one logs in has no part in the rest.
    let others = login.counts();
    let others = others.keys().find(|kind| !kind.starts_with("identity"));
    assert_eq!(others, None);
}
