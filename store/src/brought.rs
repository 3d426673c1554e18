//! Which sessions brought a block: for which of them its bytes were received. `docs/PROTOCOL.md` R-FI-7.
//!
//! An entry names what it likes; that gives its session nothing. A block is here for a session, leaves under it and stays because of it
//! only when its bytes came for that session: with the entry, in its CAR, fetched or uploaded for it. The entry that brought a block
//! is in the block's row; every other session that brought it has a row in [`tables::BROUGHT`], also one that is not held yet.

use throughline_protocol::id::{EntryCid, SessionId};

use crate::error::StoreError;
use crate::index;
use crate::payloads::{links_in, row};
use crate::source::{Source, lookup};
use crate::tables;
use crate::unreadable::{Held, held};
use crate::writer::Changes;

/// A row of [`tables::BROUGHT`] that stays with its session; any other ends with the lease of its block, since no entry links it yet.
pub(crate) const LINKED: u64 = 0;

/// What it does for a session that one of its entries names a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// Nothing: its bytes have to be received for the session.
    #[default]
    Nothing,
    /// It brings what is held: this node signed the entry for somebody who may read that.
    Brings,
}

/// Whether a session brought a block.
pub(crate) fn is_brought(
    source: &impl Source,
    digest: &[u8; 32],
    session: SessionId,
) -> Result<bool, StoreError> {
    if lookup(source, tables::BROUGHT, (digest, session.genesis().digest()), |_| ())?.is_some() {
        return Ok(true);
    }
    let Some((first, _)) = row(source, digest)?.and_then(|row| row.link) else { return Ok(false) };
    Ok(index::session_number(source, session)? == Some(first))
}

/// The sessions that brought a block, each once.
pub(crate) fn sessions(source: &impl Source, digest: &[u8; 32]) -> Result<Vec<SessionId>, StoreError> {
    let mut found = Vec::new();
    for row in source.table(tables::BROUGHT)?.range((digest, &[0; 32])..=(digest, &[0xff; 32]))? {
        found.push(SessionId::of_genesis(EntryCid::from_digest(*row?.0.value().1)));
    }
    if let Some((first, _)) = row(source, digest)?.and_then(|row| row.link) {
        let first = index::session_by_number(source, first)?.session;
        if !found.contains(&first) {
            found.push(first);
        }
    }
    Ok(found)
}

/// Whether a session keeps a block, besides the one in its row: one that brought it, and links it.
pub(crate) fn is_kept(source: &impl Source, digest: &[u8; 32]) -> Result<bool, StoreError> {
    for row in source.table(tables::BROUGHT)?.range((digest, &[0; 32])..=(digest, &[0xff; 32]))? {
        if row?.1.value() == LINKED {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Notes that the bytes of a block, which is held, were received for a session. Until an entry of it links the block, that lasts as long as
/// the block's lease.
pub(crate) fn receive(
    changes: &Changes<'_>,
    digest: &[u8; 32],
    session: SessionId,
    lease_ms: u64,
) -> Result<(), StoreError> {
    let number = index::session_number(changes.txn, session)?;
    let is_linked = match number {
        Some(number) => !links_in(changes.txn, digest, number)?.is_empty(),
        None => false,
    };
    let first = row(changes.txn, digest)?.and_then(|row| row.link).map(|(first, _)| first);
    if number.is_some() && first == number {
        return Ok(());
    }
    let genesis = session.genesis();
    let key = (digest, genesis.digest());
    let until = match lookup(changes.txn, tables::BROUGHT, key, |until| until)? {
        _ if is_linked => LINKED,
        Some(LINKED) => LINKED,
        Some(until) => until.max(lease_ms),
        None => lease_ms,
    };
    changes.put(tables::BROUGHT, key, until)
}

/// Notes that a session, which links a block, brought it.
pub(crate) fn keep(changes: &Changes<'_>, digest: &[u8; 32], number: u64) -> Result<(), StoreError> {
    let session = index::session_of(changes.txn, number)?;
    changes.put(tables::BROUGHT, (digest, session.genesis().digest()), LINKED)
}

/// Notes that an entry of a session links a block: what was received for the session stays with it from now on.
pub(crate) fn linked(
    changes: &Changes<'_>,
    digest: &[u8; 32],
    session: SessionId,
    naming: Naming,
) -> Result<(), StoreError> {
    let genesis = session.genesis();
    let key = (digest, genesis.digest());
    let until = lookup(changes.txn, tables::BROUGHT, key, |until| until)?;
    let brings = match (until, naming) {
        (Some(until), _) => until != LINKED,
        (None, Naming::Nothing) => false,
        (None, Naming::Brings) => {
            held(changes.txn, digest)? != Held::Not && !is_brought(changes.txn, digest, session)?
        }
    };
    if brings { changes.put(tables::BROUGHT, key, LINKED) } else { Ok(()) }
}

/// Ends what sessions brought that never linked it: the lease of the block is over.
pub(crate) fn end(changes: &Changes<'_>, digest: &[u8; 32]) -> Result<(), StoreError> {
    let mut over = Vec::new();
    for row in changes.txn.table(tables::BROUGHT)?.range((digest, &[0; 32])..=(digest, &[0xff; 32]))? {
        let (key, until) = row?;
        if until.value() != LINKED {
            over.push(*key.value().1);
        }
    }
    over.iter().try_for_each(|genesis| changes.remove(tables::BROUGHT, (digest, genesis)).map(|_| ()))
}

#[cfg(test)]
#[path = "brought_tests.rs"]
mod tests;
