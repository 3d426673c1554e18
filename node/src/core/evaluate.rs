//! Taking in what arrived: selection over everything held decides where the main chain goes.
//!
//! A straight extension of the tip is adopted as it is. Anything else — a handoff behind the tip, a branch, a tombstone, a
//! Ref — is judged with all that the session has, and the store moves to what selection returns in one transaction. What
//! leaves the main chain, and what never was on it, stays as evidence.

use std::collections::BTreeMap;
use std::sync::Arc;

use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::fork::{Controls, Mark, Selection, Set, State};
use throughline_protocol::id::{EntryCid, Seq, SessionId};
use throughline_protocol::verify::{Base, ChainState, Prechecked, Pushed, Verifier, VerifiedSegment};
use throughline_store::{
    AdoptOptions, Adopted, GuardUse, NewTail, PutControls, PutSide, Reader, ReplaceTail, SessionRow,
    SessionState, SetSelection, SideStatus, StagingUse, Summary,
};

use super::append::Held;
use super::controls::controls_of;
use super::seal_up::links_of;
use super::{Node, now, summary};
use crate::api::error::{Answer, Problem};

/// Side entries of one session that are judged at a time, and their bytes in the whole store.
const SIDE_MAX: usize = 10_000;
const SIDE_BYTES_MAX: u64 = 256 << 20;

/// What came in for one session. Signatures were checked; places were not.
#[derive(Clone, Debug, Default)]
pub struct Arrived {
    /// Entries with their payloads, in any order.
    pub entries: Vec<Prechecked>,
    /// Control blobs.
    pub controls: Vec<Signed<Control>>,
    /// Whether they had been staged.
    pub staging: StagingUse,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct Evaluated {
    /// The verdict's word now.
    pub verdict: String,
    /// The tip now.
    pub tip: Option<Mark>,
    /// Entries adopted onto the main chain.
    pub adopted: u64,
    /// Entries that left it.
    pub left: u64,
    /// Entries kept beside it.
    pub kept_aside: u64,
    /// Entries that break a rule, with the first one's refusal: not stored.
    pub refused: Option<(u64, Reject)>,
}

/// Whether an act changed the main chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It did.
    Advanced,
    /// It did not.
    Unchanged,
}

impl Evaluated {
    /// Whether the main chain changed.
    #[must_use]
    pub fn taken(&self) -> Taken {
        if self.adopted + self.left > 0 { Taken::Advanced } else { Taken::Unchanged }
    }
}

impl Node {
    /// Takes in entries and control blobs of a session and moves to what selection returns.
    ///
    /// # Errors
    /// `E_INCOMPLETE` when the genesis is neither held nor among them; store errors. An entry that breaks a rule is not an error:
    /// it is told in the result and not stored.
    pub fn take_in(&self, session: SessionId, arrived: Arrived) -> Answer<Evaluated> {
        let Arrived { entries, controls, staging } = arrived;
        if !controls.is_empty() {
            self.store().run(PutControls { controls, at: now() })?;
        }
        let evaluated = self.settle(session, &entries, staging)?;
        self.after_commit(session);
        Ok(evaluated)
    }

    /// Judges a session again over what is held, after a tombstone or a Ref came.
    ///
    /// # Errors
    /// As [`Node::take_in`].
    pub fn judge_again(&self, session: SessionId) -> Answer<Evaluated> {
        self.settle(session, &[], StagingUse::Keep)
    }

    fn settle(&self, session: SessionId, entries: &[Prechecked], staging: StagingUse) -> Answer<Evaluated> {
        // Another act may move the tip between the snapshot and the commit; then the decision is made again.
        for _ in 0..8 {
            let reader = self.reader()?;
            let scene = Scene::read(self, &reader, session, entries)?;
            match scene.apply(self, staging) {
                Err(problem) if problem.code() == Code::HeadMoved => continue,
                settled => return settled,
            }
        }
        Err(Problem::new(Code::HeadMoved, "the session kept moving while it was judged; try again"))
    }
}

