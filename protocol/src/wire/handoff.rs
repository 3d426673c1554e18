//! Handing a session over, `/throughline/handoff/1`. `docs/PROTOCOL.md` §Handing over, §Streams.
//!
//! Each request names the move it belongs to and is idempotent: asked again, it answers the state that it led to. That
//! `auth` is the owner or a live device is for the answerer to check.

use std::sync::Arc;

use super::chain::{seq, session};
use super::{
    Credentials, GrantsField, Message, WireError, addresses, control_blob, texts, unknown_word, word_of,
};
use crate::code::{Code, Reject};
use crate::codec::{self, Map, Value};
use crate::id::{EntryCid, Epoch, Seq, SessionId};
use crate::limits;
use crate::schema::{self, Fields};
use crate::verify::{Inventory, LACKING_MAX, LinkCounts};

/// Names one move: 16 random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MoveId([u8; 16]);

impl MoveId {
    /// A move id of these random bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        MoveId(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// A request of the handoff protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoffRequest {
    /// Who asks; `grants` are what an offer and an activation bring to the target.
    pub credentials: Credentials,
    /// The move.
    pub move_id: MoveId,
    /// The session.
    pub session: SessionId,
    /// What to do.
    pub step: HandoffStep,
}

/// A step of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandoffStep {
    /// The source stops appending.
    Freeze {
        /// The epoch that it is in.
        epoch: Epoch,
    },
    /// The target fetches the session.
    Offer {
        /// The epoch that the handoff will open.
        epoch: Epoch,
        /// Where the session stands.
        seq: Seq,
        /// Its head.
        head: EntryCid,
        /// Addresses to fetch it from; at most [`limits::ADDRESSES_MAX`].
        providers: Vec<String>,
    },
    /// The target checks that it could go on.
    Prepare,
    /// The target takes over.
    Activate {
        /// The signed SessionHandoff.
        handoff: Arc<[u8]>,
    },
    /// The source lets go for good.
    Retire {
        /// The signed SessionHandoff.
        handoff: Arc<[u8]>,
        /// The target's Ref at the handoff or later.
        receipt: Arc<[u8]>,
    },
    /// The move is off.
    Abort,
    /// Where the answerer stands.
    Status,
}

impl HandoffStep {
    fn word(&self) -> &'static str {
        match self {
            HandoffStep::Freeze { .. } => "freeze",
            HandoffStep::Offer { .. } => "offer",
            HandoffStep::Prepare => "prepare",
            HandoffStep::Activate { .. } => "activate",
            HandoffStep::Retire { .. } => "retire",
            HandoffStep::Abort => "abort",
            HandoffStep::Status => "status",
        }
    }

    fn grants_field(&self) -> GrantsField {
        match self {
            HandoffStep::Offer { .. } | HandoffStep::Activate { .. } => GrantsField::Required,
            HandoffStep::Freeze { .. }
            | HandoffStep::Prepare
            | HandoffStep::Retire { .. }
            | HandoffStep::Abort
            | HandoffStep::Status => GrantsField::Optional,
        }
    }

    fn write<'a>(&'a self, map: Map<'a>) -> Map<'a> {
        match self {
            HandoffStep::Freeze { epoch } => map.with_some("epoch", (*epoch > Epoch::ZERO).then_some(*epoch)),
            HandoffStep::Offer { epoch, seq, head, providers } => map
                .with("epoch", *epoch)
                .with("seq", *seq)
                .with("head", *head)
                .with("providers", texts(providers)),
            HandoffStep::Activate { handoff } => map.with("handoff", &handoff[..]),
            HandoffStep::Retire { handoff, receipt } => {
                map.with("handoff", &handoff[..]).with("receipt", &receipt[..])
            }
            HandoffStep::Prepare | HandoffStep::Abort | HandoffStep::Status => map,
        }
    }

    fn read(map: &Map<'_>) -> Result<Self, Reject> {
        match word_of(map, "op")? {
            "freeze" => {
                let fields = Fields::open(map, "freeze", &[])?;
                let epoch = fields.maybe("epoch", schema::epoch)?.unwrap_or(Epoch::ZERO);
                Ok(HandoffStep::Freeze { epoch })
            }
            "offer" => {
                let fields = Fields::open(map, "offer", &["epoch", "seq", "head", "providers"])?;
                Ok(HandoffStep::Offer {
                    epoch: fields.need("epoch", schema::epoch)?,
                    seq: fields.need("seq", seq)?,
                    head: fields.need("head", schema::entry)?,
                    providers: fields.need("providers", addresses)?,
                })
            }
            "prepare" => Ok(HandoffStep::Prepare),
            "activate" => {
                let fields = Fields::open(map, "activate", &["handoff"])?;
                Ok(HandoffStep::Activate { handoff: fields.need("handoff", control_blob)? })
            }
            "retire" => {
                let fields = Fields::open(map, "retire", &["handoff", "receipt"])?;
                Ok(HandoffStep::Retire {
                    handoff: fields.need("handoff", control_blob)?,
                    receipt: fields.need("receipt", control_blob)?,
                })
            }
            "abort" => Ok(HandoffStep::Abort),
            "status" => Ok(HandoffStep::Status),
            _ => unknown_word("op", "freeze, offer, prepare, activate, retire, abort, status"),
        }
    }
}

