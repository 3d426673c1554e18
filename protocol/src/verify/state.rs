//! Where a verified chain stands: all that is needed to verify the next entry.

use std::collections::BTreeSet;

use crate::entry::Class;
use crate::fork::{
    BlobHash, Ending, Lineage, Linked, Mark, Opening, Position, SessionFacts, Skeleton, Standing,
};
use crate::id::{AgentIri, EntryCid, Principal, SessionId};
use crate::limits;
use crate::skip::SkipPath;

/// The state of one linear chain after its tip; a few kilobytes, whatever the length. A store keeps one a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainState {
    pub(super) session: SessionFacts,
    pub(super) position: Position,
    pub(super) path: SkipPath<EntryCid>,
    /// Distinct signers; one more than a seal may list stands for too many.
    pub(super) participants: BTreeSet<Principal>,
    pub(super) trail: Trail,
}

/// What selection needs of a linear chain, kept as entries stream by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trail {
    /// The deepest entry of the holder or that opens the epoch, and how it ends.
    pub(super) head: Head,
    /// The deepest anchor of any kind.
    pub(super) anchor: Option<Mark>,
    /// The deepest entry that the owner or a live device signed or anchored.
    pub(super) owner_anchor: Option<Mark>,
    /// The first entry of a revoked key after the deepest anchor.
    pub(super) cut: Option<Cut>,
    /// Tombstones and Refs that this was judged under.
    pub(super) judged_under: BlobHash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) mark: Mark,
    pub(super) ending: Ending,
}

/// Where revocation cuts a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The first entry that does not count.
    pub from: Mark,
    /// Who signed it.
    pub signer: Principal,
    /// The tombstone that revoked the capability it cites.
    pub tombstone: BlobHash,
    /// The head before it; none when it is the genesis.
    pub(super) head_before: Option<Head>,
}

impl ChainState {
    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session.id
    }

    /// The owning account.
    #[must_use]
    pub fn owner(&self) -> Principal {
        self.session.owner
    }

    /// The agent.
    #[must_use]
    pub fn agent(&self) -> &AgentIri {
        &self.session.agent
    }

    /// What the genesis fixed.
    #[must_use]
    pub fn facts(&self) -> &SessionFacts {
        &self.session
    }

    /// Where the chain stands: tip, seq, ts, epoch, holder, class in force, whether it is sealed.
    #[must_use]
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The tip.
    #[must_use]
    pub fn tip(&self) -> Mark {
        Mark { seq: self.position.seq, epoch: self.position.epoch, cid: self.position.cid }
    }

    /// Who may append next.
    #[must_use]
    pub fn holder(&self) -> Option<Principal> {
        self.position.holder
    }

    /// The class in force.
    #[must_use]
    pub fn class(&self) -> Class {
        self.position.class
    }

    /// The tip and its skip path down to the genesis: the locator of a range request.
    #[must_use]
    pub fn path(&self) -> &SkipPath<EntryCid> {
        &self.path
    }

    /// The distinct signers so far, ascending; none when there are more than a seal may list.
    #[must_use]
    pub fn participants(&self) -> Option<Vec<Principal>> {
        (self.participants.len() <= limits::SEAL_PARTICIPANTS_MAX)
            .then(|| self.participants.iter().copied().collect())
    }
}
