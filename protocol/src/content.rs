//! What words are made of: content of a model's response, and message blocks. `docs/PROTOCOL.md` §Payloads.
//!
//! Content and blocks are open: a key or a content type that this program does not know is kept as it came, so that a
//! newer writer's words survive an older reader. Tool inputs, citations and raw records are text, normally JSON, and are
//! never parsed here.

use std::borrow::Cow;

use crate::code::Reject;
use crate::codec::{Map, Value, uint as uint_value};
use crate::id::Cid;
use crate::schema::{self, Fields};

/// One block of what a model answered, or of what it saw of a tool's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Words for the reader.
    Text(TextPart),
    /// Reasoning, in the open, summarised, redacted or encrypted.
    Reasoning(ReasoningPart),
    /// A tool call that the model asked for.
    ToolCall(CallPart),
    /// A picture, sound or file, stored as a block of its own.
    Media(MediaPart),
    /// The model declined.
    Refusal(RefusalPart),
    /// Something of one provider's, kept as it came.
    Opaque(Opaque),
    /// A type that this program does not know, kept whole.
    Unknown(Map<'static>),
}

/// `text`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextPart {
    /// The words; may be empty.
    pub text: String,
    /// Citations as the provider gave them, each a JSON text.
    pub citations: Vec<String>,
    /// The provider's word for the phase of the answer.
    pub phase: Option<String>,
    /// An opaque token that the provider wants back.
    pub thought_signature: Option<String>,
    /// Keys that this program does not know.
    pub extra: Map<'static>,
}

/// `reasoning`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningPart {
    /// The reasoning in the open.
    pub text: Option<String>,
    /// Summaries by the provider.
    pub summary: Vec<String>,
    /// The provider's signature over it.
    pub signature: Option<String>,
    /// What the provider redacted, as it gave it.
    pub redacted: Option<String>,
    /// What the provider encrypted, as it gave it.
    pub encrypted: Option<String>,
    /// To whom it may be given back.
    pub binding: Binding,
    /// Keys that this program does not know.
    pub extra: Map<'static>,
}

/// The provider, model and account that reasoning may be given back to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    /// The model provider.
    pub provider: String,
    /// The model.
    pub model: String,
    /// The provider's API.
    pub api: Option<String>,
    /// sha-256 of the provider's account id.
    pub account: Option<[u8; 32]>,
}

/// `toolCall`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallPart {
    /// Unique among the calls of its response.
    pub call_id: String,
    /// The provider's id, when it could not serve as `call_id`.
    pub provider_call_id: Option<String>,
    /// The tool.
    pub name: String,
    /// The arguments as the model wrote them, normally JSON.
    pub input: String,
    /// An opaque token that the provider wants back.
    pub thought_signature: Option<String>,
    /// Keys that this program does not know.
    pub extra: Map<'static>,
}

/// `media`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaPart {
    /// The file's root block.
    pub cid: Cid,
    /// Its length in bytes.
    pub size: u64,
    /// Its media type, such as `image/png`.
    pub media_type: String,
    /// Its file name.
    pub name: Option<String>,
    /// Keys that this program does not know.
    pub extra: Map<'static>,
}

/// `refusal`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalPart {
    /// The words of the refusal.
    pub text: String,
    /// Keys that this program does not know.
    pub extra: Map<'static>,
}

/// `opaque`, also the provider's own form of a compaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opaque {
    /// The model provider whose form it is.
    pub provider: String,
    /// The provider's word for it.
    pub kind: String,
    /// The record as it came, normally JSON.
    pub raw: String,
    /// Keys that this program does not know.
    pub extra: Map<'static>,
}

impl Content {
    /// Words and nothing else.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Content::Text(TextPart { text: text.into(), ..TextPart::default() })
    }

    /// The words a reader sees: of text and refusals.
    #[must_use]
    pub fn words(&self) -> Option<&str> {
        match self {
            Content::Text(part) => Some(&part.text),
            Content::Refusal(part) => Some(&part.text),
            Content::Reasoning(_)
            | Content::ToolCall(_)
            | Content::Media(_)
            | Content::Opaque(_)
            | Content::Unknown(_) => None,
        }
    }

    /// The id of a tool call.
    pub(crate) fn call_id(&self) -> Option<&str> {
        if let Content::ToolCall(part) = self { Some(&part.call_id) } else { None }
    }

    /// Reads one.
    ///
    /// # Errors
    /// An `E_SCHEMA_…` code.
    pub fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "content[]", &["type"])?;
        match fields.need("type", schema::name)?.as_str() {
            "text" => TextPart::from_map(map).map(Content::Text),
            "reasoning" => ReasoningPart::from_map(map).map(Content::Reasoning),
            "toolCall" => CallPart::from_map(map).map(Content::ToolCall),
            "media" => MediaPart::from_map(map).map(Content::Media),
            "refusal" => RefusalPart::from_map(map).map(Content::Refusal),
            "opaque" => Opaque::from_map(map).map(Content::Opaque),
            _ => Ok(Content::Unknown(map.clone().into_owned())),
        }
    }

    /// It as a map.
    #[must_use]
    pub fn to_map(&self) -> Map<'_> {
        match self {
            Content::Text(part) => part.to_map(),
            Content::Reasoning(part) => part.to_map(),
            Content::ToolCall(part) => part.to_map(),
            Content::Media(part) => part.to_map(),
            Content::Refusal(part) => part.extra.clone().with("type", "refusal").with("text", &*part.text),
            Content::Opaque(part) => part.to_map().with("type", "opaque"),
            Content::Unknown(map) => map.clone(),
        }
    }
}

