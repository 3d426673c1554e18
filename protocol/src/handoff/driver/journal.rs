//! What a driver remembers over a crash. Written before each phase is acted on.

use crate::code::{Code, Reject};
use crate::codec::{Map, Value, encode_map};
use crate::id::{Cid, Principal, SessionId};
use crate::schema::{self, Fields};

use super::super::{Opening, Point, Receipt, record};
use super::{Confirmation, Origin, Outcome, Phase, Plan};

/// The durable state of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Journal {
    pub(super) plan: Plan,
    pub(super) phase: Phase,
    pub(super) contact: Contact,
    /// Whether a move that is taken back still waits for the source.
    pub(super) patience: Patience,
    pub(super) grant: Option<Cid>,
    /// The head that the handoff stands on.
    pub(super) base: Option<Point>,
    /// The newest head told that lies beyond `base`: it is cut off.
    pub(super) cut: Option<Point>,
    /// The signed handoff. Once this is there, there is no way back.
    pub(super) opening: Option<Opening>,
    pub(super) receipt: Option<Receipt>,
    /// An opening of a later epoch that is not ours: the source is told of it instead of thawed.
    pub(super) later: Option<Opening>,
    /// Why it is taken back; none in [`Phase::RollBack`] means that somebody asked for it.
    pub(super) cause: Option<Reject>,
    pub(super) outcome: Option<Outcome>,
}

/// How far the source was drawn in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Contact {
    /// Nothing was sent to anybody.
    None,
    /// The source may be frozen.
    Source,
    /// The target may have staged something; the source was left alone.
    Target,
    /// Both.
    Both,
}

impl Contact {
    pub(super) fn with_source(self) -> Self {
        if self >= Contact::Target { Contact::Both } else { Contact::Source }
    }

    pub(super) fn with_target(self) -> Self {
        if matches!(self, Contact::Source | Contact::Both) { Contact::Both } else { Contact::Target }
    }

    pub(super) fn source(self) -> bool {
        matches!(self, Contact::Source | Contact::Both)
    }

    pub(super) fn target(self) -> bool {
        self >= Contact::Target
    }
}

/// Whether the source is waited for, and sent anything, while a move is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Until it has said that the move is over for it.
    Waits,
    /// Somebody gave it up. Nothing of this move is sent to it again.
    GivenUp,
}

const PHASES: &[(&str, Phase)] = &[
    ("grant", Phase::Grant),
    ("freeze", Phase::Freeze),
    ("survey", Phase::Survey),
    ("copy", Phase::Copy),
    ("prepare", Phase::Prepare),
    ("ask", Phase::Ask),
    ("sign", Phase::Sign),
    ("activate", Phase::Activate),
    ("retire", Phase::Retire),
    ("rollback", Phase::RollBack),
    ("finished", Phase::Finished),
];

const PATIENCES: &[(&str, Patience)] = &[("waits", Patience::Waits), ("given-up", Patience::GivenUp)];

const CONFIRMATIONS: &[(&str, Confirmation)] =
    &[("confirmed", Confirmation::Confirmed), ("unconfirmed", Confirmation::Unconfirmed)];

const CONTACTS: &[(&str, Contact)] = &[
    ("none", Contact::None),
    ("source", Contact::Source),
    ("target", Contact::Target),
    ("both", Contact::Both),
];

const REQUIRED: &[&str] =
    &["v", "move", "phase", "epoch", "peers", "source", "target", "contact", "session", "patience"];
const OPTIONAL: &[&str] =
    &["cut", "base", "held", "told", "cause", "grant", "later", "opening", "outcome", "receipt", "server"];

