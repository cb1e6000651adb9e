//! Reads everything a view holds, many reads at a time.
//!
//! The records are read one by one instead of with `list`, so that only those under way are in memory
//! beside the parsed values: a listing of a hundred thousand nodes would double what the view needs.

use std::collections::{HashSet, VecDeque};

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::state::Content;
use super::{Kind, Shape, Shared};
use crate::error::Result;
use crate::ext;
use crate::path::TreePath;
use crate::tree::{Record, Tree};

/// Reads under way at a time.
pub(super) const WINDOW: usize = 512;

/// The directory of a record's lock.
const LOCK: &str = "lock";

enum Task<I> {
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

enum Answer {
    Names(Vec<String>),
    Record(Option<Record>),
}

/// Brings the view up to date with the store and returns what is there. One answer that does not come makes the whole
/// of it worthless: what is missing would be taken for deleted.
pub(super) async fn walk<S: Shape>(shared: &Shared<S>) -> Result<HashSet<S::Id>> {
    let mut seen = HashSet::new();
    let mut tasks = VecDeque::from([Task::Children(shared.root.clone())]);
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < WINDOW
            && let Some(task) = tasks.pop_front()
        {
            running.push(run(&*shared.tree, task));
        }
        let Some((task, answer)) = running.next().await else {
            return Ok(seen);
        };
        match (task, answer?) {
            (Task::Children(parent), Answer::Names(names)) => {
                tasks.extend(names.iter().filter_map(|name| child(shared, &parent, name)));
            }
            (Task::Contenders { id, .. }, Answer::Names(names)) => {
                let names = names.into_iter().map(String::into_boxed_str).collect();
                shared.write().set_contenders(&id, names);
            }
            (
                Task::Record {
                    path,
                    id,
                    branch,
                    lock,
                },
                Answer::Record(Some(record)),
            ) => {
                store(shared, &id, &path, &record);
                seen.insert(id.clone());
                let has_children = record.stat.num_children > 0;
                if branch && has_children {
                    tasks.push_back(Task::Children(path.clone()));
                }
                if lock && has_children {
                    tasks.push_back(Task::Contenders { path, id });
                } else {
                    shared.write().set_contenders(&id, Vec::new());
                }
            }
            _ => {}
        }
        tokio::task::coop::consume_budget().await;
    }
}

/// Takes a record that was read into the view, and parses it only if it is new to it.
pub(super) fn store<S: Shape>(shared: &Shared<S>, id: &S::Id, path: &TreePath, record: &Record) {
    if shared.read().wants(id, &record.stat) {
        let content = Content::parse(&shared.shape, id, path, record);
        shared.write().put(id, content, record.stat);
    }
}

fn child<S: Shape>(shared: &Shared<S>, parent: &TreePath, name: &str) -> Option<Task<S::Id>> {
    let path = parent.join(name).ok()?;
    match shared.shape.kind(&path) {
        Kind::Record { id, branch, lock } => Some(Task::Record {
            path,
            id,
            branch,
            lock,
        }),
        Kind::Directory => Some(Task::Children(path)),
        Kind::Contender(_) | Kind::Nothing => None,
    }
}

async fn run<I>(tree: &dyn Tree, task: Task<I>) -> (Task<I>, Result<Answer>) {
    let answer = answer(tree, &task).await;
    (task, answer)
}

async fn answer<I>(tree: &dyn Tree, task: &Task<I>) -> Result<Answer> {
    match task {
        Task::Children(path) => ext::child_names(tree, path).await.map(Answer::Names),
        Task::Contenders { path, .. } => {
            let dir = path.join(LOCK)?;
            ext::child_names(tree, &dir).await.map(Answer::Names)
        }
        Task::Record { path, .. } => ext::get_opt(tree, path).await.map(Answer::Record),
    }
}
