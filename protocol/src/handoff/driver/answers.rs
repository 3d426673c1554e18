//! What a [`Driver`] does with each answer.

use std::time::Duration;

use crate::code::{Code, Reject};
use crate::id::{Cid, Epoch, Principal, Seq};

use super::super::{Answer, Opening, Point, Receipt, Reply};
use super::journal::Patience;
use super::machine::{Driver, Errand, Heard};
use super::{Confirmation, Origin, Outcome, Output, Phase, View};

impl Driver {
    pub(super) fn granted(&mut self, now: Duration, result: Result<Option<Cid>, Reject>) {
        match result {
            Ok(grant) => {
                self.journal.grant = grant;
                let next = match self.journal.plan.origin {
                    Origin::Online(_) => Phase::Freeze,
                    Origin::Offline(_) => Phase::Survey,
                };
                self.enter(now, next);
            }
            Err(reject) => self.fail(now, reject),
        }
    }

    pub(super) fn replied(&mut self, now: Duration, of: Principal, reply: Reply) {
        match self.journal.phase {
            Phase::Freeze => self.freeze_replied(now, reply),
            Phase::Copy => self.copy_replied(now, reply),
            Phase::Prepare => self.prepare_replied(now, reply),
            Phase::Activate => self.activate_replied(now, reply),
            Phase::Retire => self.retire_replied(now, reply),
            Phase::RollBack => self.abort_replied(now, of, reply),
            Phase::Grant | Phase::Survey | Phase::Ask | Phase::Sign | Phase::Finished => self.dropped += 1,
        }
    }

    fn freeze_replied(&mut self, now: Duration, reply: Reply) {
        let plan = &self.journal.plan;
        match reply {
            Ok(Answer::Frozen { epoch, head, move_id }) if epoch == plan.epoch && move_id == plan.move_id => {
                self.journal.base = Some(head);
                self.enter(now, Phase::Copy);
            }
            // Its turn is still running: it lives, so this is no silence.
            Ok(Answer::Active { .. }) => self.pace.progress_at = now,
            Ok(Answer::Retired { epoch, .. }) => {
                let detail = format!("the source knows of epoch {epoch}");
                self.fail(now, Reject::new(Code::Retired, detail));
            }
            Ok(answer) => self.fail(now, unexpected("frozen", &answer)),
            Err(reject) => self.fail(now, reject),
        }
    }

    fn copy_replied(&mut self, now: Duration, reply: Reply) {
        match reply {
            Ok(Answer::Offered { .. } | Answer::Prepared(_)) => self.enter(now, Phase::Prepare),
            Ok(Answer::Fetching { through, bytes }) => {
                let grows = through > self.through;
                if self.fetching(now, through, bytes) {
                    self.pace.pause = self.limits.retry;
                }
                if grows {
                    self.outputs.extend(through.map(|through| Output::Copied { through }));
                }
            }
            Ok(answer) => self.fail(now, unexpected("offered", &answer)),
            Err(reject) => self.fail(now, reject),
        }
    }

    /// The target fetches. Whether it got on since it was heard last; a target that answers is not silent, however long it takes.
    fn fetching(&mut self, now: Duration, through: Option<Seq>, bytes: u64) -> bool {
        let got_on = through > self.through || bytes > self.received;
        self.through = self.through.max(through);
        self.received = self.received.max(bytes);
        if got_on {
            self.pace.progress_at = now;
        }
        self.last_code = Code::Incomplete;
        got_on
    }

    fn prepare_replied(&mut self, now: Duration, reply: Reply) {
        match reply {
            Ok(Answer::Prepared(mut readiness)) => {
                readiness.truncate(self.limits.tools_max);
                self.readiness = readiness;
                self.enter(now, Phase::Ask);
            }
            Ok(Answer::Refused { reason }) => {
                self.fail(now, Reject::new(Code::Refused, format!("the target is not ready: {reason}")));
            }
            Ok(answer) => self.fail(now, unexpected("prepared", &answer)),
            Err(reject) => self.fail(now, reject),
        }
    }

    fn activate_replied(&mut self, now: Duration, reply: Reply) {
        match reply {
            Ok(Answer::Active { epoch, receipt }) if self.opens_by(epoch) => match receipt {
                Some(receipt) => self.acknowledged(now, receipt),
                None => self.ask_target(now),
            },
            // It knows the handoff and fetches what it lacks.
            Ok(Answer::Fetching { through, bytes }) => {
                self.fetching(now, through, bytes);
            }
            Ok(answer) => {
                self.fail(now, unexpected("active", &answer));
                self.ask_target(now);
            }
            // Whatever it says: only its epoch tells whether it is done.
            Err(reject) => {
                self.fail(now, reject);
                self.ask_target(now);
            }
        }
    }

    fn acknowledged(&mut self, now: Duration, receipt: Receipt) {
        let Some(opening) = &self.journal.opening else { return };
        match receipt.check(opening) {
            Ok(()) => {
                self.journal.receipt = Some(receipt);
                self.enter(now, Phase::Retire);
            }
            Err(reject) => self.last_code = reject.code,
        }
    }

