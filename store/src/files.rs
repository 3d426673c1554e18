//! Content-addressed files under `payloads/`: payloads above 16 KiB and the blocks of files.
//!
//! The order that makes a file durable before anything names it: write a temporary file, fsync it, rename it, fsync the
//! directories, and only then commit the row. A file without a row is garbage ([`crate::Store::remove_orphans`]); a row
//! without its file cannot come from a crash. A file is unlinked only by the writer thread, after the commit that removed its
//! row, and never while an operation in flight relies on it ([`InFlight`]).
//!
//! `payloads/ab/cdef…`: 256 directories, which soon are all there, so that a file costs no directory of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use sha2::{Digest, Sha256};
use throughline_protocol::id::{Cid, Codec, HashKind};

use crate::disk::{Disk, NewFile};
use crate::error::StoreError;
use crate::health::{Ended, Health};
use crate::source::Source;

/// Payloads up to this size lie in a table; larger ones are files. In bytes.
pub const INLINE_BYTES_MAX: usize = 16_384;
/// Files that are open and synced together, over all callers: far below the 1,024 descriptors that a process may be left with.
const FILES_AT_ONCE: usize = 64;

/// The files of one data directory.
#[derive(Debug)]
pub struct Files {
    disk: Arc<dyn Disk>,
    root: PathBuf,
    staging: PathBuf,
    next_temp: AtomicU64,
    in_flight: Mutex<BTreeMap<[u8; 32], Held>>,
    /// Directories of files, by the digest's first byte, whose own names this process made durable. That one exists says
    /// nothing: another thread, or a process that was killed, may have made it just now.
    durable_dirs: Mutex<BTreeSet<u8>>,
    health: Arc<Health>,
    /// How many of [`FILES_AT_ONCE`] are taken.
    taken: Mutex<usize>,
    /// Told when some are given back.
    given_back: Condvar,
}

/// A file that operations in flight rely on.
#[derive(Debug, Default)]
struct Held {
    /// How many do.
    count: u64,
    /// Whether one of them has made it durable: it stays so while it is held.
    state: State,
}

/// What is known of a file in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing.
    #[default]
    Unknown,
    /// It lies durably in its place.
    Durable,
}

/// Some of [`FILES_AT_ONCE`], until it is dropped.
struct Places<'f> {
    files: &'f Files,
    count: usize,
}

impl Drop for Places<'_> {
    fn drop(&mut self) {
        *self.files.taken() -= self.count;
        self.files.given_back.notify_all();
    }
}

/// Digests that an operation in flight relies on: their files are not unlinked before it is dropped.
#[derive(Debug)]
pub struct InFlight {
    files: Arc<Files>,
    digest: [u8; 32],
}

impl InFlight {
    /// Of which file.
    pub(crate) fn digest(&self) -> [u8; 32] {
        self.digest
    }
}

/// What became of a file that was to be unlinked.
#[derive(Debug)]
pub(crate) enum Unlinked {
    /// It is gone.
    Gone,
    /// There was none.
    NotThere,
    /// Something relies on it: a row, or an operation in flight.
    Held,
    /// The disk refused. Nothing is in doubt: it is there as before.
    Failed(StoreError),
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut held = self.files.in_flight();
        if let Some(file) = held.get_mut(&self.digest) {
            file.count -= 1;
            if file.count == 0 {
                held.remove(&self.digest);
            }
        }
    }
}

