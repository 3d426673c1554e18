//! Behind the writer: makes its batches durable, shows them to readers, answers.
//!
//! While a batch waits for its fsync the writer executes the next one on top of it. Nothing of a batch leaves before that fsync:
//! readers keep the snapshot of the last durable batch, and what an operation was told, a refusal too, may rest on the
//! batch before it, so answers go out in order. If a batch cannot be made durable, none after it is, until the writer has gone
//! back to what is durable.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{JoinHandle, ThreadId};

use crate::error::StoreError;
use crate::health::{Health, Urgency};
use crate::journal::Journal;
use crate::queued::Job;
use crate::redo::Redo;
use crate::source::Snapshot;
use crate::writer::CommitHook;

/// Batches that wait while one is made durable; the writer waits then too, and its next batch grows.
const WAITING_MAX: usize = 2;

/// A snapshot that is replaced as a whole.
pub(crate) struct Published(RwLock<Arc<Snapshot>>);

impl Published {
    pub(crate) fn get(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, snapshot: Arc<Snapshot>) {
        let before =
            std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), snapshot);
        // The last one to hold it closes it, outside of the lock.
        drop(before);
    }
}

/// The snapshots of the moment.
#[derive(Clone)]
pub(crate) struct Snapshots {
    /// What the last durable batch left: readers get it.
    pub(crate) durable: Arc<Published>,
    /// What the last batch left, durable or not: the next one is executed on it.
    pub(crate) newest: Arc<Published>,
}

impl Snapshots {
    /// Both begin with the same.
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        let snapshot = Arc::new(snapshot);
        let published = || Arc::new(Published(RwLock::new(Arc::clone(&snapshot))));
        Snapshots { durable: published(), newest: published() }
    }
}

/// What readers see of a batch.
pub(crate) struct Seen {
    pub(crate) snapshot: Arc<Snapshot>,
    /// Id of the newest event; none when nothing but the place of the bytes changed.
    pub(crate) newest_event: Option<u64>,
}

/// A batch on its way.
pub(crate) struct Flush {
    /// What the journal needs; none when nothing was changed, or it is in the database already.
    pub(crate) record: Option<(u64, Redo)>,
    /// None when nothing was changed.
    pub(crate) seen: Option<Seen>,
    pub(crate) jobs: Vec<Box<dyn Job>>,
}

/// What makes batches durable.
pub(crate) struct Back {
    pub(crate) journal: Journal,
    pub(crate) hook: Option<CommitHook>,
    health: Arc<Health>,
    published: Arc<Published>,
    /// Whether the writer has batches that are not durable and will not be.
    is_ahead: Arc<AtomicBool>,
    /// Jobs that are to be refused when the writer is put back, so that whoever is told reads what it then has.
    refused: Vec<Box<dyn Job>>,
    /// Calls the writer, which puts it back.
    wake: Box<dyn Fn() + Send>,
}

impl Back {
    /// Makes batches durable and shows the last one. A failure ends writing; the writer then puts the database back.
    pub(crate) fn persist(&mut self, records: &[(u64, Redo)], seen: Option<Seen>) -> Result<(), StoreError> {
        let appended = if records.is_empty() {
            // It is in the database already, or changed nothing: what failed since does not undo that.
            self.check_base()
        } else {
            self.check().and_then(|()| {
                self.journal.append(records).inspect_err(|error| {
                    self.health.fail(error);
                })
            })
        };
        if let Err(error) = appended {
            self.is_ahead.store(true, Ordering::SeqCst);
            return Err(error);
        }
        if let Some(seen) = seen {
            self.published.set(seen.snapshot);
            if let (Some(hook), Some(newest)) = (&self.hook, seen.newest_event) {
                hook(newest);
            }
        }
        Ok(())
    }

