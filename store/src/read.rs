//! Snapshots: a [`Reader`] sees one commit, whatever is written meanwhile. Any number of them read at once.
//!
//! Whatever is handed out under a CID was hashed against it first (`E_STORE_CORRUPT` otherwise). Lists are paged or streamed;
//! nothing reads a whole chain into memory.

use std::sync::Arc;

use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata};
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Cid, Codec, EntryCid, Epoch, HashKind, Principal, Seq, SessionId};
use throughline_protocol::skip;

use crate::control::{self, OwnerDigest};
use crate::error::{GuardError, StoreError};
use crate::events::{self, EventPage};
use crate::files::{FileReader, Files};
use crate::idempotency::{self, Scope, Used};
use crate::index::{self, Lane};
use crate::jobs::NamedRow;
use crate::payloads::{self, PayloadState};
use crate::rows::{BlockPlace, EntryRow, GuardRow, Pin, SessionRow};
use crate::side::{self, SideEntry};
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::{guard, jobs, pins, staging};

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

/// What a CID names here, for a policy that decides before any bytes are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// An entry of a session.
    Entry {
        /// The session.
        session: SessionId,
        /// Its seq.
        seq: Seq,
        /// On the main chain or beside it.
        lane: Lane,
    },
    /// A capability, tombstone or Ref.
    Control {
        /// sha2-256 of its bytes.
        hash: [u8; 32],
    },
    /// A payload or file.
    Block {
        /// The sessions whose entries link it; the strictest class of them counts. None: nothing links it.
        sessions: Vec<SessionId>,
        /// Its size in bytes.
        size_bytes: u64,
    },
}

/// How much the store holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sessions.
    pub sessions: u64,
    /// Entries on main chains.
    pub entries: u64,
    /// Their bytes.
    pub entry_bytes: u64,
    /// Payloads and files.
    pub blocks: u64,
    /// Their bytes.
    pub block_bytes: u64,
    /// Capabilities, tombstones and Refs.
    pub controls: u64,
    /// Entries beside main chains.
    pub side_entries: u64,
    /// Their bytes.
    pub side_bytes: u64,
    /// Staged bytes.
    pub staging_bytes: u64,
    /// Pins.
    pub pins: u64,
    /// Id of the newest event.
    pub newest_event: u64,
    /// Times that the data directory was opened.
    pub opens: u64,
}

impl Stats {
    /// What counts against the limit of the store.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entry_bytes.saturating_add(self.block_bytes).saturating_add(self.side_bytes)
    }
}

/// One snapshot of the store.
pub struct Reader {
    pub(crate) txn: ReadTransaction,
    pub(crate) files: Arc<Files>,
}

/// Sessions.
impl Reader {
    /// A session that is held.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn session(&self, session: SessionId) -> Result<Option<SessionRow>, StoreError> {
        index::session(&self.txn, session)
    }

    /// Sessions whose CID begins with `prefix`, with or without its `bafyrei`; at most `limit`. None for text that no CID
    /// begins with.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn sessions_by_prefix(&self, prefix: &str, limit: usize) -> Result<Vec<SessionId>, StoreError> {
        let full = if prefix.starts_with("bafyrei") { prefix.to_owned() } else { format!("bafyrei{prefix}") };
        let Some(from) = lowest_digest(&full) else { return Ok(Vec::new()) };
        let table = self.txn.table(tables::SESSION_IDS)?;
        let mut found = Vec::new();
        for row in table.range::<&[u8; 32]>(&from..)? {
            let session = SessionId::of_genesis(EntryCid::from_digest(*row?.0.value()));
            if found.len() == limit || !session.to_string().starts_with(&full) {
                break;
            }
            found.push(session);
        }
        Ok(found)
    }

    /// Sessions after `after` in the order in which they were first held, at most `limit`. The order survives restarts.
    ///
    /// # Errors
    /// When the database cannot be read, or `after` is not held.
    pub fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionRow>, StoreError> {
        let from = match after {
            None => 0,
            Some(after) => index::need_session(&self.txn, after)?.number + 1,
        };
        let table = self.txn.table(tables::SESSIONS)?;
        let rows = table.range(from..)?.take(limit);
        rows.map(|row| {
            let (number, row) = row?;
            SessionRow::from_bytes(number.value(), row.value())
        })
        .collect()
    }

    /// The verifier's state after the tip, as [`throughline_protocol::verify::ChainState::from_bytes`] reads it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn chain_state(&self, session: SessionId) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(number) = index::session_number(&self.txn, session)? else { return Ok(None) };
        lookup(&self.txn, tables::CHAIN_STATES, number, <[u8]>::to_vec)
    }

    /// The session's guard row: what this node last signed in it as holder.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn guard(&self, session: SessionId) -> Result<Option<GuardRow>, StoreError> {
        match index::session_number(&self.txn, session)? {
            Some(number) => guard::row(&self.txn, number),
            None => Ok(None),
        }
    }

    /// Whether this node may sign the next entry, of `epoch` on `prev`, as holder. To be asked before signing; the adoption
    /// asks again.
    ///
    /// # Errors
    /// When the database cannot be read, or the session is not held.
    pub fn check_guard(
        &self,
        session: SessionId,
        epoch: Epoch,
        prev: Mark,
    ) -> Result<Result<(), GuardError>, StoreError> {
        guard::check(&self.txn, &index::need_session(&self.txn, session)?, epoch, prev)
    }
}

