//! Why a key could not be read, written or opened.

use std::io;
use std::path::{Path, PathBuf};

use throughline_protocol::code::Code;
use throughline_protocol::id::Principal;

use crate::dirs::{DirsError, shell_word};

/// Why a key could not be read, written or opened. No message holds secret bytes.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The keys directory is missing, not private, or could not be made.
    #[error(transparent)]
    Dirs(#[from] DirsError),
    /// The file is not there.
    #[error("expected a key file at {}, got none", path.display())]
    Missing {
        /// Which file.
        path: PathBuf,
    },
    /// The file is a link, a directory, a pipe or a device.
    #[error("expected {} to be a regular file, got {got}", path.display())]
    Kind {
        /// Which file.
        path: PathBuf,
        /// What it is.
        got: &'static str,
    },
    /// The file belongs to someone else.
    #[error("expected {} to belong to user {expected}, got user {got}", path.display())]
    Owner {
        /// Which file.
        path: PathBuf,
        /// The user id of this process.
        expected: u32,
        /// The user id of the file.
        got: u32,
    },
    /// The file is open to others.
    #[error("expected mode 0600, got {mode:04o}: chmod 600 {}", shell_word(path))]
    Mode {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The content is cut off, damaged or of another kind.
    #[error("expected {expected} in {place}, got something else")]
    Format {
        /// The path, or where else the text came from.
        place: String,
        /// What should stand there.
        expected: String,
    },
    /// A key is already there; keys are never overwritten.
    #[error("expected no key file at {}, got one; keys are never overwritten", path.display())]
    Exists {
        /// Which file.
        path: PathBuf,
    },
    /// Another owner's key is already there; keys are never overwritten.
    #[error("this node has the owner key {have}, which would be overwritten by {need}; nothing was changed")]
    OtherOwner {
        /// The owner whose key is here.
        have: Principal,
        /// The owner whose key was given.
        need: Principal,
    },
    /// The owner key is encrypted and no passphrase was given.
    #[error("expected a passphrase for the owner key, got none: pass --passphrase-fd N")]
    Locked,
    /// The passphrase does not open the owner key.
    #[error("expected the passphrase of the owner key, got another one")]
    Passphrase,
    /// The operating system gave no random bytes, or the memory for the key derivation.
    #[error("expected {expected} from the operating system, got: {got}")]
    System {
        /// What was asked for.
        expected: &'static str,
        /// What it said.
        got: String,
    },
    /// The operating system refused to read or write.
    #[error("expected to {act} {}, got: {source}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl KeyError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            KeyError::Dirs(error) => error.code(),
            KeyError::Missing { .. } => Code::KeyfileMissing,
            KeyError::Kind { .. } => Code::KeyfileType,
            KeyError::Owner { .. } => Code::KeyfileOwner,
            KeyError::Mode { .. } => Code::KeyfileMode,
            KeyError::Format { .. } => Code::KeyfileFormat,
            KeyError::Exists { .. } | KeyError::OtherOwner { .. } | KeyError::Locked => Code::OwnerKey,
            KeyError::Passphrase => Code::Passphrase,
            KeyError::System { .. } => Code::Internal,
            KeyError::Io { .. } => Code::StoreIo,
        }
    }

    pub(crate) fn io(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyError {
        move |source| KeyError::Io { act, path: path.to_owned(), source }
    }
}
