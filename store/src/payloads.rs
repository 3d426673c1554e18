//! Payloads and files by digest: rows, links, leases, redaction.
//!
//! A block stays while a session that brought it ([`crate::brought`]) links it, or its lease runs. Links are kept whether the block is
//! held or not: what arrives late for a session is found to be linked. A redacted payload is dropped with its salt and refused
//! from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throughline_protocol::block::Block;
use throughline_protocol::id::{EntryCid, HashKind, Seq, SessionId, UnixMillis};

use crate::brought::{self, Naming};
use crate::error::StoreError;
use crate::events::{self, Change};
use crate::files::{Files, INLINE_BYTES_MAX, InFlight, StoredFile};
use crate::health::Urgency;
use crate::index::{self, Lane};
use crate::rows::{BlockPlace, BlockRow, EntryRow, SideRow};
use crate::side;
use crate::source::{Source, lookup};
use crate::tables::{self, meta};
use crate::unreadable::{self, Held, held};
use crate::writer::{Changes, Step, View};

/// Whether the bytes of a payload are here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayloadState {
    /// They are, and hash to the CID.
    Present(Vec<u8>),
    /// They are not, yet.
    Absent,
    /// They were dropped by a redaction and are refused.
    Dropped,
}

/// The row of a block that is held.
pub(crate) fn row(source: &impl Source, digest: &[u8; 32]) -> Result<Option<BlockRow>, StoreError> {
    lookup(source, tables::BLOCKS, digest, |row| BlockRow::split(row).map(|(row, _)| row))?.transpose()
}

/// Whether the row of a block names its file. One that cannot be read may; one whose bytes lie in the table does not.
pub(crate) fn names_file(source: &impl Source, digest: &[u8; 32]) -> Result<bool, StoreError> {
    Ok(match held(source, digest)? {
        Held::Not => false,
        Held::Damaged => true,
        Held::As(row) => row.place == BlockPlace::File,
    })
}

/// Whether a redaction dropped this payload.
pub(crate) fn is_refused(source: &impl Source, digest: &[u8; 32]) -> Result<bool, StoreError> {
    Ok(lookup(source, tables::REFUSED, digest, |_| ())?.is_some())
}

/// The bytes of a block, hashed against its digest.
pub(crate) fn read(
    source: &impl Source,
    files: &Files,
    digest: &[u8; 32],
) -> Result<Option<Vec<u8>>, StoreError> {
    let held = lookup(source, tables::BLOCKS, digest, |row| {
        BlockRow::split(row).map(|(row, bytes)| (row, bytes.to_vec()))
    })?;
    let Some((row, bytes)) = held.transpose()? else { return Ok(None) };
    let cid = EntryCid::from_digest(*digest);
    match row.place {
        BlockPlace::Table => {
            crate::rows::check_hash(cid, &bytes, "payload")?;
            Ok(Some(bytes))
        }
        BlockPlace::File => files
            .read(digest, row.size)?
            .map(Some)
            .ok_or_else(|| StoreError::corrupt(format!("the file of {} is missing", cid.short()))),
    }
}

/// Sessions with entries that link a block, ascending. However many entries of a session do, it is looked for once.
pub(crate) fn linking(source: &impl Source, digest: &[u8; 32]) -> Result<BTreeSet<u64>, StoreError> {
    let first = row(source, digest)?.and_then(|row| row.link);
    let table = source.table(tables::BLOCK_REFS)?;
    let mut found: BTreeSet<u64> = first.into_iter().map(|(session, _)| session).collect();
    let mut from = Some(0);
    while let Some(session) = from {
        let Some(row) = table.range((digest, session, 0)..=(digest, u64::MAX, u64::MAX))?.next() else {
            break;
        };
        let row = row?.0;
        let (_, session, _) = row.value();
        found.insert(session);
        from = session.checked_add(1);
    }
    Ok(found)
}

/// Seqs of the entries of one session that link a block, ascending.
pub(crate) fn links_in(
    source: &impl Source,
    digest: &[u8; 32],
    session: u64,
) -> Result<BTreeSet<u64>, StoreError> {
    let first = row(source, digest)?.and_then(|row| row.link);
    let mut seqs: BTreeSet<u64> =
        first.into_iter().filter(|(linker, _)| *linker == session).map(|(_, seq)| seq).collect();
    let table = source.table(tables::BLOCK_REFS)?;
    for row in table.range((digest, session, 0)..=(digest, session, u64::MAX))? {
        seqs.insert(row?.0.value().2);
    }
    Ok(seqs)
}

