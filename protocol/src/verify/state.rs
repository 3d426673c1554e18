//! Where a verified chain stands: all that is needed to verify the next entry.

use std::collections::BTreeSet;

use super::trail::{Head, Reach, Trail};
use crate::entry::Class;
use crate::fork::{
    AnchoredBy, Controls, Cut, Judged, Linked, Mark, Pins, Position, SessionFacts, Skeleton, State,
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

/// What selection makes of one linear chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// [`State::Ok`], [`State::Sealed`] or [`State::RevokedUnanchored`]: a single chain has no other.
    pub state: State,
    /// The head; none without a live genesis.
    pub head: Option<Mark>,
    /// The deepest entry of the head's path that the owner or a live device signed or anchored. A Ref that arrived after its
    /// head had streamed by is not seen: this is a lower bound.
    pub anchored_through: Option<(Mark, AnchoredBy)>,
    /// Where revocation cuts the chain.
    pub cut: Option<Cut>,
}

impl ChainState {
    /// The chain of a genesis that is in.
    pub(super) fn begin(session: SessionFacts, linked: &Linked, entry: &Skeleton, context: &Context) -> Self {
        ChainState {
            path: SkipPath::genesis(entry.cid()),
            participants: BTreeSet::from([entry.signer()]),
            trail: Trail::begin(&session, linked, entry, context),
            position: linked.position,
            session,
        }
    }

    /// Takes in the entry that was linked to the tip.
    pub(super) fn advance(&mut self, linked: &Linked, entry: &Skeleton, context: &Context) {
        self.path.push(entry.cid());
        if self.participants.len() <= limits::SEAL_PARTICIPANTS_MAX {
            self.participants.insert(entry.signer());
        }
        self.trail.advance(&self.session, linked, entry, context);
        self.position = linked.position;
    }

    /// The chain that ends in an entry of a judged set, for going on from any entry that is in.
    #[must_use]
    pub fn at(judged: &Judged<'_>, controls: &Controls, tip: EntryCid) -> Option<Self> {
        let facts = judged.facts()?;
        let context = Context::of(facts, controls);
        let path = judged.path(tip)?;
        let (first, rest) = path.split_first()?;
        let mut state = ChainState::begin(facts.clone(), &first.1, first.0, &context);
        for (skeleton, linked) in rest {
            state.advance(linked, skeleton, &context);
        }
        Some(state)
    }

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

    /// The tip and its skip path down to the genesis: the next entry's skip and the locator of a range request.
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

    /// What selection makes of this chain when nothing else is held: head, anchor and where revocation cuts it. None when
    /// tombstones or Refs arrived after entries that they may concern and no anchor came since: ask
    /// [`crate::fork::Set::select`].
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        let (head, cut) = match &self.trail.reach {
            Reach::Unknown => return None,
            Reach::Whole => (Some(self.trail.head), None),
            Reach::Cut(tail) => (tail.head_before, Some(tail.cut)),
        };
        Some(Outcome {
            state: head.map_or(State::RevokedUnanchored, Head::state),
            head: head.map(|head| head.mark),
            anchored_through: head.and_then(|head| head.anchored),
            cut,
        })
    }
}

/// What tombstones and Refs say about one session, prepared once for a run of entries.
#[derive(Clone, Debug)]
pub(super) struct Context {
    pub(super) controls: Controls,
    pub(super) pins: Pins,
}

impl Context {
    pub(super) fn of(session: &SessionFacts, controls: &Controls) -> Self {
        Context { controls: controls.clone(), pins: Pins::of(session, controls) }
    }
}
