//! Opening a data directory: one process at a time, a format that is known, and whether it is the original or a copy.
//!
//! ```text
//! LOCK         flock; pid, start time and command of the holder
//! VERSION      format number and the program that wrote it
//! GUARD        how often the directory was opened: an older store.redb put back shows by a lower count
//! store.redb   everything small
//! store.journal  the batches that store.redb lacks after a crash ([`crate::journal`])
//! payloads/    files by digest;  staging/  files being written
//! ```
//!
//! A copy must not sign ([`crate::guard`]). Two things tell one: the database file's inode and birth time are stored in it and
//! change when it is copied or restored, and its count of opens is lower than the one in GUARD when an older file was put
//! back. A journal that is missing, or of another run, is a third: what it held was acknowledged. Each empties the guard table. A snapshot of the whole disk (of a virtual machine, say) cannot be told: whoever
//! restores one has to hand its sessions over.

use std::fs::{self, File, OpenOptions as FileOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{Database, ReadableDatabase, StorageBackend, WriteTransaction};
use rustix::fs::FlockOperation;
use throughline_protocol::id::UnixMillis;

use crate::error::{OpenError, StoreError};
use crate::events::{self, Change};
use crate::files::{Files, make_dir, sync_dir};
use crate::journal::{self, Journal, Standing};
use crate::migrate::{self, FORMAT};
use crate::source::{counter, lookup};
use crate::tables::{self, Spec as _, meta};
use crate::writer::{Batch, Changes, CommitHook};

/// Bytes of the small files that are read at most.
const SMALL_FILE_BYTES_MAX: u64 = 4_096;

/// How to open a data directory.
pub struct OpenOptions {
    /// When this process started, in Unix milliseconds.
    pub started: UnixMillis,
    /// What it runs, for others that find the directory locked. One line.
    pub command: String,
    /// Memory for the database's cache, in bytes.
    pub cache_bytes: usize,
    /// Whether the node's key is as new as the directory. Only counts when the directory is made.
    pub key_origin: KeyOrigin,
    /// Called after each commit.
    pub on_commit: Option<CommitHook>,
}

/// Where the node's key came from when the directory was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyOrigin {
    /// It may have signed elsewhere before: nothing is signed in existing sessions until a handoff.
    #[default]
    Older,
    /// It was made together with the directory and has signed nothing before.
    MadeWithStore,
}

impl OpenOptions {
    /// A cache of 64 MiB, an older key, no hook.
    #[must_use]
    pub fn new(started: UnixMillis, command: impl Into<String>) -> Self {
        OpenOptions {
            started,
            command: command.into(),
            cache_bytes: 64 << 20,
            key_origin: KeyOrigin::Older,
            on_commit: None,
        }
    }
}

/// The lock of a data directory, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "closing the file gives the lock back")] File);

/// What an opened directory consists of.
pub(crate) struct Opened {
    pub(crate) lock: Lock,
    pub(crate) database: Arc<Database>,
    pub(crate) journal: Journal,
    pub(crate) files: Arc<Files>,
}

/// Opens a data directory; makes it when there is none.
pub(crate) fn open(dir: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    open_with(dir, options, open_file)
}

/// As [`open`], with the database's file and the journal's opened by the caller: a test opens them on a disk that fails.
pub(crate) fn open_with<B: StorageBackend>(
    dir: &Path,
    options: &OpenOptions,
    open_file: impl Fn(&Path) -> Result<B, StoreError>,
) -> Result<Opened, OpenError> {
    make_dir(dir)?;
    let lock = lock(dir, options)?;
    let age = check_version(dir)?;
    let files = Files::open(dir)?;
    let path = dir.join("store.redb");
    let was_there = path.exists();
    let mut builder = Database::builder();
    builder.set_cache_size(options.cache_bytes);
    let database = builder
        .create_with_backend(open_file(&path)?)
        .map_err(|error| StoreError::from(redb::Error::from(error)))?;
    let mut journal = Journal::open(Box::new(open_file(&dir.join(journal::FILE))?))?;
    // Before anything is migrated: the journal speaks of the tables as they were.
    let standing = journal.recover(&database, migrate::schema())?;
    migrate::run(&database, migrate::MIGRATIONS)?;
    write_small(dir, "VERSION", &version_text())?;
    let found = Found::look(dir, &path, age == Age::New && !was_there)?;
    settle_guard(dir, &database, &mut journal, options, &found, standing)?;
    Ok(Opened { lock, database: Arc::new(database), journal, files })
}

fn open_file(path: &Path) -> Result<FileBackend, StoreError> {
    let io = |error| StoreError::io(format!("opening {}", path.display()), error);
    let file = FileOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(io)?;
    FileBackend::new(file).map_err(|error| StoreError::from(redb::Error::from(error)))
}

fn lock(dir: &Path, options: &OpenOptions) -> Result<Lock, OpenError> {
    let io = |error| StoreError::io("locking the data directory", error);
    let mut file = FileOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(dir.join("LOCK"))
        .map_err(io)?;
    if let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        if error == rustix::io::Errno::WOULDBLOCK {
            return Err(locked(&mut file));
        }
        return Err(io(error.into()).into());
    }
    let command: String = options.command.chars().filter(|c| !c.is_control()).take(1_024).collect();
    let text = format!("{}\n{}\n{command}\n", std::process::id(), options.started);
    file.set_len(0).map_err(io)?;
    file.rewind().map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)?;
    Ok(Lock(file))
}

