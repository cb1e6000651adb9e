//! Nodes of one buildset on the real cluster: in one namespace, and in namespaces that know each other.

use nodeyard_driver::CreateOrder;
use nodeyard_testbeds::Cluster;

use crate::common::{
    cluster, create, credentials, delete_node, driver, json, namespaces, of_buildset, options,
    order,
};

fn of(system: &str, number: u32, buildset: &str) -> CreateOrder {
    CreateOrder {
        request: of_buildset(buildset, Some("tenant")),
        ..order(system, number)
    }
}

/// Whether an account may do something, as the API server sees it.
fn may(cluster: &Cluster, account: &str, namespace: &str, question: &[&str]) -> bool {
    let mut command = cluster.kubectl_command();
    command
        .args(["auth", "can-i", "--quiet", "--namespace", namespace])
        .args(["--as", &format!("system:serviceaccount:{account}")])
        .args([
            "--as-group",
            &format!(
                "system:serviceaccounts:{}",
                account.split(':').next().unwrap()
            ),
        ])
        .args(question);
    command.output().unwrap().status.success()
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_buildset_in_one_namespace() {
    let Some(cluster) = cluster() else { return };
    let label = format!("type: pod, image: '{}', share: buildset", cluster.image());
    let driver = driver(cluster, options("sharing", "kubernetes", &label));
    let (one, other) = (of("sharing", 70, "b70"), of("sharing", 71, "b70"));
    let (first, second) = tokio::join!(create(&driver, &one), create(&driver, &other));
    let (first, second) = (credentials(&first.unwrap()), credentials(&second.unwrap()));
    let space = first["namespace"].as_str().unwrap();
    assert_eq!(first["namespace"], second["namespace"]);
    assert_eq!(namespaces(cluster, "sharing").len(), 1);
    let account = format!("{space}:{}", first["user"].as_str().unwrap());
    let exec = |pod: &str| {
        let pod = format!("pods/{pod}");
        may(
            cluster,
            &account,
            space,
            &["create", &pod, "--subresource=exec"],
        )
    };
    assert!(exec("small-0000000070"));
    assert!(!exec("small-0000000071"), "the pods are not each other's");
    assert!(!may(cluster, &account, space, &["get", "secrets"]));

    delete_node(&driver, &one).await;
    let left = json(
        cluster,
        &[
            "get",
            "pods,serviceaccounts,roles,rolebindings,secrets",
            "--namespace",
            space,
        ],
    );
    let names: Vec<&str> = (left["items"].as_array().unwrap().iter())
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect();
    assert!(
        names.iter().all(|name| !name.ends_with("0000000070")),
        "{names:?}"
    );
    assert!(names.contains(&"small-0000000071"), "{names:?}");
    let pod = json(
        cluster,
        &["get", "pod", "small-0000000071", "--namespace", space],
    );
    assert_eq!(pod["status"]["phase"], "Running");
    delete_node(&driver, &other).await;
    assert!(namespaces(cluster, "sharing").is_empty());
}

/// One leaves while another comes, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_keeps_the_namespace() {
    let Some(cluster) = cluster() else { return };
    let label = "type: namespace, share: buildset";
    let make = || driver(cluster, options("coming", "kubernetes", label));
    let (one, another) = (make(), make());
    create(&one, &of("coming", 72, "b72")).await.unwrap();
    for number in 73..79 {
        let (leaving, coming) = (of("coming", number - 1, "b72"), of("coming", number, "b72"));
        let ((), came) = tokio::join!(delete_node(&one, &leaving), create(&another, &coming));
        let given = credentials(&came.unwrap());
        let space = given["namespace"].as_str().unwrap();
        let account = format!("{space}:{}", given["user"].as_str().unwrap());
        let found = json(cluster, &["get", "namespace", space]);
        assert!(found["metadata"].get("deletionTimestamp").is_none());
        assert!(may(cluster, &account, space, &["create", "pods"]));
    }
    delete_node(&one, &of("coming", 78, "b72")).await;
    assert!(namespaces(cluster, "coming").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_read_services_and_nothing_else() {
    let Some(cluster) = cluster() else { return };
    let label = "type: namespace, buildset-peer-access: services";
    let driver = driver(cluster, options("peers", "kubernetes", label));
    let orders = [
        of("peers", 80, "b80"),
        of("peers", 81, "b80"),
        of("peers", 82, "b82"),
    ];
    for order in &orders {
        create(&driver, order).await.unwrap();
    }
    let space = |number: u32| format!("main-{number:010}");
    for (from, at, what, allowed) in [
        (80, 81, "services", true),
        (81, 80, "services", true),
        (81, 80, "secrets", false),
        (81, 80, "pods", false),
        (82, 80, "services", false),
        (80, 82, "services", false),
    ] {
        let account = format!("{}:zuul-worker", space(from));
        let answer = may(cluster, &account, &space(at), &["list", what]);
        assert_eq!(answer, allowed, "{from} looks at {what} of {at}");
    }
    let account = format!("{}:zuul-worker", space(81));
    assert!(!may(cluster, &account, &space(80), &["create", "services"]));
    for order in &orders {
        delete_node(&driver, order).await;
    }
    assert!(namespaces(cluster, "peers").is_empty());
}
