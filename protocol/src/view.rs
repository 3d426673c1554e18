//! Entries as JSON: the shape that the HTTP interface, the command line and the viewer share. `docs/PROTOCOL.md`
//! §Entries, §Payloads.
//!
//! An entry is its own fields and its payload's side by side: CIDs as text, principals as text, bytes as padded base64.
//! [`EntryDraft::from_json`] reads what a client wants appended; the node adds header, salt and signature, and the result goes
//! down the same line as an entry from a peer. It never guesses: numbers are integers, and a field that the type does not have
//! is refused. Text that is JSON by rule, such as a tool's input, stays text.

use data_encoding::BASE64;
use serde_json::Value as Json;

use crate::block::{Signed, sha256};
use crate::code::{Code, Reject};
use crate::codec::{Map, Value};
use crate::entry::{Body, Entry, PayloadNeed, body_keys, read_body, shown_type, write_body};
use crate::id::{Cid, EntryCid, Principal};
use crate::limits;
use crate::payload::{Payload, PayloadDraft, word_keys};
use crate::schema::{self, Fields};

/// An entry as a client states it: what it says, without header and salt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryDraft {
    /// What the entry says.
    pub body: Body,
    /// Its words; none for a type without a payload.
    pub payload: Option<PayloadDraft>,
    /// The entry's extension fields.
    pub ext: Option<Map<'static>>,
}

/// Which fields an entry is stated with, beside `type` and `x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftFields {
    /// It has all of these.
    pub required: Vec<&'static str>,
    /// It may have these.
    pub optional: Vec<&'static str>,
}

/// A signed entry as JSON. Without its payload only its own fields are shown.
#[must_use]
pub fn entry_to_json(entry: &Signed<Entry>, payload: Option<&Payload>) -> Json {
    view(entry.value(), entry.cid(), payload)
}

/// An entry as JSON, under the CID it is known by. As [`entry_to_json`], for a reader that holds the parts.
#[must_use]
pub fn view(entry: &Entry, cid: EntryCid, payload: Option<&Payload>) -> Json {
    let mut out = serde_json::Map::new();
    let own = entry.to_map(&[0; 64]);
    for (key, value) in own.iter().filter(|(key, _)| *key != "sig") {
        // What the payload calls `envelope` is the action itself; the entry has its hash.
        let key = if key == "envelope" { "envelopeHash" } else { key };
        out.insert(key.to_owned(), to_json(value, is_principal(key)));
    }
    if let Some(payload) = payload {
        for (key, value) in payload.words().to_map().iter() {
            out.insert(key.to_owned(), to_json(value, false));
        }
    }
    out.insert("cid".to_owned(), Json::String(cid.to_string()));
    Json::Object(out)
}

/// Reads an entry that a client states. As [`EntryDraft::from_json`].
///
/// # Errors
/// As there.
pub fn entry_from_json(json: &Json) -> Result<EntryDraft, Reject> {
    EntryDraft::from_json(json)
}

