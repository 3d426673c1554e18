//! The journal: what makes a small batch durable with one write and one fsync, before the database itself is written.
//!
//! A durable commit of the database costs two fsyncs and a write of every page that it touched; a record of the journal is the
//! changes alone ([`crate::redo`]). So a batch goes to the journal, and into memory ([`crate::memtable`]), where every later
//! operation and reader finds it; now and then (a *checkpoint*) what is there is written to the database, and the journal begins
//! anew at its start. The database is always as the last checkpoint left it; after a crash the records after it are applied.
//!
//! ```text
//! sector 0   magic ‖ opens ‖ salt ‖ sha-256 of them    which run of the data directory it belongs to
//! sector 1…  mark ‖ first ‖ last ‖ length ‖ sha-256 ‖ changes
//!                                                      batches, numbered without gaps; each record begins at a sector
//! ```
//!
//! Changes hold bytes that peers sent (small payloads, staged blocks), and these may lie at the start of a sector. So that none
//! passes for a record, each run draws a salt: the mark is its first 8 bytes, and the digest of a record begins with all of
//! it. The mark also keeps a scan linear: nothing without it is hashed.
//!
//! A record has the batches that one fsync makes durable, and is written when the record before it is. So one that does not
//! read back is the one that the crash cut off, and was never acknowledged, unless a later one is whole: then it was damaged,
//! and nothing is opened over the gap. What is left of an earlier lap has lower numbers and ends the reading too; so has a
//! record that found no room ([`crate::health`]), since the next one is written over it and begins with the same number.
//!
//! It must never lose a batch that was acknowledged: the sign guard depends on it. A journal that is gone or belongs to another
//! run makes the directory a copy ([`crate::open`]).

use redb::StorageBackend;
use sha2::{Digest, Sha256};

use crate::database::{Db, commit_durably};
use crate::error::StoreError;
use crate::migrate::JOURNALED_SINCE;
use crate::payloads::size_of;
use crate::redo::{self, Redo};
use crate::source::counter;
use crate::tables::meta;

/// Name of the file in the data directory.
pub(crate) const FILE: &str = "store.journal";
/// Records begin at multiples of it, so that one that is damaged does not hide the next.
const SECTOR: usize = 512;
/// Bytes of a record before its changes.
const HEAD_BYTES: usize = 64;
/// Bytes of changes of a batch that still go through the journal; larger ones are written to the database at once.
const RECORD_BYTES_MAX: usize = 256 << 10;
/// Bytes of records after which a checkpoint is due. They bound what an open after a crash applies again.
const LAP_BYTES_MAX: usize = 4 << 20;
/// Where that is. Short in tests: they are to see the journal begin anew.
const CHECKPOINT_BYTES: usize = if cfg!(test) { 32 << 10 } else { LAP_BYTES_MAX };
/// Length of a journal that is longer than any is: all of it is read at once.
const FILE_BYTES_MAX: u64 = 8 << 20;
/// Bytes of changes of a record that are still hashed; none is longer. A record has all the batches that waited for one fsync,
/// and before a checkpoint no more of them wait than this.
const CHANGES_BYTES_MAX: usize = LAP_BYTES_MAX + RECORD_BYTES_MAX + SECTOR;
/// Length of a new journal.
const FIRST_BYTES: usize = 64 << 10;
const MAGIC: [u8; 8] = *b"tljrnl\x00\x02";
/// Bytes of the salt.
const SALT_BYTES: usize = 32;

/// What the journal of a directory says at its opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It belongs to the database, and what it held is in there now.
    Applied,
    /// There is none, or that of another database.
    Foreign,
}

/// A run of the data directory, as its journal names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// The how manieth open it began with.
    opens: u64,
    /// What nobody else knows.
    salt: [u8; SALT_BYTES],
}

impl Run {
    /// What each of its records begins with.
    fn mark(&self) -> [u8; 8] {
        let mut mark = [0; 8];
        mark.copy_from_slice(&self.salt[..8]);
        mark
    }
}

/// The journal of an open data directory.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Box<dyn StorageBackend>,
    /// Where the next record goes.
    at: usize,
    /// Length of the file.
    length: usize,
    /// Which run of the data directory writes it.
    run: Run,
    /// Number of the last batch that is in it.
    last: u64,
    buffer: Vec<u8>,
}

/// A record, read back whole.
struct Record<'a> {
    /// Number of its first batch.
    first: u64,
    /// Number of its last batch.
    last: u64,
    changes: &'a [u8],
    /// Its length with its head, in whole sectors.
    length: usize,
}

