//! One way to read a table, from a snapshot or from inside the writer's transaction, so that a lookup is written once.

use std::borrow::Borrow;
use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable, Value, WriteTransaction};

use crate::error::StoreError;
use crate::tables::{META, OpenToRead, Spec};

/// The key of a table, as it is given.
pub(crate) type KeyOf<'k, S> = <<S as Spec>::K as Value>::SelfType<'k>;
/// The value of a table, as it is read.
pub(crate) type ValueOf<'v, S> = <<S as Spec>::V as Value>::SelfType<'v>;

/// Something that tables can be read from.
pub(crate) trait Source {
    /// Opens a table for reading.
    ///
    /// # Errors
    /// When the database cannot be read.
    fn table<S: Spec>(&self, table: S) -> Result<impl ReadableTable<S::K, S::V>, StoreError>;

    /// The value of one key, as the caller reads it.
    ///
    /// # Errors
    /// When the database cannot be read.
    fn get<'k, S: Spec, T>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        get_from(&self.table(table)?, key, read)
    }

    /// A counter that is not in the table yet: a batch writes its counters once, at its end.
    fn counting(&self, _key: &str) -> Option<u64> {
        None
    }
}

/// The value of one key of an open table, as the caller reads it.
pub(crate) fn get_from<'k, K: redb::Key + 'static, V: Value + 'static, T>(
    table: &impl ReadableTable<K, V>,
    key: impl Borrow<K::SelfType<'k>>,
    read: impl FnOnce(V::SelfType<'_>) -> T,
) -> Result<Option<T>, StoreError> {
    Ok(table.get(key)?.map(|guard| read(guard.value())))
}

impl Source for ReadTransaction {
    fn table<S: Spec>(&self, _: S) -> Result<impl ReadableTable<S::K, S::V>, StoreError> {
        Ok(self.open_table(S::DEFINITION)?)
    }
}

impl Source for WriteTransaction {
    fn table<S: Spec>(&self, _: S) -> Result<impl ReadableTable<S::K, S::V>, StoreError> {
        Ok(self.open_table(S::DEFINITION)?)
    }
}

/// One commit of the database, and the tables of it that were looked into.
pub(crate) struct Snapshot {
    txn: ReadTransaction,
    open: OpenToRead,
}

impl Snapshot {
    pub(crate) fn new(txn: ReadTransaction) -> Self {
        Snapshot { txn, open: OpenToRead::default() }
    }

    /// A table of this commit.
    pub(crate) fn open_table<S: Spec>(&self, _: S) -> Result<redb::ReadOnlyTable<S::K, S::V>, StoreError> {
        Ok(self.txn.open_table(S::DEFINITION)?)
    }
}

impl Source for Snapshot {
    fn table<S: Spec>(&self, table: S) -> Result<impl ReadableTable<S::K, S::V>, StoreError> {
        self.open_table(table)
    }

    fn get<'k, S: Spec, T>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let slot = S::read_slot(&self.open);
        let open = match slot.get() {
            Some(open) => open,
            None => {
                let opened = self.open_table(table)?;
                slot.get_or_init(|| opened)
            }
        };
        get_from(open, key, read)
    }
}

impl Source for Arc<Snapshot> {
    fn table<S: Spec>(&self, table: S) -> Result<impl ReadableTable<S::K, S::V>, StoreError> {
        self.open_table(table)
    }

    fn get<'k, S: Spec, T>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        Snapshot::get(self, table, key, read)
    }
}

/// The value of one key, as the caller reads it.
pub(crate) fn lookup<'k, S: Spec, T>(
    source: &impl Source,
    table: S,
    key: impl Borrow<KeyOf<'k, S>>,
    read: impl FnOnce(ValueOf<'_, S>) -> T,
) -> Result<Option<T>, StoreError> {
    source.get(table, key, read)
}

/// A counter of [`META`]; 0 when it was never set.
pub(crate) fn counter(source: &impl Source, key: &str) -> Result<u64, StoreError> {
    if let Some(value) = source.counting(key) {
        return Ok(value);
    }
    Ok(lookup(source, META, key, |value| value)?.unwrap_or(0))
}
