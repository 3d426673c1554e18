//! The seven entry types: their own fields, without the header. `docs/PROTOCOL.md` §Entries.

use crate::code::{Code, Reject};
use crate::codec::{Map, Value, uint as uint_value};
use crate::id::{AgentIri, Cid, EntryCid, Principal, UnixMillis};
use crate::limits;
use crate::schema::{self, Fields};

/// What an entry says, beside its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The first entry; its CID is the session's name.
    Genesis(Genesis),
    /// Words of a person, a contributor or a trigger.
    UserMessage(UserMessage),
    /// What the model answered, and which tools it asked for.
    ModelResponse(ModelResponse),
    /// A tool call that completed.
    ToolCall(ToolCall),
    /// A fact about the session itself.
    Note(Note),
    /// The owner names the next holder.
    Handoff(Handoff),
    /// The end.
    Seal(Seal),
}

/// Who may read a session. The words are those of the format; `Internal` is what an omitted class means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Anyone.
    Public,
    /// Account, devices, servers, contributors and readers.
    #[default]
    Internal,
    /// The owner's own nodes and the target of a handoff in progress.
    Confidential,
}

impl Class {
    /// The word of the format.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Class::Public => "public",
            Class::Internal => "internal",
            Class::Confidential => "confidential",
        }
    }
}

/// The session and entry that a sub-session came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Genesis of the parent session.
    pub session: EntryCid,
    /// The response that asked.
    pub entry: EntryCid,
}

/// `SessionGenesis`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Genesis {
    /// The agent; its account is the owner.
    pub agent: AgentIri,
    /// 16 random bytes.
    pub nonce: [u8; 16],
    /// The first server, when the signer is not it.
    pub holder: Option<Principal>,
    /// Who may read it.
    pub class: Class,
    /// Where a sub-session came from.
    pub parent: Option<Parent>,
    /// The seal that this session goes on from.
    pub continues: Option<EntryCid>,
}

/// Where a user message came from, when its signer did not write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A schedule or another machine's event.
    Trigger,
    /// A hook of the agent server.
    Hook,
    /// Imported from another tool's transcript.
    Import,
    /// A user's signed action, carried in the payload.
    Relayed,
}

impl Origin {
    /// The word of the format.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Origin::Trigger => "trigger",
            Origin::Hook => "hook",
            Origin::Import => "import",
            Origin::Relayed => "relayed",
        }
    }
}

/// `SessionUserMessage`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserMessage {
    /// Omitted: the signer wrote it.
    pub origin: Option<Origin>,
    /// The entry it answers, when that is not `prev`.
    pub answers: Option<EntryCid>,
    /// sha-256 of the user's signed action; with [`Origin::Relayed`] only.
    pub envelope: Option<[u8; 32]>,
}

/// Which model answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The model provider, such as `anthropic`.
    pub provider: String,
    /// The model, as the provider names it.
    pub id: String,
    /// The provider's API, such as `messages`.
    pub api: Option<String>,
}

/// One tool call that a response asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Unique within the response.
    pub call_id: String,
    /// The tool.
    pub name: String,
}

/// Tokens, as the provider counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Input without what was read from a cache.
    pub input: u64,
    /// Output, reasoning included.
    pub output: u64,
    /// Input read from a cache.
    pub cache_read: u64,
    /// Input written to a cache.
    pub cache_write: u64,
    /// The part of `cache_write` that is kept for an hour.
    pub cache_write_1h: u64,
    /// The part of `output` that is reasoning.
    pub reasoning: u64,
}

/// How a response ended, when it did not end well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseStatus {
    /// Cut off.
    Interrupted,
    /// The provider answered with an error.
    Error,
}

