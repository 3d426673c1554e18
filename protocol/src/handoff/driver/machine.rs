//! The machine of a [`Driver`]: what it does in each phase.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::code::{Code, Reject};
use crate::id::{Principal, Seq};

use super::super::{Limits, Opening, Point, Readiness, Receipt, RequestId, Ticket};
use super::journal::{Journal, Patience};
use super::{Confirmation, Input, Message, Origin, Outcome, Output, Phase, Plan, Unsigned, View};

/// What a request asked for, and of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) of: Principal,
    pub(super) what: Errand,
    at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    Grant,
    /// The message of the phase.
    Message,
    /// The peer's view, in a survey, before signing, or of a silent target.
    View,
    Signature,
}

/// The times of the running phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// When something was heard last that moved the phase on.
    pub(super) progress_at: Duration,
    /// When to send again what is not under way.
    send_at: Duration,
    pub(super) pause: Duration,
}

/// What was heard from one of those that are asked in a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Nothing,
    View(Box<View>),
    /// It acknowledged that the move is over for it.
    Ended,
}

/// The machine of one move, at the owner.
#[derive(Clone, Debug)]
pub struct Driver {
    pub(super) limits: Limits,
    pub(super) journal: Journal,
    /// The journal write under way; nothing is sent before it is done.
    writing: Option<Ticket>,
    broken: Option<Reject>,
    pub(super) asked: BTreeMap<RequestId, Asked>,
    /// Messages that were given out and whose end nobody has told, waited for or not.
    under_way: BTreeSet<RequestId>,
    pub(super) heard: BTreeMap<Principal, Heard>,
    pub(super) readiness: Readiness,
    pub(super) through: Option<Seq>,
    /// Bytes that the target received in this phase.
    pub(super) received: u64,
    pub(super) last_code: Code,
    pub(super) pace: Pace,
    pub(super) outputs: VecDeque<Output>,
    numbers: u64,
    pub(super) dropped: u64,
}

impl Driver {
    /// Begins a move. The first output is its journal.
    #[must_use]
    pub fn new(now: Duration, plan: Plan, limits: Limits) -> Self {
        let mut plan = plan;
        plan.peers.truncate(limits.peers_max);
        let mut driver = Driver::with_journal(now, Journal::new(plan), limits);
        driver.enter(now, Phase::Grant);
        driver
    }

    /// Goes on with a move where its journal left it. A handoff that was signed but is not in the journal was never
    /// sent: everybody is asked again before another one is signed.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` if the bytes are not a journal that [`Output::Persist`] gave.
    pub fn from_bytes(now: Duration, journal: &[u8], limits: Limits) -> Result<Self, Reject> {
        let mut driver = Driver::with_journal(now, Journal::read(journal)?, limits);
        if matches!(driver.journal.phase, Phase::Ask | Phase::Sign) {
            driver.journal.phase = Phase::Prepare;
        }
        driver.begin(now);
        Ok(driver)
    }

    fn with_journal(now: Duration, journal: Journal, limits: Limits) -> Self {
        let pace = Pace { progress_at: now, send_at: now, pause: limits.retry };
        Driver {
            limits,
            journal,
            writing: None,
            broken: None,
            asked: BTreeMap::new(),
            under_way: BTreeSet::new(),
            heard: BTreeMap::new(),
            readiness: Readiness::default(),
            through: None,
            received: 0,
            last_code: Code::Timeout,
            pace,
            outputs: VecDeque::new(),
            numbers: 0,
            dropped: 0,
        }
    }