/// Everything that one decision is made on.
struct Scene<'r> {
    reader: &'r Reader,
    session: SessionId,
    row: Option<SessionRow>,
    controls: Controls,
    /// Every entry by CID, held or new.
    known: BTreeMap<EntryCid, Prechecked>,
    /// The main chain, genesis first.
    main: Vec<EntryCid>,
    new: Vec<EntryCid>,
    side: BTreeMap<EntryCid, SideStatus>,
}

impl<'r> Scene<'r> {
    fn read(node: &Node, reader: &'r Reader, session: SessionId, entries: &[Prechecked]) -> Answer<Self> {
        let row = reader.session(session)?;
        let owner = match &row {
            Some(row) => row.owner,
            None => owner_of(session, entries)?,
        };
        let controls = controls_of(reader, owner, Some(session))?;
        let mut scene = Scene {
            reader,
            session,
            controls,
            known: BTreeMap::new(),
            main: Vec::new(),
            new: Vec::new(),
            side: BTreeMap::new(),
            row,
        };
        if let Some(row) = &scene.row {
            for stored in reader.entries(session, Seq::ZERO, row.tip.seq)? {
                let stored = stored?;
                scene.known.insert(stored.cid, from_store(stored.bytes)?);
                scene.main.push(stored.cid);
            }
            for side in reader.side_entries(session, None, SIDE_MAX)? {
                scene.known.insert(side.cid, from_store(side.bytes)?);
                scene.side.insert(side.cid, side.status);
            }
        }
        for entry in entries {
            let cid = entry.signed().cid();
            if scene.known.insert(cid, entry.clone()).is_none() {
                scene.new.push(cid);
            }
        }
        let _ = node;
        Ok(scene)
    }

    fn apply(&self, node: &Node, staging: StagingUse) -> Answer<Evaluated> {
        let mut set = Set::with_controls(self.session, self.controls.clone());
        for entry in self.known.values() {
            set.insert_entry(entry.signed());
        }
        let judged = set.judge();
        let selection = judged.selection();
        let refused = self.refused(&selection, |cid| judged.explain(cid));
        if matches!(selection.state, State::Incomplete | State::Invalid) {
            let reject = judged.explain(self.session.genesis()).unwrap_or_else(|| Code::Incomplete.into());
            return Err(reject.into());
        }
        let target = self.target(&selection);
        let path = self.path_to(target);
        let common = self.main.iter().zip(&path).take_while(|(a, b)| a == b).count();
        let verdict = self.verdict(&selection, &path);
        let mut change = Change {
            node,
            scene: self,
            selection: &selection,
            verdict,
            staging,
            evaluated: Evaluated {
                verdict: verdict.to_owned(),
                tip: self.row.as_ref().map(|row| row.tip),
                adopted: 0,
                left: (self.main.len() - common) as u64,
                kept_aside: 0,
                refused,
            },
        };
        let keep = common.checked_sub(1).map(|at| self.main[at]);
        if path.len() > common || self.main.len() > common {
            let base = keep.and_then(|cid| ChainState::at(&judged, &self.controls, cid));
            change.move_chain(base, &path[common..])?;
        }
        change.keep_aside(&path)?;
        change.finish(&path, ChainState::at(&judged, &self.controls, target))
    }

    /// The entry that the main chain is to end with: the head and the pending entries above it, while they are one chain.
    fn target(&self, selection: &Selection) -> EntryCid {
        let tip = self.main.last().copied();
        let settled = matches!(selection.state, State::Ok | State::Sealed);
        let Some(head) = selection.head.filter(|_| settled) else {
            // In dispute: nobody moves. A session that is new stays at what is not in dispute.
            return tip.or(selection.head.map(|head| head.cid)).unwrap_or(self.session.genesis());
        };
        let mut at = head.cid;
        loop {
            let mut above = selection.pending.iter().filter(|cid| self.prev_of(**cid) == Some(at));
            match (above.next(), above.next()) {
                (Some(next), None) => at = *next,
                (Some(_), Some(_)) => {
                    // Two parties signed on one head: keep the one that is on the main chain already, else wait.
                    let on_main = |cid: &EntryCid| self.main.contains(cid) && self.prev_of(*cid) == Some(at);
                    match selection.pending.iter().find(|cid| on_main(cid)) {
                        Some(next) => at = *next,
                        None => return at,
                    }
                }
                (None, _) => return at,
            }
        }
    }