impl Journal {
    pub(super) fn new(plan: Plan) -> Self {
        Journal {
            plan,
            phase: Phase::Grant,
            contact: Contact::None,
            patience: Patience::Waits,
            grant: None,
            base: None,
            cut: None,
            opening: None,
            receipt: None,
            later: None,
            cause: None,
            outcome: None,
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let plan = &self.plan;
        let source = if matches!(plan.origin, Origin::Online(_)) { "online" } else { "offline" };
        let peers: Vec<Value<'_>> = plan.peers.iter().map(|peer| Value::from(*peer)).collect();
        let map = Map::new()
            .with("v", 1_i64)
            .with("move", plan.move_id.0.to_vec())
            .with("phase", word_of(PHASES, self.phase))
            .with("epoch", plan.epoch)
            .with("peers", peers)
            .with("source", source)
            .with("target", plan.target)
            .with("contact", word_of(CONTACTS, self.contact))
            .with("session", plan.session)
            .with("patience", word_of(PATIENCES, self.patience))
            .with_some("server", plan.origin.server())
            .with_some("held", plan.held.map(record::point_map))
            .with_some("told", plan.told.map(record::point_map))
            .with_some("grant", self.grant)
            .with_some("base", self.base.map(record::point_map))
            .with_some("cut", self.cut.map(record::point_map))
            .with_some("opening", self.opening.as_ref().map(|opening| opening.bytes.clone()))
            .with_some("receipt", self.receipt.as_ref().map(|receipt| receipt.bytes.clone()))
            .with_some("later", self.later.as_ref().map(|opening| opening.bytes.clone()))
            .with_some("cause", self.cause.as_ref().map(cause_map))
            .with_some("outcome", self.outcome.as_ref().map(outcome_map));
        encode_map(&map)
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, Reject> {
        record::read(bytes, "move", |map| {
            let fields = Fields::closed(map, "journal", REQUIRED, OPTIONAL)?;
            let journal = Journal {
                plan: read_plan(&fields)?,
                phase: fields.need("phase", schema::word(PHASES))?,
                contact: fields.need("contact", schema::word(CONTACTS))?,
                patience: fields.need("patience", schema::word(PATIENCES))?,
                grant: fields.maybe("grant", schema::cap)?,
                base: fields.maybe("base", record::point)?,
                cut: fields.maybe("cut", record::point)?,
                opening: fields.maybe("opening", record::opening)?,
                receipt: fields.maybe("receipt", record::receipt)?,
                later: fields.maybe("later", record::opening)?,
                cause: fields.maybe("cause", schema::map(read_cause))?,
                outcome: fields.maybe("outcome", schema::map(read_outcome))?,
            };
            journal.check().map(|()| journal)
        })
    }

    /// Each phase stands on what the phases before it found.
    fn check(&self) -> Result<(), Reject> {
        let fits = match self.phase {
            Phase::Grant | Phase::Freeze | Phase::Survey | Phase::RollBack => self.opening.is_none(),
            Phase::Copy | Phase::Prepare | Phase::Ask | Phase::Sign => {
                self.base.is_some() && self.opening.is_none()
            }
            Phase::Activate | Phase::Retire => self.opening.is_some(),
            Phase::Finished => self.outcome.is_some(),
        };
        let waits =
            matches!(self.phase, Phase::RollBack | Phase::Finished) || self.patience == Patience::Waits;
        if fits && waits {
            Ok(())
        } else {
            Err(Reject::new(Code::SchemaMissing, "the phase does not fit the journal"))
        }
    }
}

fn read_plan(fields: &Fields<'_, '_>) -> Result<Plan, Reject> {
    let server: Option<Principal> = fields.maybe("server", schema::principal)?;
    let is_online = fields.need("source", schema::word(&[("online", true), ("offline", false)]))?;
    let origin = match (is_online, server) {
        (true, Some(server)) => Origin::Online(server),
        (true, None) => return Err(Reject::new(Code::SchemaMissing, "journal needs `server`")),
        (false, server) => Origin::Offline(server),
    };
    Ok(Plan {
        move_id: fields.need("move", record::move_id)?,
        session: SessionId::of_genesis(fields.need("session", schema::entry)?),
        epoch: fields.need("epoch", schema::epoch)?,
        origin,
        target: fields.need("target", schema::principal)?,
        // The list was bounded when it was written, whatever the limit is now.
        peers: fields.need("peers", schema::list(usize::MAX, schema::principal))?,
        held: fields.maybe("held", record::point)?,
        told: fields.maybe("told", record::point)?,
    })
}

fn cause_map(cause: &Reject) -> Map<'_> {
    Map::new().with("code", cause.code.name()).with("detail", cause.detail.as_str())
}

fn read_cause(map: &Map<'_>) -> Result<Reject, Reject> {
    let fields = Fields::closed(map, "cause", &["code", "detail"], &[])?;
    Ok(Reject::new(fields.need("code", record::code)?, fields.need("detail", schema::text)?))
}

fn outcome_map(outcome: &Outcome) -> Map<'_> {
    let map = Map::new();
    match outcome {
        Outcome::Done { source: Confirmation::Confirmed } => map.with("word", "done"),
        Outcome::Done { source: Confirmation::Unconfirmed } => map.with("word", "unconfirmed"),
        Outcome::RolledBack { cause, source } => map
            .with("word", "rolled-back")
            .with("cause", cause_map(cause))
            .with("source", word_of(CONFIRMATIONS, *source)),
        Outcome::Aborted { source } => {
            map.with("word", "aborted").with("source", word_of(CONFIRMATIONS, *source))
        }
        Outcome::Superseded { epoch } => map.with("word", "superseded").with("epoch", *epoch),
    }
}

fn read_outcome(map: &Map<'_>) -> Result<Outcome, Reject> {
    let fields = Fields::closed(map, "outcome", &["word"], &["cause", "epoch", "source"])?;
    let source = || fields.need("source", schema::word(CONFIRMATIONS));
    let word = fields.need("word", schema::text)?;
    Ok(match word.as_str() {
        "done" => Outcome::Done { source: Confirmation::Confirmed },
        "unconfirmed" => Outcome::Done { source: Confirmation::Unconfirmed },
        "rolled-back" => {
            Outcome::RolledBack { cause: fields.need("cause", schema::map(read_cause))?, source: source()? }
        }
        "aborted" => Outcome::Aborted { source: source()? },
        "superseded" => Outcome::Superseded { epoch: fields.need("epoch", schema::epoch)? },
        _ => return Err(Reject::new(Code::SchemaType, "expected the word of an outcome")),
    })
}

fn word_of<T: PartialEq>(words: &'static [(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, held)| *held == value).map_or("", |(word, _)| word)
}
