//! What a view holds, and the rules by which a newer record replaces an older one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::changes::{Changes, Subscribers};
use super::{Flaw, Item, Key, Shape};
use crate::path::TreePath;
use crate::tree::{Record, Stat};

pub(super) struct State<T> {
    slots: BTreeMap<Key, Slot<T>>,
    /// Names of the contenders of each lock that has some. They are unique for ever, so adding and
    /// removing them by events is exact whatever a listing has shown before.
    contenders: HashMap<Key, Vec<Box<str>>>,
    /// Deleted, but reads that began earlier may still bring it back.
    forgotten: HashSet<Key>,
    /// Written by us while a full listing is under way, which may have passed by already.
    written: HashSet<Key>,
    subscribers: Subscribers,
    current: bool,
}

struct Slot<T> {
    content: Content<T>,
    stat: Stat,
}

pub(super) enum Content<T> {
    Value(Arc<T>),
    Empty,
    Flaw(String),
}

impl<T> Content<T> {
    pub(super) fn parse<S: Shape<Value = T>>(shape: &S, key: &str, record: &Record) -> Self {
        if record.data.is_empty() {
            return Content::Empty;
        }
        match shape.parse(key, &record.data) {
            Ok(value) => Content::Value(Arc::new(value)),
            Err(error) => Content::Flaw(chain(&*error)),
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl<T> Default for State<T> {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            contenders: HashMap::new(),
            forgotten: HashSet::new(),
            written: HashSet::new(),
            subscribers: Subscribers::default(),
            current: false,
        }
    }
}

impl<T> State<T> {
    pub(super) fn item(&self, key: &str) -> Option<Item<T>> {
        let (key, slot) = self.slots.get_key_value(key)?;
        self.to_item(key, slot)
    }

    pub(super) fn items(&self) -> impl Iterator<Item = Item<T>> {
        self.slots
            .iter()
            .filter_map(|(key, slot)| self.to_item(key, slot))
    }

    fn to_item(&self, key: &Key, slot: &Slot<T>) -> Option<Item<T>> {
        let Content::Value(value) = &slot.content else {
            return None;
        };
        Some(Item {
            key: Arc::clone(key),
            value: Arc::clone(value),
            stat: slot.stat,
            locked: self.contenders.contains_key(key),
        })
    }

    pub(super) fn len(&self) -> usize {
        let is_value = |slot: &&Slot<T>| matches!(slot.content, Content::Value(_));
        self.slots.values().filter(is_value).count()
    }

    pub(super) fn flaws(&self) -> Vec<Flaw> {
        let flaws = self.slots.iter().filter_map(|(key, slot)| {
            let Content::Flaw(reason) = &slot.content else {
                return None;
            };
            Some(Flaw {
                key: Arc::clone(key),
                reason: reason.clone(),
                stat: slot.stat,
            })
        });
        flaws.collect()
    }

    pub(super) fn empty(&self) -> Vec<(Key, Stat)> {
        self.slots
            .iter()
            .filter(|(_, slot)| matches!(slot.content, Content::Empty))
            .map(|(key, slot)| (Arc::clone(key), slot.stat))
            .collect()
    }

    pub(super) fn subscribe(&mut self) -> Changes {
        self.subscribers.subscribe()
    }

    pub(super) fn is_current(&self) -> bool {
        self.current
    }

    pub(super) fn close(&mut self) {
        self.current = false;
        self.subscribers.close();
    }

    /// True if a record of this transaction would change what we hold.
    pub(super) fn wants(&self, key: &str, stat: &Stat) -> bool {
        !self.forgotten.contains(key)
            && self
                .slots
                .get(key)
                .is_none_or(|slot| slot.stat.mzxid < stat.mzxid)
    }

    pub(super) fn put(&mut self, root: &TreePath, key: Key, content: Content<T>, stat: Stat) {
        if !self.wants(&key, &stat) {
            return;
        }
        if let Content::Flaw(reason) = &content {
            // Once per write, since the same transaction is not taken twice.
            tracing::warn!(path = %format_args!("{root}/{key}"), reason, "malformed record ignored");
        }
        self.subscribers.changed(&key);
        self.slots.insert(key, Slot { content, stat });
    }

    /// Our own write, whose event is still to come.
    pub(super) fn put_own(&mut self, root: &TreePath, key: Key, content: Content<T>, stat: Stat) {
        self.forgotten.remove(&key);
        if !self.current {
            self.written.insert(Arc::clone(&key));
        }
        self.put(root, key, content, stat);
    }

    /// The store says that the record is gone.
    pub(super) fn remove(&mut self, key: &str) {
        self.forgotten.remove(key);
        self.take_out(key);
    }

    /// The record is gone, whatever reads that are under way say.
    pub(super) fn forget(&mut self, key: &str) {
        self.forgotten.insert(Key::from(key));
        self.written.remove(key);
        self.take_out(key);
    }

    /// This read sees what came before it, deletes included.
    pub(super) fn read_begins(&mut self, key: &str) {
        self.forgotten.remove(key);
    }

    fn take_out(&mut self, key: &str) {
        self.contenders.remove(key);
        if let Some((key, _)) = self.slots.remove_entry(key) {
            self.subscribers.changed(&key);
        }
    }

    pub(super) fn contender_came(&mut self, key: &str, name: &str) {
        let names = self.contenders.entry(Key::from(key)).or_default();
        if names.iter().any(|known| **known == *name) {
            return;
        }
        names.push(name.into());
        if names.len() == 1 {
            self.lock_changed(key);
        }
    }

    pub(super) fn contender_went(&mut self, key: &str, name: &str) {
        let Some(names) = self.contenders.get_mut(key) else {
            return;
        };
        names.retain(|known| **known != *name);
        if names.is_empty() {
            self.contenders.remove(key);
            self.lock_changed(key);
        }
    }

    pub(super) fn set_contenders(&mut self, key: &str, names: Vec<Box<str>>) {
        let was_locked = self.contenders.contains_key(key);
        let is_locked = !names.is_empty();
        if is_locked {
            self.contenders.insert(Key::from(key), names);
        } else {
            self.contenders.remove(key);
        }
        if was_locked != is_locked {
            self.lock_changed(key);
        }
    }

    fn lock_changed(&mut self, key: &str) {
        if let Some((key, _)) = self.slots.get_key_value(key) {
            let key = Arc::clone(key);
            self.subscribers.changed(&key);
        }
    }

    /// A full listing begins: it will see everything we have written or deleted so far.
    pub(super) fn listing_begins(&mut self) {
        self.current = false;
        self.forgotten.clear();
        self.written.clear();
    }

    /// A full listing has ended: what it has not seen is gone.
    pub(super) fn listing_ended(&mut self, seen: &HashSet<Key>) {
        let written = std::mem::take(&mut self.written);
        let gone: Vec<Key> = self
            .slots
            .keys()
            .filter(|key| !seen.contains(*key) && !written.contains(*key))
            .cloned()
            .collect();
        for key in gone {
            self.take_out(&key);
        }
        let slots = &self.slots;
        self.contenders.retain(|key, _| slots.contains_key(key));
        self.current = true;
    }
}
