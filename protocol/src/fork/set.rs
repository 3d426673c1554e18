//! A set of signed blobs of one session, and what is *in* it.

use std::collections::BTreeMap;

use super::controls::{BlobHash, Controls, Inserted};
use super::rules::{self, Linked, Opening, Position, SessionFacts, Standing};
use super::select::{self, Cut, Mark, Selection};
use super::skeleton::Skeleton;
use super::tree::Tree;
use crate::block::Signed;
use crate::code::{Code, Reject};
use crate::control::Control;
use crate::entry::Entry;
use crate::id::{EntryCid, Seq, SessionId};

/// Signed blobs of one session, in any order. The caller bounds how many it puts in.
#[derive(Clone, Debug)]
pub struct Set {
    session: SessionId,
    entries: BTreeMap<EntryCid, Skeleton>,
    /// Entries of other sessions that were put in, with their seq: kept to name them and what links them, never judged.
    foreign: BTreeMap<EntryCid, Seq>,
    controls: Controls,
}

impl Set {
    /// An empty set of a session.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Set::with_controls(session, Controls::new())
    }

    /// A set that holds control blobs already.
    #[must_use]
    pub fn with_controls(session: SessionId, controls: Controls) -> Self {
        Set { session, entries: BTreeMap::new(), foreign: BTreeMap::new(), controls }
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Puts an entry in; one of another session is remembered as such.
    pub fn insert_entry(&mut self, signed: &Signed<Entry>) -> Inserted {
        self.insert_skeleton(Skeleton::of(signed))
    }

    /// Puts in an entry whose skeleton was made earlier.
    pub fn insert_skeleton(&mut self, skeleton: Skeleton) -> Inserted {
        let known = if skeleton.session == self.session {
            self.entries.insert(skeleton.cid, skeleton).is_some()
        } else {
            self.foreign.insert(skeleton.cid, skeleton.seq()).is_some()
        };
        if known { Inserted::Known } else { Inserted::New }
    }

    /// Puts a control blob in.
    pub fn insert_control(&mut self, signed: &Signed<Control>) -> Inserted {
        self.controls.insert(signed)
    }

    /// The control blobs.
    #[must_use]
    pub fn controls(&self) -> &Controls {
        &self.controls
    }

    /// How many entries of the session are held, in or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no entry of the session is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Finds the head and what counts. A pure function of what is held; about n·log n.
    #[must_use]
    pub fn select(&self) -> Selection {
        self.judge().selection()
    }

    /// Why an entry that was put in is not *in*; none when it is, or was not put in.
    #[must_use]
    pub fn explain(&self, cid: EntryCid) -> Option<Reject> {
        self.judge().explain(cid)
    }

    /// Judges every entry once; the result answers any number of questions.
    #[must_use]
    pub fn judge(&self) -> Judged<'_> {
        Judged::of(self)
    }
}

/// Every entry of a [`Set`], judged.
pub struct Judged<'a> {
    set: &'a Set,
    pub(super) facts: Option<SessionFacts>,
    pub(super) tree: Tree<'a>,
    /// Entries that break a rule or wait for a blob that is not held.
    problems: BTreeMap<EntryCid, Reject>,
    /// Entries above one of those, and which.
    above: BTreeMap<EntryCid, EntryCid>,
}

impl<'a> Judged<'a> {
    fn of(set: &'a Set) -> Self {
        let mut judged = Judged {
            set,
            facts: None,
            tree: Tree::default(),
            problems: BTreeMap::new(),
            above: BTreeMap::new(),
        };
        let mut children: BTreeMap<EntryCid, Vec<&'a Skeleton>> = BTreeMap::new();
        for skeleton in set.entries.values() {
            if let Some(prev) = skeleton.prev {
                children.entry(prev).or_default().push(skeleton);
            }
        }
        judged.take_genesis();
        judged.take_the_rest(&children);
        judged.explain_the_rest(&children);
        judged
    }