/// `SessionModelResponse`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelResponse {
    /// Which model.
    pub model: Model,
    /// The tool calls it asked for, in order.
    pub calls: Vec<Call>,
    /// Token counts.
    pub usage: Usage,
    /// The provider's own word.
    pub stop_reason: Option<String>,
    /// When it did not end well.
    pub status: Option<ResponseStatus>,
    /// CID of the system prompt, tool schemas and sampling settings.
    pub config: Option<EntryCid>,
    /// Wall time, in milliseconds; 0 is unknown.
    pub duration_ms: u64,
}

/// How a tool call ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It ran and said so.
    #[default]
    Ok,
    /// It ran and failed.
    Error,
    /// It was not allowed to run.
    Denied,
    /// It was stopped.
    Interrupted,
    /// It took too long.
    Timeout,
    /// Nobody knows whether it ran.
    Unknown,
}

impl Outcome {
    /// The word of the format; `Ok` is the omitted one.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Error => "error",
            Outcome::Denied => "denied",
            Outcome::Interrupted => "interrupted",
            Outcome::Timeout => "timeout",
            Outcome::Unknown => "unknown",
        }
    }
}

/// `SessionToolCall`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The tool.
    pub name: String,
    /// With `response`, what names the call.
    pub call_id: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The response that asked; an account or device may run a tool unasked.
    pub response: Option<EntryCid>,
    /// What it published.
    pub produced: Vec<Cid>,
    /// Genesis of the sub-session that it started.
    pub child: Option<EntryCid>,
    /// Wall time, in milliseconds; 0 is unknown.
    pub duration_ms: u64,
}

/// `SessionNote`, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A title; the payload holds it.
    Title,
    /// A summary stands for the span from `from` to `to`, ends included.
    Compaction {
        /// First entry of the span.
        from: EntryCid,
        /// Last entry of the span.
        to: EntryCid,
    },
    /// What follows continues `to` in a render.
    Rewind {
        /// The entry to go on from.
        to: EntryCid,
    },
    /// Something went wrong; the payload holds what.
    Error,
    /// How an import went; the payload holds the report.
    Import,
    /// The payloads of these entries are to be dropped.
    Redaction {
        /// The entries.
        entries: Vec<EntryCid>,
    },
    /// The class from here on.
    Class(Class),
    /// Work has ended; it can be resumed.
    Close {
        /// Why.
        reason: Option<String>,
    },
    /// Work goes on.
    Resume,
    /// All payloads of the session are to be dropped.
    Delete,
}

impl Note {
    /// The word of the format.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Note::Title => "title",
            Note::Compaction { .. } => "compaction",
            Note::Rewind { .. } => "rewind",
            Note::Error => "error",
            Note::Import => "import",
            Note::Redaction { .. } => "redaction",
            Note::Class(_) => "class",
            Note::Close { .. } => "close",
            Note::Resume => "resume",
            Note::Delete => "delete",
        }
    }
}

/// `SessionHandoff`: signed by the account only; opens the next epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handoff {
    /// The next server; none suspends the session.
    pub holder: Option<Principal>,
    /// The capability that the next holder acts under.
    pub grant: Option<Cid>,
    /// Tombstones made with it.
    pub tombstones: Vec<EntryCid>,
    /// Why.
    pub reason: Option<String>,
}

/// `SessionSeal`: numbers derived from the chain before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// Entries before it, which is its seq.
    pub count: u64,
    /// Distinct signers before it, ascending.
    pub participants: Vec<Principal>,
    /// ts of the genesis.
    pub first_ts: UnixMillis,
    /// ts of prev.
    pub last_ts: UnixMillis,
}

/// Whether an entry of a type names a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadNeed {
    /// It must.
    Required,
    /// It may.
    Optional,
    /// It may not.
    None,
}

const ORIGINS: &[(&str, Origin)] = &[
    ("trigger", Origin::Trigger),
    ("hook", Origin::Hook),
    ("import", Origin::Import),
    ("relayed", Origin::Relayed),
];
const GENESIS_CLASSES: &[(&str, Class)] = &[("public", Class::Public), ("confidential", Class::Confidential)];
const CLASSES: &[(&str, Class)] =
    &[("public", Class::Public), ("internal", Class::Internal), ("confidential", Class::Confidential)];
