//! Property test: random operations have the same results on a backend and on the model.

use std::sync::Arc;

use bytes::Bytes;
use nodeyard_store::{CreateMode, Error, Op, OpOutcome, Tree, TreePath, Version};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use tokio::runtime::Handle;

use crate::conformance::backend::{Backend, gone, p};
use crate::conformance::model::{Model, Outcome, Refusal};

/// Few, because each makes many round trips. `PROPTEST_CASES` asks for more.
const CASES: u32 = 24;

#[derive(Debug, Clone)]
enum Step {
    One(Op),
    Multi(Vec<Op>),
    /// All at once, without waiting for answers.
    Pipelined(Vec<Op>),
    NewSession,
}

fn paths() -> impl Strategy<Value = TreePath> {
    // Few names, so that operations meet.
    proptest::collection::vec(prop_oneof!["[ab]", "a000000000[0-2]"], 1..4)
        .prop_map(|parts| p(&format!("/{}", parts.join("/"))))
}

fn versions() -> impl Strategy<Value = Version> {
    prop_oneof![3 => Just(Version::Any), 2 => (0..3).prop_map(Version::Exactly)]
}

fn ops() -> impl Strategy<Value = Op> {
    let modes = prop_oneof![
        4 => Just(CreateMode::Persistent),
        2 => Just(CreateMode::PersistentSequential),
        1 => Just(CreateMode::Ephemeral),
        1 => Just(CreateMode::EphemeralSequential),
    ];
    let data = || "[a-z]{0,3}".prop_map(Bytes::from);
    prop_oneof![
        5 => (paths(), data(), modes).prop_map(|(path, data, mode)| Op::Create { path, data, mode }),
        2 => (paths(), data(), versions()).prop_map(|(path, data, version)| Op::Set { path, data, version }),
        2 => (paths(), versions()).prop_map(|(path, version)| Op::Delete { path, version }),
        1 => (paths(), versions()).prop_map(|(path, version)| Op::Check { path, version }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some = || proptest::collection::vec(ops(), 1..6);
    let step = prop_oneof![
        12 => ops().prop_map(Step::One),
        3 => some().prop_map(Step::Multi),
        2 => some().prop_map(Step::Pipelined),
        1 => Just(Step::NewSession),
    ];
    proptest::collection::vec(step, 1..40)
}

pub(crate) async fn any_operations_do_what_the_model_does(backend: &impl Backend) {
    let handle = Handle::current();
    // The runner is not asynchronous, so each case blocks this thread.
    tokio::task::block_in_place(|| {
        let cases = std::env::var("PROPTEST_CASES").ok();
        let cases = cases.and_then(|text| text.parse().ok()).unwrap_or(CASES);
        let mut runner = TestRunner::new(Config {
            cases,
            failure_persistence: None,
            max_shrink_iters: 400,
            ..Config::default()
        });
        let result = runner.run(&steps(), |steps| handle.block_on(compare(backend, steps)));
        if let Err(error) = result {
            panic!("{error}");
        }
    });
}

/// Below this, so that the cases do not see each other: the tree is used for all of them.
const BASE: &str = "/case";

async fn compare(backend: &impl Backend, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut tree = backend.session().await;
    let mut model = Model::new();
    tree.create(&p(BASE), Bytes::new(), CreateMode::Persistent)
        .await
        .unwrap();
    for step in steps {
        match step {
            Step::One(op) => {
                let expected = model.apply(&op);
                prop_assert_eq!(run(&tree, &op).await, expected, "{:?}", op);
            }
            Step::Multi(ops) => {
                let expected = model.multi(&ops);
                let based = ops.iter().map(based).collect();
                let answer = match tree.multi(based).await {
                    Ok(outcomes) => Ok(outcomes.into_iter().map(outcome).collect()),
                    Err(Error::Multi { index, source }) => Err((index, refusal(&source))),
                    Err(error) => panic!("{error:?}"),
                };
                prop_assert_eq!(answer, expected, "{:?}", ops);
            }
            Step::Pipelined(ops) => {
                let expected: Vec<_> = ops.iter().map(|op| model.apply(op)).collect();
                let answers =
                    futures_util::future::join_all(ops.iter().map(|op| run(&tree, op))).await;
                prop_assert_eq!(answers, expected, "{:?}", ops);
            }
            Step::NewSession => {
                tree.close().await;
                model.end_session();
                tree = backend.session().await;
            }
        }
    }
    for (path, node) in &model.nodes {
        let path = base(&p(path));
        let record = tree.get(&path).await.unwrap();
        prop_assert_eq!(&record.data[..], &node.data[..]);
        let stat = record.stat;
        prop_assert_eq!(stat.version, node.version);
        prop_assert_eq!(stat.cversion, node.born + node.died);
        prop_assert_eq!(stat.num_children, node.born - node.died);
        prop_assert_eq!(stat.is_ephemeral(), node.ephemeral);
        let relative = path.as_str().strip_prefix(BASE).unwrap();
        let relative = if relative.is_empty() { "/" } else { relative };
        prop_assert_eq!(
            tree.children(&path).await.unwrap().names,
            model.children(relative)
        );
    }
    nodeyard_store::ext::delete_recursive(&*tree, &p(BASE))
        .await
        .unwrap();
    gone(&tree, &p(BASE)).await;
    tree.close().await;
    Ok(())
}

fn base(path: &TreePath) -> TreePath {
    if path.is_root() {
        p(BASE)
    } else {
        p(&format!("{BASE}{path}"))
    }
}

fn based(op: &Op) -> Op {
    let mut op = op.clone();
    let (Op::Create { path, .. }
    | Op::Set { path, .. }
    | Op::Delete { path, .. }
    | Op::Check { path, .. }) = &mut op;
    *path = base(path);
    op
}

async fn run(tree: &Arc<dyn Tree>, op: &Op) -> Result<Outcome, Refusal> {
    let done = match based(op) {
        Op::Create { path, data, mode } => tree
            .create(&path, data, mode)
            .await
            .map(|created| OpOutcome::Created(created.path)),
        Op::Set {
            path,
            data,
            version,
        } => tree.set(&path, data, version).await.map(OpOutcome::Set),
        Op::Delete { path, version } => tree
            .delete(&path, version)
            .await
            .map(|()| OpOutcome::Deleted),
        check @ Op::Check { .. } => match tree.multi(vec![check]).await {
            Ok(_) => Ok(OpOutcome::Checked),
            Err(Error::Multi { index: 0, source }) => Err(*source),
            Err(error) => Err(error),
        },
    };
    done.map(outcome).map_err(|error| refusal(&error))
}

fn outcome(outcome: OpOutcome) -> Outcome {
    match outcome {
        OpOutcome::Created(path) => {
            let path = path.as_str().strip_prefix(BASE).unwrap();
            Outcome::Created(path.to_owned())
        }
        OpOutcome::Set(stat) => Outcome::Set(stat.version),
        OpOutcome::Deleted => Outcome::Deleted,
        OpOutcome::Checked => Outcome::Checked,
    }
}

fn refusal(error: &Error) -> Refusal {
    match error {
        Error::NoNode { .. } => Refusal::NoNode,
        Error::NodeExists { .. } => Refusal::NodeExists,
        Error::BadVersion { .. } => Refusal::BadVersion,
        Error::NotEmpty { .. } => Refusal::NotEmpty,
        Error::NoChildrenForEphemerals { .. } => Refusal::NoChildrenForEphemerals,
        error => panic!("{error:?}"),
    }
}
