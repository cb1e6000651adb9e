//! [`TreePath`]: validated absolute paths of records.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// An absolute path: `/`, or `/a/b` without empty, `.` or `..` components.
///
/// Validated by ZooKeeper's rules.
/// Cloning is cheap.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreePath(Arc<str>);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid path {path:?}: {reason}")]
pub struct InvalidPath {
    pub path: String,
    pub reason: &'static str,
}

impl TreePath {
    pub fn new(path: impl Into<Arc<str>>) -> Result<Self, InvalidPath> {
        let path = path.into();
        match invalid_reason(&path) {
            None => Ok(Self(path)),
            Some(reason) => Err(InvalidPath {
                path: path.to_string(),
                reason,
            }),
        }
    }

    pub fn root() -> Self {
        Self(Arc::from("/"))
    }

    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Appends one or more components.
    pub fn join(&self, relative: &str) -> Result<Self, InvalidPath> {
        if self.is_root() {
            Self::new(format!("/{relative}"))
        } else {
            Self::new(format!("{self}/{relative}"))
        }
    }

    /// Returns the path for a sequential create whose name is only the ten digits: it ends with a slash, has
    /// `self` as its parent (below the root it is the root) and an empty name. Every other operation rejects it.
    pub fn unnamed_child(&self) -> Self {
        if self.is_root() {
            self.clone()
        } else {
            Self(Arc::from(format!("{self}/")))
        }
    }

    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let (head, _) = self.0.rsplit_once('/')?;
        Some(if head.is_empty() {
            Self::root()
        } else {
            Self(Arc::from(head))
        })
    }

    /// Returns the last component; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(_, name)| name)
    }

    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// Returns whether `other` is `self` or a descendant.
    pub fn contains(&self, other: &TreePath) -> bool {
        self.relative(other).is_some()
    }

    /// Returns `other` relative to `self`: empty if equal, `None` if it is not a descendant.
    pub fn relative<'a>(&self, other: &'a TreePath) -> Option<&'a str> {
        if self.is_root() {
            return other.0.strip_prefix('/');
        }
        let rest = other.0.strip_prefix(&*self.0)?;
        if rest.is_empty() {
            return Some(rest);
        }
        rest.strip_prefix('/')
    }
}

fn invalid_reason(path: &str) -> Option<&'static str> {
    if !path.starts_with('/') {
        return Some("it must start with a slash");
    }
    if path == "/" {
        return None;
    }
    for part in path.split('/').skip(1) {
        match part {
            "" => return Some("it must not end with a slash or have two in a row"),
            "." | ".." => return Some("it must not have a part that is . or .."),
            _ => {}
        }
    }
    path.chars()
        .any(|c| {
            matches!(c,
                '\u{0}'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}')
        })
        .then_some("it must not have control or private-use characters")
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl AsRef<str> for TreePath {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for TreePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for TreePath {
    type Err = InvalidPath;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::new(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_paths_come_apart_again() {
        let path = TreePath::new("/a/b/c").unwrap();
        assert_eq!(path.name(), "c");
        assert_eq!(path.parent().unwrap().as_str(), "/a/b");
        assert_eq!(path.parts().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(TreePath::root().join("x").unwrap().as_str(), "/x");
        assert_eq!(
            TreePath::new("/x").unwrap().parent(),
            Some(TreePath::root())
        );
        assert_eq!(TreePath::root().parent(), None);
    }

    #[test]
    fn an_unnamed_child_has_a_parent_and_no_name() {
        let nodes = TreePath::new("/nodepool/nodes").unwrap();
        let unnamed = nodes.unnamed_child();
        assert_eq!(unnamed.as_str(), "/nodepool/nodes/");
        assert_eq!(unnamed.parent(), Some(nodes));
        assert_eq!(unnamed.name(), "");
        assert_eq!(TreePath::root().unnamed_child(), TreePath::root());
    }

    #[test]
    fn a_sibling_with_the_same_beginning_is_not_below() {
        let node = TreePath::new("/nodes/1").unwrap();
        let below = TreePath::new("/nodes/1/lock").unwrap();
        let beside = TreePath::new("/nodes/11").unwrap();
        assert_eq!(node.relative(&below), Some("lock"));
        assert_eq!(node.relative(&node), Some(""));
        assert!(!node.contains(&beside));
        assert!(TreePath::root().contains(&beside));
    }

    #[test]
    fn bad_paths_are_refused_with_the_reason() {
        for bad in [
            "",
            "a",
            "a/b",
            "/a/",
            "//",
            "/a//b",
            "/.",
            "/a/../b",
            "/a/./b",
            "/\0",
            "/a\u{7}",
            "/\u{f000}",
            "/\u{fffe}",
        ] {
            let error = TreePath::new(bad).unwrap_err();
            assert_eq!(error.path, bad);
        }
        TreePath::new("/a b/ä.\u{2026}").unwrap();
    }
}