impl<'a> Record<'a> {
    /// Reads the record of a run at the start of `bytes`; none when there is none that is whole.
    fn read(run: &Run, bytes: &'a [u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&run.mark())?;
        let (first, rest) = rest.split_first_chunk::<8>()?;
        let (last, rest) = rest.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (digest, rest) = rest.split_first_chunk::<32>()?;
        let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
        let changes = rest.get(..length).filter(|_| length <= CHANGES_BYTES_MAX)?;
        let (first, last) = (u64::from_be_bytes(*first), u64::from_be_bytes(*last));
        let length = record_length(changes.len());
        (digest_of(run, first, last, changes) == *digest).then_some(Record { first, last, changes, length })
    }
}

/// Begins with the salt: neither what an earlier run left nor what a peer sent is ever taken for a record of this one.
fn digest_of(run: &Run, first: u64, last: u64, changes: &[u8]) -> [u8; 32] {
    let mut digest = Sha256::new_with_prefix(run.salt);
    for number in [first, last, size_of(changes)] {
        digest.update(number.to_be_bytes());
    }
    digest.chain_update(changes).finalize().into()
}

/// Whether so many bytes of changes go to the database at once, when `before` bytes of records were written since it was: they are many, or a
/// checkpoint is due.
pub(crate) fn wants_checkpoint(before: usize, changes: usize) -> bool {
    changes > RECORD_BYTES_MAX || before >= CHECKPOINT_BYTES
}

/// Bytes that changes take in the journal.
pub(crate) fn record_length(changes: usize) -> usize {
    (HEAD_BYTES + changes).next_multiple_of(SECTOR)
}

fn offset(at: usize) -> u64 {
    u64::try_from(at).unwrap_or(u64::MAX)
}

impl Journal {
    /// Takes the file of a journal, which may be empty.
    pub(crate) fn open(file: Box<dyn StorageBackend>) -> Result<Self, StoreError> {
        let length = file.len().map_err(|error| StoreError::io("reading the journal", error))?;
        if length > FILE_BYTES_MAX {
            let what = format!(
                "expected {FILE} to have at most {FILE_BYTES_MAX} bytes, it has {length}; move it away: without it the \
                 directory opens as a copy, which signs nothing before a handoff"
            );
            return Err(StoreError::corrupt(what));
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        Ok(Journal {
            file,
            at: SECTOR,
            length,
            run: Run { opens: 0, salt: [0; SALT_BYTES] },
            last: 0,
            buffer: Vec::new(),
        })
    }

    /// Applies what the database lacks, durably. `schema` is the layout that the program writes.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when a batch is damaged that others stand on.
    pub(crate) fn recover(&self, database: &Db, schema: u64) -> Result<Standing, StoreError> {
        let txn = database.begin_read()?;
        if txn.list_tables()?.next().is_none() {
            return Ok(Standing::Foreign);
        }
        let (opens, applied) = (counter(&txn, meta::OPENS)?, counter(&txn, meta::BATCH)?);
        let format = counter(&txn, meta::SCHEMA)?;
        let is_layout_known = (JOURNALED_SINCE..=schema).contains(&format);
        drop(txn);
        let bytes = self.read(self.length)?;
        let run = match run_of(&bytes) {
            Some(run) if run.opens == opens => run,
            // It was begun, and the open that began it did not get further: nothing was written in it yet.
            Some(run) if run.opens == opens + 1 => {
                let first = bytes.get(SECTOR..).and_then(|bytes| Record::read(&run, bytes));
                return Ok(first.map_or(Standing::Applied, |_| Standing::Foreign));
            }
            Some(_) | None => return Ok(Standing::Foreign),
        };
        let pending = pending(&run, bytes.get(SECTOR..).unwrap_or_default(), applied)?;
        match pending.first() {
            None => return Ok(Standing::Applied),
            // The database is an older one that was put back.
            Some(first) if first.first != applied + 1 => return Ok(Standing::Foreign),
            Some(_) => {}
        }
        if !is_layout_known {
            let what =
                "the journal holds batches of another format: open it once with the program that wrote it";
            return Err(StoreError::corrupt(what));
        }
        let txn = database.begin_write()?;
        for record in &pending {
            redo::apply(&txn, record.changes)?;
        }
        commit_durably(txn)?;
        Ok(Standing::Applied)
    }

    /// Bytes of records since the database was written.
    pub(crate) fn used(&self) -> usize {
        self.at - SECTOR
    }

    /// Begins the journal of the run that is the `opens`th.
    pub(crate) fn begin(&mut self, opens: u64) -> Result<(), StoreError> {
        if self.length < FIRST_BYTES {
            self.grow(FIRST_BYTES)?;
        }
        let mut run = Run { opens, salt: [0; SALT_BYTES] };
        getrandom::fill(&mut run.salt).map_err(|error| {
            StoreError::io("drawing the salt of the journal", std::io::Error::other(error))
        })?;
        let mut sector = MAGIC.to_vec();
        sector.extend(opens.to_be_bytes());
        sector.extend(run.salt);
        sector.extend(Sha256::digest(&sector));
        sector.resize(SECTOR, 0);
        self.write(0, &sector)?;
        self.sync()?;
        (self.at, self.run, self.last) = (SECTOR, run, 0);
        Ok(())
    }

    /// Makes batches durable, with one write and one fsync: as one record, so that a crash leaves all of them or none.
    pub(crate) fn append(&mut self, batches: &[(u64, Redo)]) -> Result<(), StoreError> {
        let (Some((first, _)), Some((last, _))) = (batches.first(), batches.last()) else { return Ok(()) };
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.resize(HEAD_BYTES, 0);
        batches.iter().for_each(|(_, redo)| redo.write(&mut buffer));
        let changes = &buffer[HEAD_BYTES..];
        let mut head = self.run.mark().to_vec();
        [*first, *last, size_of(changes)].iter().for_each(|number| head.extend(number.to_be_bytes()));
        head.extend(digest_of(&self.run, *first, *last, changes));
        buffer[..HEAD_BYTES].copy_from_slice(&head);
        buffer.resize(buffer.len().next_multiple_of(SECTOR), 0);
        let end = self.at + buffer.len();
        if end > self.length {
            // A lap ends before `LAP_BYTES_MAX` and one batch more, so this stays within `FILE_BYTES_MAX`.
            self.grow(end.next_power_of_two())?;
        }
        let written = self.write(self.at, &buffer);
        self.buffer = buffer;
        written?;
        self.sync()?;
        (self.at, self.last) = (end, *last);
        Ok(())
    }

    /// Begins at the start again: the database was written.
    pub(crate) fn restart(&mut self) {
        self.at = SECTOR;
    }

    /// Makes the file longer with bytes that are written, so that a later fsync has no length to write.
    fn grow(&mut self, length: usize) -> Result<(), StoreError> {
        let io = |error| StoreError::io("making the journal longer", error);
        self.file.set_len(offset(length)).map_err(io)?;
        self.file.write(offset(self.length), &vec![0; length - self.length]).map_err(io)?;
        self.length = length;
        Ok(())
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write(offset(at), bytes).map_err(|error| StoreError::io("writing the journal", error))
    }

    fn read(&self, length: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; length];
        self.file.read(0, &mut bytes).map_err(|error| StoreError::io("reading the journal", error))?;
        Ok(bytes)
    }

