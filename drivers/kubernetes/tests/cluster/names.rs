//! Names at the limit of what a cluster takes.

use nodeyard_driver::{Machines as _, Owner};
use nodeyard_model::ProviderName;

use crate::common::{
    cluster, create, delete_node, driver, node, options_named, order_named, owner,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_longest_names_work() {
    let Some(cluster) = cluster() else { return };
    let (pool, label) = ("p".repeat(63), "1".repeat(63));
    let text = format!("type: pod, image: '{}'", cluster.image());
    let driver = driver(
        cluster,
        options_named("long", "kubernetes", &pool, &label, &text),
    );
    let order = order_named("long", 71, &pool, &label);
    let instance = create(&driver, &order).await.unwrap();
    assert_eq!(instance.interface_ip.as_deref(), Some(label.as_str()));
    let listed = driver.list().await.unwrap();
    assert!(
        listed
            .iter()
            .any(|r| owner("long").owns_node(&r.tags, node(71)))
    );
    delete_node(&driver, &order).await;
    let listed = driver.list().await.unwrap();
    assert!(
        !listed
            .iter()
            .any(|r| owner("long").owns_node(&r.tags, node(71)))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_may_have_a_name_that_no_label_can_have() {
    let Some(cluster) = cluster() else { return };
    let mut options = options_named("odd", "kubernetes", "main", "small", "type: namespace");
    let odd = Owner {
        provider: ProviderName::new("Größter Cluster: Nr. 1!").unwrap(),
        ..owner("odd")
    };
    options.owner = odd.clone();
    let driver = driver(cluster, options);
    let mut order = order_named("odd", 72, "main", "small");
    order.tags = odd.node_tags(node(72), "main".into());
    create(&driver, &order).await.unwrap();
    let listed = driver.list().await.unwrap();
    assert!(listed.iter().any(|r| odd.owns_node(&r.tags, node(72))));
    delete_node(&driver, &order).await;
}
