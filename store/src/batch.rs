//! One batch, as checks read it and writes change it.
//!
//! It decides nothing. What it changes lies over what was there before, in rows and counters of its own, and every change is noted
//! for the journal: nothing else may change what is stored while the store runs, or a crash would lose it. A batch that is
//! dropped leaves nothing.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use redb::Value as _;

use crate::error::StoreError;
use crate::memtable::{KeyBytes, Memtable, Now};
use crate::redo::Redo;
use crate::source::{Base, KeyOf, Lookup, Snapshot, Source, ValueOf, counter};
use crate::table_view::TableView;
use crate::tables::{self, Spec, meta};

/// A batch while operations are executed in it.
///
/// Counters are kept here and written once: all changes go through [`Changes`].
pub(crate) struct Batch {
    base: Arc<Base>,
    changed: RefCell<Memtable>,
    redo: RefCell<Redo>,
    counters: RefCell<BTreeMap<&'static str, u64>>,
}

/// What a batch comes to.
pub(crate) struct Finished {
    /// Its number.
    pub(crate) number: u64,
    /// What the journal needs to make it durable.
    pub(crate) redo: Redo,
    /// Everything that changed since the last checkpoint, this batch included.
    pub(crate) changed: Memtable,
}

impl Batch {
    /// On top of `before`.
    pub(crate) fn new(before: &Snapshot) -> Self {
        Batch {
            base: Arc::clone(&before.base),
            changed: RefCell::new(before.changed().clone()),
            redo: RefCell::default(),
            counters: RefCell::default(),
        }
    }

    /// Writes the counters and numbers the batch; gives what changed.
    pub(crate) fn finish(self) -> Result<Finished, StoreError> {
        let number = counter(&self, meta::BATCH)? + 1;
        self.counters.borrow_mut().insert(meta::BATCH, number);
        for (key, value) in self.counters.take() {
            Changes { txn: &self }.put(tables::META, key, value)?;
        }
        Ok(Finished { number, redo: self.redo.into_inner(), changed: self.changed.into_inner() })
    }
}

impl Lookup for Batch {
    fn get<'k, S: Spec, T>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        self.base.get(table, S::changed(&self.changed.borrow()), key, read)
    }

    fn counting(&self, key: &str) -> Option<u64> {
        self.counters.borrow().get(key).copied()
    }
}

impl Source for Batch {
    fn table<S: Spec>(&self, table: S) -> Result<TableView<'_, S>, StoreError> {
        let changed = S::changed(&self.changed.borrow()).clone();
        self.base.view(table, changed)
    }
}

/// The batch as a check sees it.
pub struct View<'b> {
    pub(crate) txn: &'b Batch,
}

/// The batch as a write sees it.
pub struct Changes<'b> {
    pub(crate) txn: &'b Batch,
}

impl Changes<'_> {
    pub(crate) fn put<'k, 'v, S: Spec>(
        &self,
        _: S,
        key: impl Borrow<KeyOf<'k, S>>,
        value: impl Borrow<ValueOf<'v, S>>,
    ) -> Result<(), StoreError> {
        let now = Some(S::V::as_bytes(value.borrow()).as_ref().into());
        self.change::<S>(KeyBytes::of(key.borrow()), now);
        Ok(())
    }

    fn change<S: Spec>(&self, key: KeyBytes<S::K>, now: Now) {
        self.txn.redo.borrow_mut().note(S::NAME, Arc::clone(key.bytes()), now.clone());
        S::changed_mut(&mut self.txn.changed.borrow_mut()).put(key, now);
    }

    /// Removes a row; returns whether it was there.
    pub(crate) fn remove<'k, S: Spec>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
    ) -> Result<bool, StoreError> {
        let key = key.borrow();
        let was_there = self.txn.get(table, key, |_| ())?.is_some();
        if was_there {
            self.change::<S>(KeyBytes::of(key), None);
        }
        Ok(was_there)
    }

    /// Adds to a counter and takes from it; it stops at 0.
    pub(crate) fn count(&self, key: &'static str, added: u64, taken: u64) -> Result<u64, StoreError> {
        let value = counter(self.txn, key)?.saturating_add(added).saturating_sub(taken);
        self.txn.counters.borrow_mut().insert(key, value);
        Ok(value)
    }

    /// Sets a counter.
    pub(crate) fn set(&self, key: &'static str, value: u64) {
        self.txn.counters.borrow_mut().insert(key, value);
    }

    /// Takes the next number of a sequence that begins at 1.
    pub(crate) fn next_number(&self, key: &'static str) -> Result<u64, StoreError> {
        let number = counter(self.txn, key)?.max(1);
        self.txn.counters.borrow_mut().insert(key, number + 1);
        Ok(number)
    }
}
