//! What a view holds, and the rules by which a newer record replaces an older one.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::changes::{Changes, Subscribers};
use super::{Flaw, Item, Shape};
use crate::path::TreePath;
use crate::tree::{Record, Stat};
use nodeyard_model::with_causes;

pub(super) struct State<S: Shape> {
    slots: BTreeMap<S::Id, Slot<S::Value>>,
    /// Names of the contenders of each lock that has some. They are unique for ever, so adding and
    /// removing them by events is exact whatever a listing has shown before.
    contenders: HashMap<S::Id, Vec<Box<str>>>,
    /// Deleted, but reads that began earlier may still bring it back.
    forgotten: HashSet<S::Id>,
    /// Being read, apart from a full listing.
    reading: HashSet<S::Id>,
    /// Written by us while a full listing is under way, which may have passed by already.
    written: HashSet<S::Id>,
    subscribers: Subscribers<S::Id>,
    current: bool,
}

struct Slot<T> {
    content: Content<T>,
    stat: Stat,
    /// The full listing under way has not confirmed it yet.
    unconfirmed: bool,
}

pub(super) enum Content<T> {
    Value(Arc<T>),
    Empty,
    Flaw(Box<Damage>),
}

pub(super) struct Damage {
    path: TreePath,
    reason: String,
    data: Bytes,
}

/// More than any record has that something could be made of.
const KEPT_BYTES: usize = 64 << 10;

impl<T> Content<T> {
    pub(super) fn parse<S>(shape: &S, id: &S::Id, path: &TreePath, record: &Record) -> Self
    where
        S: Shape<Value = T>,
    {
        if record.data.is_empty() {
            return Content::Empty;
        }
        match shape.parse(id, &record.data) {
            Ok(value) => Content::Value(Arc::new(value)),
            Err(error) => Content::Flaw(Box::new(Damage {
                path: path.clone(),
                reason: with_causes(&*error),
                data: if record.data.len() <= KEPT_BYTES {
                    Bytes::copy_from_slice(&record.data)
                } else {
                    Bytes::new()
                },
            })),
        }
    }
}

impl<S: Shape> Default for State<S> {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            contenders: HashMap::new(),
            forgotten: HashSet::new(),
            reading: HashSet::new(),
            written: HashSet::new(),
            subscribers: Subscribers::default(),
            current: false,
        }
    }
}

impl<S: Shape> State<S> {
    pub(super) fn item(&self, id: &S::Id) -> Option<Item<S>> {
        self.to_item(id, self.slots.get(id)?)
    }

    pub(super) fn items(&self) -> impl Iterator<Item = Item<S>> {
        self.slots
            .iter()
            .filter_map(|(id, slot)| self.to_item(id, slot))
    }

    fn to_item(&self, id: &S::Id, slot: &Slot<S::Value>) -> Option<Item<S>> {
        let Content::Value(value) = &slot.content else {
            return None;
        };
        Some(Item {
            id: id.clone(),
            value: Arc::clone(value),
            stat: slot.stat,
            locked: self.contenders.contains_key(id),
        })
    }

    pub(super) fn len(&self) -> usize {
        let is_value = |slot: &&Slot<S::Value>| matches!(slot.content, Content::Value(_));
        self.slots.values().filter(is_value).count()
    }

    pub(super) fn flaws(&self) -> Vec<Flaw<S::Id>> {
        let flaws = self.slots.iter();
        flaws.filter_map(|(id, slot)| to_flaw(id, slot)).collect()
    }

    pub(super) fn flaw(&self, id: &S::Id) -> Option<Flaw<S::Id>> {
        to_flaw(id, self.slots.get(id)?)
    }

    pub(super) fn empty(&self) -> Vec<(S::Id, Stat)> {
        self.slots
            .iter()
            .filter(|(_, slot)| matches!(slot.content, Content::Empty))
            .map(|(id, slot)| (id.clone(), slot.stat))
            .collect()
    }

