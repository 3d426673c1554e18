//! A verified run of entries.

use std::sync::{Arc, OnceLock};

use super::state::ChainState;
use crate::block::Signed;
use crate::code::Reject;
use crate::entry::Entry;
use crate::fork::Mark;
use crate::id::{Cid, SessionId};

/// What a segment stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Nothing: it begins with the genesis.
    Nothing,
    /// The entry before its first one, which was verified earlier.
    On(Mark),
}

/// One entry whose bytes, signature, links and authority were checked, and its payload when it came along.
#[derive(Clone, Debug)]
pub struct VerifiedEntry {
    pub(super) signed: Signed<Entry>,
    pub(super) payload: Option<Arc<[u8]>>,
    pub(super) named: Named,
}

/// What an entry and its payload name, noted when the payload was read: nobody has to read it again for that.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    /// Config and files.
    pub(super) files: Vec<Cid>,
    /// Why one of its files can be none.
    pub(super) no_file: Option<Reject>,
    pub(super) title: Option<String>,
}

impl VerifiedEntry {
    /// The entry.
    #[must_use]
    pub fn signed(&self) -> &Signed<Entry> {
        &self.signed
    }

    /// The bytes of its payload, checked against the entry. None when the entry names none or it did not come along.
    #[must_use]
    pub fn payload(&self) -> Option<&Arc<[u8]>> {
        self.payload.as_ref()
    }

    /// The config and the files that it names, as far as its payload came along.
    #[must_use]
    pub fn files(&self) -> &[Cid] {
        &self.named.files
    }

    /// The title that its payload sets, if that came along.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.named.title.as_deref()
    }
}

/// A run of entries, oldest first, each verified on the one before. It is *in* the session; whether a later tombstone cuts
/// it and whether it is the head is for [`crate::fork::Set::select`].
#[derive(Clone, Debug)]
pub struct VerifiedSegment {
    pub(super) base: Base,
    pub(super) entries: Vec<VerifiedEntry>,
    pub(super) after: ChainState,
    /// Its bytes, once they were asked for.
    pub(super) after_bytes: OnceLock<Vec<u8>>,
}

impl VerifiedSegment {
    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.after.session()
    }

    /// What it stands on.
    #[must_use]
    pub fn base(&self) -> Base {
        self.base
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[VerifiedEntry] {
        &self.entries
    }

    /// The chain after its last entry.
    #[must_use]
    pub fn after(&self) -> &ChainState {
        &self.after
    }

    /// The bytes of that chain's state, as [`ChainState::to_bytes`] makes them. Made once.
    #[must_use]
    pub fn after_bytes(&self) -> &[u8] {
        self.after_bytes.get_or_init(|| self.after.to_bytes())
    }

    /// Its parts, for a store that moves the bytes into place.
    #[must_use]
    pub fn into_parts(self) -> (Base, Vec<VerifiedEntry>, ChainState) {
        (self.base, self.entries, self.after)
    }
}

impl VerifiedEntry {
    /// Its parts.
    #[must_use]
    pub fn into_parts(self) -> (Signed<Entry>, Option<Arc<[u8]>>) {
        (self.signed, self.payload)
    }
}
