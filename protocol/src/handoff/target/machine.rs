//! The machine of a [`Target`]: what it does with each input.

use std::collections::VecDeque;

use crate::code::{Code, Fault, Reject};
use crate::id::{Epoch, Principal, Seq, SessionId};

use super::super::durable::{Durable, Health};
use super::super::{
    Answer, Limits, MoveId, Opening, Point, Readiness, Receipt, Reply, RequestId, Ticket, record,
};
use super::{Input, Offer, Output, Row, Stage, Staged};

/// A preparation that was asked for, and the requests that wait for it.
#[derive(Clone, Debug)]
struct Preparing {
    ticket: Ticket,
    asked_by: Vec<RequestId>,
}

/// An adoption under way. Nothing else is decided until it ends.
#[derive(Clone, Debug)]
struct Adopting {
    ticket: Ticket,
    opening: Opening,
    asked_by: Option<RequestId>,
}

/// The machine of one session on the server that it is offered to.
#[derive(Clone, Debug)]
pub struct Target {
    session: SessionId,
    me: Principal,
    limits: Limits,
    row: Durable<Row>,
    waiting: VecDeque<Input>,
    /// The latest opening that waits; kept apart so that a full queue cannot lose it.
    learned: Option<Opening>,
    providers: Vec<String>,
    fetch: Option<Ticket>,
    through: Option<Seq>,
    /// What the running fetch has received.
    bytes: u64,
    /// Why the last fetch ended, until it is told.
    failure: Option<Reject>,
    preparing: Option<Preparing>,
    readiness: Option<Readiness>,
    adopting: Option<Adopting>,
    receipt: Option<Receipt>,
    outputs: VecDeque<Output>,
    tickets: u64,
    dropped: u64,
}

impl Target {
    /// The machine of a session that has no row; `known` is the highest epoch of it that this node has adopted.
    #[must_use]
    pub fn new(session: SessionId, me: Principal, known: Option<Epoch>, limits: Limits) -> Self {
        Target::with_row(session, me, Row { stage: Stage::Idle, known, aborted: Vec::new() }, limits)
    }

    /// The machine as its row says. A staged chain that was not complete is fetched on at the next offer, or at once
    /// if its opening is known.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` if the row is not one that an output gave.
    pub fn from_bytes(session: SessionId, me: Principal, row: &[u8], limits: Limits) -> Result<Self, Reject> {
        let mut target = Target::with_row(session, me, record::read(row, "target", Row::read)?, limits);
        target.forward();
        Ok(target)
    }

    fn with_row(session: SessionId, me: Principal, row: Row, limits: Limits) -> Self {
        Target {
            session,
            me,
            limits,
            row: Durable::new(row),
            waiting: VecDeque::new(),
            learned: None,
            providers: Vec::new(),
            fetch: None,
            through: None,
            bytes: 0,
            failure: None,
            preparing: None,
            readiness: None,
            adopting: None,
            receipt: None,
            outputs: VecDeque::new(),
            tickets: 0,
            dropped: 0,
        }
    }