impl Message for HandoffRequest {
    fn to_map(&self) -> Map<'_> {
        let map = Map::new()
            .with("op", self.step.word())
            .with("move", &self.move_id.0[..])
            .with("genesis", self.session);
        self.credentials.write(self.step.write(map), self.step.grants_field())
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "request", &["op", "move", "genesis"])?;
        let step = HandoffStep::read(map)?;
        Ok(HandoffRequest {
            credentials: Credentials::read(&fields, step.grants_field())?,
            move_id: MoveId(fields.need("move", schema::fixed)?),
            session: fields.need("genesis", session)?,
            step,
        })
    }
}

/// The answer to a request of the handoff protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandoffAnswer {
    /// Where the answerer stands now.
    State(HandoffStatus),
    /// The request was refused.
    Error(WireError),
}

/// Where a server stands in a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoffStatus {
    /// Its state.
    pub state: HandoffState,
    /// The epoch that it is in, or 0 when it does not say.
    pub epoch: Epoch,
    /// The last entry that it holds; 0 is the genesis, or that it does not say.
    pub seq: Seq,
    /// That entry.
    pub head: Option<EntryCid>,
}

impl HandoffStatus {
    /// A state alone.
    #[must_use]
    pub fn of(state: HandoffState) -> Self {
        HandoffStatus { state, epoch: Epoch::ZERO, seq: Seq::ZERO, head: None }
    }
}

/// The states of a server in a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandoffState {
    /// The source appends nothing more; its head is told.
    Frozen,
    /// It holds the session and may append.
    Active {
        /// The target's Ref at the handoff or later, as answer to an activation.
        receipt: Option<Arc<[u8]>>,
    },
    /// The source let go.
    Retired,
    /// The target is fetching.
    Fetching {
        /// Bytes that this fetch has received and gone through.
        bytes: u64,
    },
    /// The target holds all.
    Offered,
    /// The target could go on.
    Prepared {
        /// Tools that the session uses; at most [`limits::PREPARED_TOOLS_MAX`].
        tools: Vec<ToolState>,
        /// The model that it would use.
        model: Option<String>,
        /// What it holds of the words and files; none when it does not say.
        inventory: Option<Inventory>,
    },
    /// The target cannot go on.
    Refused {
        /// Why, as one word.
        reason: String,
    },
}

/// Whether a target has a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolState {
    /// The tool.
    pub name: String,
    /// Whether it is there.
    pub available: bool,
}

