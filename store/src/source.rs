//! One way to read a table, from a snapshot or from inside the writer's transaction, so that a lookup is written once.

use std::borrow::Borrow;

use redb::{Key, ReadTransaction, ReadableTable, TableDefinition, Value, WriteTransaction};

use crate::error::StoreError;

/// Something that tables can be read from.
pub(crate) trait Source {
    /// Opens a table for reading.
    ///
    /// # Errors
    /// When the database cannot be read.
    fn table<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'static, K, V>,
    ) -> Result<impl ReadableTable<K, V>, StoreError>;

    /// A counter that is not in the table yet: a batch writes its counters once, at its end.
    fn counting(&self, _key: &str) -> Option<u64> {
        None
    }
}

impl Source for ReadTransaction {
    fn table<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'static, K, V>,
    ) -> Result<impl ReadableTable<K, V>, StoreError> {
        Ok(self.open_table(table)?)
    }
}

impl Source for WriteTransaction {
    fn table<K: Key + 'static, V: Value + 'static>(
        &self,
        table: TableDefinition<'static, K, V>,
    ) -> Result<impl ReadableTable<K, V>, StoreError> {
        Ok(self.open_table(table)?)
    }
}

/// The value of one key, as the caller reads it.
pub(crate) fn lookup<'k, K, V, T>(
    source: &impl Source,
    table: TableDefinition<'static, K, V>,
    key: impl Borrow<K::SelfType<'k>>,
    read: impl FnOnce(V::SelfType<'_>) -> T,
) -> Result<Option<T>, StoreError>
where
    K: Key + 'static,
    V: Value + 'static,
{
    let table = source.table(table)?;
    let found = table.get(key)?;
    Ok(found.map(|guard| read(guard.value())))
}

/// A counter of [`crate::tables::META`]; 0 when it was never set.
pub(crate) fn counter(source: &impl Source, key: &str) -> Result<u64, StoreError> {
    if let Some(value) = source.counting(key) {
        return Ok(value);
    }
    Ok(lookup(source, crate::tables::META, key, |value| value)?.unwrap_or(0))
}
