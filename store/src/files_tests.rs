//! Files that several callers put at once.

use std::ffi::OsString;
use std::sync::Barrier;

use redb::StorageBackend;

use super::*;
use crate::testing::ModelDisk;

/// A disk that counts the files that are being written.
#[derive(Clone, Debug, Default)]
struct Counting {
    disk: ModelDisk,
    /// Now, and at most so far.
    open: Arc<Mutex<(usize, usize)>>,
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
                let held = files.put_all(payloads.iter().map(String::as_bytes)).unwrap();
                let digests = held.iter().map(InFlight::digest);
                assert!(digests.eq(payloads.iter().map(|payload| <[u8; 32]>::from(Sha256::digest(payload)))));
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