    fn sync(&self) -> Result<(), StoreError> {
        // Without room as with any other reason: what was written is in doubt.
        let in_doubt = |error: std::io::Error| std::io::Error::other(error.to_string());
        self.file.sync_data().map_err(|error| StoreError::io("fsync of the journal", in_doubt(error)))
    }
}

/// The run that a journal belongs to.
fn run_of(bytes: &[u8]) -> Option<Run> {
    let (head, rest) = bytes.split_first_chunk::<{ 16 + SALT_BYTES }>()?;
    let digest = rest.first_chunk::<32>()?;
    let (opens, salt) = head.strip_prefix(&MAGIC)?.split_first_chunk::<8>()?;
    let salt = *salt.first_chunk::<SALT_BYTES>()?;
    let is_whole = *digest == *Sha256::digest(head);
    is_whole.then_some(Run { opens: u64::from_be_bytes(*opens), salt })
}

/// The records of a run with batches after batch `applied`, in order.
fn pending<'a>(run: &Run, bytes: &'a [u8], applied: u64) -> Result<Vec<Record<'a>>, StoreError> {
    let mut pending = Vec::new();
    let (mut at, mut next) = (0, None);
    while let Some(record) = bytes.get(at..).and_then(|bytes| Record::read(run, bytes)) {
        if next.is_some_and(|next| record.first != next) {
            break;
        }
        next = Some(record.last + 1);
        at += record.length;
        // One that began before is what was left of a write that found no room.
        if record.first > applied {
            pending.push(record);
        }
    }
    let expected = next.unwrap_or(0).max(applied + 1);
    // Only what was acknowledged has batches after it.
    let mut later = (at..bytes.len()).step_by(SECTOR).filter_map(|at| Record::read(run, &bytes[at..]));
    if let Some(later) = later.find(|later| later.first >= expected) {
        let what = format!(
            "batch {expected} of {FILE} does not read back, batch {} after it does; without the file the directory opens \
             as a copy, which signs nothing before a handoff",
            later.first
        );
        return Err(StoreError::corrupt(what));
    }
    Ok(pending)
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
