//! Parameters of routes: what may stand in the query or in a header, and what of it is taken.
//!
//! The description is made of them, and [`described`](crate::api::described) holds every request to them. They must never be looser than
//! what a handler reads: it trusts that a word is one of those that are listed here.

use serde_json::{Value, json};
use throughline_protocol::entry::Class;

use crate::core::shape::State;

/// One parameter of a query.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub takes: Takes,
    /// What it does.
    pub says: &'static str,
}

/// What the text of a parameter may be.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// Yes or no: [`FLAG`].
    Flag,
    /// A whole number of these bounds, both inclusive.
    Number(u64, u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Some of these words, with commas between.
    Words(&'static [&'static str]),
    /// Text that the handler judges.
    Text,
}

/// A header that a route reads. What bodies are sent and wished for (`Content-Type`, `Accept`) is no parameter in OpenAPI: it follows
/// from the bodies that are listed. Nor is what the gate reads of every request, before it is routed.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Its name; upper and lower case are the same.
    pub name: &'static str,
    /// Rules of JSON Schema for its text, as JSON.
    pub(super) schema: fn() -> Value,
    /// What it does.
    pub says: &'static str,
}

/// Yes and no in a query.
pub const FLAG: &[&str] = &["0", "1", "true", "false"];
/// Items of one page at most.
const PAGE_MAX: u64 = 500;
/// Longest time in milliseconds that a request may wait for the next state of a move.
pub const WAIT_MS_MAX: u64 = 60_000;
/// Characters of an idempotency key at most, all of them visible ASCII.
pub const KEY_CHARS_MAX: usize = 200;

/// The header of idempotency keys.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
/// The header that resumes a stream of events.
pub const LAST_EVENT_ID: &str = "Last-Event-ID";
/// The header that names a file.
pub const X_FILENAME: &str = "X-Filename";
/// The header with the hash of a file: RFC 9530.
pub const REPR_DIGEST: &str = "Repr-Digest";

pub(super) const KEPT_KEY: Header = Header {
    name: IDEMPOTENCY_KEY,
    schema: key_schema,
    says: "Makes a repeat safe: for 24 hours the same request (path, query and body) is answered as the first time, with 200 and \
        `replayed`; another one is refused (`E_IDEMPOTENCY`). What failed is not kept. Refused beside `Accept: text/event-stream`",
};
pub(super) const APPEND_KEY: Header = Header {
    name: IDEMPOTENCY_KEY,
    schema: key_schema,
    says: "Makes a repeat safe, for as long as the entries are held: the same body is answered as the first time, with 200 and \
        `replayed`; another one is refused (`E_IDEMPOTENCY`). Entries in JSON need one, unless they are only tried. One that was signed \
        elsewhere is known by itself",
};
pub(super) const RESUME_AFTER: Header = Header {
    name: LAST_EVENT_ID,
    schema: || json!({"type": "string"}),
    says: "The id that was heard last: what came after it is told first. Where the log does not reach back to it, `reset` with all \
        heads is. Without it only what comes from now on is told",
};
pub(super) const FILENAME: Header = Header {
    name: X_FILENAME,
    schema: || json!({"type": "string"}),
    says: "What the file is called; answered as `name`, and not kept",
};
pub(super) const DIGEST: Header = Header {
    name: REPR_DIGEST,
    schema: || json!({"type": "string", "pattern": "^sha-256=:[A-Za-z0-9+/]{43}=:$"}),
    says: "The sha-256 of the file (RFC 9530): other bytes are refused (`E_CID_MISMATCH`)",
};

fn key_schema() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": KEY_CHARS_MAX, "pattern": "^[ -~]+$"})
}

/// Types of entries, each by its full name and by what follows `Session` in it.
pub(super) const ENTRY_TYPES: &[&str] = &[
    "SessionGenesis",
    "SessionUserMessage",
    "SessionModelResponse",
    "SessionToolCall",
    "SessionNote",
    "SessionHandoff",
    "SessionSeal",
    "Genesis",
    "UserMessage",
    "ModelResponse",
    "ToolCall",
    "Note",
    "Handoff",
    "Seal",
];
/// Kinds of events.
pub const EVENT_TYPES: &[&str] = &[
    "entry",
    "cut",
    "verdict",
    "fork",
    "state",
    "forgotten",
    "pin",
    "capability",
    "device",
    "move",
    "job",
    "peer",
    "head",
    "health",
];
/// Classes that a session may begin with.
const CLASSES: &[&str] = &[Class::Internal.word(), Class::Confidential.word()];

pub(super) const AFTER: Parameter = of("after", Takes::Number(0, u64::MAX), "Only entries above this seq");
pub(super) const AGENT: Parameter = of("agent", Takes::Text, "An agent: `hm://<account>/<name>`");
pub(super) const ANY: Parameter = of("any", Takes::Flag, "Not only sessions");
pub(super) const BEFORE: Parameter = of("before", Takes::Number(0, u64::MAX), "Only entries below this seq");
pub(super) const CLASS: Parameter =
    of("class", Takes::Word(CLASSES), "The class of the session; as sessions.default_class if absent");
