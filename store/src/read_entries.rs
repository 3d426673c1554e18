//! Reading entries: by seq, by CID, in ranges, and by the hops of the skip path.

use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Epoch, Seq, SessionId};
use throughline_protocol::skip;

use crate::error::StoreError;
use crate::index::{self, Lane};
use crate::payloads;
use crate::read::Reader;
use crate::rows::EntryRow;
use crate::side::{self, SideEntry};
use crate::source::{Source as _, lookup};
use crate::table_view::TableRange;
use crate::tables;

/// An entry of a main chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Its seq.
    pub seq: Seq,
    /// Its CID.
    pub cid: EntryCid,
    /// The payload it names.
    pub payload: Option<EntryCid>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Reader {
    /// The entry of a main chain at a seq.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when it does not hash to its CID, `E_INDEX_CORRUPT` when the session's number is another's.
    pub fn entry_at(&self, session: SessionId, seq: Seq) -> Result<Option<StoredEntry>, StoreError> {
        match index::session(&self.txn, session)? {
            Some(row) => self.entry_of(row.number, seq),
            None => Ok(None),
        }
    }

    fn entry_of(&self, number: u64, seq: Seq) -> Result<Option<StoredEntry>, StoreError> {
        lookup(&self.txn, tables::ENTRIES, (number, seq.get()), |row| stored(seq, row))?.transpose()
    }

    /// An entry by its CID, on a main chain or beside it, and its session.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when it does not hash to its CID, `E_INDEX_CORRUPT` when the index points elsewhere.
    pub fn entry(&self, cid: EntryCid) -> Result<Option<(SessionId, StoredEntry)>, StoreError> {
        let Some(place) = index::find(&self.txn, cid)? else { return Ok(None) };
        let session = index::session_by_number(&self.txn, place.session)?.session;
        let entry = match place.lane {
            Lane::Main => self.entry_of(place.session, place.seq)?,
            Lane::Side => side::get(&self.txn, place.session, cid)?.map(|side| StoredEntry {
                seq: side.seq,
                cid: side.cid,
                payload: side.payload,
                bytes: side.bytes,
            }),
        };
        match entry {
            Some(entry) if entry.cid == cid => Ok(Some((session, entry))),
            Some(_) | None => Err(StoreError::Index {
                what: format!("{} is not at seq {} of {}", cid.short(), place.seq, session.short()),
            }),
        }
    }

    /// The seq of the entry on a session's main chain that names this payload, held or not. Looks at the entries that link its
    /// digest, not at the chain.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` for an entry that links it and does not hash to its CID.
    pub fn names_payload(&self, session: SessionId, payload: EntryCid) -> Result<Option<Seq>, StoreError> {
        let Some(number) = index::session_number(&self.txn, session)? else { return Ok(None) };
        for seq in payloads::links_in(&self.txn, payload.digest(), number)? {
            // A file of the same bytes is linked too, and what lies beside the chain has a seq of its own.
            let seq = Seq::new(seq).map_err(|_| StoreError::corrupt(format!("seq {seq} of a link")))?;
            if self.entry_of(number, seq)?.is_some_and(|entry| entry.payload == Some(payload)) {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }

    /// Streams the main chain from `first` to `last`, both included, oldest first.
    ///
    /// # Errors
    /// When the database cannot be read, or the session is not held.
    pub fn entries(&self, session: SessionId, first: Seq, last: Seq) -> Result<Entries, StoreError> {
        let number = index::need_session(&self.txn, session)?.number;
        let table = self.txn.table(tables::ENTRIES)?;
        // An empty range when they are the wrong way round.
        let last = last.get().max(first.get().saturating_sub(1));
        let range = if first.get() > last {
            table.range((number, 1)..(number, 1))?
        } else {
            table.range((number, first.get())..=(number, last))?
        };
        Ok(Entries { range, _store: self.store.clone() })
    }

    /// Whether `cid` is on the session's main chain at or before `seq`.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn is_ancestor(&self, session: SessionId, cid: EntryCid, seq: Seq) -> Result<bool, StoreError> {
        match index::session_number(&self.txn, session)? {
            Some(number) => index::is_ancestor(&self.txn, number, cid, seq),
            None => Ok(false),
        }
    }

    /// The locator of a range request: tip, skip(tip), skip of that, … genesis.
    ///
    /// # Errors
    /// When the database cannot be read, or the session is not held.
    pub fn locator(&self, session: SessionId) -> Result<Vec<EntryCid>, StoreError> {
        let row = index::need_session(&self.txn, session)?;
        let mut at = row.tip.seq.get();
        let mut hops = vec![self.need_entry(row.number, at)?.cid];
        while at > 0 {
            at = skip::target(at);
            hops.push(self.need_entry(row.number, at)?.cid);
        }
        Ok(hops)
    }

    /// The highest entry of the main chain among `have` at or before `want`.
    ///
    /// # Errors
    /// When the database cannot be read, or the session is not held.
    pub fn base_of(
        &self,
        session: SessionId,
        have: &[EntryCid],
        want: Seq,
    ) -> Result<Option<Mark>, StoreError> {
        let number = index::need_session(&self.txn, session)?.number;
        let mut best: Option<(Seq, EntryCid)> = None;
        for cid in have {
            let place = index::find(&self.txn, *cid)?;
            if let Some(place) = place
                && place.session == number
                && place.lane == Lane::Main
                && place.seq <= want
            {
                best = best.max(Some((place.seq, *cid)));
            }
        }
        let Some((seq, cid)) = best else { return Ok(None) };
        Ok(Some(Mark { seq, cid, epoch: self.epoch_of(number, seq)? }))
    }

    fn epoch_of(&self, number: u64, seq: Seq) -> Result<Epoch, StoreError> {
        use throughline_protocol::block::Decoded;
        use throughline_protocol::entry::Entry;
        let stored = self.need_entry(number, seq.get())?;
        let entry = Decoded::<Entry>::decode(stored.bytes)?;
        Ok(entry.value().epoch())
    }

    /// The skip path from `want` down to `base`, both included: each step takes skip unless it passes the base, else prev.
    ///
    /// # Errors
    /// When the database cannot be read, or an entry between them is not held.
    pub fn skip_path(
        &self,
        session: SessionId,
        want: Seq,
        base: Seq,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let number = index::need_session(&self.txn, session)?.number;
        let mut at = want.get();
        let mut path = vec![self.need_entry(number, at)?];
        while at > base.get() {
            let skip = skip::target(at);
            at = if skip >= base.get() { skip } else { at - 1 };
            path.push(self.need_entry(number, at)?);
        }
        Ok(path)
    }

    fn need_entry(&self, number: u64, seq: u64) -> Result<StoredEntry, StoreError> {
        let seq = Seq::new(seq)?;
        self.entry_of(number, seq)?.ok_or_else(|| StoreError::not_found(format!("entry at seq {seq}")))
    }

    /// Entries held beside the main chain after `after`, at most `limit`, ascending by CID.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn side_entries(
        &self,
        session: SessionId,
        after: Option<EntryCid>,
        limit: usize,
    ) -> Result<Vec<SideEntry>, StoreError> {
        match index::session_number(&self.txn, session)? {
            Some(number) => side::list(&self.txn, number, after, limit),
            None => Ok(Vec::new()),
        }
    }

    /// One entry held beside the main chain.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn side_entry(&self, cid: EntryCid) -> Result<Option<SideEntry>, StoreError> {
        match index::find(&self.txn, cid)? {
            Some(place) if place.lane == Lane::Side => side::get(&self.txn, place.session, cid),
            Some(_) | None => Ok(None),
        }
    }
}

/// Entries of a main chain, oldest first, or newest first from its other end; reads as it goes, from the snapshot it was
/// made in.
pub struct Entries {
    range: TableRange<tables::ENTRIES>,
    /// The database does not close under it.
    _store: crate::Store,
}

impl Iterator for Entries {
    type Item = Result<StoredEntry, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.range.next()?;
        Some(row.and_then(|(key, row)| {
            let seq = Seq::new(key.value().1)?;
            stored(seq, row.value())
        }))
    }
}

impl DoubleEndedIterator for Entries {
    fn next_back(&mut self) -> Option<Self::Item> {
        let row = self.range.next_back()?;
        Some(row.and_then(|(key, row)| {
            let seq = Seq::new(key.value().1)?;
            stored(seq, row.value())
        }))
    }
}

fn stored(seq: Seq, row: &[u8]) -> Result<StoredEntry, StoreError> {
    let row = EntryRow::from_bytes(row)?;
    Ok(StoredEntry { seq, cid: row.cid, payload: row.payload, bytes: row.bytes.to_vec() })
}
