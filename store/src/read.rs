//! Snapshots: a [`Reader`] sees one commit, whatever is written meanwhile. Any number of them read at once.
//!
//! Whatever is handed out under a CID was hashed against it first (`E_STORE_CORRUPT` otherwise). Lists are paged or streamed;
//! nothing reads a whole chain into memory. Entries are in [`crate::read_entries`], what is named by hash in
//! [`crate::read_blocks`].

use std::collections::BTreeSet;
use std::sync::Arc;

use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Epoch, Principal, SessionId};

use crate::Store;
use crate::error::{GuardError, StoreError};
use crate::events::{self, Event, EventPage};
use crate::files::Files;
use crate::idempotency::{self, Scope, Used};
use crate::index;
use crate::jobs::ListedRow;
use crate::pins::ListedPin;
use crate::rows::{GuardRow, Pin, SessionRow};
use crate::source::{Snapshot, Source, counter, lookup};
use crate::tables::{self, meta};
use crate::{guard, jobs, pins};

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

/// One snapshot of the store. The data directory stays open and locked while it lives.
pub struct Reader {
    pub(crate) txn: Arc<Snapshot>,
    pub(crate) files: Arc<Files>,
    pub(crate) store: Store,
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

    /// Sessions after `after` in the order in which they were first held, at most `limit`. The order survives restarts. One
    /// whose row is damaged is passed over, so that it hides no other: who asks for it is told, as is `fsck`.
    ///
    /// # Errors
    /// When the database cannot be read, or `after` is not held.
    pub fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionRow>, StoreError> {
        let from = match after {
            None => 0,
            Some(after) => index::need_session(&self.txn, after)?.number + 1,
        };
        let table = self.txn.table(tables::SESSIONS)?;
        let mut found = Vec::new();
        for row in table.range(from..)? {
            if found.len() == limit {
                break;
            }
            let (number, row) = row?;
            found.extend(SessionRow::from_bytes(number.value(), row.value()));
        }
        Ok(found)
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
        guard::row(&self.txn, session)
    }

    /// Whether this node may sign the next entry, of `epoch` on `prev`, as holder. To be asked before signing; the adoption
    /// asks again.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn check_guard(
        &self,
        row: &SessionRow,
        epoch: Epoch,
        prev: Mark,
    ) -> Result<Result<(), GuardError>, StoreError> {
        guard::check(&self.txn, row, epoch, prev)
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

    /// All pins, ascending by session. One that is damaged is an error of its own: whose it is is known.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn pins(&self) -> Result<Vec<ListedPin>, StoreError> {
        pins::all(&self.txn)
    }

    /// A job's journal.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn job(&self, kind: &str, id: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        jobs::job(&self.txn, kind, id)
    }

    /// Ids and journals of all jobs of a kind, ascending. One that is damaged is an error of its own, beside the others.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn jobs(&self, kind: &str) -> Result<Vec<ListedRow>, StoreError> {
        jobs::jobs(&self.txn, kind)
    }

    /// A fact of the node.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn fact(&self, space: &str, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        jobs::fact(&self.txn, space, key)
    }

    /// Keys and facts of a space, ascending. One that is damaged is an error of its own, beside the others.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn facts(&self, space: &str) -> Result<Vec<ListedRow>, StoreError> {
        jobs::facts(&self.txn, space)
    }

    /// The newest events of what these delegates of an owner did, at most `limit`, newest first.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn events_by(&self, delegates: &BTreeSet<Principal>, limit: usize) -> Result<Vec<Event>, StoreError> {
        events::by(&self.txn, delegates, limit)
    }

    /// Whether every signature of the node's key since it was made went through this data directory, as far as can be told.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn is_guard_trusted(&self) -> Result<bool, StoreError> {
        Ok(counter(&self.txn, meta::GUARD_TRUSTED)? == 1)
    }

    /// What tells signatures of this data directory since its guard was emptied from all that the node's key signed before: a name
    /// that no other directory has and that stays until the guard is emptied again. None while the guard is trusted, for then
    /// there is nothing to be told apart.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn guard_life(&self) -> Result<Option<[u8; 32]>, StoreError> {
        if self.is_guard_trusted()? {
            return Ok(None);
        }
        let life = lookup(&self.txn, tables::IDENTITY, "life", <[u8]>::to_vec)?;
        let life = life.and_then(|life| life.try_into().ok());
        life.map(Some).ok_or_else(|| StoreError::corrupt("the directory has no name for its present life"))
    }

    /// How much is held.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn stats(&self) -> Result<Stats, StoreError> {
        let count = |key| counter(&self.txn, key);
        Ok(Stats {
            sessions: self.txn.table(tables::SESSIONS)?.len()?,
            entries: self.txn.table(tables::ENTRIES)?.len()?,
            entry_bytes: count(meta::ENTRY_BYTES)?,
            blocks: self.txn.table(tables::BLOCKS)?.len()?,
            block_bytes: count(meta::BLOCK_BYTES)?,
            controls: self.txn.table(tables::CONTROLS)?.len()?,
            side_entries: self.txn.table(tables::SIDE)?.len()?,
            side_bytes: count(meta::SIDE_BYTES)?,
            staging_bytes: count(meta::STAGING_BYTES)?,
            pins: self.txn.table(tables::PINS)?.len()?,
            newest_event: events::newest(&self.txn)?,
            opens: count(meta::OPENS)?,
        })
    }
}

/// The lowest digest of a sha2-256 dag-cbor CID whose text begins with `prefix`. The alphabet of base32 ascends as its
/// values do, so texts sort as digests do.
pub(crate) fn lowest_digest(prefix: &str) -> Option<[u8; 32]> {
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