    fn take_genesis(&mut self) {
        let genesis = self.set.session.genesis();
        let Some(skeleton) = self.set.entries.get(&genesis) else { return };
        match rules::begin(skeleton, &self.set.controls) {
            Ok((facts, linked)) => {
                let dead = skeleton.revoked_by(facts.owner, &self.set.controls);
                self.facts = Some(facts);
                self.tree.plant(skeleton, linked, dead);
            }
            Err(reject) => {
                self.problems.insert(genesis, reject);
            }
        }
    }

    /// Breadth first from the genesis: every entry is judged after the one before it.
    fn take_the_rest(&mut self, children: &BTreeMap<EntryCid, Vec<&'a Skeleton>>) {
        let Some(facts) = self.facts.clone() else { return };
        let mut next = 0;
        while let Some(parent) = self.tree.nodes().get(next) {
            let position = parent.linked.position;
            for skeleton in children.get(&position.cid).into_iter().flatten() {
                let path = self.tree.lineage(next);
                match rules::link(&facts, &position, &path, skeleton, &self.set.controls) {
                    Ok((linked, _)) => {
                        let dead = skeleton.revoked_by(facts.owner, &self.set.controls);
                        self.tree.grow(next, skeleton, linked, dead);
                    }
                    Err(reject) => {
                        self.problems.insert(skeleton.cid, reject);
                    }
                }
            }
            next += 1;
        }
    }

    /// Names what keeps the others out: each lies above an entry that was refused, or above one whose `prev` is not there.
    fn explain_the_rest(&mut self, children: &BTreeMap<EntryCid, Vec<&'a Skeleton>>) {
        for skeleton in self.set.entries.values() {
            if let Some(prev) = skeleton.prev.filter(|prev| !self.set.entries.contains_key(prev)) {
                self.problems.insert(skeleton.cid, self.missing_prev(prev));
            }
        }
        let mut open: Vec<(EntryCid, EntryCid)> = self.problems.keys().map(|cid| (*cid, *cid)).collect();
        while let Some((at, culprit)) = open.pop() {
            for child in children.get(&at).into_iter().flatten() {
                if !self.problems.contains_key(&child.cid) {
                    self.above.insert(child.cid, culprit);
                    open.push((child.cid, culprit));
                }
            }
        }
    }

    fn missing_prev(&self, prev: EntryCid) -> Reject {
        if self.set.foreign.contains_key(&prev) {
            Reject::new(Code::SessionMismatch, format!("prev {} is of another session", prev.short()))
        } else if self.set.controls.holds(prev.digest()) {
            Reject::new(Code::PrevType, format!("prev {} is a control blob", prev.short()))
        } else {
            Reject::new(Code::Incomplete, format!("prev {} is not held", prev.short()))
        }
    }

    /// Finds the head and what counts.
    #[must_use]
    pub fn selection(&self) -> Selection {
        match &self.facts {
            Some(facts) => select::select(&self.tree, facts, &self.set.controls),
            None => Selection::without_genesis(self.genesis_problem()),
        }
    }

    /// Where revocation cuts, for a selection of the same set with a revoked tail.
    #[must_use]
    pub fn cut(&self, selection: &Selection) -> Option<Cut> {
        select::cut(&self.tree, self.facts.as_ref()?, &self.set.controls, selection)
    }

    /// The tombstone of what an entry that is in cites, when it is revoked.
    #[must_use]
    pub fn revoked_by(&self, cid: EntryCid) -> Option<BlobHash> {
        self.tree.nodes()[self.tree.find(cid)?].dead
    }

