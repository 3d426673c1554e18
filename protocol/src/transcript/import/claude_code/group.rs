//! An API message while its lines come in.
//!
//! Claude Code writes one line per content block; the lines of a message share its id and repeat its usage. Results of
//! its calls may stand between them. A group stays open until a line comes that belongs neither to the message nor to
//! its calls, or the segment ends, so one message is one response and its blocks are never torn apart. Results and notes
//! that come meanwhile are held back: a result's entry links the response, so it comes after it.

use std::collections::BTreeSet;

use super::super::clean;
use super::super::draft::Blob;
use super::super::fit;
use super::super::json;
use super::blocks::{self, Part};
use super::calls::Asked;
use super::record::{Meta, Record};
use super::results::ResultLine;
use super::seen::{Key, Turn, key_of};
use crate::content::Content;
use crate::entry::Usage;

/// Lines that one group joins.
const LINES_MAX: usize = 512;
/// Bytes of source lines that a group holds, results that wait included.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Results and notes that wait for a group to close.
const HELD_MAX: usize = 256;

/// Something that waits for the group to close.
#[derive(Debug)]
pub(super) enum Held {
    /// Results of its calls.
    Results(ResultLine),
    /// A title.
    Title(String, Meta),
}

/// An open message.
#[derive(Debug)]
pub(super) struct Group {
    /// Key of the message's id.
    pub(super) key: Key,
    /// The message's id.
    pub(super) id: Option<String>,
    pub(super) turn: Turn,
    pub(super) meta: Meta,
    pub(super) lines: Vec<u64>,
    pub(super) model: String,
    pub(super) content: Vec<Content>,
    pub(super) blobs: Vec<Blob>,
    pub(super) asked: Vec<Asked>,
    pub(super) usage: Option<Usage>,
    pub(super) usage_raw: Option<String>,
    pub(super) stop_reason: Option<String>,
    /// What earlier entries of the message already counted.
    pub(super) counted: Usage,
    pub(super) held: Vec<Held>,
    call_ids: BTreeSet<String>,
    bytes: usize,
}

/// The message of an assistant line.
pub(super) struct Message<'a> {
    pub(super) fields: json::Object<'a>,
    pub(super) id: Option<String>,
    pub(super) key: Key,
    pub(super) model: String,
}

impl<'a> Message<'a> {
    /// Reads what names the message. One without an id is a message of its own.
    pub(super) fn read(fields: json::Object<'a>, record: &Record<'_>) -> Self {
        let id = json::text_of(&fields, "id").filter(|id| !id.is_empty());
        let key = match &id {
            Some(id) => key_of(id),
            None => key_of(&format!("line {} {:?}", record.meta.line, record.meta.record)),
        };
        let model = json::text_of(&fields, "model").unwrap_or_default();
        Message { fields, id, key, model }
    }
}

impl Group {
    /// A group without lines yet.
    pub(super) fn open(message: &Message<'_>, meta: Meta, turn: Turn, counted: Usage) -> Self {
        Group {
            key: message.key,
            id: message.id.clone(),
            turn,
            meta,
            lines: Vec::new(),
            model: clean::name(&message.model, "unknown"),
            content: Vec::new(),
            blobs: Vec::new(),
            asked: Vec::new(),
            usage: None,
            usage_raw: None,
            stop_reason: None,
            counted,
            held: Vec::new(),
            call_ids: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Whether a further line of `bytes` may be joined or held.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.lines.len() < LINES_MAX
            && self.held.len() < HELD_MAX
            && self.bytes.saturating_add(bytes) <= BYTES_MAX
    }

    /// Whether it asked under the provider's id.
    pub(super) fn asks(&self, provider_id: &str) -> bool {
        let key = key_of(provider_id);
        self.asked.iter().any(|asked| asked.provider == key)
    }

    /// Holds something back until the group closes.
    pub(super) fn hold(&mut self, held: Held, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.held.push(held);
    }

    /// Adds a line: blocks in order, the last usage, the last stop reason that is one.
    pub(super) fn join(&mut self, line: u64, message: &Message<'_>, parts: Vec<Part>, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.lines.last() != Some(&line) {
            self.lines.push(line);
        }
        if let Some(usage) = json::raw_of(&message.fields, "usage") {
            self.usage = blocks::usage(usage).or(self.usage);
            self.usage_raw = Some(usage.to_owned());
        }
        if let Some(stop) = json::text_of(&message.fields, "stop_reason").filter(|stop| !stop.is_empty()) {
            self.stop_reason = Some(clean::name(&stop, "unknown"));
        }
        for part in parts {
            self.add(part);
        }
    }

    fn add(&mut self, part: Part) {
        let content = match part {
            Part::Plain(content) => content,
            Part::Stored(blob) => {
                let media = fit::media(&blob);
                self.blobs.push(blob);
                media
            }
            Part::Call(call) => {
                let call_id = self.call_id(&call.provider_id);
                self.asked.push(Asked {
                    provider: key_of(&call.provider_id),
                    call_id: call_id.clone(),
                    name: clean::name(&call.name, "unnamed"),
                    prompt: call.prompt.as_deref().map(key_of),
                });
                call.into_content(call_id)
            }
            // A model's message holds no results of ours; the words of one are kept.
            Part::Result(result) => {
                let words: Vec<&str> = result.content.iter().filter_map(Content::words).collect();
                Content::text(words.join("\n"))
            }
        };
        self.content.push(fit::fit_part(content, &mut self.blobs));
    }

    /// The provider's id, if it can name the call; else `c<n>`, the first of them from the call's place on that is free.
    fn call_id(&mut self, provider_id: &str) -> String {
        let mut call_id = clean::id(provider_id).filter(|id| !self.call_ids.contains(id));
        let mut n = self.asked.len() + 1;
        while call_id.is_none() {
            call_id = Some(format!("c{n}")).filter(|id| !self.call_ids.contains(id));
            n += 1;
        }
        let call_id = call_id.unwrap_or_default();
        self.call_ids.insert(call_id.clone());
        call_id
    }
}
