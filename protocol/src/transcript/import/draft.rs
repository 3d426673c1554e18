//! Drafts: entries that are known but for the CIDs of the entries before them.

use std::sync::Arc;

use crate::entry::{ModelResponse, Origin, Outcome, Parent};
use crate::id::{Cid, UnixMillis};
use crate::payload::{ImportSalts, RecordId, Salt, Words};
use crate::unixfs::{FileBuilder, Layout};

/// A session that an import makes: 0 is the source's own, the others are its sub-agents in order of appearance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub(super) u32);

impl SessionKey {
    /// The source's own session.
    pub const MAIN: SessionKey = SessionKey(0);

    /// The session with this number.
    #[must_use]
    pub fn numbered(number: u32) -> Self {
        SessionKey(number)
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Names a draft: its session and its place among the drafts of that session, 0 being the genesis.
///
/// The place is the entry's seq as long as nothing but imports of this source was appended to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DraftId {
    /// The session.
    pub session: SessionKey,
    /// The place, from 0.
    pub index: u64,
}

/// The record that a draft was made from; with the entry's type it gives the salt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordKey {
    /// The record's own id, or one derived from it. A derived one holds a space, which no source id may hold.
    Id(String),
    /// The number of its line, counted from 1; 0 stands for the source as a whole.
    Line(u64),
}

impl RecordKey {
    /// The same record, told apart by a word.
    #[must_use]
    pub(super) fn derived(&self, word: &str) -> Self {
        match self {
            RecordKey::Id(id) => RecordKey::Id(format!("{id} {word}")),
            RecordKey::Line(line) => RecordKey::Id(format!("line {line} {word}")),
        }
    }

    /// The `n`th entry of one type that comes from the record, counted from 0.
    #[must_use]
    pub(super) fn nth(&self, n: usize) -> Self {
        if n == 0 { self.clone() } else { self.derived(&n.to_string()) }
    }

    fn as_record_id(&self) -> RecordId<'_> {
        match self {
            RecordKey::Id(id) => RecordId::Id(id),
            RecordKey::Line(line) => RecordId::Line(*line),
        }
    }
}

/// Bytes that are hashed at once.
const CHUNK_BYTES: usize = 1024 * 1024;

/// Bytes that are stored beside the entries: an image of the source, or words too long for a payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// The file's root under our own layout ([`Layout::THROUGHLINE`]).
    pub cid: Cid,
    /// The bytes.
    pub bytes: Arc<[u8]>,
    /// Their media type.
    pub media_type: String,
}

impl Blob {
    pub(super) fn new(bytes: Vec<u8>, media_type: &str) -> Self {
        Blob { cid: root_of(&bytes), bytes: bytes.into(), media_type: media_type.to_owned() }
    }
}

fn root_of(bytes: &[u8]) -> Cid {
    let mut file = FileBuilder::new(Layout::THROUGHLINE);
    for chunk in bytes.chunks(CHUNK_BYTES) {
        // Only the root is wanted: whoever stores the bytes builds the blocks again.
        drop(file.push(chunk));
    }
    file.finish().1.root
}

/// Where a sub-agent's session came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildOf {
    /// A response of another session of this import.
    Draft(DraftId),
    /// An entry that is there already.
    Known(Parent),
}

/// The session that a tool call started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Child {
    /// A session of this import.
    Session(SessionKey),
    /// A sub-agent with a file of its own, by the source's id of it: `subagents/agent-<id>.jsonl` beside the source.
    Agent(String),
}

/// What an entry will say beside its header, with drafts in place of CIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftBody {
    /// The beginning of a session.
    Genesis {
        /// Where a sub-agent's session came from.
        parent: Option<ChildOf>,
    },
    /// Words of a person ([`Origin::Import`]) or of the tool around the model ([`Origin::Hook`]).
    UserMessage {
        /// Which of the two.
        origin: Origin,
    },
    /// A model's answer. It has no links.
    ModelResponse(ModelResponse),
    /// A tool's result.
    ToolCall {
        /// The tool.
        name: String,
        /// The id under which the response asked.
        call_id: String,
        /// How it ended.
        outcome: Outcome,
        /// The response that asked.
        response: DraftId,
        /// The session that it started.
        child: Option<Child>,
        /// Wall time, in milliseconds; 0 is unknown.
        duration_ms: u64,
    },
    /// A title.
    Title,
    /// Something went wrong at the model provider.
    Error,
    /// A summary that stands for a span.
    Compaction {
        /// First draft of the span.
        from: DraftId,
        /// Last draft of the span.
        to: DraftId,
        /// Drafts of the span that a render keeps, ascending.
        preserved: Vec<DraftId>,
    },
    /// What follows goes on from an earlier draft.
    Rewind {
        /// That draft.
        to: DraftId,
    },
    /// How the import went.
    Import,
}

impl DraftBody {
    /// The full type name of the entry.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            DraftBody::Genesis { .. } => "SessionGenesis",
            DraftBody::UserMessage { .. } => "SessionUserMessage",
            DraftBody::ModelResponse(_) => "SessionModelResponse",
            DraftBody::ToolCall { .. } => "SessionToolCall",
            DraftBody::Title
            | DraftBody::Error
            | DraftBody::Compaction { .. }
            | DraftBody::Rewind { .. }
            | DraftBody::Import => "SessionNote",
        }
    }
}

/// One entry to be signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Its name within the import.
    pub id: DraftId,
    /// The record it was made from.
    pub record: RecordKey,
    /// The source's id of the session; with `record` it gives the salt.
    pub source_session: Arc<str>,
    /// The source's own time, raised to that of the draft before it; that one's where the source gives none.
    pub ts: UnixMillis,
    /// All lines of the source that it holds, ascending. A line may stand in several drafts.
    pub lines: Vec<u64>,
    /// What it is.
    pub body: DraftBody,
    /// Its words; `source.file` and segments name the segment only after [`Draft::assemble`].
    pub words: Words,
    /// Bytes to store beside it. Several drafts may bring the same ones: a blob is stored once, by its CID.
    pub blobs: Vec<Blob>,
}

impl Draft {
    /// The salt of its payload. Equal salts in one session mean the same draft.
    #[must_use]
    pub fn salt(&self, salts: &ImportSalts) -> Salt {
        if let DraftBody::Genesis { .. } = self.body {
            return salts.genesis_salt(super::CLAUDE_CODE, &self.source_session);
        }
        salts.salt(
            super::CLAUDE_CODE,
            &self.source_session,
            self.record.as_record_id(),
            self.body.type_name(),
        )
    }
}