impl Files {
    /// Makes the directories and removes what a killed process left half written. The caller holds the data directory.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        data_dir: &Path,
        health: Arc<Health>,
    ) -> Result<Arc<Self>, StoreError> {
        let (root, staging) = (data_dir.join("payloads"), data_dir.join("staging"));
        for dir in [&root, &staging] {
            make_dir(&*disk, dir)?;
        }
        sync_dir(&*disk, data_dir)?;
        let listed = disk.names(&staging).map_err(|error| StoreError::io("listing staging/", error))?;
        for path in listed.into_iter().map(|name| staging.join(name)) {
            if path.extension().is_some_and(|extension| extension == "tmp") {
                disk.unlink(&path).map_err(|error| StoreError::io("removing a temporary file", error))?;
            }
        }
        Ok(Arc::new(Files {
            disk,
            root,
            staging,
            next_temp: AtomicU64::new(0),
            in_flight: Mutex::default(),
            durable_dirs: Mutex::default(),
            health,
            taken: Mutex::default(),
            given_back: Condvar::new(),
        }))
    }

    /// Whether the store that these files belong to takes writes.
    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// An fsync that failed ends writing; see [`Health`]. A directory that could not even be opened was not synced, and nothing
    /// that was is in doubt.
    fn synced<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.inspect_err(|error| {
            if !error.is_out_of_descriptors() {
                self.health.fail_for_good(error);
            }
        })
    }

    fn in_flight(&self) -> MutexGuard<'_, BTreeMap<[u8; 32], Held>> {
        // The map is only ever counted up and down; a panic elsewhere leaves nothing half done in it.
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn durable_dirs(&self) -> MutexGuard<'_, BTreeSet<u8>> {
        // Only ever added to.
        self.durable_dirs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the file of `digest` from being unlinked while the token lives.
    pub(crate) fn hold(self: &Arc<Self>, digest: [u8; 32]) -> InFlight {
        self.in_flight().entry(digest).or_default().count += 1;
        InFlight { files: Arc::clone(self), digest }
    }

    /// As [`Files::hold`], if another operation in flight has made the file durable.
    fn hold_durable(self: &Arc<Self>, digest: &[u8; 32]) -> Option<InFlight> {
        let mut held = self.in_flight();
        let file = held.get_mut(digest).filter(|file| file.state == State::Durable)?;
        file.count += 1;
        Some(InFlight { files: Arc::clone(self), digest: *digest })
    }

    /// Where the file of a digest is, whether it exists or not.
    #[must_use]
    pub fn path(&self, digest: &[u8; 32]) -> PathBuf {
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        self.root.join(&hex[..2]).join(&hex[2..])
    }

    fn taken(&self) -> MutexGuard<'_, usize> {
        // Only ever counted up and down.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes places for as many of `wanted` files as there are places, at least for one; waits while all are taken. Whoever
    /// has some waits for nobody else's.
    fn places(&self, wanted: usize) -> Places<'_> {
        let waited = self.given_back.wait_while(self.taken(), |taken| *taken >= FILES_AT_ONCE);
        let mut taken = waited.unwrap_or_else(PoisonError::into_inner);
        let count = wanted.min(FILES_AT_ONCE - *taken);
        *taken += count;
        Places { files: self, count }
    }

    /// Stores bytes durably, each under its digest, to which the caller knows that they hash. What another operation in flight
    /// has made durable is not written again.
    pub(crate) fn put_all<'b>(
        self: &Arc<Self>,
        all: impl Iterator<Item = (&'b [u8; 32], &'b [u8])>,
    ) -> Result<Vec<InFlight>, StoreError> {
        let mut held = Vec::new();
        self.put_into(&mut held, all)?;
        Ok(held)
    }

    /// As [`Files::put_all`]; after a failure `held` is what may have become a file.
    pub(crate) fn put_into<'b>(
        self: &Arc<Self>,
        held: &mut Vec<InFlight>,
        all: impl Iterator<Item = (&'b [u8; 32], &'b [u8])>,
    ) -> Result<(), StoreError> {
        let mut new = Vec::new();
        for (digest, bytes) in all {
            match self.hold_durable(digest) {
                Some(file) => held.push(file),
                None => new.push((digest, bytes)),
            }
        }
        let mut left = &new[..];
        while !left.is_empty() {
            let places = self.places(left.len());
            let (now, later) = left.split_at(places.count);
            held.extend(now.iter().map(|(digest, _)| self.hold(**digest)));
            let written = now.iter().map(|(digest, bytes)| self.write(digest, bytes));
            self.finish(written.collect::<Result<_, StoreError>>()?)?;
            left = later;
        }
        Ok(())
    }

    fn write(&self, digest: &[u8; 32], bytes: &[u8]) -> Result<Written, StoreError> {
        let (temp, mut file) = self.begin()?;
        file.write_all(bytes).map_err(|error| StoreError::io("writing a payload", error))?;
        Ok(Written { temp, file, digest: *digest, size: crate::payloads::size_of(bytes) })
    }

    /// Makes files durable and moves them into place. Nothing names them before all of that is durable, so the order is free.
    fn finish(self: &Arc<Self>, written: Vec<Written>) -> Result<Vec<StoredFile>, StoreError> {
        let (mut stored, mut temps, mut files) = (Vec::new(), Vec::new(), Vec::new());
        for Written { temp, file, digest, size } in written {
            stored.push(StoredFile { digest, size, _in_flight: self.hold(digest) });
            temps.push(temp);
            files.push(file);
        }
        let synced = self.disk.sync_files(&mut files);
        self.synced(synced.map_err(|error| StoreError::io("fsync of a payload file", error)))?;
        drop(files);
        let mut dirs = BTreeSet::new();
        for (file, temp) in stored.iter().zip(&mut temps) {
            let path = self.path(&file.digest);
            let dir = path.parent().unwrap_or(&self.root);
            make_dir(&*self.disk, dir)?;
            temp.rename(&path).map_err(|error| StoreError::io("renaming a payload file", error))?;
            dirs.insert(dir.to_owned());
            if !self.durable_dirs().contains(&file.digest[0]) {
                dirs.insert(self.root.clone());
            }
        }
        // All at once: a file system with a journal makes them durable with one write.
        let dirs: Vec<PathBuf> = dirs.into_iter().collect();
        let synced = self.disk.sync_dirs(&dirs);
        self.synced(synced.map_err(|error| StoreError::io("fsync below payloads/", error)))?;
        self.durable_dirs().extend(stored.iter().map(|file| file.digest[0]));
        let mut held = self.in_flight();
        for file in &stored {
            held.entry(file.digest).and_modify(|file| file.state = State::Durable);
        }
        drop(held);
        Ok(stored)
    }

    /// Begins a temporary file.
    fn begin(&self) -> Result<(Temp, Box<dyn NewFile>), StoreError> {
        let number = self.next_temp.fetch_add(1, Ordering::Relaxed);
        let path = self.staging.join(format!("{}-{number}.tmp", std::process::id()));
        let file =
            self.disk.create(&path).map_err(|error| StoreError::io("making a temporary file", error))?;
        Ok((Temp { disk: Arc::clone(&self.disk), path: Some(path) }, file))
    }

    /// Begins a file whose digest is not known yet.
    pub(crate) fn writer(self: &Arc<Self>) -> Result<FileWriter, StoreError> {
        let (temp, file) = self.begin()?;
        Ok(FileWriter { files: Arc::clone(self), temp, file, hasher: Sha256::new(), size: 0 })
    }

    /// Reads a whole file and hashes it. `None`: there is no such file.
    pub(crate) fn read(&self, digest: &[u8; 32], size: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(mut reader) = self.open_file(digest, size)? else { return Ok(None) };
        let mut bytes = Vec::new();
        match reader.read_to_end(&mut bytes) {
            Ok(_) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(StoreError::corrupt(format!("file {}: {error}", short(digest))))
            }
            Err(error) => Err(StoreError::io("reading a payload file", error)),
        }
    }

    /// Opens a file for streaming; see [`FileReader`].
    pub(crate) fn open_file(&self, digest: &[u8; 32], size: u64) -> Result<Option<FileReader>, StoreError> {
        match self.disk.open(&self.path(digest)) {
            Ok(file) => Ok(Some(FileReader {
                file,
                left: size,
                hasher: Sha256::new(),
                expected: *digest,
                done: false,
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("opening a payload file", error)),
        }
    }

    /// Unlinks a file unless an operation in flight relies on it.
    pub(crate) fn unlink(&self, digest: &[u8; 32]) -> Unlinked {
        let held = self.in_flight();
        if held.contains_key(digest) {
            return Unlinked::Held;
        }
        self.remove(digest)
    }

    /// Unlinks a file that no row names and no operation in flight relies on. An operation gives its
    /// file up after its batch, so what `newest` gives while none holds it sees the row.
    /// What `durable` gives, asked for after that, must not name the file either. After a failure that is for good a batch that
    /// was refused may be there at the next open, with rows that nobody sees now: no file is an orphan then.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub(crate) fn unlink_orphan<S: Source>(
        &self,
        digest: &[u8; 32],
        newest: impl FnOnce() -> S,
        durable: impl FnOnce() -> S,
    ) -> Result<Unlinked, StoreError> {
        let held = self.in_flight();
        if held.contains_key(digest) || crate::payloads::names_file(&newest(), digest)? {
            return Ok(Unlinked::Held);
        }
        // After the look at who holds it: an operation is refused, and gives its file up, when the failure was noted.
        if crate::payloads::names_file(&durable(), digest)? || self.health.ended() == Ended::ForGood {
            return Ok(Unlinked::Held);
        }
        Ok(self.remove(digest))
    }

    /// Makes it durable that the files of these digests are gone: until then a power cut may bring them back.
    pub(crate) fn sync_gone<'a>(
        &self,
        digests: impl IntoIterator<Item = &'a [u8; 32]>,
    ) -> Result<(), StoreError> {
        let dirs: BTreeSet<PathBuf> =
            digests.into_iter().filter_map(|digest| self.path(digest).parent().map(Path::to_owned)).collect();
        for dir in &dirs {
            match self.disk.sync_dir(dir) {
                // Of a file that never was.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                synced => {
                    let what = || format!("fsync of {}", dir.display());
                    self.synced(synced.map_err(|error| StoreError::io(what(), error)))?;
                }
            }
        }
        Ok(())
    }

    fn remove(&self, digest: &[u8; 32]) -> Unlinked {
        match self.disk.unlink(&self.path(digest)) {
            Ok(()) => Unlinked::Gone,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Unlinked::NotThere,
            Err(error) => {
                let path = self.path(digest);
                Unlinked::Failed(StoreError::io(format!("removing {}", path.display()), error))
            }
        }
    }

    /// Digests of all files that lie under `payloads/`; names of another form are passed over.
    pub(crate) fn list(&self) -> Result<Vec<[u8; 32]>, StoreError> {
        let mut found = Vec::new();
        for first in self.names(&self.root)? {
            for rest in self.names(&self.root.join(&first))? {
                found.extend(parse_digest(&format!("{first}{rest}")));
            }
        }
        Ok(found)
    }

    fn names(&self, dir: &Path) -> Result<Vec<String>, StoreError> {
        let listed = self.disk.names(dir).map_err(|error| StoreError::io("listing payloads/", error))?;
        Ok(listed.into_iter().map(|name| name.to_string_lossy().into_owned()).collect())
    }
}

fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(digest)
}

/// A temporary file that is removed unless it was renamed into place.
#[derive(Debug)]
struct Temp {
    disk: Arc<dyn Disk>,
    path: Option<PathBuf>,
}

impl Temp {
    fn rename(&mut self, to: &Path) -> io::Result<()> {
        if let Some(path) = &self.path {
            self.disk.rename(path, to)?;
        }
        self.path = None;
        Ok(())
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            // Best effort: the next open removes what is left.
            let _ = self.disk.unlink(&path);
        }
    }
}

/// A temporary file whose bytes are all there, not durably yet.
struct Written {
    temp: Temp,
    file: Box<dyn NewFile>,
    digest: [u8; 32],
    size: u64,
}

/// A file being written: [`Write`], then [`FileWriter::finish`]. Dropped before that, it leaves nothing.
#[derive(Debug)]
pub struct FileWriter {
    files: Arc<Files>,
    temp: Temp,
    file: Box<dyn NewFile>,
    hasher: Sha256,
    size: u64,
}

/// A file that lies durably in its place and that no row names yet; see [`crate::PutBlock`].
#[derive(Debug)]
pub struct StoredFile {
    pub(crate) digest: [u8; 32],
    pub(crate) size: u64,
    _in_flight: InFlight,
}

impl StoredFile {
    /// Its CID as one block of `codec`.
    #[must_use]
    pub fn cid(&self, codec: Codec) -> Cid {
        Cid::from_parts(codec, HashKind::Sha256, self.digest)
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size
    }
}

