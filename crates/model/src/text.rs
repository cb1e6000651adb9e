//! Text that repeats.
//!
//! A hundred thousand nodes share a few dozen providers, labels, launchers and image paths. Each thread
//! remembers the texts it met lately and hands out the one it has; what nobody repeats is pushed out by
//! what somebody does. The memory this costs is bounded, the memory it saves is a third of a cached view.

use std::cell::RefCell;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;

const SLOTS: usize = 1024;
/// Longer texts are rare, and not worth remembering.
const LONGEST: usize = 256;

thread_local! {
    static RECENT: RefCell<Vec<Arc<str>>> = RefCell::new(vec![Arc::from(""); SLOTS]);
}

/// `text`, in the same place in memory as when it was last asked for, if possible.
pub(crate) fn shared(text: &str) -> Arc<str> {
    if text.len() > LONGEST {
        return Arc::from(text);
    }
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    let slot = hasher.finish() as usize % SLOTS;
    RECENT
        .try_with(|recent| {
            let mut recent = recent.borrow_mut();
            let known = recent.get_mut(slot)?;
            if **known != *text {
                *known = Arc::from(text);
            }
            Some(Arc::clone(known))
        })
        .ok()
        .flatten()
        // Only while a thread ends.
        .unwrap_or_else(|| Arc::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one() {
        assert!(Arc::ptr_eq(&shared("cloud"), &shared("cloud")));
    }

    #[test]
    fn a_text_is_never_another() {
        let texts: Vec<String> = (0..10 * SLOTS).map(|n| n.to_string()).collect();
        let all: Vec<_> = texts.iter().map(|text| shared(text)).collect();
        assert!(all.iter().zip(&texts).all(|(a, b)| **a == **b));
        assert_eq!(*shared(&"x".repeat(LONGEST + 1)), "x".repeat(LONGEST + 1));
    }
}
