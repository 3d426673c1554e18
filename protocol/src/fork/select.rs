//! Selection: which of the entries that are in are valid, and which one is the head. `docs/PROTOCOL.md` §Selection.
//!
//! A few passes over the tree, up or down; the names are those of the text.

use std::collections::{BTreeMap, BTreeSet};

use super::controls::{BlobHash, Controls};
use super::refs::{Anchor, AnchoredBy, Pins};
use super::rules::{Opening, Position, SessionFacts};
use super::tree::{Node, Tree};
use crate::code::Code;
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

/// Where revocation cuts a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The first entry that does not count.
    pub from: Mark,
    /// Who signed it.
    pub signer: Principal,
    /// The tombstone that revoked the capability it cites.
    pub tombstone: BlobHash,
    /// The deepest anchor before it.
    pub last_anchor: Option<Mark>,
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
    /// Where the chain stands after the head.
    pub position: Option<Position>,
    /// For `Frozen` and `Forked`: the tips of the histories in dispute, ascending.
    pub disputed: Vec<Mark>,
    /// The deepest entry of the head's path that the owner or a live device signed or anchored, and by what.
    pub anchored_through: Option<(Mark, AnchoredBy)>,
    /// Equivocations among the entries held, at most one an epoch's opening.
    pub evidence: Vec<Evidence>,
}

impl Selection {
    /// The outcome without a genesis that is in: `problem` is why, none when it is not held.
    pub(super) fn without_genesis(problem: Option<Code>) -> Self {
        Selection::empty(match problem {
            None | Some(Code::Incomplete) => State::Incomplete,
            Some(_) => State::Invalid,
        })
    }

    fn empty(state: State) -> Self {
        Selection {
            state,
            head: None,
            valid: BTreeSet::new(),
            pending: BTreeSet::new(),
            passed: BTreeSet::new(),
            fenced: BTreeSet::new(),
            revoked_tail: BTreeSet::new(),
            position: None,
            disputed: Vec::new(),
            anchored_through: None,
            evidence: Vec::new(),
        }
    }
}

/// What is decided about each node before a head is looked for.
struct Facts<'t, 'a> {
    tree: &'t Tree<'a>,
    anchors: Vec<Anchor>,
    valid: Vec<bool>,
}

/// Which entry is the head, as far as the opening and the holder's entries say.
struct Choice {
    state: State,
    head: usize,
    disputed: Vec<usize>,
}

pub(super) fn select(tree: &Tree<'_>, session: &SessionFacts, controls: &Controls) -> Selection {
    let facts = Facts::of(tree, &Pins::of(session, controls));
    if !facts.valid[0] {
        return Selection {
            revoked_tail: tree.nodes().iter().map(|node| node.linked.position.cid).collect(),
            evidence: evidence(tree, session.owner),
            ..Selection::empty(State::RevokedUnanchored)
        };
    }
    let epoch = facts.epoch();
    let choice = facts.choose(epoch);
    facts.sort_out(epoch, &choice, session.owner)
}

impl<'t, 'a> Facts<'t, 'a> {
    /// Causal revocation, in two passes: anchors go down to the genesis, validity comes up from it.
    fn of(tree: &'t Tree<'a>, pins: &Pins) -> Self {
        let nodes = tree.nodes();
        let anchors: Vec<Anchor> =
            nodes.iter().map(|node| Anchor::of(pins, &node.linked, node.dead)).collect();
        let mut live: Vec<bool> = anchors.iter().map(|anchor| *anchor != Anchor::None).collect();
        for at in (1..nodes.len()).rev() {
            if live[at] {
                live[nodes[at].parent] = true;
            }
        }
        let mut valid = Vec::with_capacity(nodes.len());
        for (at, node) in nodes.iter().enumerate() {
            let alive = node.dead.is_none() || live[at];
            valid.push(alive && (at == 0 || valid[node.parent]));
        }
        Facts { tree, anchors, valid }
    }

