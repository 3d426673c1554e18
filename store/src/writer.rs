//! The one writer: a thread that executes whatever is queued in one transaction; it is answered when that is durable.
//!
//! ```text
//! callers ─▶ prepare (files, in the caller's thread) ─▶ bounded queue ─▶ ┌ begin ────────────────────────┐
//!                                                                        │ each: check ─▶ write | refuse │
//!                                                                        │ one commit in memory          │
//!            answers ◀── readers see it ◀── one write, one fsync ◀───────└───────────────────────────────┘
//!                        (crate::flush, while the next batch is executed)
//! ```
//!
//! An operation is split in two by its types: `check` sees the transaction read-only and may refuse, `write` may only fail
//! as the disk fails. So a refused one has written nothing and spoils nothing, and no savepoint is needed. If a write or
//! the commit fails, none of the batch happened, all its callers are told so, and the store takes no writes until it is opened
//! again.
//!
//! A small batch is durable in the [`crate::journal`] before it is committed in memory; a large one, and one now and then,
//! is committed to the database durably, and the journal begins anew.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};

use redb::{Database, Durability, ReadableDatabase as _, WriteTransaction};

use crate::error::StoreError;
use crate::files::{Files, InFlight};
use crate::flush::{Flush, Flusher, Seen};
use crate::health::Health;
use crate::journal;
use crate::redo::Redo;
use crate::source::counter;
use crate::tables::{self, meta};

pub(crate) use crate::batch::{Batch, Changes, View};

/// Operations that wait for the writer; a caller above it waits.
pub const QUEUE_MAX: usize = 1_024;
/// Operations of one transaction.
const BATCH_MAX: usize = 256;
/// How often in a row the writer lets other threads run while operations are expected and none came.
const YIELDS_MAX: u32 = 3;

/// One change to the store, checked and written in one transaction. The types of this crate that implement it are all
/// that can change a store.
pub trait Operation: Step {}

impl<T: Step> Operation for T {}

/// The two halves of an [`Operation`].
pub trait Step: Send + 'static {
    /// What the caller gets.
    type Output: Send + 'static;
    /// Why it was refused.
    type Error: From<StoreError> + Send + 'static;
    /// What `check` found out and `write` goes by.
    type Plan;

    /// Makes files durable before the operation is queued, in the caller's thread.
    ///
    /// # Errors
    /// When the disk refuses, or the operation cannot be right whatever is stored.
    fn prepare(&mut self, _files: &Arc<Files>) -> Result<Vec<InFlight>, Self::Error> {
        Ok(Vec::new())
    }

    /// Decides. Sees what earlier operations of the batch wrote; writes nothing.
    ///
    /// # Errors
    /// The refusal.
    fn check(&self, view: &View<'_, '_>) -> Result<Self::Plan, Self::Error>;

    /// Writes what was decided.
    ///
    /// # Errors
    /// Only when the disk fails: it undoes the whole batch and closes the store for writing.
    fn write(self, plan: Self::Plan, changes: &Changes<'_, '_>) -> Result<Self::Output, StoreError>;
}

/// Called by the writer after each commit, with the id of the newest event. It must not block.
pub type CommitHook = Box<dyn Fn(u64) + Send>;

/// The writer's end that callers hold.
pub(crate) struct Writer {
    queue: Mutex<Option<SyncSender<Box<dyn Job>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The thread that answers.
    flusher: Option<ThreadId>,
}

