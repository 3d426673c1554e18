//! The server that takes a session over. `docs/PROTOCOL.md` §Handover, steps 2, 3 and 5.
//!
//! ```text
//!        offer(e+1, head)         verified            prepare
//!  Idle ─────────────────▶ Fetching ─────────▶ Offered ───────▶ Prepared
//!   ▲     abort                │  │               │               │
//!   └──────────────────────────┴──┼───────────────┴───────────────┤
//!                                 │  activate(handoff): adopted in one transaction
//!                                 └──▶ (goes on fetching) ─────────▼
//!                                                               Active(e+1)
//! ```
//!
//! It decides what is staged and when an opening that names this server is adopted. It must never adopt one whose
//! chain it has not verified up to the opening's `prev`, and never take an offer of an epoch that is not newer than
//! the one it knows. An opening that names this server is final: staging is then kept, whatever else comes, until it
//! is adopted or a later epoch is known.

mod machine;

use crate::code::{Code, Reject};
use crate::codec::{Map, Value, encode_map};
use crate::id::{Epoch, Seq};
use crate::schema::{self, Fields};

use super::{MoveId, Opening, Point, Readiness, Receipt, Reply, RequestId, Ticket, record};

pub use machine::Target;

/// What the owner offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The move; none if the opening came without one.
    pub move_id: Option<MoveId>,
    /// The epoch that would be opened.
    pub epoch: Epoch,
    /// The head it would stand on.
    pub head: Point,
}

/// How much of a staged chain is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// Not all of it.
    Partly,
    /// Everything up to the offered head.
    Fully,
}

/// Where the target stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is staged.
    Idle,
    /// A chain is fetched and verified, outside what this node has adopted as its own to continue.
    Staging {
        /// What was offered.
        offer: Offer,
        /// How far it is.
        staged: Staged,
        /// The opening to adopt as soon as the chain is there.
        opening: Option<Opening>,
    },
    /// It adopted an opening that names it.
    Active {
        /// That opening.
        opening: Opening,
    },
}

/// What happens to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The owner offers the session.
    Offer {
        /// The request.
        request: RequestId,
        /// The move.
        move_id: MoveId,
        /// The epoch that would be opened.
        epoch: Epoch,
        /// The head it would stand on.
        head: Point,
        /// Where the chain can be fetched.
        providers: Vec<String>,
    },
    /// The owner asks it to get ready.
    Prepare {
        /// The request.
        request: RequestId,
        /// The move.
        move_id: MoveId,
    },
    /// The owner hands it the opening.
    Activate {
        /// The request.
        request: RequestId,
        /// The move.
        move_id: MoveId,
        /// The verified opening.
        opening: Opening,
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
    /// How far the fetch is.
    Fetched {
        /// Which fetch.
        ticket: Ticket,
        /// The last verified seq.
        through: Seq,
        /// Bytes that it has received and gone through.
        bytes: u64,
    },
    /// The fetch ended.
    FetchDone {
        /// Which fetch.
        ticket: Ticket,
        /// Every entry up to the head is verified, or why not. Words and files that nobody gave stop nothing: the preparation tells.
        result: Result<(), Reject>,
    },
    /// The preparation ended.
    PrepareDone {
        /// Which.
        ticket: Ticket,
        /// What was found, or the reason (an id) why it cannot go on.
        result: Result<Readiness, String>,
    },
    /// The adoption ended.
    AdoptDone {
        /// Which.
        ticket: Ticket,
        /// The Ref of this server at the opening or later, or why nothing was adopted.
        result: Result<Receipt, Reject>,
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

/// What a target wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Write this row durably, then report it.
    Persist {
        /// To report it by.
        ticket: Ticket,
        /// The row, for [`Target::from_bytes`].
        row: Vec<u8>,
    },
    /// Answer a request.
    Answer {
        /// Which.
        request: RequestId,
        /// With what.
        reply: Reply,
    },
    /// Fetch and verify up to `head` into staging, from the last verified seq on; report progress and the end.
    Fetch {
        /// To report it by; replaces an earlier fetch.
        ticket: Ticket,
        /// Up to here.
        head: Point,
        /// Where from, beside the peers that are known.
        providers: Vec<String>,
    },
    /// Render the journal, look for model and tools; report.
    Prepare {
        /// To report it by.
        ticket: Ticket,
    },
    /// In one transaction: adopt the staged chain and the opening, write the guard row and this row; then sign the Ref
    /// and report it. What is adopted already is only acknowledged again.
    Adopt {
        /// To report it by.
        ticket: Ticket,
        /// The opening.
        opening: Opening,
        /// The row, for [`Target::from_bytes`].
        row: Vec<u8>,
    },
    /// Drop what is staged, and any fetch or preparation for it.
    DropStaging,
}

impl Input {
    /// The request that waits for an answer to this input.
    fn request(&self) -> Option<RequestId> {
        match self {
            Input::Offer { request, .. }
            | Input::Prepare { request, .. }
            | Input::Activate { request, .. }
            | Input::Abort { request, .. }
            | Input::Status { request } => Some(*request),
            Input::Learned { .. }
            | Input::Fetched { .. }
            | Input::FetchDone { .. }
            | Input::PrepareDone { .. }
            | Input::AdoptDone { .. }
            | Input::Persisted { .. }
            | Input::PersistFailed { .. } => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    stage: Stage,
    /// The highest epoch adopted here, or learned to be another server's.
    known: Option<Epoch>,
    aborted: Vec<MoveId>,
}

impl Row {
    fn to_bytes(&self) -> Vec<u8> {
        let map = Map::new()
            .with("v", 1_i64)
            .with("aborted", record::moves(&self.aborted))
            .with_some("known", self.known);
        let map = match &self.stage {
            Stage::Idle => map.with("state", "idle"),
            Stage::Active { opening } => map.with("state", "active").with("opening", opening.bytes.clone()),
            Stage::Staging { offer, staged, opening } => map
                .with("state", if *staged == Staged::Fully { "offered" } else { "fetching" })
                .with("epoch", offer.epoch)
                .with("head", record::point_map(offer.head))
                .with_some("move", offer.move_id.map(|id| id.0.to_vec()))
                .with_some("opening", opening.as_ref().map(|opening| opening.bytes.clone())),
        };
        encode_map(&map)
    }

    fn read(map: &Map<'_>) -> Result<Self, Reject> {
        let state = map.get("state").and_then(Value::as_text).unwrap_or_default();
        let (required, optional): (&[&str], &[&str]) = match state {
            "idle" => (&[], &["known"]),
            "active" => (&["opening"], &["known"]),
            "fetching" | "offered" => (&["epoch", "head"], &["known", "move", "opening"]),
            _ => return Err(Reject::new(Code::SchemaType, "expected idle, fetching, offered or active")),
        };
        let required = [&["v", "state", "aborted"], required].concat();
        let fields = Fields::closed(map, "row", &required, optional)?;
        let stage = match state {
            "idle" => Stage::Idle,
            "active" => Stage::Active { opening: fields.need("opening", record::opening)? },
            _ => Stage::Staging {
                offer: Offer {
                    move_id: fields.maybe("move", record::move_id)?,
                    epoch: fields.need("epoch", schema::epoch)?,
                    head: fields.need("head", record::point)?,
                },
                staged: if state == "offered" { Staged::Fully } else { Staged::Partly },
                opening: fields.maybe("opening", record::opening)?,
            },
        };
        // The list was bounded when it was written, whatever the limit is now.
        let aborted = fields.need("aborted", schema::list(usize::MAX, record::move_id))?;
        Ok(Row { stage, known: fields.lax("known", schema::epoch)?, aborted })
    }
}
