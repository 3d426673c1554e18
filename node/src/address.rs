//! Where the API of the node that runs on a data directory answers: a note in the directory itself, beside the lock.
//!
//! The socket lies in the run directory, which the environment names; a login, `cron` and a service manager may name different
//! ones, while all of them mean the same data. It decides which socket is that of the node which holds this data directory. It
//! must never lead to another node: a note counts only while the process that wrote it holds the lock, and a socket only when that
//! very process answers on it. So a note that a crash left does no harm, nor does one that was copied with the directory.
//! `docs/decisions/0037`.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use throughline_protocol::code::Code;
use tokio::net::UnixStream;

use crate::api::error::Problem;
use crate::dirs::Dirs;

/// Bytes of a note that are read, at most: a path is shorter by far.
const NOTE_BYTES_MAX: u64 = 8 * 1024;

/// What a process wrote about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    pid: u32,
    /// All below the first line.
    rest: Vec<u8>,
}

/// Notes where the API of this process answers. Call it with the lock held, once the socket is open.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(dirs: &Dirs, socket: &Path) -> io::Result<()> {
    let path = dirs.socket_note();
    // Made anew each time: nobody has it open, and it has the mode that it is to have.
    remove(dirs);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut text = format!("{}\n", std::process::id()).into_bytes();
    text.extend_from_slice(socket.as_os_str().as_bytes());
    text.push(b'\n');
    file.write_all(&text)
}

/// Takes the note back.
pub(crate) fn remove(dirs: &Dirs) {
    // One that stays does no harm.
    let _ = std::fs::remove_file(dirs.socket_note());
}

/// The socket of the node that holds the data directory, if it answers there.
pub(crate) async fn find(dirs: &Dirs) -> Option<PathBuf> {
    let (pid, socket) = noted(dirs)?;
    let stream = UnixStream::connect(&socket).await.ok()?;
    let peer = stream.peer_cred().ok()?;
    let is_it = peer.uid() == rustix::process::getuid().as_raw()
        && peer.pid().and_then(|peer| u32::try_from(peer).ok()) == Some(pid);
    // Last, and only then: whoever opens the directory in this moment finds it locked.
    (is_it && is_locked(dirs)).then_some(socket)
}

/// Whether a process holds the data directory. The lock is asked for and given back at once.
pub(crate) fn is_locked(dirs: &Dirs) -> bool {
    let asked = FlockOperation::NonBlockingLockShared;
    File::open(dirs.lock_file()).is_ok_and(|file| flock(&file, asked) == Err(Errno::WOULDBLOCK))
}

/// What keeps a command out of the data directory, and what helps.
pub(crate) fn locked(dirs: &Dirs) -> Problem {
    let Some(Note { pid, rest }) = read(&dirs.lock_file()) else {
        return Problem::new(Code::Locked, "another process holds the data directory");
    };
    let text = String::from_utf8_lossy(&rest);
    // Below the pid stand the start and the command.
    let command = text.lines().nth(1).unwrap_or_default();
    let mut detail = format!("process {pid} holds the data directory: {command}");
    let Some((_, socket)) = noted(dirs) else {
        return Problem::new(Code::Locked, detail).hint(format!("wait until it ends, or: kill {pid}"));
    };
    detail.push_str(&format!("; its API is at {}, where it does not answer from here", socket.display()));
    let socket = crate::dirs::shell_word(&socket);
    Problem::new(Code::Locked, detail)
        .hint(format!("throughline --api unix:{socket} status; if that does not answer either: kill {pid}"))
}

/// Who wrote the note and what it names, while that process is the last that took the lock.
fn noted(dirs: &Dirs) -> Option<(u32, PathBuf)> {
    let Note { pid, rest } = read(&dirs.socket_note())?;
    let path = rest.strip_suffix(b"\n")?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    let holds = || read(&dirs.lock_file()).is_some_and(|lock| lock.pid == pid);
    (path.is_absolute() && holds()).then_some((pid, path))
}

/// Reads a note: a plain file of this user that nobody else may write, or none.
fn read(path: &Path) -> Option<Note> {
    // NONBLOCK: opening a pipe must come to the check of its kind instead of waiting for a writer.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).ok()?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let meta = file.metadata().ok()?;
    let is_ours = meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0;
    if !meta.is_file() || !is_ours || meta.len() > NOTE_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(NOTE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let rest = bytes.split_off(end.saturating_add(1));
    let pid = std::str::from_utf8(bytes.strip_suffix(b"\n")?).ok()?.parse().ok()?;
    Some(Note { pid, rest })
}

#[cfg(test)]
#[path = "address_tests.rs"]
mod tests;
