//! The database as the store holds it: opened anew, in the same process, when the disk failed under it.
//!
//! redb refuses every further read and write of a handle whose backend failed once. Reading has to go on, so the handle is
//! replaced. How depends on what failed:
//!
//! - The disk was full: nothing that was written is in doubt. The file is opened as a restart would open it, and is written
//!   again once there is room.
//! - Anything else: what the disk holds of the last commit is in doubt (a second fsync may say yes to pages that the first one
//!   lost), so nothing is written any more, and nothing is read that was not acknowledged: it could be served, be gone after
//!   a power cut, and its place be signed again. The file is opened beneath a layer that keeps writes in memory, with the
//!   header as the last fsync that succeeded left it, which names the last acknowledged commit or the one before the
//!   failed step.
//!
//! A handle that is replaced writes nothing any more, not even as it closes. What was acknowledged since its last commit is in the
//! journal and in memory ([`crate::memtable`]), and lies over the new handle as it lay over the old one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use redb::{Database, ReadTransaction, ReadableDatabase, StorageBackend, WriteTransaction};

use crate::disk::Disk;
use crate::error::StoreError;
use crate::source::Snapshot;

/// Bytes of the file that redb writes in place: its header. Everything else is written where nothing is named yet.
const HEADER_BYTES: usize = 4_096;
/// Unit in which the layer over a failed file keeps writes.
const BLOCK_BYTES: u64 = 4_096;

/// The handle of the moment.
#[derive(Debug)]
pub(crate) struct Db {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    cache_bytes: usize,
    header: Arc<Mutex<Header>>,
    now: RwLock<Option<Handle>>,
}

/// A handle, and whether its file is cut off from it.
#[derive(Clone, Debug)]
struct Handle {
    database: Arc<Database>,
    is_severed: Arc<AtomicBool>,
}

/// The header of the file: as it was written last, and as the last fsync left it. Empty until it is known.
#[derive(Debug, Default)]
struct Header {
    written: Vec<u8>,
    synced: Vec<u8>,
}

/// How a handle is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// To be written once there is room.
    ToWrite,
    /// Never to be written.
    ToRead,
}

impl Db {
    /// Opens the database; makes it when there is none.
    pub(crate) fn open(disk: Arc<dyn Disk>, path: &Path, cache_bytes: usize) -> Result<Self, StoreError> {
        let db =
            Db { disk, path: path.to_owned(), cache_bytes, header: Arc::default(), now: RwLock::new(None) };
        let handle = db.handle(Again::ToWrite)?;
        *db.slot() = Some(handle);
        Ok(db)
    }

    fn slot(&self) -> std::sync::RwLockWriteGuard<'_, Option<Handle>> {
        // Only ever replaced as a whole.
        self.now.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Result<Arc<Database>, StoreError> {
        let now = self.now.read().unwrap_or_else(PoisonError::into_inner);
        now.as_ref().map(|handle| Arc::clone(&handle.database)).ok_or(StoreError::Closed)
    }

    /// A snapshot of the newest commit.
    pub(crate) fn begin_read(&self) -> Result<ReadTransaction, StoreError> {
        let database = self.current()?;
        guarded(|| Ok(database.begin_read()?))
    }

    /// The next transaction that writes; [`commit_durably`] ends it.
    pub(crate) fn begin_write(&self) -> Result<WriteTransaction, StoreError> {
        let database = self.current()?;
        guarded(|| Ok(database.begin_write()?))
    }

    /// Cuts the file off from the handle: it writes nothing any more, not even as it closes.
    pub(crate) fn sever(&self) {
        if let Some(handle) = &*self.slot() {
            handle.is_severed.store(true, Ordering::SeqCst);
        }
    }

    /// Replaces the handle. Snapshots of the old one fail from then on.
    pub(crate) fn reopen(&self, again: Again) -> Result<(), StoreError> {
        self.sever();
        let mut slot = self.slot();
        let mut old = slot.take().map(|handle| handle.database);
        // The old one has to let go of the file first: closing may write. Who begins a snapshot on it is done at once.
        while let Some(database) = old {
            // One that panics as it closes is closed all the same.
            old = guarded(|| Ok(Arc::try_unwrap(database).err())).unwrap_or(None);
            std::thread::yield_now();
        }
        *slot = Some(self.handle(again)?);
        Ok(())
    }

    fn handle(&self, again: Again) -> Result<Handle, StoreError> {
        let file =
            self.disk.database(&self.path).map_err(|error| StoreError::io("opening store.redb", error))?;
        let mut builder = Database::builder();
        builder.set_cache_size(self.cache_bytes);
        let is_severed = Arc::<AtomicBool>::default();
        guarded(|| {
            let opened = match again {
                Again::ToWrite => {
                    let (header, is_severed) = (Arc::clone(&self.header), Arc::clone(&is_severed));
                    builder.create_with_backend(Watched { file, header, is_severed })
                }
                Again::ToRead => {
                    let synced = lock(&self.header).synced.clone();
                    let layer = Layer::over(file, &synced)
                        .map_err(|error| StoreError::io("reading store.redb", error))?;
                    builder.create_with_backend(layer)
                }
            };
            let database = opened.map_err(|error| opening(redb::Error::from(error)))?;
            Ok(Handle { database: Arc::new(database), is_severed: Arc::clone(&is_severed) })
        })
    }