const OUTCOMES: &[(&str, Outcome)] = &[
    ("error", Outcome::Error),
    ("denied", Outcome::Denied),
    ("interrupted", Outcome::Interrupted),
    ("timeout", Outcome::Timeout),
    ("unknown", Outcome::Unknown),
];
const STATUSES: &[(&str, ResponseStatus)] =
    &[("interrupted", ResponseStatus::Interrupted), ("error", ResponseStatus::Error)];

impl Body {
    /// The blob's full type name.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Body::Genesis(_) => "SessionGenesis",
            Body::UserMessage(_) => "SessionUserMessage",
            Body::ModelResponse(_) => "SessionModelResponse",
            Body::ToolCall(_) => "SessionToolCall",
            Body::Note(_) => "SessionNote",
            Body::Handoff(_) => "SessionHandoff",
            Body::Seal(_) => "SessionSeal",
        }
    }

    /// Whether an entry with this body names a payload.
    #[must_use]
    pub fn payload_need(&self) -> PayloadNeed {
        match self {
            Body::Genesis(_) | Body::Note(Note::Rewind { .. }) => PayloadNeed::Optional,
            Body::UserMessage(_) | Body::ModelResponse(_) | Body::ToolCall(_) => PayloadNeed::Required,
            Body::Note(Note::Title | Note::Compaction { .. } | Note::Error | Note::Import) => {
                PayloadNeed::Required
            }
            Body::Note(
                Note::Redaction { .. } | Note::Class(_) | Note::Close { .. } | Note::Resume | Note::Delete,
            )
            | Body::Handoff(_)
            | Body::Seal(_) => PayloadNeed::None,
        }
    }

    /// Links to entries that must be ancestors of the entry: `response`, `answers`, `from`, `to`.
    #[must_use]
    pub fn ancestor_links(&self) -> Vec<EntryCid> {
        match self {
            Body::UserMessage(message) => message.answers.into_iter().collect(),
            Body::ToolCall(call) => call.response.into_iter().collect(),
            Body::Note(Note::Compaction { from, to }) => vec![*from, *to],
            Body::Note(Note::Rewind { to }) => vec![*to],
            Body::Note(Note::Redaction { entries }) => entries.clone(),
            Body::Genesis(_)
            | Body::ModelResponse(_)
            | Body::Note(
                Note::Title
                | Note::Error
                | Note::Import
                | Note::Class(_)
                | Note::Close { .. }
                | Note::Resume
                | Note::Delete,
            )
            | Body::Handoff(_)
            | Body::Seal(_) => Vec::new(),
        }
    }

    /// Whether an account-signed entry with this body opens the next epoch.
    #[must_use]
    pub fn may_open(&self) -> bool {
        matches!(self, Body::Handoff(_) | Body::Seal(_))
    }
}

/// Required and optional keys of a type, beside the header; for a note also by kind.
pub(crate) fn keys(
    type_name: &str,
    kind: Option<&str>,
) -> Option<(&'static [&'static str], &'static [&'static str])> {
    Some(match type_name {
        "SessionGenesis" => (&["agent", "nonce"], &["holder", "class", "parent", "continues", "payload"]),
        "SessionUserMessage" => (&["payload"], &["origin", "answers", "envelope"]),
        "SessionModelResponse" => {
            (&["model", "payload"], &["calls", "usage", "stopReason", "status", "config", "durationMs"])
        }
        "SessionToolCall" => {
            (&["name", "callId", "payload"], &["outcome", "response", "produced", "child", "durationMs"])
        }
        "SessionNote" => match kind {
            Some("title" | "error" | "import") => (&["kind", "payload"], &[]),
            Some("compaction") => (&["kind", "from", "to", "payload"], &[]),
            Some("rewind") => (&["kind", "to"], &["payload"]),
            Some("redaction") => (&["kind", "entries"], &[]),
            Some("class") => (&["kind", "class"], &[]),
            Some("close") => (&["kind"], &["reason"]),
            Some("resume" | "delete") => (&["kind"], &[]),
            // An unknown kind is told when its field is read, whatever stands beside it.
            _ => (&["kind"], &["payload", "from", "to", "entries", "class", "reason"]),
        },
        "SessionHandoff" => (&[], &["holder", "grant", "tombstones", "reason"]),
        "SessionSeal" => (&["count", "participants", "firstTs", "lastTs"], &[]),
        _ => return None,
    })
}

