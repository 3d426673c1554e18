//! The operating system's disk, which kills the process at its n-th call that changes something: `kill -9` at every write.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::StorageBackend;
use rustix::process::{Signal, getpid, kill_process};

use crate::disk::{Disk, NewFile, RealDisk};

/// See the module.
#[derive(Clone, Debug)]
pub struct KillDisk {
    disk: RealDisk,
    left: Arc<AtomicU64>,
}

/// Whether a call is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Whole,
    /// It is the last one of this process; half of it may reach the disk.
    Last,
}

impl KillDisk {
    /// Dies at the call number `calls`; the first is 1.
    #[must_use]
    pub fn at_call(calls: u64) -> Self {
        KillDisk { disk: RealDisk, left: Arc::new(AtomicU64::new(calls)) }
    }

    fn turn(&self) -> Turn {
        if self.left.fetch_sub(1, Ordering::SeqCst) == 1 { Turn::Last } else { Turn::Whole }
    }

    fn step(&self) {
        if self.turn() == Turn::Last {
            die();
        }
    }
}

/// Ends the process as `kill -9` does. Other threads may still run for a moment: none of them gets past this one's write.
fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    loop {
        std::thread::park();
    }
}

#[derive(Debug)]
struct KillFile {
    disk: KillDisk,
    file: Box<dyn NewFile>,
}

impl Write for KillFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.disk.turn() == Turn::Last {
            let _ = self.file.write_all(&bytes[..bytes.len() / 2]);
            die();
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl NewFile for KillFile {
    fn sync(&self) -> io::Result<()> {
        self.disk.step();
        self.file.sync()
    }
}

#[derive(Debug)]
struct KillBackend {
    disk: KillDisk,
    file: Box<dyn StorageBackend>,
}

impl StorageBackend for KillBackend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.step();
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.disk.step();
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.disk.turn() == Turn::Last {
            let _ = self.file.write(offset, &data[..data.len() / 2]);
            die();
        }
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }
}

impl Disk for KillDisk {
    fn make_dirs(&self, path: &Path) -> io::Result<()> {
        self.step();
        self.disk.make_dirs(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        self.step();
        Ok(Box::new(KillFile { disk: self.clone(), file: self.disk.create(path)? }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        self.disk.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step();
        self.disk.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.step();
        self.disk.unlink(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.disk.names(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step();
        self.disk.sync_dir(path)
    }

    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        Ok(Box::new(KillBackend { disk: self.clone(), file: self.disk.database(path)? }))
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
