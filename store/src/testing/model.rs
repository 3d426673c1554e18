//! A disk in memory that knows what was synced.
//!
//! The rules are those that POSIX promises and no more: bytes of a file are durable after an fsync of the file, its name
//! after one of its directory. A rename is one step. What was not synced may be there or not, each sector and each name
//! for itself, in any order.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use crate::disk::{Disk, NewFile};

/// Unit of space, in bytes.
const BLOCK_BYTES: usize = 4_096;

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `EIO`; nothing happened.
    Failed,
    /// `ENOSPC`; nothing happened.
    Full,
    /// `EIO`; half of the bytes were written.
    ShortFailed,
    /// `ENOSPC`; half of the bytes were written.
    ShortFull,
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Fault::Failed | Fault::ShortFailed => io::Error::other("the disk failed"),
            Fault::Full | Fault::ShortFull => io::ErrorKind::StorageFull.into(),
        }
    }

    /// Whether part of a write is carried out.
    #[must_use]
    pub fn is_short(self) -> bool {
        matches!(self, Fault::ShortFailed | Fault::ShortFull)
    }
}

/// A call that changes something, as it is written down.
#[derive(Clone, Debug)]
pub(super) enum Call {
    MakeDir(PathBuf),
    Create(PathBuf),
    Write {
        file: u64,
        at: usize,
        bytes: Arc<[u8]>,
    },
    SetLen {
        file: u64,
        len: usize,
    },
    Sync(u64),
    Rename(PathBuf, PathBuf),
    Unlink(PathBuf),
    SyncDir(PathBuf),
    Reserve(PathBuf, usize),
    /// Not of the disk: what the run says of itself.
    Mark(u64),
}

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Add(PathBuf, u64),
    Move(PathBuf, PathBuf, u64),
    Remove(PathBuf),
}

/// A change of bytes that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum ByteChange {
    Write { at: usize, bytes: Arc<[u8]> },
    SetLen(usize),
}

/// A file or directory.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    pub(super) is_dir: bool,
    pub(super) now: Vec<u8>,
    pub(super) durable: Vec<u8>,
    pub(super) pending: Vec<ByteChange>,
    /// Blocks that take space.
    blocks: BTreeSet<usize>,
}

/// All that a disk holds.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) next_node: u64,
    pub(super) names: BTreeMap<PathBuf, u64>,
    pub(super) durable_names: BTreeMap<PathBuf, u64>,
    pub(super) pending: Vec<NameChange>,
    /// Blocks that there are; none is no limit.
    capacity: Option<usize>,
    /// Whose limit that is.
    limit: Limit,
}

/// What a disk without room is without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Limit {
    /// Room.
    #[default]
    Disk,
    /// Room for this user: the disk itself says that it has some.
    Quota,
}

impl Limit {
    fn error(self) -> io::Error {
        match self {
            Limit::Disk => io::ErrorKind::StorageFull.into(),
            Limit::Quota => io::ErrorKind::QuotaExceeded.into(),
        }
    }
}

impl NameChange {
    fn dirs(&self) -> [Option<&Path>; 2] {
        match self {
            NameChange::Add(path, _) | NameChange::Remove(path) => [path.parent(), None],
            NameChange::Move(from, to, _) => [from.parent(), to.parent()],
        }
    }

    pub(super) fn apply(self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            NameChange::Add(path, node) => {
                names.insert(path, node);
            }
            NameChange::Move(from, to, node) => {
                names.remove(&from);
                names.insert(to, node);
            }
            NameChange::Remove(path) => {
                names.remove(&path);
            }
        }
    }
}

impl ByteChange {
    pub(super) fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            ByteChange::Write { at, bytes: new } => {
                if bytes.len() < at + new.len() {
                    bytes.resize(at + new.len(), 0);
                }
                bytes[*at..at + new.len()].copy_from_slice(new);
            }
            ByteChange::SetLen(len) => bytes.resize(*len, 0),
        }
    }
}

impl State {
    fn used(&self) -> usize {
        self.nodes.values().map(|node| node.blocks.len()).sum()
    }

