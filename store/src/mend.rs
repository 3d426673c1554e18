//! Putting right what [`crate::Fsck`] found damaged, as far as other bytes tell what was there.
//!
//! Blobs come back as bytes that hash to the name they are known by: from a peer, a file, wherever. What only repeats other
//! rows (the index, the counters) is written anew from them. What was only here and says something of its own (the row of a
//! session, the sign guard) is for [`crate::rebuild`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throughline_protocol::block::Decoded;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{Cid, Codec, EntryCid, HashKind, Seq, SessionId, UnixMillis};

use crate::error::StoreError;
use crate::files::{Files, INLINE_BYTES_MAX, InFlight};
use crate::index::{self, Lane, Place};
use crate::payloads::{self, size_of};
use crate::rows::{BlockPlace, BlockRow, ControlRow, EntryRow, SideRow, SideStatus};
use crate::source::{Source, lookup};
use crate::tables::{self, meta};
use crate::unreadable;
use crate::writer::{Changes, Step, View};

/// A blob that is not what was stored, by what it is known as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Damage {
    /// An entry of a main chain.
    Entry {
        /// The session.
        session: SessionId,
        /// Where it stands.
        seq: Seq,
        /// What it hashes to.
        cid: EntryCid,
    },
    /// An entry beside the main chain.
    Side {
        /// The session.
        session: SessionId,
        /// Its seq.
        seq: Seq,
        /// What it hashes to.
        cid: EntryCid,
    },
    /// A payload or a block of a file.
    Block {
        /// sha2-256 of its bytes.
        digest: [u8; 32],
        /// A session whose entries link it, if one does.
        session: Option<SessionId>,
    },
    /// A capability, tombstone or Ref.
    Control {
        /// sha2-256 of its bytes.
        hash: [u8; 32],
    },
}

impl Damage {
    /// sha2-256 of the bytes that were there.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        match self {
            Damage::Entry { cid, .. } | Damage::Side { cid, .. } => cid.digest(),
            Damage::Block { digest, .. } => digest,
            Damage::Control { hash } => hash,
        }
    }

    /// The CIDs that the bytes may be asked for by: of a payload or a block of a file, the codec is not known here.
    #[must_use]
    pub fn cids(&self) -> Vec<Cid> {
        let codecs: &[Codec] = match self {
            Damage::Entry { .. } | Damage::Side { .. } | Damage::Control { .. } => &[Codec::DagCbor],
            Damage::Block { .. } => &[Codec::DagCbor, Codec::Raw, Codec::DagPb],
        };
        codecs.iter().map(|codec| Cid::from_parts(*codec, HashKind::Sha256, *self.digest())).collect()
    }

    /// The session that it belongs to, if it is of one.
    #[must_use]
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Damage::Entry { session, .. } | Damage::Side { session, .. } => Some(*session),
            Damage::Block { session, .. } => *session,
            Damage::Control { .. } => None,
        }
    }
}

/// Puts blobs back where they were damaged, and writes anew what only repeats other rows.
#[derive(Clone, Debug)]
pub struct Mend {
    /// What is damaged, and bytes that hash to it. None of them: only what repeats other rows is written.
    pub blobs: Vec<(Damage, Arc<[u8]>)>,
    /// When.
    pub at: UnixMillis,
}

impl Mend {
    fn check_blob(damage: &Damage, bytes: &[u8]) -> Result<(), Reject> {
        if EntryCid::of(bytes).digest() == damage.digest() {
            return Ok(());
        }
        let what = format!("bytes for {} hash to something else", crate::files::short(damage.digest()));
        Err(Reject::new(Code::CidMismatch, what))
    }
}

impl Step for Mend {
    /// How many rows of the index and counters were written anew.
    type Output = u64;
    type Error = StoreError;
    /// The number of each session that is held.
    type Plan = BTreeMap<SessionId, u64>;

    fn prepare(&mut self, files: &Arc<Files>) -> Result<Vec<InFlight>, StoreError> {
        self.blobs.iter().try_for_each(|(damage, bytes)| Mend::check_blob(damage, bytes))?;
        let is_file = |damage: &Damage, bytes: &[u8]| {
            matches!(damage, Damage::Block { .. }) && bytes.len() > INLINE_BYTES_MAX
        };
        let large = self.blobs.iter().filter(|(damage, bytes)| is_file(damage, bytes));
        files.put_all(large.map(|(damage, bytes)| (damage.digest(), &bytes[..])))
    }

    fn check(&self, view: &View<'_>) -> Result<Self::Plan, StoreError> {
        let mut numbers = BTreeMap::new();
        for (damage, bytes) in &self.blobs {
            if let Damage::Entry { session, .. } | Damage::Side { session, .. } = damage {
                numbers.insert(*session, number_of(view, *session)?);
                Decoded::<Entry>::decode(bytes.to_vec())?;
            }
        }
        Ok(numbers)
    }

