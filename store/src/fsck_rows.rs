//! Rows that `fsck` cannot compare with others: whether they can be read, and of which session one is that cannot.
//!
//! Sessions whose own row is lost are found here by their number: what other rows say of them is looked at all the same.

use throughline_protocol::code::Code;
use throughline_protocol::id::{EntryCid, SessionId};
use throughline_protocol::verify::ChainState;

use crate::error::StoreError;
use crate::fsck::Fsck;
use crate::payloads::size_of;
use crate::read::Reader;
use crate::rebuild::LostRow;
use crate::rows::{EntryRow, SideRow};
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::{guard, index};

/// A session whose row cannot be read, or is missing: `error` says why. Returns the bytes of its entries.
pub(crate) fn lost_session(
    reader: &Reader,
    number: u64,
    error: &StoreError,
    found: &mut Fsck,
) -> Result<u64, StoreError> {
    let id = index::id_of_number(&reader.txn, number)?;
    found.note(id, error.code(), error.to_string());
    found.rows.extend(id.map(LostRow::Session));
    let mut bytes = 0;
    for row in reader.txn.table(tables::ENTRIES)?.range((number, 0)..=(number, u64::MAX))? {
        found.entries += 1;
        let entry = row?.1;
        if let Some(entry) = found.take(id, EntryRow::from_bytes(entry.value())) {
            bytes += size_of(entry.bytes);
        }
    }
    for row in reader.txn.table(tables::SIDE)?.range((number, &[0; 32])..=(number, &[0xff; 32]))? {
        found.entries += 1;
        let (key, row) = row?;
        found.take(id, SideRow::from_bytes(EntryCid::from_digest(*key.value().1), row.value()));
    }
    if !matches!(lookup(&reader.txn, tables::CHAIN_STATES, number, ChainState::from_bytes)?, Some(Ok(_))) {
        found.note(id, Code::StoreCorrupt, "the verifier's state cannot be read");
        found.rows.extend(id.map(LostRow::State));
    }
    Ok(bytes)
}

/// Sessions that are listed by id and have no row. Returns the bytes of their entries.
pub(crate) fn missing_sessions(reader: &Reader, found: &mut Fsck) -> Result<u64, StoreError> {
    let mut bytes = 0;
    for row in reader.txn.table(tables::SESSION_IDS)?.iter()? {
        let (genesis, number) = row?;
        let number = number.value();
        if lookup(&reader.txn, tables::SESSIONS, number, |_| ())?.is_some() {
            continue;
        }
        let session = SessionId::of_genesis(EntryCid::from_digest(*genesis.value()));
        let has_chain =
            reader.txn.table(tables::ENTRIES)?.range((number, 0)..=(number, u64::MAX))?.next().is_some();
        if has_chain {
            let what = format!("session number {number} has no row");
            bytes += lost_session(reader, number, &StoreError::Index { what }, found)?;
        } else {
            let what = format!("{} has number {number}, which no session has", session.short());
            found.note(Some(session), Code::IndexCorrupt, what);
        }
    }
    Ok(bytes)
}

/// The sign guard, also of sessions that are not held. While a row cannot be read nothing is signed in its session.
pub(crate) fn guards(reader: &Reader, found: &mut Fsck) -> Result<(), StoreError> {
    for row in reader.txn.table(tables::GUARD)?.iter()? {
        let session = SessionId::of_genesis(EntryCid::from_digest(*row?.0.value()));
        if guard::is_damaged(&reader.txn, session)? {
            let what = "the sign guard's row is damaged: nothing is signed here until a handoff";
            found.note(Some(session), Code::StoreCorrupt, what);
            found.rows.insert(LostRow::Guard(session));
        } else {
            found.take(Some(session), guard::row(&reader.txn, session));
        }
    }
    Ok(())
}

/// Files of evidence, and how many bytes they are.
pub(crate) fn evidence(reader: &Reader, found: &mut Fsck) -> Result<(), StoreError> {
    let held = crate::evidence::count(&reader.txn)?;
    let counted = counter(&reader.txn, meta::EVIDENCE_BYTES)?;
    // How long those are that cannot be read is not known.
    if counted < held.bytes || (counted > held.bytes && held.damaged.is_empty()) {
        let what = format!("{} bytes of evidence are held, {counted} are counted", held.bytes);
        found.note(None, Code::IndexCorrupt, what);
    }
    for (session, error) in held.damaged {
        found.note(Some(session), error.code(), error.to_string());
        found.rows.insert(LostRow::Evidence(session));
    }
    Ok(())
}
