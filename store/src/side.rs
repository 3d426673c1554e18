//! Entries that are held and not on the main chain: branches, fenced and revoked tails. They are evidence: nothing here
//! removes one but the whole session's going, and what peers may add has a quota, of each session and of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throughline_protocol::id::{EntryCid, Seq, SessionId, UnixMillis};
use throughline_protocol::verify::Prechecked;

use crate::adopt::large_payload;
use crate::error::StoreError;
use crate::files::{Files, INLINE_BYTES_MAX, InFlight};
use crate::index::{self, Lane, Place};
use crate::payloads::{self, size_of};
use crate::rows::{SideRow, SideStatus};
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::unreadable::{Held, held};
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
    changes: &Changes<'_>,
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

/// What may be kept beside the chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SideLimits {
    /// Side entries of the whole store, in bytes.
    pub total_bytes_max: u64,
    /// Side entries of one session and their payloads, in bytes.
    pub session_bytes_max: u64,
}

/// Keeps entries as evidence, with their payloads.
#[derive(Clone, Debug)]
pub struct PutSide {
    /// The session, which must be held.
    pub session: SessionId,
    /// Entries of it with their standing, those first that have to be kept; those that are held already are passed over.
    pub entries: Vec<(Prechecked, SideStatus)>,
    /// How many of the first ones are kept although the session's quota is full: they show what the others only repeat.
    pub needed: usize,
    /// When.
    pub at: UnixMillis,
    /// What there is room for.
    pub limits: SideLimits,
}

/// What became of entries that were to be kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideKept {
    /// They are new here.
    pub stored: usize,
    /// The session has no room for them.
    pub dropped: usize,
}

/// What is new, and where.
#[doc(hidden)]
#[derive(Debug)]
pub struct SidePlan {
    session: u64,
    new: Vec<(usize, Words)>,
    dropped: usize,
}

/// Whether there is room for an entry's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Kept,
    LeftOut,
}

/// What the side entries of a session take, payloads included. What cannot be read takes nothing: it keeps no evidence out.
fn session_bytes(view: &View<'_>, session: u64) -> Result<u64, StoreError> {
    let table = view.txn.table(tables::SIDE)?;
    let mut bytes = 0_u64;
    for row in table.range((session, &[0; 32])..=(session, &[0xff; 32]))? {
        let (key, row) = row?;
        let Ok(row) = SideRow::from_bytes(EntryCid::from_digest(*key.value().1), row.value()) else {
            continue;
        };
        bytes = bytes.saturating_add(size_of(&row.bytes));
        if let Some(payload) = row.payload
            && let Held::As(held) = held(view.txn, payload.digest())?
        {
            bytes = bytes.saturating_add(held.size);
        }
    }
    Ok(bytes)
}

impl Step for PutSide {
    type Output = SideKept;
    type Error = StoreError;
    type Plan = SidePlan;

    fn prepare(&mut self, files: &Arc<Files>) -> Result<Vec<InFlight>, StoreError> {
        let named =
            self.entries.iter().filter_map(|(entry, _)| large_payload(entry.signed(), entry.payload()));
        files.put_all(named)
    }

    fn check(&self, view: &View<'_>) -> Result<SidePlan, StoreError> {
        let session = index::need_session(view.txn, self.session)?.number;
        let mut plan = SidePlan { session, new: Vec::new(), dropped: 0 };
        let mut seen = BTreeSet::new();
        let mut total_bytes = counter(view.txn, meta::SIDE_BYTES)?;
        let mut own_bytes = None;
        for (at, (entry, _)) in self.entries.iter().enumerate() {
            let signed = entry.signed();
            if signed.value().session(signed.cid()) != self.session {
                let code = throughline_protocol::code::Code::SessionMismatch;
                return Err(StoreError::Refused(code.into()));
            }
            if !seen.insert(signed.cid()) || index::find(view.txn, signed.cid())?.is_some() {
                continue;
            }
            let held = match own_bytes {
                Some(held) => held,
                None => session_bytes(view, session)?,
            };
            let size = size_of(signed.bytes());
            let with_words = size + entry.payload().map_or(0, |bytes| size_of(bytes));
            let room = self.limits.session_bytes_max.saturating_sub(held);
            // What comes after one that was dropped may stand on it.
            let fits = |bytes| plan.dropped == 0 && bytes <= room;
            let (words, taken) = if fits(with_words) {
                (Words::Kept, with_words)
            } else if at < self.needed || fits(size) {
                (Words::LeftOut, size)
            } else {
                own_bytes = Some(held);
                plan.dropped += 1;
                continue;
            };
            own_bytes = Some(held.saturating_add(taken));
            total_bytes = total_bytes.saturating_add(size);
            plan.new.push((at, words));
        }
        if total_bytes > self.limits.total_bytes_max {
            let (asked_bytes, max_bytes) = (total_bytes, self.limits.total_bytes_max);
            return Err(StoreError::Quota { what: "the evidence area", asked_bytes, max_bytes });
        }
        Ok(plan)
    }

    fn write(self, plan: SidePlan, changes: &Changes<'_>) -> Result<SideKept, StoreError> {
        for (at, words) in &plan.new {
            let (entry, status) = &self.entries[*at];
            let signed = entry.signed();
            let row = SideRow {
                status: *status,
                seq: signed.value().seq(),
                since: self.at,
                payload: signed.value().payload.map(|payload| payload.cid),
                bytes: signed.bytes().to_vec(),
            };
            put(changes, plan.session, signed.cid(), &row)?;
            let bytes = entry.payload().filter(|_| *words == Words::Kept);
            if let (Some(payload), Some(bytes)) = (row.payload, bytes) {
                put_words(changes, plan.session, row.seq, payload, bytes)?;
            }
        }
        Ok(SideKept { stored: plan.new.len(), dropped: plan.dropped })
    }
}

/// Notes why entries that are held beside the chain are there now: what comes later may change it.
#[derive(Clone, Debug)]
pub struct RestateSide {
    /// The session.
    pub session: SessionId,
    /// The entries and their standing; those that are not held beside the chain are passed over.
    pub statuses: BTreeMap<EntryCid, SideStatus>,
}

impl Step for RestateSide {
    type Output = ();
    type Error = StoreError;
    type Plan = u64;

    fn check(&self, view: &View<'_>) -> Result<u64, StoreError> {
        Ok(index::need_session(view.txn, self.session)?.number)
    }

    fn write(self, session: u64, changes: &Changes<'_>) -> Result<(), StoreError> {
        for (cid, status) in self.statuses {
            let held = lookup(changes.txn, tables::SIDE, (session, cid.digest()), |row| {
                SideRow::from_bytes(cid, row)
            })?;
            // One that cannot be read stays as it is, for `fsck` to find.
            let Some(Ok(held)) = held else { continue };
            let row = SideRow { status, ..held };
            changes.put(tables::SIDE, (session, cid.digest()), row.to_bytes().as_slice())?;
        }
        Ok(())
    }
}

/// Stores the payload of a side entry, linked as those of the chain are.
fn put_words(
    changes: &Changes<'_>,
    session: u64,
    seq: Seq,
    payload: EntryCid,
    bytes: &[u8],
) -> Result<(), StoreError> {
    if payloads::is_refused(changes.txn, payload.digest())? {
        return Ok(());
    }
    let inline = (bytes.len() <= INLINE_BYTES_MAX).then_some(bytes);
    payloads::put(changes, payload.digest(), size_of(bytes), inline, 0, Some((session, seq.get())))
}

#[cfg(test)]
#[path = "side_tests.rs"]
pub(crate) mod tests;
