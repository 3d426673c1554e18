//! The machines of one session on this node, and the one act that each of their outputs becomes.
//!
//! Durable are the session's state in the store, which every append is checked against in its own transaction, and the
//! machines' rows, jobs `source` and `target` under the genesis. They are written in an order from which any crash is
//! caught up with:
//!
//! | step | first | then | a crash between |
//! | --- | --- | --- | --- |
//! | freeze | state `Frozen` | row | the freeze is decided again: frozen, or thawed if the move was aborted |
//! | abort | row, which remembers the move | state `Active` | the same |
//! | retire, activate | the chain, with state and guard, in one transaction | row | the chain's opening is learned again |
//! | retire without the chain | target's row, fence | row | below the fence nothing is signed, frozen or thawed; it is told again |

use std::sync::Arc;
use std::time::Instant;

use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::entry::Entry;
use throughline_protocol::fork::Mark;
use throughline_protocol::handoff::source::{self, Standing, Turn};
use throughline_protocol::handoff::{
    self, Limits, MoveId, Opening, Point, Receipt, Reply, RequestId, Source, Target, target,
};
use throughline_protocol::id::{Epoch, Principal, SessionId};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::verify::{Inventory, Prechecked};
use throughline_protocol::wire::handoff::HandoffStep;
use throughline_store::{
    Expect, Freeze, NoteOffer, PutJob, RaiseFence, SessionRow, SessionState, SetState, StagingUse,
};

use super::held_target::Fetching;
use super::{Desk, facts, wire};
use crate::api::error::{Answer, Problem};
use crate::core::{Arrived, Node, Takeover, now, standing};

/// Kind of the jobs that keep a source's row.
const SOURCE_JOB: &str = "source";
/// Kind of the jobs that keep a target's row.
pub(super) const TARGET_JOB: &str = "target";

/// Both machines of a session, and what is under way for them.
pub(super) struct Held {
    pub(super) session: SessionId,
    pub(super) me: Principal,
    pub(super) limits: Limits,
    /// None: this node never held the session.
    pub(super) source: Option<Source>,
    pub(super) target: Target,
    /// Whose session it is, as far as the asker was let in for it.
    pub(super) owner: Option<Principal>,
    pub(super) fetching: Option<Fetching>,
    /// What the last fetch left here of words and files; none: it is counted when it is asked for.
    pub(super) inventory: Option<Inventory>,
    /// When a request of the staged move came last, or this node began to listen for one.
    pub(super) heard: Instant,
    requests: u64,
    answers: Vec<(RequestId, Reply)>,
}

impl Held {
    /// The machines as the store has them, caught up with the chain.
    pub(super) fn load(desk: &Desk, session: SessionId) -> Answer<Self> {
        let (reader, me, limits) = (desk.node.reader()?, desk.node.principal(), desk.moves.limits);
        let id = job_id(session);
        let row = reader.session(session)?;
        let source = match reader.job(SOURCE_JOB, &id)? {
            Some(bytes) => Some(Source::from_bytes(session, me, &bytes, limits)?),
            None => {
                held_epoch(&desk.node, row.as_ref())?.map(|epoch| Source::holder(session, me, epoch, limits))
            }
        };
        let known = row.as_ref().map(|row| row.tip.epoch.max(row.fence));
        let target = match reader.job(TARGET_JOB, &id)? {
            Some(bytes) => Target::from_bytes(session, me, &bytes, limits)?,
            None => Target::new(session, me, known, limits),
        };
        let (owner, fetching, inventory, answers) = (row.map(|row| row.owner), None, None, Vec::new());
        let heard = Instant::now();
        let mut held = Held {
            session,
            me,
            limits,
            source,
            target,
            owner,
            fetching,
            inventory,
            heard,
            requests: 0,
            answers,
        };
        held.catch_up(desk)?;
        Ok(held)
    }

