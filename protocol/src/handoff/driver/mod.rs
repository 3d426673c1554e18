//! The owner's side of a move: seven steps, a journal and one point of no return. `docs/PROTOCOL.md`
//! §Handing over.
//!
//! ```text
//!  Grant ─▶ Freeze | Survey ─▶ Copy ─▶ Prepare ─▶ Ask ─▶ Sign ─▶ Activate ─▶ Retire ─▶ Finished(Done)
//!             └──────────┴───────┴────────┴────────┴──────┘ │
//!                        any failure, abort                 │ the signed handoff is in the journal:
//!                              ▼                            ▼ from here it only goes forward
//!                          RollBack ─▶ Finished(RolledBack | Aborted)
//!                              │ source given up ─▶ RollBack of the target alone
//!                              │ later epoch learned ─▶ RollBack that retires the source
//! ```
//!
//! It decides which message goes to whom next, and acts on a phase only once the journal holds it: what a crash
//! leaves behind is resumed by [`Driver::from_bytes`] with the same bytes. It must never send a handoff that the
//! journal does not hold, and never take a move back once it holds one. Silence is never taken for an answer: before
//! the handoff it ends the move, after it the driver asks, sends again, and waits. A move that is taken back waits for
//! the source, which may stand still for it, until a person gives the source up: from then on nothing of this move is
//! sent to it any more. An abort that was sent before and is delivered after the handoff of a later move still thaws it,
//! unless it knows that handoff by then; what it writes is a fenced tail. A source of a session that moved on is told of
//! the later epoch instead of thawed, as soon as the driver learns of it.
//!
//! Reports about epochs and heads ([`View`]) are what this node verified, not what a peer told. A source that was left may live,
//! and what it writes may arrive here while the move goes on: nothing that this node holds is cut. A handoff that was to stand
//! below its newest entry ([`Input::Held`]) is not asked for any more; the move goes back to the copy, from that entry.

mod answers;
mod journal;
mod machine;

use crate::code::{Code, Reject};
use crate::id::{Cid, Epoch, Principal, Seq, SessionId};

use super::{MoveId, Opening, Point, Readiness, Receipt, Reply, RequestId, Ticket};

pub use machine::Driver;

/// The server that is to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is asked to freeze.
    Online(Principal),
    /// It is not waited for: what it never replicated is lost, and said.
    Offline(Option<Principal>),
}

impl Origin {
    /// The server.
    #[must_use]
    pub fn server(self) -> Option<Principal> {
        match self {
            Origin::Online(server) => Some(server),
            Origin::Offline(server) => server,
        }
    }
}

/// What is to be moved where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// 16 random bytes, fresh for each move.
    pub move_id: MoveId,
    /// The session.
    pub session: SessionId,
    /// The epoch that ends: that of the head this node has selected.
    pub epoch: Epoch,
    /// The server that holds it.
    pub origin: Origin,
    /// The server that takes it over.
    pub target: Principal,
    /// Others that may know the session; asked for heads and epochs.
    pub peers: Vec<Principal>,
    /// The newest head of the epoch that ends that this node holds and verified; [`Input::Held`] brings it up to date.
    pub held: Option<Point>,
    /// The newest head that the source ever told, verified or not.
    pub told: Option<Point>,
}

/// Where a move stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Step 0: the target needs a capability.
    Grant,
    /// Step 1: the source stops.
    Freeze,
    /// Step 1 without the source: which head is the highest that anybody has?
    Survey,
    /// Step 2: the target fetches and verifies.
    Copy,
    /// Step 3: the target gets ready.
    Prepare,
    /// Step 4: does anybody know a later epoch?
    Ask,
    /// Step 4: the owner signs.
    Sign,
    /// Step 5: the target adopts the handoff.
    Activate,
    /// Step 6: the source learns it.
    Retire,
    /// The move is taken back at source and target.
    RollBack,
    /// It ended.
    Finished,
}

impl Phase {
    /// The word that people read: `freeze`, `copy`, `prepare`, `handoff`, `active`, `retired`; else the phase's own.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Phase::Grant => "grant",
            Phase::Freeze | Phase::Survey => "freeze",
            Phase::Copy => "copy",
            Phase::Prepare => "prepare",
            Phase::Ask | Phase::Sign => "handoff",
            Phase::Activate => "active",
            Phase::Retire => "retired",
            Phase::RollBack => "rollback",
            Phase::Finished => "finished",
        }
    }
}

/// How a move ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target holds the session.
    Done {
        /// Whether the source said that it knows.
        source: Confirmation,
    },
    /// Something failed, and no handoff was signed.
    RolledBack {
        /// What failed.
        cause: Reject,
        /// Whether the source still has to hear of it. One that was given up may stand still until the next handoff.
        source: Confirmation,
    },
    /// Somebody asked for it, and no handoff was signed.
    Aborted {
        /// As in [`Outcome::RolledBack`].
        source: Confirmation,
    },
    /// The handoff was signed, but another one of a later epoch came after it: that one counts.
    Superseded {
        /// The later epoch.
        epoch: Epoch,
    },
}

impl Outcome {
    /// The word of the JSON interface; a move that has no outcome yet but cannot go on is `waiting`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Done { .. } => "done",
            Outcome::RolledBack { .. } => "rolled-back",
            Outcome::Aborted { .. } | Outcome::Superseded { .. } => "aborted",
        }
    }
}

/// Whether a server has said that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// It said so, or was never asked.
    Confirmed,
    /// It was not heard; it learns of a handoff from any peer.
    Unconfirmed,
}

/// What a peer's own copy of the session came to after this node fetched and verified it. It holds nothing that this
/// node knew from elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The opening of the highest epoch in it; none in epoch 0.
    pub opening: Option<Opening>,
    /// The highest verified head in that epoch.
    pub head: Option<Point>,
    /// The head that the peer told, verified or not.
    pub told: Option<Point>,
    /// The peer's own Ref, if it tells one.
    pub receipt: Option<Receipt>,
}

