//! Blocks whose row cannot be read: what a write does with one. `docs/ARCHITECTURE.md` §Store.
//!
//! A flipped bit must not end writing for the whole node: whoever brings the bytes again replaces such a row, and a redaction
//! drops it. Nor must it take along what is whole: a file whose row is damaged is all that there is of a payload, so a link or lease
//! that ends drops the row only when nothing else may need the block; until then it stays for `fsck` to name and mend.
//!
//! What the row alone said is found out elsewhere: the link that it had from the entries themselves, the lease from the list of
//! leases, the bytes that are counted by counting again. That walks whole tables, which is for the rare case that it is.

use std::collections::BTreeSet;

use throughline_protocol::id::EntryCid;

use crate::brought;
use crate::error::StoreError;
use crate::payloads::{has_more_links, links_of_entries};
use crate::rows::{BlockRow, EntryRow, SideRow};
use crate::source::{Source, lookup};
use crate::tables::{self, meta};
use crate::writer::Changes;

/// What is held of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Nothing.
    Not,
    /// A row that cannot be read.
    Damaged,
    /// This.
    As(BlockRow),
}

/// What is held of a block. An error is one of the database, not of the row.
pub(crate) fn held(source: &impl Source, digest: &[u8; 32]) -> Result<Held, StoreError> {
    let row = lookup(source, tables::BLOCKS, digest, |row| BlockRow::split(row).map(|(row, _)| row))?;
    Ok(match row {
        None => Held::Not,
        Some(Err(_)) => Held::Damaged,
        Some(Ok(row)) => Held::As(row),
    })
}

/// Removes a row that cannot be read, keeps what is known of its links, and lists a file of it to be unlinked. Returns until
/// when it was leased, in Unix milliseconds; 0 is not at all.
pub(crate) fn remove(changes: &Changes<'_>, digest: &[u8; 32]) -> Result<u64, StoreError> {
    let links = links_of_entries(changes.txn, &BTreeSet::from([*digest]))?;
    let links = links.get(digest).map_or(&[][..], Vec::as_slice);
    if let Some((session, _)) = link_of_row(changes.txn, digest, links)? {
        // The row alone said that this session brought it.
        brought::keep(changes, digest, session)?;
    }
    for (session, seq) in links {
        changes.put(tables::BLOCK_REFS, (digest, *session, *seq), ())?;
    }
    let leases = leases_of(changes.txn, digest)?;
    for lease in &leases {
        changes.remove(tables::LEASES, (*lease, digest))?;
    }
    changes.remove(tables::BLOCKS, digest)?;
    // Whether the bytes lay in a file is not known: unlinking one that is not there does nothing.
    changes.put(tables::CONDEMNED, digest, ())?;
    changes.set(meta::BLOCK_BYTES, bytes_held(changes.txn)?);
    Ok(leases.into_iter().max().unwrap_or(0))
}

/// The link that the row of a block has, which cannot be read: of all that link it the one that the table of links does not have.
pub(crate) fn link_of_row(
    source: &impl Source,
    digest: &[u8; 32],
    links: &[(u64, u64)],
) -> Result<Option<(u64, u64)>, StoreError> {
    for (session, seq) in links {
        if lookup(source, tables::BLOCK_REFS, (digest, *session, *seq), |()| ())?.is_none() {
            return Ok(Some((*session, *seq)));
        }
    }
    Ok(None)
}

/// Removes a row that cannot be read, unless an entry may link its block or a lease of it runs.
pub(crate) fn remove_unneeded(changes: &Changes<'_>, digest: &[u8; 32]) -> Result<(), StoreError> {
    if may_be_linked(changes.txn, digest)? || !leases_of(changes.txn, digest)?.is_empty() {
        return Ok(());
    }
    remove(changes, digest).map(|_| ())
}

/// Whether an entry links a block, as far as can be told without its row: an entry that cannot be read may.
fn may_be_linked(source: &impl Source, digest: &[u8; 32]) -> Result<bool, StoreError> {
    if has_more_links(source, digest)? || !links_of_entries(source, &BTreeSet::from([*digest]))?.is_empty() {
        return Ok(true);
    }
    for row in source.table(tables::ENTRIES)?.iter()? {
        if EntryRow::from_bytes(row?.1.value()).is_err() {
            return Ok(true);
        }
    }
    for row in source.table(tables::SIDE)?.iter()? {
        let (key, row) = row?;
        if SideRow::from_bytes(EntryCid::from_digest(*key.value().1), row.value()).is_err() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// When the leases of a block end, as far as its row is not asked.
pub(crate) fn leases_of(source: &impl Source, digest: &[u8; 32]) -> Result<Vec<u64>, StoreError> {
    let mut leases = Vec::new();
    for row in source.table(tables::LEASES)?.iter()? {
        let row = row?.0;
        let (expires, of) = row.value();
        leases.extend((of == digest).then_some(expires));
    }
    Ok(leases)
}

/// Bytes of all blocks whose rows can be read.
pub(crate) fn bytes_held(source: &impl Source) -> Result<u64, StoreError> {
    let mut bytes = 0_u64;
    for row in source.table(tables::BLOCKS)?.iter()? {
        let size = BlockRow::split(row?.1.value()).map_or(0, |(block, _)| block.size);
        bytes = bytes.saturating_add(size);
    }
    Ok(bytes)
}

#[cfg(test)]
#[path = "unreadable_tests.rs"]
mod tests;
