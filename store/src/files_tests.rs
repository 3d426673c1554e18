//! Files that several callers put at once.

use std::ffi::OsString;
use std::sync::Barrier;

use redb::StorageBackend;

use throughline_protocol::block::Block;

use super::*;
use crate::fixture::*;
use crate::testing::{Dice, ModelDisk};
use crate::{PutBlock, Store, Sweep};

/// A disk that counts the files that are being written.
#[derive(Clone, Debug, Default)]
struct Counting {
    disk: ModelDisk,
    /// Now, and at most so far.
    open: Arc<Mutex<(usize, usize)>>,
    /// How many directories cannot be opened, for want of descriptors.
    unopened: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Counted {
    file: Box<dyn NewFile>,
    open: Arc<Mutex<(usize, usize)>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.open.lock().unwrap().0 -= 1;
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl NewFile for Counted {
    fn sync(&self) -> io::Result<()> {
        // The others run meanwhile, as they do when a disk takes its time.
        std::thread::yield_now();
        self.file.sync()
    }
}

impl Disk for Counting {
    fn make_dirs(&self, path: &Path) -> io::Result<()> {
        self.disk.make_dirs(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let file = self.disk.create(path)?;
        let mut open = self.open.lock().unwrap();
        open.0 += 1;
        open.1 = open.1.max(open.0);
        Ok(Box::new(Counted { file, open: Arc::clone(&self.open) }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        self.disk.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.disk.unlink(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.disk.names(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let take = |left: u64| left.checked_sub(1);
        if self.unopened.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            return Err(rustix::io::Errno::MFILE.into());
        }
        self.disk.sync_dir(path)
    }

    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        self.disk.database(path)
    }

    fn identity(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.identity(path)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.disk.reserve(path, bytes)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_bytes(path)
    }
}

#[test]
fn callers_that_put_many_files_at_once_share_the_descriptors() {
    const CALLERS: usize = 6;
    let (dir, disk) = (Path::new("/data"), Counting::default());
    disk.make_dirs(dir).unwrap();
    let health = Arc::new(Health::new(Arc::new(disk.clone()), dir, 0));
    let files = Files::open(Arc::new(disk.clone()), dir, health).unwrap();
    let payloads = |caller: usize| (0..2 * FILES_AT_ONCE + 1).map(move |number| format!("{caller} {number}"));
    let start = Barrier::new(CALLERS);
    let put: Vec<usize> = std::thread::scope(|scope| {
        let (files, start) = (&files, &start);
        let callers = (0..CALLERS).map(|caller| {
            scope.spawn(move || {
                let payloads: Vec<String> = payloads(caller).collect();
                start.wait();
                let digest = |payload: &String| <[u8; 32]>::from(Sha256::digest(payload));
                let digests: Vec<[u8; 32]> = payloads.iter().map(digest).collect();
                let named = digests.iter().zip(payloads.iter().map(String::as_bytes));
                let held = files.put_all(named).unwrap();
                assert!(held.iter().map(InFlight::digest).eq(digests));
                held.len()
            })
        });
        callers.collect::<Vec<_>>().into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    assert_eq!(put, [2 * FILES_AT_ONCE + 1; CALLERS]);
    let (left, most) = *disk.open.lock().unwrap();
    assert_eq!(left, 0);
    assert!(most <= FILES_AT_ONCE, "{most} were open");
    assert_eq!((*files.taken(), files.list().unwrap().len()), (0, CALLERS * (2 * FILES_AT_ONCE + 1)));
}

#[test]
fn a_directory_that_no_descriptor_is_left_for_ends_nothing() {
    let (home, disk) = (Home::new(), Counting::default());
    let store = Store::open_on(Arc::new(disk.clone()), &home.path(), options()).unwrap();
    let block = |byte: u8| Block::of(Codec::Raw, vec![byte; INLINE_BYTES_MAX + 1]);
    let put = |store: &Store, byte| store.run(PutBlock::bytes(block(byte), now(), now()));
    disk.unopened.store(1, Ordering::SeqCst);
    assert_eq!(put(&store, 1).unwrap_err().code(), throughline_protocol::code::Code::StoreIo);
    assert_eq!(store.read_only_reason(), None);
    put(&store, 1).unwrap();
    let cut = disk.disk.after_crash(&mut Dice::new(0));

    // Nor does one in the writer: the file stays listed until it is durably gone.
    let listed = |store: &Store| crate::payloads::condemned(&store.reader().unwrap().txn).unwrap();
    disk.unopened.store(1, Ordering::SeqCst);
    store.run(Sweep { now: now(), events_kept: 9 }).unwrap();
    assert_eq!((store.read_only_reason(), listed(&store)), (None, vec![*block(1).cid().digest()]));
    put(&store, 2).unwrap();
    assert_eq!((store.read_only_reason(), listed(&store)), (None, Vec::new()));
    assert!(store.fsck().unwrap().is_clean());
    drop(store);
    let store = Store::open_on(Arc::new(cut), &home.path(), options()).unwrap();
    assert_eq!(store.reader().unwrap().block(&block(1).cid()).unwrap(), Some(block(1).bytes().to_vec()));
}
