//! One record of a Claude Code transcript: the fields that all kinds share.

use super::super::draft::RecordKey;
use super::super::json::{self, Object};
use super::super::{clean, time};
use super::FORMAT;
use super::seen::{Key, key_of, key_of_parts};
use crate::id::{Cid, Codec, UnixMillis};
use crate::payload::Source;

/// Where a record stands in the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Line, counted from 1.
    pub(super) line: u64,
    /// Which of several records of the line, from 0.
    pub(super) nth: usize,
}

/// Whom a record names as the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    /// Nobody: null or no such field.
    None,
    /// A record, which may or may not be in the file.
    Record(Key),
}

/// What is kept of a record once its line has passed.
#[derive(Clone, Debug)]
pub(super) struct Meta {
    pub(super) line: u64,
    /// What names the record for its salts.
    pub(super) record: RecordKey,
    pub(super) ts: Option<UnixMillis>,
    id: Option<String>,
    ts_text: Option<String>,
    parent: Option<String>,
}

impl Meta {
    /// Where the words came from, for a payload; the file is put in when the draft is assembled.
    pub(super) fn source(&self, lines: &[u64], group: Option<&str>) -> Source {
        Source {
            format: FORMAT.to_owned(),
            file: Cid::sha256(Codec::Raw, b""),
            line: self.line,
            lines: if lines.len() > 1 { lines.to_vec() } else { Vec::new() },
            id: self.id.clone(),
            ts: self.ts_text.clone(),
            group: group.and_then(clean::id),
            parent: self.parent.clone(),
        }
    }
}

/// A record while its line is at hand.
pub(super) struct Record<'a> {
    pub(super) kind: String,
    pub(super) fields: Object<'a>,
    pub(super) uuid: Option<Key>,
    pub(super) parent: Parent,
    pub(super) meta: Meta,
    /// Tells records with one uuid apart: equal for a copy of a record that only names another session.
    pub(super) print: u64,
}

impl<'a> Record<'a> {
    /// Reads the shared fields; none when the value is not an object with a `type`.
    pub(super) fn read(raw: &'a str, place: Place) -> Option<Self> {
        let fields = json::object(raw)?;
        let kind = json::text_of(&fields, "type")?;
        let uuid = json::text_of(&fields, "uuid").filter(|uuid| !uuid.is_empty());
        let parent = json::text_of(&fields, "parentUuid").filter(|parent| !parent.is_empty());
        let ts_text = json::text_of(&fields, "timestamp");
        let body = fields.get("message").map_or(raw, |message| message.get());
        let id = uuid.as_deref().and_then(clean::id);
        let meta = Meta {
            line: place.line,
            record: match &id {
                Some(id) => RecordKey::Id(id.clone()),
                None => line_key(place),
            },
            ts: ts_text.as_deref().and_then(time::millis),
            id,
            ts_text: ts_text.as_deref().and_then(clean::id),
            parent: parent.as_deref().and_then(clean::id),
        };
        Some(Record {
            uuid: uuid.as_deref().map(key_of),
            parent: parent.as_deref().map_or(Parent::None, |parent| Parent::Record(key_of(parent))),
            print: print_of(&kind, body),
            kind,
            fields,
            meta,
        })
    }

    /// Names the record by its line: its uuid already names another one.
    pub(super) fn name_by_line(&mut self, place: Place) {
        self.meta.record = line_key(place);
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        json::text_of(&self.fields, key)
    }

    pub(super) fn is(&self, key: &str) -> bool {
        json::is_true(&self.fields, key)
    }

    /// What the report calls it.
    pub(super) fn label(&self) -> String {
        match self.text("subtype") {
            Some(subtype) => format!("{}/{subtype}", self.kind),
            None => self.kind.clone(),
        }
    }
}

fn line_key(place: Place) -> RecordKey {
    let line = RecordKey::Line(place.line);
    if place.nth == 0 { line } else { line.derived(&format!("record {}", place.nth)) }
}

fn print_of(kind: &str, body: &str) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = key_of_parts(&[kind, " ", body]);
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}
