//! Entries that are held and not on the main chain: branches, fenced and revoked tails. They are evidence: nothing here
//! removes one but the whole session's going, and what peers may add has a quota.

use redb::ReadableTable;
use throughline_protocol::block::Signed;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{EntryCid, Seq, SessionId, UnixMillis};

use crate::error::StoreError;
use crate::index::{self, Lane, Place};
use crate::payloads::size_of;
use crate::rows::{SideRow, SideStatus};
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::writer::{Changes, Step, View};

/// An entry that is held beside the main chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideEntry {
    /// Its CID.
    pub cid: EntryCid,
    /// Its seq.
    pub seq: Seq,
    /// Why it is there.
    pub status: SideStatus,
    /// Since when.
    pub since: UnixMillis,
    /// The payload it names.
    pub payload: Option<EntryCid>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// One side entry.
pub(crate) fn get(
    source: &impl Source,
    session: u64,
    cid: EntryCid,
) -> Result<Option<SideEntry>, StoreError> {
    let row = lookup(source, tables::SIDE, (session, cid.digest()), |row| SideRow::from_bytes(cid, row))?;
    Ok(row.transpose()?.map(|row| entry(cid, row)))
}

fn entry(cid: EntryCid, row: SideRow) -> SideEntry {
    let SideRow { status, seq, since, payload, bytes } = row;
    SideEntry { cid, seq, status, since, payload, bytes }
}

/// Side entries of a session after `after`, at most `limit`, ascending by CID.
pub(crate) fn list(
    source: &impl Source,
    session: u64,
    after: Option<EntryCid>,
    limit: usize,
) -> Result<Vec<SideEntry>, StoreError> {
    let table = source.table(tables::SIDE)?;
    let from = after.map_or([0; 32], |cid| *cid.digest());
    let mut found = Vec::new();
    for row in table.range((session, &from)..=(session, &[0xff; 32]))? {
        let (key, row) = row?;
        let cid = EntryCid::from_digest(*key.value().1);
        if Some(cid) == after {
            continue;
        }
        if found.len() == limit {
            break;
        }
        found.push(entry(cid, SideRow::from_bytes(cid, row.value())?));
    }
    Ok(found)
}

/// Puts an entry beside the main chain.
pub(crate) fn put(
    changes: &Changes<'_, '_>,
    session: u64,
    cid: EntryCid,
    row: &SideRow,
) -> Result<(), StoreError> {
    changes.put(tables::SIDE, (session, cid.digest()), row.to_bytes().as_slice())?;
    let place = Place { session, seq: row.seq, lane: Lane::Side };
    changes.put(tables::INDEX, cid.digest(), place.to_row())?;
    changes.count(meta::SIDE_BYTES, size_of(&row.bytes), 0)?;
    Ok(())
}

/// Keeps entries as evidence.
#[derive(Clone, Debug)]
pub struct PutSide {
    /// The session, which must be held.
    pub session: SessionId,
    /// Entries of it with their standing; those that are held already are passed over.
    pub entries: Vec<(Signed<Entry>, SideStatus)>,
    /// When.
    pub at: UnixMillis,
    /// What all side entries of this store may take, in bytes.
    pub total_bytes_max: u64,
}

/// What is new, and where.
#[doc(hidden)]
#[derive(Debug)]
pub struct SidePlan {
    session: u64,
    new: Vec<usize>,
}

impl Step for PutSide {
    /// How many were new.
    type Output = usize;
    type Error = StoreError;
    type Plan = SidePlan;

    fn check(&self, view: &View<'_, '_>) -> Result<SidePlan, StoreError> {
        let session = index::need_session(view.txn, self.session)?.number;
        let mut new = Vec::<usize>::new();
        let mut asked_bytes = counter(view.txn, meta::SIDE_BYTES)?;
        for (at, (signed, _)) in self.entries.iter().enumerate() {
            if signed.value().session(signed.cid()) != self.session {
                let code = throughline_protocol::code::Code::SessionMismatch;
                return Err(StoreError::Refused(code.into()));
            }
            let is_twice = new.iter().any(|other| self.entries[*other].0.cid() == signed.cid());
            if !is_twice && index::find(view.txn, signed.cid())?.is_none() {
                asked_bytes = asked_bytes.saturating_add(size_of(signed.bytes()));
                new.push(at);
            }
        }
        if asked_bytes > self.total_bytes_max {
            let max_bytes = self.total_bytes_max;
            return Err(StoreError::Quota { what: "the evidence area", asked_bytes, max_bytes });
        }
        Ok(SidePlan { session, new })
    }

    fn write(self, plan: SidePlan, changes: &Changes<'_, '_>) -> Result<usize, StoreError> {
        for at in &plan.new {
            let (signed, status) = &self.entries[*at];
            let row = SideRow {
                status: *status,
                seq: signed.value().seq(),
                since: self.at,
                payload: signed.value().payload.map(|payload| payload.cid),
                bytes: signed.bytes().to_vec(),
            };
            put(changes, plan.session, signed.cid(), &row)?;
        }
        Ok(plan.new.len())
    }
}