    fn write(self, numbers: Self::Plan, changes: &Changes<'_>) -> Result<u64, StoreError> {
        // Blocks last: entries say who links them.
        let (blocks, others): (Vec<_>, Vec<_>) =
            self.blobs.iter().partition(|(damage, _)| matches!(damage, Damage::Block { .. }));
        for (damage, bytes) in others {
            put_blob(changes, damage, bytes, &numbers, self.at)?;
        }
        let rowless: BTreeSet<[u8; 32]> = blocks
            .iter()
            .map(|(damage, _)| *damage.digest())
            .filter(|digest| !matches!(payloads::row(changes.txn, digest), Ok(Some(_))))
            .collect();
        let links = payloads::links_of_entries(changes.txn, &rowless)?;
        for (damage, bytes) in blocks {
            // It was redacted since it was found damaged.
            if payloads::is_refused(changes.txn, damage.digest())? {
                continue;
            }
            let links = links.get(damage.digest()).map_or(&[][..], Vec::as_slice);
            put_block(changes, damage.digest(), bytes, links)?;
        }
        Ok(reindex(changes)? + recount(changes)?)
    }
}

/// The number of a session, whose row may be damaged too: that is made again after its entries. A list of ids that names another's
/// number is damaged; nothing is written over that one's entries.
fn number_of(view: &View<'_>, session: SessionId) -> Result<u64, StoreError> {
    let missing = || StoreError::not_found(format!("session {}", session.short()));
    let number = index::session_number(view.txn, session)?.ok_or_else(missing)?;
    if index::id_of_number(view.txn, number)? == Some(session) {
        return Ok(number);
    }
    Err(StoreError::Index { what: format!("{} has a number that is not its own", session.short()) })
}

/// The payload that an entry names, if the entry says itself that it stands there: where the index says something else it is the index
/// that is damaged.
fn standing_at(bytes: &[u8], session: SessionId, seq: Seq) -> Result<Option<Option<EntryCid>>, StoreError> {
    let decoded = Decoded::<Entry>::decode(bytes.to_vec())?;
    let (entry, cid) = (decoded.value(), EntryCid::of(bytes));
    let stands = entry.session(cid) == session && entry.seq() == seq;
    Ok(stands.then_some(entry.payload.map(|payload| payload.cid)))
}

/// Puts back what is not a block. What can be read is never written over.
fn put_blob(
    changes: &Changes<'_>,
    damage: &Damage,
    bytes: &[u8],
    numbers: &BTreeMap<SessionId, u64>,
    at: UnixMillis,
) -> Result<(), StoreError> {
    match damage {
        Damage::Entry { session, seq, cid } => {
            let Some(number) = numbers.get(session) else { return Ok(()) };
            let key = (*number, seq.get());
            let read = |row: &[u8]| EntryRow::from_bytes(row).is_ok();
            let Some(payload) = standing_at(bytes, *session, *seq)? else { return Ok(()) };
            if lookup(changes.txn, tables::ENTRIES, key, read)? == Some(true) {
                return Ok(());
            }
            let row = EntryRow { cid: *cid, payload, bytes };
            changes.put(tables::ENTRIES, key, row.to_bytes().as_slice())
        }
        Damage::Side { session, seq, cid } => {
            let Some(number) = numbers.get(session) else { return Ok(()) };
            let key = (*number, cid.digest());
            let read = |row: &[u8]| SideRow::from_bytes(*cid, row).is_ok();
            let Some(payload) = standing_at(bytes, *session, *seq)? else { return Ok(()) };
            if lookup(changes.txn, tables::SIDE, key, read)? == Some(true) {
                return Ok(());
            }
            // Why it stood beside the chain is judged again with the session.
            let status = SideStatus::Branch;
            let row = SideRow { status, seq: *seq, since: at, payload, bytes: bytes.to_vec() };
            changes.put(tables::SIDE, key, row.to_bytes().as_slice())
        }
        Damage::Control { hash } => {
            let row = ControlRow { since: at, bytes: bytes.to_vec() };
            changes.put(tables::CONTROLS, hash, row.to_bytes().as_slice())
        }
        Damage::Block { .. } => Ok(()),
    }
}

