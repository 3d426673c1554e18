//! Handing a session over: who may append, decided by three pure state machines. `docs/PROTOCOL.md` §Handing over.
//!
//! ```text
//!  owner                       server that holds it                server that takes it
//!  Driver ── freeze ─────────▶ Source: Active(e) ▶ Frozen(e)
//!         ── offer ──────────────────────────────────────────────▶ Target: Fetching ▶ Offered
//!         ── prepare ────────────────────────────────────────────▶ Target: Prepared
//!   (asks for epochs, signs, journals: from here it only goes forward)
//!         ── activate ───────────────────────────────────────────▶ Target: Active(e+1)
//!         ── retire ─────────▶ Source: Retired(e+1)
//! ```
//!
//! What they decide: whether this server may append now ([`Source::permit`]), what each message answers, and in which
//! order things become durable, are sent and are taken back. What they must never do: let two parties append in the
//! highest epoch that exists; thaw a source once a handoff for the next epoch exists; answer before what the answer
//! says is durable.
//!
//! They do no I/O: `handle` takes one input, `poll_output` gives what has to be done, to be called until it is `None`;
//! `poll_timeout` says when a [`driver::Input::Tick`] is due. Outputs that have an answer carry a [`RequestId`] or a
//! [`Ticket`]; an answer with an unknown one is dropped and counted. Signatures are checked before they come here:
//! [`Opening`] and [`Receipt`] are built from [`Signed`] blobs only.

mod durable;
mod record;

pub mod driver;
pub mod source;
pub mod target;

use std::fmt;
use std::time::Duration;

use crate::block::{Decoded, Signed};
use crate::code::{Code, Reject};
use crate::control::Ref;
use crate::entry::{Body, Entry};
use crate::id::{EntryCid, Epoch, Principal, Seq, SessionId};
use crate::verify::{Inventory, LACKING_MAX};

pub use driver::Driver;
pub use source::Source;
pub use target::Target;

/// One move, chosen by the owner's node. Every message of the move carries it, and is idempotent by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MoveId([u8; 16]);

impl MoveId {
    /// From 16 random bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        MoveId(bytes)
    }

    /// The 16 bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl fmt::Display for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&data_encoding::HEXLOWER.encode(&self.0))
    }
}

impl fmt::Debug for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Ties an answer to its request. Given by whoever asks; unique within one machine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

impl RequestId {
    /// The request with this number.
    #[must_use]
    pub fn new(number: u64) -> Self {
        RequestId(number)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Names one durable write or one piece of work that a machine asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A position in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// The entry.
    pub cid: EntryCid,
    /// Its seq.
    pub seq: Seq,
}

/// An entry of the owner that opens an epoch: a handoff, or the owner's seal. Its signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    session: SessionId,
    point: Point,
    prev: EntryCid,
    epoch: Epoch,
    holder: Option<Principal>,
    bytes: Vec<u8>,
}

impl Opening {
    /// Takes a verified entry as an opening of the session of `owner`.
    ///
    /// # Errors
    /// `E_TYPE` if it is no handoff and no seal, `E_CAP_ROLE` if another key than the owner's signed it.
    pub fn of(signed: &Signed<Entry>, owner: Principal) -> Result<Self, Reject> {
        let opening = Opening::read(signed.value(), signed.cid(), signed.bytes())?;
        if signed.value().signer == owner {
            Ok(opening)
        } else {
            let signer = signed.value().signer.short();
            Err(Reject::new(Code::CapRole, format!("expected the owner {}, got {signer}", owner.short())))
        }
    }

    /// Reads an opening that was verified before it was stored.
    fn stored(bytes: &[u8]) -> Result<Self, Reject> {
        let decoded = Decoded::<Entry>::decode(bytes)?;
        Opening::read(decoded.value(), decoded.cid(), decoded.bytes())
    }