    /// Answers one request of `by`, none for this node itself. Everything that the answer says is durable then.
    pub(super) fn handle(
        &mut self,
        desk: &Desk,
        (by, owner): (Option<Principal>, Principal),
        move_id: MoveId,
        step: &HandoffStep,
    ) -> Reply {
        self.read_again(desk).map_err(reject)?;
        self.owner = Some(owner);
        self.catch_up(desk).map_err(reject)?;
        if self.staged_move() == Some(move_id) {
            self.heard = Instant::now();
        }
        let request = self.request();
        match step {
            HandoffStep::Freeze { epoch } => self.freeze(desk, request, by, (move_id, *epoch))?,
            HandoffStep::Offer { epoch, seq, head, providers } => {
                self.give_up_staged(desk, move_id);
                let (head, providers) = (Point { cid: *head, seq: *seq }, providers.clone());
                self.target.handle(target::Input::Offer { request, move_id, epoch: *epoch, head, providers });
            }
            HandoffStep::Prepare => self.target.handle(target::Input::Prepare { request, move_id }),
            HandoffStep::Activate { handoff } => {
                let (_, opening) = self.opening(handoff, owner)?;
                self.target.handle(target::Input::Activate { request, move_id, opening });
            }
            HandoffStep::Retire { handoff, receipt } => {
                self.retire(desk, request, (handoff, receipt), owner)?
            }
            HandoffStep::Abort => self.abort(desk, request, move_id)?,
            HandoffStep::Status => return self.status(desk),
        }
        self.run(desk);
        let reply = self.take_answer(request);
        if let (HandoffStep::Offer { epoch, head, .. }, Ok(_)) = (step, &reply) {
            // Durable before the answer leaves: after a reset no other handoff lets this node sign.
            let offer = NoteOffer { session: self.session, epoch: *epoch, head: *head };
            desk.node.store().run(offer).map_err(|error| reject(error.into()))?;
        }
        self.catch_up(desk).map_err(reject)?;
        reply
    }

    /// After a failed write the machines promise nothing. Once the store writes again, as after a full disk, what it holds is what
    /// they go on from, as after a restart; a store that failed for good holds no answer until it is opened anew.
    fn read_again(&mut self, desk: &Desk) -> Answer<()> {
        let in_doubt = self.target.is_in_doubt() || self.source.as_ref().is_some_and(Source::is_in_doubt);
        if in_doubt && desk.node.store().read_only_reason().is_none() {
            *self = Held::load(desk, self.session)?;
        }
        Ok(())
    }

    /// Performs what the machines want done until they want nothing more.
    pub(super) fn run(&mut self, desk: &Desk) {
        loop {
            if let Some(output) = self.target.poll_output() {
                self.perform_target(desk, output);
            } else if let Some(output) = self.source.as_mut().and_then(Source::poll_output) {
                self.perform_source(desk, output);
            } else {
                return;
            }
        }
    }

    pub(super) fn answered(&mut self, request: RequestId, reply: Reply) {
        self.answers.push((request, reply));
    }

    fn perform_source(&mut self, desk: &Desk, output: source::Output) {
        match output {
            source::Output::Persist { ticket, row } => {
                let input = match put_job(&desk.node, SOURCE_JOB, self.session, row) {
                    Ok(()) => source::Input::Persisted { ticket },
                    Err(problem) => {
                        tracing::error!(session = %self.session.short(), "keeping the source's row failed: {problem}");
                        source::Input::PersistFailed { ticket }
                    }
                };
                self.tell_source(input);
            }
            source::Output::Answer { request, reply } => self.answered(request, reply),
            // A node knows no turns: whoever appends is told `E_FROZEN` by the store.
            source::Output::EndTurn { move_id: _ } => {}
        }
    }

    pub(super) fn tell_source(&mut self, input: source::Input) {
        if let Some(source) = &mut self.source {
            source.handle(input);
        }
    }

    // ---- requests -------------------------------------------------------------------------------------------------

    /// The store stops appends first: an append that is under way is in the head already, or refused.
    fn freeze(
        &mut self,
        desk: &Desk,
        request: RequestId,
        by: Option<Principal>,
        (move_id, epoch): (MoveId, Epoch),
    ) -> Result<(), Reject> {
        let Some(row) = self.row(&desk.node).map_err(reject)? else { return Err(Code::NotFoundYet.into()) };
        let Some(source) = &self.source else {
            return Err(Reject::new(Code::NotHolder, "this server does not hold the session"));
        };
        expect_newest(source, row.fence)?;
        let mut tip = row.tip;
        if *source.standing() == (Standing::Active { epoch }) && row.state == SessionState::Active {
            let freeze = Freeze { session: self.session, epoch, move_id: move_id.to_bytes(), by, at: now() };
            tip = desk.node.store().run(freeze).map_err(|error| reject(error.into()))?.tip;
        }
        let turn = Turn::Idle { head: point(tip) };
        self.tell_source(source::Input::Freeze { request, move_id, epoch, turn });
        Ok(())
    }