/// Who holds it, as far as its note can be read: it may be writing it just now.
fn locked(file: &mut File) -> OpenError {
    let mut text = String::new();
    // A note that cannot be read leaves the fields empty; that it is locked is what counts.
    let _ = file.take(SMALL_FILE_BYTES_MAX).read_to_string(&mut text);
    let mut lines = text.lines();
    let mut number = || lines.next().and_then(|line| line.parse::<u64>().ok()).unwrap_or(0);
    let (pid, started_ms) = (u32::try_from(number()).unwrap_or(0), number());
    OpenError::Locked { pid, started_ms, command: lines.next().unwrap_or("").to_owned() }
}

/// Whether the directory was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Age {
    New,
    Old,
}

fn check_version(dir: &Path) -> Result<Age, OpenError> {
    let Some(text) = read_small(dir, "VERSION")? else { return Ok(Age::New) };
    let mut lines = text.lines();
    let found = lines.next().and_then(|line| line.trim().parse::<u32>().ok()).unwrap_or(0);
    if found == FORMAT {
        return Ok(Age::Old);
    }
    let written_by: String = lines.next().unwrap_or("an unknown program").chars().take(100).collect();
    Err(OpenError::Version { found, known: FORMAT, written_by })
}

fn version_text() -> String {
    format!("{FORMAT}\nthroughline {}\n", env!("CARGO_PKG_VERSION"))
}

fn read_small(dir: &Path, name: &str) -> Result<Option<String>, StoreError> {
    let file = match File::open(dir.join(name)) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(format!("opening {name}"), error)),
    };
    let mut bytes = Vec::new();
    file.take(SMALL_FILE_BYTES_MAX)
        .read_to_end(&mut bytes)
        .map_err(|error| StoreError::io(format!("reading {name}"), error))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Replaces a small file durably; leaves one that says the same.
fn write_small(dir: &Path, name: &str, text: &str) -> Result<(), StoreError> {
    if read_small(dir, name)?.as_deref() == Some(text) {
        return Ok(());
    }
    let io = |error| StoreError::io(format!("writing {name}"), error);
    let temp = dir.join(format!("{name}.tmp"));
    let mut file =
        FileOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temp).map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)?;
    file.sync_all().map_err(io)?;
    fs::rename(&temp, dir.join(name)).map_err(io)?;
    sync_dir(dir)
}

/// What tells the directory that it was from a copy.
struct Found {
    identity: Vec<u8>,
    /// How often it was opened, by the file beside the database.
    counted: Option<u64>,
    is_new: bool,
}

impl Found {
    fn look(dir: &Path, database: &Path, is_new: bool) -> Result<Self, StoreError> {
        let counted = read_small(dir, "GUARD")?.and_then(|text| text.trim().parse::<u64>().ok());
        Ok(Found { identity: identity_of(database)?, counted, is_new })
    }

    /// Whether the database is the file that it was, and not an older one that was put back.
    fn is_original(&self, database: &Database) -> Result<bool, StoreError> {
        let txn = database.begin_read()?;
        let held = lookup(&txn, tables::IDENTITY, "file", <[u8]>::to_vec)?;
        let opens = counter(&txn, meta::OPENS)?;
        // The count in the file is written after the one in the database, so the database is never behind it by a crash.
        Ok(held.as_deref() == Some(&self.identity[..])
            && self.counted.is_some_and(|counted| opens >= counted))
    }
}

/// Counts the open and begins its journal; empties the sign guard when the directory is not the one that it was.
fn settle_guard(
    dir: &Path,
    database: &Database,
    journal: &mut Journal,
    options: &OpenOptions,
    found: &Found,
    standing: Standing,
) -> Result<(), StoreError> {
    let is_original = standing == Standing::Applied && found.is_original(database)?;
    let opens = counter(&database.begin_read()?, meta::OPENS)?.max(found.counted.unwrap_or(0)) + 1;
    // Before the count: a journal that is one ahead is one in which nothing was written yet.
    journal.begin(opens)?;
    let mut txn = database.begin_write()?;
    txn.set_quick_repair(true);
    if found.is_new {
        let trusted = u64::from(options.key_origin == KeyOrigin::MadeWithStore);
        let mut table = txn.open_table(tables::META::DEFINITION)?;
        table.insert(meta::GUARD_TRUSTED, trusted)?;
        if trusted == 0 {
            // The key may have signed before this directory was: what was handed over before now is not taken over again.
            table.insert(meta::GUARD_RESET_MS, options.started.get())?;
        }
    } else if !is_original {
        empty_guard(&txn, options.started)?;
    }
    txn.open_table(tables::IDENTITY::DEFINITION)?.insert("file", &found.identity[..])?;
    txn.open_table(tables::META::DEFINITION)?.insert(meta::OPENS, opens)?;
    txn.commit()?;
    write_small(dir, "GUARD", &format!("{opens}\n"))
}

/// Forgets what was signed here: this is a copy, and the original may have signed more.
pub(crate) fn empty_guard(txn: &WriteTransaction, at: UnixMillis) -> Result<(), StoreError> {
    txn.open_table(tables::GUARD::DEFINITION)?.retain(|_, _| false)?;
    {
        let mut table = txn.open_table(tables::META::DEFINITION)?;
        table.insert(meta::GUARD_TRUSTED, 0)?;
        table.insert(meta::GUARD_RESET_MS, at.get())?;
    }
    let batch = Batch::new(txn);
    events::write(&Changes { txn: &batch }, at, &Change::GuardReset)?;
    batch.finish()?;
    Ok(())
}

/// Inode and birth time of the database file.
fn identity_of(path: &Path) -> Result<Vec<u8>, StoreError> {
    let metadata = fs::metadata(path).map_err(|error| StoreError::io("looking at store.redb", error))?;
    let born = metadata.created().ok().and_then(|born| born.duration_since(std::time::UNIX_EPOCH).ok());
    let mut identity = metadata.ino().to_be_bytes().to_vec();
    identity.extend(born.map_or(0, |born| born.as_nanos()).to_be_bytes());
    Ok(identity)
}
