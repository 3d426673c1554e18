//! Entries that follow in the same transfer or file. A verdict on a part is not final: what comes last may anchor what came first, or
//! end its epoch. So a part that cannot be judged by itself is judged together with what follows it, of which only what selection
//! looks at is in memory. `docs/PROTOCOL.md` R-SE-3, `docs/decisions/0048-what-comes-together-is-judged-as-one.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use throughline_protocol::block::{Signed, sha256};
use throughline_protocol::entry::Entry;
use throughline_protocol::fork::Skeleton;
use throughline_protocol::id::{EntryCid, Principal, SessionId};
use throughline_store::Reader;

use crate::api::error::Answer;

/// What follows the entries that arrived.
#[derive(Clone, Debug, Default)]
pub enum Follows {
    /// Nothing: what is held and what arrived is all there is.
    #[default]
    Nothing,
    /// Something that nobody has looked at.
    Unread,
    /// These.
    Known(Arc<Following>),
}

/// A whole transfer or file, read before any part of it is taken in. Signatures were checked.
#[derive(Debug, Default)]
pub struct Following {
    skeletons: BTreeMap<EntryCid, Skeleton>,
    /// What the last judgement chose, and the control blobs that it was made on.
    chosen: Mutex<Option<(ControlDigest, BTreeSet<EntryCid>)>>,
}

impl Following {
    /// Notes an entry.
    pub fn note(&mut self, signed: &Signed<Entry>) {
        self.skeletons.insert(signed.cid(), Skeleton::of(signed));
    }

    pub(super) fn skeletons(&self) -> impl Iterator<Item = &Skeleton> {
        self.skeletons.values()
    }

    /// Selection chose these for the main chain. While nothing but them arrives it would again.
    pub(super) fn choose(&self, digest: ControlDigest, path: &[EntryCid]) {
        let chosen = Some((digest, path.iter().copied().collect()));
        *self.chosen.lock().unwrap_or_else(PoisonError::into_inner) = chosen;
    }

    /// Whether the last judgement chose all of these, under the same control blobs.
    pub(super) fn chose(&self, digest: ControlDigest, entries: impl IntoIterator<Item = EntryCid>) -> bool {
        let chosen = self.chosen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((under, path)) = chosen.as_ref() else { return false };
        *under == digest && entries.into_iter().all(|cid| path.contains(&cid))
    }
}

/// A hash over all control blobs that a session is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlDigest([u8; 32]);

impl ControlDigest {
    /// Of what is held.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn of(reader: &Reader, owner: Principal, session: SessionId) -> Answer<Self> {
        let mut hashed = reader.owner_digest(owner)?.digest.to_vec();
        for reference in reader.refs_of_session(session)? {
            hashed.extend(sha256(&reference));
        }
        Ok(ControlDigest(sha256(&hashed)))
    }
}
