//! A complete Zuul runs jobs in pods and in namespaces of a real cluster, with the roles of this project.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use nodeyard_testbeds::zuul::{Build, Project};
use nodeyard_testbeds::{Cluster, ZooKeeperServer, Zuul, ZuulOptions, checkout};
use serde_json::Value;

use crate::bed::wait_until;
use crate::yard::Yard;

/// Two providers have the label `space`, so that a job may go to either.
fn configure(yard: &Yard, cluster: &Cluster, room_in_second: usize) {
    let image = cluster.image();
    yard.configure(&format!(
        "\
labels: [{{name: box}}, {{name: home}}, {{name: space}}]
providers:
  - name: first
    driver: kubernetes
    pools:
      - name: first
        max-servers: 5
        labels:
          - name: box
            type: pod
            image: '{image}'
            git-sidecar: {{image: '{image}'}}
            restart-policy: Never
            automount-service-account-token: false
          - {{name: space, type: namespace}}
  - name: second
    driver: kubernetes
    pools:
      - name: second
        max-servers: {room_in_second}
        labels: [{{name: home, type: namespace}}, {{name: space, type: namespace}}]
"
    ));
}

/// They have the same playbooks, and use different ones.
fn project(name: &str, definition: String) -> Project {
    Project {
        name: name.to_owned(),
        template: checkout().join("crates/nodeyard/tests/fleet/zuul_pods"),
        definition,
    }
}

fn projects(cluster: &Cluster) -> Vec<Project> {
    let image = cluster.image();
    let pod = "
- job:
    name: pod
    parent: base-workspace
    run: playbooks/pod.yaml
    required-projects: [space]
    nodeset: {nodes: [{name: box, label: box}]}
- project:
    post: {jobs: [pod]}
";
    let space = format!(
        "
- job:
    name: space
    parent: base-workspace
    run: playbooks/space.yaml
    vars: {{image: '{image}'}}
    nodeset: {{nodes: [{{name: space, label: space}}]}}
- project:
    post: {{jobs: [space]}}
"
    );
    let buildset = format!(
        "
- job:
    name: parent
    parent: base-workspace
    run: playbooks/parent.yaml
    vars: {{image: '{image}'}}
    nodeset: {{nodes: [{{name: space, label: home}}]}}
- job:
    name: child
    parent: base-workspace
    run: playbooks/child.yaml
    nodeset: {{nodes: [{{name: space, label: space}}]}}
- project:
    post: {{jobs: [parent, {{child: {{dependencies: [parent]}}}}]}}
"
    );
    vec![
        project("pod", pod.to_owned()),
        project("space", space),
        project("buildset", buildset),
    ]
}

/// An executor insists on one, though none of these nodes is reached by SSH.
fn ssh_key(yard: &Yard) -> PathBuf {
    let key = yard.path("key");
    let made = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(&key)
        .status();
    assert!(made.unwrap().success());
    key
}

#[track_caller]
fn report(build: &Build) -> &Value {
    assert_eq!(
        build.result, "SUCCESS",
        "{} of {}",
        build.job_name, build.uuid
    );
    build.metadata("report").unwrap()
}

/// Reads the console of a running build until it says so.
fn wait_for_console(zuul: &Zuul, build: &str, text: &str) {
    let mut said = Vec::new();
    wait_until(&format!("the console says {text:?}"), || {
        // It ends at once if the build has not begun to speak.
        let mut console = zuul.console(build).unwrap();
        said.clear();
        let mut piece = [0; 4096];
        while let Ok(count @ 1..) = console.read(&mut piece) {
            said.extend_from_slice(&piece[..count]);
            if String::from_utf8_lossy(&said).contains(text) {
                return true;
            }
        }
        false
    });
}