/// Reads the fields of a type whose keys were checked.
pub(crate) fn read(type_name: &str, fields: &Fields<'_, '_>) -> Result<Body, Reject> {
    match type_name {
        "SessionGenesis" => read_genesis(fields).map(Body::Genesis),
        "SessionUserMessage" => read_user_message(fields).map(Body::UserMessage),
        "SessionModelResponse" => read_response(fields).map(Body::ModelResponse),
        "SessionToolCall" => read_tool_call(fields).map(Body::ToolCall),
        "SessionNote" => read_note(fields).map(Body::Note),
        "SessionHandoff" => Ok(Body::Handoff(Handoff {
            holder: fields.maybe("holder", schema::principal)?,
            grant: fields.maybe("grant", schema::cap)?,
            tombstones: fields
                .maybe("tombstones", schema::list(limits::HANDOFF_TOMBSTONES_MAX, schema::entry))?
                .unwrap_or_default(),
            reason: fields.maybe("reason", schema::name)?,
        })),
        "SessionSeal" => Ok(Body::Seal(Seal {
            count: fields.need("count", schema::uint)?,
            participants: fields
                .need("participants", schema::list(limits::SEAL_PARTICIPANTS_MAX, schema::principal))?,
            first_ts: fields.need("firstTs", schema::millis)?,
            last_ts: fields.need("lastTs", schema::millis)?,
        })),
        other => Err(Reject::new(Code::Type, format!("expected an entry, got {}", shown_type(other)))),
    }
}

/// A type name as it may stand in a message.
pub(crate) fn shown_type(name: &str) -> String {
    let plain: String = name.chars().filter(char::is_ascii_graphic).take(40).collect();
    format!("`{plain}`")
}

fn read_genesis(fields: &Fields<'_, '_>) -> Result<Genesis, Reject> {
    let parent = schema::map(|map| {
        let fields = Fields::closed(map, "parent", &["entry", "session"], &[])?;
        Ok(Parent {
            entry: fields.need("entry", schema::entry)?,
            session: fields.need("session", schema::entry)?,
        })
    });
    Ok(Genesis {
        agent: fields.need("agent", schema::iri)?,
        nonce: fields.need("nonce", schema::fixed::<16>)?,
        holder: fields.maybe("holder", schema::principal)?,
        class: fields.maybe("class", schema::word(GENESIS_CLASSES))?.unwrap_or_default(),
        parent: fields.maybe("parent", parent)?,
        continues: fields.maybe("continues", schema::entry)?,
    })
}

fn read_user_message(fields: &Fields<'_, '_>) -> Result<UserMessage, Reject> {
    let message = UserMessage {
        origin: fields.maybe("origin", schema::word(ORIGINS))?,
        answers: fields.maybe("answers", schema::entry)?,
        envelope: fields.maybe("envelope", schema::fixed::<32>)?,
    };
    match (message.origin == Some(Origin::Relayed), message.envelope.is_some()) {
        (true, false) => Err(Reject::new(Code::SchemaMissing, "a relayed message needs `envelope`")),
        (false, true) => {
            Err(Reject::new(Code::SchemaExclusive, "`envelope` stands with origin relayed only"))
        }
        _ => Ok(message),
    }
}

