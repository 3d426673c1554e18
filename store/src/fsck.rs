//! Checking everything that is stored: hashes, links, index, rows. Changes nothing.
//!
//! Damage is listed, not stopped at. Signatures, authority and the chain's own rules are for a [`ChainCheck`]: the store
//! brings every entry in order and keeps its layer.

use redb::ReadableTable;
use throughline_protocol::block::Decoded;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{EntryCid, SessionId};

use crate::error::StoreError;
use crate::files::short;
use crate::index::{self, Lane};
use crate::read::Reader;
use crate::rows::{ControlRow, EntryRow, SessionRow, SideRow};
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::{guard, payloads};

/// Problems that one run lists; beyond it they are only counted.
const PROBLEMS_MAX: usize = 1_000;

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fsck {
    /// Sessions looked at.
    pub sessions: u64,
    /// Entries hashed, on main chains and beside them.
    pub entries: u64,
    /// Payloads and files hashed.
    pub blocks: u64,
    /// Control blobs hashed.
    pub controls: u64,
    /// How many problems there are.
    pub problem_count: u64,
    /// The first of them.
    pub problems: Vec<Problem>,
}

impl Fsck {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    fn add(&mut self, problem: Problem) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    fn note(&mut self, session: Option<SessionId>, code: Code, what: impl Into<String>) {
        self.add(Problem { session, code, what: what.into() });
    }

    /// Takes a value, or lists why there is none.
    fn take<T>(&mut self, session: Option<SessionId>, value: Result<T, StoreError>) -> Option<T> {
        value.map_err(|error| self.note(session, error.code(), error.to_string())).ok()
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The session, if it is of one.
    pub session: Option<SessionId>,
    /// Its stable code.
    pub code: Code,
    /// What and where, ids in short form.
    pub what: String,
}

/// What a caller checks of each main-chain entry and control blob, beyond what the store can.
pub trait ChainCheck {
    /// An entry, oldest first within its session; a session's entries come without others between.
    ///
    /// # Errors
    /// What is wrong with it.
    fn entry(&mut self, session: SessionId, bytes: &[u8]) -> Result<(), Reject>;

    /// A control blob.
    ///
    /// # Errors
    /// What is wrong with it.
    fn control(&mut self, bytes: &[u8]) -> Result<(), Reject>;
}

impl Reader {
    /// Checks everything in the snapshot: hashes, links between entries, index, counters, files, and what `check` checks.
    ///
    /// # Errors
    /// When the database cannot be read at all; damage is a [`Problem`].
    pub fn fsck(&self, check: &mut dyn ChainCheck) -> Result<Fsck, StoreError> {
        run(self, check)
    }
}

fn run(reader: &Reader, check: &mut dyn ChainCheck) -> Result<Fsck, StoreError> {
    let mut found = Fsck::default();
    let mut entry_bytes = 0;
    let table = reader.txn.table(tables::SESSIONS)?;
    for row in table.iter()? {
        let (number, row) = row?;
        let Some(row) = found.take(None, SessionRow::from_bytes(number.value(), row.value())) else {
            continue;
        };
        entry_bytes += session(reader, &row, check, &mut found)?;
        found.sessions += 1;
    }
    let counted = counter(&reader.txn, meta::ENTRY_BYTES)?;
    if counted != entry_bytes {
        found.note(
            None,
            Code::IndexCorrupt,
            format!("{entry_bytes} bytes of entries are held, {counted} are counted"),
        );
    }
    indexed(reader, &mut found)?;
    blocks(reader, &mut found)?;
    controls(reader, check, &mut found)?;
    Ok(found)
}

/// One session: its chain, its index rows, its guard. Returns the bytes of its entries.
fn session(
    reader: &Reader,
    row: &SessionRow,
    check: &mut dyn ChainCheck,
    found: &mut Fsck,
) -> Result<u64, StoreError> {
    let id = Some(row.session);
    if index::session_number(&reader.txn, row.session)? != Some(row.number) {
        found.note(id, Code::IndexCorrupt, "the session is not found by its id");
    }
    let mut chain = Chain { expected_seq: 0, tip: None, bytes: 0 };
    let table = reader.txn.table(tables::ENTRIES)?;
    for stored in table.range((row.number, 0)..=(row.number, u64::MAX))? {
        let (key, stored) = stored?;
        let seq = key.value().1;
        found.entries += 1;
        let Some(entry) = found.take(id, EntryRow::from_bytes(stored.value())) else {
            chain.skip_to(seq);
            continue;
        };
        chain.entry(reader, row, seq, &entry, found)?;
        if let Err(reject) = check.entry(row.session, entry.bytes) {
            found.note(id, reject.code, format!("seq {seq}: {}", reject.detail));
        }
    }
    if chain.tip != Some(row.tip.cid) || chain.expected_seq != row.tip.seq.get() + 1 {
        found.note(id, Code::IndexCorrupt, format!("the chain does not end at seq {}", row.tip.seq));
    }
    found.take(id, guard::row(&reader.txn, row.session));
    sides(reader, row, found)?;
    Ok(chain.bytes)
}

/// What has been seen of one main chain.
struct Chain {
    expected_seq: u64,
    tip: Option<EntryCid>,
    bytes: u64,
}

impl Chain {
    fn skip_to(&mut self, seq: u64) {
        self.expected_seq = seq + 1;
        self.tip = None;
    }

