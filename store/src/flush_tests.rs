//! The thread behind the writer: what it makes of a failure that comes late, and what becomes of the store when it dies.

use std::path::Path;
use std::sync::mpsc::channel;

use throughline_protocol::block::Block;
use throughline_protocol::code::Code;
use throughline_protocol::id::Codec;

use super::*;
use crate::batch::Batch;
use crate::database::{Db, commit_durably};
use crate::disk::Disk;
use crate::fixture::*;
use crate::queued::Wrote;
use crate::source::counter;
use crate::tables::{self, Spec as _, meta};
use crate::testing::{Dice, Fault, ModelDisk};
use crate::{INLINE_BYTES_MAX, OpenOptions, PutBlock, PutNote, Store, journal, migrate};

/// A flusher without a writer.
struct Alone {
    disk: ModelDisk,
    database: Db,
    health: Arc<Health>,
    published: Arc<Published>,
    flusher: Flusher,
}

impl Alone {
    fn new() -> Self {
        let (dir, model) = (Path::new("/data"), ModelDisk::new());
        let disk: Arc<dyn Disk> = Arc::new(model.clone());
        disk.make_dirs(dir).unwrap();
        let database = Db::open(Arc::clone(&disk), &dir.join("store.redb"), 1 << 20).unwrap();
        migrate::run(&database, migrate::MIGRATIONS).unwrap();
        let mut journal = Journal::open(disk.database(&dir.join(journal::FILE)).unwrap()).unwrap();
        journal.begin(1).unwrap();
        let health = Arc::new(Health::new(disk, dir, 0));
        let newest = Snapshot::of_commit(database.begin_read().unwrap()).unwrap();
        let published = Snapshots::new(newest).durable;
        let wake = Box::new(|| ());
        let flusher =
            Flusher::start(journal, Arc::clone(&health), Arc::clone(&published), None, wake).unwrap();
        Alone { disk: model, database, health, published, flusher }
    }

    /// Commits to the database itself; gives what readers are to see.
    fn checkpoint(&self) -> Seen {
        let txn = self.database.begin_write().unwrap();
        txn.open_table(tables::META::DEFINITION).unwrap().insert(meta::OPENS, 7).unwrap();
        commit_durably(txn).unwrap();
        let snapshot = Snapshot::of_commit(self.database.begin_read().unwrap()).unwrap();
        Seen { snapshot: Arc::new(snapshot), newest_event: None }
    }
}

/// A job that tells how it was answered.
struct Told(&'static str, std::sync::mpsc::Sender<(&'static str, bool)>);

impl Job for Told {
    fn execute(&mut self, _: &Batch) -> Result<Wrote, StoreError> {
        Ok(Wrote::Nothing)
    }

    fn urgency(&self) -> Urgency {
        Urgency::Ordinary
    }

    fn has_files(&self) -> bool {
        false
    }

    fn take_files(&mut self) -> Vec<[u8; 32]> {
        Vec::new()
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        self.1.send((self.0, committed.is_ok())).unwrap();
    }
}

#[test]
fn a_batch_in_the_database_is_not_refused_with_the_one_that_waited_behind_it() {
    let alone = Alone::new();
    let (told, answers) = channel();
    let job = |name| -> Vec<Box<dyn Job>> { vec![Box::new(Told(name, told.clone()))] };
    let written = Flush { record: None, seen: Some(alone.checkpoint()), jobs: job("written") };
    let next = Flush { record: Some((1, Redo::default())), seen: None, jobs: job("next") };
    alone.disk.fail_write_after(0, Fault::Failed);
    let mut back = alone.flusher.drained();
    back.flush(vec![written, next]);
    back.refuse_kept();
    assert!(alone.disk.heal(), "the journal failed");
    assert_eq!(counter(&alone.published.get(), meta::OPENS).unwrap(), 7, "it is durable");
    assert_eq!(answers.try_iter().collect::<Vec<_>>(), [("written", true), ("next", false)]);
}

#[test]
fn what_is_in_the_database_is_not_refused_for_a_failure_that_came_later() {
    let alone = Alone::new();
    let seen = alone.checkpoint();
    let Alone { health, published, flusher, .. } = &alone;
    // A payload file of another caller could not be synced.
    health.fail_for_good(&StoreError::Closed);
    flusher.drained().persist(&[], Some(seen)).unwrap();
    assert_eq!(counter(&published.get(), meta::OPENS).unwrap(), 7);

    // What still needs the journal is refused, and so is what stands on that.
    flusher.drained().persist(&[(1, Redo::default())], None).unwrap_err();
    flusher.drained().persist(&[], None).unwrap_err();
}

#[test]
fn a_batch_after_one_that_was_lost_with_the_thread_is_refused() {
    let home = Home::new();
    let disk = ModelDisk::new();
    let is_armed = Arc::<AtomicBool>::default();
    let ((entered, is_in), (die, may_die)) = (channel(), channel::<()>());
    let armed = Arc::clone(&is_armed);
    let hook: CommitHook = Box::new(move |_| {
        if armed.load(Ordering::SeqCst) {
            entered.send(()).unwrap();
            let _ = may_die.recv();
            panic!("on purpose");
        }
    });
    let store = Store::open_on(
        Arc::new(disk.clone()),
        &home.path(),
        OpenOptions { on_commit: Some(hook), ..options() },
    )
    .unwrap();
    store.run(PutNote { at: now(), topic: "before".to_owned(), data: Vec::new() }).unwrap();

    is_armed.store(true, Ordering::SeqCst);
    store.submit(PutNote { at: now(), topic: "durable".to_owned(), data: Vec::new() }, |_| {}).unwrap();
    is_in.recv().unwrap();
    // Handed over and not begun, when the thread dies.
    let lost = queue_hold(&store);
    lost.entered.recv().unwrap();
    // With a file, so that the writer itself makes it durable.
    let with_it = queue_hold(&store);
    let block = Block::of(Codec::Raw, vec![7; INLINE_BYTES_MAX + 1]);
    let (told, answer) = channel();
    store.submit(PutBlock::bytes(block.clone(), now(), now()), move |put| told.send(put).unwrap()).unwrap();
    drop(lost.release);
    with_it.entered.recv().unwrap();
    drop(die);
    lost.answered.recv().unwrap_err();
    drop(with_it.release);
    assert_eq!(answer.recv().unwrap().unwrap_err().code(), Code::StoreReadOnly);
    assert!(store.read_only_reason().is_some());

    let cut = disk.after_crash(&mut Dice::new(1));
    drop(store);
    for disk in [disk, cut] {
        let store = Store::open_on(Arc::new(disk), &home.path(), options()).unwrap();
        assert!(store.fsck().unwrap().is_clean());
        assert_eq!(store.reader().unwrap().block(&block.cid()).unwrap(), None);
    }
}