    /// Takes the move back here. A source that knows of a later epoch, even without its entries, does not thaw.
    fn abort(&mut self, desk: &Desk, request: RequestId, move_id: MoveId) -> Result<(), Reject> {
        let fence = self.row(&desk.node).map_err(reject)?.map_or(Epoch::ZERO, |row| row.fence);
        let Some(source) = &mut self.source else {
            self.target.handle(target::Input::Abort { request, move_id });
            return Ok(());
        };
        expect_newest(source, fence)?;
        source.handle(source::Input::Abort { request, move_id });
        // The same move may be staged here too; what the target answers to it is the same.
        let request = self.request();
        self.target.handle(target::Input::Abort { request, move_id });
        Ok(())
    }

    /// Where it stands. A later epoch counts also while its entries are not held: a source that retired by its opening tells it,
    /// one that a crash kept from retiring refuses to name its own. A holder that may not sign before a new epoch says what one says
    /// that holds nothing: whoever asks must not take it for one that goes on.
    fn status(&self, desk: &Desk) -> Reply {
        let fence = self.row(&desk.node).map_err(reject)?.map_or(Epoch::ZERO, |row| row.fence);
        if let Some(source) = &self.source {
            expect_newest(source, fence)?;
        }
        let status = handoff::status(self.source.as_ref(), Some(&self.target));
        if let handoff::Answer::Active { epoch, .. } = status
            && !self.is_guarded(desk).map_err(reject)?
        {
            return Ok(handoff::Answer::Idle { epoch: Some(epoch) });
        }
        Ok(status)
    }

    /// Whether the sign guard lets this node go on in the session.
    fn is_guarded(&self, desk: &Desk) -> Answer<bool> {
        let reader = desk.node.reader()?;
        let refused = desk.node.may_sign(&reader, &standing(&reader, self.session)?).err();
        Ok(refused.is_none_or(|problem| problem.code() != Code::SignGuard))
    }

    /// Takes the handoff into the chain, then lets go. The chain is what every other node will see too.
    fn retire(
        &mut self,
        desk: &Desk,
        request: RequestId,
        (handoff, receipt): (&[u8], &[u8]),
        owner: Principal,
    ) -> Result<(), Reject> {
        let (signed, opening) = self.opening(handoff, owner)?;
        let receipt = (!receipt.is_empty()).then(|| wire::receipt_of(receipt)).transpose()?;
        if let Some(receipt) = &receipt {
            receipt.check(&opening)?;
        }
        if self.row(&desk.node).map_err(reject)?.is_some() {
            self.learn(desk, signed, &opening).map_err(reject)?;
        }
        if self.source.is_some() {
            self.tell_source(source::Input::Retire { request, opening, receipt });
        } else {
            let retired = handoff::Answer::Retired { epoch: opening.epoch(), opening: opening.point() };
            self.answered(request, Ok(retired));
        }
        Ok(())
    }

    /// An opening becomes part of what is held. One that waits for entries that are not here yet ends the old epoch all the
    /// same, durably: the owner signed it, so nobody signs behind it. One that breaks a rule ends nothing.
    fn learn(&mut self, desk: &Desk, signed: Signed<Entry>, opening: &Opening) -> Answer<()> {
        let arrived = Arrived { entries: vec![Prechecked::of(signed, None)?], ..Arrived::default() };
        let refused = match desk.node.take_in(self.session, arrived) {
            Ok(evaluated) => evaluated.refused.map(|(_, why)| Problem::from(why)),
            Err(problem) => Some(problem),
        };
        if let Some(problem) = refused.filter(|problem| problem.code() != Code::Incomplete) {
            return Err(problem);
        }
        if desk.node.reader()?.entry(opening.point().cid)?.is_none() {
            // Before the fence: a target without a row takes the fence for an epoch that it can adopt no more, and this one may name it.
            self.target.handle(target::Input::Learned { opening: opening.clone() });
            self.run(desk);
            let (session, epoch) = (self.session, opening.epoch());
            desk.node.store().run(RaiseFence { session, epoch, at: now() })?;
        }
        Ok(())
    }

    /// A handoff of this session by its owner, its signature checked.
    fn opening(&self, bytes: &[u8], owner: Principal) -> Result<(Signed<Entry>, Opening), Reject> {
        let signed = Signed::<Entry>::check(bytes, &mut VerifyingKeys::default())?;
        let opening = Opening::of(&signed, owner)?;
        if opening.session() == self.session {
            Ok((signed, opening))
        } else {
            Err(Reject::new(Code::SessionMismatch, "the handoff is of another session"))
        }
    }

