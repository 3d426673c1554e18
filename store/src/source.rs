//! One way to read a table, from a snapshot or from inside the writer's batch, so that a lookup is written once.

use std::borrow::Borrow;
use std::sync::Arc;

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, Value, WriteTransaction};

use crate::error::StoreError;
use crate::memtable::{Changed, Memtable};
use crate::table_view::TableView;
use crate::tables::{META, OpenToRead, Spec, meta};

/// The key of a table, as it is given.
pub(crate) type KeyOf<'k, S> = <<S as Spec>::K as Value>::SelfType<'k>;
/// The value of a table, as it is read.
pub(crate) type ValueOf<'v, S> = <<S as Spec>::V as Value>::SelfType<'v>;

/// Something that rows are looked up in.
pub(crate) trait Lookup {
    /// The value of one key, as the caller reads it.
    ///
    /// # Errors
    /// When the database cannot be read.
    fn get<'k, S: Spec, T>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError>;

    /// A counter that is not in the table yet: a batch writes its counters once, at its end.
    fn counting(&self, _key: &str) -> Option<u64> {
        None
    }
}

/// Something whose tables can be walked.
pub(crate) trait Source: Lookup {
    /// A table as it is now.
    ///
    /// # Errors
    /// When the database cannot be read.
    fn table<S: Spec>(&self, table: S) -> Result<TableView<'_, S>, StoreError>;
}

/// The value of one key of an open table, as the caller reads it.
fn get_from<'k, K: redb::Key + 'static, V: Value + 'static, T>(
    table: &impl ReadableTable<K, V>,
    key: impl Borrow<K::SelfType<'k>>,
    read: impl FnOnce(V::SelfType<'_>) -> T,
) -> Result<Option<T>, StoreError> {
    Ok(table.get(key)?.map(|guard| read(guard.value())))
}

impl Lookup for ReadTransaction {
    fn get<'k, S: Spec, T>(
        &self,
        _: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        get_from(&self.open_table(S::DEFINITION)?, key, read)
    }
}

impl Lookup for WriteTransaction {
    fn get<'k, S: Spec, T>(
        &self,
        _: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        get_from(&self.open_table(S::DEFINITION)?, key, read)
    }
}

/// One commit of the database, and the tables of it that were looked into: opening one costs more than reading a row of it.
pub(crate) struct Base {
    txn: ReadTransaction,
    open: OpenToRead,
    /// Number of its newest batch.
    batch: u64,
}

impl Base {
    fn table<S: Spec>(&self, _: S) -> Result<&ReadOnlyTable<S::K, S::V>, StoreError> {
        let slot = S::read_slot(&self.open);
        if let Some(open) = slot.get() {
            return Ok(open);
        }
        let opened = self.txn.open_table(S::DEFINITION)?;
        Ok(slot.get_or_init(|| opened))
    }

    /// A table with what changed since.
    pub(crate) fn view<S: Spec>(
        &self,
        table: S,
        changed: Changed<S::K>,
    ) -> Result<TableView<'_, S>, StoreError> {
        Ok(TableView::new(self.table(table)?, changed))
    }

    /// The value of one key, with what changed since.
    pub(crate) fn get<'k, S: Spec, T>(
        &self,
        table: S,
        changed: &Changed<S::K>,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        let key = key.borrow();
        match changed.get(key) {
            Some(now) => Ok(now.as_deref().map(|value| read(S::V::from_bytes(value)))),
            None => get_from(self.table(table)?, key, read),
        }
    }
}

/// What a reader sees: a commit of the database, and what changed since. It never changes; a copy costs a few pointers.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) base: Arc<Base>,
    changed: Memtable,
    /// Number of its newest batch.
    batch: u64,
}

impl Snapshot {
    /// A commit of the database and nothing else.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(crate) fn of_commit(txn: ReadTransaction) -> Result<Self, StoreError> {
        let batch = counter(&txn, meta::BATCH)?;
        let base = Arc::new(Base { txn, open: OpenToRead::default(), batch });
        Ok(Snapshot { base, changed: Memtable::default(), batch })
    }

    /// The same commit with everything that changed since, up to a batch.
    pub(crate) fn with(&self, changed: Memtable, batch: u64) -> Self {
        Snapshot { base: Arc::clone(&self.base), changed, batch }
    }

    pub(crate) fn changed(&self) -> &Memtable {
        &self.changed
    }

    /// This snapshot on a commit of the database that was opened again, as it was at the last checkpoint or later.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when the commit is an earlier one: batches are missing between the two.
    pub(crate) fn on(&self, commit: Snapshot) -> Result<Self, StoreError> {
        if commit.batch >= self.batch {
            return Ok(commit);
        }
        if commit.batch < self.base.batch {
            let (first, last) = (commit.batch + 1, self.base.batch);
            return Err(StoreError::corrupt(format!(
                "batches {first} to {last} of store.redb do not read back"
            )));
        }
        // Each row stands as it was left, so rows that the commit has too are the same again.
        Ok(commit.with(self.changed.clone(), self.batch))
    }
}

impl Lookup for Snapshot {
    fn get<'k, S: Spec, T>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        self.base.get(table, S::changed(&self.changed), key, read)
    }
}

impl Source for Snapshot {
    fn table<S: Spec>(&self, table: S) -> Result<TableView<'_, S>, StoreError> {
        self.base.view(table, S::changed(&self.changed).clone())
    }
}

impl Lookup for Arc<Snapshot> {
    fn get<'k, S: Spec, T>(
        &self,
        table: S,
        key: impl Borrow<KeyOf<'k, S>>,
        read: impl FnOnce(ValueOf<'_, S>) -> T,
    ) -> Result<Option<T>, StoreError> {
        Snapshot::get(self, table, key, read)
    }
}

impl Source for Arc<Snapshot> {
    fn table<S: Spec>(&self, table: S) -> Result<TableView<'_, S>, StoreError> {
        Snapshot::table(self, table)
    }
}

/// The value of one key, as the caller reads it.
pub(crate) fn lookup<'k, S: Spec, T>(
    source: &impl Lookup,
    table: S,
    key: impl Borrow<KeyOf<'k, S>>,
    read: impl FnOnce(ValueOf<'_, S>) -> T,
) -> Result<Option<T>, StoreError> {
    source.get(table, key, read)
}

/// A counter of [`META`]; 0 when it was never set.
pub(crate) fn counter(source: &impl Lookup, key: &str) -> Result<u64, StoreError> {
    if let Some(value) = source.counting(key) {
        return Ok(value);
    }
    Ok(lookup(source, META, key, |value| value)?.unwrap_or(0))
}