    fn ask_target(&mut self, now: Duration) {
        let peer = self.journal.plan.target;
        if !self.asked.values().any(|asked| asked.what == Errand::View) {
            let request = self.ask(now, peer, Errand::View);
            self.outputs.push_back(Output::AskPeer { request, peer });
        }
    }

    fn retire_replied(&mut self, now: Duration, reply: Reply) {
        match reply {
            Ok(Answer::Retired { epoch, .. } | Answer::Active { epoch, .. }) if self.opens_by(epoch) => {
                self.finish(now, Outcome::Done { source: Confirmation::Confirmed });
            }
            Ok(answer) => self.last_code = unexpected("retired", &answer).code,
            Err(reject) => self.last_code = reject.code,
        }
    }

    fn abort_replied(&mut self, now: Duration, of: Principal, reply: Reply) {
        let is_over = match &reply {
            Ok(Answer::Active { .. } | Answer::Retired { .. } | Answer::Idle { .. }) => true,
            Ok(Answer::Frozen { move_id, .. }) => *move_id != self.journal.plan.move_id,
            // It was never of this move, or has moved on.
            Err(reject) => matches!(reject.code, Code::MoveState | Code::EpochOld),
            Ok(
                Answer::Fetching { .. }
                | Answer::Offered { .. }
                | Answer::Prepared(_)
                | Answer::Refused { .. },
            ) => of == self.journal.plan.target,
        };
        if is_over {
            self.heard.insert(of, Heard::Ended);
            self.pace.progress_at = now;
            self.settle(now);
        } else if let Err(reject) = reply {
            self.last_code = reject.code;
        }
    }

    pub(super) fn lost(&mut self, now: Duration, code: Code) {
        self.last_code = code;
        match (self.journal.phase, self.journal.plan.origin) {
            (Phase::Activate, _) => self.ask_target(now),
            // Nobody waits for a source that was left: it learns it when it comes back.
            (Phase::Retire, Origin::Offline(_)) => {
                self.finish(now, Outcome::Done { source: Confirmation::Unconfirmed });
            }
            _ => {}
        }
    }

    pub(super) fn seen(&mut self, now: Duration, of: Principal, view: Option<Box<View>>) {
        match (self.journal.phase, view) {
            (Phase::Activate, Some(view)) => self.target_seen(now, *view),
            (Phase::Survey | Phase::Ask, Some(view)) => {
                self.pace.progress_at = now;
                self.heard.insert(of, Heard::View(view));
                self.settle(now);
            }
            // Unreachable: asked again until the phase has waited long enough.
            (Phase::Survey | Phase::Ask | Phase::Activate, None) => self.last_code = Code::Unreachable,
            (
                Phase::Grant
                | Phase::Freeze
                | Phase::Copy
                | Phase::Prepare
                | Phase::Sign
                | Phase::Retire
                | Phase::RollBack
                | Phase::Finished,
                _,
            ) => self.dropped += 1,
        }
    }

    /// The target's epoch says that it is done; that it is not there yet says nothing.
    fn target_seen(&mut self, now: Duration, view: View) {
        if !self.opens_by(view.epoch()) {
            return;
        }
        self.pace.progress_at = now;
        match view.receipt {
            Some(receipt) => self.acknowledged(now, receipt),
            None => self.enter(now, Phase::Retire),
        }
    }

    /// Whether somebody in `epoch` has this move's handoff behind it.
    fn opens_by(&self, epoch: Epoch) -> bool {
        self.journal.opening.as_ref().is_some_and(|opening| epoch >= opening.epoch)
    }

    pub(super) fn signed(&mut self, now: Duration, result: Result<Opening, Reject>) {
        let opening = match result {
            Ok(opening) => opening,
            Err(reject) => return self.fail(now, reject),
        };
        let is_asked_for = self.facts().is_some_and(|facts| {
            opening.session == facts.session
                && opening.epoch == facts.epoch
                && opening.prev == facts.prev.cid
                && opening.point.seq == facts.seq
                && opening.holder == Some(facts.holder)
        });
        if is_asked_for {
            self.journal.opening = Some(opening);
            self.enter(now, Phase::Activate);
        } else {
            self.fail(now, Reject::new(Code::Internal, "the signed handoff is not the one asked for"));
        }
    }

    /// Somebody opened an epoch. A later one than ours ends the move, whatever state it is in; one that is being taken back
    /// goes on with it as far as the source has not said that it is over.
    pub(super) fn learned(&mut self, now: Duration, opening: &Opening) {
        let plan = &self.journal.plan;
        if opening.session != plan.session {
            return;
        }
        match (self.journal.phase, &self.journal.opening) {
            (Phase::Finished, _) => {}
            (Phase::RollBack, _) => {
                let known = self.journal.later.as_ref().map_or(plan.epoch, |later| later.epoch);
                if opening.epoch > known && !self.source_ended() {
                    self.journal.later = Some(opening.clone());
                    self.enter(now, Phase::RollBack);
                }
            }
            (_, None) if opening.epoch > plan.epoch => self.overtaken(now, opening.clone()),
            (Phase::Activate, Some(ours)) if opening.epoch > ours.epoch => {
                self.finish(now, Outcome::Superseded { epoch: opening.epoch });
            }
            (
                Phase::Grant
                | Phase::Freeze
                | Phase::Survey
                | Phase::Copy
                | Phase::Prepare
                | Phase::Ask
                | Phase::Sign
                | Phase::Activate
                | Phase::Retire,
                _,
            ) => {}
        }
    }