    /// The journal, as the last [`Output::Persist`] gave it or will give it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.journal.to_bytes()
    }

    /// The plan, as it stands: a source that was left is offline in it.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.journal.plan
    }

    /// The phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.journal.phase
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.journal.outcome.as_ref()
    }

    /// Whether it has ended and the journal says so: nothing is to be done any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.journal.phase == Phase::Finished && self.writing.is_none() && self.broken.is_none()
    }

    /// The signed handoff. Once there is one, the move only goes forward.
    #[must_use]
    pub fn opening(&self) -> Option<&Opening> {
        self.journal.opening.as_ref()
    }

    /// The target's Ref.
    #[must_use]
    pub fn receipt(&self) -> Option<&Receipt> {
        self.journal.receipt.as_ref()
    }

    /// The head that the handoff stands or will stand on.
    #[must_use]
    pub fn base(&self) -> Option<Point> {
        self.journal.base
    }

    /// The newest head that the source told and nobody has: cut off, if it exists.
    #[must_use]
    pub fn cut(&self) -> Option<Point> {
        self.journal.cut
    }

    /// Whether the source was given up while the move was taken back: nothing of this move is sent to it again.
    #[must_use]
    pub fn gave_up_source(&self) -> bool {
        self.journal.patience == Patience::GivenUp
    }

    /// Whether the source was asked for anything: one that was not stands as it stood before the move.
    #[must_use]
    pub fn drew_in_source(&self) -> bool {
        self.journal.contact.source()
    }

    /// The opening of a later epoch that ended this move: the source is told of it instead of thawed.
    #[must_use]
    pub fn overtaken_by(&self) -> Option<&Opening> {
        self.journal.later.as_ref()
    }

    /// Answers to requests that were not asked or are over. For a counter.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// What has to be done next, in order. Call until it gives `None` after each [`Driver::handle`].
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Tick`] is due, on the clock of `now`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.writing.is_some() {
            return None;
        }
        if self.broken.is_some() {
            return Some(self.pace.send_at);
        }
        if self.journal.phase == Phase::Finished {
            return None;
        }
        let answers = self.asked.values().filter(|asked| asked.what.expires());
        let lost = answers.map(|asked| asked.at + self.limits.answer_max).min();
        let send = self.is_quiet().then_some(self.pace.send_at);
        let idle = self.has_idle_limit().then(|| self.pace.progress_at + self.limits.idle_max);
        [lost, send, idle].into_iter().flatten().min()
    }

    /// Takes the move back, as long as no handoff was signed. One that is being taken back is only asked about again.
    ///
    /// # Errors
    /// `E_MOVE_STATE` once the handoff is signed, or when the move has ended.
    pub fn abort(&mut self, now: Duration) -> Result<(), Reject> {
        if self.journal.opening.is_some() {
            return Err(Reject::new(Code::MoveState, "the handoff is signed: the move only goes forward"));
        }
        match self.journal.phase {
            Phase::Finished => return Err(Reject::new(Code::MoveState, "the move is over already")),
            Phase::RollBack => self.retry(now),
            Phase::Grant
            | Phase::Freeze
            | Phase::Survey
            | Phase::Copy
            | Phase::Prepare
            | Phase::Ask
            | Phase::Sign
            | Phase::Activate
            | Phase::Retire => {
                self.journal.cause = None;
                self.enter(now, Phase::RollBack);
            }
        }
        Ok(())
    }

    /// How long a step may go without progress from now on; the journal does not keep it.
    pub fn wait_at_most(&mut self, idle_max: Duration) {
        self.limits.idle_max = idle_max;
    }

    /// Takes one input. `now` is the time since some fixed moment, from a clock that never goes back.
    pub fn handle(&mut self, now: Duration, input: Input) {
        match input {
            Input::Persisted { ticket } => self.persisted(now, ticket),
            Input::PersistFailed { ticket, reject } => self.persist_failed(now, ticket, reject),
            Input::Granted { request, result } => {
                if self.take(request, Errand::Grant).is_some() {
                    self.granted(now, result);
                }
            }
            Input::Replied { request, reply } => {
                self.under_way.remove(&request);
                if let Some(asked) = self.take(request, Errand::Message) {
                    self.replied(now, asked.of, reply);
                }
            }
            Input::Lost { request, code } => {
                self.under_way.remove(&request);
                if self.take(request, Errand::Message).is_some() {
                    self.lost(now, code);
                }
            }
            Input::Seen { request, view } => {
                if let Some(asked) = self.take(request, Errand::View) {
                    self.seen(now, asked.of, view);
                }
            }
            Input::Signed { request, result } => {
                if self.take(request, Errand::Signature).is_some() {
                    self.signed(now, result);
                }
            }
            Input::Learned { opening } => self.learned(now, &opening),
            Input::Held { head } => self.held(now, head),
            Input::LeaveSource => self.leave_source(now),
            Input::Retry => self.retry(now),
            Input::Tick => self.tick(now),
        }
    }

    // ---- phases ------------------------------------------------------------------------------------------------

    /// Makes a phase durable; it is acted on when the journal holds it. Nothing of the phase before is sent after the write.
    pub(super) fn enter(&mut self, now: Duration, phase: Phase) {
        self.journal.phase = phase;
        self.journal.contact = match phase {
            Phase::Freeze => self.journal.contact.with_source(),
            Phase::Copy => self.journal.contact.with_target(),
            Phase::Grant
            | Phase::Survey
            | Phase::Prepare
            | Phase::Ask
            | Phase::Sign
            | Phase::Activate
            | Phase::Retire
            | Phase::RollBack
            | Phase::Finished => self.journal.contact,
        };
        self.asked.clear();
        // What was not performed yet belongs to the phase before: it is not asked any more.
        self.outputs.retain(|output| !output.asks());
        if !std::mem::take(&mut self.under_way).is_empty() {
            self.outputs.push_back(Output::Cancel);
        }
        self.pace = Pace { progress_at: now, send_at: now, pause: self.limits.retry };
        let ticket = Ticket(self.number());
        self.writing = Some(ticket);
        self.outputs.push_back(Output::Persist { ticket, journal: self.journal.to_bytes() });
    }

    fn persisted(&mut self, now: Duration, ticket: Ticket) {
        if self.writing.take_if(|writing| *writing == ticket).is_none() {
            self.dropped += 1;
        } else {
            self.broken = None;
            self.begin(now);
        }
    }

    /// Nobody knows what the journal holds now: nothing is sent until it is written again, or a restart reads it.
    fn persist_failed(&mut self, now: Duration, ticket: Ticket, reject: Reject) {
        if self.writing.take_if(|writing| *writing == ticket).is_none() {
            self.dropped += 1;
            return;
        }
        self.outputs.push_back(Output::Waiting { phase: self.journal.phase, code: reject.code });
        self.broken = Some(reject);
        self.pace.send_at = now + self.limits.retry_max;
    }

    /// Acts on a phase that the journal holds.
    fn begin(&mut self, now: Duration) {
        self.asked.clear();
        self.heard.clear();
        self.received = 0;
        self.last_code = Code::Timeout;
        self.pace = Pace { progress_at: now, send_at: now, pause: self.limits.retry };
        if let Some(outcome) = self.journal.outcome.clone() {
            self.outputs.push_back(Output::Finished(outcome));
            return;
        }
        self.outputs.push_back(Output::Entered { phase: self.journal.phase });
        for peer in self.parties() {
            self.heard.insert(peer, Heard::Nothing);
        }
        if self.heard.is_empty() && matches!(self.journal.phase, Phase::Survey | Phase::RollBack) {
            return self.settle(now);
        }
        self.send(now);
    }

    /// Those who are asked, all at once, in this phase.
    fn parties(&self) -> Vec<Principal> {
        let plan = &self.journal.plan;
        let online = match plan.origin {
            Origin::Online(source) => Some(source),
            Origin::Offline(_) => None,
        };
        match self.journal.phase {
            Phase::Survey | Phase::Ask => {
                online.into_iter().chain([plan.target]).chain(plan.peers.iter().copied()).collect()
            }
            Phase::RollBack => {
                let is_given_up = self.gave_up_source() && plan.origin.server() == Some(plan.target);
                let target = Some(plan.target).filter(|_| self.journal.contact.target() && !is_given_up);
                self.thaws().into_iter().chain(target).collect()
            }
            Phase::Grant
            | Phase::Freeze
            | Phase::Copy
            | Phase::Prepare
            | Phase::Sign
            | Phase::Activate
            | Phase::Retire
            | Phase::Finished => Vec::new(),
        }
    }

    /// Sends what the phase has to send and is not under way.
    fn send(&mut self, now: Duration) {
        self.pace.send_at = now + self.pace.pause;
        self.pace.pause = (self.pace.pause * 2).min(self.limits.retry_max);
        let plan = &self.journal.plan;
        let (target, source, epoch) = (plan.target, plan.origin.server(), plan.epoch);
        match self.journal.phase {
            Phase::Grant => {
                let request = self.ask(now, target, Errand::Grant);
                self.outputs.push_back(Output::NeedGrant { request, target });
            }
            Phase::Freeze => self.message_some(now, source, Message::Freeze { epoch }),
            Phase::Copy => {
                let Some(head) = self.journal.base else { return };
                let providers = source.into_iter().chain(self.journal.plan.peers.iter().copied()).collect();
                let grant = self.journal.grant;
                self.message(now, target, Message::Offer { epoch: epoch.next(), head, providers, grant });
            }
            Phase::Prepare => self.message(now, target, Message::Prepare),
            Phase::Survey | Phase::Ask => self.ask_silent(now),
            Phase::Sign => self.need_signature(now),
            Phase::Activate => {
                let Some(opening) = self.journal.opening.clone() else { return };
                let grant = self.journal.grant;
                self.message(now, target, Message::Activate { opening, grant });
            }
            Phase::Retire => {
                let Some(opening) = self.journal.opening.clone() else { return };
                let receipt = self.journal.receipt.clone();
                self.message_some(now, source, Message::Retire { opening, receipt });
            }
            Phase::RollBack => {
                for party in self.silent() {
                    let message = self.take_back(party);
                    self.message(now, party, message);
                }
            }
            Phase::Finished => {}
        }
    }

    /// What ends the move for a party: the source of a session that moved on must not thaw.
    fn take_back(&self, party: Principal) -> Message {
        match &self.journal.later {
            Some(opening) if self.journal.plan.origin.server() == Some(party) => {
                Message::Retire { opening: opening.clone(), receipt: None }
            }
            Some(_) | None => Message::Abort,
        }
    }

    fn ask_silent(&mut self, now: Duration) {
        for peer in self.silent() {
            let request = self.ask(now, peer, Errand::View);
            self.outputs.push_back(Output::AskPeer { request, peer });
        }
    }

    /// Parties that have not been heard and are not being asked.
    fn silent(&self) -> Vec<Principal> {
        let silent = self.heard.iter().filter(|(peer, heard)| {
            **heard == Heard::Nothing && !self.asked.values().any(|asked| asked.of == **peer)
        });
        silent.map(|(peer, _)| *peer).collect()
    }

    fn need_signature(&mut self, now: Duration) {
        let Some(facts) = self.facts() else { return };
        let request = self.ask(now, facts.holder, Errand::Signature);
        let readiness = self.readiness.clone();
        self.outputs.push_back(Output::NeedSignature { request, facts, readiness });
    }

    pub(super) fn facts(&self) -> Option<Unsigned> {
        let plan = &self.journal.plan;
        let prev = self.journal.base?;
        Some(Unsigned {
            session: plan.session,
            epoch: plan.epoch.next(),
            prev,
            seq: prev.seq.next(),
            holder: plan.target,
            grant: self.journal.grant,
        })
    }

    /// Something failed: before the handoff the move is taken back, after it the driver keeps trying.
    pub(super) fn fail(&mut self, now: Duration, cause: Reject) {
        if self.journal.opening.is_some() {
            self.last_code = cause.code;
        } else if self.journal.phase < Phase::RollBack {
            self.journal.cause = Some(cause);
            self.enter(now, Phase::RollBack);
        }
    }

    pub(super) fn finish(&mut self, now: Duration, outcome: Outcome) {
        self.journal.outcome = Some(outcome);
        self.enter(now, Phase::Finished);
    }

    // ---- time --------------------------------------------------------------------------------------------------

    fn leave_source(&mut self, now: Duration) {
        let plan = &mut self.journal.plan;
        match self.journal.phase {
            Phase::Freeze => {
                plan.origin = Origin::Offline(plan.origin.server());
                self.enter(now, Phase::Survey);
            }
            // The journal holds that it was given up before the move can end, and so before another one begins.
            Phase::RollBack if !self.source_ended() => {
                self.journal.patience = Patience::GivenUp;
                self.enter(now, Phase::RollBack);
            }
            Phase::Grant
            | Phase::Survey
            | Phase::Copy
            | Phase::Prepare
            | Phase::Ask
            | Phase::Sign
            | Phase::Activate
            | Phase::Retire
            | Phase::RollBack
            | Phase::Finished => {}
        }
    }

    fn retry(&mut self, now: Duration) {
        if self.writing.is_some() {
            return;
        }
        if self.broken.is_some() {
            self.enter(now, self.journal.phase);
        } else {
            self.pace = Pace { progress_at: now, send_at: now, pause: self.limits.retry };
            self.tick(now);
        }
    }

    fn tick(&mut self, now: Duration) {
        if self.broken.is_some() {
            if self.writing.is_none() && now >= self.pace.send_at {
                // The disk may have been full. What is written is what was to be: none of it has been acted on.
                self.enter(now, self.journal.phase);
            }
            return;
        }
        if self.writing.is_some() || self.journal.phase == Phase::Finished {
            return;
        }
        let answer_max = self.limits.answer_max;
        self.asked.retain(|_, asked| !asked.what.expires() || now < asked.at + answer_max);
        if self.has_idle_limit() && now >= self.pace.progress_at + self.limits.idle_max {
            self.pace.progress_at = now;
            self.idle(now);
        } else if now >= self.pace.send_at && self.is_quiet() {
            self.send(now);
        }
    }

    /// Nothing was heard for too long.
    fn idle(&mut self, now: Duration) {
        let code = self.last_code;
        match self.journal.phase {
            Phase::Copy | Phase::Prepare => {
                let detail = if code == Code::Incomplete {
                    "the target answers, but for too long it got nothing more of the session"
                } else {
                    "the target was not heard for too long"
                };
                self.fail(now, Reject::new(code, detail));
            }
            Phase::Survey | Phase::Ask => self.conclude(now),
            Phase::Retire => self.finish(now, Outcome::Done { source: Confirmation::Unconfirmed }),
            // A staging area that nobody asks for expires by itself; a frozen source does not.
            Phase::RollBack if self.source_ended() => self.conclude(now),
            Phase::Freeze | Phase::Activate | Phase::RollBack => {
                self.outputs.push_back(Output::Waiting { phase: self.journal.phase, code });
            }
            Phase::Grant | Phase::Sign | Phase::Finished => {}
        }
    }

    /// The source, if it may stand still for this move and was not given up.
    fn thaws(&self) -> Option<Principal> {
        let is_asked = self.journal.contact.source() && self.journal.patience == Patience::Waits;
        self.journal.plan.origin.server().filter(|_| is_asked)
    }

    pub(super) fn source_ended(&self) -> bool {
        self.thaws().is_none_or(|source| self.heard.get(&source) == Some(&Heard::Ended))
    }

    /// Whether the phase has nothing under way that it would have to wait for.
    fn is_quiet(&self) -> bool {
        match self.journal.phase {
            Phase::Survey | Phase::Ask | Phase::RollBack => !self.silent().is_empty(),
            Phase::Grant
            | Phase::Freeze
            | Phase::Copy
            | Phase::Prepare
            | Phase::Sign
            | Phase::Activate
            | Phase::Retire => !self.asked.values().any(|asked| asked.what != Errand::View),
            Phase::Finished => false,
        }
    }

    /// A person may take any time over granting and signing.
    fn has_idle_limit(&self) -> bool {
        !matches!(self.journal.phase, Phase::Grant | Phase::Sign | Phase::Finished)
    }

    // ---- requests ----------------------------------------------------------------------------------------------

    fn message_some(&mut self, now: Duration, to: Option<Principal>, message: Message) {
        match to {
            Some(to) => self.message(now, to, message),
            None => self.finish(now, Outcome::Done { source: Confirmation::Unconfirmed }),
        }
    }

    fn message(&mut self, now: Duration, to: Principal, message: Message) {
        let request = self.ask(now, to, Errand::Message);
        self.under_way.insert(request);
        self.outputs.push_back(Output::Send { request, to, message });
    }

    pub(super) fn ask(&mut self, now: Duration, of: Principal, what: Errand) -> RequestId {
        let request = RequestId(self.number());
        self.asked.insert(request, Asked { of, what, at: now });
        request
    }

    fn take(&mut self, request: RequestId, what: Errand) -> Option<Asked> {
        let is_known = self.asked.get(&request).is_some_and(|asked| asked.what == what);
        if is_known {
            self.asked.remove(&request)
        } else {
            self.dropped += 1;
            None
        }
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

impl Errand {
    /// Whether a machine answers, which may fail to.
    fn expires(self) -> bool {
        match self {
            Errand::Message | Errand::View => true,
            Errand::Grant | Errand::Signature => false,
        }
    }
}

#[cfg(test)]
#[path = "../driver_tests.rs"]
mod tests;