impl EntryDraft {
    /// Reads an entry that a client states: `type` in full, the type's own fields and those of its payload, `x`. `envelope` is
    /// the payload's; the entry's hash of it is made here.
    ///
    /// # Errors
    /// `E_CBOR_FLOAT` and `E_CBOR_INTRANGE` for numbers, `E_CBOR_DEPTH` below 64 levels, `E_CID` and `E_SCHEMA_TEXT` for links
    /// and bytes in another form; else what the schema refuses.
    pub fn from_json(json: &Json) -> Result<Self, Reject> {
        let Json::Object(_) = json else {
            return Err(Reject::new(Code::SchemaType, "expected an entry to be an object"));
        };
        let Value::Map(stated) = from_json(json, &ENTRY, 1)? else {
            return Err(Reject::new(Code::SchemaType, "expected an entry to be an object"));
        };
        let type_name = crate::entry::type_of(&stated)?;
        let kind = stated.get("kind").and_then(Value::as_text);
        let Some((required, optional)) = body_keys(&type_name, kind) else {
            let shown = shown_type(&type_name);
            return Err(Reject::new(Code::Type, format!("expected an entry, got {shown}")));
        };
        let (mut own, mut words) = (Map::new(), Map::new());
        let is_own = |key: &str| {
            !matches!(key, "payload" | "envelope") && (required.contains(&key) || optional.contains(&key))
        };
        for (key, value) in stated.iter().filter(|(key, _)| !matches!(*key, "type" | "x")) {
            let side = if is_own(key) { &mut own } else { &mut words };
            side.insert(key.to_owned(), value.clone());
        }
        if let Some(Value::Bytes(envelope)) = words.get("envelope") {
            own.insert("envelope", sha256(envelope).to_vec());
        }
        let needed: Vec<&str> = required.iter().copied().filter(|key| *key != "payload").collect();
        let fields = Fields::closed(&own, "entry", &needed, optional)?;
        let body = read_body(&type_name, &fields)?;
        let payload = if words.is_empty() && body.payload_need() != PayloadNeed::Required {
            None
        } else {
            Some(PayloadDraft::from_fields(&body, &words)?)
        };
        let ext = Fields::open(&stated, "entry", &[])?.maybe("x", schema::ext)?;
        Ok(EntryDraft { body, payload, ext })
    }

    /// The fields that an entry of this type (and a note of this kind) is stated with: those that are checked here, by name.
    #[must_use]
    pub fn fields(&self) -> DraftFields {
        let kind = if let Body::Note(note) = &self.body { Some(note.kind()) } else { None };
        let own = body_keys(self.body.type_name(), kind).unwrap_or_default();
        let words = word_keys(&self.body).unwrap_or_default();
        // The payload stands beside the entry's own fields, and `envelope` is the payload's.
        let stated = |own: &[&'static str], words: &[&'static str]| {
            own.iter().filter(|key| !matches!(**key, "payload" | "envelope")).chain(words).copied().collect()
        };
        DraftFields { required: stated(own.0, words.0), optional: stated(own.1, words.1) }
    }

    /// The draft as a client would state it.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let own = write_body(&self.body, Map::new().with("type", self.body.type_name()));
        let mut out = serde_json::Map::new();
        for (key, value) in own.iter().filter(|(key, _)| *key != "envelope") {
            out.insert(key.to_owned(), to_json(value, is_principal(key)));
        }
        if let Some(payload) = &self.payload {
            for (key, value) in payload.words.to_map().iter() {
                out.insert(key.to_owned(), to_json(value, false));
            }
        }
        if let Some(ext) = &self.ext {
            out.insert("x".to_owned(), to_json(&Value::Map(ext.clone()), false));
        }
        Json::Object(out)
    }
}

/// Fields of an entry that hold a principal, or a list of them, and are shown as its text.
fn is_principal(key: &str) -> bool {
    matches!(key, "signer" | "space" | "holder" | "participants")
}

fn to_json(value: &Value<'_>, principal: bool) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Int(int) => Json::from(*int),
        Value::Text(text) => Json::String(text.clone().into_owned()),
        Value::Link(cid) => Json::String(cid.to_string()),
        Value::Bytes(bytes) => match Principal::from_bytes(bytes) {
            Ok(known) if principal => Json::String(known.to_string()),
            _ => Json::String(BASE64.encode(bytes)),
        },
        Value::List(items) => items.iter().map(|item| to_json(item, principal)).collect(),
        Value::Map(map) => {
            Json::Object(map.iter().map(|(key, value)| (key.to_owned(), to_json(value, false))).collect())
        }
    }
}

