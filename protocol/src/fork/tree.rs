//! Entries that are *in*, as a tree of prev links. Nodes are numbered so that a parent comes before its children.
//!
//! Every question about ancestors is O(log n) by the same skip pointers that the entries carry, or one pass over all
//! nodes; nothing here is quadratic in what a hostile peer can send.

use std::collections::BTreeMap;

use super::controls::BlobHash;
use super::rules::{Holds, Lineage, Linked, Opening};
use super::select::Mark;
use super::skeleton::Skeleton;
use crate::id::{EntryCid, Principal};
use crate::limits;

/// One entry that is in.
pub(crate) struct Node<'a> {
    pub(crate) skeleton: &'a Skeleton,
    /// The genesis is its own parent and its own skip target.
    pub(crate) parent: usize,
    skip: usize,
    pub(crate) linked: Linked,
    /// The tombstone of the capability that it cites.
    pub(crate) dead: Option<BlobHash>,
    /// The entry that opened its epoch; the genesis in epoch 0.
    pub(crate) root: usize,
    /// The last entry at or before it whose signer had not signed before.
    newcomer: usize,
    /// Distinct signers up to it, at most one more than a seal may list.
    signers: usize,
}

impl Node<'_> {
    pub(crate) fn mark(&self) -> Mark {
        self.linked.mark()
    }

    /// *holderEntry* of §Selection.
    pub(crate) fn is_holder_entry(&self) -> bool {
        self.linked.is_holder_entry(self.skeleton.signer)
    }

    fn seq(&self) -> u64 {
        self.linked.position.seq.get()
    }
}

/// The tree. Empty until its genesis was put in.
#[derive(Default)]
pub(crate) struct Tree<'a> {
    nodes: Vec<Node<'a>>,
    index: BTreeMap<EntryCid, usize>,
}

impl<'a> Tree<'a> {
    /// All nodes, parents first.
    pub(crate) fn nodes(&self) -> &[Node<'a>] {
        &self.nodes
    }

    /// The node of an entry.
    pub(crate) fn find(&self, cid: EntryCid) -> Option<usize> {
        self.index.get(&cid).copied()
    }

    /// Puts the genesis in.
    pub(crate) fn plant(&mut self, skeleton: &'a Skeleton, linked: Linked, dead: Option<BlobHash>) {
        self.push(Node { skeleton, parent: 0, skip: 0, linked, dead, root: 0, newcomer: 0, signers: 1 });
    }

    /// Puts an entry in on its parent, which it was linked to.
    pub(crate) fn grow(
        &mut self,
        parent: usize,
        skeleton: &'a Skeleton,
        linked: Linked,
        dead: Option<BlobHash>,
    ) {
        let own = self.nodes.len();
        let before = &self.nodes[parent];
        let full = before.signers > limits::SEAL_PARTICIPANTS_MAX;
        let known = full || self.has_signed(parent, skeleton.signer);
        let node = Node {
            skeleton,
            parent,
            skip: self.next_skip(parent),
            linked,
            dead,
            root: if linked.opening == Opening::Opens { own } else { before.root },
            newcomer: if known { before.newcomer } else { own },
            signers: before.signers + usize::from(!known),
        };
        self.push(node);
    }

    /// The path that ends in a node, as the rules see it.
    pub(crate) fn lineage(&self, tip: usize) -> TreePath<'_, 'a> {
        TreePath { tree: self, tip }
    }

    /// The ancestor of `from`, or itself, at `seq`, which is not above it.
    pub(crate) fn ancestor_at(&self, from: usize, seq: u64) -> usize {
        let mut at = from;
        while self.nodes[at].seq() > seq {
            let skip = self.nodes[at].skip;
            at = if self.nodes[skip].seq() >= seq { skip } else { self.nodes[at].parent };
        }
        at
    }