pub(super) const CURSOR: Parameter = of("cursor", Takes::Text, "`next` of the page before");
pub(super) const DELEGATE: Parameter = of("delegate", Takes::Text, "Only grants of this key");
pub(super) const DRY_RUN: Parameter = of("dryRun", Takes::Flag, "Check everything and store nothing");
pub(super) const EVENT_KINDS: Parameter =
    of("types", Takes::Words(EVENT_TYPES), "Only events of these kinds");
pub(super) const FORMAT: Parameter =
    of("format", Takes::Word(&["auto", "claude-code"]), "What the transcript is");
pub(super) const GRANT_STATE: Parameter =
    of("state", Takes::Word(&["active", "revoked"]), "Only grants in this state");
pub(super) const HEAD: Parameter = of("head", Takes::Text, "The head that was told: the CID of an entry");
pub(super) const LIMIT: Parameter =
    of("limit", Takes::Number(1, PAGE_MAX), "Items of the page at most; 100 if absent");
pub(super) const OWNER: Parameter = of("owner", Takes::Text, "The key of an account");
pub(super) const PARENT: Parameter =
    of("parent", Takes::Text, "Only sessions of sub-agents of this one: its full CID");
pub(super) const PATH: Parameter = of("path", Takes::Text, "Where the transcript lies, for the record");
pub(super) const PAYLOADS_OF_CAR: Parameter =
    of("payloads", Takes::Word(&["none", "all"]), "Of a CAR: whether payloads are in it; all if absent");
pub(super) const PAYLOADS_CHECKED: Parameter =
    of("payloads", Takes::Word(&["none", "present", "all"]), "Which payloads are hashed; all if absent");
pub(super) const REFERENCE: Parameter =
    of("s", Takes::Text, "A session's id, the beginning of one, an `hm://` reference or a ticket");
pub(super) const REVERSE: Parameter = of("reverse", Takes::Flag, "The newest first");
pub(super) const OF_SESSION: Parameter =
    of("session", Takes::Text, "The session that the file is for, a draft too: its full CID");
pub(super) const SESSION: Parameter = of("session", Takes::Text, "Only this session: its full CID");
pub(super) const STATE: Parameter = of("state", Takes::Word(&State::WORDS), "Only sessions in this state");
pub(super) const SUB_AGENTS: Parameter =
    of("subAgents", Takes::Text, "Sub-agents whose files stand before the transcript: `name:bytes,…`");
pub(super) const TOLD_HEAD: Parameter = of("toldHead", Takes::Text, HEAD.says);
pub(super) const TYPES: Parameter = of("types", Takes::Words(ENTRY_TYPES), "Only entries of these types");
pub(super) const WAIT_MS: Parameter = of(
    "waitMs",
    Takes::Number(0, WAIT_MS_MAX),
    "How long to wait for the next state, in milliseconds; 0 if absent",
);

const fn of(name: &'static str, takes: Takes, says: &'static str) -> Parameter {
    Parameter { name, takes, says }
}

impl Takes {
    /// What was expected instead of this text; none when it is taken.
    #[must_use]
    pub fn refuses(self, text: &str) -> Option<String> {
        let one_of = |words: &[&str]| format!("expected one of {}", words.join(", "));
        match self {
            Takes::Flag => (!FLAG.contains(&text)).then(|| one_of(FLAG)),
            Takes::Word(words) => (!words.contains(&text)).then(|| one_of(words)),
            Takes::Words(words) => text
                .split(',')
                .any(|word| !words.contains(&word))
                .then(|| format!("expected some of {}, with commas between", words.join(", "))),
            Takes::Number(from, to) => {
                let is_within = text.parse().is_ok_and(|number: u64| (from..=to).contains(&number));
                (!is_within).then(|| format!("expected a whole number from {from} to {to}"))
            }
            Takes::Text => None,
        }
    }

    fn schema(self) -> Value {
        match self {
            Takes::Flag => json!({"enum": FLAG}),
            Takes::Word(words) => json!({"enum": words}),
            Takes::Words(words) => json!({"type": "array", "minItems": 1, "items": {"enum": words}}),
            Takes::Number(from, u64::MAX) => json!({"type": "integer", "minimum": from}),
            Takes::Number(from, to) => json!({"type": "integer", "minimum": from, "maximum": to}),
            Takes::Text => json!({"type": "string"}),
        }
    }
}

impl Parameter {
    /// The parameter as the document describes it.
    pub(super) fn described(&self) -> Value {
        let mut described = json!({"name": self.name, "in": "query", "description": self.says, "schema": self.takes.schema()});
        if matches!(self.takes, Takes::Words(_)) {
            // A list in one parameter, with commas.
            described["style"] = "form".into();
            described["explode"] = false.into();
        }
        described
    }
}

impl Header {
    /// The header as the document describes it.
    pub(super) fn described(&self) -> Value {
        json!({"name": self.name, "in": "header", "description": self.says, "schema": (self.schema)()})
    }
}
