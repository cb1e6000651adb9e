//! Machines that exist already, as real ones: with an SSH server, its host keys, and times when it is away.

use std::sync::Arc;

use nodeyard_model::{ConnectionPort, Node, NodeId, NodeState};
use nodeyard_testbeds::{Sshd, free_port};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::bed::{Drivers, Running, Store, eventually, logs, nodes, parse};
use crate::zuul::{Zuul, now};

/// A way to an SSH server that can be closed: connections are refused, as if the machine were down.
struct Door {
    port: u16,
    to: u16,
    open: Option<JoinHandle<()>>,
}

impl Door {
    async fn new(to: u16) -> Self {
        // One that nobody else gets while it is closed.
        let port = free_port().unwrap();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let mut door = Self {
            port,
            to,
            open: None,
        };
        door.serve(listener);
        door
    }

    fn serve(&mut self, listener: TcpListener) {
        let to = self.to;
        self.open = Some(tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        }));
    }

    async fn open(&mut self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).await.unwrap();
        self.serve(listener);
    }

    async fn close(&mut self) {
        let task = self.open.take().unwrap();
        task.abort();
        let _ = task.await;
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Some(task) = &self.open {
            task.abort();
        }
    }
}

/// One machine of the configuration.
struct Machine<'a> {
    port: u16,
    labels: &'a str,
    slots: usize,
    keys: Vec<String>,
}

impl Machine<'_> {
    fn new(port: u16) -> Self {
        Self {
            port,
            labels: "small",
            slots: 1,
            keys: Vec::new(),
        }
    }
}

