//! The thread behind the writer: what it makes of a failure that comes late, and what becomes of the store when it dies.

use std::path::Path;
use std::sync::mpsc::channel;

use throughline_protocol::block::Block;
use throughline_protocol::code::Code;
use throughline_protocol::id::Codec;

use super::*;
use crate::database::{Db, commit_durably};
use crate::disk::Disk;
use crate::fixture::*;
use crate::source::counter;
use crate::tables::{self, Spec as _, meta};
use crate::testing::{Dice, ModelDisk};
use crate::{INLINE_BYTES_MAX, OpenOptions, PutBlock, PutNote, Store, journal, migrate};

#[test]
fn what_is_in_the_database_is_not_refused_for_a_failure_that_came_later() {
    let dir = Path::new("/data");
    let disk: Arc<dyn Disk> = Arc::new(ModelDisk::new());
    disk.make_dirs(dir).unwrap();
    let database = Db::open(Arc::clone(&disk), &dir.join("store.redb"), 1 << 20).unwrap();
    migrate::run(&database, migrate::MIGRATIONS).unwrap();
    let mut journal = Journal::open(disk.database(&dir.join(journal::FILE)).unwrap()).unwrap();
    journal.begin(1).unwrap();
    let health = Arc::new(Health::new(disk, dir, 0));
    let newest = || Snapshot::of_commit(database.begin_read().unwrap()).unwrap();
    let published = Snapshots::new(newest()).durable;
    let flusher =
        Flusher::start(journal, Arc::clone(&health), Arc::clone(&published), None, Box::new(|| ())).unwrap();

    let txn = database.begin_write().unwrap();
    txn.open_table(tables::META::DEFINITION).unwrap().insert(meta::OPENS, 7).unwrap();
    commit_durably(txn).unwrap();
    // A payload file of another caller could not be synced.
    health.fail_for_good(&StoreError::Closed);
    let seen = Seen { snapshot: Arc::new(newest()), newest_event: None };
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
