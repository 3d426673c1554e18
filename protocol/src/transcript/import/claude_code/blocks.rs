//! Content blocks of Anthropic's Messages API, as they stand in a transcript.

use data_encoding::{BASE64, BASE64_NOPAD};

use super::super::clean;
use super::super::draft::Blob;
use super::super::fit::{self, PARTS_MAX};
use super::super::json::{self, Object};
use super::{API, PROVIDER};
use crate::codec::Map;
use crate::content::{Binding, CallPart, Content, Opaque, ReasoningPart, TextPart};
use crate::entry::{Outcome, Usage};

/// Longest id of a provider that is kept beside the one that replaces it, in bytes.
const PROVIDER_ID_BYTES_MAX: usize = 4_096;

/// A content block of a transcript, told apart as far as the importer treats it apart.
pub(super) enum Part {
    /// Anything that stands as it is.
    Plain(Content),
    /// An image or document whose bytes are stored.
    Stored(Blob),
    /// A call, under the provider's id.
    Call(RawCall),
    /// A result of a call.
    Result(RawResult),
}

/// A `tool_use` block.
pub(super) struct RawCall {
    pub(super) provider_id: String,
    pub(super) name: String,
    pub(super) input: String,
    /// The task that a sub-agent is given.
    pub(super) prompt: Option<String>,
}

/// A `tool_result` block.
pub(super) struct RawResult {
    pub(super) provider_id: String,
    pub(super) content: Vec<Content>,
    pub(super) blobs: Vec<Blob>,
    pub(super) outcome: Outcome,
}

/// The parts of a message's `content`: a string or an array. None when it is neither.
pub(super) fn parts(raw: &str, model: &str) -> Option<Vec<Part>> {
    if let Some(text) = json::text(raw) {
        return Some(vec![Part::Plain(Content::text(text))]);
    }
    let blocks = json::array(raw)?;
    if blocks.len() > PARTS_MAX {
        return Some(vec![Part::Plain(opaque("content", raw))]);
    }
    Some(blocks.into_iter().map(|block| part(block.get(), model)).collect())
}

fn part(raw: &str, model: &str) -> Part {
    if let Some(text) = json::text(raw) {
        return Part::Plain(Content::text(text));
    }
    let Some(fields) = json::object(raw) else { return Part::Plain(opaque("value", raw)) };
    let kind = json::text_of(&fields, "type").unwrap_or_default();
    let known = match kind.as_str() {
        "text" => text_part(&fields).map(Part::Plain),
        "thinking" | "redacted_thinking" => Some(Part::Plain(reasoning(&fields, model))),
        "tool_use" => call(&fields).map(Part::Call),
        "tool_result" => Some(Part::Result(result(&fields, model))),
        "image" | "document" => stored(&fields).map(Part::Stored),
        _ => None,
    };
    known.unwrap_or_else(|| Part::Plain(opaque(&kind, raw)))
}

/// A block that is kept as it came.
pub(super) fn opaque(kind: &str, raw: &str) -> Content {
    Content::Opaque(Opaque {
        provider: PROVIDER.to_owned(),
        kind: clean::name(kind, "unnamed"),
        raw: raw.to_owned(),
        extra: Map::new(),
    })
}

fn text_part(fields: &Object<'_>) -> Option<Content> {
    let citations = json::raw_of(fields, "citations").and_then(json::array).unwrap_or_default();
    Some(Content::Text(TextPart {
        text: json::text_of(fields, "text")?,
        citations: citations.into_iter().map(|citation| citation.get().to_owned()).collect(),
        ..TextPart::default()
    }))
}

fn reasoning(fields: &Object<'_>, model: &str) -> Content {
    let filled = |key: &str| json::text_of(fields, key).filter(|text| !text.is_empty());
    let binding = Binding {
        provider: PROVIDER.to_owned(),
        model: clean::name(model, "unknown"),
        api: Some(API.to_owned()),
        account: None,
    };
    Content::Reasoning(ReasoningPart {
        text: filled("thinking"),
        signature: filled("signature"),
        redacted: filled("data"),
        ..ReasoningPart::of(binding)
    })
}