/// Digests and seqs of all that a session's entries link, but for the payloads that they name.
pub(crate) fn links_of(source: &impl Source, session: u64) -> Result<Vec<([u8; 32], u64)>, StoreError> {
    let table = source.table(tables::LINKS_OF_SESSION)?;
    let rows = table.range((session, 0, &[0; 32])..=(session, u64::MAX, &[0xff; 32]))?;
    rows.map(|row| {
        let row = row?.0;
        let (_, seq, digest) = row.value();
        Ok((*digest, seq))
    })
    .collect()
}

/// Session numbers and seqs of entries.
pub(crate) type Links = Vec<(u64, u64)>;

/// Sessions and seqs of the entries that link these blocks, ascending, without a look at the blocks: payloads from the entries
/// that name them, all else from what was noted of each session. Walks all of both. Entries that cannot be read name nothing.
pub(crate) fn links_of_entries(
    source: &impl Source,
    digests: &BTreeSet<[u8; 32]>,
) -> Result<BTreeMap<[u8; 32], Links>, StoreError> {
    let mut links = BTreeMap::<_, Links>::new();
    if digests.is_empty() {
        return Ok(links);
    }
    let mut note = |payload: Option<EntryCid>, link: (u64, u64)| {
        if let Some(payload) = payload.filter(|payload| digests.contains(payload.digest())) {
            links.entry(*payload.digest()).or_default().push(link);
        }
    };
    for row in source.table(tables::ENTRIES)?.iter()? {
        let (key, row) = row?;
        note(EntryRow::from_bytes(row.value()).ok().and_then(|entry| entry.payload), key.value());
    }
    for row in source.table(tables::SIDE)?.iter()? {
        let (key, row) = row?;
        let (session, cid) = key.value();
        if let Ok(side) = SideRow::from_bytes(EntryCid::from_digest(*cid), row.value()) {
            note(side.payload, (session, side.seq.get()));
        }
    }
    for row in source.table(tables::LINKS_OF_SESSION)?.iter()? {
        let row = row?.0;
        let (session, seq, digest) = row.value();
        note(Some(EntryCid::from_digest(*digest)), (session, seq));
    }
    links.values_mut().for_each(|links| {
        links.sort_unstable();
        links.dedup();
    });
    Ok(links)
}

/// Whether the table of links has one to a block; its row may have another.
pub(crate) fn has_more_links(source: &impl Source, digest: &[u8; 32]) -> Result<bool, StoreError> {
    let table = source.table(tables::BLOCK_REFS)?;
    let mut rows = table.range((digest, 0, 0)..=(digest, u64::MAX, u64::MAX))?;
    Ok(rows.next().transpose()?.is_some())
}

/// Stores the row of a block, and its bytes if they go into the table. Keeps a row that is there, with the longer lease.
/// `link` is the entry that brought it, by session number and seq.
pub(crate) fn put(
    changes: &Changes<'_>,
    digest: &[u8; 32],
    size: u64,
    inline: Option<&[u8]>,
    lease_ms: u64,
    link: Option<(u64, u64)>,
) -> Result<(), StoreError> {
    let (held, leased_ms) = match held(changes.txn, digest)? {
        Held::Not => (None, 0),
        // The bytes that came take its place.
        Held::Damaged => (None, unreadable::remove(changes, digest)?),
        Held::As(row) => (Some(row), row.lease_ms),
    };
    let place = if inline.is_some() { BlockPlace::Table } else { BlockPlace::File };
    let lease_ms = lease_ms.max(leased_ms);
    if let Some(held) = held {
        if held.lease_ms != 0 && held.lease_ms != lease_ms {
            changes.remove(tables::LEASES, (held.lease_ms, digest))?;
        }
    } else {
        changes.count(meta::BLOCK_BYTES, size, 0)?;
        if place == BlockPlace::File {
            // Of one that goes into the table, an earlier file stays listed: nothing else would reach it.
            changes.remove(tables::CONDEMNED, digest)?;
        }
    }
    let first = held.and_then(|held| held.link).or(link);
    let row = BlockRow { size, place: held.map_or(place, |held| held.place), lease_ms, link: first };
    // Also over bytes that are there: they may be damaged, which is why they were fetched again.
    put_row(changes, digest, row, inline)?;
    if let Some((session, seq)) = link.filter(|_| link != first) {
        changes.put(tables::BLOCK_REFS, (digest, session, seq), ())?;
        if first.map(|(first, _)| first) != Some(session) {
            brought::keep(changes, digest, session)?;
        }
    }
    if lease_ms != 0 {
        changes.put(tables::LEASES, (lease_ms, digest), ())?;
    }
    Ok(())
}

