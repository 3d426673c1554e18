//! Throughline's store: the durable truth of a node. `docs/ARCHITECTURE.md` §Store.
//!
//! Synchronous. One writer thread groups what is queued into batches, each durable as a whole ([`writer`]); readers take snapshots
//! ([`Reader`]) and never wait for it. It takes verified values only, decides nothing about validity, knows no peers
//! and reads no clock: every time comes in as a value.
//!
//! ```no_run
//! use throughline_protocol::id::UnixMillis;
//! use throughline_store::{OpenOptions, Store, SetPin, Pin, PinDepth};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let session: throughline_protocol::id::SessionId = "bafyreia".parse()?;
//! let now = UnixMillis::new(1_764_424_990_120)?;
//! let store = Store::open("/var/lib/throughline".as_ref(), OpenOptions::new(now, "throughline run"))?;
//! store.run(SetPin { session, pin: Some(Pin { since: now, depth: PinDepth::Files }), at: now })?;
//! for row in store.reader()?.sessions(None, 100)? {
//!     println!("{} {}", row.session.short(), row.tip.seq);
//! }
//! # Ok(())
//! # }
//! ```

mod adopt;
mod ahead;
mod ancestry;
mod batch;
mod brought;
mod checked;
mod control;
mod control_quota;
mod database;
mod disk;
mod error;
mod events;
mod evidence;
mod files;
mod flush;
mod forget;
mod fsck;
mod fsck_check;
mod fsck_rows;
mod guard;
mod health;
mod idempotency;
mod index;
mod jobs;
mod journal;
mod memtable;
mod mend;
mod migrate;
mod open;
mod payloads;
mod pins;
mod queued;
mod read;
mod read_blocks;
mod read_entries;
mod rebuild;
mod redo;
mod rows;
mod sessions;
mod side;
mod source;
mod staging;
mod sweep;
mod table_view;
mod tables;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod to_judge;
mod unreadable;
mod verbatim;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

pub use adopt::{Adopt, AdoptOptions, Adopted, NewTail, ReplaceTail, StagingUse};
pub use ahead::MadeAhead;
pub use ancestry::OnChain;
pub use brought::Naming;
pub use control::{OwnerDigest, PutControls};
pub use disk::{Disk, NewFile, RealDisk};
pub use error::{AdoptError, GuardError, OpenError, StoreError};
pub use events::{Change, Event, EventPage, PutNote};
pub use evidence::{
    DropEvidence, DropUnreadableEvidence, EvidenceLimits, KeptEvidence, MarkTold, OnOther, Put, PutEvidence,
};
pub use files::{FileReader, FileWriter, INLINE_BYTES_MAX, StoredFile};
pub use forget::Forget;
pub use fsck::{ChainCheck, Fsck, Problem};
pub use fsck_check::VerifyCheck;
pub use guard::{GuardUse, NoteOffer};
pub use health::{Ended, ReadOnly, Urgency};
pub use idempotency::{Idempotency, PutAnswer, Scope, Used};
pub use index::Lane;
pub use jobs::{DamagedRow, Expect, ListedRow, NamedRow, PutFact, PutJob};
pub use mend::{Damage, Mend};
pub use migrate::FORMAT;
pub use open::{KeyOrigin, OpenOptions};
pub use payloads::{DropPayloads, Later, LinkBlocks, PayloadState, PutBlock, Stored, Which};
pub use pins::{ListedPin, SetPin};
pub use read::{Reader, Stats};
pub use read_blocks::Found;
pub use read_entries::{Entries, StoredEntry};
pub use rebuild::{LostRow, NoteUnknownGuard, Noted, ReadAgain, Rebuild};
pub use rows::{Ahead, GuardRow, Pin, PinDepth, SessionRow, SessionState, SideStatus, Summary};
pub use sessions::{Freeze, RaiseFence, SetSelection, SetState};
pub use side::{PutSide, RestateSide, SideEntry, SideKept, SideLimits};
pub use staging::{Stage, StagingQuota, Unstage};
pub use sweep::{Sweep, Swept};
pub use throughline_protocol::fork::Mark;
pub use to_judge::{NoteJudged, ToJudge, Wait};
pub use writer::{CommitHook, Operation, QUEUE_MAX, TrySend};

use database::Db;
use files::{Files, Unlinked};
use flush::Snapshots;
use health::Health;
use open::Lock;
use queued::{Checkpoint, Job, Queued};
use source::Snapshot;
use writer::Writer;

/// An open data directory. Clones share it; it closes when the last one goes.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