/// Entries.
impl Reader {
    /// The entry of a main chain at a seq.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when it does not hash to its CID.
    pub fn entry_at(&self, session: SessionId, seq: Seq) -> Result<Option<StoredEntry>, StoreError> {
        match index::session_number(&self.txn, session)? {
            Some(number) => self.entry_of(number, seq),
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

    /// Streams the main chain from `first` to `last`, both included, oldest first.
    ///
    /// # Errors
    /// When the database cannot be read, or the session is not held.
    pub fn entries(&self, session: SessionId, first: Seq, last: Seq) -> Result<Entries, StoreError> {
        let number = index::need_session(&self.txn, session)?.number;
        let table = self.txn.open_table(tables::ENTRIES)?;
        // An empty range when they are the wrong way round.
        let last = last.get().max(first.get().saturating_sub(1));
        let range = if first.get() > last {
            table.range((number, 1)..(number, 1))?
        } else {
            table.range((number, first.get())..=(number, last))?
        };
        Ok(Entries { range })
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

/// Blocks.
impl Reader {
    /// What a CID names here.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn find(&self, cid: &Cid) -> Result<Option<Found>, StoreError> {
        if let Ok(entry) = EntryCid::try_from(*cid)
            && let Some(place) = index::find(&self.txn, entry)?
        {
            let session = index::session_by_number(&self.txn, place.session)?.session;
            return Ok(Some(Found::Entry { session, seq: place.seq, lane: place.lane }));
        }
        if let Some(hash) = control::resolve(&self.txn, cid)? {
            return Ok(Some(Found::Control { hash }));
        }
        if cid.hash_kind() != HashKind::Sha256 {
            return Ok(None);
        }
        let Some(row) = payloads::row(&self.txn, cid.digest())? else { return Ok(None) };
        Ok(Some(Found::Block { sessions: self.linkers(cid.digest())?, size_bytes: row.size }))
    }

    /// The sessions whose entries link a block, held or not, each once.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn linkers(&self, digest: &[u8; 32]) -> Result<Vec<SessionId>, StoreError> {
        let mut numbers: Vec<u64> =
            payloads::links(&self.txn, digest)?.into_iter().map(|(session, _)| session).collect();
        numbers.dedup();
        numbers.into_iter().map(|number| Ok(index::session_by_number(&self.txn, number)?.session)).collect()
    }

    /// The bytes that a CID names: entry, control blob, payload or block of a file. Blocks are at most 2 MiB; a larger file is
    /// streamed with [`Reader::open_file`].
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when they do not hash to it.
    pub fn block(&self, cid: &Cid) -> Result<Option<Vec<u8>>, StoreError> {
        match self.find(cid)? {
            None => Ok(None),
            Some(Found::Entry { .. }) => {
                let entry = self.entry(EntryCid::from_digest(*cid.digest()))?;
                Ok(entry.map(|(_, entry)| entry.bytes))
            }
            Some(Found::Control { hash }) => control::bytes(&self.txn, &hash),
            Some(Found::Block { .. }) => payloads::read(&self.txn, &self.files, cid.digest()),
        }
    }

    /// A payload: its bytes, or why they are not here.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when they do not hash to its CID.
    pub fn payload(&self, cid: EntryCid) -> Result<PayloadState, StoreError> {
        if let Some(bytes) = payloads::read(&self.txn, &self.files, cid.digest())? {
            return Ok(PayloadState::Present(bytes));
        }
        let is_dropped = payloads::is_refused(&self.txn, cid.digest())?;
        Ok(if is_dropped { PayloadState::Dropped } else { PayloadState::Absent })
    }

    /// Streams a file that lies under `payloads/`, with its size in bytes; see [`FileReader`] for when its bytes may be
    /// trusted. None for what is not held or lies in a table.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn open_file(&self, digest: &[u8; 32]) -> Result<Option<(FileReader, u64)>, StoreError> {
        match payloads::row(&self.txn, digest)? {
            Some(row) if row.place == BlockPlace::File => {
                let missing =
                    || StoreError::corrupt(format!("the file of {} is missing", crate::files::short(digest)));
                let reader = self.files.open_file(digest, row.size)?.ok_or_else(missing)?;
                Ok(Some((reader, row.size)))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// A block that is staged for a session.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when it does not hash to its CID.
    pub fn staged(&self, session: SessionId, digest: &[u8; 32]) -> Result<Option<Vec<u8>>, StoreError> {
        staging::read(&self.txn, session, digest)
    }

    /// Digests of a session's staged blocks after `after`, at most `limit`, ascending.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn staged_list(
        &self,
        session: SessionId,
        after: Option<[u8; 32]>,
        limit: usize,
    ) -> Result<Vec<[u8; 32]>, StoreError> {
        staging::list(&self.txn, session, after, limit)
    }
}

/// Control blobs.
impl Reader {
    /// Bytes of an owner's capabilities and tombstones, ascending by hash.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when one does not hash to its hash.
    pub fn controls_of_owner(&self, owner: Principal) -> Result<Vec<Vec<u8>>, StoreError> {
        control::of_owner(&self.txn, owner)
    }

    /// Hashes of an owner's capabilities and tombstones, ascending.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn control_hashes(&self, owner: Principal) -> Result<Vec<[u8; 32]>, StoreError> {
        control::hashes_of_owner(&self.txn, owner)
    }

    /// Bytes of a session's Refs, ascending by hash.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when one does not hash to its hash.
    pub fn refs_of_session(&self, session: SessionId) -> Result<Vec<Vec<u8>>, StoreError> {
        control::refs_of(&self.txn, session)
    }

    /// All that a session is judged by: its owner's capabilities and tombstones, then its Refs. Empty for one that is not
    /// held, but for its Refs.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when one does not hash to its hash.
    pub fn controls_of_session(&self, session: SessionId) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut blobs = match index::session(&self.txn, session)? {
            Some(row) => control::of_owner(&self.txn, row.owner)?,
            None => Vec::new(),
        };
        blobs.extend(control::refs_of(&self.txn, session)?);
        Ok(blobs)
    }

    /// A control blob by either of its CIDs.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when it does not hash to it.
    pub fn control(&self, cid: &Cid) -> Result<Option<Vec<u8>>, StoreError> {
        match control::resolve(&self.txn, cid)? {
            Some(hash) => control::bytes(&self.txn, &hash),
            None => Ok(None),
        }
    }

    /// A control blob by the sha2-256 of its bytes.
    ///
    /// # Errors
    /// As [`Reader::control`].
    pub fn control_by_hash(&self, hash: &[u8; 32]) -> Result<Option<Vec<u8>>, StoreError> {
        self.control(&Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash))
    }

