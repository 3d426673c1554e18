//! One transaction of the database, as checks read it and writes change it.
//!
//! It decides nothing. It keeps tables open and counters in memory while operations are executed, and notes every change:
//! nothing else may write to the database while the store runs, or a crash would lose it.

use std::borrow::Borrow;
use std::cell::RefCell;
use std::collections::BTreeMap;

use redb::{ReadableTable, Table, Value as _, WriteTransaction};

use crate::error::StoreError;
use crate::redo::Redo;
use crate::source::{KeyOf, Source, ValueOf, counter, get_from};
use crate::tables::{self, Open, Spec, meta};

/// One transaction of the database while operations are executed in it.
///
/// Counters are kept here and written once, and everything that is changed is noted for the journal: all changes go through
/// [`Changes`].
pub(crate) struct Batch<'t> {
    txn: &'t WriteTransaction,
    open: Open<'t>,
    redo: RefCell<Redo>,
    counters: RefCell<BTreeMap<&'static str, u64>>,
}

impl<'t> Batch<'t> {
    pub(crate) fn new(txn: &'t WriteTransaction) -> Self {
        Batch { txn, open: Open::default(), redo: RefCell::default(), counters: RefCell::default() }
    }

    /// Does something with a table, which stays open.
    fn with<S: Spec, T>(
        &self,
        _: S,
        act: impl FnOnce(&mut Table<'t, S::K, S::V>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut slot = S::slot(&self.open).borrow_mut();
        match slot.as_mut() {
            Some(table) => act(table),
            None => act(slot.insert(self.txn.open_table(S::DEFINITION)?)),
        }
    }

    /// Writes the counters and numbers the batch; gives what changed.
    pub(crate) fn finish(self) -> Result<(u64, Redo), StoreError> {
        let number = counter(&self, meta::BATCH)? + 1;
        self.counters.borrow_mut().insert(meta::BATCH, number);
        for (key, value) in self.counters.take() {
            Changes { txn: &self }.put(tables::META, key, value)?;
        }
        Ok((number, self.redo.into_inner()))
    }
}

impl Source for Batch<'_> {
    fn table<S: Spec>(&self, _: S) -> Result<impl ReadableTable<S::K, S::V>, StoreError> {
        // A transaction has a table open once.
        S::slot(&self.open).take();
        Ok(self.txn.open_table(S::DEFINITION)?)
    }

    fn get<'k, S: Spec, T>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        self.with(table, |table| get_from(table, key, read))
    }

    fn counting(&self, key: &str) -> Option<u64> {
        self.counters.borrow().get(key).copied()
    }
}

/// The transaction as a check sees it.
pub struct View<'b, 't> {
    pub(crate) txn: &'b Batch<'t>,
}

/// The transaction as a write sees it.
pub struct Changes<'b, 't> {
    pub(crate) txn: &'b Batch<'t>,
}

impl Changes<'_, '_> {
    pub(crate) fn put<'k, 'v, S: Spec>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
        value: impl Borrow<ValueOf<'v, S>>,
    ) -> Result<(), StoreError> {
        let (key, value) = (key.borrow(), value.borrow());
        let (key_bytes, value_bytes) = (S::K::as_bytes(key), S::V::as_bytes(value));
        self.txn.redo.borrow_mut().put(S::NAME, key_bytes.as_ref(), value_bytes.as_ref());
        self.txn.with(table, |table| {
            table.insert(key, value)?;
            Ok(())
        })
    }

    /// Removes a row; returns whether it was there.
    pub(crate) fn remove<'k, S: Spec>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
    ) -> Result<bool, StoreError> {
        let key = key.borrow();
        let was_there = self.txn.with(table, |table| Ok(table.remove(key)?.is_some()))?;
        if was_there {
            self.txn.redo.borrow_mut().remove(S::NAME, S::K::as_bytes(key).as_ref());
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