    pub(super) fn is_blank(&self, id: &S::Id) -> bool {
        let slot = self.slots.get(id);
        slot.is_some_and(|slot| matches!(slot.content, Content::Empty))
    }

    pub(super) fn subscribe(&mut self) -> Changes<S::Id> {
        self.subscribers.subscribe()
    }

    pub(super) fn is_current(&self) -> bool {
        self.current
    }

    pub(super) fn close(&mut self) {
        self.current = false;
        self.subscribers.close();
    }

    /// True if a record of this transaction would change what we hold. While everything is listed anew, an older one
    /// does, too: the store may have been restored from a backup.
    pub(super) fn wants(&self, id: &S::Id, stat: &Stat) -> bool {
        !self.forgotten.contains(id)
            && self.slots.get(id).is_none_or(|slot| {
                slot.stat.mzxid < stat.mzxid || slot.unconfirmed && slot.stat != *stat
            })
    }

    pub(super) fn put(&mut self, id: &S::Id, content: Content<S::Value>, stat: Stat) {
        if !self.wants(id, &stat) {
            return;
        }
        if let Content::Flaw(flaw) = &content {
            // Once per write, since the same transaction is not taken twice.
            let Damage { path, reason, .. } = &**flaw;
            tracing::warn!(%path, reason, "malformed record ignored");
        }
        self.subscribers.changed(id);
        let slot = Slot {
            content,
            stat,
            unconfirmed: false,
        };
        self.slots.insert(id.clone(), slot);
    }

    /// Our own write, whose event is still to come; or has come, and that of its deletion, too: what was changed and is
    /// not there any more stays away.
    pub(super) fn put_own(&mut self, id: S::Id, value: Arc<S::Value>, stat: Stat) {
        let is_new = stat.version == 0;
        if !is_new && !self.slots.contains_key(&id) {
            return;
        }
        self.forgotten.remove(&id);
        self.put(&id, Content::Value(value), stat);
        if !self.current {
            self.written.insert(id);
        }
    }

    /// The store says that the record is gone.
    pub(super) fn remove(&mut self, id: &S::Id) {
        self.forgotten.remove(id);
        self.take_out(id);
    }

    /// The record is gone, whatever reads that are under way say. If none is, and the record is not here, then the
    /// event of its deletion has been seen already, and there is nothing to remember until it comes.
    pub(super) fn forget(&mut self, id: &S::Id) {
        if !self.current || self.slots.contains_key(id) || self.reading.contains(id) {
            self.forgotten.insert(id.clone());
        }
        self.written.remove(id);
        self.take_out(id);
    }

    /// This read sees what came before it, deletes included.
    pub(super) fn read_begins(&mut self, id: &S::Id) {
        self.forgotten.remove(id);
        self.reading.insert(id.clone());
    }

    pub(super) fn read_ended(&mut self, id: &S::Id) {
        self.reading.remove(id);
    }

    fn take_out(&mut self, id: &S::Id) {
        self.contenders.remove(id);
        if self.slots.remove(id).is_some() {
            self.subscribers.changed(id);
        }
    }

    pub(super) fn contender_came(&mut self, id: &S::Id, name: &str) {
        let names = self.contenders.entry(id.clone()).or_default();
        if names.iter().any(|known| **known == *name) {
            return;
        }
        names.push(name.into());
        if names.len() == 1 {
            self.lock_changed(id);
        }
    }

    pub(super) fn contender_went(&mut self, id: &S::Id, name: &str) {
        let Some(names) = self.contenders.get_mut(id) else {
            return;
        };
        names.retain(|known| **known != *name);
        if names.is_empty() {
            self.contenders.remove(id);
            self.lock_changed(id);
        }
    }

    pub(super) fn set_contenders(&mut self, id: &S::Id, names: Vec<Box<str>>) {
        let was_locked = self.contenders.contains_key(id);
        let is_locked = !names.is_empty();
        if is_locked {
            self.contenders.insert(id.clone(), names);
        } else {
            self.contenders.remove(id);
        }
        if was_locked != is_locked {
            self.lock_changed(id);
        }
    }