    /// Count and digest of what is held of an owner.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn owner_digest(&self, owner: Principal) -> Result<OwnerDigest, StoreError> {
        control::owner_digest(&self.txn, owner)
    }

    /// All owners that a capability or tombstone is held of.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn owners(&self) -> Result<Vec<(Principal, OwnerDigest)>, StoreError> {
        control::owners(&self.txn)
    }
}

/// The rest.
impl Reader {
    /// What an idempotency key was used for.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn idempotency(&self, scope: &Scope, key: &str, request: &[u8; 32]) -> Result<Used, StoreError> {
        idempotency::look(&self.txn, scope, key, request)
    }

    /// At most `limit` events after `id`; 0 is before the first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn events_since(&self, id: u64, limit: usize) -> Result<EventPage, StoreError> {
        events::since(&self.txn, id, limit)
    }

    /// Id of the newest event.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn newest_event(&self) -> Result<u64, StoreError> {
        events::newest(&self.txn)
    }

    /// The pin of a session.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn pin(&self, session: SessionId) -> Result<Option<Pin>, StoreError> {
        pins::get(&self.txn, session)
    }

    /// All pins, ascending by session.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn pins(&self) -> Result<Vec<(SessionId, Pin)>, StoreError> {
        pins::all(&self.txn)
    }

    /// A job's journal.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn job(&self, kind: &str, id: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        jobs::job(&self.txn, kind, id)
    }

    /// Ids and journals of all jobs of a kind, ascending.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn jobs(&self, kind: &str) -> Result<Vec<NamedRow>, StoreError> {
        jobs::jobs(&self.txn, kind)
    }

    /// A fact of the node.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn fact(&self, space: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        jobs::fact(&self.txn, space, key)
    }

    /// Keys and facts of a space, ascending.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn facts(&self, space: &str) -> Result<Vec<NamedRow>, StoreError> {
        jobs::facts(&self.txn, space)
    }

    /// Whether every signature of the node's key since it was made went through this data directory, as far as can be told.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn is_guard_trusted(&self) -> Result<bool, StoreError> {
        Ok(counter(&self.txn, meta::GUARD_TRUSTED)? == 1)
    }

    /// How much is held.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn stats(&self) -> Result<Stats, StoreError> {
        let count = |key| counter(&self.txn, key);
        Ok(Stats {
            sessions: self.txn.open_table(tables::SESSIONS)?.len()?,
            entries: self.txn.open_table(tables::ENTRIES)?.len()?,
            entry_bytes: count(meta::ENTRY_BYTES)?,
            blocks: self.txn.open_table(tables::BLOCKS)?.len()?,
            block_bytes: count(meta::BLOCK_BYTES)?,
            controls: self.txn.open_table(tables::CONTROLS)?.len()?,
            side_entries: self.txn.open_table(tables::SIDE)?.len()?,
            side_bytes: count(meta::SIDE_BYTES)?,
            staging_bytes: count(meta::STAGING_BYTES)?,
            pins: self.txn.open_table(tables::PINS)?.len()?,
            newest_event: events::newest(&self.txn)?,
            opens: count(meta::OPENS)?,
        })
    }
}