fn a_job_in_a_pod(zuul: &Zuul, cluster: &Cluster) {
    let push = zuul.push("pod").unwrap();
    let build = zuul.wait_for_start_of(&push, "pod").unwrap();
    // While the task that says it still runs: it waits for us.
    wait_for_console(zuul, &build, &format!("| build {build} speaks"));
    let namespace = "jsonpath={.items[0].metadata.namespace}";
    let label = "nodepool_node_label=box";
    let namespace = cluster
        .kubectl(&["get", "pods", "-A", "-l", label, "-o", namespace])
        .unwrap();
    cluster
        .kubectl(&["exec", "-n", &namespace, "box", "--", "touch", "/tmp/read"])
        .unwrap();
    let build = zuul.wait_for_build(&push).unwrap();
    let report = report(&build);
    assert_eq!(report["commit"], *push.revision);
    assert_eq!(report["branch"], "master");
    assert_eq!(report["base"], *push.revision);
    assert_eq!(report["changed"], "", "the work tree is that of the commit");
    assert_eq!(report["host"], "box");
    assert_eq!(report["place"], "/zuul/git", "what the side-car shares");
    assert_eq!(report["beside"].as_str().unwrap().len(), 40);
    wait_until("its namespace is gone", || {
        !cluster.has_namespace(&namespace).unwrap()
    });
}

fn a_job_in_a_namespace(zuul: &Zuul) {
    let push = zuul.push("space").unwrap();
    let build = zuul.wait_for_build(&push).unwrap();
    let report = report(&build);
    let namespace = report["namespace"].as_str().unwrap();
    assert_eq!(report["said"], format!("{} in {namespace}", build.uuid));
}

/// The child asks for the label that both providers have, and runs an image from the registry of its parent.
fn a_child_goes_where_its_paused_parent_is(zuul: &Zuul, yard: &Yard, cluster: &Cluster) {
    let push = zuul.push("buildset").unwrap();
    // The parent fills the only provider that may serve its child, and stays until the child has ended.
    let mut explained = String::new();
    wait_until("the request of the child waits", || {
        let requests = yard.lists(&["nodepool", "request-list"]);
        let mut requests = requests.as_array().into_iter().flatten();
        let waits = |request: &&Value| request.to_string().contains("\"space\"");
        let Some(request) = requests.find(waits) else {
            return false;
        };
        explained = yard.says(&["nodeyard", "explain", request["id"].as_str().unwrap()]);
        explained.contains("pool second/second has 1 of 1 in use")
    });
    assert!(
        explained.contains("the request asks for provider second"),
        "{explained}"
    );
    eprintln!("{explained}");
    configure(yard, cluster, 2);

    let child = zuul.wait_for_build_of(&push, "child").unwrap();
    let report = report(&child);
    assert_eq!(report["said"], format!("made of {}", push.revision));
    let namespace = report["namespace"].as_str().unwrap();
    assert!(namespace.starts_with("second-"), "{namespace}");
    let parent = zuul.wait_for_build_of(&push, "parent").unwrap();
    assert_eq!(parent.result, "SUCCESS");
}

#[test]
fn in_pods_in_namespaces_and_beside_a_paused_parent() {
    let Some(cluster) = Cluster::start_if_possible().unwrap() else {
        return;
    };
    let started = Instant::now();
    let zookeeper = ZooKeeperServer::start().unwrap();
    let mut yard = Yard::new(&zookeeper, &["nodepool", "list"]);
    yard.set("KUBECONFIG", cluster.kubeconfig().to_owned());
    let binary = Path::new(env!("CARGO_BIN_EXE_nodeyard"));
    let options = ZuulOptions {
        projects: projects(&cluster),
        programs: vec![cluster.programs(), binary.parent().unwrap().to_owned()],
        ssh_key: ssh_key(&yard),
        ..ZuulOptions::default()
    };
    configure(&yard, &cluster, 1);
    yard.up();
    let zuul = Zuul::start(&zookeeper, &options).unwrap();
    eprintln!("Zuul serves after {:?}", started.elapsed());
    a_job_in_a_pod(&zuul, &cluster);
    eprintln!("pod: {:?}", started.elapsed());
    a_job_in_a_namespace(&zuul);
    eprintln!("namespace: {:?}", started.elapsed());
    a_child_goes_where_its_paused_parent_is(&zuul, &yard, &cluster);
    eprintln!("all together: {:?}", started.elapsed());
}