    fn nodes(&self) -> &'t [Node<'a>] {
        self.tree.nodes()
    }

    /// Indexes of valid nodes, parents first.
    fn valid(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.valid.len()).filter(|&at| self.valid[at])
    }

    /// The highest epoch with a valid entry.
    fn epoch(&self) -> Epoch {
        self.valid().map(|at| self.nodes()[at].linked.position.epoch).max().unwrap_or(Epoch::ZERO)
    }

    fn choose(&self, epoch: Epoch) -> Choice {
        let tops: Vec<usize> = if epoch == Epoch::ZERO {
            vec![0]
        } else {
            self.valid()
                .filter(|&at| self.nodes()[at].linked.opening == Opening::Opens)
                .filter(|&at| self.nodes()[at].linked.position.epoch == epoch)
                .collect()
        };
        let [top] = tops[..] else {
            return self.dispute(State::Frozen, tops);
        };
        if self.nodes()[top].skeleton.is_seal() {
            return Choice { state: State::Sealed, head: top, disputed: Vec::new() };
        }
        self.choose_under(top)
    }

    /// The head in the epoch that `top` opened: the deepest entry of its holder above the deepest owner's pin.
    fn choose_under(&self, top: usize) -> Choice {
        let by_holder = self.holder_entries(top);
        let mut nearest = vec![None; self.nodes().len()];
        for at in self.valid().filter(|&at| self.nodes()[at].root == top) {
            let own = at == top || by_holder.contains(&at);
            nearest[at] = if own { Some(at) } else { nearest[self.nodes()[at].parent] };
        }
        let pinned = (0..nearest.len()).filter(|&at| self.anchors[at].is_pin()).filter_map(|at| nearest[at]);
        let pinned: BTreeSet<usize> = pinned.chain([top]).collect();
        let base = match self.tree.maximal(&pinned.into_iter().collect::<Vec<_>>())[..] {
            [base] => base,
            ref several => return self.dispute(State::Frozen, several.to_vec()),
        };
        let above: Vec<usize> =
            by_holder.iter().copied().filter(|&at| self.tree.precedes(base, at)).collect();
        let head = match self.tree.maximal(&above)[..] {
            [] => base,
            [head] => head,
            ref several => return self.dispute(State::Forked, several.to_vec()),
        };
        let sealed = self.nodes()[head].skeleton.is_seal();
        let state = if sealed { State::Sealed } else { State::Ok };
        Choice { state, head, disputed: Vec::new() }
    }

    /// H of the text: the valid entries of an epoch that its holder signed as that.
    fn holder_entries(&self, top: usize) -> BTreeSet<usize> {
        let in_epoch = self.valid().filter(|&at| self.nodes()[at].root == top);
        in_epoch.filter(|&at| self.nodes()[at].is_holder_entry()).collect()
    }

    fn dispute(&self, state: State, disputed: Vec<usize>) -> Choice {
        Choice { state, head: self.tree.meet(&disputed).unwrap_or(0), disputed }
    }

    /// Sorts every entry by what the choice makes of it.
    fn sort_out(&self, epoch: Epoch, choice: &Choice, owner: Principal) -> Selection {
        let nodes = self.nodes();
        let tips: Vec<usize> = choice.disputed.iter().copied().chain([choice.head]).collect();
        let kept = self.tree.kept_by(&tips);
        let mut selection = Selection {
            head: Some(nodes[choice.head].mark()),
            position: Some(nodes[choice.head].linked.position),
            anchored_through: self.anchored_through(choice.head),
            evidence: evidence(self.tree, owner),
            ..Selection::empty(choice.state)
        };
        let mut above = vec![false; nodes.len()];
        for (at, node) in nodes.iter().enumerate() {
            above[at] = at == choice.head || (at != 0 && above[node.parent]);
            let cid = node.linked.position.cid;
            if !self.valid[at] {
                selection.revoked_tail.insert(cid);
                continue;
            }
            selection.valid.insert(cid);
            let settled = choice.disputed.is_empty();
            let group = match (kept[at], node.linked.position.epoch < epoch) {
                (true, _) => continue,
                (false, true) => &mut selection.fenced,
                (false, false) if !settled => continue,
                (false, false) if above[at] => &mut selection.pending,
                (false, false) => &mut selection.passed,
            };
            group.insert(cid);
        }
        selection.disputed = choice.disputed.iter().map(|&at| nodes[at].mark()).collect();
        selection.disputed.sort_unstable();
        selection
    }

    /// The deepest anchor of any kind at or below a node.
    fn last_anchor(&self, from: usize) -> Option<Mark> {
        let mut at = from;
        while self.anchors[at] == Anchor::None {
            if at == 0 {
                return None;
            }
            at = self.nodes()[at].parent;
        }
        Some(self.nodes()[at].mark())
    }

    fn anchored_through(&self, head: usize) -> Option<(Mark, AnchoredBy)> {
        let mut at = head;
        loop {
            if let Some(by) = self.anchors[at].by_owner() {
                return Some((self.nodes()[at].mark(), by));
            }
            if at == 0 {
                return None;
            }
            at = self.nodes()[at].parent;
        }
    }
}

