//! The outcome of selection.

use std::collections::BTreeSet;

use crate::id::{EntryCid, Epoch, Principal, Seq};

/// What selection found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// One head.
    Ok,
    /// The owner opened one epoch twice, or anchored two histories: nothing moves until a handoff of a higher epoch.
    Frozen,
    /// The holder signed two histories: nothing moves until the owner hands over.
    Forked,
    /// The session has ended.
    Sealed,
    /// The genesis, or the capability that it cites, is not held.
    Incomplete,
    /// The genesis is not authorized by what it cites.
    Invalid,
    /// The genesis was signed under a revoked capability and nothing anchors it.
    RevokedUnanchored,
}

/// An entry and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Its position.
    pub seq: Seq,
    /// Its epoch.
    pub epoch: Epoch,
    /// The entry.
    pub cid: EntryCid,
}

/// Two signed entries that cannot both be part of one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// The holder signed both, and neither descends from the other (`EV_EQUIVOCATION`).
    Holder {
        /// Who signed them.
        signer: Principal,
        /// The two entries.
        entries: [Mark; 2],
        /// The last entry that both descend from.
        meet: Mark,
    },
    /// The owner opened the same epoch with both (`EV_OWNER_EQUIVOCATION`).
    Owner {
        /// Who signed them.
        signer: Principal,
        /// The two entries.
        entries: [Mark; 2],
        /// The last entry that both descend from.
        meet: Mark,
    },
}

/// The outcome of [`crate::fork::Set::select`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// What was found.
    pub state: State,
    /// The head; for `Frozen` and `Forked` the last entry that is not in dispute. None without a usable genesis.
    pub head: Option<Mark>,
    /// Entries that are valid.
    pub valid: BTreeSet<EntryCid>,
    /// Valid entries above the head, not yet taken in by the holder.
    pub pending: BTreeSet<EntryCid>,
    /// Valid entries of the head's epoch on an older head: to be signed again; nobody's fault.
    pub passed: BTreeSet<EntryCid>,
    /// Valid entries of an ended epoch that the head does not descend from.
    pub fenced: BTreeSet<EntryCid>,
    /// Entries that were allowed, under a capability that was revoked since, and that nothing anchors.
    pub revoked_tail: BTreeSet<EntryCid>,
    /// The deepest entry of the head's path that the owner or a live device signed or anchored.
    pub anchored_through: Option<Mark>,
    /// Equivocations among the entries held, at most one an epoch's opening.
    pub evidence: Vec<Evidence>,
}