    fn read(entry: &Entry, cid: EntryCid, bytes: &[u8]) -> Result<Self, Reject> {
        let holder = match &entry.body {
            Body::Handoff(handoff) => handoff.holder,
            Body::Seal(_) => None,
            Body::Genesis(_)
            | Body::UserMessage(_)
            | Body::ModelResponse(_)
            | Body::ToolCall(_)
            | Body::Note(_) => {
                return Err(Reject::new(Code::Type, "expected a handoff or a seal, got another entry"));
            }
        };
        let place = entry.place.ok_or_else(|| Reject::from(Code::Genesis))?;
        Ok(Opening {
            session: entry.session(cid),
            point: Point { cid, seq: place.seq },
            prev: place.prev,
            epoch: place.epoch,
            holder,
            bytes: bytes.to_vec(),
        })
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Its own position.
    #[must_use]
    pub fn point(&self) -> Point {
        self.point
    }

    /// The entry it stands on: all that follows there in the old epoch is fenced.
    #[must_use]
    pub fn prev(&self) -> EntryCid {
        self.prev
    }

    /// The epoch it opens.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The server that may append in that epoch; none suspends or ends the session.
    #[must_use]
    pub fn holder(&self) -> Option<Principal> {
        self.holder
    }

    /// The signed bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The Ref by which the next holder says that it holds the session. Its signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    signer: Principal,
    session: SessionId,
    head: EntryCid,
    epoch: Epoch,
    bytes: Vec<u8>,
}

impl Receipt {
    /// Takes a verified Ref as a receipt. Whether it fits an opening is for [`Receipt::check`].
    ///
    /// # Errors
    /// `E_REF_MISMATCH` if it is no session's Ref.
    pub fn of(signed: &Signed<Ref>) -> Result<Self, Reject> {
        Receipt::read(signed.value(), signed.bytes())
    }

    /// Reads a receipt that was verified before it was stored.
    fn stored(bytes: &[u8]) -> Result<Self, Reject> {
        let decoded = Decoded::<Ref>::decode(bytes)?;
        Receipt::read(decoded.value(), decoded.bytes())
    }

    fn read(value: &Ref, bytes: &[u8]) -> Result<Self, Reject> {
        let head = value.session_head()?;
        Ok(Receipt {
            signer: value.signer,
            session: head.session,
            head: head.head,
            epoch: head.epoch,
            bytes: bytes.to_vec(),
        })
    }

    /// Checks that it acknowledges `opening`: the opened epoch's holder names the opening or something later.
    ///
    /// # Errors
    /// `E_REF_MISMATCH` with what differs.
    pub fn check(&self, opening: &Opening) -> Result<(), Reject> {
        let bad = |what: &str| Err(Reject::new(Code::RefMismatch, format!("the receipt {what}")));
        if self.session != opening.session {
            return bad("is of another session");
        }
        if Some(self.signer) != opening.holder {
            return bad("is not signed by the holder that the handoff names");
        }
        if self.epoch < opening.epoch {
            return bad("is of an epoch before the handoff");
        }
        Ok(())
    }

    /// Who signed it.
    #[must_use]
    pub fn signer(&self) -> Principal {
        self.signer
    }

    /// The head it names.
    #[must_use]
    pub fn head(&self) -> EntryCid {
        self.head
    }

    /// The epoch it names.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Its own CID.
    #[must_use]
    pub fn cid(&self) -> EntryCid {
        EntryCid::of(&self.bytes)
    }

    /// The signed bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A tool that the session used, at the next holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Whether the next holder has it.
    pub presence: Presence,
}

/// Whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It can be used.
    Available,
    /// It cannot.
    Missing,
}

/// What the next holder found when it got ready to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The tools that the session used.
    pub tools: Vec<Tool>,
    /// The model it would go on with.
    pub model: Option<String>,
    /// What it holds of the words and files of the session; none: it does not say.
    pub inventory: Option<Inventory>,
}

