//! What OpenShift refuses, and what is said about it.

use nodeyard_driver::ErrorClass;

use crate::common::{
    account, bed, create, delete_node, driver_as, options, options_named, order, order_named,
    write_kubeconfig,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_reserved_is_told() {
    let Some(bed) = bed() else { return };
    let options = options_named(
        "reserved",
        "openshift",
        "openshift-ci",
        "small",
        "type: project",
    );
    let order = order_named("reserved", 60, "openshift-ci", "small");
    let (error, _) = create(&bed.driver(options), &order).await.unwrap_err();
    assert!(error.to_string().contains("openshift-"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_may_request_nothing_is_told() {
    let Some(bed) = bed() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("kubeconfig");
    write_kubeconfig(bed.cluster(), &file, &account(bed.cluster(), "weak"));
    let driver = driver_as(&file, options("weak", "openshift", "type: project"));
    let (error, _) = create(&driver, &order("weak", 61)).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Credentials);
    assert!(error.to_string().contains("projectrequests"), "{error}");
}

/// It cannot even be looked at by somebody who has no part in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_project_of_somebody_else_is_left_alone() {
    let Some(bed) = bed() else { return };
    bed.cluster()
        .kubectl(&["create", "namespace", "main-0000000062"])
        .unwrap();
    let driver = bed.driver(options("other", "openshift", "type: project"));
    let order = order("other", 62);
    let instance = create(&driver, &order).await.unwrap();
    let name = instance.external_id.as_text().unwrap();
    assert_ne!(name, "main-0000000062");
    delete_node(&driver, &order).await;
    bed.goes(&name).await;
    assert!(bed.is_there("main-0000000062"));
}
