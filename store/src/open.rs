//! Opening a data directory: one process at a time, a format that is known, and whether it is the original or a copy.
//!
//! ```text
//! LOCK         flock; pid, start time and command of the holder
//! VERSION      format number and the program that wrote it
//! GUARD        how often the directory was opened: an older store.redb put back shows by a lower count
//! store.redb   everything small
//! RESERVE      space for what cannot wait when the disk is full ([`crate::Urgency`])
//! store.journal  the batches that store.redb lacks after a crash ([`crate::journal`])
//! payloads/    files by digest;  staging/  files being written
//! ```
//!
//! A copy must not sign ([`crate::guard`]). Two things tell one: the database file's inode and birth time are stored in it and
//! change when it is copied or restored, and its count of opens is lower than the one in GUARD when an older file was put
//! back. A journal that is missing, or of another run, is a third: what it held was acknowledged. Each empties the guard
//! table. A snapshot of the whole disk (of a virtual machine, say) cannot be told: whoever restores one has to hand its
//! sessions over.

use std::fs::{DirBuilder, File, OpenOptions as FileOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use redb::{ReadableTable, WriteTransaction};
use rustix::fs::FlockOperation;
use throughline_protocol::id::UnixMillis;

use crate::database::{Db, commit_durably, guarded};
use crate::disk::Disk;
use crate::error::{OpenError, StoreError};
use crate::events::{self, Change};
use crate::files::{Files, make_dir, sync_dir};
use crate::health::Health;
use crate::journal::{self, Journal, Standing};
use crate::migrate::{self, FORMAT};
use crate::source::{Snapshot, counter, lookup};
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
    pub(crate) lock: Arc<Lock>,
    pub(crate) database: Arc<Db>,
    pub(crate) journal: Journal,
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
    let place = Directory { disk: &disk, dir, options };
    let settled = match place.settle(age) {
        // What was set aside for that is enough to open with.
        Err(error) if error.is_storage_full() => {
            health.give_reserve();
            place.settle(age)
        }
        settled => settled,
    };
    let (database, journal) = settled?;
    health.take_reserve();
    Ok(Opened { lock: Arc::new(lock), database: Arc::new(database), journal, files })
}

/// A data directory that is being opened.
struct Directory<'a> {
    disk: &'a Arc<dyn Disk>,
    dir: &'a Path,
    options: &'a OpenOptions,
}