/// What the text at some place of the JSON stands for.
enum Shape {
    /// Itself. What lies below it is itself too.
    Plain,
    /// A CID.
    Link,
    /// Bytes in base64.
    Bytes,
    /// A principal.
    Principal,
    /// A list of such things.
    List(&'static Shape),
    /// An object with these fields; all others are plain.
    Object(&'static [(&'static str, &'static Shape)]),
}

const LINKS: Shape = Shape::List(&Shape::Link);
const SOURCE: Shape = Shape::Object(&[("file", &Shape::Link)]);
const CONTENT: Shape =
    Shape::Object(&[("cid", &Shape::Link), ("binding", &Shape::Object(&[("account", &Shape::Bytes)]))]);
const WITH_CID: Shape = Shape::Object(&[("cid", &Shape::Link)]);

/// Every field of every entry and payload that is no text where JSON has text. No two types use one name for two things.
const ENTRY: Shape = Shape::Object(&[
    ("nonce", &Shape::Bytes),
    ("envelope", &Shape::Bytes),
    ("holder", &Shape::Principal),
    ("participants", &Shape::List(&Shape::Principal)),
    ("answers", &Shape::Link),
    ("response", &Shape::Link),
    ("child", &Shape::Link),
    ("config", &Shape::Link),
    ("continues", &Shape::Link),
    ("grant", &Shape::Link),
    ("from", &Shape::Link),
    ("to", &Shape::Link),
    ("parent", &Shape::Object(&[("entry", &Shape::Link), ("session", &Shape::Link)])),
    ("produced", &LINKS),
    ("entries", &LINKS),
    ("tombstones", &LINKS),
    ("preserved", &LINKS),
    ("source", &SOURCE),
    ("content", &Shape::List(&CONTENT)),
    ("attachments", &Shape::List(&WITH_CID)),
    ("segments", &Shape::List(&WITH_CID)),
]);

fn from_json(json: &Json, shape: &Shape, depth: usize) -> Result<Value<'static>, Reject> {
    if depth > limits::PAYLOAD_DEPTH_MAX {
        let what = format!("nested deeper than {} levels", limits::PAYLOAD_DEPTH_MAX);
        return Err(Reject::new(Code::CborDepth, what));
    }
    match json {
        Json::Null => Ok(Value::Null),
        Json::Bool(value) => Ok(Value::Bool(*value)),
        Json::Number(number) => integer(number),
        Json::String(text) => from_text(text, shape),
        Json::Array(items) => {
            let below = if let Shape::List(below) = shape { below } else { &Shape::Plain };
            items
                .iter()
                .map(|item| from_json(item, below, depth + 1))
                .collect::<Result<_, _>>()
                .map(Value::List)
        }
        Json::Object(object) => {
            let known = if let Shape::Object(known) = shape { *known } else { &[] };
            // In the order of the format, so that each key goes to the end of the map.
            let mut keys: Vec<&String> = object.keys().collect();
            keys.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
            let mut map = Map::new();
            for key in keys {
                let below =
                    known.iter().find(|(name, _)| name == key).map_or(&Shape::Plain, |(_, shape)| shape);
                map.insert(key.clone(), from_json(&object[key], below, depth + 1)?);
            }
            Ok(Value::Map(map))
        }
    }
}

fn integer(number: &serde_json::Number) -> Result<Value<'static>, Reject> {
    let range = || Reject::new(Code::CborIntrange, "an integer outside ±(2^53 − 1)");
    match number.as_i64() {
        Some(int) if int.unsigned_abs() <= limits::INTEGER_MAX => Ok(Value::Int(int)),
        Some(_) => Err(range()),
        None if number.is_u64() => Err(range()),
        None => Err(Reject::new(Code::CborFloat, "numbers are integers; write others as text")),
    }
}

fn from_text(text: &str, shape: &Shape) -> Result<Value<'static>, Reject> {
    match shape {
        Shape::Link => text.parse::<Cid>().map(Value::Link),
        Shape::Principal => text.parse::<Principal>().map(Value::from),
        Shape::Bytes => BASE64
            .decode(text.as_bytes())
            .map(Value::from)
            .map_err(|_| Reject::new(Code::SchemaText, "expected padded base64")),
        Shape::Plain | Shape::List(_) | Shape::Object(_) => Ok(Value::from(text.to_owned())),
    }
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
