//! Carrying a decision out: the chain moves with its summary in one transaction, evidence is stored beside it.
//!
//! The order is chosen for a crash in between, and for whoever looks meanwhile: evidence of a session that is held goes first, so
//! that a verdict is never seen without what shows it, and a session whose evidence says more than its verdict is judged again
//! when the node starts.

use std::collections::BTreeMap;

use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::entry::Body;
use throughline_protocol::evidence::Charge;
use throughline_protocol::fork::{Ending, Holds, Mark};
use throughline_protocol::id::{EntryCid, Principal, SessionId};
use throughline_protocol::verify::{
    Ancestry, ChainState, Prechecked, Pushed, VerifiedEntry, VerifiedSegment, Verifier,
};
use throughline_store::{
    AdoptError, AdoptOptions, GuardUse, Naming, NewTail, PutSide, Reader, ReplaceTail, SessionRow,
    SessionState, SetSelection, SideKept, SideLimits, SideStatus, StagingUse, StoreError, Summary,
};

use super::evaluate::{Basis, Evaluated, Takeover};
use super::scene::{Scene, from_store, tip_of};
use super::seal_up::links_of;
use super::{Node, now};
use crate::api::error::{Answer, Problem};

/// Side entries of the whole store, and of one session with their payloads: in bytes.
pub(super) const SIDE_LIMITS: SideLimits =
    SideLimits { total_bytes_max: 256 << 20, session_bytes_max: 16 << 20 };

/// A decision.
pub(super) struct Change<'s, 'r> {
    pub(super) scene: &'s Scene<'r>,
    /// The chain up to the last entry that stays; none before the genesis.
    pub(super) base: Option<ChainState>,
    /// What follows it.
    pub(super) tail: &'s [EntryCid],
    /// Why entries leave the main chain.
    pub(super) leaving: BTreeMap<EntryCid, SideStatus>,
    /// How many leave.
    pub(super) left: u64,
    /// New entries to keep beside it.
    pub(super) aside: Aside,
    /// What files of evidence are made of.
    pub(super) charges: &'s [Charge],
    /// Whether the session is in dispute: then the evidence is the verdict.
    pub(super) disputed: bool,
    pub(super) refused: Option<(u64, Reject)>,
}

/// Entries to keep beside the chain, those first that show a fault.
#[derive(Default)]
pub(super) struct Aside {
    pub(super) entries: Vec<(Prechecked, SideStatus)>,
    /// How many show a fault: they are kept although the session's room is used up.
    pub(super) needed: usize,
}

/// What goes along with a change of the chain.
pub(super) struct Move<'a> {
    pub(super) node: &'a Node,
    pub(super) reader: &'a Reader,
    pub(super) session: SessionId,
    pub(super) row: Option<&'a SessionRow>,
    pub(super) staging: StagingUse,
    /// Control blobs that a new session brings along.
    pub(super) controls: &'a [Signed<Control>],
    pub(super) summary: Summary,
}

/// Verified entries that follow each other. When they make this node the holder, the first part ends with the entry that
/// does: it becomes the guard row.
pub(super) struct Run {
    parts: Vec<VerifiedSegment>,
    takes_over: Option<usize>,
}

/// What became of a run.
pub(super) struct Landed {
    pub(super) tip: Option<Mark>,
    pub(super) adopted: u64,
    pub(super) takeover: Takeover,
}

impl Change<'_, '_> {
    /// Carries the decision out; `tip` is where the chain then ends.
    pub(super) fn carry_out(self, step: Move<'_>, tip: Option<Mark>) -> Answer<Evaluated> {
        let is_new = self.scene.row.is_none();
        let mut kept = SideKept::default();
        if !is_new {
            kept = self.keep_aside(&step)?;
        }
        super::evidence::keep(step.node, self.scene, step.controls, self.charges);
        let verdict = step.summary.verdict.clone();
        let moves = self.left > 0 || !self.tail.is_empty();
        let landed = if moves { self.move_chain(&step)? } else { settled(&step)? };
        if is_new {
            kept = self.keep_aside(&step)?;
        }
        Ok(Evaluated {
            verdict,
            tip: landed.tip.or(tip),
            adopted: landed.adopted,
            left: self.left,
            kept_aside: kept.stored as u64,
            dropped: kept.dropped as u64,
            basis: Basis::Held,
            refused: self.refused,
            takeover: landed.takeover,
        })
    }