impl Readiness {
    /// No more than a server may list.
    fn truncate(&mut self, tools_max: usize) {
        self.tools.truncate(tools_max);
        if let Some(inventory) = &mut self.inventory {
            inventory.lacking.truncate(LACKING_MAX);
        }
    }
}

/// The state that a server answers with. One word each on the wire: [`Answer::word`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It may append, in this epoch.
    Active {
        /// The epoch.
        epoch: Epoch,
        /// Its Ref, when it was just made the holder.
        receipt: Option<Receipt>,
    },
    /// It stopped, durably, for a move.
    Frozen {
        /// The epoch it stopped in.
        epoch: Epoch,
        /// Where it stopped.
        head: Point,
        /// The move that it stopped for.
        move_id: MoveId,
    },
    /// It knows of a handoff of a later epoch.
    Retired {
        /// The epoch which that handoff opened.
        epoch: Epoch,
        /// That handoff.
        opening: Point,
    },
    /// It holds nothing and stages nothing; the highest epoch it knows.
    Idle {
        /// None: it never held an entry of the session.
        epoch: Option<Epoch>,
    },
    /// It fetches and verifies what it lacks.
    Fetching {
        /// Verified up to here; none: nothing yet.
        through: Option<Seq>,
        /// Bytes that this fetch has received and gone through: they grow while words and files come too.
        bytes: u64,
    },
    /// It holds and verified everything up to the offered head.
    Offered {
        /// That head.
        head: Point,
    },
    /// It is ready to go on.
    Prepared(Readiness),
    /// It cannot go on; the offer stands.
    Refused {
        /// Why, as an id such as `model-missing`.
        reason: String,
    },
}

impl Answer {
    /// The word of the wire.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Answer::Active { .. } => "active",
            Answer::Frozen { .. } => "frozen",
            Answer::Retired { .. } => "retired",
            Answer::Idle { .. } => "idle",
            Answer::Fetching { .. } => "fetching",
            Answer::Offered { .. } => "offered",
            Answer::Prepared(_) => "prepared",
            Answer::Refused { .. } => "refused",
        }
    }
}

/// What a server answers: its state, or why it refuses.
pub type Reply = Result<Answer, Reject>;

/// The state of a server that may be source and target of one session: the later epoch speaks, then the source.
#[must_use]
pub fn status(source: Option<&Source>, target: Option<&Target>) -> Answer {
    let staged =
        target.filter(|target| source.is_none_or(|source| target.stage_epoch() > Some(source.epoch())));
    match (source, staged) {
        (_, Some(target)) => target.answer(),
        (Some(source), None) => source.answer(),
        (None, None) => Answer::Idle { epoch: None },
    }
}

/// Bounds of the three machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Commands that wait for a write or for work under way, per machine.
    pub waiting_max: usize,
    /// Aborted moves that a server remembers per session, so that a late message of one changes nothing.
    pub aborted_max: usize,
    /// Providers taken from one offer.
    pub providers_max: usize,
    /// Peers that a driver asks for the highest epoch.
    pub peers_max: usize,
    /// Tools in one answer to `prepare`.
    pub tools_max: usize,
    /// First pause before a message is sent again; doubles up to `retry_max`.
    pub retry: Duration,
    /// Longest pause before a message is sent again.
    pub retry_max: Duration,
    /// How long a request may go without any answer before it counts as lost.
    pub answer_max: Duration,
    /// How long a step may go without progress.
    pub idle_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            waiting_max: 16,
            aborted_max: 32,
            providers_max: 8,
            peers_max: 16,
            tools_max: 256,
            retry: Duration::from_millis(250),
            retry_max: Duration::from_secs(8),
            answer_max: Duration::from_secs(10),
            idle_max: Duration::from_secs(30),
        }
    }
}

#[cfg(test)]
mod testing;

#[cfg(test)]
mod model_node;

#[cfg(test)]
mod model_tests;