fn read_response(fields: &Fields<'_, '_>) -> Result<ModelResponse, Reject> {
    let model = schema::map(|map| {
        let fields = Fields::closed(map, "model", &["id", "provider"], &["api"])?;
        Ok(Model {
            id: fields.need("id", schema::name)?,
            api: fields.maybe("api", schema::id)?,
            provider: fields.need("provider", schema::id)?,
        })
    });
    let call = schema::map(|map| {
        let fields = Fields::closed(map, "calls[]", &["name", "callId"], &[])?;
        Ok(Call { name: fields.need("name", schema::name)?, call_id: fields.need("callId", schema::id)? })
    });
    let response = ModelResponse {
        model: fields.need("model", model)?,
        calls: fields.maybe("calls", schema::list(limits::CALLS_MAX, call))?.unwrap_or_default(),
        usage: fields.maybe("usage", schema::map(read_usage))?.unwrap_or_default(),
        stop_reason: fields.maybe("stopReason", schema::name)?,
        status: fields.maybe("status", schema::word(STATUSES))?,
        config: fields.maybe("config", schema::entry)?,
        duration_ms: fields.maybe("durationMs", schema::uint)?.unwrap_or(0),
    };
    super::check_call_ids(response.calls.iter().map(|call| call.call_id.as_str()))?;
    Ok(response)
}

const USAGE_KEYS: &[&str] = &["input", "output", "cacheRead", "cacheWrite", "cacheWrite1h", "reasoning"];

fn read_usage(map: &Map<'_>) -> Result<Usage, Reject> {
    let fields = Fields::closed(map, "usage", &[], USAGE_KEYS)?;
    let count = |key: &str| fields.maybe(key, schema::uint).map(|count| count.unwrap_or(0));
    Ok(Usage {
        input: count("input")?,
        output: count("output")?,
        cache_read: count("cacheRead")?,
        reasoning: count("reasoning")?,
        cache_write: count("cacheWrite")?,
        cache_write_1h: count("cacheWrite1h")?,
    })
}

fn read_tool_call(fields: &Fields<'_, '_>) -> Result<ToolCall, Reject> {
    Ok(ToolCall {
        name: fields.need("name", schema::name)?,
        call_id: fields.need("callId", schema::id)?,
        outcome: fields.maybe("outcome", schema::word(OUTCOMES))?.unwrap_or_default(),
        response: fields.maybe("response", schema::entry)?,
        produced: fields
            .maybe("produced", schema::list(limits::PRODUCED_MAX, schema::block))?
            .unwrap_or_default(),
        child: fields.maybe("child", schema::entry)?,
        duration_ms: fields.maybe("durationMs", schema::uint)?.unwrap_or(0),
    })
}

fn read_note(fields: &Fields<'_, '_>) -> Result<Note, Reject> {
    let kind = fields.need("kind", schema::id)?;
    Ok(match kind.as_str() {
        "title" => Note::Title,
        "compaction" => Note::Compaction {
            from: fields.need("from", schema::entry)?,
            to: fields.need("to", schema::entry)?,
        },
        "rewind" => Note::Rewind { to: fields.need("to", schema::entry)? },
        "error" => Note::Error,
        "import" => Note::Import,
        "redaction" => Note::Redaction {
            entries: fields.need("entries", schema::list(limits::REDACTION_ENTRIES_MAX, schema::entry))?,
        },
        "class" => Note::Class(fields.need("class", schema::word(CLASSES))?),
        "close" => Note::Close { reason: fields.maybe("reason", schema::name)? },
        "resume" => Note::Resume,
        "delete" => Note::Delete,
        _ => return Err(Reject::new(Code::SchemaType, "an unknown kind of note")),
    })
}