fn config(machines: &[Machine<'_>]) -> String {
    let mut text = String::from(
        "labels: [{name: small}, {name: big}]\nproviders:\n  - name: lab\n    driver: static\n    pools:\n      \
         - name: main\n        nodes:\n",
    );
    if machines.is_empty() {
        text = text.replace("nodes:\n", "nodes: []\n");
    }
    for machine in machines {
        text.push_str(&format!(
            "          - name: 127.0.0.1\n            connection-port: {}\n            labels: [{}]\n            \
             max-parallel-jobs: {}\n            timeout: 60\n            host-key: {:?}\n",
            machine.port, machine.labels, machine.slots, machine.keys
        ));
    }
    text
}

async fn start(store: &Store, machines: &[Machine<'_>]) -> (Running, Zuul) {
    logs();
    let launcher = Running::start(store, Arc::new(Drivers), &config(machines)).await;
    (launcher, Zuul::new(store.session().await))
}

fn reload(launcher: &Running, machines: &[Machine<'_>]) {
    launcher.config.send_replace(parse(&config(machines)));
}

/// Waits until the nodes are as wanted.
async fn nodes_are(
    zuul: &Zuul,
    what: &str,
    wanted: impl Fn(&[(NodeId, Node)]) -> bool,
) -> Vec<NodeId> {
    let look = || async {
        let nodes = nodes(&zuul.registry).await;
        wanted(&nodes).then(|| nodes.iter().map(|(id, _)| *id).collect())
    };
    eventually(what, look).await
}

fn is_free(node: &Node) -> bool {
    node.state == NodeState::Ready && node.allocated_to.is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_must_show_the_keys_that_are_expected_of_it() {
    let sshd = Sshd::start().unwrap();
    let keys = sshd.host_keys().unwrap();
    let stranger = Sshd::start().unwrap().host_keys().unwrap();
    let store = Store::embedded();
    let machine = |keys: &[String]| Machine {
        keys: keys.to_vec(),
        ..Machine::new(sshd.port())
    };
    // Of three keys two are expected; the record has all.
    let (launcher, zuul) = start(&store, &[machine(&keys[..2])]).await;
    let all = |node: &Node| {
        keys.iter()
            .all(|key| node.host_keys.contains(&key.as_str().into()))
    };
    let first = nodes_are(&zuul, "the machine is registered", |nodes| {
        nodes.len() == 1 && is_free(&nodes[0].1) && all(&nodes[0].1)
    })
    .await;

    reload(&launcher, &[machine(&keys)]);
    reload(
        &launcher,
        &[machine(&[keys[2].clone(), stranger[0].clone()])],
    );
    nodes_are(&zuul, "an impostor is not offered", <[_]>::is_empty).await;

    reload(&launcher, &[machine(&keys[2..])]);
    let second = nodes_are(&zuul, "the machine is trusted again", |nodes| {
        nodes.len() == 1 && is_free(&nodes[0].1) && all(&nodes[0].1)
    })
    .await;
    assert_ne!(first, second);
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn free_nodes_follow_the_configuration_and_used_ones_are_left_alone() {
    let (one, two) = (Sshd::start().unwrap(), Sshd::start().unwrap());
    let store = Store::embedded();
    let (launcher, zuul) = start(&store, &[Machine::new(one.port())]).await;
    let registered = nodes_are(&zuul, "one node", |nodes| nodes.len() == 1).await;

    let labelled = Machine {
        labels: "small, big",
        ..Machine::new(one.port())
    };
    reload(&launcher, &[labelled]);
    let relabelled = nodes_are(&zuul, "the label is there", |nodes| {
        nodes.iter().any(|(_, node)| node.labels.len() == 2)
    })
    .await;
    assert_eq!(registered, relabelled, "the node is changed in place");

    let parts = |slots| Machine {
        labels: "big",
        slots,
        ..Machine::new(one.port())
    };
    reload(&launcher, &[parts(3), Machine::new(two.port())]);
    let four = nodes_are(&zuul, "three parts and another machine", |nodes| {
        let big = |node: &&(NodeId, Node)| node.1.labels == ["big".into()];
        nodes.len() == 4 && nodes.iter().filter(big).count() == 3
    })
    .await;
    assert!(four.contains(&registered[0]));

    // All parts of the first machine are in use when two of them, then the whole machine, leave the configuration.
    let id = zuul.submit(&["big", "big", "big"]).await;
    let mut nodeset = zuul.accept(id).await;
    zuul.set_state(&mut nodeset, NodeState::InUse).await;
    reload(&launcher, &[parts(1), Machine::new(two.port())]);
    reload(&launcher, &[Machine::new(two.port())]);
    let small = zuul.submit(&["small"]).await;
    zuul.run_job(small).await;
    let used: Vec<NodeId> = nodeset.nodes.iter().map(|(id, _)| *id).collect();
    for (id, node) in nodes(&zuul.registry).await {
        assert!(!used.contains(&id) || node.state == NodeState::InUse);
    }
    zuul.set_state(&mut nodeset, NodeState::Used).await;
    zuul.unlock(nodeset).await;
    nodes_are(&zuul, "only the other machine is left", |nodes| {
        nodes.len() == 1 && nodes[0].1.connection_port == ConnectionPort::Number(two.port())
    })
    .await;
    reload(&launcher, &[]);
    nodes_are(&zuul, "nothing is left", <[_]>::is_empty).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_is_down_is_not_allocated() {
    let sshd = Sshd::start().unwrap();
    let mut door = Door::new(sshd.port()).await;
    door.close().await;
    let store = Store::embedded();
    let (launcher, zuul) = start(&store, &[Machine::new(door.port)]).await;
    let id = zuul.submit(&["small"]).await;
    door.open().await;
    zuul.run_job(id).await;

    nodes_are(&zuul, "it is free again", |nodes| {
        nodes.iter().any(|(_, node)| is_free(node))
    })
    .await;
    door.close().await;
    let id = zuul.submit(&["small"]).await;
    nodes_are(&zuul, "its node is gone", <[_]>::is_empty).await;
    let waiting = zuul.registry.requests().get(id).await.unwrap().unwrap();
    assert!(waiting.value.nodes.is_empty() && !waiting.value.state.is_final());
    door.open().await;
    zuul.run_job(id).await;
    launcher.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_records_for_one_machine_the_used_one_stays() {
    let sshd = Sshd::start().unwrap();
    let store = Store::embedded();
    let (launcher, zuul) = start(&store, &[Machine::new(sshd.port())]).await;
    let first = nodes_are(&zuul, "one node", |nodes| nodes.len() == 1).await[0];
    let record = nodes(&zuul.registry).await.remove(0).1;

    // Free ones: the older stays.
    let (second, _) = zuul.registry.nodes().create(&record).await.unwrap();
    zuul.gone(second).await;
    assert_eq!(
        nodes_are(&zuul, "one is left", |nodes| nodes.len() == 1).await,
        [first]
    );

    // A younger one that somebody uses: the older must not be given to anybody else.
    let mut used = record.clone();
    used.set_state(NodeState::Hold, now());
    let (third, _) = zuul.registry.nodes().create(&used).await.unwrap();
    zuul.gone(first).await;
    let left = nodes(&zuul.registry).await;
    assert!(
        left.iter()
            .any(|(id, node)| *id == third && node.state == NodeState::Hold)
    );
    launcher.stop().await;
}
