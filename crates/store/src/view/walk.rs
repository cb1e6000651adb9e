//! Reads all records of a view with bounded concurrency.
//!
//! Records are read individually instead of by `list`, which would hold all unparsed records in memory.

use std::collections::{HashSet, VecDeque};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::state::RecordContent;
use super::{Kind, Shape, ViewInner};
use crate::error::Result;
use crate::ext;
use crate::path::TreePath;
use crate::tree::{Record, Tree};

/// The maximum number of concurrent reads.
pub(super) const MAX_CONCURRENT_READS: usize = 512;

/// The directory of a record's lock.
const LOCK: &str = "lock";

enum WalkTask<I> {
    /// Look for records below this path.
    Children(TreePath),
    Record {
        path: TreePath,
        id: I,
        branch: bool,
        lock: bool,
    },
    /// Look who contends for the lock of this record.
    Contenders { path: TreePath, id: I },
}

enum WalkResult {
    Names(Vec<String>),
    Record(Option<Record>),
}

/// Updates the view from the store and returns the ids of all records. Fails if any read fails, because missing records
/// would be taken for deleted ones.
pub(super) async fn walk<S: Shape>(inner: &ViewInner<S>) -> Result<HashSet<S::Id>> {
    let mut seen = HashSet::new();
    let mut tasks = VecDeque::from([WalkTask::Children(inner.root.clone())]);
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < MAX_CONCURRENT_READS
            && let Some(task) = tasks.pop_front()
        {
            running.push(run(&*inner.tree, task));
        }
        let Some((task, answer)) = running.next().await else {
            return Ok(seen);
        };
        match (task, answer?) {
            (WalkTask::Children(parent), WalkResult::Names(names)) => {
                tasks.extend(names.iter().filter_map(|name| child(inner, &parent, name)));
            }
            (WalkTask::Contenders { id, .. }, WalkResult::Names(names)) => {
                let names = names.into_iter().map(String::into_boxed_str).collect();
                inner.write().set_contenders(&id, names);
            }
            (
                WalkTask::Record {
                    path,
                    id,
                    branch,
                    lock,
                },
                WalkResult::Record(Some(record)),
            ) => {
                store(inner, &id, &path, &record);
                seen.insert(id.clone());
                let has_children = record.stat.num_children > 0;
                if branch && has_children {
                    tasks.push_back(WalkTask::Children(path.clone()));
                }
                if lock && has_children {
                    tasks.push_back(WalkTask::Contenders { path, id });
                } else {
                    inner.write().set_contenders(&id, Vec::new());
                }
            }
            _ => {}
        }
        tokio::task::coop::consume_budget().await;
    }
}

/// Puts a record into the view, parsing it only if it is newer.
pub(super) fn store<S: Shape>(inner: &ViewInner<S>, id: &S::Id, path: &TreePath, record: &Record) {
    if inner.read().wants(id, &record.stat) {
        let content = RecordContent::parse(&inner.shape, id, path, record);
        inner.write().put(id, content, record.stat);
    }
}

fn child<S: Shape>(inner: &ViewInner<S>, parent: &TreePath, name: &str) -> Option<WalkTask<S::Id>> {
    let path = parent.join(name).ok()?;
    match inner.shape.kind(&path) {
        Kind::Record { id, branch, lock } => Some(WalkTask::Record {
            path,
            id,
            branch,
            lock,
        }),
        Kind::Directory => Some(WalkTask::Children(path)),
        Kind::Contender(_) | Kind::Nothing => None,
    }
}

async fn run<I>(tree: &dyn Tree, task: WalkTask<I>) -> (WalkTask<I>, Result<WalkResult>) {
    let answer = answer(tree, &task).await;
    (task, answer)
}

async fn answer<I>(tree: &dyn Tree, task: &WalkTask<I>) -> Result<WalkResult> {
    match task {
        WalkTask::Children(path) => ext::child_names(tree, path).await.map(WalkResult::Names),
        WalkTask::Contenders { path, .. } => {
            let dir = path.join(LOCK)?;
            ext::child_names(tree, &dir).await.map(WalkResult::Names)
        }
        WalkTask::Record { path, .. } => ext::get_opt(tree, path).await.map(WalkResult::Record),
    }
}