    /// The durable row.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.row.held().to_bytes()
    }

    /// Where it durably stands.
    #[must_use]
    pub fn stage(&self) -> &Stage {
        &self.row.held().stage
    }

    /// The epoch that is staged or was activated.
    #[must_use]
    pub fn stage_epoch(&self) -> Option<Epoch> {
        match self.stage() {
            Stage::Idle => None,
            Stage::Staging { offer, .. } => Some(offer.epoch),
            Stage::Active { opening } => Some(opening.epoch),
        }
    }

    /// The opening that it adopted: feed it to [`super::Source`] as adopted, now and at every start.
    #[must_use]
    pub fn adopted(&self) -> Option<&Opening> {
        match self.stage() {
            Stage::Active { opening } => Some(opening),
            Stage::Idle | Stage::Staging { .. } => None,
        }
    }

    /// Whether a write failed: what is durable is known again when the row is read anew.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.row.health() == Health::Unknown
    }

    /// Reports of work that was not asked for, and openings of other sessions. For a counter.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The state as an answer.
    #[must_use]
    pub fn answer(&self) -> Answer {
        match self.stage() {
            Stage::Idle => Answer::Idle { epoch: self.row.held().known },
            Stage::Active { opening } => {
                Answer::Active { epoch: opening.epoch, receipt: self.receipt.clone() }
            }
            Stage::Staging { staged: Staged::Partly, .. } => {
                Answer::Fetching { through: self.through, bytes: self.bytes }
            }
            Stage::Staging { offer, .. } => match &self.readiness {
                Some(readiness) => Answer::Prepared(readiness.clone()),
                None => Answer::Offered { head: offer.head },
            },
        }
    }

    /// What has to be done next, in order. Call until it gives `None` after each [`Target::handle`].
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes one input. There are no timers: a target only reacts.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Persisted { ticket } => match self.row.written(ticket) {
                Some(request) => {
                    self.reply_some(request, Ok(self.answer()));
                    self.forward();
                }
                None => self.dropped += 1,
            },
            Input::PersistFailed { ticket } => match self.row.failed(ticket) {
                Some(request) => self.reply_some(request, Err(Code::StoreIo.into())),
                None => self.dropped += 1,
            },
            Input::Fetched { ticket, through, bytes } => self.fetched(ticket, through, bytes),
            Input::PrepareDone { ticket, result } => self.prepare_done(ticket, result),
            Input::AdoptDone { ticket, result } => self.adopt_done(ticket, result),
            Input::Learned { opening } => self.note(opening),
            Input::Offer { .. }
            | Input::Prepare { .. }
            | Input::Activate { .. }
            | Input::Abort { .. }
            | Input::Status { .. }
            | Input::FetchDone { .. } => self.enqueue(input),
        }
        self.run();
    }

    fn note(&mut self, opening: Opening) {
        if opening.session != self.session {
            self.dropped += 1;
        } else if self.learned.as_ref().is_none_or(|held| held.epoch < opening.epoch) {
            self.learned = Some(opening);
        }
    }

    fn enqueue(&mut self, input: Input) {
        if self.waiting.len() < self.limits.waiting_max.max(1) {
            self.waiting.push_back(input);
        } else if let Some(request) = input.request() {
            self.reply(request, Err(Reject::new(Code::Quota, "too many commands wait for a write")));
        } else {
            // The end of a fetch: the next offer asks for it again.
            self.fetch = None;
            self.dropped += 1;
        }
    }

    /// Decides what waits, as long as no write and no adoption is under way. Openings go first.
    fn run(&mut self) {
        while !self.row.is_writing() && self.adopting.is_none() {
            if let Some(opening) = self.learned.take() {
                if self.row.health() == Health::Sound {
                    self.learn(opening);
                }
            } else if let Some(input) = self.waiting.pop_front() {
                self.decide(input);
            } else {
                return;
            }
        }
    }

    fn decide(&mut self, input: Input) {
        if self.row.health() == Health::Unknown {
            match input.request() {
                Some(request) => self.reply(request, Err(Code::StoreReadOnly.into())),
                None => self.dropped += 1,
            }
            return;
        }
        match input {
            Input::Offer { request, move_id, epoch, head, providers } => {
                let offer = Offer { move_id: Some(move_id), epoch, head };
                self.offer(request, offer, providers);
            }
            Input::Prepare { request, move_id } => self.prepare(request, move_id),
            Input::Activate { request, move_id, opening } => self.activate(request, move_id, opening),
            Input::Abort { request, move_id } => self.abort(request, move_id),
            Input::Status { request } => self.reply(request, Ok(self.answer())),
            Input::FetchDone { ticket, result } => self.fetch_done(ticket, result),
            Input::Learned { .. }
            | Input::Fetched { .. }
            | Input::PrepareDone { .. }
            | Input::AdoptDone { .. }
            | Input::Persisted { .. }
            | Input::PersistFailed { .. } => {}
        }
    }

    fn offer(&mut self, request: RequestId, offer: Offer, mut providers: Vec<String>) {
        if let Err(reject) = self.check_offer(&offer) {
            return self.reply(request, Err(reject));
        }
        providers.truncate(self.limits.providers_max);
        self.providers = providers;
        match self.stage() {
            Stage::Staging { offer: held, staged, .. } if *held == offer => {
                let staged = *staged;
                self.offer_again(request, staged);
            }
            Stage::Idle | Stage::Staging { .. } | Stage::Active { .. } => {
                self.drop_staging();
                let stage = Stage::Staging { offer, staged: Staged::Partly, opening: None };
                self.write(stage, None, Some(request));
                self.begin_fetch();
            }
        }
    }

    fn check_offer(&self, offer: &Offer) -> Result<(), Reject> {
        let row = self.row.held();
        if row.known.is_some_and(|known| known >= offer.epoch) {
            let known = row.known.unwrap_or_default();
            return Err(Reject::new(
                Code::EpochOld,
                format!("offered epoch {}, knows epoch {known}", offer.epoch),
            ));
        }
        if offer.move_id.is_some_and(|id| row.aborted.contains(&id)) {
            return Err(Reject::new(Code::MoveState, "the move was aborted here"));
        }
        match self.stage() {
            Stage::Staging { offer: held, opening, .. } if held.epoch >= offer.epoch => {
                let is_same = held.move_id == offer.move_id && held.epoch == offer.epoch;
                if !is_same {
                    return Err(Reject::new(Code::MoveState, "another move is staged here"));
                }
                if opening.is_some() && held.head != offer.head {
                    return Err(Reject::new(Code::MoveState, "the handoff of this move is known here"));
                }
                Ok(())
            }
            Stage::Idle | Stage::Staging { .. } | Stage::Active { .. } => Ok(()),
        }
    }

    /// The same offer again: tell how far it is, tell once what stopped it, and go on.
    fn offer_again(&mut self, request: RequestId, staged: Staged) {
        let failure = self.failure.take();
        if staged == Staged::Partly && self.fetch.is_none() {
            self.begin_fetch();
        }
        match failure {
            Some(reject) if reject.fault() == Fault::Author => self.reply(request, Err(reject)),
            Some(_) | None => self.reply(request, Ok(self.answer())),
        }
    }

    fn begin_fetch(&mut self) {
        let stage = self.row.next().map_or(self.stage(), |row| &row.stage);
        let Stage::Staging { offer, .. } = stage else { return };
        let head = offer.head;
        let ticket = self.ticket();
        self.fetch = Some(ticket);
        self.outputs.push_back(Output::Fetch { ticket, head, providers: self.providers.clone() });
    }

    fn fetched(&mut self, ticket: Ticket, through: Seq, bytes: u64) {
        if self.fetch == Some(ticket) {
            self.through = self.through.max(Some(through));
            self.bytes = self.bytes.max(bytes);
        } else {
            self.dropped += 1;
        }
    }

    fn fetch_done(&mut self, ticket: Ticket, result: Result<(), Reject>) {
        if self.fetch.take_if(|fetch| *fetch == ticket).is_none() {
            self.dropped += 1;
            return;
        }
        let Stage::Staging { offer, opening, .. } = self.stage() else { return };
        match result {
            Ok(()) => {
                let (offer, opening) = (offer.clone(), opening.clone());
                self.through = Some(offer.head.seq);
                self.write(Stage::Staging { offer, staged: Staged::Fully, opening }, None, None);
            }
            Err(reject) => self.failure = Some(reject),
        }
    }

    fn prepare(&mut self, request: RequestId, move_id: MoveId) {
        let is_ready = match self.stage() {
            Stage::Staging { offer, staged, .. } => {
                offer.move_id == Some(move_id) && *staged == Staged::Fully
            }
            Stage::Idle | Stage::Active { .. } => false,
        };
        if !is_ready {
            let reject =
                Reject::new(Code::MoveState, format!("expected an offered chain, is {}", self.word()));
            return self.reply(request, Err(reject));
        }
        if let Some(readiness) = &self.readiness {
            let answer = Answer::Prepared(readiness.clone());
            return self.reply(request, Ok(answer));
        }
        let waiting_max = self.limits.waiting_max;
        match &mut self.preparing {
            Some(work) if work.asked_by.len() < waiting_max => work.asked_by.push(request),
            Some(_) => {
                self.reply(request, Err(Reject::new(Code::Quota, "too many wait for the preparation")))
            }
            None => {
                let ticket = self.ticket();
                self.preparing = Some(Preparing { ticket, asked_by: vec![request] });
                self.outputs.push_back(Output::Prepare { ticket });
            }
        }
    }

    fn prepare_done(&mut self, ticket: Ticket, result: Result<Readiness, String>) {
        let Some(work) = self.preparing.take_if(|work| work.ticket == ticket) else {
            self.dropped += 1;
            return;
        };
        let answer = match result {
            Ok(mut readiness) => {
                readiness.truncate(self.limits.tools_max);
                self.readiness = Some(readiness.clone());
                Answer::Prepared(readiness)
            }
            Err(reason) => Answer::Refused { reason },
        };
        for request in work.asked_by {
            self.reply(request, Ok(answer.clone()));
        }
    }

    fn activate(&mut self, request: RequestId, move_id: MoveId, opening: Opening) {
        if opening.session != self.session {
            return self.reply(request, Err(Reject::from(Code::SessionMismatch)));
        }
        if opening.holder != Some(self.me) {
            return self
                .reply(request, Err(Reject::new(Code::NotHolder, "the handoff names another server")));
        }
        self.take_opening(Some(request), Some(move_id), opening);
    }

    /// An opening that was learned: of another server it ends what is staged, of this one it is as good as handed over.
    fn learn(&mut self, opening: Opening) {
        if opening.holder == Some(self.me) {
            return self.take_opening(None, None, opening);
        }
        if self.row.held().known >= Some(opening.epoch) {
            return;
        }
        let stage = match self.stage() {
            Stage::Staging { offer, .. } if offer.epoch > opening.epoch => self.stage().clone(),
            Stage::Idle | Stage::Staging { .. } | Stage::Active { .. } => {
                self.drop_staging();
                Stage::Idle
            }
        };
        self.write_known(stage, Some(opening.epoch));
    }

    fn take_opening(&mut self, request: Option<RequestId>, move_id: Option<MoveId>, opening: Opening) {
        match self.stage() {
            Stage::Active { opening: held } if held.point == opening.point => match &self.receipt {
                Some(_) => self.reply_some(request, Ok(self.answer())),
                // Adopted before a restart: ask for the receipt again.
                None if request.is_some() => self.adopt(opening, request),
                None => {}
            },
            _ if self.row.held().known >= Some(opening.epoch) => {
                let reject = Reject::new(Code::EpochOld, format!("told of epoch {} too late", opening.epoch));
                self.reply_some(request, Err(reject));
            }
            Stage::Staging { offer, .. } if offer.epoch > opening.epoch => {
                let reject =
                    Reject::new(Code::EpochOld, format!("a later epoch, {}, is staged", offer.epoch));
                self.reply_some(request, Err(reject));
            }
            Stage::Staging { offer, staged: Staged::Fully, .. } if offer.head.cid == opening.prev => {
                self.adopt(opening, request);
            }
            Stage::Staging { offer, opening: Some(held), .. }
                if held.point == opening.point && offer.head.cid == opening.prev =>
            {
                self.forward();
                self.reply_some(request, Ok(self.answer()));
            }
            Stage::Idle | Stage::Staging { .. } | Stage::Active { .. } => {
                self.stage_opening(request, move_id, opening);
            }
        }
    }

    /// The chain under an opening that is already true is not here yet: keep the opening, fetch, then adopt.
    fn stage_opening(&mut self, request: Option<RequestId>, move_id: Option<MoveId>, opening: Opening) {
        let seq = Seq::new(opening.point.seq.get().saturating_sub(1)).unwrap_or_default();
        let head = Point { cid: opening.prev, seq };
        let held = match self.stage() {
            Stage::Staging { offer, .. } if offer.head == head => offer.move_id,
            Stage::Idle | Stage::Staging { .. } | Stage::Active { .. } => {
                self.drop_staging();
                None
            }
        };
        let offer = Offer { move_id: held.or(move_id), epoch: opening.epoch, head };
        self.write(Stage::Staging { offer, staged: Staged::Partly, opening: Some(opening) }, None, request);
        if self.fetch.is_none() {
            self.begin_fetch();
        }
    }

    /// Goes on with an opening that is held: adopts it if its chain is there, else fetches.
    fn forward(&mut self) {
        let Stage::Staging { staged, opening: Some(opening), .. } = self.stage() else { return };
        match staged {
            Staged::Fully if self.adopting.is_none() => self.adopt(opening.clone(), None),
            Staged::Partly if self.fetch.is_none() => self.begin_fetch(),
            Staged::Fully | Staged::Partly => {}
        }
    }

    fn adopt(&mut self, opening: Opening, request: Option<RequestId>) {
        let ticket = self.ticket();
        let row = self.active_row(opening.clone()).to_bytes();
        self.adopting = Some(Adopting { ticket, opening: opening.clone(), asked_by: request });
        self.outputs.push_back(Output::Adopt { ticket, opening, row });
    }

    fn active_row(&self, opening: Opening) -> Row {
        let held = self.row.held();
        Row { known: Some(opening.epoch), stage: Stage::Active { opening }, aborted: held.aborted.clone() }
    }

    fn adopt_done(&mut self, ticket: Ticket, result: Result<Receipt, Reject>) {
        let Some(done) = self.adopting.take_if(|adopting| adopting.ticket == ticket) else {
            self.dropped += 1;
            return;
        };
        let reply = match result {
            Ok(receipt) => {
                let row = self.active_row(done.opening);
                self.forget_work();
                self.row.replace(row);
                self.receipt = Some(receipt);
                Ok(self.answer())
            }
            Err(reject) => Err(reject),
        };
        self.reply_some(done.asked_by, reply);
    }

    fn abort(&mut self, request: RequestId, move_id: MoveId) {
        match self.stage() {
            Stage::Staging { offer, opening: Some(_), .. } if offer.move_id == Some(move_id) => {
                let reject = Reject::new(Code::MoveState, "the handoff of this move exists: it only goes on");
                self.reply(request, Err(reject));
            }
            Stage::Staging { offer, .. } if offer.move_id == Some(move_id) => {
                self.drop_staging();
                self.write(Stage::Idle, Some(move_id), Some(request));
            }
            Stage::Idle | Stage::Staging { .. } | Stage::Active { .. }
                if self.row.held().aborted.contains(&move_id) =>
            {
                self.reply(request, Ok(self.answer()));
            }
            // Remembered although it is not staged: the offer may still be on its way.
            Stage::Idle | Stage::Staging { .. } | Stage::Active { .. } => {
                self.write(self.stage().clone(), Some(move_id), Some(request));
            }
        }
    }

    fn drop_staging(&mut self) {
        if matches!(self.stage(), Stage::Staging { .. }) {
            self.outputs.push_back(Output::DropStaging);
        }
        self.forget_work();
    }

    /// What was asked for a staged chain and is not durable. Those who wait are told.
    fn forget_work(&mut self) {
        self.fetch = None;
        self.through = None;
        self.bytes = 0;
        self.failure = None;
        self.readiness = None;
        self.receipt = None;
        for request in self.preparing.take().map(|work| work.asked_by).unwrap_or_default() {
            self.reply(request, Err(Reject::new(Code::MoveState, "the offer is not staged any more")));
        }
    }

    fn write(&mut self, stage: Stage, aborted: Option<MoveId>, request: Option<RequestId>) {
        let held = self.row.held();
        let mut row = Row { stage, known: held.known, aborted: held.aborted.clone() };
        if let Some(move_id) = aborted {
            record::remember(&mut row.aborted, move_id, self.limits.aborted_max);
        }
        self.write_row(row, request);
    }

    fn write_known(&mut self, stage: Stage, known: Option<Epoch>) {
        let aborted = self.row.held().aborted.clone();
        self.write_row(Row { stage, known, aborted }, None);
    }

    fn write_row(&mut self, row: Row, request: Option<RequestId>) {
        let ticket = self.ticket();
        self.outputs.push_back(Output::Persist { ticket, row: row.to_bytes() });
        self.row.write(ticket, row, request);
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    fn word(&self) -> &'static str {
        self.answer().word()
    }

    fn reply_some(&mut self, request: Option<RequestId>, reply: Reply) {
        if let Some(request) = request {
            self.reply(request, reply);
        }
    }

    fn reply(&mut self, request: RequestId, reply: Reply) {
        self.outputs.push_back(Output::Answer { request, reply });
    }
}

#[cfg(test)]
#[path = "../target_tests.rs"]
mod tests;
