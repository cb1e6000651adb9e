//! The records of a view, and the rules by which newer records replace older ones.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;

use super::changes::{Changes, Subscribers};
use super::{InvalidRecord, Item, Shape};
use crate::path::TreePath;
use crate::tree::{Record, Stat};
use nodeyard_model::with_causes;

pub(super) struct ViewState<S: Shape> {
    slots: BTreeMap<S::Id, ViewSlot<S::Value>>,
    /// The names of contenders by lock. They are unique, so applying events is correct after any listing.
    contenders: HashMap<S::Id, Vec<Box<str>>>,
    /// Deleted records with reads in flight that may still return them.
    forgotten: HashSet<S::Id>,
    /// Records with a read in flight, apart from a full listing.
    reading: HashSet<S::Id>,
    /// Records written by this process during a full listing, which may not include them.
    written: HashSet<S::Id>,
    subscribers: Subscribers<S::Id>,
    current: bool,
}

struct ViewSlot<T> {
    content: RecordContent<T>,
    stat: Stat,
    /// Whether the current full listing has not confirmed it yet.
    unconfirmed: bool,
}

pub(super) enum RecordContent<T> {
    Value(Arc<T>),
    Empty,
    Malformed(Box<MalformedRecord>),
}

pub(super) struct MalformedRecord {
    path: TreePath,
    reason: String,
    data: Bytes,
}

/// More than any record has that something could be made of.
const MAX_KEPT_BYTES: usize = 64 << 10;

impl<T> RecordContent<T> {
    pub(super) fn parse<S>(shape: &S, id: &S::Id, path: &TreePath, record: &Record) -> Self
    where
        S: Shape<Value = T>,
    {
        if record.data.is_empty() {
            return RecordContent::Empty;
        }
        match shape.parse(id, &record.data) {
            Ok(value) => RecordContent::Value(Arc::new(value)),
            Err(error) => RecordContent::Malformed(Box::new(MalformedRecord {
                path: path.clone(),
                reason: with_causes(&*error),
                data: if record.data.len() <= MAX_KEPT_BYTES {
                    Bytes::copy_from_slice(&record.data)
                } else {
                    Bytes::new()
                },
            })),
        }
    }
}

impl<S: Shape> Default for ViewState<S> {
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

impl<S: Shape> ViewState<S> {
    pub(super) fn item(&self, id: &S::Id) -> Option<Item<S>> {
        self.to_item(id, self.slots.get(id)?)
    }

    pub(super) fn items(&self) -> impl Iterator<Item = Item<S>> {
        self.slots
            .iter()
            .filter_map(|(id, slot)| self.to_item(id, slot))
    }

