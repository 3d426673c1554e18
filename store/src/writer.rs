//! The one writer: a thread that executes whatever is queued as one batch; it is answered when that is durable.
//!
//! ```text
//! callers ─▶ prepare (files, in the caller's thread) ─▶ bounded queue ─▶ ┌ begin ────────────────────────┐
//!                                                                        │ each: check ─▶ write | refuse │
//!                                                                        │ laid over the batch before    │
//!            answers ◀── readers see it ◀── one write, one fsync ◀───────└───────────────────────────────┘
//!                        (crate::flush, while the next batch is executed)
//! ```
//!
//! An operation is split in two by its types: `check` sees the batch read-only and may refuse, `write` may only fail
//! as the disk fails. So a refused one has written nothing and spoils nothing, and no savepoint is needed. If a write or
//! a checkpoint fails, nothing of the batch is seen in this process, all its callers are told so, and the store takes no writes
//! until it is opened again; after a full disk, until there is room ([`crate::health`]). It may be there at the next open: an
//! fsync that failed may have written the record whole. Who asks again with the same key gets what then stands.
//!
//! A small batch is kept in memory ([`crate::memtable`]) and made durable by the [`crate::journal`]; with a large one, and now and
//! then, everything in memory is written to the database in one durable commit (a checkpoint), and the journal begins anew. On a
//! disk with little room left nothing goes to the journal: a full one is to be found with nothing pending.
//!
//! After a failure the writer may have batches that are not durable. It goes back to the last one that is, and opens the database
//! again beneath it ([`Loop::put_back`]): what was acknowledged is there, and nothing else.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};

use crate::database::{Again, Db, commit_durably, guarded};
use crate::error::StoreError;
use crate::files::{Files, InFlight, Unlinked};
use crate::flush::{Back, Flush, Flusher, Seen, Snapshots};
use crate::health::{Ended, Health, Urgency};
use crate::journal::{self, Journal};
use crate::memtable::Memtable;
use crate::open::Lock;
use crate::queued::{Job, Wake, Wrote, is_settled};
use crate::redo::Redo;
use crate::source::{Snapshot, counter};
use crate::tables::{self, meta};

use crate::batch::Finished;
pub(crate) use crate::batch::{Batch, Changes, View};

/// Operations that wait for the writer; a caller above it waits.
pub const QUEUE_MAX: usize = 1_024;
/// Operations of one batch.
const BATCH_MAX: usize = 256;
/// How often in a row the writer lets other threads run while operations are expected and none came.
const YIELDS_MAX: u32 = 3;

