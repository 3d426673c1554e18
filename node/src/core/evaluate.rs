//! Taking in what arrived: selection over everything held decides where the main chain goes. `docs/PROTOCOL.md` R-SE-1.
//!
//! ```text
//! arrived ─▶ a run on the tip, nothing beside it ─▶ extend    one verifier, no reading of the chain
//!        └─▶ anything else ───────────────────────▶ Scene     all that is held, judged as a set ─▶ Change
//! ```
//!
//! Both ways end in the same place, since a chain without branches has one selection. What leaves the main chain, and what
//! never was on it, stays as evidence. Nothing of a session that is not allowed is stored.

use std::collections::BTreeMap;

use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::fork::{Mark, Pins};
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::verify::Prechecked;
use throughline_store::{
    NoteJudged, PutControls, Reader, SessionRow, SetSelection, StagingUse, Stored, Summary,
};

use super::base::standing;
use super::controls::controls_of;
use super::extend::Short;
use super::following::Follows;
use super::scene::Scene;
use super::{Node, now};
use crate::api::error::{Answer, Problem};

/// Times that a decision is made anew because somebody moved the tip meanwhile.
pub(super) const ATTEMPTS: usize = 8;

/// What came in for one session. Signatures were checked; places were not.
#[derive(Clone, Debug, Default)]
pub struct Arrived {
    /// Entries with their payloads, in any order.
    pub entries: Vec<Prechecked>,
    /// Control blobs. Those that are not of the session's owner, or are about another session, are passed over.
    pub controls: Vec<Signed<Control>>,
    /// Whether they had been staged.
    pub staging: StagingUse,
    /// What else comes with them.
    pub follows: Follows,
}

/// What became of a part of a transfer or file.
#[derive(Clone, Debug)]
pub enum Part {
    /// It was judged.
    Taken(Evaluated),
    /// It can only be judged together with what follows, which is not known. Of its entries nothing is kept.
    Waits,
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
    /// Entries for which there was no room beside it.
    pub dropped: u64,
    /// What the verdict was made on.
    pub basis: Basis,
    /// Entries that break a rule, with the first one's refusal: not stored.
    pub refused: Option<(u64, Reject)>,
    /// Whether this node became the holder.
    pub takeover: Takeover,
}

/// Whether what was adopted makes this node the holder, and whether it may sign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Takeover {
    /// It does not.
    #[default]
    None,
    /// It does: the guard row was written with it.
    Taken,
    /// It does, and the sign guard does not allow it: the entries are history here, nothing is signed after them.
    Refused(Reject),
}

/// What a verdict was made on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Basis {
    /// All that is held.
    #[default]
    Held,
    /// That, and entries that are on their way: [`Node::take_rest`] makes the verdict on what came of them.
    Following,
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
    /// Nothing happened to a session that stands like this.
    pub(super) fn unchanged(summary: &Summary, tip: Option<Mark>) -> Self {
        Evaluated {
            verdict: summary.verdict.clone(),
            tip,
            adopted: 0,
            left: 0,
            kept_aside: 0,
            dropped: 0,
            basis: Basis::Held,
            refused: None,
            takeover: Takeover::None,
        }
    }

    /// Whether the main chain changed.
    #[must_use]
    pub fn taken(&self) -> Taken {
        if self.adopted + self.left > 0 { Taken::Advanced } else { Taken::Unchanged }
    }
}

/// What one settling works on.
pub(super) struct Input<'a> {
    pub(super) entries: &'a [Prechecked],
    /// Control blobs that are stored with the first entry of a session that is new.
    pub(super) controls: &'a [Signed<Control>],
    pub(super) staging: StagingUse,
    pub(super) way: Way,
    pub(super) follows: &'a Follows,
}

impl Input<'_> {
    /// Nothing new: what is held is judged.
    pub(super) const HELD: Input<'static> = Input {
        entries: &[],
        controls: &[],
        staging: StagingUse::Keep,
        way: Way::Whole,
        follows: &Follows::Nothing,
    };
}

/// Whether the short way may be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It may.
    Either,
    /// Control blobs came that may change what earlier entries are: everything is judged.
    Whole,
}

impl Node {
    /// Takes in entries and control blobs of a session and moves to what selection returns.
    ///
    /// # Errors
    /// `E_INCOMPLETE` when the genesis is neither held nor among them, what it is refused for when it is not allowed; store errors. An
    /// entry that breaks a rule is not an error: it is told in the result and not stored.
    pub fn take_in(&self, session: SessionId, arrived: Arrived) -> Answer<Evaluated> {
        match self.take_part(session, Arrived { follows: Follows::Nothing, ..arrived })? {
            Part::Taken(evaluated) => Ok(evaluated),
            Part::Waits => Err(Code::Internal.into()),
        }
    }