/// Writes a row with the bytes that lie in the table: `inline`, or else those that are there.
fn put_row(
    changes: &Changes<'_>,
    digest: &[u8; 32],
    row: BlockRow,
    inline: Option<&[u8]>,
) -> Result<(), StoreError> {
    let bytes = match (row.place, inline) {
        (BlockPlace::File, _) => row.to_bytes(&[]),
        (BlockPlace::Table, Some(bytes)) => row.to_bytes(bytes),
        (BlockPlace::Table, None) => {
            let held = lookup(changes.txn, tables::BLOCKS, digest, |held| {
                BlockRow::split(held).map(|(_, bytes)| row.to_bytes(bytes))
            })?;
            held.transpose()?.ok_or_else(|| {
                StoreError::corrupt(format!("block {} has no bytes", EntryCid::from_digest(*digest).short()))
            })?
        }
    };
    changes.put(tables::BLOCKS, digest, bytes.as_slice())
}

/// Notes that an entry names a payload that did not come with it.
pub(crate) fn link_payload(
    changes: &Changes<'_>,
    digest: &[u8; 32],
    session: (u64, SessionId),
    seq: Seq,
    naming: Naming,
) -> Result<(), StoreError> {
    changes.put(tables::BLOCK_REFS, (digest, session.0, seq.get()), ())?;
    brought::linked(changes, digest, session.1, naming)
}

/// Notes that an entry links a block, which only its payload names.
pub(crate) fn link(
    changes: &Changes<'_>,
    digest: &[u8; 32],
    session: (u64, SessionId),
    seq: Seq,
    naming: Naming,
) -> Result<(), StoreError> {
    link_payload(changes, digest, session, seq, naming)?;
    changes.put(tables::LINKS_OF_SESSION, (session.0, seq.get(), digest), ())
}

/// Takes the link of an entry away whose session goes; a block goes with the last session that brought it, unless it is leased.
pub(crate) fn unlink(
    changes: &Changes<'_>,
    digest: &[u8; 32],
    (session, id): (u64, SessionId),
    seq: u64,
) -> Result<(), StoreError> {
    changes.remove(tables::BLOCK_REFS, (digest, session, seq))?;
    changes.remove(tables::LINKS_OF_SESSION, (session, seq, digest))?;
    changes.remove(tables::BROUGHT, (digest, id.genesis().digest()))?;
    let row = match held(changes.txn, digest)? {
        Held::Not => return Ok(()),
        Held::Damaged => return unreadable::remove_unneeded(changes, digest),
        Held::As(row) => row,
    };
    let left = BlockRow { link: row.link.filter(|link| *link != (session, seq)), ..row };
    if left.link.is_none() && left.lease_ms == 0 && !brought::is_kept(changes.txn, digest)? {
        remove_row(changes, digest, row)
    } else if left != row {
        put_row(changes, digest, left, None)
    } else {
        Ok(())
    }
}

/// A session lets go of a block, whose links stay noted. Its row and bytes go with the last session that brought it, whether they are leased
/// or not; a file is unlinked after the commit. Returns whether they went.
fn let_go(
    changes: &Changes<'_>,
    digest: &[u8; 32],
    (number, id): (u64, SessionId),
) -> Result<bool, StoreError> {
    let row = match held(changes.txn, digest)? {
        Held::Not => return Ok(false),
        Held::Damaged => return unreadable::remove(changes, digest).map(|_| true),
        Held::As(row) => row,
    };
    changes.remove(tables::BROUGHT, (digest, id.genesis().digest()))?;
    let mut left = row;
    if let Some((first, seq)) = row.link.filter(|(first, _)| *first == number) {
        changes.put(tables::BLOCK_REFS, (digest, first, seq), ())?;
        left.link = None;
    }
    if left.link.is_some() || brought::is_kept(changes.txn, digest)? {
        put_row(changes, digest, left, None)?;
        return Ok(false);
    }
    brought::end(changes, digest)?;
    remove_row(changes, digest, row)?;
    Ok(true)
}

fn remove_row(changes: &Changes<'_>, digest: &[u8; 32], row: BlockRow) -> Result<(), StoreError> {
    changes.count(meta::BLOCK_BYTES, 0, row.size)?;
    changes.remove(tables::BLOCKS, digest)?;
    if row.lease_ms != 0 {
        changes.remove(tables::LEASES, (row.lease_ms, digest))?;
    }
    if row.place == BlockPlace::File {
        changes.put(tables::CONDEMNED, digest, ())?;
    }
    Ok(())
}