    fn entry(
        &mut self,
        reader: &Reader,
        row: &SessionRow,
        seq: u64,
        entry: &EntryRow<'_>,
        found: &mut Fsck,
    ) -> Result<(), StoreError> {
        let id = Some(row.session);
        if seq != self.expected_seq {
            found.note(id, Code::IndexCorrupt, format!("expected seq {}, got {seq}", self.expected_seq));
        }
        let place = found.take(id, index::find(&reader.txn, entry.cid)).flatten();
        let fits = place.is_some_and(|place| {
            place.session == row.number && place.lane == Lane::Main && place.seq.get() == seq
        });
        if !fits {
            found.note(id, Code::IndexCorrupt, format!("seq {seq} is not found by its CID"));
        }
        match Decoded::<Entry>::decode(entry.bytes) {
            Ok(decoded) => {
                let value = decoded.value();
                let follows = self.tip.is_none() || value.prev() == self.tip;
                let payload = value.payload.map(|payload| payload.cid);
                if value.seq().get() != seq || !follows || payload != entry.payload {
                    found.note(
                        id,
                        Code::IndexCorrupt,
                        format!("the entry stored at seq {seq} does not belong there"),
                    );
                }
            }
            Err(reject) => found.note(id, reject.code, format!("seq {seq}: {}", reject.detail)),
        }
        self.bytes += payloads::size_of(entry.bytes);
        self.tip = Some(entry.cid);
        self.expected_seq = seq + 1;
        Ok(())
    }
}

/// Entries beside the chain.
fn sides(reader: &Reader, row: &SessionRow, found: &mut Fsck) -> Result<(), StoreError> {
    let id = Some(row.session);
    let table = reader.txn.table(tables::SIDE)?;
    for stored in table.range((row.number, &[0; 32])..=(row.number, &[0xff; 32]))? {
        let (key, stored) = stored?;
        let cid = EntryCid::from_digest(*key.value().1);
        found.entries += 1;
        if found.take(id, SideRow::from_bytes(cid, stored.value())).is_none() {
            continue;
        }
        let place = found.take(id, index::find(&reader.txn, cid)).flatten();
        if !place.is_some_and(|place| place.session == row.number && place.lane == Lane::Side) {
            found.note(id, Code::IndexCorrupt, format!("side entry {} is not found by its CID", cid.short()));
        }
    }
    Ok(())
}

/// Every index row points at an entry.
fn indexed(reader: &Reader, found: &mut Fsck) -> Result<(), StoreError> {
    let table = reader.txn.table(tables::INDEX)?;
    let entries = reader.txn.table(tables::ENTRIES)?;
    let sides = reader.txn.table(tables::SIDE)?;
    for row in table.iter()? {
        let cid = EntryCid::from_digest(*row?.0.value());
        let Some(Some(place)) = found.take(None, index::find(&reader.txn, cid)) else { continue };
        let is_there = match place.lane {
            Lane::Main => entries
                .get((place.session, place.seq.get()))?
                .is_some_and(|row| row.value().starts_with(cid.digest())),
            Lane::Side => sides.get((place.session, cid.digest()))?.is_some(),
        };
        if !is_there {
            found.note(
                None,
                Code::IndexCorrupt,
                format!("{} is indexed at seq {} and not there", cid.short(), place.seq),
            );
        }
    }
    Ok(())
}

/// Payloads and files.
fn blocks(reader: &Reader, found: &mut Fsck) -> Result<(), StoreError> {
    let mut bytes = 0;
    let table = reader.txn.table(tables::BLOCKS)?;
    for row in table.iter()? {
        let digest = *row?.0.value();
        found.blocks += 1;
        match found.take(None, payloads::row(&reader.txn, &digest)).flatten() {
            Some(row) => bytes += row.size,
            None => continue,
        }
        match found.take(None, reader.open_file(&digest)) {
            None => {}
            Some(None) => {
                found.take(None, payloads::read(&reader.txn, &reader.files, &digest));
            }
            // Streamed: a file may be larger than memory.
            Some(Some((mut file, _))) => {
                if let Err(error) = std::io::copy(&mut file, &mut std::io::sink()) {
                    found.note(None, Code::StoreCorrupt, format!("file {}: {error}", short(&digest)));
                }
            }
        }
    }
    let counted = counter(&reader.txn, meta::BLOCK_BYTES)?;
    if counted != bytes {
        found.note(
            None,
            Code::IndexCorrupt,
            format!("{bytes} bytes of blocks are held, {counted} are counted"),
        );
    }
    Ok(())
}

/// Control blobs.
fn controls(reader: &Reader, check: &mut dyn ChainCheck, found: &mut Fsck) -> Result<(), StoreError> {
    let table = reader.txn.table(tables::CONTROLS)?;
    for row in table.iter()? {
        let (hash, row) = row?;
        found.controls += 1;
        let hash = EntryCid::from_digest(*hash.value());
        let Some(row) = found.take(None, ControlRow::from_bytes(hash, row.value())) else { continue };
        if let Err(reject) = check.control(&row.bytes) {
            found.note(None, reject.code, format!("control blob {}: {}", hash.short(), reject.detail));
        }
    }
    let listed = reader.txn.table(tables::CONTROLS_OF_OWNER)?;
    for row in listed.iter()? {
        let hash = *row?.0.value().1;
        if lookup(&reader.txn, tables::CONTROLS, &hash, |_| ())?.is_none() {
            found.note(
                None,
                Code::IndexCorrupt,
                format!("control blob {} is listed and not held", short(&hash)),
            );
        }
    }
    Ok(())
}