/// One change to the store, checked and written in one batch. The types of this crate that implement it are all
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

    /// Whether it is written while the disk is full.
    fn urgency(&self) -> Urgency {
        Urgency::Ordinary
    }

    /// Decides. Sees what earlier operations of the batch wrote; writes nothing.
    ///
    /// # Errors
    /// The refusal.
    fn check(&self, view: &View<'_>) -> Result<Self::Plan, Self::Error>;

    /// Writes what was decided.
    ///
    /// # Errors
    /// Only when the disk fails: it undoes the whole batch and closes the store for writing.
    fn write(self, plan: Self::Plan, changes: &Changes<'_>) -> Result<Self::Output, StoreError>;
}

/// Called after each batch that is durable, on a thread of the store, with the id of the newest event. It must not block.
pub type CommitHook = Box<dyn Fn(u64) + Send>;

/// Where jobs wait; none once the store closes.
type Queue = Mutex<Option<SyncSender<Box<dyn Job>>>>;

/// The writer's end that callers hold.
pub(crate) struct Writer {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The thread that answers.
    flusher: Option<ThreadId>,
}

impl Writer {
    /// Starts the thread.
    pub(crate) fn start(
        database: Arc<Db>,
        files: Arc<Files>,
        health: Arc<Health>,
        snapshots: Snapshots,
        journal: Journal,
        hook: Option<CommitHook>,
        lock: Arc<Lock>,
    ) -> Result<Self, StoreError> {
        let (sender, jobs) = sync_channel::<Box<dyn Job>>(QUEUE_MAX);
        let queue = Arc::new(Mutex::new(Some(sender)));
        let called = Arc::clone(&queue);
        let wake = move || {
            // A queue that is full wakes it anyway, and one that is closed has it close.
            let sender = called.lock().unwrap_or_else(PoisonError::into_inner).clone();
            sender.map(|sender| sender.try_send(Box::new(Wake)));
        };
        let flusher = Flusher::start(
            journal,
            Arc::clone(&health),
            Arc::clone(&snapshots.durable),
            hook,
            Box::new(wake),
        )?;
        let answers = flusher.thread_id();
        let thread = Loop {
            database,
            files,
            health,
            snapshots,
            flusher,
            journal_bytes: 0,
            stuck: BTreeSet::new(),
            _lock: lock,
        };
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || thread.run(&jobs))
            .map_err(|error| StoreError::io("starting the writer", error))?;
        Ok(Writer { queue, thread: Mutex::new(Some(thread)), flusher: answers })
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

/// Where a batch becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the journal, unless it is large or the journal is.
    Either,
    /// In the database itself.
    Database,
}

/// The jobs of a batch that may be tried.
struct Admitted {
    jobs: Vec<Box<dyn Job>>,
    reserve: Reserve,
}

/// Where the space set aside for a full disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reserve {
    /// Set aside.
    Kept,
    /// Given back to the disk, for a batch.
    Given,
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

/// The operations of one batch: `first` and whatever is queued. While there are fewer than `expected`, it lets the
/// callers run that were just answered, so that they share an fsync instead of each paying for one; it never waits for them.
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
    database: Arc<Db>,
    files: Arc<Files>,
    health: Arc<Health>,
    snapshots: Snapshots,
    flusher: Flusher,
    /// Bytes of the journal since the last checkpoint, with those that are on their way.
    journal_bytes: usize,
    /// Files that were to be unlinked and that the disk did not let go of.
    stuck: BTreeSet<[u8; 32]>,
    /// Until everything above is closed: the thread may outlive the store that started it.
    _lock: Arc<Lock>,
}

