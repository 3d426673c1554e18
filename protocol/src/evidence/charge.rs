//! What a set of blobs gives evidence of. A pure function of the set: no order of arrival changes it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Accusation, EXHIBIT_ENTRIES_MAX, Kind, kept_through};
use crate::fork::{BlobHash, Evidence, Judged, Mark, Selection};
use crate::id::{EntryCid, SessionId};

/// Something that can be shown, and which blobs it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The session.
    pub session: SessionId,
    /// Who did what.
    pub accusation: Accusation,
    /// What the file's roots are to be.
    pub roots: [EntryCid; 2],
    /// The entries that it takes, the genesis included. The capabilities that they cite come along.
    pub entries: BTreeSet<EntryCid>,
    /// The tombstone that comes along.
    pub tombstone: Option<BlobHash>,
}

/// Everything that a set gives evidence of, ascending by accusation, at most one for each: the lowest.
///
/// Left out is what takes more than [`EXHIBIT_ENTRIES_MAX`] entries: between two entries that are shown lie entries of others
/// only, so it takes that many messages which no holder took in. So is a revoked entry at or below the seq that its tombstone
/// keeps on another branch.
#[must_use]
pub fn charges(judged: &Judged<'_>, selection: &Selection) -> Vec<Charge> {
    let mut found: BTreeMap<Accusation, Charge> = BTreeMap::new();
    let mut add = |charge: Option<Charge>| {
        if let Some(charge) = charge {
            found.entry(charge.accusation).or_insert(charge);
        }
    };
    for evidence in &selection.evidence {
        add(match evidence {
            Evidence::Holder { entries, meet, .. } => equivocation(judged, *entries, *meet),
            Evidence::Owner { entries, .. } => owner_equivocation(judged, *entries),
        });
    }
    for mark in lowest(judged, selection.fenced.iter().filter(|cid| judged.is_holder_entry(**cid))) {
        add(fenced(judged, selection, mark));
    }
    let revoked = selection.revoked_tail.iter().filter(|cid| shows_revocation(judged, **cid));
    for mark in lowest(judged, revoked) {
        add(self::revoked(judged, mark));
    }
    found.into_values().collect()
}

/// The lowest of these entries for each epoch and signer.
fn lowest<'c>(judged: &Judged<'_>, cids: impl Iterator<Item = &'c EntryCid>) -> Vec<Mark> {
    let mut lowest = BTreeMap::new();
    for cid in cids {
        let (Some(mark), Some(skeleton)) = (judged.mark(*cid), judged.skeleton(*cid)) else { continue };
        let held = lowest.entry((mark.epoch, skeleton.signer())).or_insert(mark);
        *held = mark.min(*held);
    }
    lowest.into_values().collect()
}

fn equivocation(judged: &Judged<'_>, entries: [Mark; 2], meet: Mark) -> Option<Charge> {
    let mut taken = BTreeSet::from([judged.opened_by(meet.cid)?, meet.cid]);
    let mut ends = Vec::new();
    for entry in entries {
        // The holder's first entry after they part shows it as well as a later one.
        let path = path(judged, entry.cid, meet)?;
        let first = path.iter().rposition(|cid| judged.is_holder_entry(*cid))?;
        ends.push(judged.mark(path[first])?);
        taken.extend(&path[first..]);
    }
    ends.sort_unstable();
    charge(judged, Kind::Equivocation, [ends[0].cid, ends[1].cid], taken, None)
}

fn owner_equivocation(judged: &Judged<'_>, entries: [Mark; 2]) -> Option<Charge> {
    let roots = entries.map(|entry| entry.cid);
    charge(judged, Kind::OwnerEquivocation, roots, BTreeSet::from(roots), None)
}

/// The tail against the opening of the next epoch that the history which counts goes through.
fn fenced(judged: &Judged<'_>, selection: &Selection, tail: Mark) -> Option<Charge> {
    let tip = selection.disputed.iter().min().copied().or(selection.head)?;
    let opening = judged
        .entries()
        .filter(|(skeleton, position, _)| {
            position.epoch == tail.epoch.next()
                && judged.opens(skeleton.cid())
                && judged.precedes(skeleton.cid(), tip.cid)
        })
        .find_map(|(skeleton, ..)| judged.mark(skeleton.cid()))?;
    let meet = meet(judged, tail, opening)?;
    if meet.epoch != tail.epoch {
        // It belongs to an opening that lost: the owner's two openings show that.
        return None;
    }
    let mut taken = BTreeSet::from([judged.opened_by(meet.cid)?, meet.cid]);
    taken.extend(path(judged, tail.cid, meet)?);
    taken.extend(path(judged, opening.cid, meet)?);
    charge(judged, Kind::FencedTail, [tail.cid, opening.cid], taken, None)
}

/// Whether an entry's tombstone shows something about it. Selection goes by the heads that a tombstone keeps; a file has none
/// of them, so it goes by their seqs, and an entry beside what is kept is shown only from the seq above.
fn shows_revocation(judged: &Judged<'_>, cid: EntryCid) -> bool {
    let (Some(hash), Some(mark), Some(facts)) = (judged.revoked_by(cid), judged.mark(cid), judged.facts())
    else {
        return false;
    };
    let tombstone = judged.controls().tombstone(&hash);
    tombstone.is_some_and(|tombstone| kept_through(tombstone, facts.id).is_none_or(|kept| kept < mark.seq))
}

fn revoked(judged: &Judged<'_>, mark: Mark) -> Option<Charge> {
    let tombstone = judged.revoked_by(mark.cid)?;
    let roots = [mark.cid, EntryCid::from_digest(tombstone)];
    charge(judged, Kind::RevokedTail, roots, BTreeSet::from([mark.cid]), Some(tombstone))
}

fn charge(
    judged: &Judged<'_>,
    kind: Kind,
    roots: [EntryCid; 2],
    mut entries: BTreeSet<EntryCid>,
    tombstone: Option<BlobHash>,
) -> Option<Charge> {
    let accused = judged.skeleton(roots[0])?;
    let accusation = Accusation { kind, epoch: accused.epoch(), signer: accused.signer() };
    let session = judged.facts()?.id;
    entries.insert(session.genesis());
    let fits = entries.len() <= EXHIBIT_ENTRIES_MAX;
    fits.then_some(Charge { session, accusation, roots, entries, tombstone })
}

/// From an entry down to the one above `meet`; none when that is too far.
fn path(judged: &Judged<'_>, from: EntryCid, meet: Mark) -> Option<Vec<EntryCid>> {
    let prev = |cid: &EntryCid| judged.skeleton(*cid)?.prev().filter(|prev| *prev != meet.cid);
    let path: Vec<EntryCid> = std::iter::successors(Some(from), prev).take(EXHIBIT_ENTRIES_MAX + 1).collect();
    (path.len() <= EXHIBIT_ENTRIES_MAX).then_some(path)
}

/// The last entry that both descend from; none when it is further down than an exhibit reaches.
fn meet(judged: &Judged<'_>, a: Mark, b: Mark) -> Option<Mark> {
    let below = |mark: Mark| judged.mark(judged.skeleton(mark.cid)?.prev()?);
    let (mut a, mut b) = (a, b);
    for _ in 0..2 * EXHIBIT_ENTRIES_MAX {
        match a.seq.cmp(&b.seq) {
            _ if a == b => return Some(a),
            std::cmp::Ordering::Less => b = below(b)?,
            std::cmp::Ordering::Greater => a = below(a)?,
            std::cmp::Ordering::Equal => (a, b) = (below(a)?, below(b)?),
        }
    }
    None
}