impl HandoffState {
    fn word(&self) -> &'static str {
        match self {
            HandoffState::Frozen => "frozen",
            HandoffState::Active { .. } => "active",
            HandoffState::Retired => "retired",
            HandoffState::Fetching { .. } => "fetching",
            HandoffState::Offered => "offered",
            HandoffState::Prepared { .. } => "prepared",
            HandoffState::Refused { .. } => "refused",
        }
    }

    fn write<'a>(&'a self, map: Map<'a>) -> Map<'a> {
        match self {
            HandoffState::Active { receipt } => map.with_some("receipt", receipt.as_deref()),
            HandoffState::Fetching { bytes } => {
                map.with_some("bytes", (*bytes > 0).then(|| codec::uint(*bytes)))
            }
            HandoffState::Prepared { tools, model, inventory } => {
                let tools = tools.iter().map(|tool| Value::Map(tool.to_map())).collect::<Vec<_>>();
                map.with("tools", tools)
                    .with_some("model", model.as_deref())
                    .with_some("inventory", inventory.as_ref().map(inventory_map))
            }
            HandoffState::Refused { reason } => map.with("reason", reason.as_str()),
            HandoffState::Frozen | HandoffState::Retired | HandoffState::Offered => map,
        }
    }

    fn read(map: &Map<'_>) -> Result<Self, Reject> {
        match word_of(map, "state")? {
            "frozen" => Ok(HandoffState::Frozen),
            "active" => {
                let fields = Fields::open(map, "active", &[])?;
                Ok(HandoffState::Active { receipt: fields.maybe("receipt", control_blob)? })
            }
            "retired" => Ok(HandoffState::Retired),
            "fetching" => {
                let fields = Fields::open(map, "fetching", &[])?;
                Ok(HandoffState::Fetching { bytes: fields.maybe("bytes", schema::uint)?.unwrap_or(0) })
            }
            "offered" => Ok(HandoffState::Offered),
            "prepared" => {
                let fields = Fields::open(map, "prepared", &["tools"])?;
                let tools = schema::list(limits::PREPARED_TOOLS_MAX, schema::map(ToolState::from_map));
                Ok(HandoffState::Prepared {
                    tools: fields.need("tools", tools)?,
                    model: fields.maybe("model", schema::name)?,
                    inventory: fields.maybe("inventory", schema::map(read_inventory))?,
                })
            }
            "refused" => {
                let fields = Fields::open(map, "refused", &["reason"])?;
                Ok(HandoffState::Refused { reason: fields.need("reason", schema::id)? })
            }
            _ => unknown_word("state", "frozen, active, retired, fetching, offered, prepared, refused"),
        }
    }
}

fn inventory_map(inventory: &Inventory) -> Map<'_> {
    let counts = |counts: &LinkCounts| {
        Map::new()
            .with("here", codec::uint(counts.here))
            .with("missing", codec::uint(counts.missing))
            .with("withdrawn", codec::uint(counts.withdrawn))
    };
    let lacking: Vec<Value<'_>> = inventory.lacking.iter().map(|cid| Value::from(*cid)).collect();
    Map::new()
        .with("payloads", counts(&inventory.payloads))
        .with("files", counts(&inventory.files))
        .with("lacking", lacking)
}

fn read_inventory(map: &Map<'_>) -> Result<Inventory, Reject> {
    let counts = |map: &Map<'_>| {
        let fields = Fields::open(map, "counts", &["here", "missing", "withdrawn"])?;
        Ok(LinkCounts {
            here: fields.need("here", schema::uint)?,
            missing: fields.need("missing", schema::uint)?,
            withdrawn: fields.need("withdrawn", schema::uint)?,
        })
    };
    let fields = Fields::open(map, "inventory", &["payloads", "files", "lacking"])?;
    Ok(Inventory {
        payloads: fields.need("payloads", schema::map(counts))?,
        files: fields.need("files", schema::map(counts))?,
        lacking: fields.need("lacking", schema::list(LACKING_MAX, schema::block))?,
    })
}

impl ToolState {
    fn to_map(&self) -> Map<'_> {
        Map::new().with("name", self.name.as_str()).with("available", self.available)
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "tools[]", &["name", "available"])?;
        Ok(ToolState {
            name: fields.need("name", schema::name)?,
            available: fields.need("available", schema::bool)?,
        })
    }
}

impl Message for HandoffAnswer {
    fn to_map(&self) -> Map<'_> {
        match self {
            HandoffAnswer::State(status) => status.to_map(),
            HandoffAnswer::Error(error) => error.to_map(),
        }
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        match word_of(map, "k")? {
            "state" => HandoffStatus::from_map(map).map(HandoffAnswer::State),
            "error" => WireError::from_map(map).map(HandoffAnswer::Error),
            _ => unknown_word("k", "state, error"),
        }
    }
}

impl HandoffStatus {
    fn to_map(&self) -> Map<'_> {
        let map = Map::new()
            .with("k", "state")
            .with("state", self.state.word())
            .with_some("epoch", (self.epoch > Epoch::ZERO).then_some(self.epoch))
            .with_some("seq", (self.seq > Seq::ZERO).then_some(self.seq))
            .with_some("head", self.head);
        self.state.write(map)
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "state", &["state"])?;
        let state = HandoffState::read(map)?;
        let head = fields.maybe("head", schema::entry)?;
        if state == HandoffState::Frozen && head.is_none() {
            return Err(Reject::new(Code::SchemaMissing, "a frozen session needs `head`"));
        }
        Ok(HandoffStatus {
            state,
            epoch: fields.maybe("epoch", schema::epoch)?.unwrap_or(Epoch::ZERO),
            seq: fields.maybe("seq", seq)?.unwrap_or(Seq::ZERO),
            head,
        })
    }
}