impl Drop for Loop {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Closing the database would write to it.
            self.database.sever();
        }
    }
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
        let mut back = self.flusher.drained();
        back.refuse_kept();
        if self.flusher.is_ahead() || self.health.check(Urgency::Urgent).is_err() {
            // Closing would write to a disk that failed.
            self.database.sever();
        } else if self.journal_bytes != 0
            && let Err(error) = guarded(|| write(&self.database, self.snapshots.newest.get().changed()))
        {
            self.health.fail(&error);
            self.database.sever();
        }
    }

    fn batch(&mut self, jobs: Vec<Box<dyn Job>>) {
        if self.flusher.is_ahead() {
            self.put_back();
        }
        let Some(Admitted { mut jobs, reserve }) = self.admitted(jobs) else { return };
        let place = match reserve {
            Reserve::Kept => Place::Either,
            // Here and now: what the flusher has still to write would find the room taken again.
            Reserve::Given => Place::Database,
        };
        match guarded(|| self.execute(&mut jobs, place)) {
            Ok(done) if !self.is_unlinking(&done) && !jobs.iter().any(|job| is_settled(&**job)) => {
                self.flusher.send(Flush { record: done.record, seen: done.seen, jobs });
            }
            Ok(done) => self.settle(done, jobs),
            Err(error) => {
                self.failed(&error);
                self.flusher.drained().answer(jobs, false);
            }
        }
        if reserve == Reserve::Given || self.health.is_full() {
            self.health.take_reserve();
        }
    }

    /// The jobs that may be tried; the others are answered. On a disk that was full the first that finds room opens it to
    /// all. What is urgent has the reserve all the same: a user's quota may leave no room where the disk has some.
    fn admitted(&self, batch: Vec<Box<dyn Job>>) -> Option<Admitted> {
        let was_full = self.health.is_full();
        if was_full && self.health.has_room() {
            self.health.recover();
        }
        let (admitted, refused): (Vec<_>, Vec<_>) =
            batch.into_iter().partition(|job| self.health.check(job.urgency()).is_ok());
        refused.into_iter().for_each(|job| job.answer(Err(self.health.refusal())));
        let reserve = if was_full && admitted.iter().any(|job| job.urgency() == Urgency::Urgent) {
            self.health.give_reserve();
            Reserve::Given
        } else {
            Reserve::Kept
        };
        (!admitted.is_empty()).then_some(Admitted { jobs: admitted, reserve })
    }

    /// Ends writing, and puts the database back to what is durable. A refusal is of a failure that was noted where it came.
    fn failed(&mut self, error: &StoreError) {
        if !self.flusher.is_ahead() {
            self.health.fail(error);
        }
        self.put_back();
    }

    /// Goes back to what is durable and nothing else, on the database opened again, so that reading goes on, and writing if it may.
    fn put_back(&mut self) {
        let mut back = self.flusher.drained();
        let again = match self.health.ended() {
            Ended::UntilRoom => Again::ToWrite,
            Ended::ForGood => Again::ToRead,
        };
        let mut opened = self.opened_again(&mut back, again);
        if again == Again::ToWrite && opened.as_ref().is_err_and(StoreError::is_storage_full) {
            // A disk without room even for this: the reserve may be enough. It is taken again after the batch.
            self.health.give_reserve();
            opened = self.opened_again(&mut back, again);
        }
        let opened = opened.or_else(|error| {
            self.health.fail_for_good(&error);
            self.opened_again(&mut back, Again::ToRead)
        });
        match opened {
            Ok(()) => self.journal_bytes = back.journal.used(),
            Err(error) => self.health.fail_for_good(&error),
        }
        back.refuse_kept();
    }

    /// Opens the database again and shows what is durable.
    fn opened_again(&self, back: &mut Back, again: Again) -> Result<(), StoreError> {
        self.database.reopen(again)?;
        let commit = guarded(|| Snapshot::of_commit(self.database.begin_read()?))?;
        let durable = Arc::new(self.snapshots.durable.get().on(commit)?);
        if durable.changed().is_empty() {
            back.journal.restart();
        }
        self.snapshots.newest.set(Arc::clone(&durable));
        back.put_back(durable);
        Ok(())
    }

    /// Executes a batch on top of the one before. Later batches see it; readers do not yet.
    fn execute(&mut self, jobs: &mut [Box<dyn Job>], place: Place) -> Result<Executed, StoreError> {
        let changes = Batch::new(&self.snapshots.newest.get());
        let mut wrote = Wrote::Nothing;
        for job in jobs.iter_mut() {
            if job.execute(&changes)? == Wrote::Something {
                wrote = Wrote::Something;
            }
        }
        let has_to_be_written = self.journal_bytes != 0 && jobs.iter().any(|job| job.wants_checkpoint());
        if wrote == Wrote::Nothing && !has_to_be_written {
            return Ok(Executed::default());
        }
        let newest_event = match wrote {
            Wrote::Something => Some(counter(&changes, meta::NEXT_EVENT)?.saturating_sub(1)),
            Wrote::Nothing => None,
        };
        let condemned = crate::payloads::condemned(&changes)?;
        let place = if has_to_be_written { Place::Database } else { place };
        let record = self.commit(changes.finish()?, place)?;
        let seen = Some(Seen { snapshot: self.snapshots.newest.get(), newest_event });
        Ok(Executed { record, seen, condemned })
    }

    /// Lays a batch over the database and gives the record that makes it durable; or writes it to the database, with everything
    /// that lay over it.
    fn commit(&mut self, batch: Finished, place: Place) -> Result<Option<(u64, Redo)>, StoreError> {
        let Finished { number, redo, changed } = batch;
        let is_small = !journal::wants_checkpoint(self.journal_bytes, redo.len());
        if is_small && place == Place::Either && !self.health.is_tight() {
            self.snapshots.newest.set(Arc::new(self.snapshots.newest.get().with(changed, number)));
            self.journal_bytes += journal::record_length(redo.len());
            return Ok(Some((number, redo)));
        }
        let mut back = self.flusher.drained();
        // What it stands on must have become durable.
        back.check()?;
        write(&self.database, &changed)?;
        self.snapshots.newest.set(Arc::new(Snapshot::of_commit(self.database.begin_read()?)?));
        back.journal.restart();
        self.journal_bytes = 0;
        Ok(None)
    }

    /// Whether files are to be unlinked after a batch. One that is stuck does not make every batch wait for its own fsync.
    fn is_unlinking(&self, done: &Executed) -> bool {
        done.condemned.iter().any(|digest| !self.stuck.contains(digest))
    }

    /// Makes a batch durable here, and does what is left to do with files before it is answered.
    fn settle(&mut self, done: Executed, mut jobs: Vec<Box<dyn Job>>) {
        let records: Vec<_> = done.record.into_iter().collect();
        let durable = self.flusher.drained().persist(&records, done.seen);
        // The batch is committed, and answered so, whatever becomes of this. A file that another operation relies on stays listed
        // and is tried again with the next batch; one that the disk does not let go of, with the next that unlinks another.
        match &durable {
            Ok(()) => {
                let left = guarded(|| {
                    self.unlink(&done.condemned)?;
                    self.drop_unused(&mut jobs)
                });
                match left {
                    // What is gone stays listed, and is synced with the next batch.
                    Err(error) if error.is_out_of_descriptors() => {
                        tracing::warn!("that files are gone is not durable yet: {error}");
                    }
                    Err(error) => self.failed(&error),
                    Ok(()) => {}
                }
            }
            Err(_) => self.put_back(),
        }
        self.flusher.drained().answer(jobs, durable.is_ok());
    }

    /// Unlinks files that operations had prepared and that got no row: the operation was refused, was a replay, or brought
    /// a payload that is redacted.
    fn drop_unused(&self, batch: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        let mut gone = Vec::new();
        for digest in batch.iter_mut().flat_map(|job| job.take_files()) {
            match self.files.unlink_orphan(
                &digest,
                || self.snapshots.newest.get(),
                || self.snapshots.durable.get(),
            )? {
                Unlinked::Gone => gone.push(digest),
                Unlinked::NotThere | Unlinked::Held => {}
                // An orphan, for whoever walks them.
                Unlinked::Failed(error) => tracing::warn!("a file that nothing names stays: {error}"),
            }
        }
        self.files.sync_gone(&gone)
    }

    /// Unlinks files whose rows are gone. Their names stay listed until that is durable, so a crash in between loses none and
    /// brings none back.
    fn unlink(&mut self, condemned: &[[u8; 32]]) -> Result<(), StoreError> {
        if condemned.is_empty() {
            return Ok(());
        }
        let mut gone = Vec::new();
        for digest in condemned {
            match self.files.unlink(digest) {
                // Also one that is not there: a power cut may bring back what went before it.
                Unlinked::Gone | Unlinked::NotThere => {
                    self.stuck.remove(digest);
                    gone.push(digest);
                }
                Unlinked::Held => {}
                Unlinked::Failed(error) => {
                    if self.stuck.insert(*digest) {
                        tracing::warn!("a file whose row is gone stays until it can be removed: {error}");
                    }
                }
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        self.files.sync_gone(gone.iter().copied())?;
        let batch = Batch::new(&self.snapshots.newest.get());
        for digest in gone {
            Changes { txn: &batch }.remove(tables::CONDEMNED, digest)?;
        }
        let record = self.commit(batch.finish()?, Place::Either)?;
        let records: Vec<_> = record.into_iter().collect();
        let seen = Seen { snapshot: self.snapshots.newest.get(), newest_event: None };
        self.flusher.drained().persist(&records, Some(seen))
    }
}

/// A checkpoint: writes to the database everything that changed since the last one.
fn write(database: &Db, changed: &Memtable) -> Result<(), StoreError> {
    let txn = database.begin_write()?;
    changed.apply(&txn)?;
    commit_durably(txn)
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
