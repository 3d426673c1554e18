//! What can go wrong in the store: one enum an act, each with its stable code.
//!
//! A refusal of [`AdoptError`] left the store as it was. A failed write or fsync makes the whole store read-only
//! ([`StoreError::ReadOnly`]): after it nothing is known about what the disk holds until the next open, so nothing more
//! is promised. Reads go on.

use std::io;

use throughline_protocol::code::{Code, Fault, Reject};
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Epoch, Seq};

/// Reading or writing failed, or a write was refused.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Stored bytes are not what was stored; they were not handed out.
    #[error("stored bytes are damaged: {what}")]
    Corrupt {
        /// Which bytes, and how it was seen.
        what: String,
    },
    /// The index and the entries disagree.
    #[error("the index contradicts the entries: {what}")]
    Index {
        /// Which row, and what it says.
        what: String,
    },
    /// An earlier write failed; this process writes no more.
    #[error("the store takes no writes: {why}")]
    ReadOnly {
        /// The failure that closed it.
        why: String,
    },
    /// The store was closed, or its writer ended.
    #[error("the store is closed")]
    Closed,
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What came.
        source: io::Error,
    },
    /// The database refused.
    #[error("the database refused: {0}")]
    Database(redb::Error),
    /// A quota has no room.
    #[error("{what} has room for {max_bytes} bytes; it would hold {asked_bytes}")]
    Quota {
        /// Which quota.
        what: &'static str,
        /// What it would hold.
        asked_bytes: u64,
        /// What it may hold.
        max_bytes: u64,
    },
    /// What the operation is about is not here.
    #[error("no such {what}")]
    NotFound {
        /// What was looked for, ids in short form.
        what: String,
    },
    /// Another row stands in the way: the base that the caller built on is not what is held.
    #[error("{what} changed since it was read")]
    Moved {
        /// What changed.
        what: String,
    },
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    Idempotency,
    /// The blob is not one that is kept.
    #[error("{0}")]
    Refused(Reject),
}

impl StoreError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            StoreError::Corrupt { .. } => Code::StoreCorrupt,
            StoreError::Index { .. } => Code::IndexCorrupt,
            StoreError::ReadOnly { .. } | StoreError::Closed => Code::StoreReadOnly,
            StoreError::Io { .. } | StoreError::Database(_) => Code::StoreIo,
            StoreError::Quota { .. } => Code::Quota,
            StoreError::NotFound { .. } => Code::NotFoundYet,
            StoreError::Moved { .. } => Code::HeadMoved,
            StoreError::Idempotency => Code::Idempotency,
            StoreError::Refused(reject) => reject.code,
        }
    }

    /// Whose fault it is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        self.code().fault()
    }

    /// Whether the disk, or the user's share of it, had no room.
    pub(crate) fn is_storage_full(&self) -> bool {
        if let StoreError::Io { source, .. } | StoreError::Database(redb::Error::Io(source)) = self {
            matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        } else {
            false
        }
    }

    /// Whether nothing was tried, because the process, or the system, had no descriptor left to open a file with.
    pub(crate) fn is_out_of_descriptors(&self) -> bool {
        let StoreError::Io { source, .. } = self else { return false };
        let errno = rustix::io::Errno::from_io_error(source);
        errno.is_some_and(|errno| [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].contains(&errno))
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        StoreError::Corrupt { what: what.into() }
    }

    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Self {
        StoreError::Io { what: what.into(), source }
    }

    pub(crate) fn not_found(what: impl Into<String>) -> Self {
        StoreError::NotFound { what: what.into() }
    }
}

impl From<redb::Error> for StoreError {
    fn from(error: redb::Error) -> Self {
        /// What a page that is damaged makes of a read: a place behind the end of the file, or no database at all.
        const DAMAGE: [io::ErrorKind; 2] = [io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData];
        if let redb::Error::Corrupted(what) = error {
            return StoreError::corrupt(what);
        }
        if let redb::Error::Io(error) = &error
            && DAMAGE.contains(&error.kind())
        {
            return StoreError::corrupt(format!("store.redb: {error}"));
        }
        // Every table is made with the database and asked for by one type: another one, or none, is damage to its name.
        if matches!(
            error,
            redb::Error::TableTypeMismatch { .. }
                | redb::Error::TableIsMultimap(_)
                | redb::Error::TableIsNotMultimap(_)
                | redb::Error::TableDoesNotExist(_)
                | redb::Error::TypeDefinitionChanged { .. }
        ) {
            return StoreError::corrupt(format!("store.redb: {error}"));
        }
        StoreError::Database(error)
    }
}

impl From<Reject> for StoreError {
    fn from(reject: Reject) -> Self {
        StoreError::Refused(reject)
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for StoreError {
            fn from(error: redb::$error) -> Self {
                StoreError::from(redb::Error::from(error))
            }
        })*
    };
}