/// What revocation cut off: the lowest entry of a revoked key that does not count, and the deepest anchor below it.
pub(super) fn cut(
    tree: &Tree<'_>,
    session: &SessionFacts,
    controls: &Controls,
    selection: &Selection,
) -> Option<Cut> {
    let facts = Facts::of(tree, &Pins::of(session, controls));
    let nodes = tree.nodes();
    let tail = selection.revoked_tail.iter().filter_map(|cid| tree.find(*cid));
    let from = tail.filter(|&at| nodes[at].dead.is_some()).min_by_key(|&at| nodes[at].mark())?;
    Some(Cut {
        from: nodes[from].mark(),
        signer: nodes[from].skeleton.signer,
        tombstone: nodes[from].dead?,
        last_anchor: facts.last_anchor(from),
    })
}

/// Equivocations among all entries that are in, also of ended epochs and revoked keys: what was signed stays evidence.
fn evidence(tree: &Tree<'_>, owner: Principal) -> Vec<Evidence> {
    let mut found = holder_evidence(tree);
    let mut openings: BTreeMap<Epoch, Vec<usize>> = BTreeMap::new();
    for (at, node) in
        tree.nodes().iter().enumerate().filter(|(_, node)| node.linked.opening == Opening::Opens)
    {
        openings.entry(node.linked.position.epoch).or_default().push(at);
    }
    for opened in openings.values() {
        let mut entries: Vec<usize> = opened.clone();
        entries.sort_unstable_by_key(|&at| tree.nodes()[at].mark());
        if let [a, b, ..] = entries[..] {
            let (entries, meet) = pair(tree, a, b);
            found.push(Evidence::Owner { signer: owner, entries, meet });
        }
    }
    found.sort_unstable();
    found
}

/// For each opening the two lowest entries of its holder that no history holds together.
fn holder_evidence(tree: &Tree<'_>) -> Vec<Evidence> {
    let nodes = tree.nodes();
    let mut signed: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        if node.is_holder_entry() {
            signed.entry(node.root).or_default().push(at);
        }
    }
    let mut found = Vec::new();
    for mut entries in signed.into_values() {
        entries.sort_unstable_by_key(|&at| nodes[at].mark());
        // Ascending: the first one that does not descend from the one before it.
        let split = entries.windows(2).find(|two| !tree.precedes(two[0], two[1]));
        if let Some(&[a, b]) = split {
            let (entries, meet) = pair(tree, a, b);
            found.push(Evidence::Holder { signer: nodes[a].skeleton.signer, entries, meet });
        }
    }
    found
}

fn pair(tree: &Tree<'_>, a: usize, b: usize) -> ([Mark; 2], Mark) {
    let meet = tree.meet(&[a, b]).unwrap_or(0);
    ([tree.nodes()[a].mark(), tree.nodes()[b].mark()], tree.nodes()[meet].mark())
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;