impl Writer {
    /// Starts the thread.
    pub(crate) fn start(
        database: Arc<Database>,
        files: Arc<Files>,
        health: Arc<Health>,
        flusher: Flusher,
    ) -> Result<Self, StoreError> {
        let (sender, queue) = sync_channel(QUEUE_MAX);
        let answers = flusher.thread_id();
        let thread = Loop { database, files, health, flusher, journal_bytes: 0 };
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || thread.run(&queue))
            .map_err(|error| StoreError::io("starting the writer", error))?;
        Ok(Writer { queue: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)), flusher: answers })
    }

    fn sender(&self) -> Result<SyncSender<Box<dyn Job>>, StoreError> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(StoreError::Closed)
    }

    /// Queues a job; waits while the queue is full.
    pub(crate) fn send(&self, job: Box<dyn Job>) -> Result<(), StoreError> {
        self.sender()?.send(job).map_err(|_| StoreError::Closed)
    }

    /// Queues a job unless the queue is full.
    pub(crate) fn try_send(&self, job: Box<dyn Job>) -> Result<(), TrySend> {
        match self.sender().map_err(|_| TrySend::Closed)?.try_send(job) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => Err(TrySend::Full),
            Err(TrySendError::Disconnected(_)) => Err(TrySend::Closed),
        }
    }

    /// Lets the thread finish what is queued and end, and waits for it.
    pub(crate) fn stop(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let here = std::thread::current().id();
        // Not from an answer: the thread that gives it is waited for by the one that ends.
        if let Some(thread) = thread
            && thread.thread().id() != here
            && self.flusher != Some(here)
        {
            // A panic of the writer was already told to its callers as a closed store.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Why an operation was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrySend {
    /// The queue is full: try again later, or wait with [`crate::Store::submit`].
    #[error("{QUEUE_MAX} operations are waiting")]
    Full,
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// A queued operation with its answer, without its types.
pub(crate) trait Job: Send {
    /// Checks and writes. `Err` is a failure of the disk; a refusal is kept for the answer.
    fn execute(&mut self, txn: &Batch<'_>) -> Result<Wrote, StoreError>;
    /// Whether the operation had prepared files.
    fn has_files(&self) -> bool;
    /// Gives up the files that the operation had prepared; says which.
    fn take_files(&mut self) -> Vec<[u8; 32]>;
    /// Answers: after the commit, or with the failure that undid the batch.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// Whether a job changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    /// It did.
    Something,
    /// It was refused.
    Nothing,
}

/// The one implementation of [`Job`].
pub(crate) struct Queued<O: Step, R> {
    pub(crate) operation: Option<O>,
    pub(crate) outcome: Option<Result<O::Output, O::Error>>,
    pub(crate) reply: R,
    /// Files stay while the operation is in flight.
    pub(crate) files: Vec<InFlight>,
}

impl<O, R> Job for Queued<O, R>
where
    O: Step,
    R: FnOnce(Result<O::Output, O::Error>) + Send,
{
    fn execute(&mut self, txn: &Batch<'_>) -> Result<Wrote, StoreError> {
        let Some(operation) = self.operation.take() else { return Ok(Wrote::Nothing) };
        match operation.check(&View { txn }) {
            Err(refusal) => {
                self.outcome = Some(Err(refusal));
                Ok(Wrote::Nothing)
            }
            Ok(plan) => {
                self.outcome = Some(Ok(operation.write(plan, &Changes { txn })?));
                Ok(Wrote::Something)
            }
        }
    }

    fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    fn take_files(&mut self) -> Vec<[u8; 32]> {
        std::mem::take(&mut self.files).into_iter().map(|file| file.digest()).collect()
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let outcome = match committed {
            Ok(()) => self.outcome.unwrap_or_else(|| Err(StoreError::Closed.into())),
            Err(error) => Err(error.into()),
        };
        (self.reply)(outcome);
    }
}

/// A batch that was executed.
#[derive(Default)]
struct Executed {
    /// What the journal needs to make it durable; none when it is, or nothing was changed.
    record: Option<(u64, Redo)>,
    /// What readers are to see; none when nothing was changed.
    seen: Option<Seen>,
    /// Files to unlink once it is durable.
    condemned: Vec<[u8; 32]>,
}

/// The operations of one transaction: `first` and whatever is queued. While there are fewer than `expected`, it lets the
/// callers run that were just answered, so that they share a commit instead of each paying for one; it never waits for them.
/// After a batch of one, one is expected: a lone caller loses nothing.
fn gather<T>(first: T, queue: &Receiver<T>, expected: usize) -> Vec<T> {
    let mut batch = vec![first];
    let mut yields = 0;
    while batch.len() < BATCH_MAX {
        if let Ok(next) = queue.try_recv() {
            batch.push(next);
            yields = 0;
        } else if batch.len() < expected && yields < YIELDS_MAX {
            yields += 1;
            std::thread::yield_now();
        } else {
            break;
        }
    }
    batch
}

struct Loop {
    database: Arc<Database>,
    files: Arc<Files>,
    health: Arc<Health>,
    flusher: Flusher,
    /// Bytes of the journal since the last checkpoint, with those that are on their way.
    journal_bytes: usize,
}

impl Loop {
    fn run(mut self, queue: &Receiver<Box<dyn Job>>) {
        let mut sizes = [1; 2];
        while let Ok(first) = queue.recv() {
            let batch = gather(first, queue, sizes[0].max(sizes[1]));
            sizes = [sizes[1], batch.len()];
            self.batch(batch);
        }
        self.close();
    }

    /// Writes to the database what only the journal holds. If that fails, the next open does it.
    fn close(&mut self) {
        let _back = self.flusher.drained();
        if self.health.check().is_err() || self.journal_bytes == 0 {
            return;
        }
        let written = self.database.begin_write().map_err(StoreError::from).and_then(checkpoint);
        if let Err(error) = written {
            self.health.fail(&error);
        }
    }

    fn batch(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        match self.health.check().and_then(|()| self.execute(&mut jobs)) {
            Ok(done) if done.condemned.is_empty() && !jobs.iter().any(|job| job.has_files()) => {
                self.flusher.send(Flush { record: done.record, seen: done.seen, jobs });
            }
            Ok(done) => self.settle(done, jobs),
            Err(error) => {
                self.health.fail(&error);
                let back = self.flusher.drained();
                back.answer(jobs, false);
            }
        }
    }

    /// Executes a batch in one transaction. Later batches see it; readers do not yet.
    fn execute(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<Executed, StoreError> {
        let txn = self.database.begin_write()?;
        let changes = Batch::new(&txn);
        let mut wrote = Wrote::Nothing;
        for job in jobs {
            if job.execute(&changes)? == Wrote::Something {
                wrote = Wrote::Something;
            }
        }
        if wrote == Wrote::Nothing {
            drop(changes);
            txn.abort()?;
            return Ok(Executed::default());
        }
        let newest_event = counter(&changes, meta::NEXT_EVENT)?.saturating_sub(1);
        let condemned = crate::payloads::condemned(&changes)?;
        let batch = changes.finish()?;
        let record = self.commit(txn, batch)?;
        let seen = Some(Seen { snapshot: self.database.begin_read()?, newest_event });
        Ok(Executed { record, seen, condemned })
    }

    /// Commits a transaction in memory and gives the record that makes it durable; or commits it durably.
    fn commit(
        &mut self,
        mut txn: WriteTransaction,
        (number, redo): (u64, Redo),
    ) -> Result<Option<(u64, Redo)>, StoreError> {
        if !journal::wants_checkpoint(self.journal_bytes, redo.bytes()) {
            txn.set_durability(Durability::None).map_err(redb::Error::from)?;
            txn.commit()?;
            self.journal_bytes += journal::record_length(redo.bytes().len());
            return Ok(Some((number, redo)));
        }
        let mut back = self.flusher.drained();
        // What it stands on must have become durable.
        self.health.check()?;
        checkpoint(txn)?;
        back.journal.restart();
        self.journal_bytes = 0;
        Ok(None)
    }

    /// Makes a batch durable here, and does what is left to do with files before it is answered.
    fn settle(&mut self, done: Executed, mut jobs: Vec<Box<dyn Job>>) {
        let records: Vec<_> = done.record.into_iter().collect();
        let durable = self.flusher.drained().persist(&records, done.seen);
        // The batch is committed whatever becomes of this; a redaction is answered when its bytes are gone.
        if durable.is_ok()
            && let Err(error) = self.unlink(&done.condemned).and_then(|()| self.drop_unused(&mut jobs))
        {
            self.health.fail(&error);
        }
        self.flusher.drained().answer(jobs, durable.is_ok());
    }

    /// Unlinks files that operations had prepared and that got no row: the operation was refused, was a replay, or brought
    /// a payload that is redacted.
    fn drop_unused(&self, batch: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        let prepared = batch.iter_mut().flat_map(|job| job.take_files());
        prepared
            .map(|digest| self.files.unlink_orphan(&digest, &self.database))
            .try_for_each(|gone| gone.map(|_| ()))
    }

    /// Unlinks files whose rows are gone. Their names stay listed until then, so a crash in between loses none.
    fn unlink(&mut self, condemned: &[[u8; 32]]) -> Result<(), StoreError> {
        if condemned.is_empty() {
            return Ok(());
        }
        let mut gone = Vec::new();
        for digest in condemned {
            if self.files.unlink(digest)? {
                gone.push(digest);
            }
        }
        let txn = self.database.begin_write()?;
        let batch = Batch::new(&txn);
        for digest in gone {
            Changes { txn: &batch }.remove(tables::CONDEMNED, digest)?;
        }
        let batch = batch.finish()?;
        let record = self.commit(txn, batch)?;
        let records: Vec<_> = record.into_iter().collect();
        let newest_event = counter(&self.database.begin_read()?, meta::NEXT_EVENT)?.saturating_sub(1);
        let seen = Seen { snapshot: self.database.begin_read()?, newest_event };
        self.flusher.drained().persist(&records, Some(seen))
    }
}

/// Commits to the database itself, with everything that was only in memory. It opens quickly after a crash.
fn checkpoint(mut txn: WriteTransaction) -> Result<(), StoreError> {
    txn.set_quick_repair(true);
    Ok(txn.commit()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_what_is_queued_up_to_its_limit() {
        let (sender, queue) = sync_channel(QUEUE_MAX);
        (1..=BATCH_MAX).for_each(|number| sender.send(number).unwrap());
        assert_eq!(gather(0, &queue, 1), (0..BATCH_MAX).collect::<Vec<_>>());
        assert_eq!(gather(0, &queue, 1), [0, BATCH_MAX]);
    }

    #[test]
    fn a_batch_goes_without_those_that_do_not_come() {
        let (sender, queue) = sync_channel(QUEUE_MAX);
        sender.send(1).unwrap();
        assert_eq!(gather(0, &queue, 8), [0, 1]);
        drop(sender);
        assert_eq!(gather(2, &queue, 8), [2]);
    }
}