    fn move_chain(&self, step: &Move<'_>) -> Answer<Landed> {
        let run = self.verify_tail(step.node)?;
        match (&self.base, self.left) {
            (Some(base), 1..) => step.replace(base.clone(), &self.leaving, run),
            (_, _) => step.extend(run),
        }
    }

    fn verify_tail(&self, node: &Node) -> Answer<Run> {
        let scene = self.scene;
        let controls = scene.set.controls().clone();
        let entries: Vec<Prechecked> =
            self.tail.iter().map(|cid| entry_of(scene, *cid)).collect::<Answer<_>>()?;
        let ancestry = OnPath::new(scene, &entries);
        let verifier = match &self.base {
            Some(state) => Verifier::resume(state.clone(), controls),
            None => Verifier::begin(controls),
        };
        Run::verify(node.principal(), verifier.with_ancestry(ancestry), entries)?
            .ok_or_else(|| Problem::new(Code::Internal, "selection chose entries that are no chain"))
    }

    /// Stores new evidence. When its area is full, what is settled goes on without; a dispute cannot be without it.
    fn keep_aside(&self, step: &Move<'_>) -> Answer<SideKept> {
        if self.aside.entries.is_empty() {
            return Ok(SideKept::default());
        }
        let Aside { entries, needed } = &self.aside;
        let put = PutSide {
            session: step.session,
            entries: entries.clone(),
            needed: *needed,
            at: now(),
            limits: step.node.side_limits(),
        };
        match step.node.store().run(put) {
            Ok(kept) => {
                if kept.dropped > 0 {
                    let (session, dropped) = (step.session.short(), kept.dropped);
                    tracing::warn!(session, dropped, "no room for more entries beside the chain");
                }
                Ok(kept)
            }
            Err(error @ StoreError::Quota { .. }) if !self.disputed => {
                let session = step.session.short();
                tracing::warn!(code = error.code().name(), "evidence of {session} is not kept: {error}");
                Ok(SideKept { stored: 0, dropped: entries.len() })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Nothing moves; only what lists show.
fn settled(step: &Move<'_>) -> Answer<Landed> {
    if step.row.is_some_and(|row| row.summary != step.summary) {
        let (session, summary) = (step.session, step.summary.clone());
        step.node.store().run(SetSelection { session, summary, at: now() })?;
    }
    Ok(Landed { tip: tip_of(step.row), adopted: 0, takeover: Takeover::None })
}

impl Run {
    /// Verifies entries that are to follow each other; none when one does not stand on the one before.
    ///
    /// # Errors
    /// The first rule that one breaks.
    pub(super) fn verify<A: Ancestry>(
        own: Principal,
        mut verifier: Verifier<A>,
        entries: Vec<Prechecked>,
    ) -> Answer<Option<Self>> {
        let takes_over = takes_over(&entries, own);
        let mut parts = Vec::new();
        for (at, entry) in entries.into_iter().enumerate() {
            if !matches!(verifier.link(entry)?, Pushed::Linked(..)) {
                return Ok(None);
            }
            if takes_over == Some(at) {
                parts.extend(verifier.take_segment()?);
            }
        }
        parts.extend(verifier.finish()?);
        Ok(Some(Run { parts, takes_over: takes_over.map(|_| 0) }))
    }

    /// The last part.
    pub(super) fn last(&self) -> Option<&VerifiedSegment> {
        self.parts.last()
    }

    /// All its entries, oldest first.
    pub(super) fn all(&self) -> impl Iterator<Item = &VerifiedEntry> {
        self.parts.iter().flat_map(VerifiedSegment::entries)
    }

    fn entries(&self) -> u64 {
        self.parts.iter().map(|part| part.entries().len() as u64).sum()
    }
}

/// Which entry makes this node the holder, if it still is at the end and has signed nothing since: what it signed before,
/// in another life, is no reason to sign again.
fn takes_over(entries: &[Prechecked], own: Principal) -> Option<usize> {
    for (at, entry) in entries.iter().enumerate().rev() {
        let entry = entry.signed().value();
        match &entry.body {
            Body::Genesis(genesis) => return (genesis.holder == Some(own)).then_some(at),
            Body::Handoff(handoff) => return (handoff.holder == Some(own)).then_some(at),
            Body::Seal(_) => return None,
            Body::UserMessage(_) | Body::ModelResponse(_) | Body::ToolCall(_) | Body::Note(_) => {
                if entry.signer == own {
                    return None;
                }
            }
        }
    }
    None
}

impl Move<'_> {
    /// Puts a run on the tip, or begins a session with it.
    pub(super) fn extend(&self, run: Run) -> Answer<Landed> {
        let adopted = run.entries();
        let mut landed = Landed { tip: tip_of(self.row), adopted, takeover: Takeover::None };
        let count = run.parts.len();
        for (at, segment) in run.parts.into_iter().enumerate() {
            let mut options = self.options(&segment, Part::at(at, count))?;
            if at == 0 && self.row.is_none() {
                options.controls = self.controls.to_vec();
                // Who judges for a tombstone lists sessions that are held, and this one is not yet.
                let owner = segment.after().owner();
                options.judged_under = Some((owner, self.reader.owner_digest(owner)?));
                options.pin = self.pin(&segment);
            }
            landed.tip = Some(segment.after().tip());
            if run.takes_over == Some(at) {
                landed.takeover = self.take_over(segment, options)?;
            } else {
                self.node.store().adopt(segment, options)?;
            }
        }
        Ok(landed)
    }

    /// Puts a run, or nothing, in the place of what stands above `keep`.
    pub(super) fn replace(
        &self,
        keep: ChainState,
        leaving: &BTreeMap<EntryCid, SideStatus>,
        mut run: Run,
    ) -> Answer<Landed> {
        let mut landed = Landed { tip: Some(keep.tip()), adopted: run.entries(), takeover: Takeover::None };
        let rest = run.parts.split_off(run.parts.len().min(1));
        let Some(first) = run.parts.pop() else {
            let mut options = AdoptOptions { staging: self.staging, ..AdoptOptions::at(now()) };
            options.summary = Some(self.summary.clone());
            let tip = keep.tip();
            self.put_tail(tip, NewTail::Cut(Box::new(keep)), leaving, options)?;
            return Ok(landed);
        };
        let mut options = self.options(&first, Part::at(0, 1 + rest.len()))?;
        landed.tip = Some(first.after().tip());
        let takes_over = run.takes_over.is_some();
        let tail = |segment: &VerifiedSegment| NewTail::Segment(Box::new(segment.clone()));
        if takes_over {
            options.guard = GuardUse::Activated;
            options.state = Some(SessionState::Active);
            landed.takeover = Takeover::Taken;
        }
        match self.put_tail(keep.tip(), tail(&first), leaving, options.clone()) {
            Err(AdoptError::SignGuard(why)) if takes_over => {
                landed.takeover = Takeover::Refused(Reject::new(Code::SignGuard, why.to_string()));
                options.guard = GuardUse::Untouched;
                self.put_tail(keep.tip(), tail(&first), leaving, options)?;
            }
            put => put?,
        }
        let count = rest.len();
        for (at, segment) in rest.into_iter().enumerate() {
            let options = self.options(&segment, Part::at(at, count))?;
            landed.tip = Some(segment.after().tip());
            self.node.store().adopt(segment, options)?;
        }
        Ok(landed)
    }

    fn put_tail(
        &self,
        keep_through: Mark,
        tail: NewTail,
        leaving: &BTreeMap<EntryCid, SideStatus>,
        options: AdoptOptions,
    ) -> Result<(), AdoptError> {
        let expected_tip = self.row.map_or(keep_through.cid, |row| row.tip.cid);
        let statuses = leaving.clone();
        let (session, fallback) = (self.session, SideStatus::Branch);
        let step = ReplaceTail { session, expected_tip, keep_through, tail, statuses, fallback, options };
        self.node.store().run(step).map(|_| ())
    }

    /// Adopts the part that makes this node the holder. When the guard does not allow that, it is adopted as history.
    fn take_over(&self, segment: VerifiedSegment, mut options: AdoptOptions) -> Answer<Takeover> {
        options.guard = GuardUse::Activated;
        options.state = Some(SessionState::Active);
        match self.node.store().adopt(segment.clone(), options.clone()) {
            Err(AdoptError::SignGuard(why)) => {
                options.guard = GuardUse::Untouched;
                self.node.store().adopt(segment, options)?;
                Ok(Takeover::Refused(Reject::new(Code::SignGuard, why.to_string())))
            }
            adopted => adopted.map(|_| Takeover::Taken).map_err(Problem::from),
        }
    }

    /// What goes with a part; the summary with the last one.
    fn options(&self, segment: &VerifiedSegment, part: Part) -> Answer<AdoptOptions> {
        Ok(AdoptOptions {
            links: links_of(self.reader, segment.session(), segment.entries(), Naming::Nothing)?.links,
            state: self.next_state(segment.after()),
            staging: if part == Part::Last { self.staging } else { StagingUse::Keep },
            summary: (part == Part::Last).then(|| self.summary.clone()),
            ..AdoptOptions::at(now())
        })
    }

    /// A session that this node held and that another one holds now is handed over. A seal ends it for everybody.
    fn next_state(&self, after: &ChainState) -> Option<SessionState> {
        let own = self.node.principal();
        let row = self.row?;
        let held = row.summary.holder == Some(own) && after.tip().epoch > row.tip.epoch;
        let sealed = after.position().ending == Ending::Sealed;
        (held && !sealed && after.holder() != Some(own))
            .then_some(SessionState::Retired { epoch: row.tip.epoch })
    }

    /// Sessions of this node's owner are kept when they begin.
    fn pin(&self, segment: &VerifiedSegment) -> Option<throughline_store::Pin> {
        (self.node.owner() == Some(segment.after().owner())).then(|| self.node.own_pin()).flatten()
    }
}

/// Which part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Earlier,
    Last,
}

impl Part {
    fn at(index: usize, count: usize) -> Self {
        if index + 1 == count { Part::Last } else { Part::Earlier }
    }
}

/// Answers for links to earlier entries of the chain that a decision makes: those that stay, and those that follow.
struct OnPath<'s, 'r> {
    scene: &'s Scene<'r>,
    following: BTreeMap<EntryCid, u64>,
}

impl<'s, 'r> OnPath<'s, 'r> {
    fn new(scene: &'s Scene<'r>, following: &[Prechecked]) -> Self {
        let following =
            following.iter().map(|entry| (entry.signed().cid(), entry.signed().value().seq().get()));
        OnPath { scene, following: following.collect() }
    }
}

impl Ancestry for OnPath<'_, '_> {
    fn holds(&self, cid: EntryCid, tip: Mark) -> Holds {
        if let Some(seq) = self.following.get(&cid) {
            return if *seq <= tip.seq.get() { Holds::Yes } else { Holds::No };
        }
        match self.scene.reader.is_ancestor(self.scene.session, cid, tip.seq) {
            Ok(true) => Holds::Yes,
            Ok(false) => Holds::No,
            Err(_) => Holds::Unknown,
        }
    }
}

/// An entry of the new tail: one that came, or one that was held beside the chain and comes back.
fn entry_of(scene: &Scene<'_>, cid: EntryCid) -> Answer<Prechecked> {
    if let Some(entry) = scene.new.get(&cid) {
        return Ok(entry.clone());
    }
    let side = scene.reader.side_entry(cid)?.ok_or(Code::Incomplete)?;
    Ok(Prechecked::of(from_store(side.bytes)?, None)?)
}
