//! Reads everything a view holds, many reads at a time.
//!
//! The records are read one by one instead of with `list`, so that only those under way are in memory
//! beside the parsed values: a listing of a hundred thousand nodes would double what the view needs.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::state::Content;
use super::{Key, Kind, Shape, Shared};
use crate::error::{Error, Result};
use crate::ext;
use crate::path::TreePath;
use crate::tree::Record;

/// Reads under way at a time.
const WINDOW: usize = 512;

/// The directory of a record's lock.
pub(super) const LOCK: &str = "lock";

enum Task {
    /// Look for records below this key; empty for the root.
    Children(Key),
    Record {
        key: Key,
        branch: bool,
        lock: bool,
    },
    Contenders(Key),
}

enum Answer {
    Names(Vec<String>),
    Record(Option<Record>),
}

/// Brings the view up to date with the store and returns the keys that are there.
pub(super) async fn walk<S: Shape>(shared: &Shared<S>) -> Result<HashSet<Key>> {
    let mut seen = HashSet::new();
    let mut tasks = VecDeque::from([Task::Children(Key::from(""))]);
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < WINDOW
            && let Some(task) = tasks.pop_front()
        {
            running.push(run(shared, task));
        }
        let Some((task, answer)) = running.next().await else {
            return Ok(seen);
        };
        match (task, answer) {
            (task, Err(error)) => {
                if error.is_connection() || matches!(error, Error::Closed) {
                    return Err(error);
                }
                let key = match task {
                    Task::Children(key) | Task::Contenders(key) => key,
                    Task::Record { key, .. } => {
                        // What we knew of it stays.
                        seen.insert(Arc::clone(&key));
                        key
                    }
                };
                tracing::warn!(
                    root = %shared.root,
                    %key,
                    error = &error as &dyn std::error::Error,
                    "cannot read a record"
                );
            }
            (Task::Children(parent), Ok(Answer::Names(names))) => {
                tasks.extend(names.iter().filter_map(|name| child(shared, &parent, name)));
            }
            (Task::Contenders(key), Ok(Answer::Names(names))) => {
                let names = names.into_iter().map(String::into_boxed_str).collect();
                shared.write().set_contenders(&key, names);
            }
            (Task::Record { key, branch, lock }, Ok(Answer::Record(Some(record)))) => {
                let has_children = record.stat.num_children > 0;
                if branch && has_children {
                    tasks.push_back(Task::Children(Arc::clone(&key)));
                }
                if lock && has_children {
                    tasks.push_back(Task::Contenders(Arc::clone(&key)));
                } else {
                    shared.write().set_contenders(&key, Vec::new());
                }
                store(shared, &key, &record);
                seen.insert(key);
            }
            _ => {}
        }
        tokio::task::coop::consume_budget().await;
    }
}

/// Takes a record that was read into the view, and parses it only if it is new to it.
pub(super) fn store<S: Shape>(shared: &Shared<S>, key: &Key, record: &Record) {
    if !shared.read().wants(key, &record.stat) {
        return;
    }
    let content = Content::parse(&shared.shape, key, record);
    let mut state = shared.write();
    state.put(&shared.root, Arc::clone(key), content, record.stat);
}

fn child<S: Shape>(shared: &Shared<S>, parent: &str, name: &str) -> Option<Task> {
    let key = if parent.is_empty() {
        Key::from(name)
    } else {
        Key::from(format!("{parent}/{name}"))
    };
    match shared.shape.kind(&key) {
        Kind::Record { branch, lock } => Some(Task::Record { key, branch, lock }),
        Kind::Directory => Some(Task::Children(key)),
        Kind::Nothing => None,
    }
}

async fn run<S: Shape>(shared: &Shared<S>, task: Task) -> (Task, Result<Answer>) {
    let answer = answer(shared, &task).await;
    (task, answer)
}

async fn answer<S: Shape>(shared: &Shared<S>, task: &Task) -> Result<Answer> {
    let tree = &*shared.tree;
    match task {
        Task::Children(key) if key.is_empty() => ext::child_names(tree, &shared.root)
            .await
            .map(Answer::Names),
        Task::Children(key) => {
            let path = shared.root.join(key)?;
            ext::child_names(tree, &path).await.map(Answer::Names)
        }
        Task::Contenders(key) => {
            let path: TreePath = shared.root.join(key)?.join(LOCK)?;
            ext::child_names(tree, &path).await.map(Answer::Names)
        }
        Task::Record { key, .. } => {
            let path = shared.root.join(key)?;
            ext::get_opt(tree, &path).await.map(Answer::Record)
        }
    }
}