    fn prev_of(&self, cid: EntryCid) -> Option<EntryCid> {
        self.known.get(&cid).and_then(|entry| entry.signed().value().prev())
    }

    /// Genesis to `tip`.
    fn path_to(&self, tip: EntryCid) -> Vec<EntryCid> {
        let mut path: Vec<EntryCid> = std::iter::successors(Some(tip), |cid| self.prev_of(*cid)).collect();
        path.reverse();
        path
    }

    /// New entries that are not *in*, and the first one's reason. Entries that wait for a missing blob are no fault.
    fn refused(
        &self,
        selection: &Selection,
        explain: impl Fn(EntryCid) -> Option<Reject>,
    ) -> Option<(u64, Reject)> {
        let is_in = |cid: &&EntryCid| {
            !selection.valid.contains(*cid) && !selection.revoked_tail.contains(*cid)
        };
        let mut outside = self.new.iter().filter(is_in).filter_map(|cid| explain(*cid));
        let first = outside.next()?;
        Some((1 + outside.count() as u64, first))
    }

    fn status_of(&self, selection: &Selection, cid: EntryCid) -> Option<SideStatus> {
        if selection.revoked_tail.contains(&cid) {
            Some(SideStatus::Revoked)
        } else if selection.fenced.contains(&cid) {
            Some(SideStatus::Fenced)
        } else if selection.valid.contains(&cid) {
            let disputed = matches!(selection.state, State::Forked | State::Frozen);
            Some(if disputed { SideStatus::Forked } else { SideStatus::Branch })
        } else {
            None
        }
    }

    /// The verdict's word, by the order of `docs/PROTOCOL.md` R-VE-3.
    fn verdict(&self, selection: &Selection, path: &[EntryCid]) -> &'static str {
        let holder_fenced = selection.fenced.iter().any(|cid| self.is_holders(*cid));
        let cut = !selection.revoked_tail.is_empty() || selection.state == State::RevokedUnanchored;
        let _ = path;
        match selection.state {
            State::Invalid => "corrupt",
            State::Incomplete => "incomplete",
            State::Frozen => "frozen",
            State::Forked => "forked",
            State::Ok | State::Sealed | State::RevokedUnanchored if cut => "revoked-tail",
            State::Ok | State::Sealed | State::RevokedUnanchored if holder_fenced => "fenced-tail",
            State::Sealed => "sealed",
            State::Ok | State::RevokedUnanchored => "valid",
        }
    }

    /// Whether a server signed an entry as holder: what fences cut of anybody else is to be signed again, no fault.
    fn is_holders(&self, cid: EntryCid) -> bool {
        let Some(entry) = self.known.get(&cid) else { return false };
        let entry = entry.signed().value();
        let Some(authority) = entry.authority else { return false };
        let granted = self.controls.grant(&authority.capability, entry.signer, authority.space);
        granted.is_ok_and(|grant| grant.role == throughline_protocol::control::Role::Writer)
    }
}

/// One decision on its way into the store.
struct Change<'a, 'r> {
    node: &'a Node,
    scene: &'a Scene<'r>,
    selection: &'a Selection,
    verdict: &'static str,
    staging: StagingUse,
    evaluated: Evaluated,
}

