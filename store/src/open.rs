//! Opening a data directory: one process at a time, a format that is known, and whether it is the original or a copy.
//!
//! ```text
//! LOCK         flock; pid, start time and command of the holder
//! VERSION      format number and the program that wrote it
//! GUARD        how often the directory was opened: an older store.redb put back shows by a lower count
//! store.redb   everything small
//! RESERVE      space for what cannot wait when the disk is full ([`crate::Urgency`])
//! payloads/    files by digest;  staging/  files being written
//! ```
//!
//! A copy must not sign ([`crate::guard`]). Two things tell one: the database file's inode and birth time are stored in it and
//! change when it is copied or restored, and its count of opens is lower than the one in GUARD when an older file was put
//! back. Either empties the guard table. A snapshot of the whole disk (of a virtual machine, say) cannot be told: whoever
//! restores one has to hand its sessions over.

use std::fs::{DirBuilder, File, OpenOptions as FileOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use redb::{ReadableTable, WriteTransaction};
use rustix::fs::FlockOperation;
use throughline_protocol::id::UnixMillis;

use crate::database::{Db, guarded};
use crate::disk::Disk;
use crate::error::{OpenError, StoreError};
use crate::events::{self, Change};
use crate::files::{Files, make_dir, sync_dir};
use crate::health::Health;
use crate::migrate::{self, FORMAT};
use crate::source::{counter, lookup};
use crate::tables::{self, meta};
use crate::writer::{Changes, CommitHook};

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
    /// Space that is set aside for what cannot wait when the disk is full, in bytes; 0 is none.
    pub reserve_bytes: u64,
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
    /// A cache of 64 MiB, a reserve of 8 MiB, an older key, no hook. A commit writes the pages that it changes and a map of all
    /// pages, which takes 64 KiB for each GiB of the database: 8 MiB are enough for one of 64 GiB.
    #[must_use]
    pub fn new(started: UnixMillis, command: impl Into<String>) -> Self {
        OpenOptions {
            started,
            command: command.into(),
            cache_bytes: 64 << 20,
            reserve_bytes: 8 << 20,
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
    pub(crate) database: Arc<Db>,
    pub(crate) files: Arc<Files>,
}

/// Opens a data directory; makes it when there is none.
pub(crate) fn open(disk: Arc<dyn Disk>, dir: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    make_dir(&*disk, dir)?;
    let lock = lock(dir, options)?;
    let age = check_version(&*disk, dir)?;
    if age == Age::New {
        // Its own name, and those of directories that were made with it. One that this user may not read was there before.
        dir.ancestors().skip(1).for_each(|above| drop(disk.sync_dir(above)));
    }
    let health = Arc::new(Health::new(Arc::clone(&disk), dir, options.reserve_bytes));
    let files = Files::open(Arc::clone(&disk), dir, Arc::clone(&health))?;
    let database = match settle(&disk, dir, options, age) {
        // What was set aside for that is enough to open with.
        Err(error) if error.is_storage_full() => {
            health.give_reserve();
            settle(&disk, dir, options, age)
        }
        settled => settled,
    };
    let database = Arc::new(database?);
    health.take_reserve();
    Ok(Opened { lock, database, files })
}

/// Opens the database and brings everything in the directory up to date.
fn settle(disk: &Arc<dyn Disk>, dir: &Path, options: &OpenOptions, age: Age) -> Result<Db, StoreError> {
    let path = dir.join("store.redb");
    let is_there = disk.identity(&path).is_ok();
    if !is_there {
        make_database(disk, dir, &path, options, age)?;
    }
    let database = Db::open(Arc::clone(disk), &path, options.cache_bytes)?;
    guarded(|| {
        migrate::run(&database, migrate::MIGRATIONS)?;
        write_small(&**disk, dir, "VERSION", &version_text())?;
        if is_there {
            settle_guard(&**disk, dir, &path, &database, options, Age::Old)?;
        }
        Ok(())
    })?;
    Ok(database)
}

/// Makes the database under another name and puts it in its place when it is whole: a file that a power cut left half made
/// is no database, and could not be told from one that was damaged.
fn make_database(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    path: &Path,
    options: &OpenOptions,
    age: Age,
) -> Result<(), StoreError> {
    let io = |error| StoreError::io("making store.redb", error);
    let temp = dir.join("store.redb.tmp");
    unlink_left(&**disk, &temp).map_err(io)?;
    let database = Db::open(Arc::clone(disk), &temp, options.cache_bytes)?;
    migrate::run(&database, migrate::MIGRATIONS)?;
    settle_guard(&**disk, dir, &temp, &database, options, age)?;
    drop(database);
    disk.rename(&temp, path).map_err(io)?;
    sync_dir(&**disk, dir)
}

/// Removes what a process that was killed may have left.
fn unlink_left(disk: &dyn Disk, path: &Path) -> std::io::Result<()> {
    match disk.unlink(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn lock(dir: &Path, options: &OpenOptions) -> Result<Lock, OpenError> {
    let io = |error| StoreError::io("locking the data directory", error);
    // The lock is the operating system's, on whatever disk the rest lies.
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
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
    // A disk without room for the note can still be opened; whoever is locked out is told less.
    let _ = file.write_all(text.as_bytes());
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

fn check_version(disk: &dyn Disk, dir: &Path) -> Result<Age, OpenError> {
    let Some(text) = read_small(disk, dir, "VERSION")? else { return Ok(Age::New) };
    let mut lines = text.lines();
    let found = lines.next().and_then(|line| line.trim().parse::<u32>().ok()).unwrap_or(0);
    if (1..=FORMAT).contains(&found) {
        return Ok(Age::Old);
    }
    let written_by: String = lines.next().unwrap_or("an unknown program").chars().take(100).collect();
    Err(OpenError::Version { found, known: FORMAT, written_by })
}

fn version_text() -> String {
    format!("{FORMAT}\nthroughline {}\n", env!("CARGO_PKG_VERSION"))
}

fn read_small(disk: &dyn Disk, dir: &Path, name: &str) -> Result<Option<String>, StoreError> {
    let file = match disk.open(&dir.join(name)) {
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
fn write_small(disk: &dyn Disk, dir: &Path, name: &str, text: &str) -> Result<(), StoreError> {
    if read_small(disk, dir, name)?.as_deref() == Some(text) {
        return Ok(());
    }
    let io = |error| StoreError::io(format!("writing {name}"), error);
    let temp = dir.join(format!("{name}.tmp"));
    unlink_left(disk, &temp).map_err(io)?;
    let mut file = disk.create(&temp).map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)?;
    file.sync().map_err(io)?;
    disk.rename(&temp, &dir.join(name)).map_err(io)?;
    sync_dir(disk, dir)
}

/// Counts the open, and empties the sign guard when the directory is not the one that it was.
fn settle_guard(
    disk: &dyn Disk,
    dir: &Path,
    path: &Path,
    database: &Db,
    options: &OpenOptions,
    age: Age,
) -> Result<(), StoreError> {
    let identity = disk.identity(path).map_err(|error| StoreError::io("looking at store.redb", error))?;
    let counted = read_small(disk, dir, "GUARD")?.and_then(|text| text.trim().parse::<u64>().ok());
    let (held, opens) = {
        let txn = database.begin_read()?;
        (lookup(&txn, tables::IDENTITY, "file", <[u8]>::to_vec)?, counter(&txn, meta::OPENS)?)
    };
    let txn = database.begin_write()?;
    // The count in the file is written after the one in the database, so the database is never behind it by a crash.
    let is_original =
        held.as_deref() == Some(&identity[..]) && counted.is_some_and(|counted| opens >= counted);
    if age == Age::New {
        let trusted = u64::from(options.key_origin == KeyOrigin::MadeWithStore);
        let mut table = txn.open_table(tables::META)?;
        table.insert(meta::GUARD_TRUSTED, trusted)?;
        if trusted == 0 {
            // The key may have signed before this directory was: what was handed over before now is not taken over again.
            table.insert(meta::GUARD_RESET_MS, options.started.get())?;
        }
    } else if !is_original {
        empty_guard(&txn, options.started)?;
    }
    txn.open_table(tables::IDENTITY)?.insert("file", &identity[..])?;
    settle_sequences(&txn)?;
    let opens = opens.max(counted.unwrap_or(0)) + 1;
    txn.open_table(tables::META)?.insert(meta::OPENS, opens)?;
    txn.commit()?;
    write_small(disk, dir, "GUARD", &format!("{opens}\n"))
}

/// A sequence that is behind what it gave out already, which only damage can bring about, goes on after it: a number that is
/// given out twice would write one session over another.
fn settle_sequences(txn: &WriteTransaction) -> Result<(), StoreError> {
    let last_session = txn.open_table(tables::SESSIONS)?.last()?.map(|(number, _)| number.value());
    let last_event = txn.open_table(tables::EVENTS)?.last()?.map(|(id, _)| id.value());
    for (key, last) in [(meta::NEXT_SESSION, last_session), (meta::NEXT_EVENT, last_event)] {
        if let Some(last) = last
            && counter(txn, key)? <= last
        {
            txn.open_table(tables::META)?.insert(key, last + 1)?;
        }
    }
    Ok(())
}

/// Forgets what was signed here: this is a copy, and the original may have signed more.
pub(crate) fn empty_guard(txn: &WriteTransaction, at: UnixMillis) -> Result<(), StoreError> {
    txn.open_table(tables::GUARD)?.retain(|_, _| false)?;
    {
        let mut table = txn.open_table(tables::META)?;
        table.insert(meta::GUARD_TRUSTED, 0)?;
        table.insert(meta::GUARD_RESET_MS, at.get())?;
    }
    events::write(&Changes { txn }, at, &Change::GuardReset)?;
    Ok(())
}
