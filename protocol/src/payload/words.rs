//! The words of each entry type: which fields its payload has, and reading and writing them.

use super::parts::{Attachment, Environment, Failure, ImportReport, Participant, Source, links, mapped};
use crate::code::{Code, Reject};
use crate::codec::{Map, uint as uint_value};
use crate::content::{Block, Content, Opaque, block_list, blocks, content_list, contents};
use crate::entry::{Body, Note, check_call_ids};
use crate::id::EntryCid;
use crate::limits;
use crate::schema::{self, Fields};

/// What a payload says, by its entry's type and, for a note, its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Words {
    /// Of a `SessionGenesis`.
    Genesis(GenesisWords),
    /// Of a `SessionUserMessage`.
    UserMessage(UserWords),
    /// Of a `SessionModelResponse`.
    ModelResponse(ResponseWords),
    /// Of a `SessionToolCall`.
    ToolCall(ToolWords),
    /// Of a note `title`: 1…256 bytes without control or bidi characters.
    Title(String),
    /// Of a note `compaction`.
    Compaction(CompactionWords),
    /// Of a note `rewind`: why.
    Rewind(Option<String>),
    /// Of a note `error`.
    Error(Failure),
    /// Of a note `import`.
    Import(ImportReport),
}

/// Where a session comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenesisWords {
    /// Its first title.
    pub title: Option<String>,
    /// The transcript it was imported from.
    pub source: Option<Source>,
    /// Where it was started.
    pub environment: Option<Environment>,
}

/// What a person, contributor or trigger said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserWords {
    /// The message.
    pub body: Vec<Block>,
    /// Text for the model that is not the user's.
    pub context: Option<String>,
    /// At most 64.
    pub attachments: Vec<Attachment>,
    /// Who said it, in a conversation of several.
    pub participant: Option<Participant>,
    /// The client's own id of the message.
    pub client_message_id: Option<String>,
    /// The user's signed action as it came; its sha-256 stands in the entry.
    pub envelope: Option<Vec<u8>>,
    /// The record it was imported from.
    pub source: Option<Source>,
}

/// What a model answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseWords {
    /// The answer.
    pub content: Vec<Content>,
    /// Why it is not whole.
    pub error: Option<Failure>,
    /// The provider's token counts as they came, normally JSON.
    pub usage_raw: Option<String>,
    /// The record it was imported from.
    pub source: Option<Source>,
}

/// What a tool was given and gave back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolWords {
    /// The arguments, normally JSON; omitted when the response that asked holds them.
    pub input: Option<String>,
    /// The structured result, normally JSON.
    pub output: Option<String>,
    /// What the model saw.
    pub content: Vec<Content>,
    /// What went wrong.
    pub error: Option<String>,
    /// The record it was imported from.
    pub source: Option<Source>,
}

/// What stands for a span of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionWords {
    /// The summary.
    pub summary: Option<String>,
    /// What set it off.
    pub trigger: Option<String>,
    /// Tokens before it.
    pub pre_tokens: Option<u64>,
    /// The provider's own form of it.
    pub opaque: Option<Opaque>,
    /// Entries of the span that a render keeps.
    pub preserved: Vec<EntryCid>,
}

/// The required and optional fields of an entry's payload, beside `salt` and `x`; none when it has no payload.
pub(crate) fn keys(body: &Body) -> Option<(&'static [&'static str], &'static [&'static str])> {
    Some(match body {
        Body::Genesis(_) => (&[], &["title", "source", "environment"]),
        Body::UserMessage(_) => {
            (&["body"], &["context", "attachments", "participant", "clientMessageId", "envelope", "source"])
        }
        Body::ModelResponse(_) => (&["content"], &["error", "usageRaw", "source"]),
        Body::ToolCall(_) => (&[], &["input", "output", "content", "error", "source"]),
        Body::Note(Note::Title) => (&["title"], &[]),
        Body::Note(Note::Compaction { .. }) => {
            (&[], &["summary", "trigger", "preTokens", "opaque", "preserved"])
        }
        Body::Note(Note::Rewind { .. }) => (&[], &["reason"]),
        Body::Note(Note::Error) => (&["message"], &["code", "raw"]),
        Body::Note(Note::Import) => (&["format", "segments"], &["skipped", "repaired", "raw"]),
        Body::Note(
            Note::Redaction { .. } | Note::Class(_) | Note::Close { .. } | Note::Resume | Note::Delete,
        )
        | Body::Handoff(_)
        | Body::Seal(_) => return None,
    })
}

/// Reads the words of an entry with this body. `header` names the fields that stand beside them.
pub(super) fn read(body: &Body, map: &Map<'_>, header: (&[&str], &[&str])) -> Result<Words, Reject> {
    let Some((required, optional)) = keys(body) else {
        return Err(Reject::new(Code::SchemaUnknown, format!("a {} has no payload", body.type_name())));
    };
    let required = [header.0, required].concat();
    let fields = Fields::closed(map, "payload", &required, &[header.1, optional].concat())?;
    match body {
        Body::Genesis(_) => GenesisWords::read(&fields).map(Words::Genesis),
        Body::UserMessage(_) => UserWords::read(&fields).map(Words::UserMessage),
        Body::ModelResponse(_) => ResponseWords::read(&fields).map(Words::ModelResponse),
        Body::ToolCall(_) => ToolWords::read(&fields).map(Words::ToolCall),
        Body::Note(Note::Title) => fields.need("title", schema::name).map(Words::Title),
        Body::Note(Note::Compaction { .. }) => CompactionWords::read(&fields).map(Words::Compaction),
        Body::Note(Note::Rewind { .. }) => fields.maybe("reason", schema::text).map(Words::Rewind),
        Body::Note(Note::Error) => Failure::from_fields(&fields).map(Words::Error),
        Body::Note(Note::Import) => ImportReport::from_fields(&fields).map(Words::Import),
        Body::Note(
            Note::Redaction { .. } | Note::Class(_) | Note::Close { .. } | Note::Resume | Note::Delete,
        )
        | Body::Handoff(_)
        | Body::Seal(_) => Err(Code::Internal.into()),
    }
}

