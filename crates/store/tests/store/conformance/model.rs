//! A reference model of the store: a map from paths to records.

use std::collections::BTreeMap;

use nodeyard_store::{CreateMode, Op, Version};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Node {
    pub data: Vec<u8>,
    pub version: i32,
    pub ephemeral: bool,
    /// Children this record ever had.
    pub born: i32,
    /// Children that are gone again.
    pub died: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    NoNode,
    NodeExists,
    BadVersion,
    NotEmpty,
    NoChildrenForEphemerals,
}

/// What an operation gave: the path of the record it made, or its new version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Created(String),
    Set(i32),
    Deleted,
    Checked,
}

#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub nodes: BTreeMap<String, Node>,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            nodes: BTreeMap::from([("/".to_owned(), Node::default())]),
        }
    }

    pub(crate) fn apply(&mut self, op: &Op) -> Result<Outcome, Refusal> {
        let path = op.path().as_str();
        match op {
            Op::Create { data, mode, .. } => self.create(path, data, *mode),
            Op::Set { data, version, .. } => {
                let node = self.find(path, *version)?;
                node.data = data.to_vec();
                node.version += 1;
                Ok(Outcome::Set(node.version))
            }
            Op::Delete { version, .. } => {
                self.find(path, *version)?;
                if !self.children(path).is_empty() {
                    return Err(Refusal::NotEmpty);
                }
                self.nodes.remove(path);
                self.nodes.get_mut(parent(path)).unwrap().died += 1;
                Ok(Outcome::Deleted)
            }
            Op::Check { version, .. } => self.find(path, *version).map(|_| Outcome::Checked),
        }
    }

    /// All or, with the index of the first refusal, none.
    pub(crate) fn multi(&mut self, ops: &[Op]) -> Result<Vec<Outcome>, (usize, Refusal)> {
        let before = self.clone();
        let mut outcomes = Vec::new();
        for (index, op) in ops.iter().enumerate() {
            match self.apply(op) {
                Ok(outcome) => outcomes.push(outcome),
                Err(refusal) => {
                    *self = before;
                    return Err((index, refusal));
                }
            }
        }
        Ok(outcomes)
    }

    pub(crate) fn end_session(&mut self) {
        let mortal = self.nodes.iter().filter(|(_, node)| node.ephemeral);
        for path in mortal.map(|(path, _)| path.clone()).collect::<Vec<_>>() {
            self.nodes.remove(&path);
            self.nodes.get_mut(parent(&path)).unwrap().died += 1;
        }
    }

    pub(crate) fn children(&self, path: &str) -> Vec<String> {
        let below = self
            .nodes
            .keys()
            .filter(|other| *other != "/" && parent(other) == path);
        below
            .map(|other| other.rsplit('/').next().unwrap().to_owned())
            .collect()
    }

    fn create(&mut self, path: &str, data: &[u8], mode: CreateMode) -> Result<Outcome, Refusal> {
        let above = self.nodes.get(parent(path)).ok_or(Refusal::NoNode)?;
        if above.ephemeral {
            return Err(Refusal::NoChildrenForEphemerals);
        }
        let name = if mode.is_sequential() {
            format!("{path}{:010}", above.born)
        } else {
            path.to_owned()
        };
        if self.nodes.contains_key(&name) {
            return Err(Refusal::NodeExists);
        }
        let node = Node {
            data: data.to_vec(),
            ephemeral: mode.is_ephemeral(),
            ..Node::default()
        };
        self.nodes.get_mut(parent(path)).unwrap().born += 1;
        self.nodes.insert(name.clone(), node);
        Ok(Outcome::Created(name))
    }

    fn find(&mut self, path: &str, version: Version) -> Result<&mut Node, Refusal> {
        let node = self.nodes.get_mut(path).ok_or(Refusal::NoNode)?;
        match version {
            Version::Exactly(expected) if expected != node.version => Err(Refusal::BadVersion),
            _ => Ok(node),
        }
    }
}

fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((head, _)) => head,
    }
}