/// Files whose rows are gone.
pub(crate) fn condemned(source: &impl Source) -> Result<Vec<[u8; 32]>, StoreError> {
    let table = source.table(tables::CONDEMNED)?;
    table.iter()?.map(|row| Ok(*row?.0.value())).collect()
}

/// Removes blocks whose lease is over and that no session keeps, at most `limit`; returns how many leases ended.
pub(crate) fn end_leases(changes: &Changes<'_>, now: UnixMillis, limit: usize) -> Result<usize, StoreError> {
    let mut over = Vec::new();
    {
        let table = changes.txn.table(tables::LEASES)?;
        for row in table.iter()?.take(limit) {
            let row = row?.0;
            let (expires, digest) = row.value();
            if expires > now.get() {
                break;
            }
            over.push((expires, *digest));
        }
    }
    for (expires, digest) in &over {
        changes.remove(tables::LEASES, (*expires, digest))?;
        let row = match held(changes.txn, digest)? {
            Held::Not => continue,
            Held::Damaged => {
                unreadable::remove_unneeded(changes, digest)?;
                continue;
            }
            // A longer one was given meanwhile.
            Held::As(row) if row.lease_ms > *expires => continue,
            Held::As(row) => row,
        };
        brought::end(changes, digest)?;
        if row.link.is_some() || brought::is_kept(changes.txn, digest)? {
            put_row(changes, digest, BlockRow { lease_ms: 0, ..row }, None)?;
        } else {
            remove_row(changes, digest, row)?;
        }
    }
    Ok(over.len())
}

/// Stores a block: a payload that arrived after its entry, a block of a file, a config.
#[derive(Debug)]
pub struct PutBlock {
    at: UnixMillis,
    /// Kept until then although nothing links it.
    lease_until: UnixMillis,
    received_for: Option<SessionId>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Bytes(Block),
    File(StoredFile),
}

impl PutBlock {
    /// Bytes that hash to their CID; large ones become a file. Kept until `lease_until` although nothing links them.
    #[must_use]
    pub fn bytes(block: Block, at: UnixMillis, lease_until: UnixMillis) -> Self {
        PutBlock { at, lease_until, received_for: None, content: Content::Bytes(block) }
    }

    /// A file that was streamed into place.
    #[must_use]
    pub fn file(file: StoredFile, at: UnixMillis, lease_until: UnixMillis) -> Self {
        PutBlock { at, lease_until, received_for: None, content: Content::File(file) }
    }

    /// The same block, received for a session, which need not be held yet: that is noted in the same transaction.
    #[must_use]
    pub fn received_for(self, session: SessionId) -> Self {
        PutBlock { received_for: Some(session), ..self }
    }

    fn digest(&self) -> [u8; 32] {
        match &self.content {
            Content::Bytes(block) => *block.cid().digest(),
            Content::File(file) => file.digest,
        }
    }
}

/// Whether a block was new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It was.
    New,
    /// It was held already.
    Held,
}

impl Step for PutBlock {
    type Output = Stored;
    type Error = StoreError;
    type Plan = Stored;

    fn prepare(&mut self, files: &Arc<Files>) -> Result<Vec<InFlight>, StoreError> {
        let block = match &self.content {
            Content::Bytes(block) => block,
            Content::File(file) => return Ok(vec![files.hold(file.digest)]),
        };
        if block.cid().hash_kind() != HashKind::Sha256 {
            let code = throughline_protocol::code::Code::CidHash;
            return Err(StoreError::Refused(code.into()));
        }
        if block.bytes().len() <= INLINE_BYTES_MAX {
            return Ok(Vec::new());
        }
        files.put_all(std::iter::once((block.cid().digest(), &block.bytes()[..])))
    }

    fn check(&self, view: &View<'_>) -> Result<Stored, StoreError> {
        let digest = self.digest();
        if is_refused(view.txn, &digest)? {
            return Err(StoreError::Refused(dropped(&digest)));
        }
        Ok(if matches!(held(view.txn, &digest)?, Held::As(_)) { Stored::Held } else { Stored::New })
    }