impl Words {
    /// The fields as a map, without `salt` and `x`.
    #[must_use]
    pub fn to_map(&self) -> Map<'_> {
        match self {
            Words::Genesis(words) => words.to_map(),
            Words::UserMessage(words) => words.to_map(),
            Words::ModelResponse(words) => words.to_map(),
            Words::ToolCall(words) => words.to_map(),
            Words::Title(title) => Map::new().with("title", title.as_str()),
            Words::Compaction(words) => words.to_map(),
            Words::Rewind(reason) => Map::new().with_some("reason", reason.as_deref()),
            Words::Error(failure) => failure.to_map(),
            Words::Import(report) => report.add_to(Map::new()),
        }
    }
}

impl GenesisWords {
    fn read(fields: &Fields<'_, '_>) -> Result<Self, Reject> {
        Ok(GenesisWords {
            title: fields.maybe("title", schema::name)?,
            source: fields.maybe("source", schema::map(Source::from_map))?,
            environment: fields.maybe("environment", schema::map(Environment::from_map))?,
        })
    }

    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with_some("title", self.title.as_deref())
            .with_some("source", self.source.as_ref().map(Source::to_map))
            .with_some("environment", self.environment.as_ref().map(Environment::to_map))
    }
}

impl UserWords {
    fn read(fields: &Fields<'_, '_>) -> Result<Self, Reject> {
        let attachment = schema::map(Attachment::from_map);
        Ok(UserWords {
            body: fields.need("body", blocks)?,
            context: fields.maybe("context", schema::text)?,
            attachments: fields
                .maybe("attachments", schema::list(limits::ATTACHMENTS_MAX, attachment))?
                .unwrap_or_default(),
            participant: fields.maybe("participant", schema::map(Participant::from_map))?,
            client_message_id: fields.maybe("clientMessageId", schema::id)?,
            envelope: fields.maybe("envelope", schema::bytes)?,
            source: fields.maybe("source", schema::map(Source::from_map))?,
        })
    }

    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with("body", block_list(&self.body))
            .with_some("context", self.context.as_deref())
            .with_some("attachments", mapped(&self.attachments, Attachment::to_map))
            .with_some("participant", self.participant.as_ref().map(Participant::to_map))
            .with_some("clientMessageId", self.client_message_id.as_deref())
            .with_some("envelope", self.envelope.as_deref())
            .with_some("source", self.source.as_ref().map(Source::to_map))
    }
}

impl ResponseWords {
    fn read(fields: &Fields<'_, '_>) -> Result<Self, Reject> {
        let content = fields.need("content", contents)?;
        check_call_ids(content.iter().filter_map(Content::call_id))?;
        Ok(ResponseWords {
            content,
            error: fields.maybe("error", schema::map(Failure::from_map))?,
            usage_raw: fields.maybe("usageRaw", schema::text)?,
            source: fields.maybe("source", schema::map(Source::from_map))?,
        })
    }

    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with("content", content_list(&self.content))
            .with_some("error", self.error.as_ref().map(Failure::to_map))
            .with_some("usageRaw", self.usage_raw.as_deref())
            .with_some("source", self.source.as_ref().map(Source::to_map))
    }
}

impl ToolWords {
    fn read(fields: &Fields<'_, '_>) -> Result<Self, Reject> {
        Ok(ToolWords {
            input: fields.maybe("input", schema::text)?,
            output: fields.maybe("output", schema::text)?,
            content: fields.maybe("content", contents)?.unwrap_or_default(),
            error: fields.maybe("error", schema::text)?,
            source: fields.maybe("source", schema::map(Source::from_map))?,
        })
    }

    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with_some("input", self.input.as_deref())
            .with_some("output", self.output.as_deref())
            .with_some("content", (!self.content.is_empty()).then(|| content_list(&self.content)))
            .with_some("error", self.error.as_deref())
            .with_some("source", self.source.as_ref().map(Source::to_map))
    }
}

impl CompactionWords {
    fn read(fields: &Fields<'_, '_>) -> Result<Self, Reject> {
        Ok(CompactionWords {
            summary: fields.maybe("summary", schema::text)?,
            trigger: fields.maybe("trigger", schema::id)?,
            pre_tokens: fields.maybe("preTokens", schema::uint)?,
            opaque: fields.maybe("opaque", schema::map(Opaque::from_map))?,
            preserved: fields
                .maybe("preserved", schema::list(usize::MAX, schema::entry))?
                .unwrap_or_default(),
        })
    }

    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with_some("summary", self.summary.as_deref())
            .with_some("trigger", self.trigger.as_deref())
            .with_some("preTokens", self.pre_tokens.map(uint_value))
            .with_some("opaque", self.opaque.as_ref().map(Opaque::to_map))
            .with_some("preserved", links(&self.preserved))
    }
}
