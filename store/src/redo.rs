//! What a batch changed, as bytes: the content of one record of the [`crate::journal`].
//!
//! Each change names its table, a key and, unless the row goes, a value, all as the database keeps them. Applying a batch twice
//! is the same as once. It decides nothing: who may change what was checked before the change was made.

use std::sync::Arc;

use redb::{Value, WriteTransaction};

use crate::error::StoreError;
use crate::memtable::Now;
use crate::tables::{self, Spec, Visit};
use crate::verbatim;

/// A row is put.
const PUT: u8 = 0;
/// A row goes.
const REMOVE: u8 = 1;
/// Bytes of a length.
const LENGTH_BYTES: usize = 8;

/// The changes of a batch, in order. They are bytes when they are written to the journal, not before: a batch that goes to the
/// database at once never is.
#[derive(Debug, Default)]
pub(crate) struct Redo {
    noted: Vec<Noted>,
    length: usize,
}

/// One change: the row as the memtable has it.
#[derive(Debug)]
struct Noted {
    table: &'static str,
    key: Arc<[u8]>,
    now: Now,
}

impl Noted {
    /// `kind ‖ table ‖ key ‖ value`, each of the three with its length before it; no value for a row that goes.
    fn parts(&self) -> (u8, [&[u8]; 3]) {
        let (kind, value) = match &self.now {
            Some(value) => (PUT, &value[..]),
            None => (REMOVE, &[][..]),
        };
        (kind, [self.table.as_bytes(), &self.key, value])
    }
}

impl Redo {
    pub(crate) fn note(&mut self, table: &'static str, key: Arc<[u8]>, now: Now) {
        let noted = Noted { table, key, now };
        let (_, parts) = noted.parts();
        self.length += 1 + parts.iter().map(|part| LENGTH_BYTES + part.len()).sum::<usize>();
        self.noted.push(noted);
    }

    /// How many bytes [`Redo::write`] writes.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for noted in &self.noted {
            let (kind, parts) = noted.parts();
            out.push(kind);
            for part in parts {
                out.extend(crate::payloads::size_of(part).to_be_bytes());
                out.extend(part);
            }
        }
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
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
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
        let mut table = self.txn.open_table(verbatim::definition::<S>())?;
        match self.change.kind {
            PUT if fits::<S::K>(key) && fits::<S::V>(value) => {
                table.insert(S::K::from_bytes(key), value)?;
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