    /// As [`Node::take_in`], for a part of what comes in one transfer or file. Nothing of it is judged without what follows, but for a run
    /// on the tip that stands by itself.
    ///
    /// # Errors
    /// As [`Node::take_in`].
    pub fn take_part(&self, session: SessionId, arrived: Arrived) -> Answer<Part> {
        let Arrived { entries, controls, staging, follows } = arrived;
        let held = self.reader()?.session(session)?.map(|row| row.owner);
        let owner = match held {
            Some(owner) => owner,
            None => owner_of(session, &entries)?,
        };
        let mut controls: Vec<Signed<Control>> =
            controls.into_iter().filter(|control| belongs(control.value(), owner, session)).collect();
        let revokes = controls.iter().any(|control| matches!(control.value(), Control::Tombstone(_)));
        let mut way = Way::Either;
        let mut stored = 0;
        if held.is_some() && !controls.is_empty() {
            let controls = std::mem::take(&mut controls);
            let grants_only =
                controls.iter().all(|control| matches!(control.value(), Control::Capability(_)));
            let put = self.store().run(PutControls { controls, at: now() })?;
            stored = put.iter().filter(|stored| **stored == Stored::New).count();
            way = if stored == 0 || grants_only { Way::Either } else { Way::Whole };
        }
        if way == Way::Whole && matches!(follows, Follows::Unread) {
            // What is held is judged under them; whether the part then stands on it by itself is seen.
            self.judge_again(session)?;
            way = Way::Either;
        }
        let input = Input { entries: &entries, controls: &controls, staging, way, follows: &follows };
        let owed = if revokes { self.reader()?.to_judge(owner)?.tombstones } else { Vec::new() };
        let settled = self.settle_and_recall(session, &input, stored);
        if revokes {
            // A tombstone that came with one session cuts any of its owner's. What another one fails of is not for this act.
            let judged = matches!(settled, Ok(Part::Taken(_))).then_some((session, &owed[..]));
            self.judge_owed_but(owner, judged)?;
        }
        settled
    }

    /// Makes the verdict on what came of a transfer or file whose parts were judged together with what was to follow.
    ///
    /// # Errors
    /// As [`Node::take_in`].
    pub fn take_rest(&self, session: SessionId) -> Answer<Evaluated> {
        let mut evaluated = self.judge_again(session)?;
        self.recall_evidence(session, &mut evaluated)?;
        self.after_commit(session);
        Ok(evaluated)
    }

    fn settle_and_recall(&self, session: SessionId, input: &Input<'_>, stored: usize) -> Answer<Part> {
        let mut part = self.settle(session, input)?;
        let Part::Taken(evaluated) = &mut part else { return Ok(part) };
        if evaluated.basis == Basis::Following {
            // Told, and looked through for what waited for it, when all of it has come.
            return Ok(part);
        }
        if evaluated.taken() == Taken::Advanced {
            self.recall_evidence(session, evaluated)?;
        }
        if stored > 0 || evaluated.kept_aside > 0 || evaluated.taken() == Taken::Advanced {
            self.after_commit(session);
        }
        Ok(part)
    }

    /// Judges a session again over what is held, after a tombstone or a Ref came.
    ///
    /// # Errors
    /// As [`Node::take_in`].
    pub fn judge_again(&self, session: SessionId) -> Answer<Evaluated> {
        self.settle_held(session, &Input::HELD)
    }

    /// Judges a session again after an anchor came. One at the head of a chain without branches says only how deep the
    /// chain is anchored: nothing is read for it.
    pub(super) fn judge_anchor(&self, session: SessionId, anchor: &Signed<Control>) -> Answer<Evaluated> {
        {
            let _turn = self.turn(session);
            let reader = self.reader()?;
            if let Some(summary) = anchors_the_tip(&reader, session, anchor)? {
                let standing = standing(&reader, session)?;
                if summary != standing.row.summary {
                    self.store().run(SetSelection { session, summary: summary.clone(), at: now() })?;
                }
                return Ok(Evaluated::unchanged(&summary, Some(standing.row.tip)));
            }
        }
        self.judge_again(session)
    }

    /// What [`Node::take_in`] would do, for a session that is held. Nothing is stored.
    ///
    /// # Errors
    /// As [`Node::take_in`].
    pub(super) fn try_in(&self, session: SessionId, arrived: &Arrived) -> Answer<Evaluated> {
        let (entries, controls) = (&arrived.entries, &arrived.controls);
        let input = Input { entries, controls, ..Input::HELD };
        let reader = self.reader()?;
        Scene::read(&reader, session, &input)?.try_out()
    }

    /// Settles what nothing follows.
    pub(super) fn settle_held(&self, session: SessionId, input: &Input<'_>) -> Answer<Evaluated> {
        match self.settle(session, input)? {
            Part::Taken(evaluated) => Ok(evaluated),
            Part::Waits => Err(Code::Internal.into()),
        }
    }

    fn settle(&self, session: SessionId, input: &Input<'_>) -> Answer<Part> {
        let _turn = self.turn(session);
        // A move may still change the tip between the snapshot and the commit; then the decision is made again.
        for _ in 0..ATTEMPTS {
            match self.settle_once(session, input) {
                Err(problem) if problem.code() == Code::HeadMoved => {}
                settled => return settled,
            }
        }
        Err(Problem::new(Code::HeadMoved, "the session kept moving while it was judged; try again"))
    }