    /// The control blobs that it was judged under.
    pub(crate) fn controls(&self) -> &'a Controls {
        &self.set.controls
    }

    /// Whether an entry is in and the holder of its epoch signed it as that: *holderEntry* of `docs/PROTOCOL.md` §Selection.
    #[must_use]
    pub fn is_holder_entry(&self, cid: EntryCid) -> bool {
        self.tree.find(cid).is_some_and(|at| self.tree.nodes()[at].is_holder_entry())
    }

    /// What the genesis fixed, when it is in.
    #[must_use]
    pub fn facts(&self) -> Option<&SessionFacts> {
        self.facts.as_ref()
    }

    /// Where the chain stands after an entry that is in.
    #[must_use]
    pub fn position(&self, cid: EntryCid) -> Option<Position> {
        self.tree.find(cid).map(|at| self.tree.nodes()[at].linked.position)
    }

    /// Where an entry that is in stands.
    #[must_use]
    pub fn mark(&self, cid: EntryCid) -> Option<Mark> {
        self.tree.find(cid).map(|at| self.tree.nodes()[at].mark())
    }

    /// Whether an entry is in and opens an epoch.
    #[must_use]
    pub fn opens(&self, cid: EntryCid) -> bool {
        self.tree.find(cid).is_some_and(|at| self.tree.nodes()[at].linked.opening == Opening::Opens)
    }

    /// The entry that opened the epoch of an entry that is in; in epoch 0 the genesis.
    #[must_use]
    pub fn opened_by(&self, cid: EntryCid) -> Option<EntryCid> {
        let nodes = self.tree.nodes();
        self.tree.find(cid).map(|at| nodes[nodes[at].root].linked.position.cid)
    }

    /// As what the signer of an entry that is in acted.
    #[must_use]
    pub fn standing(&self, cid: EntryCid) -> Option<Standing> {
        self.tree.find(cid).map(|at| self.tree.nodes()[at].linked.standing)
    }

    /// Whether `older` is `newer` or an ancestor of it, and both are in.
    #[must_use]
    pub fn precedes(&self, older: EntryCid, newer: EntryCid) -> bool {
        match (self.tree.find(older), self.tree.find(newer)) {
            (Some(older), Some(newer)) => self.tree.precedes(older, newer),
            _ => false,
        }
    }

    /// Entries that break a rule or wait for something, ascending by CID; not those that merely lie above one.
    pub fn problems(&self) -> impl Iterator<Item = (EntryCid, &Reject)> {
        self.problems.iter().map(|(cid, reject)| (*cid, reject))
    }

    /// Entries of other sessions that were put in, with the seq that each claims; ascending by CID.
    pub fn foreign(&self) -> impl Iterator<Item = (EntryCid, Seq, Reject)> + '_ {
        self.set.foreign.iter().map(|(cid, seq)| (*cid, *seq, self.not_of_the_session()))
    }

    fn not_of_the_session(&self) -> Reject {
        let what = format!("it is of another session than {}", self.set.session.short());
        Reject::new(Code::SessionMismatch, what)
    }

    /// The skeleton of an entry of the session that is held, in or not.
    #[must_use]
    pub fn skeleton(&self, cid: EntryCid) -> Option<&'a Skeleton> {
        self.set.entries.get(&cid)
    }

    /// Entries that are in, a parent before its children.
    pub fn entries(&self) -> impl Iterator<Item = (&'a Skeleton, Position, Standing)> + '_ {
        self.tree.nodes().iter().map(|node| (node.skeleton, node.linked.position, node.linked.standing))
    }

    /// The path from the genesis to an entry that is in, both included.
    pub(crate) fn path(&self, tip: EntryCid) -> Option<Vec<(&'a Skeleton, Linked)>> {
        let nodes = self.tree.nodes();
        let mut at = self.tree.find(tip)?;
        let mut path = Vec::new();
        loop {
            let node = &nodes[at];
            path.push((node.skeleton, node.linked));
            if at == 0 {
                path.reverse();
                return Some(path);
            }
            at = node.parent;
        }
    }

    /// Why an entry that was put in is not in; none when it is, or was not put in.
    #[must_use]
    pub fn explain(&self, cid: EntryCid) -> Option<Reject> {
        if self.set.foreign.contains_key(&cid) {
            return Some(self.not_of_the_session());
        }
        if let Some(reject) = self.problems.get(&cid) {
            return Some(reject.clone());
        }
        if let Some(culprit) = self.above.get(&cid) {
            let reject = self.problems.get(culprit)?;
            return Some(reject.clone().within(&format!("below it, at {}", culprit.short())));
        }
        let waits = self.set.entries.contains_key(&cid) && self.tree.find(cid).is_none();
        waits.then(|| Reject::new(Code::Incomplete, "the genesis is not held"))
    }

    fn genesis_problem(&self) -> Option<Code> {
        self.problems.get(&self.set.session.genesis()).map(|reject| reject.code)
    }
}