from_redb!(StorageError, TableError, TransactionError, CommitError);

/// A segment was not adopted. Nothing of it was stored.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The session's tip is not the segment's base.
    #[error("the segment is built on another head; {}", held(.tip))]
    HeadMoved {
        /// The tip that is held now; none if the session is not held.
        tip: Option<Mark>,
    },
    /// Capabilities or tombstones of the owner came after the segment was judged.
    #[error(
        "expected the grants and revocations that it was judged under, others of the owner came meanwhile: try again"
    )]
    ControlsMoved,
    /// The session is frozen for a handoff: only an entry that opens a later epoch may follow.
    #[error("the session is frozen at epoch {epoch}")]
    Frozen {
        /// The epoch that was frozen.
        epoch: Epoch,
    },
    /// This node handed the session over and signs nothing in it at this epoch.
    #[error("the session was handed over after epoch {epoch}")]
    Retired {
        /// The last epoch that this node held.
        epoch: Epoch,
    },
    /// An entry signed here is of an epoch that has ended.
    #[error("epoch {held} has begun; this entry is of epoch {offered}")]
    Fenced {
        /// The highest epoch known.
        held: Epoch,
        /// That of the entry.
        offered: Epoch,
    },
    /// This node may not sign here until a handoff opens a new epoch.
    #[error("{0}")]
    SignGuard(GuardError),
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    Idempotency,
    /// The store could not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl AdoptError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            AdoptError::HeadMoved { .. } | AdoptError::ControlsMoved => Code::HeadMoved,
            AdoptError::Frozen { .. } => Code::Frozen,
            AdoptError::Retired { .. } => Code::Retired,
            AdoptError::Fenced { .. } => Code::Fenced,
            AdoptError::SignGuard(_) => Code::SignGuard,
            AdoptError::Idempotency => Code::Idempotency,
            AdoptError::Store(error) => error.code(),
        }
    }
}

impl From<Reject> for AdoptError {
    fn from(reject: Reject) -> Self {
        AdoptError::Store(StoreError::Refused(reject))
    }
}

/// Why the sign guard forbids a signature. Its code is always `E_SIGN_GUARD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// No row, in a session that this data directory neither created nor took over.
    #[error("no guard row: this data directory never signed in the session, or was restored from a backup")]
    NoRow,
    /// The last entry that was signed here is not on the chain that the new one would extend.
    #[error("the entry last signed here, seq {seq} of epoch {epoch}, is not an ancestor of the new one")]
    NotDescendant {
        /// Seq of the entry last signed here.
        seq: Seq,
        /// Its epoch.
        epoch: Epoch,
    },
    /// An entry of a later epoch was signed here.
    #[error("epoch {signed} was signed here already; the new entry is of epoch {offered}")]
    EpochBehind {
        /// Epoch of the entry last signed here.
        signed: Epoch,
        /// That of the new entry.
        offered: Epoch,
    },
    /// The row cannot be read.
    #[error(
        "the guard row is damaged: what was signed here is not known; `throughline fsck --repair` notes it"
    )]
    Damaged,
    /// This directory did not take the session over in this epoch: the handoff came here and was none that it took part in, or the key
    /// went on elsewhere.
    #[error("epoch {epoch} was not taken over here; the last one in which this directory signed is {signed}")]
    NotTakenOver {
        /// Epoch of the entry last signed here.
        signed: Epoch,
        /// The one that is held.
        epoch: Epoch,
    },
    /// A row that told what was signed here was damaged. Only an epoch above this one counts, whose offer was answered after that.
    #[error("what was signed here up to epoch {epoch} is not known any more: a row that told it was damaged")]
    Unknown {
        /// The highest epoch that was known.
        epoch: Epoch,
    },
    /// The segment ends in an entry that another key signed.
    #[error("the entries were not signed by this node's key")]
    NotOurs,
}

/// The data directory was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process holds it.
    #[error("process {pid} holds the data directory: {command}")]
    Locked {
        /// Its process id; 0 if it could not be read.
        pid: u32,
        /// When it started, in Unix milliseconds; 0 if it could not be read.
        started_ms: u64,
        /// What it runs.
        command: String,
    },
    /// It was written by another format, or its VERSION file is not readable.
    #[error("expected a data directory of format {known}, got {found}, written by {written_by}")]
    Version {
        /// The format that was found; 0 if it could not be read.
        found: u32,
        /// The newest format known here.
        known: u32,
        /// The program that wrote it.
        written_by: String,
    },
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl OpenError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            OpenError::Locked { .. } => Code::Locked,
            OpenError::Version { .. } => Code::StoreVersion,
            OpenError::Store(error) => error.code(),
        }
    }
}

fn held(tip: &Option<Mark>) -> String {
    match tip {
        Some(tip) => format!("seq {} is held", tip.seq),
        None => "the session is not held".to_owned(),
    }
}