    fn settle_once(&self, session: SessionId, input: &Input<'_>) -> Answer<Part> {
        let mut reader = self.reader()?;
        if !input.controls.is_empty() && reader.session(session)?.is_some() {
            // The session came meanwhile, so nothing else stores them.
            self.store().run(PutControls { controls: input.controls.to_vec(), at: now() })?;
            reader = self.reader()?;
        }
        let owed = reader.is_to_judge(session)?;
        let may_be_short = input.way == Way::Either && !owed;
        match if may_be_short { self.extend(&reader, session, input)? } else { Short::Whole } {
            Short::Taken(evaluated) => return Ok(Part::Taken(evaluated)),
            Short::Whole if matches!(input.follows, Follows::Unread) => return Ok(Part::Waits),
            Short::Whole | Short::Refused => {}
        }
        let scene = Scene::read(&reader, session, input)?;
        let evaluated = scene.settle(self, input)?;
        if let (true, Some(row)) = (owed, &scene.row)
            && reader.to_judge(row.owner)?.sessions.contains_key(&session)
        {
            let sessions = BTreeMap::from([(session, None)]);
            self.store().run(NoteJudged { owner: row.owner, tombstones: Vec::new(), sessions })?;
        }
        Ok(Part::Taken(evaluated))
    }

    /// Judges the sessions whose evidence was stored and whose verdict was not, when the process ended between the two.
    ///
    /// # Errors
    /// When the store cannot be read or written.
    pub(super) fn settle_unfinished(&self) -> Answer<()> {
        let reader = self.reader()?;
        let mut after = None;
        loop {
            let page = reader.sessions(after, PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.session);
            for row in &page {
                match self.settle_if_unfinished(&reader, row) {
                    // It is for `fsck`; the node has other sessions.
                    Err(problem) if matches!(problem.code(), Code::StoreCorrupt | Code::IndexCorrupt) => {
                        tracing::error!(session = row.session.short(), "a session is not judged: {problem}");
                    }
                    settled => settled?,
                }
            }
        }
    }

    fn settle_if_unfinished(&self, reader: &Reader, row: &SessionRow) -> Answer<()> {
        let calm = matches!(row.summary.verdict.as_str(), "valid" | "sealed" | "incomplete");
        let side = if calm { reader.side_entries(row.session, None, PAGE)? } else { Vec::new() };
        let tells = |status| status != throughline_store::SideStatus::Branch;
        let shown = !reader.evidence(row.session)?.is_empty();
        let incomplete = row.summary.verdict == "incomplete";
        // A file is kept before the verdict that it shows.
        if incomplete || shown == calm || side.iter().any(|side| tells(side.status)) {
            self.judge_again(row.session)?;
        }
        Ok(())
    }
}

/// Rows read at a time.
const PAGE: usize = 256;

/// The summary with a Ref in it, when that can be told without judging everything.
///
/// A Ref that pins nothing, such as a server's, changes nothing. One at a head that is the tip of a chain with nothing beside it
/// says only how deep the chain is anchored: all of the chain lies below it, so no tombstone cuts anything.
fn anchors_the_tip(reader: &Reader, session: SessionId, anchor: &Signed<Control>) -> Answer<Option<Summary>> {
    if !matches!(anchor.value(), Control::Ref(_)) || reader.session(session)?.is_none() {
        return Ok(None);
    }
    let standing = standing(reader, session)?;
    let (row, facts, tip) = (&standing.row, standing.state.facts(), standing.state.tip());
    let mut controls = controls_of(reader, row.owner, None)?;
    let before = Pins::of(facts, &controls);
    controls.insert(anchor);
    let pins = Pins::of(facts, &controls);
    if pins == before {
        return Ok(Some(row.summary.clone()));
    }
    let calm = matches!(row.summary.verdict.as_str(), "valid" | "sealed");
    let at_the_end = row.summary.head.is_some_and(|head| head.cid == tip.cid);
    if !calm || !at_the_end || !reader.side_entries(session, None, 1)?.is_empty() {
        return Ok(None);
    }
    let anchored = pins.anchor(tip.cid, tip.epoch).is_some();
    Ok(anchored.then(|| Summary { anchored_through: Some(tip.seq), ..row.summary.clone() }))
}

/// Whether a control blob may matter to a session: it is of its owner, and a Ref is about it.
fn belongs(control: &Control, owner: Principal, session: SessionId) -> bool {
    match control {
        Control::Capability(capability) => capability.signer == owner && capability.audience.is_none(),
        Control::Tombstone(tombstone) => tombstone.signer == owner,
        Control::Ref(value) => {
            value.owner() == owner && value.session_head().is_ok_and(|head| head.session == session)
        }
    }
}

/// The owner that the genesis among `entries` names.
pub(super) fn owner_of(session: SessionId, entries: &[Prechecked]) -> Answer<Principal> {
    entries
        .iter()
        .find(|entry| entry.signed().cid() == session.genesis())
        .map(|entry| entry.signed().value().owner())
        .ok_or_else(|| {
            Problem::new(Code::Incomplete, format!("the genesis of {} is not held", session.short()))
        })
}

#[cfg(test)]
#[path = "evaluate_tests.rs"]
mod tests;
