//! The server that holds a session: may it append now? `docs/PROTOCOL.md` §Handing over, steps 1 and 6.
//!
//! ```text
//!            freeze(m)              opening of a later epoch
//! Active(e) ───────────▶ Frozen(e, head, m) ───────────▶ Retired(e+1…) ── adopted(names us) ──▶ Active(e+1…)
//!     ▲      abort(m)        │                                ▲
//!     └──────────────────────┘        opening of a later epoch │ (also from Active)
//! ```
//!
//! It decides every command by the durable state, one at a time: a command that comes while a write is under way
//! waits. It must never answer before the state it answers with is durable, and never go back to an epoch once an
//! opening of a later one is known, whoever told it. A session without a row is held by whom its chain says; see
//! [`Source::holder`].

use std::collections::VecDeque;

use crate::code::{Code, Reject};
use crate::codec::{Map, Value, encode_map};
use crate::id::{EntryCid, Epoch, Principal, SessionId};
use crate::schema::{self, Fields};

use super::durable::{Durable, Health};
use super::{Answer, Limits, MoveId, Opening, Point, Receipt, Reply, RequestId, Ticket, record};

/// What this server may do in the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It may append.
    Active {
        /// In this epoch.
        epoch: Epoch,
    },
    /// It stopped for a move and promises to append nothing in this epoch until that move is aborted.
    Frozen {
        /// The epoch it stopped in.
        epoch: Epoch,
        /// Where it stopped.
        head: Point,
        /// The move.
        move_id: MoveId,
    },
    /// An opening of a later epoch is known.
    Retired {
        /// The latest one known.
        opening: Opening,
        /// The next holder's receipt for it. Without one the session's bytes must not be deleted here.
        receipt: Option<EntryCid>,
    },
}

impl Standing {
    /// The highest epoch known.
    fn epoch(&self) -> Epoch {
        match self {
            Standing::Active { epoch } | Standing::Frozen { epoch, .. } => *epoch,
            Standing::Retired { opening, .. } => opening.epoch,
        }
    }
}

/// Whether a turn is running when a freeze comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Entries of it are still to come.
    Running,
    /// Everything is committed, up to this head. The caller appends nothing between reading it and this input.
    Idle {
        /// The committed head.
        head: Point,
    },
}

/// What happens to a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The owner (or a live device of it; checked by the caller) asks it to stop.
    Freeze {
        /// The request.
        request: RequestId,
        /// The move.
        move_id: MoveId,
        /// The epoch that the owner wants to end.
        epoch: Epoch,
        /// Whether a turn runs.
        turn: Turn,
    },
    /// The owner hands it the opening of the next epoch.
    Retire {
        /// The request.
        request: RequestId,
        /// The verified handoff.
        opening: Opening,
        /// The next holder's verified Ref.
        receipt: Option<Receipt>,
    },
    /// The owner takes a move back.
    Abort {
        /// The request.
        request: RequestId,
        /// The move.
        move_id: MoveId,
    },
    /// Somebody asks for its state.
    Status {
        /// The request.
        request: RequestId,
    },
    /// An opening was learned, from any peer. Repeat at start, with the latest one that the store holds.
    Learned {
        /// The verified opening.
        opening: Opening,
    },
    /// The [`super::Target`] of this server adopted an opening that names it. Repeat at start, from the target's row.
    Adopted {
        /// That opening.
        opening: Opening,
    },
    /// A write is durable.
    Persisted {
        /// Which.
        ticket: Ticket,
    },
    /// A write failed.
    PersistFailed {
        /// Which.
        ticket: Ticket,
    },
}

impl Input {
    /// The request that waits for an answer to this input.
    fn request(&self) -> Option<RequestId> {
        match self {
            Input::Freeze { request, .. }
            | Input::Retire { request, .. }
            | Input::Abort { request, .. }
            | Input::Status { request } => Some(*request),
            Input::Learned { .. }
            | Input::Adopted { .. }
            | Input::Persisted { .. }
            | Input::PersistFailed { .. } => None,
        }
    }
}

/// What a source wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write this row durably, then report it.
    Persist {
        /// To report it by.
        ticket: Ticket,
        /// The row, for [`Source::from_bytes`].
        row: Vec<u8>,
    },
    /// Answer a request.
    Answer {
        /// Which.
        request: RequestId,
        /// With what.
        reply: Reply,
    },
    /// End the running turn, begin none; the freeze will be asked for again.
    EndTurn {
        /// For this move.
        move_id: MoveId,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    standing: Standing,
    aborted: Vec<MoveId>,
}