/// Adds a type's own fields to a map.
pub(crate) fn write<'a>(body: &'a Body, map: Map<'a>) -> Map<'a> {
    let links = |cids: &[EntryCid]| {
        (!cids.is_empty()).then(|| cids.iter().map(|cid| Value::from(*cid)).collect::<Vec<_>>())
    };
    match body {
        Body::Genesis(genesis) => map
            .with("agent", genesis.agent.to_string())
            .with("nonce", &genesis.nonce[..])
            .with_some("holder", genesis.holder)
            .with_some("class", (genesis.class != Class::Internal).then(|| genesis.class.word()))
            .with_some(
                "parent",
                genesis.parent.map(|p| Map::new().with("entry", p.entry).with("session", p.session)),
            )
            .with_some("continues", genesis.continues),
        Body::UserMessage(message) => map
            .with_some("origin", message.origin.map(Origin::word))
            .with_some("answers", message.answers)
            .with_some("envelope", message.envelope.as_ref().map(|hash| &hash[..])),
        Body::ModelResponse(response) => write_response(response, map),
        Body::ToolCall(call) => map
            .with("name", call.name.as_str())
            .with("callId", call.call_id.as_str())
            .with_some("outcome", (call.outcome != Outcome::Ok).then(|| call.outcome.word()))
            .with_some("response", call.response)
            .with_some(
                "produced",
                (!call.produced.is_empty())
                    .then(|| call.produced.iter().map(|cid| Value::Link(*cid)).collect::<Vec<_>>()),
            )
            .with_some("child", call.child)
            .with_some("durationMs", nonzero(call.duration_ms)),
        Body::Note(note) => write_note(note, map),
        Body::Handoff(handoff) => map
            .with_some("holder", handoff.holder)
            .with_some("grant", handoff.grant)
            .with_some("tombstones", links(&handoff.tombstones))
            .with_some("reason", handoff.reason.as_deref()),
        Body::Seal(seal) => map
            .with("count", uint_value(seal.count))
            .with("participants", seal.participants.iter().map(|p| Value::from(*p)).collect::<Vec<_>>())
            .with("firstTs", seal.first_ts)
            .with("lastTs", seal.last_ts),
    }
}

fn nonzero(count: u64) -> Option<Value<'static>> {
    (count != 0).then(|| uint_value(count))
}

fn write_response<'a>(response: &'a ModelResponse, map: Map<'a>) -> Map<'a> {
    let model = Map::new()
        .with("id", response.model.id.as_str())
        .with("provider", response.model.provider.as_str())
        .with_some("api", response.model.api.as_deref());
    let calls: Vec<Value<'a>> = response
        .calls
        .iter()
        .map(|call| {
            Value::Map(Map::new().with("name", call.name.as_str()).with("callId", call.call_id.as_str()))
        })
        .collect();
    let usage = &response.usage;
    let usage = Map::new()
        .with_some("input", nonzero(usage.input))
        .with_some("output", nonzero(usage.output))
        .with_some("cacheRead", nonzero(usage.cache_read))
        .with_some("cacheWrite", nonzero(usage.cache_write))
        .with_some("cacheWrite1h", nonzero(usage.cache_write_1h))
        .with_some("reasoning", nonzero(usage.reasoning));
    let status = response.status.map(|status| match status {
        ResponseStatus::Interrupted => "interrupted",
        ResponseStatus::Error => "error",
    });
    map.with("model", model)
        .with_some("calls", (!calls.is_empty()).then_some(calls))
        .with_some("usage", (!usage.is_empty()).then_some(usage))
        .with_some("stopReason", response.stop_reason.as_deref())
        .with_some("status", status)
        .with_some("config", response.config)
        .with_some("durationMs", nonzero(response.duration_ms))
}

fn write_note<'a>(note: &'a Note, map: Map<'a>) -> Map<'a> {
    let map = map.with("kind", note.kind());
    match note {
        Note::Compaction { from, to } => map.with("from", *from).with("to", *to),
        Note::Rewind { to } => map.with("to", *to),
        Note::Redaction { entries } => {
            map.with("entries", entries.iter().map(|cid| Value::from(*cid)).collect::<Vec<_>>())
        }
        Note::Class(class) => map.with("class", class.word()),
        Note::Close { reason } => map.with_some("reason", reason.as_deref()),
        Note::Title | Note::Error | Note::Import | Note::Resume | Note::Delete => map,
    }
}