impl TextPart {
    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "text", &["text"])?;
        Ok(TextPart {
            text: fields.need("text", schema::text)?,
            phase: fields.maybe("phase", schema::id)?,
            citations: fields.maybe("citations", texts)?.unwrap_or_default(),
            thought_signature: fields.maybe("thoughtSignature", schema::text)?,
            extra: rest(map, &["type", "text", "citations", "phase", "thoughtSignature"]),
        })
    }

    fn to_map(&self) -> Map<'_> {
        self.extra
            .clone()
            .with("type", "text")
            .with("text", &*self.text)
            .with_some("citations", text_list(&self.citations))
            .with_some("phase", self.phase.as_deref())
            .with_some("thoughtSignature", self.thought_signature.as_deref())
    }
}

impl ReasoningPart {
    /// Nothing but its binding: the fields are filled in by whoever has them.
    #[must_use]
    pub fn of(binding: Binding) -> Self {
        ReasoningPart {
            text: None,
            summary: Vec::new(),
            signature: None,
            redacted: None,
            encrypted: None,
            binding,
            extra: Map::new(),
        }
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        const KEYS: &[&str] = &["type", "text", "summary", "signature", "redacted", "encrypted", "binding"];
        let fields = Fields::open(map, "reasoning", &["binding"])?;
        Ok(ReasoningPart {
            text: fields.maybe("text", schema::text)?,
            binding: fields.need("binding", schema::map(Binding::from_map))?,
            summary: fields.maybe("summary", texts)?.unwrap_or_default(),
            redacted: fields.maybe("redacted", schema::text)?,
            encrypted: fields.maybe("encrypted", schema::text)?,
            signature: fields.maybe("signature", schema::text)?,
            extra: rest(map, KEYS),
        })
    }

    fn to_map(&self) -> Map<'_> {
        self.extra
            .clone()
            .with("type", "reasoning")
            .with_some("text", self.text.as_deref())
            .with_some("summary", text_list(&self.summary))
            .with_some("signature", self.signature.as_deref())
            .with_some("redacted", self.redacted.as_deref())
            .with_some("encrypted", self.encrypted.as_deref())
            .with("binding", self.binding.to_map())
    }
}

impl Binding {
    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::closed(map, "binding", &["model", "provider"], &["api", "account"])?;
        Ok(Binding {
            api: fields.maybe("api", schema::id)?,
            model: fields.need("model", schema::name)?,
            account: fields.maybe("account", schema::fixed::<32>)?,
            provider: fields.need("provider", schema::id)?,
        })
    }

    fn to_map(&self) -> Map<'_> {
        Map::new()
            .with("provider", &*self.provider)
            .with("model", &*self.model)
            .with_some("api", self.api.as_deref())
            .with_some("account", self.account.as_ref().map(|hash| &hash[..]))
    }
}

impl CallPart {
    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        const KEYS: &[&str] = &["type", "callId", "providerCallId", "name", "input", "thoughtSignature"];
        let fields = Fields::open(map, "toolCall", &["callId", "name", "input"])?;
        Ok(CallPart {
            name: fields.need("name", schema::name)?,
            input: fields.need("input", schema::text)?,
            call_id: fields.need("callId", schema::id)?,
            provider_call_id: fields.maybe("providerCallId", schema::text)?,
            thought_signature: fields.maybe("thoughtSignature", schema::text)?,
            extra: rest(map, KEYS),
        })
    }

    fn to_map(&self) -> Map<'_> {
        self.extra
            .clone()
            .with("type", "toolCall")
            .with("callId", &*self.call_id)
            .with_some("providerCallId", self.provider_call_id.as_deref())
            .with("name", &*self.name)
            .with("input", &*self.input)
            .with_some("thoughtSignature", self.thought_signature.as_deref())
    }
}

impl MediaPart {
    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "media", &["cid", "size", "mediaType"])?;
        Ok(MediaPart {
            cid: fields.need("cid", schema::block)?,
            name: fields.maybe("name", schema::name)?,
            size: fields.need("size", schema::uint)?,
            media_type: fields.need("mediaType", schema::id)?,
            extra: rest(map, &["type", "cid", "size", "mediaType", "name"]),
        })
    }

    fn to_map(&self) -> Map<'_> {
        self.extra
            .clone()
            .with("type", "media")
            .with("cid", self.cid)
            .with("size", uint_value(self.size))
            .with("mediaType", &*self.media_type)
            .with_some("name", self.name.as_deref())
    }
}