    // ---- the store ----------------------------------------------------------------------------------------------------

    pub(super) fn row(&self, node: &Node) -> Answer<Option<SessionRow>> {
        Ok(node.reader()?.session(self.session)?)
    }

    pub(super) fn set_state(&self, node: &Node, from: SessionState, to: SessionState) -> Answer<SessionRow> {
        Ok(node.store().run(SetState { session: self.session, from, to, at: now() })?)
    }

    /// Puts a verified opening, with everything under it already held, onto the chain; what is there stays there.
    pub(super) fn adopt_opening(&self, desk: &Desk, opening: &Opening) -> Answer<()> {
        let checked = Prechecked::check(opening.bytes(), None, &mut VerifyingKeys::default())?;
        let arrived = Arrived { entries: vec![checked], staging: StagingUse::Clear, ..Arrived::default() };
        let evaluated = desk.node.take_in(self.session, arrived)?;
        if let Takeover::Refused(why) = evaluated.takeover {
            // It is history here: this key may have signed after it already.
            return Err(why.into());
        }
        let reader = desk.node.reader()?;
        if facts::is_held(&reader, self.session, opening.point())? {
            return Ok(());
        }
        let (_, why) = evaluated.refused.unwrap_or_else(|| {
            let held = evaluated.tip.map_or(Epoch::ZERO, |tip| tip.epoch);
            (
                0,
                Reject::new(
                    Code::EpochOld,
                    format!("epoch {} is not the newest: {held} is held", opening.epoch()),
                ),
            )
        });
        Err(why.into())
    }

    pub(super) fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId::new(self.requests)
    }

    pub(super) fn take_answer(&mut self, request: RequestId) -> Reply {
        let at = self.answers.iter().position(|(answered, _)| *answered == request);
        let reply = at.map(|at| self.answers.swap_remove(at).1);
        self.answers.clear();
        reply.unwrap_or_else(|| Err(Reject::new(Code::Internal, "the request was left without an answer")))
    }
}

/// A source whose epoch is known to be over neither stops in it nor thaws to it, whether it retired already or not.
fn expect_newest(source: &Source, fence: Epoch) -> Result<(), Reject> {
    match source.standing() {
        Standing::Active { epoch } | Standing::Frozen { epoch, .. } if fence > *epoch => {
            Err(Reject::new(Code::EpochOld, format!("epoch {fence} was opened meanwhile")))
        }
        Standing::Active { .. } | Standing::Frozen { .. } | Standing::Retired { .. } => Ok(()),
    }
}

/// The epoch in which this node holds the session, or in which it stopped.
fn held_epoch(node: &Node, row: Option<&SessionRow>) -> Answer<Option<Epoch>> {
    let Some(row) = row else { return Ok(None) };
    match row.state {
        SessionState::Frozen { epoch, .. } | SessionState::Retired { epoch } => Ok(Some(epoch)),
        SessionState::Active => {
            let state = standing(&node.reader()?, row.session)?.state;
            Ok((state.holder() == Some(node.principal())).then_some(row.tip.epoch))
        }
    }
}

pub(super) fn put_job(node: &Node, kind: &str, session: SessionId, journal: Vec<u8>) -> Answer<()> {
    let put = PutJob {
        kind: kind.to_owned(),
        id: job_id(session),
        expect: Expect::Anything,
        journal: Some(journal),
        at: now(),
    };
    Ok(node.store().run(put)?)
}

fn job_id(session: SessionId) -> Vec<u8> {
    session.genesis().digest().to_vec()
}

pub(super) fn point(mark: Mark) -> Point {
    Point { cid: mark.cid, seq: mark.seq }
}

pub(super) fn reject(problem: Problem) -> Reject {
    Reject::new(problem.code(), problem.detail())
}

/// The Ref by which this node says that it holds the session, kept and told from now on.
pub(super) fn receipt(node: &Node, session: SessionId) -> Answer<Receipt> {
    let signed = node.holder_ref(session)?.ok_or_else(|| {
        Problem::new(Code::CapMissing, "this server has no live writer grant for the session it took over")
    })?;
    let receipt = wire::receipt_of(signed.bytes())?;
    node.store().run(throughline_store::PutControls { controls: vec![signed], at: now() })?;
    Ok(receipt)
}

/// What the tasks that fetch for a session hold of it.
pub(super) type Shared = Arc<std::sync::Mutex<Held>>;