/// Puts back a block. `links` are the entries that link it, if its row, which had the first of them, cannot be read.
fn put_block(
    changes: &Changes<'_>,
    digest: &[u8; 32],
    bytes: &[u8],
    links: &[(u64, u64)],
) -> Result<(), StoreError> {
    let is_inline = bytes.len() <= INLINE_BYTES_MAX;
    let place = if is_inline { BlockPlace::Table } else { BlockPlace::File };
    let held = payloads::row(changes.txn, digest).ok().flatten();
    let lease_ms = match held {
        Some(row) => row.lease_ms,
        None => unreadable::leases_of(changes.txn, digest)?.into_iter().max().unwrap_or(0),
    };
    let link = match held {
        Some(row) => row.link,
        None => unreadable::link_of_row(changes.txn, digest, links)?,
    };
    for (session, seq) in links.iter().filter(|other| Some(**other) != link) {
        changes.put(tables::BLOCK_REFS, (digest, *session, *seq), ())?;
    }
    let row = BlockRow { size: size_of(bytes), place, lease_ms, link };
    let inline = if is_inline { bytes } else { &[] };
    match (place, held) {
        // If its row went since it was found damaged, its file was to be unlinked.
        (BlockPlace::File, _) => changes.remove(tables::CONDEMNED, digest).map(|_| ())?,
        (BlockPlace::Table, Some(BlockRow { place: BlockPlace::Table, .. })) => {}
        // A file that it may have had is named by nothing any more: no redaction would reach it.
        (BlockPlace::Table, _) => changes.put(tables::CONDEMNED, digest, ())?,
    }
    changes.put(tables::BLOCKS, digest, row.to_bytes(inline).as_slice())
}

/// Writes the index of every entry that can be read; returns how many rows it changed.
fn reindex(changes: &Changes<'_>) -> Result<u64, StoreError> {
    let (mut wrong, mut numbers) = (Vec::new(), Vec::new());
    {
        let mut note = |cid: EntryCid, place: Place| -> Result<(), StoreError> {
            let held = lookup(changes.txn, tables::INDEX, cid.digest(), |row| row)?;
            if held != Some(place.to_row()) {
                wrong.push((cid, place));
            }
            Ok(())
        };
        for row in changes.txn.table(tables::ENTRIES)?.iter()? {
            let (key, row) = row?;
            let (session, seq) = key.value();
            let (Ok(entry), Ok(seq)) = (EntryRow::from_bytes(row.value()), Seq::new(seq)) else { continue };
            note(entry.cid, Place { session, seq, lane: Lane::Main })?;
            let is_genesis = seq == Seq::ZERO;
            if is_genesis
                && lookup(changes.txn, tables::SESSION_IDS, entry.cid.digest(), |of| of)? != Some(session)
            {
                numbers.push((entry.cid, session));
            }
        }
        for row in changes.txn.table(tables::SIDE)?.iter()? {
            let (key, row) = row?;
            let (session, cid) = key.value();
            let cid = EntryCid::from_digest(*cid);
            let Ok(side) = SideRow::from_bytes(cid, row.value()) else { continue };
            note(cid, Place { session, seq: side.seq, lane: Lane::Side })?;
        }
    }
    for (cid, place) in &wrong {
        changes.put(tables::INDEX, cid.digest(), place.to_row())?;
    }
    for (genesis, number) in &numbers {
        changes.put(tables::SESSION_IDS, genesis.digest(), number)?;
    }
    Ok(size_of_list(wrong.len() + numbers.len()))
}

fn size_of_list(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Counts the bytes that are held again; returns how many counters were wrong.
fn recount(changes: &Changes<'_>) -> Result<u64, StoreError> {
    let (mut entries, mut sides, mut staged) = (0, 0, 0);
    for row in changes.txn.table(tables::ENTRIES)?.iter()? {
        entries += EntryRow::from_bytes(row?.1.value()).map_or(0, |entry| size_of(entry.bytes));
    }
    for row in changes.txn.table(tables::SIDE)?.iter()? {
        let (key, row) = row?;
        let cid = EntryCid::from_digest(*key.value().1);
        sides += SideRow::from_bytes(cid, row.value()).map_or(0, |side| size_of(&side.bytes));
    }
    for row in changes.txn.table(tables::STAGING_SCOPES)?.iter()? {
        staged += row?.1.value().0;
    }
    let after = |last: Option<u64>, key| -> Result<u64, StoreError> {
        // A sequence never goes back.
        Ok(last.map_or(1, |last| last + 1).max(crate::source::counter(changes.txn, key)?))
    };
    let session = changes.txn.table(tables::SESSIONS)?.last()?.map(|(number, _)| number.value());
    let event = changes.txn.table(tables::EVENTS)?.last()?.map(|(id, _)| id.value());
    let mut wrong = 0;
    let counted = [
        (meta::NEXT_SESSION, after(session, meta::NEXT_SESSION)?),
        (meta::NEXT_EVENT, after(event, meta::NEXT_EVENT)?),
        (meta::ENTRY_BYTES, entries),
        (meta::SIDE_BYTES, sides),
        (meta::BLOCK_BYTES, unreadable::bytes_held(changes.txn)?),
        (meta::EVIDENCE_BYTES, crate::evidence::count(changes.txn)?.bytes),
        (meta::STAGING_BYTES, staged),
    ];
    for (key, bytes) in counted {
        if crate::source::counter(changes.txn, key)? != bytes {
            changes.set(key, bytes);
            wrong += 1;
        }
    }
    Ok(wrong)
}