    /// What this node holds itself. While the owner is asked to sign without a source that was left, a newer entry is handed over
    /// instead, and the target fetches it first; before that, step 4 finds it. A source that stands still wrote nothing more.
    pub(super) fn held(&mut self, now: Duration, head: Point) {
        let journal = &mut self.journal;
        journal.plan.held = Some(head);
        let is_left = matches!(journal.plan.origin, Origin::Offline(_));
        let would_cut = journal.base.is_some_and(|base| base != head && base.seq <= head.seq);
        if is_left && would_cut && journal.phase == Phase::Sign {
            journal.base = Some(head);
            journal.cut = journal.cut.filter(|cut| cut.seq > head.seq);
            self.enter(now, Phase::Copy);
        }
    }

    /// Ends a phase that asks several, once it has heard enough.
    pub(super) fn settle(&mut self, now: Duration) {
        if self.heard.values().any(|heard| *heard == Heard::Nothing) {
            return;
        }
        self.conclude(now);
    }

    pub(super) fn conclude(&mut self, now: Duration) {
        match self.journal.phase {
            Phase::Survey => self.conclude_survey(now),
            Phase::Ask => self.conclude_ask(now),
            Phase::RollBack => {
                let source = match self.journal.patience {
                    Patience::Waits => Confirmation::Confirmed,
                    Patience::GivenUp => Confirmation::Unconfirmed,
                };
                let outcome = match self.journal.cause.clone() {
                    Some(cause) => Outcome::RolledBack { cause, source },
                    None => Outcome::Aborted { source },
                };
                self.finish(now, outcome);
            }
            Phase::Grant
            | Phase::Freeze
            | Phase::Copy
            | Phase::Prepare
            | Phase::Sign
            | Phase::Activate
            | Phase::Retire
            | Phase::Finished => {}
        }
    }

    /// Takes the highest verified head; what was told beyond it is cut.
    fn conclude_survey(&mut self, now: Duration) {
        if let Some(later) = self.later() {
            return self.overtaken(now, later);
        }
        let Some(base) = self.highest() else {
            return self.fail(now, Reject::new(Code::NotFoundYet, "nobody who answered has the session"));
        };
        let told = self.views().filter_map(|view| view.told).chain(self.journal.plan.told);
        self.journal.cut = told.filter(|told| told.seq > base.seq).max_by_key(|told| told.seq);
        self.journal.base = Some(base);
        self.enter(now, Phase::Copy);
    }

    fn conclude_ask(&mut self, now: Duration) {
        if let Some(later) = self.later() {
            return self.overtaken(now, later);
        }
        let target = self.heard.get(&self.journal.plan.target);
        if !matches!(target, Some(Heard::View(_))) {
            return self
                .fail(now, Reject::new(self.last_code, "the target does not say which epoch it knows"));
        }
        let base = self.journal.base.map(|base| base.seq);
        let is_higher = self.highest().map(|head| head.seq) > base;
        // Without the source a higher head may turn up late: then that one is handed over.
        if is_higher && matches!(self.journal.plan.origin, Origin::Offline(_)) {
            self.conclude_survey(now);
        } else {
            self.enter(now, Phase::Sign);
        }
    }

    /// An opening that somebody showed, of a later epoch than the one that this move ends.
    fn later(&self) -> Option<Opening> {
        let openings = self.views().filter_map(|view| view.opening.as_ref());
        let later = openings.filter(|opening| opening.epoch > self.journal.plan.epoch);
        later.max_by_key(|opening| opening.epoch).cloned()
    }

    /// The session moved on without this move.
    fn overtaken(&mut self, now: Duration, later: Opening) {
        let detail = format!("epoch {} was opened meanwhile", later.epoch);
        self.journal.later = Some(later);
        self.fail(now, Reject::new(Code::EpochOld, detail));
    }

    /// The highest verified head of the epoch that ends.
    fn highest(&self) -> Option<Point> {
        let epoch = self.journal.plan.epoch;
        let heads = self.views().filter(|view| view.epoch() == epoch).filter_map(|view| view.head);
        heads.chain(self.journal.plan.held).max_by_key(|head| (head.seq, head.cid))
    }

    fn views(&self) -> impl Iterator<Item = &View> {
        self.heard.values().filter_map(|heard| match heard {
            Heard::View(view) => Some(view.as_ref()),
            Heard::Nothing | Heard::Ended => None,
        })
    }
}

fn unexpected(expected: &str, answer: &Answer) -> Reject {
    Reject::new(Code::MoveState, format!("expected {expected}, the server is {}", answer.word()))
}