impl Directory<'_> {
    /// Opens the database and its journal, and brings everything in the directory up to date.
    fn settle(&self, age: Age) -> Result<(Db, Journal), StoreError> {
        let path = self.dir.join("store.redb");
        let file = self.disk.database(&self.dir.join(journal::FILE));
        let mut journal = Journal::open(file.map_err(|error| StoreError::io("opening the journal", error))?)?;
        let is_there = self.disk.identity(&path).is_ok();
        if !is_there {
            self.make_database(&path, &mut journal, age)?;
        }
        let database = Db::open(Arc::clone(self.disk), &path, self.options.cache_bytes)?;
        guarded(|| {
            // Before anything is migrated: the journal speaks of the tables as they were.
            let standing =
                if is_there { journal.recover(&database, migrate::schema())? } else { Standing::Applied };
            migrate::run(&database, migrate::MIGRATIONS)?;
            write_small(&**self.disk, self.dir, "VERSION", &version_text())?;
            if is_there {
                let found = Found { path: &path, age: Age::Old, standing };
                self.settle_guard(&database, &mut journal, &found)?;
            }
            Ok(())
        })?;
        Ok((database, journal))
    }

    /// Makes the database under another name and puts it in its place when it is whole: a file that a power cut left half
    /// made is no database, and could not be told from one that was damaged.
    fn make_database(&self, path: &Path, journal: &mut Journal, age: Age) -> Result<(), StoreError> {
        let io = |error| StoreError::io("making store.redb", error);
        let temp = self.dir.join("store.redb.tmp");
        unlink_left(&**self.disk, &temp).map_err(io)?;
        let database = Db::open(Arc::clone(self.disk), &temp, self.options.cache_bytes)?;
        migrate::run(&database, migrate::MIGRATIONS)?;
        let found = Found { path: &temp, age, standing: Standing::Foreign };
        self.settle_guard(&database, journal, &found)?;
        drop(database);
        self.disk.rename(&temp, path).map_err(io)?;
        sync_dir(&**self.disk, self.dir)
    }

    /// Counts the open and begins its journal; empties the sign guard when the directory is not the one that it was.
    fn settle_guard(
        &self,
        database: &Db,
        journal: &mut Journal,
        found: &Found<'_>,
    ) -> Result<(), StoreError> {
        let identity = self.disk.identity(found.path);
        let identity = identity.map_err(|error| StoreError::io("looking at store.redb", error))?;
        let counted = read_small(&**self.disk, self.dir, "GUARD")?;
        let counted = counted.and_then(|text| text.trim().parse::<u64>().ok());
        let (held, opens) = {
            let txn = database.begin_read()?;
            (lookup(&txn, tables::IDENTITY, "file", <[u8]>::to_vec)?, counter(&txn, meta::OPENS)?)
        };
        // The count in the file is written after the one in the database, so the database is never behind it by a crash.
        let is_original = found.standing == Standing::Applied
            && held.as_deref() == Some(&identity[..])
            && counted.is_some_and(|counted| opens >= counted);
        let opens = opens.max(counted.unwrap_or(0)) + 1;
        // Before the count: a journal that is one ahead is one in which nothing was written yet.
        journal.begin(opens)?;
        let txn = database.begin_write()?;
        if found.age == Age::New {
            let trusted = u64::from(self.options.key_origin == KeyOrigin::MadeWithStore);
            txn.open_table(tables::META::DEFINITION)?.insert(meta::GUARD_TRUSTED, trusted)?;
            if trusted == 0 {
                begin_life(&txn)?;
            }
        } else if !is_original {
            empty_guard(database, &txn, self.options.started)?;
        } else if counter(&txn, meta::GUARD_TRUSTED)? == 0
            && lookup(&txn, tables::IDENTITY, "life", |_| ())?.is_none()
        {
            // It was reset by a program that named the life by its time.
            begin_life(&txn)?;
        }
        txn.open_table(tables::IDENTITY::DEFINITION)?.insert("file", &identity[..])?;
        settle_sequences(&txn)?;
        txn.open_table(tables::META::DEFINITION)?.insert(meta::OPENS, opens)?;
        commit_durably(txn)?;
        write_small(&**self.disk, self.dir, "GUARD", &format!("{opens}\n"))
    }
}

/// What tells the directory that it was from a copy.
struct Found<'a> {
    /// The database's file.
    path: &'a Path,
    age: Age,
    standing: Standing,
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
    if migrate::FORMATS.contains(&found) {
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

/// A sequence that is behind what it gave out already, which only damage can bring about, goes on after it: a number that is
/// given out twice would write one session over another.
fn settle_sequences(txn: &WriteTransaction) -> Result<(), StoreError> {
    let last_session =
        txn.open_table(tables::SESSIONS::DEFINITION)?.last()?.map(|(number, _)| number.value());
    let last_event = txn.open_table(tables::EVENTS::DEFINITION)?.last()?.map(|(id, _)| id.value());
    for (key, last) in [(meta::NEXT_SESSION, last_session), (meta::NEXT_EVENT, last_event)] {
        if let Some(last) = last
            && counter(txn, key)? <= last
        {
            txn.open_table(tables::META::DEFINITION)?.insert(key, last + 1)?;
        }
    }
    Ok(())
}

/// Names what the directory is from now on, so that nothing which it was before is taken for it. No clock is asked: it may stand still.
fn begin_life(txn: &WriteTransaction) -> Result<(), StoreError> {
    let mut name = [0; 32];
    getrandom::fill(&mut name)
        .map_err(|error| StoreError::io("naming the directory's life", std::io::Error::other(error)))?;
    txn.open_table(tables::IDENTITY::DEFINITION)?.insert("life", &name[..])?;
    // By which a life was named before.
    txn.open_table(tables::META::DEFINITION)?.remove("guard_reset_ms")?;
    Ok(())
}

/// Forgets what was signed here: this is a copy, and the original may have signed more.
fn empty_guard(database: &Db, txn: &WriteTransaction, at: UnixMillis) -> Result<(), StoreError> {
    txn.open_table(tables::GUARD::DEFINITION)?.retain(|_, _| false)?;
    txn.open_table(tables::META::DEFINITION)?.insert(meta::GUARD_TRUSTED, 0)?;
    begin_life(txn)?;
    let batch = Batch::new(&Snapshot::of_commit(database.begin_read()?)?);
    events::write(&Changes { txn: &batch }, at, &Change::GuardReset)?;
    batch.finish()?.changed.apply(txn)
}