impl Change<'_, '_> {
    /// Moves the main chain: from `base` (none is before the genesis) along `tail`.
    fn move_chain(&mut self, base: Option<ChainState>, tail: &[EntryCid]) -> Answer<()> {
        let segment = self.verify_tail(base.clone(), tail)?;
        let left = self.evaluated.left > 0;
        match (segment, base, left) {
            (Some(segment), _, false) => self.adopt(segment),
            (segment, Some(base), true) => self.replace(segment, base),
            _ => Ok(()),
        }
    }

    fn verify_tail(&self, base: Option<ChainState>, tail: &[EntryCid]) -> Answer<Option<VerifiedSegment>> {
        let scene = self.scene;
        let held = Held { reader: scene.reader, session: scene.session };
        let mut verifier = match base {
            Some(state) => Verifier::resume(state, scene.controls.clone()),
            None => Verifier::begin(scene.controls.clone()),
        }
        .with_ancestry(held);
        for cid in tail {
            let entry = scene.known.get(cid).ok_or(Code::Incomplete)?;
            if !matches!(verifier.link(entry.clone())?, Pushed::Linked(..)) {
                return Err(Problem::new(Code::Internal, "selection chose entries that are no chain"));
            }
        }
        Ok(verifier.finish()?)
    }

    fn adopt(&mut self, segment: VerifiedSegment) -> Answer<()> {
        self.evaluated.adopted = segment.entries().len() as u64;
        let mut options = self.options(&segment)?;
        if self.scene.row.is_none() && self.is_own(&segment) {
            options.pin = self.node.own_pin();
        }
        match self.node.store().adopt(segment, options)? {
            Adopted::Now { tip, .. } => self.evaluated.tip = Some(tip),
            Adopted::Replayed { .. } => {}
        }
        Ok(())
    }

    fn replace(&mut self, segment: Option<VerifiedSegment>, base: ChainState) -> Answer<()> {
        let scene = self.scene;
        let keep_through = base.tip();
        let statuses = scene.main[keep_through_index(&keep_through)..]
            .iter()
            .filter_map(|cid| Some((*cid, scene.status_of(self.selection, *cid)?)))
            .collect();
        let options = match &segment {
            Some(segment) => self.options(segment)?,
            None => AdoptOptions { staging: self.staging, ..AdoptOptions::at(now()) },
        };
        self.evaluated.adopted = segment.as_ref().map_or(0, |segment| segment.entries().len() as u64);
        let expected_tip = scene.main.last().copied().unwrap_or(keep_through.cid);
        let tail = match segment {
            Some(segment) => NewTail::Segment(Box::new(segment)),
            None => NewTail::Cut(Box::new(base)),
        };
        self.node.store().run(ReplaceTail {
            session: scene.session,
            expected_tip,
            keep_through,
            tail,
            statuses,
            fallback: SideStatus::Branch,
            options,
        })?;
        Ok(())
    }

    /// What goes with a segment: files, the guard when it makes this node the holder, retirement when it makes another.
    fn options(&self, segment: &VerifiedSegment) -> Answer<AdoptOptions> {
        let own = self.node.principal();
        let state = segment.after();
        let takes_over = segment.entries().last().is_some_and(|last| {
            matches!(&last.signed().value().body, Body::Handoff(handoff) if handoff.holder == Some(own))
        });
        let held_before = self.scene.row.as_ref().map(|row| (row.summary.holder, row.tip.epoch));
        let next_state = match held_before {
            _ if takes_over => Some(SessionState::Active),
            Some((Some(holder), epoch)) if holder == own && state.tip().epoch > epoch => {
                (state.holder() != Some(own)).then_some(SessionState::Retired { epoch })
            }
            _ => None,
        };
        Ok(AdoptOptions {
            guard: if takes_over { GuardUse::Activated } else { GuardUse::Untouched },
            links: links_of(segment.entries())?,
            state: next_state,
            staging: self.staging,
            ..AdoptOptions::at(now())
        })
    }

    fn is_own(&self, segment: &VerifiedSegment) -> bool {
        matches!(segment.base(), Base::Nothing) && self.node.owner() == Some(segment.after().owner())
    }