    fn free(&self) -> usize {
        self.capacity.map_or(usize::MAX, |capacity| capacity.saturating_sub(self.used()))
    }

    pub(super) fn node(&self, path: &Path) -> io::Result<u64> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn add(&mut self, path: PathBuf, node: Node) -> u64 {
        let number = self.next_node;
        self.next_node += 1;
        self.nodes.insert(number, node);
        self.rename(NameChange::Add(path, number));
        number
    }

    fn rename(&mut self, change: NameChange) {
        change.clone().apply(&mut self.names);
        self.pending.push(change);
    }

    fn change(&mut self, file: u64, change: ByteChange) -> io::Result<()> {
        let (free, limit) = (self.free(), self.limit);
        let Some(node) = self.nodes.get_mut(&file) else { return Err(io::ErrorKind::NotFound.into()) };
        match &change {
            ByteChange::Write { at, bytes } => {
                let touched = at / BLOCK_BYTES..(at + bytes.len()).div_ceil(BLOCK_BYTES);
                let new: Vec<usize> = touched.filter(|block| !node.blocks.contains(block)).collect();
                if new.len() > free {
                    return Err(limit.error());
                }
                node.blocks.extend(new);
            }
            ByteChange::SetLen(len) => {
                node.blocks.split_off(&len.div_ceil(BLOCK_BYTES));
            }
        }
        change.apply(&mut node.now);
        node.pending.push(change);
        Ok(())
    }

    /// Makes the changes of a file that wait durable.
    fn sync(&mut self, file: u64) -> io::Result<()> {
        let Some(node) = self.nodes.get_mut(&file) else { return Err(io::ErrorKind::NotFound.into()) };
        for change in std::mem::take(&mut node.pending) {
            change.apply(&mut node.durable);
        }
        Ok(())
    }

    /// Carries out a call; returns the number of the file that it made.
    pub(super) fn apply(&mut self, call: &Call) -> io::Result<u64> {
        match call {
            Call::MakeDir(path) => {
                for dir in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
                    if !self.names.contains_key(dir) {
                        let number = self.add(dir.to_owned(), Node { is_dir: true, ..Node::default() });
                        if dir.parent().is_none() {
                            // The root has no name that could be lost.
                            self.durable_names.insert(dir.to_owned(), number);
                        }
                    }
                }
            }
            Call::Create(path) => {
                if self.names.contains_key(path) {
                    return Err(io::ErrorKind::AlreadyExists.into());
                }
                if path.parent().is_none_or(|dir| !self.names.contains_key(dir)) {
                    return Err(io::ErrorKind::NotFound.into());
                }
                return Ok(self.add(path.clone(), Node::default()));
            }
            Call::Write { file, at, bytes } => {
                self.change(*file, ByteChange::Write { at: *at, bytes: Arc::clone(bytes) })?;
            }
            Call::SetLen { file, len } => self.change(*file, ByteChange::SetLen(*len))?,
            Call::Sync(file) => self.sync(*file)?,
            Call::Rename(from, to) => {
                let node = self.node(from)?;
                self.rename(NameChange::Move(from.clone(), to.clone(), node));
            }
            Call::Unlink(path) => {
                let node = self.node(path)?;
                self.rename(NameChange::Remove(path.clone()));
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.blocks.clear();
                }
            }
            Call::SyncDir(path) => {
                let pending = std::mem::take(&mut self.pending);
                for change in pending {
                    if change.dirs().contains(&Some(path)) {
                        change.apply(&mut self.durable_names);
                    } else {
                        self.pending.push(change);
                    }
                }
            }
            Call::Reserve(path, bytes) => self.set_aside(path, *bytes)?,
            Call::Mark(_) => {}
        }
        Ok(0)
    }

    fn set_aside(&mut self, path: &Path, bytes: usize) -> io::Result<()> {
        let file = match self.node(path) {
            Ok(file) => file,
            Err(_) => self.add(path.to_owned(), Node::default()),
        };
        let (free, limit) = (self.free(), self.limit);
        let Some(node) = self.nodes.get_mut(&file) else { return Ok(()) };
        let wanted = bytes.div_ceil(BLOCK_BYTES);
        if wanted.saturating_sub(node.blocks.len()) > free {
            return Err(limit.error());
        }
        node.blocks.extend(0..wanted);
        Ok(())
    }
}