impl RefusalPart {
    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "refusal", &["text"])?;
        Ok(RefusalPart { text: fields.need("text", schema::text)?, extra: rest(map, &["type", "text"]) })
    }
}

impl Opaque {
    pub(crate) fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "opaque", &["provider", "kind", "raw"])?;
        Ok(Opaque {
            raw: fields.need("raw", schema::text)?,
            kind: fields.need("kind", schema::name)?,
            provider: fields.need("provider", schema::id)?,
            extra: rest(map, &["type", "provider", "kind", "raw"]),
        })
    }

    /// It without a `type`, as it stands in a compaction.
    pub(crate) fn to_map(&self) -> Map<'_> {
        self.extra.clone().with("provider", &*self.provider).with("kind", &*self.kind).with("raw", &*self.raw)
    }
}

/// One block of a message: Seed's comment block, with its attributes beside its own keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Unique within the message.
    pub id: String,
    /// Seed's word, such as `Paragraph`.
    pub kind: String,
    /// The words.
    pub text: Option<String>,
    /// What it links or embeds.
    pub link: Option<String>,
    /// Seed's annotations; offsets are code points.
    pub annotations: Option<Vec<Map<'static>>>,
    /// Blocks below it.
    pub children: Vec<Block>,
    /// All other keys.
    pub attributes: Map<'static>,
}

impl Block {
    /// A paragraph, as Seed's client writes it.
    #[must_use]
    pub fn paragraph(id: impl Into<String>, text: impl Into<String>) -> Self {
        Block {
            id: id.into(),
            kind: "Paragraph".to_owned(),
            text: Some(text.into()),
            link: None,
            annotations: Some(Vec::new()),
            children: Vec::new(),
            attributes: Map::new(),
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// An `E_SCHEMA_…` code.
    pub fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        const KEYS: &[&str] = &["id", "type", "text", "link", "annotations", "children"];
        let fields = Fields::open(map, "block", &["id", "type", "children"])?;
        let annotation = schema::map(|map| Ok(map.clone().into_owned()));
        Ok(Block {
            id: fields.need("id", schema::id)?,
            link: fields.lax("link", schema::text)?,
            text: fields.lax("text", schema::text)?,
            kind: fields.need("type", schema::name)?,
            children: fields.need("children", blocks)?,
            annotations: fields.lax("annotations", schema::list(usize::MAX, annotation))?,
            attributes: rest(map, KEYS),
        })
    }

    /// It as a map.
    #[must_use]
    pub fn to_map(&self) -> Map<'_> {
        let annotations = self
            .annotations
            .as_ref()
            .map(|maps| maps.iter().map(|map| Value::Map(map.clone())).collect::<Vec<_>>());
        self.attributes
            .clone()
            .with("id", &*self.id)
            .with("type", &*self.kind)
            .with_some("text", self.text.as_deref())
            .with_some("link", self.link.as_deref())
            .with_some("annotations", annotations)
            .with("children", block_list(&self.children))
    }

    /// The words of blocks and of those below them, a line each.
    #[must_use]
    pub fn flatten(blocks: &[Block]) -> String {
        let mut lines = Vec::new();
        Block::gather(blocks, &mut lines);
        lines.join("\n")
    }

    fn gather<'b>(blocks: &'b [Block], lines: &mut Vec<&'b str>) {
        for block in blocks {
            lines.extend(block.text.as_deref());
            Block::gather(&block.children, lines);
        }
    }
}

/// An array of blocks.
pub(crate) fn blocks(value: &Value<'_>) -> Result<Vec<Block>, Reject> {
    schema::list(usize::MAX, schema::map(Block::from_map))(value)
}

/// An array of content.
pub(crate) fn contents(value: &Value<'_>) -> Result<Vec<Content>, Reject> {
    schema::list(usize::MAX, schema::map(Content::from_map))(value)
}

pub(crate) fn block_list(blocks: &[Block]) -> Vec<Value<'_>> {
    blocks.iter().map(|block| Value::Map(block.to_map())).collect()
}

pub(crate) fn content_list(content: &[Content]) -> Vec<Value<'_>> {
    content.iter().map(|part| Value::Map(part.to_map())).collect()
}

fn texts(value: &Value<'_>) -> Result<Vec<String>, Reject> {
    schema::list(usize::MAX, schema::text)(value)
}

fn text_list(texts: &[String]) -> Option<Vec<Value<'_>>> {
    (!texts.is_empty()).then(|| texts.iter().map(|text| Value::from(text.as_str())).collect())
}

/// The pairs whose keys are not in `known`.
fn rest(map: &Map<'_>, known: &[&str]) -> Map<'static> {
    map.iter()
        .filter(|(key, _)| !known.contains(key))
        .map(|(key, value)| (Cow::Owned(key.to_owned()), value.clone().into_owned()))
        .collect()
}

#[cfg(test)]
#[path = "content_tests.rs"]
mod tests;