/// The machine of one session on the server that holds or held it.
#[derive(Clone, Debug)]
pub struct Source {
    session: SessionId,
    me: Principal,
    limits: Limits,
    row: Durable<Row>,
    /// A freeze was asked for while a turn ran. Not durable: it is asked for again.
    draining: Option<MoveId>,
    waiting: VecDeque<Input>,
    /// The latest opening that waits for the write under way; kept apart so that a full queue cannot lose it.
    learned: Option<Opening>,
    outputs: VecDeque<Output>,
    tickets: u64,
    dropped: u64,
}

impl Source {
    /// The machine of a session that has no row: its chain says that `me` holds it in `epoch`.
    #[must_use]
    pub fn holder(session: SessionId, me: Principal, epoch: Epoch, limits: Limits) -> Self {
        let row = Row { standing: Standing::Active { epoch }, aborted: Vec::new() };
        Source::with_row(session, me, row, limits)
    }

    /// The machine as its row says. Nothing is under way in it.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` if the row is not one that [`Output::Persist`] gave.
    pub fn from_bytes(session: SessionId, me: Principal, row: &[u8], limits: Limits) -> Result<Self, Reject> {
        Ok(Source::with_row(session, me, record::read(row, "source", Row::read)?, limits))
    }

    fn with_row(session: SessionId, me: Principal, row: Row, limits: Limits) -> Self {
        Source {
            session,
            me,
            limits,
            row: Durable::new(row),
            draining: None,
            waiting: VecDeque::new(),
            learned: None,
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

    /// The durable standing.
    #[must_use]
    pub fn standing(&self) -> &Standing {
        &self.row.held().standing
    }

    /// The highest epoch that the durable state knows.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.standing().epoch()
    }

    /// The epoch in which this server may append now. Ask under the lock that appends are made under.
    ///
    /// # Errors
    /// `E_FROZEN` while it stands still for a move or something is being decided, `E_RETIRED` once a later opening is
    /// known, `E_STORE_READ_ONLY` after a failed write.
    pub fn permit(&self) -> Result<Epoch, Reject> {
        if self.row.health() == Health::Unknown {
            return Err(Code::StoreReadOnly.into());
        }
        if self.learned.is_some() {
            return Err(Code::Retired.into());
        }
        let next = self.row.next().map_or(self.standing(), |row| &row.standing);
        match (self.standing(), next) {
            (Standing::Active { epoch }, Standing::Active { epoch: next })
                if epoch == next && self.waiting.is_empty() =>
            {
                Ok(*epoch)
            }
            (Standing::Retired { .. }, _) | (_, Standing::Retired { .. }) => Err(Code::Retired.into()),
            (Standing::Active { .. } | Standing::Frozen { .. }, _) => Err(Code::Frozen.into()),
        }
    }

    /// Whether a new turn may begin: it may append, and no move waits for the end of the running turn.
    ///
    /// # Errors
    /// As [`Source::permit`].
    pub fn permit_turn(&self) -> Result<Epoch, Reject> {
        if self.draining.is_some() { Err(Code::Frozen.into()) } else { self.permit() }
    }

    /// Whether the session's bytes may be deleted here: the next holder acknowledged that it has them.
    #[must_use]
    pub fn is_released(&self) -> bool {
        matches!(self.standing(), Standing::Retired { receipt: Some(_), .. })
    }

    /// Whether a write failed: what is durable is known again when the row is read anew.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        self.row.health() == Health::Unknown
    }

    /// Answers of writes that were not under way, and openings of other sessions. For a counter.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The durable state as an answer.
    #[must_use]
    pub fn answer(&self) -> Answer {
        match self.standing() {
            Standing::Active { epoch } => Answer::Active { epoch: *epoch, receipt: None },
            Standing::Frozen { epoch, head, move_id } => {
                Answer::Frozen { epoch: *epoch, head: *head, move_id: *move_id }
            }
            Standing::Retired { opening, .. } => {
                Answer::Retired { epoch: opening.epoch, opening: opening.point }
            }
        }
    }