/// Entries of a main chain, oldest first; reads as it goes.
pub struct Entries {
    range: redb::Range<'static, (u64, u64), &'static [u8]>,
}

impl Iterator for Entries {
    type Item = Result<StoredEntry, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.range.next()?;
        Some(row.map_err(StoreError::from).and_then(|(key, row)| {
            let seq = Seq::new(key.value().1)?;
            stored(seq, row.value())
        }))
    }
}

impl DoubleEndedIterator for Entries {
    fn next_back(&mut self) -> Option<Self::Item> {
        let row = self.range.next_back()?;
        Some(row.map_err(StoreError::from).and_then(|(key, row)| {
            let seq = Seq::new(key.value().1)?;
            stored(seq, row.value())
        }))
    }
}

fn stored(seq: Seq, row: &[u8]) -> Result<StoredEntry, StoreError> {
    let row = EntryRow::from_bytes(row)?;
    Ok(StoredEntry { seq, cid: row.cid, payload: row.payload, bytes: row.bytes.to_vec() })
}

/// The lowest digest of a sha2-256 dag-cbor CID whose text begins with `prefix`. The alphabet of base32 ascends as its
/// values do, so texts sort as digests do.
fn lowest_digest(prefix: &str) -> Option<[u8; 32]> {
    /// Characters of such a CID: `b` and 36 bytes in base32.
    const TEXT_LENGTH: usize = 59;
    if prefix.len() > TEXT_LENGTH {
        return None;
    }
    let (mut bits, mut held, mut bytes) = (0_u32, 0_u32, Vec::with_capacity(36));
    for letter in prefix.bytes().chain(std::iter::repeat(b'a')).take(TEXT_LENGTH).skip(1) {
        let value = match letter {
            b'a'..=b'z' => letter - b'a',
            b'2'..=b'7' => letter - b'2' + 26,
            _ => return None,
        };
        bits = ((bits << 5) | u32::from(value)) & 0xffff;
        held += 5;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from((bits >> held) & 0xff).ok()?);
        }
    }
    bytes.get(4..36)?.try_into().ok()
}
