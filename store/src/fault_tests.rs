//! A disk that fails: at every call in turn, once, and from then on. Nothing acknowledged may be lost, nothing may be half
//! there, and the store takes no writes any more.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use redb::StorageBackend;
use redb::backends::FileBackend;
use throughline_protocol::block::Block;
use throughline_protocol::code::Code;
use throughline_protocol::id::Codec;

use crate::fixture::*;
use crate::*;

/// Calls that still succeed; below zero each one fails.
type Left = Arc<AtomicI64>;

#[derive(Debug)]
struct Faulty {
    file: FileBackend,
    left: Left,
}

impl Faulty {
    fn step(&self) -> io::Result<()> {
        if self.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            Ok(())
        } else {
            Err(io::Error::other("the disk failed"))
        }
    }
}

impl StorageBackend for Faulty {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.step()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.step()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Err(error) = self.step() {
            // Torn: the first half reaches the disk.
            self.file.write(offset, &data[..data.len() / 2])?;
            return Err(error);
        }
        self.file.write(offset, data)
    }
}

fn open(dir: &Path, left: &Left) -> Store {
    let opened = crate::open::open_with(dir, &options(), |path| {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        let file = FileBackend::new(file).unwrap();
        Ok(Faulty { file, left: Arc::clone(left) })
    })
    .unwrap();
    Store::start(opened, None).unwrap()
}

#[test]
fn a_disk_that_fails_at_any_call_loses_nothing_acknowledged() {
    // Enough for the journal to begin anew: the database fails as well as the journal.
    const APPENDS: usize = 16;
    let builder = session("faults", APPENDS);
    let mut failures = 0;
    for calls in 0.. {
        let home = Home::new();
        let left = Left::new(AtomicI64::new(i64::MAX));
        let store = open(&home.path(), &left);
        store.adopt(segment(&builder, 0, 1), activated()).unwrap();
        left.store(calls, Ordering::SeqCst);
        let mut acknowledged = 0;
        let mut refused = None;
        for number in 1..=APPENDS {
            match store.adopt(segment(&builder, number, number + 1), signed(&builder)) {
                Ok(_) => acknowledged = number,
                Err(error) => {
                    refused = Some(error.code());
                    break;
                }
            }
        }
        if refused.is_none() {
            break;
        }
        failures += 1;
        assert_eq!(refused, Some(Code::StoreReadOnly), "after {calls} calls");
        assert!(store.read_only_reason().is_some());
        // Reads go on; writes do not, even if the disk is well again.
        left.store(i64::MAX, Ordering::SeqCst);
        let pin = SetPin { session: builder.session(), pin: None, at: now() };
        assert_eq!(store.run(pin).unwrap_err().code(), Code::StoreReadOnly);
        assert_eq!(store.file_writer().unwrap_err().code(), Code::StoreReadOnly);
        drop(store);

        let store = home.open();
        let row = store.reader().unwrap().session(builder.session()).unwrap().unwrap();
        let held = usize::try_from(row.tip.seq.get()).unwrap();
        // The one that failed may have reached the disk all the same; it was never acknowledged.
        assert!(held == acknowledged || held == acknowledged + 1, "{calls}: {held} against {acknowledged}");
        assert_holds(&store, &builder.at(held));
        let guard = store.reader().unwrap().guard(builder.session()).unwrap().unwrap();
        assert_eq!(guard.cid, builder.entries()[held].entry.cid(), "{calls}");
    }
    assert!(failures > 2 * APPENDS, "only {failures} calls could fail");
}

#[test]
fn a_payload_file_that_cannot_be_written_refuses_the_entry_alone() {
    let home = Home::new();
    let mut builder = session("nofile", 0);
    push(&mut builder, &"large ".repeat(5_000));
    let store = home.open();
    store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    let staging = home.path().join("staging");
    std::fs::remove_dir(&staging).unwrap();
    assert_eq!(store.adopt(last(&builder), signed(&builder)).unwrap_err().code(), Code::StoreIo);
    std::fs::create_dir(&staging).unwrap();
    store.adopt(last(&builder), signed(&builder)).unwrap();
    assert_holds(&store, &builder);
}

#[test]
fn a_failed_fsync_of_a_payload_file_ends_writing() {
    let home = Home::new();
    let mut builder = session("fsync", 0);
    push(&mut builder, &"large ".repeat(5_000));
    let store = home.open();
    store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    crate::files::faults::fail_next_fsync();
    assert_eq!(store.adopt(last(&builder), signed(&builder)).unwrap_err().code(), Code::StoreIo);
    assert_eq!(store.adopt(last(&builder), signed(&builder)).unwrap_err().code(), Code::StoreReadOnly);
    assert!(store.read_only_reason().unwrap().contains("the disk failed"));
    assert_holds_unwritten(&store, &builder.at(0));
    drop(store);
    let store = home.open();
    store.adopt(last(&builder), signed(&builder)).unwrap();
    assert_holds(&store, &builder);
}

#[test]
fn a_directory_that_a_killed_process_left_is_made_durable_again() {
    let home = Home::new();
    let store = home.open();
    let put = |bytes: &[u8]| {
        let block = Block::of(Codec::Raw, bytes);
        let path = store.inner.files.path(block.cid().digest());
        let (leaf, middle) = (path.parent().unwrap().to_owned(), path.ancestors().nth(2).unwrap().to_owned());
        // Made, and its name not yet durable in the directory above.
        std::fs::create_dir_all(&leaf).unwrap();
        crate::files::faults::take_synced_dirs();
        store.run(PutBlock::bytes(block, now(), now())).unwrap();
        (crate::files::faults::take_synced_dirs(), vec![leaf, middle, home.path().join("payloads")])
    };
    let bytes = vec![7; INLINE_BYTES_MAX + 1];
    let (synced, path) = put(&bytes);
    assert_eq!(synced, path);
    // Once is enough for one process.
    let (synced, path) = put(&bytes);
    assert_eq!(synced, path[..1]);
}

fn assert_holds_unwritten(store: &Store, builder: &throughline_protocol::testing::SessionBuilder) {
    let row = store.reader().unwrap().session(builder.session()).unwrap().unwrap();
    assert_eq!(row.tip, mark(builder.head()));
}
