//! What a batch changed, as bytes: the content of one record of the [`crate::journal`].
//!
//! Each change names its table, a key and, unless the row goes, a value, all as the database keeps them. Applying a batch twice
//! is the same as once. It decides nothing: who may change what was checked before the change was made.

use redb::{Value, WriteTransaction};

use crate::error::StoreError;
use crate::tables::{self, Spec, Visit};

/// A row is put.
const PUT: u8 = 0;
/// A row goes.
const REMOVE: u8 = 1;

/// The changes of a batch, in order.
#[derive(Debug, Default)]
pub(crate) struct Redo {
    bytes: Vec<u8>,
}

impl Redo {
    pub(crate) fn put(&mut self, table: &str, key: &[u8], value: &[u8]) {
        self.change(table, PUT, key, value);
    }

    pub(crate) fn remove(&mut self, table: &str, key: &[u8]) {
        self.change(table, REMOVE, key, &[]);
    }

    /// `kind ‖ table ‖ key ‖ value`, each of the three with its length before it.
    fn change(&mut self, table: &str, kind: u8, key: &[u8], value: &[u8]) {
        self.bytes.push(kind);
        for part in [table.as_bytes(), key, value] {
            self.bytes.extend(crate::payloads::size_of(part).to_be_bytes());
            self.bytes.extend(part);
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// One change, read back.
struct Change<'a> {
    kind: u8,
    table: &'a [u8],
    key: &'a [u8],
    value: &'a [u8],
}

impl<'a> Change<'a> {
    /// Takes the first change off `bytes`.
    fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        *bytes = rest;
        let (table, key, value) = (part(bytes)?, part(bytes)?, part(bytes)?);
        Some(Change { kind: *kind, table, key, value })
    }
}

fn part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let (part, rest) = rest.split_at_checked(usize::try_from(u64::from_be_bytes(*length)).ok()?)?;
    *bytes = rest;
    Some(part)
}

/// Makes the changes of a batch again.
pub(crate) fn apply(txn: &WriteTransaction, mut bytes: &[u8]) -> Result<(), StoreError> {
    while !bytes.is_empty() {
        let change = Change::take(&mut bytes).ok_or_else(damaged)?;
        apply_one(txn, &change)?;
    }
    Ok(())
}

fn damaged() -> StoreError {
    StoreError::corrupt("a change in the journal is not readable")
}

fn apply_one(txn: &WriteTransaction, change: &Change<'_>) -> Result<(), StoreError> {
    let unknown = || StoreError::corrupt("a change in the journal names a table that is not known");
    tables::named(change.table, Again { txn, change }).ok_or_else(unknown)?
}

/// A change that is made again in its table.
struct Again<'a> {
    txn: &'a WriteTransaction,
    change: &'a Change<'a>,
}

impl Visit for Again<'_> {
    type Output = Result<(), StoreError>;

    fn table<S: Spec>(self, _: S) -> Result<(), StoreError> {
        let (key, value) = (self.change.key, self.change.value);
        let mut table = self.txn.open_table(S::DEFINITION)?;
        match self.change.kind {
            PUT if fits::<S::K>(key) && fits::<S::V>(value) => {
                table.insert(S::K::from_bytes(key), S::V::from_bytes(value))?;
            }
            REMOVE if fits::<S::K>(key) => {
                table.remove(S::K::from_bytes(key))?;
            }
            _ => return Err(damaged()),
        }
        Ok(())
    }
}

/// Whether bytes have the width that their type has.
fn fits<T: Value>(bytes: &[u8]) -> bool {
    T::fixed_width().is_none_or(|width| width == bytes.len())
}