    fn lock_changed(&mut self, id: &S::Id) {
        if self.slots.contains_key(id) {
            self.subscribers.changed(id);
        }
    }

    /// A full listing begins: it will see everything we have written or deleted so far.
    pub(super) fn listing_begins(&mut self) {
        self.current = false;
        self.forgotten.clear();
        self.reading.clear();
        self.written.clear();
        for slot in self.slots.values_mut() {
            slot.unconfirmed = true;
        }
    }

    /// A full listing has ended: what it has not seen is gone.
    pub(super) fn listing_ended(&mut self, seen: &HashSet<S::Id>) {
        let written = std::mem::take(&mut self.written);
        let gone: Vec<S::Id> = self
            .slots
            .keys()
            .filter(|id| !seen.contains(*id) && !written.contains(*id))
            .cloned()
            .collect();
        for id in gone {
            self.take_out(&id);
        }
        for slot in self.slots.values_mut() {
            slot.unconfirmed = false;
        }
        let slots = &self.slots;
        self.contenders.retain(|id, _| slots.contains_key(id));
        self.current = true;
    }
}

fn to_flaw<I: Clone, T>(id: &I, slot: &Slot<T>) -> Option<Flaw<I>> {
    let Content::Flaw(damage) = &slot.content else {
        return None;
    };
    let Damage { path, reason, data } = &**damage;
    Some(Flaw {
        id: id.clone(),
        path: path.clone(),
        reason: reason.clone(),
        stat: slot.stat,
        data: data.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    struct Texts;

    impl Shape for Texts {
        type Id = u32;
        type Value = String;

        fn kind(&self, _: &TreePath) -> Kind<u32> {
            Kind::Nothing
        }

        fn parse(
            &self,
            _: &u32,
            data: &[u8],
        ) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
            Ok(String::from_utf8(data.to_vec())?)
        }
    }

    fn put(state: &mut State<Texts>, id: u32) {
        let content = Content::Value(Arc::new(String::new()));
        state.put(&id, content, Stat::default());
    }

    fn listed() -> State<Texts> {
        let mut state = State::<Texts>::default();
        state.listing_begins();
        state.listing_ended(&HashSet::new());
        state
    }

    #[test]
    fn a_listing_replaces_what_a_restored_store_has_in_an_older_version() {
        let at = |mzxid| Stat {
            mzxid,
            ..Stat::default()
        };
        let text = |text: &str| Content::Value(Arc::new(text.to_owned()));
        let held = |state: &State<Texts>| state.item(&1).map(|item| item.value.to_string());
        let mut state = listed();
        state.put(&1, text("new"), at(9));
        state.put(&1, text("a late read"), at(5));
        assert_eq!(held(&state).as_deref(), Some("new"));
        state.listing_begins();
        state.put(&1, text("restored"), at(5));
        state.listing_ended(&HashSet::from([1]));
        assert_eq!(held(&state).as_deref(), Some("restored"));
        state.put(&1, text("a late read"), at(4));
        assert_eq!(held(&state).as_deref(), Some("restored"));
    }

    #[test]
    fn nothing_is_remembered_of_a_deletion_whose_event_came_first() {
        let mut state = listed();
        put(&mut state, 1);
        state.remove(&1);
        state.forget(&1);
        assert!(state.forgotten.is_empty());
    }

    #[test]
    fn a_deletion_is_remembered_until_its_event_comes() {
        let mut state = listed();
        // The first read of a record that has come and gone.
        state.read_begins(&1);
        state.forget(&1);
        put(&mut state, 1);
        state.read_ended(&1);
        assert_eq!(state.len(), 0);
        state.remove(&1);
        assert!(state.forgotten.is_empty() && state.reading.is_empty());
    }
}
