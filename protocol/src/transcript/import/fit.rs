//! Making words fit: an entry holds at most 16 KiB, a payload 1 MiB, a response 128 calls.
//!
//! A response that is too large becomes several, in order; a message likewise. A single text, input or output that is
//! too large for a payload is stored as a file of its own, and a short marker or a media part stands in its place. Nothing
//! is cut.

use super::draft::Blob;
use crate::codec::Map;
use crate::content::{Block, CallPart, Content, MediaPart, ReasoningPart, TextPart};
use crate::limits::{ATTACHMENTS_MAX, CALLS_MAX};
use crate::payload::{Attachment, ToolWords};

/// Words of one payload, in bytes: what is left of 1 MiB is for source, salt and CBOR heads.
const WORDS_BYTES_MAX: usize = 900 * 1024;
/// Largest text, input or output that stays in its payload, in bytes.
const ONE_BYTES_MAX: usize = 512 * 1024;
/// Longest text, input or output that stays, tried one after the other until a tool call fits, in bytes. With
/// [`PARTS_MAX`] parts the last always does.
const SPILL_BYTES: [usize; 4] = [ONE_BYTES_MAX, 64 * 1024, 4 * 1024, 512];
/// Parts of one source record that are read one by one; a record with more is kept as one opaque part.
pub(super) const PARTS_MAX: usize = 512;
/// What the names and ids of a response's calls may take of its entry, in bytes. Model, stop word, usage and header take
/// less than 2 KiB.
const CALLS_BYTES_MAX: usize = 12 * 1024;
/// What a block or content part takes beside its words, in bytes.
const PART_OVERHEAD_BYTES: usize = 512;