    /// What has to be done next, in order. Call until it gives `None` after each [`Source::handle`].
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Takes one input. There are no timers: a source only reacts.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Persisted { ticket } => match self.row.written(ticket) {
                Some(request) => self.answer_request(request),
                None => self.dropped += 1,
            },
            Input::PersistFailed { ticket } => match self.row.failed(ticket) {
                Some(Some(request)) => self.reply(request, Err(Code::StoreIo.into())),
                Some(None) => {}
                None => self.dropped += 1,
            },
            Input::Learned { opening } => self.note(opening),
            Input::Freeze { .. }
            | Input::Retire { .. }
            | Input::Abort { .. }
            | Input::Status { .. }
            | Input::Adopted { .. } => self.enqueue(input),
        }
        self.run();
    }

    fn note(&mut self, opening: Opening) {
        if opening.session != self.session {
            self.dropped += 1;
        } else if self.learned.as_ref().map_or(self.epoch(), |held| held.epoch) < opening.epoch {
            self.learned = Some(opening);
        }
    }

    fn enqueue(&mut self, input: Input) {
        if self.waiting.len() < self.limits.waiting_max.max(1) {
            self.waiting.push_back(input);
            return;
        }
        self.refuse(&input, Reject::new(Code::Quota, "too many commands wait for a write"));
        if let Input::Retire { opening, .. } = input {
            // The command is refused; the knowledge is kept.
            self.note(opening);
        }
    }

    /// Decides what waits, as long as no write is under way. What was learned goes first.
    fn run(&mut self) {
        while !self.row.is_writing() {
            if let Some(opening) = self.learned.take() {
                // After a failed write nothing is written, and nothing may be appended either.
                if self.row.health() == Health::Sound {
                    self.retire(None, opening, None);
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
            // After a failed write nobody knows what is on disk until the row is read anew.
            return self.refuse(&input, Code::StoreReadOnly.into());
        }
        match input {
            Input::Freeze { request, move_id, epoch, turn } => self.freeze(request, move_id, epoch, turn),
            Input::Retire { request, opening, receipt } => self.retire(Some(request), opening, receipt),
            Input::Abort { request, move_id } => self.abort(request, move_id),
            Input::Status { request } => self.reply(request, Ok(self.answer())),
            Input::Adopted { opening } => self.adopted(&opening),
            Input::Learned { opening } => self.note(opening),
            Input::Persisted { .. } | Input::PersistFailed { .. } => {}
        }
    }

    /// Tells whoever asked. Nobody asked for an adoption: it is repeated at the next start, and until then this server does not
    /// append.
    fn refuse(&mut self, input: &Input, reject: Reject) {
        match input.request() {
            Some(request) => self.reply(request, Err(reject)),
            None => self.dropped += 1,
        }
    }

    fn freeze(&mut self, request: RequestId, move_id: MoveId, epoch: Epoch, turn: Turn) {
        match self.standing() {
            Standing::Retired { .. } => self.reply(request, Ok(self.answer())),
            Standing::Frozen { move_id: held, .. } if *held == move_id => {
                self.reply(request, Ok(self.answer()))
            }
            Standing::Frozen { move_id: held, .. } => {
                let reject = Reject::new(Code::Frozen, format!("frozen for move {held}"));
                self.reply(request, Err(reject));
            }
            Standing::Active { .. } if self.row.held().aborted.contains(&move_id) => {
                self.reply(request, Err(Reject::new(Code::MoveState, "the move was aborted here")));
            }
            Standing::Active { epoch: held } if *held != epoch => {
                let code = if epoch < *held { Code::EpochOld } else { Code::MoveState };
                let reject = Reject::new(code, format!("asked to end epoch {epoch}, holds epoch {held}"));
                self.reply(request, Err(reject));
            }
            Standing::Active { .. } => match turn {
                Turn::Running => {
                    self.draining = Some(move_id);
                    self.outputs.push_back(Output::EndTurn { move_id });
                    self.reply(request, Ok(self.answer()));
                }
                Turn::Idle { head } => {
                    self.draining = None;
                    self.write(Standing::Frozen { epoch, head, move_id }, None, Some(request));
                }
            },
        }
    }

    fn retire(&mut self, request: Option<RequestId>, opening: Opening, receipt: Option<Receipt>) {
        if let Err(reject) = self.check_retire(&opening, receipt.as_ref()) {
            return self.reply_some(request, Err(reject));
        }
        let acknowledged = receipt.map(|receipt| receipt.cid());
        match self.standing() {
            Standing::Active { epoch } | Standing::Frozen { epoch, .. } if *epoch >= opening.epoch => {
                // The holder of that very epoch, or of a later one, has nothing to retire from.
                let reply = if opening.holder == Some(self.me) {
                    Ok(self.answer())
                } else {
                    Err(epoch_old(opening.epoch, *epoch))
                };
                self.reply_some(request, reply);
            }
            Standing::Retired { opening: held, receipt } if held.epoch >= opening.epoch => {
                let is_news = held.point == opening.point && receipt.is_none() && acknowledged.is_some();
                if is_news {
                    self.write(Standing::Retired { opening, receipt: acknowledged }, None, request);
                } else {
                    self.answer_request(request);
                }
            }
            Standing::Active { .. } | Standing::Frozen { .. } | Standing::Retired { .. } => {
                self.draining = None;
                self.write(Standing::Retired { opening, receipt: acknowledged }, None, request);
            }
        }
    }

    fn check_retire(&self, opening: &Opening, receipt: Option<&Receipt>) -> Result<(), Reject> {
        if opening.session != self.session {
            return Err(Reject::new(Code::SessionMismatch, "the handoff is of another session"));
        }
        receipt.map_or(Ok(()), |receipt| receipt.check(opening))
    }

    fn abort(&mut self, request: RequestId, move_id: MoveId) {
        self.draining.take_if(|draining| *draining == move_id);
        match self.standing() {
            Standing::Retired { .. } => self.reply(request, Ok(self.answer())),
            Standing::Frozen { move_id: held, .. } if *held != move_id => {
                let reject = Reject::new(Code::MoveState, format!("frozen for another move, {held}"));
                self.reply(request, Err(reject));
            }
            Standing::Frozen { epoch, .. } => {
                let thawed = Standing::Active { epoch: *epoch };
                self.write(thawed, Some(move_id), Some(request));
            }
            Standing::Active { .. } if self.row.held().aborted.contains(&move_id) => {
                self.reply(request, Ok(self.answer()));
            }
            // Remembered although it never froze: the freeze may still be on its way.
            Standing::Active { epoch } => {
                self.write(Standing::Active { epoch: *epoch }, Some(move_id), Some(request));
            }
        }
    }

    fn adopted(&mut self, opening: &Opening) {
        let is_new = match self.standing() {
            Standing::Active { epoch } | Standing::Frozen { epoch, .. } => *epoch < opening.epoch,
            Standing::Retired { opening: held, .. } => {
                held.epoch < opening.epoch || held.point == opening.point
            }
        };
        if opening.session == self.session && opening.holder == Some(self.me) && is_new {
            self.write(Standing::Active { epoch: opening.epoch }, None, None);
        }
    }

    fn write(&mut self, standing: Standing, aborted: Option<MoveId>, request: Option<RequestId>) {
        let mut row = Row { standing, aborted: self.row.held().aborted.clone() };
        if let Some(move_id) = aborted {
            record::remember(&mut row.aborted, move_id, self.limits.aborted_max);
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.outputs.push_back(Output::Persist { ticket, row: row.to_bytes() });
        self.row.write(ticket, row, request);
    }

    fn answer_request(&mut self, request: Option<RequestId>) {
        self.reply_some(request, Ok(self.answer()));
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

fn epoch_old(told: Epoch, held: Epoch) -> Reject {
    Reject::new(Code::EpochOld, format!("told of epoch {told}, holds epoch {held}"))
}

impl Row {
    fn to_bytes(&self) -> Vec<u8> {
        let map = Map::new().with("v", 1_i64);
        let map = match &self.standing {
            Standing::Active { epoch } => map.with("state", "active").with("epoch", *epoch),
            Standing::Frozen { epoch, head, move_id } => map
                .with("state", "frozen")
                .with("epoch", *epoch)
                .with("head", record::point_map(*head))
                .with("move", move_id.0.to_vec()),
            Standing::Retired { opening, receipt } => map
                .with("state", "retired")
                .with("opening", opening.bytes.clone())
                .with_some("receipt", *receipt),
        };
        encode_map(&map.with("aborted", record::moves(&self.aborted)))
    }

    fn read(map: &Map<'_>) -> Result<Self, Reject> {
        let state = map.get("state").and_then(Value::as_text).unwrap_or_default();
        let (required, optional): (&[&str], &[&str]) = match state {
            "active" => (&["epoch"], &[]),
            "frozen" => (&["epoch", "head", "move"], &[]),
            "retired" => (&["opening"], &["receipt"]),
            _ => return Err(Reject::new(Code::SchemaType, "expected active, frozen or retired")),
        };
        let required = [&["v", "state", "aborted"], required].concat();
        let fields = Fields::closed(map, "row", &required, optional)?;
        let standing = match state {
            "active" => Standing::Active { epoch: fields.need("epoch", schema::epoch)? },
            "frozen" => Standing::Frozen {
                epoch: fields.need("epoch", schema::epoch)?,
                head: fields.need("head", record::point)?,
                move_id: fields.need("move", record::move_id)?,
            },
            _ => Standing::Retired {
                opening: fields.need("opening", record::opening)?,
                receipt: fields.maybe("receipt", record::entry)?,
            },
        };
        // The list was bounded when it was written, whatever the limit is now.
        let aborted = fields.need("aborted", schema::list(usize::MAX, record::move_id))?;
        Ok(Row { standing, aborted })
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