    fn to_item(&self, id: &S::Id, slot: &ViewSlot<S::Value>) -> Option<Item<S>> {
        let RecordContent::Value(value) = &slot.content else {
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
        let is_value = |slot: &&ViewSlot<S::Value>| matches!(slot.content, RecordContent::Value(_));
        self.slots.values().filter(is_value).count()
    }

    pub(super) fn flaws(&self) -> Vec<InvalidRecord<S::Id>> {
        let flaws = self.slots.iter();
        flaws.filter_map(|(id, slot)| to_flaw(id, slot)).collect()
    }

    pub(super) fn flaw(&self, id: &S::Id) -> Option<InvalidRecord<S::Id>> {
        to_flaw(id, self.slots.get(id)?)
    }

    pub(super) fn empty(&self) -> Vec<(S::Id, Stat)> {
        self.slots
            .iter()
            .filter(|(_, slot)| matches!(slot.content, RecordContent::Empty))
            .map(|(id, slot)| (id.clone(), slot.stat))
            .collect()
    }

    pub(super) fn is_blank(&self, id: &S::Id) -> bool {
        let slot = self.slots.get(id);
        slot.is_some_and(|slot| matches!(slot.content, RecordContent::Empty))
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

    /// Returns whether a record with this stat would change the view. During a full listing this includes older ones,
    /// because the store may have been restored from a backup.
    pub(super) fn wants(&self, id: &S::Id, stat: &Stat) -> bool {
        !self.forgotten.contains(id)
            && self.slots.get(id).is_none_or(|slot| {
                slot.stat.mzxid < stat.mzxid || slot.unconfirmed && slot.stat != *stat
            })
    }

    pub(super) fn put(&mut self, id: &S::Id, content: RecordContent<S::Value>, stat: Stat) {
        if !self.wants(id, &stat) {
            return;
        }
        if let RecordContent::Malformed(flaw) = &content {
            // Logged once per write, since a record is not replaced by the same transaction.
            let MalformedRecord { path, reason, .. } = &**flaw;
            tracing::warn!(%path, reason, "ignoring malformed record");
        }
        self.subscribers.changed(id);
        let slot = ViewSlot {
            content,
            stat,
            unconfirmed: false,
        };
        self.slots.insert(id.clone(), slot);
    }

    /// Puts the result of an own write. Ignored if the record was deleted since, which its events have already shown.
    pub(super) fn put_own(&mut self, id: S::Id, value: Arc<S::Value>, stat: Stat) {
        let is_new = stat.version == 0;
        if !is_new && !self.slots.contains_key(&id) {
            return;
        }
        self.forgotten.remove(&id);
        self.put(&id, RecordContent::Value(value), stat);
        if !self.current {
            self.written.insert(id);
        }
    }

    /// Removes a record that the store reports as missing.
    pub(super) fn remove(&mut self, id: &S::Id) {
        self.forgotten.remove(id);
        self.take_out(id);
    }

    /// Removes a deleted record and ignores reads in flight, which may still return it. If there is none and the record
    /// is missing, its deletion event was already processed.
    pub(super) fn remove_deleted(&mut self, id: &S::Id) {
        if !self.current || self.slots.contains_key(id) || self.reading.contains(id) {
            self.forgotten.insert(id.clone());
        }
        self.written.remove(id);
        self.take_out(id);
    }

    /// Starts a read, which will include all earlier deletions.
    pub(super) fn start_read(&mut self, id: &S::Id) {
        self.forgotten.remove(id);
        self.reading.insert(id.clone());
    }

    pub(super) fn end_read(&mut self, id: &S::Id) {
        self.reading.remove(id);
    }

    fn take_out(&mut self, id: &S::Id) {
        self.contenders.remove(id);
        if self.slots.remove(id).is_some() {
            self.subscribers.changed(id);
        }
    }

    pub(super) fn add_contender(&mut self, id: &S::Id, name: &str) {
        let names = self.contenders.entry(id.clone()).or_default();
        if names.iter().any(|known| **known == *name) {
            return;
        }
        names.push(name.into());
        if names.len() == 1 {
            self.lock_changed(id);
        }
    }

    pub(super) fn remove_contender(&mut self, id: &S::Id, name: &str) {
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

    /// Starts a full listing, which will include all own writes and deletions so far.
    pub(super) fn start_listing(&mut self) {
        self.current = false;
        self.forgotten.clear();
        self.reading.clear();
        self.written.clear();
        for slot in self.slots.values_mut() {
            slot.unconfirmed = true;
        }
    }

    /// Finishes a full listing and removes records that it did not include.
    pub(super) fn finish_listing(&mut self, seen: &HashSet<S::Id>) {
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

fn to_flaw<I: Clone, T>(id: &I, slot: &ViewSlot<T>) -> Option<InvalidRecord<I>> {
    let RecordContent::Malformed(damage) = &slot.content else {
        return None;
    };
    let MalformedRecord { path, reason, data } = &**damage;
    Some(InvalidRecord {
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

    fn put(state: &mut ViewState<Texts>, id: u32) {
        let content = RecordContent::Value(Arc::new(String::new()));
        state.put(&id, content, Stat::default());
    }

    fn listed() -> ViewState<Texts> {
        let mut state = ViewState::<Texts>::default();
        state.start_listing();
        state.finish_listing(&HashSet::new());
        state
    }

    #[test]
    fn a_listing_of_a_restored_store_replaces_newer_records() {
        let at = |mzxid| Stat {
            mzxid,
            ..Stat::default()
        };
        let text = |text: &str| RecordContent::Value(Arc::new(text.to_owned()));
        let held = |state: &ViewState<Texts>| state.item(&1).map(|item| item.value.to_string());
        let mut state = listed();
        state.put(&1, text("new"), at(9));
        state.put(&1, text("a late read"), at(5));
        assert_eq!(held(&state).as_deref(), Some("new"));
        state.start_listing();
        state.put(&1, text("restored"), at(5));
        state.finish_listing(&HashSet::from([1]));
        assert_eq!(held(&state).as_deref(), Some("restored"));
        state.put(&1, text("a late read"), at(4));
        assert_eq!(held(&state).as_deref(), Some("restored"));
    }

    #[test]
    fn nothing_is_remembered_of_a_deletion_whose_event_came_first() {
        let mut state = listed();
        put(&mut state, 1);
        state.remove(&1);
        state.remove_deleted(&1);
        assert!(state.forgotten.is_empty());
    }

    #[test]
    fn a_deletion_is_remembered_until_its_event_comes() {
        let mut state = listed();
        // The first read of a record that was created and deleted.
        state.start_read(&1);
        state.remove_deleted(&1);
        put(&mut state, 1);
        state.end_read(&1);
        assert_eq!(state.len(), 0);
        state.remove(&1);
        assert!(state.forgotten.is_empty() && state.reading.is_empty());
    }
}