    /// Keeps what is allowed and not on the main chain.
    fn keep_aside(&mut self, path: &[EntryCid]) -> Answer<()> {
        let scene = self.scene;
        let aside: Vec<(Signed<Entry>, SideStatus)> = scene
            .new
            .iter()
            .filter(|cid| !path.contains(cid))
            .filter_map(|cid| {
                let status = scene.status_of(self.selection, *cid)?;
                Some((scene.known.get(cid)?.signed().clone(), status))
            })
            .collect();
        if aside.is_empty() || (scene.row.is_none() && path.is_empty()) {
            return Ok(());
        }
        let stored = self.node.store().run(PutSide {
            session: scene.session,
            entries: aside,
            at: now(),
            total_bytes_max: SIDE_BYTES_MAX,
        })?;
        self.evaluated.kept_aside = stored as u64;
        Ok(())
    }

    /// Writes what lists show.
    fn finish(mut self, path: &[EntryCid], state: Option<ChainState>) -> Answer<Evaluated> {
        let scene = self.scene;
        let head = self.selection.head;
        let (holder, class) = match (&state, &self.selection.position) {
            (Some(state), _) => summary::holder_and_class(state),
            (None, Some(position)) => (position.holder, position.class),
            (None, None) => (None, throughline_protocol::entry::Class::default()),
        };
        let tip_seq = (path.len() as u64).saturating_sub(1);
        let summary = Summary {
            head,
            verdict: self.verdict.to_owned(),
            class,
            title: self.title(path)?,
            holder,
            pending: tip_seq.saturating_sub(head.map_or(0, |head| head.seq.get())),
            anchored_through: self.selection.anchored_through.map(|(mark, _)| mark.seq),
        };
        if scene.row.as_ref().is_none_or(|row| row.summary != summary) || self.evaluated.adopted > 0 {
            self.node.store().run(SetSelection { session: scene.session, summary, at: now() })?;
        }
        if let Some(state) = state {
            self.evaluated.tip = Some(state.tip());
        }
        Ok(self.evaluated)
    }

    /// The title that new entries set, else the one that is known, else the genesis payload's.
    fn title(&self, path: &[EntryCid]) -> Answer<Option<String>> {
        let scene = self.scene;
        for cid in path.iter().rev().filter(|cid| scene.new.contains(cid)) {
            if let Some(entry) = scene.known.get(cid) {
                let (signed, payload) = entry.clone().into_parts();
                let named = matches!(signed.value().body, Body::Genesis(_))
                    || matches!(&signed.value().body, Body::Note(throughline_protocol::entry::Note::Title));
                if let (true, Some(bytes)) = (named, payload) {
                    let payload = throughline_protocol::payload::Payload::check(signed.value(), bytes)?;
                    if let Some(title) = payload.title() {
                        return Ok(Some(title.to_owned()));
                    }
                }
            }
        }
        Ok(scene.row.as_ref().and_then(|row| row.summary.title.clone()))
    }
}

/// Index of the first main-chain entry after the one that stays: a chain's index is its seq.
fn keep_through_index(keep: &Mark) -> usize {
    usize::try_from(keep.seq.get().saturating_add(1)).unwrap_or(usize::MAX)
}

/// An entry read back from the store; it was verified when it was adopted.
fn from_store(bytes: Vec<u8>) -> Answer<Prechecked> {
    let signed = Decoded::<Entry>::decode(Arc::<[u8]>::from(bytes))?.assume_signed();
    Ok(Prechecked::of(signed, None)?)
}

/// The owner that the genesis among `entries` names.
fn owner_of(session: SessionId, entries: &[Prechecked]) -> Answer<throughline_protocol::id::Principal> {
    entries
        .iter()
        .find(|entry| entry.signed().cid() == session.genesis())
        .map(|entry| entry.signed().value().owner())
        .ok_or_else(|| Problem::new(Code::Incomplete, format!("the genesis of {} is not held", session.short())))
}
