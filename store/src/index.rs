//! From an entry's CID to where it is held: on a main chain or beside it.

use throughline_protocol::id::{EntryCid, Seq, SessionId};

use crate::error::StoreError;
use crate::rows::{EntryRow, SessionRow};
use crate::side;
use crate::source::{Source, lookup};
use crate::tables;

/// Value of the index's third field for an entry of a main chain.
const MAIN: u8 = 0;
/// Value for one beside it.
const SIDE: u8 = 1;

/// Where an entry is held, by session number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) session: u64,
    pub(crate) seq: Seq,
    pub(crate) lane: Lane,
}

/// On the main chain or beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// On the main chain.
    Main,
    /// Beside it: a branch, a fenced or revoked tail.
    Side,
}

impl Place {
    pub(crate) fn to_row(self) -> (u64, u64, u8) {
        let lane = match self.lane {
            Lane::Main => MAIN,
            Lane::Side => SIDE,
        };
        (self.session, self.seq.get(), lane)
    }

    fn from_row((session, seq, lane): (u64, u64, u8), cid: EntryCid) -> Result<Self, StoreError> {
        let bad = || StoreError::Index { what: format!("the row of {} is not readable", cid.short()) };
        let lane = match lane {
            MAIN => Lane::Main,
            SIDE => Lane::Side,
            _ => return Err(bad()),
        };
        Ok(Place { session, seq: Seq::new(seq).map_err(|_| bad())?, lane })
    }
}

/// Where an entry is held, if it is.
pub(crate) fn find(source: &impl Source, cid: EntryCid) -> Result<Option<Place>, StoreError> {
    let row = lookup(source, tables::INDEX, cid.digest(), |row| row)?;
    row.map(|row| Place::from_row(row, cid)).transpose()
}

/// The bytes of an entry, on a main chain or beside it, hashed.
pub(crate) fn entry_bytes(source: &impl Source, cid: EntryCid) -> Result<Option<Vec<u8>>, StoreError> {
    let Some(place) = find(source, cid)? else { return Ok(None) };
    match place.lane {
        Lane::Main => {
            let key = (place.session, place.seq.get());
            let read = |row: &[u8]| EntryRow::from_bytes(row).map(|entry| entry.bytes.to_vec());
            lookup(source, tables::ENTRIES, key, read)?.transpose()
        }
        Lane::Side => Ok(side::get(source, place.session, cid)?.map(|entry| entry.bytes)),
    }
}

/// Whether `cid` is on the main chain of a session at or before `seq`.
pub(crate) fn is_ancestor(
    source: &impl Source,
    session: u64,
    cid: EntryCid,
    seq: Seq,
) -> Result<bool, StoreError> {
    let place = find(source, cid)?;
    Ok(place.is_some_and(|place| place.session == session && place.lane == Lane::Main && place.seq <= seq))
}

/// The number of a session that is held.
pub(crate) fn session_number(source: &impl Source, session: SessionId) -> Result<Option<u64>, StoreError> {
    lookup(source, tables::SESSION_IDS, session.genesis().digest(), |number| number)
}

/// The row of a session that is held.
pub(crate) fn session(source: &impl Source, session: SessionId) -> Result<Option<SessionRow>, StoreError> {
    let Some(number) = session_number(source, session)? else { return Ok(None) };
    let row = session_by_number(source, number)?;
    if row.session != session {
        let what = format!("{} has the number of {}", session.short(), row.session.short());
        return Err(StoreError::Index { what });
    }
    Ok(Some(row))
}

/// The row of a session that must be there.
pub(crate) fn need_session(source: &impl Source, id: SessionId) -> Result<SessionRow, StoreError> {
    session(source, id)?.ok_or_else(|| StoreError::not_found(format!("session {}", id.short())))
}

/// The session under a number.
pub(crate) fn session_of(source: &impl Source, number: u64) -> Result<SessionId, StoreError> {
    let missing = || StoreError::Index { what: format!("session number {number} has no row") };
    id_of_number(source, number)?.ok_or_else(missing)
}

/// The row under a number.
pub(crate) fn session_by_number(source: &impl Source, number: u64) -> Result<SessionRow, StoreError> {
    lookup(source, tables::SESSIONS, number, |row| SessionRow::from_bytes(number, row))?
        .unwrap_or_else(|| Err(StoreError::Index { what: format!("session number {number} has no row") }))
}

/// The id of the session that has a number, although its row cannot be read: its genesis, or what the list of ids says.
pub(crate) fn id_of_number(source: &impl Source, number: u64) -> Result<Option<SessionId>, StoreError> {
    if let Ok(row) = session_by_number(source, number) {
        return Ok(Some(row.session));
    }
    let read = |row: &[u8]| EntryRow::from_bytes(row).map(|entry| entry.cid).ok();
    if let Some(cid) = lookup(source, tables::ENTRIES, (number, 0), read)?.flatten() {
        return Ok(Some(SessionId::of_genesis(cid)));
    }
    let mut listed = None;
    for row in source.table(tables::SESSION_IDS)?.iter()? {
        let (genesis, of) = row?;
        if of.value() != number {
            continue;
        }
        let session = SessionId::of_genesis(EntryCid::from_digest(*genesis.value()));
        // Of two that claim it one is damaged, and nothing says which.
        if listed.replace(session).is_some() {
            return Ok(None);
        }
    }
    Ok(listed)
}