fn call(fields: &Object<'_>) -> Option<RawCall> {
    let input = fields.get("input").map_or("{}", |input| input.get());
    let name = json::text_of(fields, "name")?;
    let is_task = matches!(name.as_str(), "Task" | "Agent");
    let task = if is_task { json::object(input) } else { None };
    Some(RawCall {
        provider_id: json::text_of(fields, "id").unwrap_or_default(),
        prompt: task.and_then(|task| json::text_of(&task, "prompt")),
        name,
        input: input.to_owned(),
    })
}

impl RawCall {
    /// The call under the id that names it in our log.
    pub(super) fn into_content(self, call_id: String) -> Content {
        let replaced = call_id != self.provider_id;
        let kept = clean::cut(&self.provider_id, PROVIDER_ID_BYTES_MAX);
        Content::ToolCall(CallPart {
            provider_call_id: (replaced && !kept.is_empty()).then(|| kept.to_owned()),
            name: clean::name(&self.name, "unnamed"),
            input: self.input,
            call_id,
            ..CallPart::default()
        })
    }
}

fn result(fields: &Object<'_>, model: &str) -> RawResult {
    let mut blobs = Vec::new();
    let parts = json::raw_of(fields, "content").map_or_else(Vec::new, |raw| {
        parts(raw, model).unwrap_or_else(|| vec![Part::Plain(opaque("tool_result", raw))])
    });
    let content = parts
        .into_iter()
        .map(|part| match part {
            Part::Plain(content) => content,
            Part::Stored(blob) => {
                let part = fit::media(&blob);
                blobs.push(blob);
                part
            }
            Part::Call(call) => opaque("tool_use", &call.input),
            // A result within a result is no result: its words are kept.
            Part::Result(result) => {
                let words: Vec<&str> = result.content.iter().filter_map(Content::words).collect();
                Content::text(words.join("\n"))
            }
        })
        .collect();
    let outcome = if json::is_true(fields, "is_error") { Outcome::Error } else { Outcome::Ok };
    RawResult {
        provider_id: json::text_of(fields, "tool_use_id").unwrap_or_default(),
        content,
        blobs,
        outcome,
    }
}

/// The bytes of an image or document that stands inline; none when they do not, or are not base64.
fn stored(fields: &Object<'_>) -> Option<Blob> {
    let source = json::object_of(fields, "source")?;
    if json::text_of(&source, "type")? != "base64" {
        return None;
    }
    let media_type = json::text_of(&source, "media_type").and_then(|text| clean::id(&text));
    let data = json::text_of(&source, "data").filter(|data| !data.is_empty())?;
    let bytes = BASE64.decode(data.as_bytes()).or_else(|_| {
        let dense: Vec<u8> = data.bytes().filter(|b| !b.is_ascii_whitespace() && *b != b'=').collect();
        BASE64_NOPAD.decode(&dense)
    });
    Some(Blob::new(bytes.ok()?, media_type.as_deref().unwrap_or("application/octet-stream")))
}

/// Token counts of one API message.
pub(super) fn usage(raw: &str) -> Option<Usage> {
    let fields = json::object(raw)?;
    let cache = json::object_of(&fields, "cache_creation").unwrap_or_default();
    let details = json::object_of(&fields, "output_tokens_details").unwrap_or_default();
    Some(Usage {
        input: json::uint_of(&fields, "input_tokens"),
        output: json::uint_of(&fields, "output_tokens"),
        cache_read: json::uint_of(&fields, "cache_read_input_tokens"),
        cache_write: json::uint_of(&fields, "cache_creation_input_tokens"),
        cache_write_1h: json::uint_of(&cache, "ephemeral_1h_input_tokens"),
        reasoning: json::uint_of(&details, "thinking_tokens"),
    })
}

/// What `all` counts beyond `counted`.
pub(super) fn usage_beyond(all: Usage, counted: Usage) -> Usage {
    Usage {
        input: all.input.saturating_sub(counted.input),
        output: all.output.saturating_sub(counted.output),
        cache_read: all.cache_read.saturating_sub(counted.cache_read),
        cache_write: all.cache_write.saturating_sub(counted.cache_write),
        cache_write_1h: all.cache_write_1h.saturating_sub(counted.cache_write_1h),
        reasoning: all.reasoning.saturating_sub(counted.reasoning),
    }
}
