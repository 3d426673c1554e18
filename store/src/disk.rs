//! The one way from the store to a file system: the database's bytes and the payload files.
//!
//! It decides nothing. It exists so that a test can put a disk under the store that fails, fills up, or loses what was not
//! synced ([`crate::testing`]); the store itself uses [`RealDisk`] and no other code of this crate writes files, but for the
//! lock.

use std::ffi::OsString;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use redb::StorageBackend;
use redb::backends::FileBackend;
use rustix::fs::FallocateFlags;

/// A file being written.
pub trait NewFile: Write + Debug + Send {
    /// Makes its bytes durable; not its name.
    ///
    /// # Errors
    /// As the disk fails.
    fn sync(&self) -> io::Result<()>;
}

/// What the store asks of a file system.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Makes a directory and those above it, for this user only; those that exist are left as they are.
    ///
    /// # Errors
    /// As the disk fails.
    fn make_dirs(&self, path: &Path) -> io::Result<()>;

    /// Begins a file that is not there yet, for this user only.
    ///
    /// # Errors
    /// `AlreadyExists`; as the disk fails.
    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound`; as the disk fails.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>>;

    /// Puts a file in another's place.
    ///
    /// # Errors
    /// As the disk fails.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound`; as the disk fails.
    fn unlink(&self, path: &Path) -> io::Result<()>;

    /// The names in a directory; none when it is not one.
    ///
    /// # Errors
    /// As the disk fails.
    fn names(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// As the disk fails.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes the bytes of several files durable; not their names. In any order, or at once.
    ///
    /// # Errors
    /// As the disk fails; any of them may be durable then.
    fn sync_files(&self, files: &mut [Box<dyn NewFile>]) -> io::Result<()> {
        files.iter().try_for_each(|file| file.sync())
    }

    /// Makes the names in several directories durable, in any order, or at once.
    ///
    /// # Errors
    /// As the disk fails; any of them may be durable then.
    fn sync_dirs(&self, paths: &[PathBuf]) -> io::Result<()> {
        paths.iter().try_for_each(|path| self.sync_dir(path))
    }

    /// Opens the database's file; makes it when there is none.
    ///
    /// # Errors
    /// As the disk fails.
    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>>;

    /// What tells a file from a copy of it: inode and birth time.
    ///
    /// # Errors
    /// As the disk fails.
    fn identity(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// Makes a file of `bytes` bytes that the disk has set aside, or makes one as long as that again.
    ///
    /// # Errors
    /// `StorageFull`; as the disk fails.
    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()>;

    /// Bytes that this user can still write below a directory.
    ///
    /// # Errors
    /// As the disk fails.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// The operating system's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

/// Threads that sync at a time. A file system makes durable with one write what several of them wait for.
const SYNCS_AT_ONCE: usize = 8;

/// How many of `count` each thread gets.
fn share(count: usize) -> usize {
    count.div_ceil(SYNCS_AT_ONCE).max(1)
}

/// Does something with every share, each in a thread of its own but for the last, which is done in this one; so is what the
/// system has no thread for.
fn at_once<T: Send>(
    shares: impl ExactSizeIterator<Item = T>,
    thread: impl Fn() -> Builder,
    act: impl Fn(T) -> io::Result<()> + Sync,
) -> io::Result<()> {
    // A share is taken out by whoever does it, so that it is still here when no thread could be started.
    let mut shares: Vec<Mutex<Option<T>>> = shares.map(|share| Mutex::new(Some(share))).collect();
    let last = shares.pop().and_then(|last| last.into_inner().unwrap_or_else(PoisonError::into_inner));
    let do_one = |share: &Mutex<Option<T>>| {
        let share = share.lock().unwrap_or_else(PoisonError::into_inner).take();
        share.map_or(Ok(()), &act)
    };
    std::thread::scope(|scope| {
        let do_one = &do_one;
        let running: Vec<_> =
            shares.iter().map(|share| (share, thread().spawn_scoped(scope, move || do_one(share)))).collect();
        let here = last.map_or(Ok(()), &act);
        let ended = running.into_iter().map(|(share, thread)| match thread {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread that synced ended early")))
            }
            Err(_) => do_one(share),
        });
        ended.fold(here, io::Result::and)
    })
}

impl NewFile for File {
    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for RealDisk {
    fn make_dirs(&self, path: &Path) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Box::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        match fs::read_dir(path) {
            Ok(listed) => listed.map(|entry| Ok(entry?.file_name())).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_files(&self, files: &mut [Box<dyn NewFile>]) -> io::Result<()> {
        let shares = files.chunks_mut(share(files.len()));
        at_once(shares, Builder::new, |files| files.iter().try_for_each(|file| file.sync()))
    }

    fn sync_dirs(&self, paths: &[PathBuf]) -> io::Result<()> {
        let shares = paths.chunks(share(paths.len()));
        at_once(shares, Builder::new, |paths| paths.iter().try_for_each(|path| self.sync_dir(path)))
    }

    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let backend = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Box::new(backend))
    }

    fn identity(&self, path: &Path) -> io::Result<Vec<u8>> {
        let metadata = fs::metadata(path)?;
        let born = metadata.created().ok();
        let born = born.and_then(|born| born.duration_since(std::time::UNIX_EPOCH).ok());
        let mut identity = metadata.ino().to_be_bytes().to_vec();
        identity.extend(born.map_or(0, |born| born.as_nanos()).to_be_bytes());
        Ok(identity)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(path)?;
        if file.metadata()?.len() > bytes {
            file.set_len(bytes)?;
        }
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        Ok(())
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let found = rustix::fs::statvfs(path)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(thread: impl Fn() -> Builder, failing: Option<usize>) -> (Vec<usize>, io::Result<()>) {
        let done = Mutex::new(Vec::new());
        let ended = at_once(0..SYNCS_AT_ONCE, thread, |share| {
            done.lock().unwrap().push(share);
            if failing == Some(share) { Err(io::Error::other("on purpose")) } else { Ok(()) }
        });
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        (done, ended)
    }

    #[test]
    fn every_share_is_done_and_a_failure_of_any_is_told_also_without_threads() {
        // No system has room for such a stack.
        let none = || Builder::new().stack_size(usize::MAX / 2);
        assert!(none().spawn(|| ()).is_err());
        let all: Vec<usize> = (0..SYNCS_AT_ONCE).collect();
        for failing in [None].into_iter().chain(all.iter().copied().map(Some)) {
            for (told, ended) in [done(Builder::new, failing), done(none, failing)] {
                assert_eq!((&told, ended.is_err()), (&all, failing.is_some()), "{failing:?}");
            }
        }
    }
}