/// Fields drop in this order: the writer ends before the database closes, and the lock goes last. The writer has it too: where
/// it cannot be waited for, it ends later.
struct Inner {
    writer: Writer,
    health: Arc<Health>,
    snapshots: Snapshots,
    database: Arc<Db>,
    files: Arc<Files>,
    _lock: Arc<Lock>,
}

impl Store {
    /// Opens a data directory for this process alone; makes it when there is none.
    ///
    /// # Errors
    /// `E_LOCKED` when another process holds it, `E_STORE_VERSION` when a newer format wrote it, `E_STORE_CORRUPT` when the
    /// database is damaged, `E_STORE_IO` when the disk refuses.
    pub fn open(dir: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        Store::open_on(Arc::new(RealDisk), dir, options)
    }

    /// As [`Store::open`], on another disk; the lock is the operating system's all the same.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(disk: Arc<dyn Disk>, dir: &Path, mut options: OpenOptions) -> Result<Self, OpenError> {
        let hook = options.on_commit.take();
        Store::start(open::open(disk, dir, &options)?, hook)
    }

    fn start(opened: open::Opened, hook: Option<CommitHook>) -> Result<Self, OpenError> {
        let health = Arc::clone(opened.files.health());
        let snapshots = Snapshots::new(Snapshot::of_commit(opened.database.begin_read()?)?);
        let writer = Writer::start(
            Arc::clone(&opened.database),
            Arc::clone(&opened.files),
            Arc::clone(&health),
            snapshots.clone(),
            opened.journal,
            hook,
            Arc::clone(&opened.lock),
        )?;
        let (database, files, lock) = (opened.database, opened.files, opened.lock);
        Ok(Store { inner: Arc::new(Inner { writer, health, snapshots, database, files, _lock: lock }) })
    }

    /// Executes an operation; returns after its commit is durable.
    ///
    /// # Errors
    /// The operation's refusal, which left the store as it was; `E_STORE_READ_ONLY` when it, or an earlier one, could not be
    /// written. Nothing of it is seen in this process then; it may be there at the next open, so ask again with the same key.
    pub fn run<O: Operation>(&self, operation: O) -> Result<O::Output, O::Error> {
        let (sender, answer) = sync_channel(1);
        self.submit(operation, move |outcome| {
            // The receiver waits below for as long as this closure lives.
            let _ = sender.send(outcome);
        })?;
        answer.recv().unwrap_or_else(|_| Err(StoreError::Closed.into()))
    }

    /// Queues an operation; `reply` is called after its commit, on a thread of the store, and must not block. Waits while
    /// the queue is full, and while large payloads become files.
    ///
    /// # Errors
    /// Why it was not queued; `reply` is not called then.
    pub fn submit<O: Operation>(
        &self,
        operation: O,
        reply: impl FnOnce(Result<O::Output, O::Error>) + Send + 'static,
    ) -> Result<(), O::Error> {
        let job = self.job(operation, reply)?;
        Ok(self.inner.writer.send(job)?)
    }

    /// As [`Store::submit`], but never waits for room in the queue: `Ok(Err(TrySend::Full))` instead.
    ///
    /// # Errors
    /// Why it could not be prepared.
    pub fn try_submit<O: Operation>(
        &self,
        operation: O,
        reply: impl FnOnce(Result<O::Output, O::Error>) + Send + 'static,
    ) -> Result<Result<(), TrySend>, O::Error> {
        let job = self.job(operation, reply)?;
        Ok(self.inner.writer.try_send(job))
    }

    fn job<O: Operation>(
        &self,
        mut operation: O,
        reply: impl FnOnce(Result<O::Output, O::Error>) + Send + 'static,
    ) -> Result<Box<dyn Job>, O::Error> {
        self.inner.health.check(operation.urgency())?;
        let files = operation.prepare(&self.inner.files)?;
        Ok(Box::new(Queued { operation: Some(operation), outcome: None, reply, files }))
    }

    /// A snapshot of the newest durable commit.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn reader(&self) -> Result<Reader, StoreError> {
        let txn = self.inner.snapshots.durable.get();
        Ok(Reader { txn, files: Arc::clone(&self.inner.files), store: self.clone() })
    }

    /// Begins a file that is streamed to disk; [`FileWriter::finish`] it, then run [`PutBlock::file`].
    ///
    /// # Errors
    /// `E_STORE_IO` when the disk refuses, `E_STORE_READ_ONLY` when nothing is written any more.
    pub fn file_writer(&self) -> Result<FileWriter, StoreError> {
        self.inner.health.check(Urgency::Ordinary)?;
        self.inner.files.writer()
    }

    /// Removes files that no row names: what a crash left between a file and its row. Walks all files, so it is for now and then.
    /// Returns how many went.
    ///
    /// # Errors
    /// When the disk refuses. One that it does not let go of keeps none of the others.
    pub fn remove_orphans(&self) -> Result<u64, StoreError> {
        self.inner.health.check(Urgency::Ordinary)?;
        let (mut gone, mut failed) = (Vec::new(), None);
        for digest in self.inner.files.list()? {
            // A row that is gone is gone when that is durable.
            let (newest, durable) =
                (|| self.inner.snapshots.newest.get(), || self.inner.snapshots.durable.get());
            match self.inner.files.unlink_orphan(&digest, newest, durable)? {
                Unlinked::Gone => gone.push(digest),
                Unlinked::NotThere | Unlinked::Held => {}
                Unlinked::Failed(error) => failed = Some(error),
            }
        }
        self.inner.files.sync_gone(&gone)?;
        if let Some(error) = failed {
            return Err(error);
        }
        Ok(u64::try_from(gone.len()).unwrap_or(u64::MAX))
    }

    /// Adopts a segment: [`Store::run`] of an [`Adopt`].
    ///
    /// # Errors
    /// See [`AdoptError`].
    pub fn adopt(
        &self,
        segment: throughline_protocol::verify::VerifiedSegment,
        options: AdoptOptions,
    ) -> Result<Adopted, AdoptError> {
        self.run(Adopt { segment, options })
    }

    /// Why the store takes no writes; none while it does, and when a disk that was full has room again.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<ReadOnly> {
        let health = &self.inner.health;
        let refused = health.check(Urgency::Ordinary).err()?;
        Some(ReadOnly { why: refused.to_string(), ended: health.ended() })
    }

    /// Whether every page of the database is as it was written; see [`database::Db::check_pages`].
    pub(crate) fn pages_are_whole(&self) -> Result<bool, StoreError> {
        let (sender, answer) = sync_channel(1);
        let published = Arc::clone(&self.inner.snapshots.durable);
        let checkpoint = Checkpoint {
            reply: move |written: Result<(), StoreError>| {
                // The receiver waits below for as long as this closure lives.
                let _ = sender.send(written.map(|()| published.get()));
            },
        };
        self.inner.writer.send(Box::new(checkpoint))?;
        let written = answer.recv().unwrap_or(Err(StoreError::Closed));
        // A store that takes no writes keeps in memory what its pages do not have: the journal has it, whose records are hashed.
        let snapshot = written.unwrap_or_else(|_| self.inner.snapshots.durable.get());
        self.inner.database.check_pages(&snapshot)
    }

    /// Checks everything that is stored, signatures and the rules of the chains included; see [`Reader::fsck`].
    ///
    /// # Errors
    /// When the database cannot be read at all; damage is a [`Problem`].
    pub fn fsck(&self) -> Result<Fsck, StoreError> {
        self.fsck_told(&mut || ())
    }

    /// As [`Store::fsck`]; `told` hears of every entry of a main chain that was looked at.
    ///
    /// # Errors
    /// As [`Store::fsck`].
    pub fn fsck_told(&self, told: &mut dyn FnMut()) -> Result<Fsck, StoreError> {
        let reader = self.reader()?;
        let mut check = fsck_check::Telling { check: VerifyCheck::new(&reader), told };
        database::guarded(|| reader.fsck(&mut check))
    }
}

#[cfg(test)]
#[path = "adopt_tests.rs"]
mod adopt_tests;
#[cfg(test)]
#[path = "ahead_tests.rs"]
mod ahead_tests;
#[cfg(test)]
#[path = "corrupt_tests.rs"]
mod corrupt_tests;
#[cfg(test)]
#[path = "crash_tests.rs"]
mod crash_tests;
#[cfg(test)]
#[path = "fault_tests.rs"]
mod fault_tests;
#[cfg(test)]
#[path = "fixture_tests.rs"]
mod fixture;
#[cfg(test)]
#[path = "guard_tests.rs"]
mod guard_tests;
#[cfg(test)]
#[path = "model_tests.rs"]
mod model_tests;
#[cfg(test)]
#[path = "open_tests.rs"]
mod open_tests;
#[cfg(test)]
#[path = "sim_tests.rs"]
mod sim_tests;
#[cfg(test)]
#[path = "store_tests.rs"]
mod store_tests;