    fn write(self, stored: Stored, changes: &Changes<'_>) -> Result<Stored, StoreError> {
        let (digest, lease) = (self.digest(), self.lease_until.get());
        match &self.content {
            Content::Bytes(block) => {
                let bytes = block.bytes();
                let inline = (bytes.len() <= INLINE_BYTES_MAX).then_some(&bytes[..]);
                put(changes, &digest, size_of(bytes), inline, lease, None)?;
            }
            Content::File(file) => put(changes, &digest, file.size, None, lease, None)?,
        }
        if let Some(session) = self.received_for {
            brought::receive(changes, &digest, session, lease)?;
        }
        if stored == Stored::New {
            events::write(changes, self.at, &Change::Block { digest })?;
        }
        Ok(stored)
    }
}

fn dropped(digest: &[u8; 32]) -> throughline_protocol::code::Reject {
    throughline_protocol::code::Reject::new(
        throughline_protocol::code::Code::Refused,
        format!("payload {} was redacted", EntryCid::from_digest(*digest).short()),
    )
}

/// Length in bytes as stored numbers are.
pub(crate) fn size_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Notes that an entry links blocks: attachments, media, configs, which only the payload names. That brings nothing.
#[derive(Clone, Debug)]
pub struct LinkBlocks {
    /// The session.
    pub session: SessionId,
    /// Seq of the entry and digest of the block.
    pub links: Vec<(Seq, [u8; 32])>,
}

impl Step for LinkBlocks {
    type Output = ();
    type Error = StoreError;
    type Plan = u64;

    fn check(&self, view: &View<'_>) -> Result<u64, StoreError> {
        Ok(index::need_session(view.txn, self.session)?.number)
    }

    fn write(self, number: u64, changes: &Changes<'_>) -> Result<(), StoreError> {
        let session = (number, self.session);
        self.links.iter().try_for_each(|(seq, digest)| link(changes, digest, session, *seq, Naming::Nothing))
    }
}

/// Drops payloads of a session's entries, on its main chain or beside it, with their salts. What another session brought too stays for
/// that one.
#[derive(Clone, Debug)]
pub struct DropPayloads {
    /// The session.
    pub session: SessionId,
    /// Which entries.
    pub which: Which,
    /// Whether they may come back.
    pub later: Later,
    /// When.
    pub at: UnixMillis,
}

/// Whether a payload that was dropped may be stored again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// No: it was redacted.
    Refuse,
    /// Yes: it was dropped to make room.
    Accept,
}

/// Which payloads of a session to drop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those of these entries.
    Entries(Vec<EntryCid>),
    /// All.
    All,
}

impl DropPayloads {
    fn digests(&self, view: &View<'_>, number: u64) -> Result<BTreeSet<[u8; 32]>, StoreError> {
        let table = view.txn.table(tables::ENTRIES)?;
        let mut digests = BTreeSet::new();
        let mut add = |payload: Option<EntryCid>| {
            digests.extend(payload.map(|payload| *payload.digest()));
        };
        match &self.which {
            Which::All => {
                for row in table.range((number, 0)..=(number, u64::MAX))? {
                    add(EntryRow::from_bytes(row?.1.value())?.payload);
                }
                let beside = side::list(view.txn, number, None, usize::MAX)?;
                beside.into_iter().for_each(|entry| add(entry.payload));
            }
            Which::Entries(cids) => {
                for cid in cids {
                    let place = index::find(view.txn, *cid)?.filter(|place| place.session == number);
                    let Some(place) = place else { continue };
                    if place.lane == Lane::Side {
                        add(side::get(view.txn, number, *cid)?.and_then(|entry| entry.payload));
                    } else if let Some(row) = table.get((number, place.seq.get()))? {
                        add(EntryRow::from_bytes(row.value())?.payload);
                    }
                }
            }
        }
        Ok(digests)
    }
}

impl Step for DropPayloads {
    /// How many payloads were held and are gone.
    type Output = usize;
    type Error = StoreError;
    type Plan = (u64, BTreeSet<[u8; 32]>);

    fn urgency(&self) -> Urgency {
        Urgency::Urgent
    }

    fn check(&self, view: &View<'_>) -> Result<Self::Plan, StoreError> {
        let number = index::need_session(view.txn, self.session)?.number;
        Ok((number, self.digests(view, number)?))
    }

    fn write(self, (number, digests): Self::Plan, changes: &Changes<'_>) -> Result<usize, StoreError> {
        let mut gone = 0;
        for digest in &digests {
            if self.later == Later::Refuse {
                changes.put(tables::REFUSED, digest, self.at.get())?;
            }
            if let_go(changes, digest, (number, self.session))? {
                gone += 1;
                events::write(changes, self.at, &Change::Block { digest: *digest })?;
            }
        }
        Ok(gone)
    }
}
