//! String interning.
//!
//! A hundred thousand nodes share a few dozen providers, labels, launchers and image paths. Each thread caches recently
//! used strings in a hash table of fixed size, which saves a third of the memory of a cached view.

use std::cell::RefCell;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

const SLOTS: usize = 1024;
/// Longer strings are not cached.
const MAX_LEN: usize = 256;

thread_local! {
    static RECENT: RefCell<Vec<Arc<str>>> = RefCell::new(vec![Arc::from(""); SLOTS]);
}

/// Returns a shared copy of `text`, from the cache if possible.
pub(crate) fn intern(text: &str) -> Arc<str> {
    if text.len() > MAX_LEN {
        return Arc::from(text);
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let slot = hasher.finish() as usize % SLOTS;
    RECENT
        .try_with(|recent| {
            let mut recent = recent.borrow_mut();
            let cached = recent.get_mut(slot)?;
            if **cached != *text {
                *cached = Arc::from(text);
            }
            Some(Arc::clone(cached))
        })
        .ok()
        .flatten()
        // The thread-local is gone while a thread exits.
        .unwrap_or_else(|| Arc::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_shared() {
        assert!(Arc::ptr_eq(&intern("cloud"), &intern("cloud")));
    }

    #[test]
    fn different_strings_are_never_confused() {
        let texts: Vec<String> = (0..10 * SLOTS).map(|n| n.to_string()).collect();
        let all: Vec<_> = texts.iter().map(|text| intern(text)).collect();
        assert!(all.iter().zip(&texts).all(|(a, b)| **a == **b));
        assert_eq!(*intern(&"x".repeat(MAX_LEN + 1)), "x".repeat(MAX_LEN + 1));
    }
}
