//! Selection on a single chain, in constant memory: which entry is the head, how deep it is anchored, and where revocation
//! cuts it. Equal to [`crate::fork::Set::select`] over the same blobs; a property test holds the two together.

use sha2::{Digest, Sha256};

use super::state::Context;
use crate::fork::{
    Anchor, AnchoredBy, BlobHash, Controls, Cut, Ending, Linked, Mark, Opening, Pins, SessionFacts, Skeleton,
    State,
};

/// What selection needs of a linear chain, kept as entries stream by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trail {
    /// The deepest entry that opens the epoch or that its holder signed.
    pub(super) head: Head,
    /// The deepest entry that the owner's side signed or anchored.
    pub(super) anchored: Option<(Mark, AnchoredBy)>,
    /// The deepest anchor of any kind.
    pub(super) anchor: Option<Mark>,
    pub(super) reach: Reach,
    /// Tombstones and Refs that this was judged under.
    pub(super) judged_under: BlobHash,
}

/// A head, how it ends and how deep it is anchored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) mark: Mark,
    pub(super) ending: Ending,
    pub(super) anchored: Option<(Mark, AnchoredBy)>,
}

/// How far the chain counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// All of it.
    Whole,
    /// Up to an entry of a revoked key that no later entry anchors.
    Cut(Box<CutTail>),
    /// Blobs came later than entries that they may concern. The next anchor settles it.
    Unknown,
}

/// What does not count, and what the head is without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutTail {
    pub(super) cut: Cut,
    /// None when it is the genesis that does not count.
    pub(super) head_before: Option<Head>,
}

impl Head {
    pub(super) fn state(self) -> State {
        match self.ending {
            Ending::Open => State::Ok,
            Ending::Sealed => State::Sealed,
        }
    }
}

impl Trail {
    pub(super) fn begin(
        session: &SessionFacts,
        linked: &Linked,
        entry: &Skeleton,
        context: &Context,
    ) -> Self {
        let mark = linked.mark();
        let mut trail = Trail {
            head: Head { mark, ending: Ending::Open, anchored: None },
            anchored: None,
            anchor: None,
            reach: Reach::Whole,
            judged_under: fingerprint(session, &context.controls, &context.pins),
        };
        trail.judge(session, linked, entry, context, None);
        trail.head.anchored = trail.anchored;
        trail
    }

    pub(super) fn advance(
        &mut self,
        session: &SessionFacts,
        linked: &Linked,
        entry: &Skeleton,
        context: &Context,
    ) {
        let head_before = self.head;
        self.judge(session, linked, entry, context, Some(head_before));
        if linked.opening == Opening::Opens || linked.is_holder_entry(entry.signer()) {
            self.head = Head { mark: linked.mark(), ending: linked.position.ending, anchored: self.anchored };
        }
    }

    /// Whether the entry anchors what came before it, and whether it is the first one that does not count.
    fn judge(
        &mut self,
        session: &SessionFacts,
        linked: &Linked,
        entry: &Skeleton,
        context: &Context,
        head_before: Option<Head>,
    ) {
        let dead = entry.revoked_by(session.owner, &context.controls);
        let mark = linked.mark();
        let anchor = Anchor::of(&context.pins, linked, dead);
        if let Some(by) = anchor.by_owner() {
            self.anchored = Some((mark, by));
        }
        if anchor != Anchor::None {
            self.anchor = Some(mark);
            self.reach = Reach::Whole;
        } else if let (Some(tombstone), Reach::Whole) = (dead, &self.reach) {
            let cut = Cut { from: mark, signer: entry.signer(), tombstone, last_anchor: self.anchor };
            self.reach = Reach::Cut(Box::new(CutTail { cut, head_before }));
        }
    }

    /// Goes on under other control blobs than before.
    pub(super) fn rejudge(&mut self, session: &SessionFacts, context: &Context) {
        let now = fingerprint(session, &context.controls, &context.pins);
        if now != self.judged_under {
            self.judged_under = now;
            let revokes = context.controls.tombstones().any(|(_, t)| t.signer == session.owner);
            self.reach = if revokes { Reach::Unknown } else { Reach::Whole };
        }
    }
}

/// Names the tombstones and pins that a trail was judged under.
fn fingerprint(session: &SessionFacts, controls: &Controls, pins: &Pins) -> BlobHash {
    let mut hash = Sha256::new();
    for (tombstone, _) in controls.tombstones().filter(|(_, t)| t.signer == session.owner) {
        hash.update(tombstone);
    }
    hash.update([0; 32]);
    for (cid, epoch) in pins.iter() {
        hash.update(cid.digest());
        hash.update(epoch.map_or(u64::MAX, crate::id::Epoch::get).to_be_bytes());
    }
    hash.finalize().into()
}