/// What a stored text is marked by, in the place of JSON: `{"$stored":{"cid":"…","size":…}}`.
fn marker(blob: &Blob) -> String {
    format!(r#"{{"$stored":{{"cid":"{}","size":{}}}}}"#, blob.cid, blob.bytes.len())
}

/// Stores a text as a file when it is longer than `bytes_max`; leaves the marker then.
fn spill(text: &mut String, bytes_max: usize, media_type: &str, blobs: &mut Vec<Blob>) {
    if text.len() > bytes_max {
        let blob = Blob::new(std::mem::take(text).into_bytes(), media_type);
        *text = marker(&blob);
        blobs.push(blob);
    }
}

/// Stores what is too large of a response's part.
pub(super) fn fit_part(part: Content, blobs: &mut Vec<Blob>) -> Content {
    spill_part(part, ONE_BYTES_MAX, blobs)
}

/// Stores the words of a part when they are longer than `bytes_max`.
fn spill_part(part: Content, bytes_max: usize, blobs: &mut Vec<Blob>) -> Content {
    match part {
        Content::Text(text) if text_bytes(&text) > bytes_max => stored_text(text.text, "text/plain", blobs),
        // Signed reasoning of this length could not be given back to a model anyway: it is kept to be read.
        Content::Reasoning(part) if reasoning_bytes(&part) > bytes_max => {
            stored_text(part.text.unwrap_or_default(), "text/plain", blobs)
        }
        Content::ToolCall(mut call) => {
            spill(&mut call.input, bytes_max, "application/json", blobs);
            Content::ToolCall(call)
        }
        Content::Opaque(mut opaque) => {
            spill(&mut opaque.raw, bytes_max, "application/json", blobs);
            Content::Opaque(opaque)
        }
        part @ (Content::Text(_)
        | Content::Reasoning(_)
        | Content::Media(_)
        | Content::Refusal(_)
        | Content::Unknown(_)) => part,
    }
}

fn stored_text(text: String, media_type: &str, blobs: &mut Vec<Blob>) -> Content {
    let blob = Blob::new(text.into_bytes(), media_type);
    let part = media(&blob);
    blobs.push(blob);
    part
}

/// A media part that shows a blob.
pub(super) fn media(blob: &Blob) -> Content {
    Content::Media(MediaPart {
        cid: blob.cid,
        size: blob.bytes.len() as u64,
        media_type: blob.media_type.clone(),
        name: None,
        extra: Map::new(),
    })
}

/// Splits a response's content so that each part fits an entry and a payload. Order is kept; at least one part.
pub(super) fn split_response(content: Vec<Content>) -> Vec<Vec<Content>> {
    let mut parts = vec![Vec::new()];
    let (mut bytes, mut calls, mut calls_bytes) = (0, 0, 0);
    for part in content {
        let size = cost(&part);
        let (call, call_size) = match &part {
            Content::ToolCall(call) => (1, call_cost(call)),
            Content::Text(_)
            | Content::Reasoning(_)
            | Content::Media(_)
            | Content::Refusal(_)
            | Content::Opaque(_)
            | Content::Unknown(_) => (0, 0),
        };
        let full = bytes + size > WORDS_BYTES_MAX
            || calls + call > CALLS_MAX
            || calls_bytes + call_size > CALLS_BYTES_MAX;
        if full && bytes > 0 {
            parts.push(Vec::new());
            (bytes, calls, calls_bytes) = (0, 0, 0);
        }
        (bytes, calls, calls_bytes) = (bytes + size, calls + call, calls_bytes + call_size);
        if let Some(last) = parts.last_mut() {
            last.push(part);
        }
    }
    parts
}

/// Splits a message so that each part fits a payload. At least one part.
pub(super) fn split_message(items: Vec<(Block, Option<Attachment>)>) -> Vec<(Vec<Block>, Vec<Attachment>)> {
    let mut parts = vec![(Vec::new(), Vec::<Attachment>::new())];
    let mut bytes = 0;
    for (block, attachment) in items {
        let size = PART_OVERHEAD_BYTES + block.text.as_ref().map_or(0, String::len);
        let attached = parts.last().map_or(0, |(_, attachments)| attachments.len());
        if bytes > 0 && (bytes + size > WORDS_BYTES_MAX || attached == ATTACHMENTS_MAX) {
            parts.push((Vec::new(), Vec::new()));
            bytes = 0;
        }
        bytes += size;
        if let Some((blocks, attachments)) = parts.last_mut() {
            blocks.push(block);
            attachments.extend(attachment);
        }
    }
    parts
}

/// Makes a tool call's words fit one payload: long ones are stored, then shorter ones, until the rest fits.
pub(super) fn fit_tool(words: &mut ToolWords, blobs: &mut Vec<Blob>) {
    for bytes_max in SPILL_BYTES {
        let content = std::mem::take(&mut words.content);
        words.content = content.into_iter().map(|part| spill_part(part, bytes_max, blobs)).collect();
        if let Some(output) = &mut words.output {
            spill(output, bytes_max, "application/json", blobs);
        }
        let output_bytes = words.output.as_ref().map_or(0, String::len);
        if output_bytes + words.content.iter().map(cost).sum::<usize>() <= WORDS_BYTES_MAX {
            return;
        }
    }
}

/// A message's text as a block. What is too long is attached as a file, which the block links then.
pub(super) fn fit_block(mut block: Block, blobs: &mut Vec<Blob>) -> (Block, Option<Attachment>) {
    match block.text.take() {
        Some(text) if text.len() > ONE_BYTES_MAX => {
            let blob = Blob::new(text.into_bytes(), "text/plain");
            let attachment = attachment(&blob);
            "File".clone_into(&mut block.kind);
            block.link = Some(format!("ipfs://{}", blob.cid));
            blobs.push(blob);
            (block, Some(attachment))
        }
        text => (Block { text, ..block }, None),
    }
}

/// An attachment that shows a blob.
pub(super) fn attachment(blob: &Blob) -> Attachment {
    Attachment {
        cid: blob.cid,
        size: blob.bytes.len() as u64,
        media_type: blob.media_type.clone(),
        name: None,
    }
}

fn text_bytes(part: &TextPart) -> usize {
    part.text.len() + part.citations.iter().map(|citation| citation.len() + 8).sum::<usize>()
}

fn reasoning_bytes(part: &ReasoningPart) -> usize {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    length(&part.text) + length(&part.signature) + length(&part.redacted) + length(&part.encrypted)
}

fn call_cost(call: &CallPart) -> usize {
    call.name.len() + call.call_id.len() + 24
}

/// What a part takes of a payload, at most.
pub(super) fn cost(part: &Content) -> usize {
    PART_OVERHEAD_BYTES
        + match part {
            Content::Text(part) => text_bytes(part),
            Content::Reasoning(part) => reasoning_bytes(part),
            Content::ToolCall(part) => {
                part.input.len() + call_cost(part) + part.provider_call_id.as_ref().map_or(0, String::len)
            }
            Content::Refusal(part) => part.text.len(),
            Content::Opaque(part) => part.raw.len() + part.kind.len(),
            Content::Media(_) | Content::Unknown(_) => 0,
        }
}

/// The blobs that this content names.
pub(super) fn blobs_of(content: &[Content], blobs: &[Blob]) -> Vec<Blob> {
    let named = |blob: &&Blob| {
        let text = blob.cid.to_string();
        content.iter().any(|part| match part {
            Content::Media(media) => media.cid == blob.cid,
            Content::ToolCall(call) => call.input.len() < 512 && call.input.contains(&text),
            Content::Opaque(opaque) => opaque.raw.len() < 512 && opaque.raw.contains(&text),
            Content::Text(_) | Content::Reasoning(_) | Content::Refusal(_) | Content::Unknown(_) => false,
        })
    };
    blobs.iter().filter(named).cloned().collect()
}