    /// Whether every page of a commit is as it was written: redb keeps a checksum of each page beside the reference to it, and
    /// reads without looking at it. Changes nothing. The commit is that of `_snapshot`, which is a durable one, or a later one;
    /// while the snapshot lives, no page of it is written over.
    pub(crate) fn check_pages(&self, _snapshot: &Snapshot) -> Result<bool, StoreError> {
        let header = lock(&self.header).synced.clone();
        let file =
            self.disk.database(&self.path).map_err(|error| StoreError::io("opening store.redb", error))?;
        let layer =
            Layer::over(file, &header).map_err(|error| StoreError::io("reading store.redb", error))?;
        guarded(|| {
            let opened = Database::builder().create_with_backend(layer);
            let mut database = opened.map_err(|error| opening(redb::Error::from(error)))?;
            Ok(database.check_integrity().map_err(redb::Error::from)?)
        })
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        let handle = self.slot().take();
        // Closing writes, and a page that is damaged can make redb panic in that, too. Nobody is left to tell; what was
        // acknowledged is in the file or in the journal.
        let _ = guarded(|| {
            drop(handle);
            Ok(())
        });
    }
}

/// Commits so that the file opens quickly after a crash.
pub(crate) fn commit_durably(mut txn: WriteTransaction) -> Result<(), StoreError> {
    txn.set_quick_repair(true);
    Ok(txn.commit()?)
}

/// A file that is no database any more is damage, not a failure of the disk.
fn opening(error: redb::Error) -> StoreError {
    if matches!(error, redb::Error::UpgradeRequired(_)) {
        return StoreError::corrupt(format!("store.redb: {error}"));
    }
    StoreError::from(error)
}

/// Runs what reads the database's pages. redb trusts their structure: a damaged one can make it panic, which is damage that
/// was found, not a fault of the program.
pub(crate) fn guarded<T>(read: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(StoreError::corrupt("a page of store.redb is not readable")))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is whole after every statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The database's file, whose header is remembered.
#[derive(Debug)]
struct Watched {
    file: Box<dyn StorageBackend>,
    header: Arc<Mutex<Header>>,
    is_severed: Arc<AtomicBool>,
}

impl Watched {
    fn check(&self) -> io::Result<()> {
        if self.is_severed.load(Ordering::SeqCst) {
            return Err(io::Error::other("the database was opened again"));
        }
        Ok(())
    }
}

impl StorageBackend for Watched {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        // Without room as with any other reason: what was written is in doubt.
        self.file.sync_data().map_err(|error| io::Error::other(format!("fsync: {error}")))?;
        let mut header = lock(&self.header);
        header.synced = header.written.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.file.write(offset, data)?;
        let Ok(from) = usize::try_from(offset) else { return Ok(()) };
        if from < HEADER_BYTES {
            let mut header = lock(&self.header);
            let until = (from + data.len()).min(HEADER_BYTES);
            let long = header.written.len().max(until);
            header.written.resize(long, 0);
            header.written[from..until].copy_from_slice(&data[..until - from]);
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}

/// A file that is only read: what is written over it stays in memory.
#[derive(Debug)]
struct Layer {
    file: Box<dyn StorageBackend>,
    state: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    len: u64,
    /// Length of the file that may still be read; what was cut off reads as zeros.
    file_len: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Layer {
    /// Over `file`, with its first bytes replaced.
    fn over(file: Box<dyn StorageBackend>, header: &[u8]) -> io::Result<Self> {
        let len = file.len()?;
        let state = Mutex::new(Written { len, file_len: len, blocks: BTreeMap::new() });
        let layer = Layer { file, state };
        if !header.is_empty() {
            layer.write(0, header)?;
        }
        Ok(layer)
    }

    /// The block as it reads now.
    fn block(&self, state: &Written, number: u64) -> io::Result<Vec<u8>> {
        if let Some(block) = state.blocks.get(&number) {
            return Ok(block.clone());
        }
        let mut block = vec![0; size(BLOCK_BYTES)];
        let from = number * BLOCK_BYTES;
        let there = state.file_len.saturating_sub(from).min(BLOCK_BYTES);
        if there > 0 {
            self.file.read(from, &mut block[..size(there)])?;
        }
        Ok(block)
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The parts of `length` bytes at `offset` that lie in one block each: block, where in it, how many bytes.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + u64::try_from(length).unwrap_or(u64::MAX);
    let mut at = offset;
    std::iter::from_fn(move || {
        let part =
            (at / BLOCK_BYTES, size(at % BLOCK_BYTES), size((BLOCK_BYTES - at % BLOCK_BYTES).min(end - at)));
        (at < end).then(|| {
            at += u64::try_from(part.2).unwrap_or(u64::MAX);
            part
        })
    })
}

impl StorageBackend for Layer {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.state).len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = lock(&self.state);
        let wanted = offset.saturating_add(u64::try_from(out.len()).unwrap_or(u64::MAX));
        if wanted > state.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        for (number, from, length) in parts(offset, out.len()) {
            let block = self.block(&state, number)?;
            out[done..done + length].copy_from_slice(&block[from..from + length]);
            done += length;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.len = len;
        state.file_len = state.file_len.min(len);
        state.blocks.split_off(&len.div_ceil(BLOCK_BYTES));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = lock(&self.state);
        let mut done = 0;
        for (number, from, length) in parts(offset, data.len()) {
            let mut block = self.block(&state, number)?;
            block[from..from + length].copy_from_slice(&data[done..done + length]);
            state.blocks.insert(number, block);
            done += length;
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}