impl Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.size += u64::try_from(written).unwrap_or(u64::MAX);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl FileWriter {
    /// Bytes written so far.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size
    }

    /// Makes the file durable and moves it into place.
    ///
    /// # Errors
    /// `E_STORE_IO` when the disk refuses. Nothing is left then, but for a file whose name could not be made durable: an orphan.
    pub fn finish(self) -> Result<StoredFile, StoreError> {
        let FileWriter { files, temp, file, hasher, size } = self;
        let written = Written { temp, file, digest: hasher.finalize().into(), size };
        files.finish(vec![written])?.pop().ok_or(StoreError::Closed)
    }
}

/// Streams a stored file and hashes it on the way.
///
/// Bytes may be trusted once `read` has returned 0: a file that ends early, goes on too long or hashes to something else
/// gives an error of kind `InvalidData` instead of its end.
pub struct FileReader {
    file: Box<dyn Read + Send>,
    left: u64,
    hasher: Sha256,
    expected: [u8; 32],
    done: bool,
}

impl std::fmt::Debug for FileReader {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("FileReader").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Read for FileReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.done || out.is_empty() {
            return Ok(0);
        }
        let read = self.file.read(out)?;
        if read == 0 {
            self.done = true;
            let digest: [u8; 32] = std::mem::take(&mut self.hasher).finalize().into();
            let fits = self.left == 0 && digest == self.expected;
            return if fits { Ok(0) } else { Err(damaged("its bytes hash to something else")) };
        }
        let length = u64::try_from(read).unwrap_or(u64::MAX);
        self.left = self.left.checked_sub(length).ok_or_else(|| damaged("it is longer than it was"))?;
        self.hasher.update(&out[..read]);
        Ok(read)
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Eight hex digits, for messages.
pub(crate) fn short(digest: &[u8; 32]) -> String {
    digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A directory for this user only; one that exists is left as it is.
pub(crate) fn make_dir(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    disk.make_dirs(path).map_err(|error| StoreError::io(format!("making {}", path.display()), error))
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    disk.sync_dir(path).map_err(|error| StoreError::io(format!("fsync of {}", path.display()), error))
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