/// A call that is to fail.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Calls that still succeed.
    left: u64,
    /// Calls that fail after them.
    times: u64,
    fault: Fault,
}

#[derive(Debug, Default)]
struct Inner {
    state: State,
    writes: Option<Plan>,
    reads: Option<Plan>,
    calls: u64,
    history: Vec<Call>,
}

/// See the module. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct ModelDisk {
    inner: Arc<Mutex<Inner>>,
}

impl ModelDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        ModelDisk::default()
    }

    pub(super) fn of(state: State) -> Self {
        let disk = ModelDisk::new();
        disk.inner().state = state;
        disk
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> State {
        self.inner().state.clone()
    }

    /// Notes that the run reached a point; see [`Replay`].
    pub fn mark(&self, mark: u64) {
        self.inner().history.push(Call::Mark(mark));
    }

    pub(super) fn take_history(&self) -> Vec<Call> {
        std::mem::take(&mut self.inner().history)
    }

    /// Calls that changed something so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.inner().calls
    }

    /// Lets `calls` more calls that change something succeed; the one after them fails, once.
    pub fn fail_write_after(&self, calls: u64, fault: Fault) {
        self.fail_writes_after(calls, 1, fault);
    }

    /// Lets `calls` more calls that change something succeed; the `times` after them fail.
    pub fn fail_writes_after(&self, calls: u64, times: u64, fault: Fault) {
        self.inner().writes = Some(Plan { left: calls, times, fault });
    }

    /// Lets `calls` more reads succeed; the one after them fails, once.
    pub fn fail_read_after(&self, calls: u64) {
        self.inner().reads = Some(Plan { left: calls, times: 1, fault: Fault::Failed });
    }

    /// Nothing fails any more by plan. Returns whether the plan was carried out.
    pub fn heal(&self) -> bool {
        let mut inner = self.inner();
        let is_left = inner.writes.is_some() || inner.reads.is_some();
        (inner.writes, inner.reads) = (None, None);
        !is_left
    }

    /// Leaves room for `bytes` more bytes, in whole blocks of 4 KiB; none is no limit.
    pub fn leave_room(&self, bytes: Option<usize>) {
        let mut inner = self.inner();
        let used = inner.state.used();
        inner.state.capacity = bytes.map(|bytes| used + bytes / BLOCK_BYTES);
        inner.state.limit = Limit::Disk;
    }

    /// As [`ModelDisk::leave_room`], of a user's quota: the disk says that it has room.
    pub fn leave_quota(&self, bytes: usize) {
        self.leave_room(Some(bytes));
        self.inner().state.limit = Limit::Quota;
    }

    /// Flips one bit of a file, as it reads and as it would after a crash.
    pub fn flip(&self, path: &Path, bit: usize) {
        let mut inner = self.inner();
        let Ok(file) = inner.state.node(path) else { return };
        if let Some(node) = inner.state.nodes.get_mut(&file) {
            for bytes in [&mut node.now, &mut node.durable] {
                if let Some(byte) = bytes.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
            }
        }
    }

    /// Bytes of a file.
    #[must_use]
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        let inner = self.inner();
        let file = inner.state.node(path).ok()?;
        inner.state.nodes.get(&file).map(|node| node.now.clone())
    }

    /// All files, directories left out.
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        let inner = self.inner();
        let is_file = |node: &u64| inner.state.nodes.get(node).is_some_and(|node| !node.is_dir);
        inner.state.names.iter().filter(|(_, node)| is_file(node)).map(|(path, _)| path.clone()).collect()
    }

    /// Whether this read fails.
    fn read_step(&self) -> io::Result<()> {
        match due(&mut self.inner().reads) {
            Some(fault) => Err(fault.error()),
            None => Ok(()),
        }
    }

    fn step(&self, call: Call) -> io::Result<u64> {
        let mut inner = self.inner();
        inner.calls += 1;
        let fault = due(&mut inner.writes);
        let done = match fault {
            None => call,
            Some(fault) => match half(&call) {
                Some(half) if fault.is_short() => half,
                _ => return Err(fault.error()),
            },
        };
        let made = inner.state.apply(&done)?;
        inner.history.push(done);
        fault.map_or(Ok(made), |fault| Err(fault.error()))
    }
}

