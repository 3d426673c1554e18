//! Behind the writer: makes its batches durable, shows them to readers, answers.
//!
//! While a batch waits for its fsync the writer executes the next one on top of it. Nothing of a batch leaves before that fsync:
//! readers keep the snapshot of the last durable batch, and what an operation was told, a refusal too, may rest on the
//! batch before it, so answers go out in order. If a batch cannot be made durable, none after it is.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{JoinHandle, ThreadId};

use redb::ReadTransaction;

use crate::error::StoreError;
use crate::health::Health;
use crate::journal::Journal;
use crate::redo::Redo;
use crate::source::Snapshot;
use crate::writer::{CommitHook, Job};

/// Batches that wait while one is made durable; the writer waits then too, and its next batch grows.
const WAITING_MAX: usize = 2;

/// The snapshot that readers get: of the last durable batch.
pub(crate) struct Published(RwLock<Arc<Snapshot>>);

impl Published {
    pub(crate) fn new(txn: ReadTransaction) -> Self {
        Published(RwLock::new(Arc::new(Snapshot::new(txn))))
    }

    pub(crate) fn get(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, txn: ReadTransaction) {
        let snapshot = Arc::new(Snapshot::new(txn));
        let before =
            std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), snapshot);
        // The last one to hold it closes it, outside of the lock.
        drop(before);
    }
}

/// What readers see of a batch.
pub(crate) struct Seen {
    pub(crate) snapshot: ReadTransaction,
    pub(crate) newest_event: u64,
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
}

impl Back {
    /// Makes batches durable and shows the last one. A failure ends writing.
    pub(crate) fn persist(&mut self, records: &[(u64, Redo)], seen: Option<Seen>) -> Result<(), StoreError> {
        self.health.check()?;
        if !records.is_empty() {
            self.journal.append(records).inspect_err(|error| self.health.fail(error))?;
        }
        if let Some(seen) = seen {
            self.published.set(seen.snapshot);
            if let Some(hook) = &self.hook {
                hook(seen.newest_event);
            }
        }
        Ok(())
    }

    fn flush(&mut self, batches: Vec<Flush>) {
        let (mut records, mut seen, mut jobs) = (Vec::new(), None, Vec::new());
        for batch in batches {
            records.extend(batch.record);
            seen = batch.seen.or(seen);
            jobs.extend(batch.jobs);
        }
        let done = self.persist(&records, seen);
        self.answer(jobs, done.is_ok());
    }

    /// Answers what is durable, or refuses what is not.
    pub(crate) fn answer(&self, jobs: Vec<Box<dyn Job>>, is_durable: bool) {
        for job in jobs {
            job.answer(if is_durable { Ok(()) } else { Err(self.health.refusal()) });
        }
    }
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
}

impl Flusher {
    pub(crate) fn start(
        journal: Journal,
        health: Arc<Health>,
        published: Arc<Published>,
        hook: Option<CommitHook>,
    ) -> Result<Self, StoreError> {
        let back = Arc::new(Mutex::new(Back { journal, hook, health, published }));
        let (sender, queue) = sync_channel(WAITING_MAX);
        let behind = Arc::clone(&back);
        let thread = std::thread::Builder::new()
            .name("store-flusher".to_owned())
            .spawn(move || run(&behind, &queue))
            .map_err(|error| StoreError::io("starting the flusher", error))?;
        Ok(Flusher { queue: Some(sender), thread: Some(thread), back })
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
            // The thread is gone: it panicked, and nothing is durable any more.
            let back = locked(&self.back);
            back.health.fail(&StoreError::Closed);
            back.answer(flush.jobs, false);
        }
    }

    /// Waits until everything that was handed over is done; then nothing else makes anything durable.
    pub(crate) fn drained(&self) -> MutexGuard<'_, Back> {
        let (done, wait) = sync_channel(1);
        if let Some(queue) = &self.queue
            && queue.send(Message::Drain(done)).is_ok()
        {
            // An end without an answer is a thread that is gone; the next batch is refused for it.
            let _ = wait.recv();
        }
        locked(&self.back)
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