    /// Whether `older` is `newer` or an ancestor of it.
    pub(crate) fn precedes(&self, older: usize, newer: usize) -> bool {
        let seq = self.nodes[older].seq();
        self.nodes[newer].seq() >= seq && self.ancestor_at(newer, seq) == older
    }

    /// The last entry that all of them descend from or are.
    pub(crate) fn meet(&self, members: &[usize]) -> Option<usize> {
        members.iter().copied().reduce(|a, b| self.meet_of_two(a, b))
    }

    fn meet_of_two(&self, a: usize, b: usize) -> usize {
        let seq = self.nodes[a].seq().min(self.nodes[b].seq());
        let (mut a, mut b) = (self.ancestor_at(a, seq), self.ancestor_at(b, seq));
        // At one seq both skip equally far: while the targets differ the meet is below them.
        while a != b {
            let (left, right) = (&self.nodes[a], &self.nodes[b]);
            (a, b) =
                if left.skip == right.skip { (left.parent, right.parent) } else { (left.skip, right.skip) };
        }
        a
    }

    /// The members without a member above them: for each, those that no other descends from.
    pub(crate) fn maximal(&self, members: &[usize]) -> Vec<usize> {
        let mut below = vec![false; self.nodes.len()];
        let mut is_member = vec![false; self.nodes.len()];
        for &member in members {
            is_member[member] = true;
        }
        for at in (1..self.nodes.len()).rev() {
            if is_member[at] || below[at] {
                below[self.nodes[at].parent] = true;
            }
        }
        members.iter().copied().filter(|&member| !below[member]).collect()
    }

    /// For each node whether it is one of `tips` or an ancestor of one.
    pub(crate) fn kept_by(&self, tips: &[usize]) -> Vec<bool> {
        let mut kept = vec![false; self.nodes.len()];
        for &tip in tips {
            let mut at = tip;
            while !kept[at] {
                kept[at] = true;
                at = self.nodes[at].parent;
            }
        }
        kept
    }

    /// The distinct signers of a node's path, in no order.
    fn signers(&self, tip: usize) -> impl Iterator<Item = Principal> + '_ {
        let mut next = Some(self.nodes[tip].newcomer);
        std::iter::from_fn(move || {
            let at = next?;
            next = (at != 0).then(|| self.nodes[self.nodes[at].parent].newcomer);
            Some(self.nodes[at].skeleton.signer)
        })
    }

    fn has_signed(&self, tip: usize, signer: Principal) -> bool {
        self.signers(tip).any(|known| known == signer)
    }

    /// Index of the entry that the one after `tip` skips to; see [`crate::skip`].
    fn next_skip(&self, tip: usize) -> usize {
        let p = &self.nodes[tip];
        let j = &self.nodes[p.skip];
        let jj = &self.nodes[j.skip];
        if p.seq() - j.seq() == j.seq() - jj.seq() { j.skip } else { tip }
    }

    fn push(&mut self, node: Node<'a>) {
        self.index.insert(node.skeleton.cid, self.nodes.len());
        self.nodes.push(node);
    }
}

/// A path of the tree, down from its tip.
pub(crate) struct TreePath<'t, 'a> {
    tree: &'t Tree<'a>,
    tip: usize,
}

impl Lineage for TreePath<'_, '_> {
    fn next_skip(&self) -> EntryCid {
        self.tree.nodes[self.tree.next_skip(self.tip)].linked.position.cid
    }

    fn holds(&self, cid: EntryCid) -> Holds {
        // The tree holds every ancestor of an entry that is in, so what it does not hold is no ancestor.
        match self.tree.find(cid) {
            Some(at) if self.tree.precedes(at, self.tip) => Holds::Yes,
            _ => Holds::No,
        }
    }

    fn participants(&self) -> Option<Vec<Principal>> {
        if self.tree.nodes[self.tip].signers > limits::SEAL_PARTICIPANTS_MAX {
            return None;
        }
        let mut signers: Vec<Principal> = self.tree.signers(self.tip).collect();
        signers.sort_unstable();
        Some(signers)
    }
}
