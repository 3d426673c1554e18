//! Key files on disk: read only when nobody else could have read or written them, written once, whole or not at all.
//!
//! A file is opened relative to the checked keys directory and without following links; every check is made on the
//! opened file, so swapping it between check and use gains nothing.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use zeroize::Zeroizing;

use super::KeyError;
use crate::dirs::{Dirs, DirsError, open_private};

/// Largest key file that is read, in bytes; a real one has about 400.
pub(super) const KEY_FILE_BYTES_MAX: usize = 4096;
/// The mode of a key file.
const FILE_MODE: u32 = 0o600;

/// The keys directory, opened and found private.
pub(super) struct KeysDir {
    path: PathBuf,
    fd: OwnedFd,
}

impl KeysDir {
    /// Opens the keys directory; that it does not exist says that the key file `name` is missing.
    pub(super) fn open(dirs: &Dirs, name: &str) -> Result<Self, KeyError> {
        let path = dirs.keys();
        match open_private(&path) {
            Ok(fd) => Ok(KeysDir { path, fd }),
            Err(DirsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(KeyError::Missing { path: path.join(name) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where the key file `name` lies.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Reads the key file `name` after all checks.
    pub(super) fn read(&self, name: &str) -> Result<Zeroizing<String>, KeyError> {
        read_at(self.fd.as_fd(), name.as_ref(), &self.path(name))
    }

    /// Writes a new key file `name`; an existing one stays and is an error.
    pub(super) fn write_new(&self, name: &str, text: &str) -> Result<(), KeyError> {
        write_at(self.fd.as_fd(), &self.path, &self.path(name), text)
    }
}

/// Reads a secret that is no key, such as the token of the API, after the checks of a key file: no link, a regular file, of
/// this user, mode 0600 or stricter. Its directory is not looked at.
///
/// # Errors
/// As for a key file.
pub(crate) fn read_private(path: &Path) -> Result<Zeroizing<String>, KeyError> {
    read_at(rustix::fs::CWD, path, path)
}

/// Writes such a secret, mode 0600, whole or not at all; an existing one stays and is [`KeyError::Exists`].
///
/// # Errors
/// When the disk fails.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<(), KeyError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(parent, flags, Mode::empty());
    let dir = dir.map_err(|errno| KeyError::io("open", parent)(errno.into()))?;
    write_at(dir.as_fd(), parent, path, text)
}

/// Reads `name` below `dir`; `path` is for messages.
fn read_at(dir: BorrowedFd<'_>, name: &Path, path: &Path) -> Result<Zeroizing<String>, KeyError> {
    let path = path.to_owned();
    // NONBLOCK: opening a pipe must come to the check of its kind instead of waiting for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|errno| match errno {
        Errno::LOOP => KeyError::Kind { path: path.clone(), got: "a symbolic link" },
        Errno::NOENT => KeyError::Missing { path: path.clone() },
        // What a socket gives.
        Errno::NXIO => KeyError::Kind { path: path.clone(), got: "another kind of file" },
        errno => KeyError::io("open", &path)(errno.into()),
    })?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| KeyError::io("examine", &path)(errno.into()))?;
    check(&stat, &path)?;
    read_text(fd, &path)
}

/// Writes `path`, which lies in `parent`, opened as `dir`.
fn write_at(dir: BorrowedFd<'_>, parent: &Path, path: &Path, text: &str) -> Result<(), KeyError> {
    let mut file = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(Permissions::from_mode(FILE_MODE))
        .tempfile_in(parent)
        .map_err(KeyError::io("write", path))?;
    file.write_all(text.as_bytes()).map_err(KeyError::io("write", path))?;
    file.as_file().sync_all().map_err(KeyError::io("write", path))?;
    file.persist_noclobber(path).map_err(|refused| {
        if refused.error.kind() == io::ErrorKind::AlreadyExists {
            KeyError::Exists { path: path.to_owned() }
        } else {
            KeyError::io("write", path)(refused.error)
        }
    })?;
    rustix::fs::fsync(dir).map_err(|errno| KeyError::io("write", path)(errno.into()))
}

/// Refuses what is no regular file, of another user, or open to others.
fn check(stat: &Stat, path: &Path) -> Result<(), KeyError> {
    let path = path.to_owned();
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile {
        let got = if kind == FileType::Directory { "a directory" } else { "another kind of file" };
        return Err(KeyError::Kind { path, got });
    }
    let expected = rustix::process::geteuid().as_raw();
    if stat.st_uid != expected {
        return Err(KeyError::Owner { path, expected, got: stat.st_uid });
    }
    let mode = Mode::from_raw_mode(stat.st_mode).bits();
    if mode & !FILE_MODE != 0 {
        return Err(KeyError::Mode { path, mode });
    }
    Ok(())
}

/// Reads a text of at most [`KEY_FILE_BYTES_MAX`] without leaving copies of it in memory.
fn read_text(fd: OwnedFd, path: &Path) -> Result<Zeroizing<String>, KeyError> {
    let mut bytes = Zeroizing::new(vec![0; KEY_FILE_BYTES_MAX + 1]);
    let mut file = File::from(fd);
    let mut length = 0;
    while length < bytes.len() {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(KeyError::io("read", path)(error)),
        }
    }
    let format = |expected: String| KeyError::Format { place: path.display().to_string(), expected };
    if length > KEY_FILE_BYTES_MAX {
        return Err(format(format!("at most {KEY_FILE_BYTES_MAX} bytes")));
    }
    let text = std::str::from_utf8(&bytes[..length]).map_err(|_| format("text".to_owned()))?;
    Ok(Zeroizing::new(text.to_owned()))
}