impl View {
    /// The highest epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.opening.as_ref().map_or(Epoch::ZERO, Opening::epoch)
    }
}

/// The facts of the handoff to sign. Whoever signs holds and verified the chain up to `prev`, and fetches it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsigned {
    /// The session.
    pub session: SessionId,
    /// The epoch to open.
    pub epoch: Epoch,
    /// The entry to stand on.
    pub prev: Point,
    /// The seq of the handoff.
    pub seq: Seq,
    /// The next holder.
    pub holder: Principal,
    /// The capability that the next holder acts under.
    pub grant: Option<Cid>,
}

/// One message to a server. The session and the move go with each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// To the source: stop in this epoch.
    Freeze {
        /// The epoch.
        epoch: Epoch,
    },
    /// To the target: fetch and verify.
    Offer {
        /// The epoch that would be opened.
        epoch: Epoch,
        /// The head it would stand on.
        head: Point,
        /// Who has the chain, beside this node.
        providers: Vec<Principal>,
        /// The target's capability.
        grant: Option<Cid>,
    },
    /// To the target: get ready.
    Prepare,
    /// To the target: adopt this.
    Activate {
        /// The handoff.
        opening: Opening,
        /// The target's capability.
        grant: Option<Cid>,
    },
    /// To the source: this is over.
    Retire {
        /// The handoff.
        opening: Opening,
        /// The target's Ref.
        receipt: Option<Receipt>,
    },
    /// To both: forget the move.
    Abort,
}

/// What happens to a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The answer to [`Output::NeedGrant`].
    Granted {
        /// Which.
        request: RequestId,
        /// The capability (none: it needs none), or why there is none.
        result: Result<Option<Cid>, Reject>,
    },
    /// A server answered a message.
    Replied {
        /// Which.
        request: RequestId,
        /// With what.
        reply: Reply,
    },
    /// A message or its answer was lost.
    Lost {
        /// Which.
        request: RequestId,
        /// `E_UNREACHABLE` or `E_TIMEOUT`.
        code: Code,
    },
    /// The answer to [`Output::AskPeer`].
    Seen {
        /// Which.
        request: RequestId,
        /// What was verified; none: the peer did not answer.
        view: Option<Box<View>>,
    },
    /// The answer to [`Output::NeedSignature`].
    Signed {
        /// Which.
        request: RequestId,
        /// The signed handoff, or why nobody signed.
        result: Result<Opening, Reject>,
    },
    /// A journal write is durable.
    Persisted {
        /// Which.
        ticket: Ticket,
    },
    /// A journal write failed.
    PersistFailed {
        /// Which.
        ticket: Ticket,
        /// Why.
        reject: Reject,
    },
    /// An opening of this session was learned, from any peer.
    Learned {
        /// The verified opening.
        opening: Opening,
    },
    /// What this node's own verified copy ends with, in the epoch that ends: told at the start, with each commit, before the owner
    /// is asked to sign, and once more in the act of taking the signature.
    Held {
        /// Its newest entry.
        head: Point,
    },
    /// The user does not want to wait for the source: before it froze it is left with what it did not replicate; in a
    /// move that is taken back it is given up. Anywhere else this changes nothing.
    LeaveSource,
    /// The user wants it tried again now.
    Retry,
    /// Time has passed; due at [`Driver::poll_timeout`].
    Tick,
}

/// What a driver wants done. Whoever performs it ends each [`Output::Send`] with one [`Input::Replied`] or [`Input::Lost`],
/// unless [`Output::Cancel`] ended it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write this journal durably, then report it.
    Persist {
        /// To report it by.
        ticket: Ticket,
        /// The journal, for [`Driver::from_bytes`].
        journal: Vec<u8>,
    },
    /// Find or sign a writer capability that covers the session for this server.
    NeedGrant {
        /// To answer by.
        request: RequestId,
        /// The server.
        target: Principal,
    },
    /// Send a message.
    Send {
        /// To answer by.
        request: RequestId,
        /// To whom.
        to: Principal,
        /// What.
        message: Message,
    },
    /// Nobody waits for what was sent before: end every [`Output::Send`] that is under way, before anything that follows.
    Cancel,
    /// Ask a peer for its head, fetch and verify what is new in it, and report what it came to.
    AskPeer {
        /// To answer by.
        request: RequestId,
        /// Whom.
        peer: Principal,
    },
    /// Let the owner sign. May take as long as a person takes.
    NeedSignature {
        /// To answer by.
        request: RequestId,
        /// What to sign.
        facts: Unsigned,
        /// What the target found when it got ready.
        readiness: Readiness,
    },
    /// A phase began.
    Entered {
        /// Which.
        phase: Phase,
    },
    /// The target's verified copy grew.
    Copied {
        /// Up to here.
        through: Seq,
    },
    /// Nothing was heard for too long. It is still tried, but a person may want to know.
    Waiting {
        /// In which phase.
        phase: Phase,
        /// What was heard last, or `E_TIMEOUT`.
        code: Code,
    },
    /// The move ended.
    Finished(Outcome),
}

impl Output {
    /// Whether it asks somebody for something, which is of use to the phase that asks only.
    fn asks(&self) -> bool {
        match self {
            Output::NeedGrant { .. }
            | Output::Send { .. }
            | Output::AskPeer { .. }
            | Output::NeedSignature { .. } => true,
            Output::Persist { .. }
            | Output::Cancel
            | Output::Entered { .. }
            | Output::Copied { .. }
            | Output::Waiting { .. }
            | Output::Finished(_) => false,
        }
    }
}