/// Counts a plan down; the fault when it is time.
fn due(plan: &mut Option<Plan>) -> Option<Fault> {
    let held = plan.as_mut()?;
    if held.left == 0 {
        let fault = held.fault;
        held.times -= 1;
        if held.times == 0 {
            *plan = None;
        }
        return Some(fault);
    }
    held.left -= 1;
    None
}

/// The first half of a write.
fn half(call: &Call) -> Option<Call> {
    if let Call::Write { file, at, bytes } = call {
        Some(Call::Write { file: *file, at: *at, bytes: bytes[..bytes.len() / 2].into() })
    } else {
        None
    }
}

#[derive(Debug)]
struct ModelFile {
    disk: ModelDisk,
    file: u64,
    at: usize,
}

impl Write for ModelFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.disk.step(Call::Write { file: self.file, at: self.at, bytes: bytes.into() })?;
        self.at += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NewFile for ModelFile {
    fn sync(&self) -> io::Result<()> {
        self.disk.step(Call::Sync(self.file)).map(|_| ())
    }
}

#[derive(Debug)]
struct ModelBackend {
    disk: ModelDisk,
    file: u64,
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl StorageBackend for ModelBackend {
    fn len(&self) -> io::Result<u64> {
        let inner = self.disk.inner();
        let length = inner.state.nodes.get(&self.file).map_or(0, |node| node.now.len());
        Ok(u64::try_from(length).unwrap_or(u64::MAX))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.disk.read_step()?;
        let inner = self.disk.inner();
        let from = size(offset);
        let bytes = inner.state.nodes.get(&self.file).and_then(|node| node.now.get(from..from + out.len()));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.step(Call::SetLen { file: self.file, len: size(len) }).map(|_| ())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.step(Call::Sync(self.file)).map(|_| ())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.step(Call::Write { file: self.file, at: size(offset), bytes: data.into() }).map(|_| ())
    }
}

impl Disk for ModelDisk {
    fn make_dirs(&self, path: &Path) -> io::Result<()> {
        if self.inner().state.names.contains_key(path) {
            return Ok(());
        }
        self.step(Call::MakeDir(path.to_owned())).map(|_| ())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let file = self.step(Call::Create(path.to_owned()))?;
        Ok(Box::new(ModelFile { disk: self.clone(), file, at: 0 }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        self.read_step()?;
        let inner = self.inner();
        let file = inner.state.node(path)?;
        let bytes = inner.state.nodes.get(&file).map(|node| node.now.clone());
        Ok(Box::new(Cursor::new(bytes.unwrap_or_default())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(Call::Rename(from.to_owned(), to.to_owned())).map(|_| ())
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        if !self.inner().state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.step(Call::Unlink(path.to_owned())).map(|_| ())
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let inner = self.inner();
        let below = inner.state.names.keys().filter(|name| name.parent() == Some(path));
        Ok(below.filter_map(|name| name.file_name().map(OsString::from)).collect())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step(Call::SyncDir(path.to_owned())).map(|_| ())
    }

    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        let held = self.inner().state.node(path);
        let file = match held {
            Ok(file) => file,
            Err(_) => self.step(Call::Create(path.to_owned()))?,
        };
        Ok(Box::new(ModelBackend { disk: self.clone(), file }))
    }

    fn identity(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(self.inner().state.node(path)?.to_be_bytes().to_vec())
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.step(Call::Reserve(path.to_owned(), size(bytes))).map(|_| ())
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        let state = &self.inner().state;
        let free = if state.limit == Limit::Quota { usize::MAX } else { state.free() };
        Ok(u64::try_from(free.saturating_mul(BLOCK_BYTES)).unwrap_or(u64::MAX))
    }
}