    /// Refuses what stands on a batch that failed, or comes after a failure that is for good.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        self.check_base()?;
        self.health.check(Urgency::Urgent)
    }

    /// Refuses what stands on a batch that failed.
    fn check_base(&self) -> Result<(), StoreError> {
        if self.is_ahead.load(Ordering::SeqCst) { Err(self.health.refusal()) } else { Ok(()) }
    }

    /// What readers see from now on: all that is durable and no more, on the database that was opened again.
    pub(crate) fn put_back(&mut self, snapshot: Arc<Snapshot>) {
        self.published.set(snapshot);
        self.is_ahead.store(false, Ordering::SeqCst);
    }

    /// Refuses what was kept for it.
    pub(crate) fn refuse_kept(&mut self) {
        let refused = std::mem::take(&mut self.refused);
        self.answer(refused, false);
    }

    /// The thread is gone: it panicked, and nothing is made durable any more.
    fn thread_is_gone(&self) {
        self.health.fail_for_good(&StoreError::Closed);
        self.is_ahead.store(true, Ordering::SeqCst);
    }

    fn flush(&mut self, mut batches: Vec<Flush>) {
        // Those that need no record stand on what was durable before: they do not fall with one that waited behind them.
        let first = batches.iter().position(|batch| batch.record.is_some()).unwrap_or(batches.len());
        let waited = batches.split_off(first);
        self.flush_as_one(batches);
        self.flush_as_one(waited);
    }

    fn flush_as_one(&mut self, batches: Vec<Flush>) {
        if batches.is_empty() {
            return;
        }
        let (mut records, mut seen, mut jobs) = (Vec::new(), None, Vec::new());
        for batch in batches {
            records.extend(batch.record);
            seen = newer(batch.seen, seen);
            jobs.extend(batch.jobs);
        }
        if self.persist(&records, seen).is_ok() {
            self.answer(jobs, true);
        } else {
            self.refused.extend(jobs);
            (self.wake)();
        }
    }

    /// Answers what is durable, or refuses what is not.
    pub(crate) fn answer(&self, jobs: Vec<Box<dyn Job>>, is_durable: bool) {
        for job in jobs {
            job.answer(if is_durable { Ok(()) } else { Err(self.health.refusal()) });
        }
    }
}

/// What readers see after two batches.
fn newer(later: Option<Seen>, earlier: Option<Seen>) -> Option<Seen> {
    let before = earlier.as_ref().and_then(|earlier| earlier.newest_event);
    let later = later.map(|later| Seen { newest_event: later.newest_event.or(before), ..later });
    later.or(earlier)
}

enum Message {
    Flush(Box<Flush>),
    /// Answered when everything before it is done.
    Drain(SyncSender<()>),
}

/// The writer's end of the thread that does it.
pub(crate) struct Flusher {
    queue: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    back: Arc<Mutex<Back>>,
    is_ahead: Arc<AtomicBool>,
}

impl Flusher {
    pub(crate) fn start(
        journal: Journal,
        health: Arc<Health>,
        published: Arc<Published>,
        hook: Option<CommitHook>,
        wake: Box<dyn Fn() + Send>,
    ) -> Result<Self, StoreError> {
        let is_ahead = Arc::<AtomicBool>::default();
        let ahead = Arc::clone(&is_ahead);
        let back = Back { journal, hook, health, published, is_ahead: ahead, refused: Vec::new(), wake };
        let back = Arc::new(Mutex::new(back));
        let (sender, queue) = sync_channel(WAITING_MAX);
        let behind = Arc::clone(&back);
        let thread = std::thread::Builder::new()
            .name("store-flusher".to_owned())
            .spawn(move || run(&behind, &queue))
            .map_err(|error| StoreError::io("starting the flusher", error))?;
        Ok(Flusher { queue: Some(sender), thread: Some(thread), back, is_ahead })
    }

    /// Whether a batch that was handed over could not be made durable, and the writer still has it.
    pub(crate) fn is_ahead(&self) -> bool {
        self.is_ahead.load(Ordering::SeqCst)
    }

    pub(crate) fn thread_id(&self) -> Option<ThreadId> {
        self.thread.as_ref().map(|thread| thread.thread().id())
    }

    /// Hands a batch over; waits while others do.
    pub(crate) fn send(&self, flush: Flush) {
        let sent = self.queue.as_ref().map(|queue| queue.send(Message::Flush(Box::new(flush))));
        if let Some(Err(unsent)) = sent
            && let Message::Flush(flush) = unsent.0
        {
            let back = locked(&self.back);
            back.thread_is_gone();
            back.answer(flush.jobs, false);
        }
    }

    /// Waits until everything that was handed over is done; then nothing else makes anything durable. If the thread is gone, what
    /// was handed over may not be done, and nothing that stands on it is any more.
    pub(crate) fn drained(&self) -> MutexGuard<'_, Back> {
        let (done, wait) = sync_channel(1);
        let sent = self.queue.as_ref().map(|queue| queue.send(Message::Drain(done)));
        let is_done = matches!(sent, Some(Ok(()))) && wait.recv().is_ok();
        let back = locked(&self.back);
        if !is_done {
            back.thread_is_gone();
        }
        back
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of it was told to its callers as a closed store.
            let _ = thread.join();
        }
    }
}

fn locked(back: &Mutex<Back>) -> MutexGuard<'_, Back> {
    back.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(back: &Mutex<Back>, queue: &Receiver<Message>) {
    while let Ok(first) = queue.recv() {
        let (mut batches, mut waiting) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Message::Flush(batch) => batches.push(*batch),
                Message::Drain(done) => waiting.push(done),
            }
            next = queue.try_recv().ok();
        }
        locked(back).flush(batches);
        for done in waiting {
            // The writer waits for it, unless it is gone itself.
            let _ = done.send(());
        }
    }
}

#[cfg(test)]
#[path = "flush_tests.rs"]
mod tests;
