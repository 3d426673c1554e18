//! Reading the fields of a closed map in the order the protocol gives for its refusals.
//!
//! A type's decoder names its fields once, through [`Fields::closed`] (VERSION, KEY, UNKNOWN, MISSING in this order), and
//! then takes them one by one, those of an inner map in the canonical order of their keys; each getter checks NULL, NONCANON (an optional field that spells out its default), TYPE,
//! LEN and TEXT in this order. The kinds are those of `docs/PROTOCOL.md` §Kinds of fields.

use crate::code::{Code, Reject};
use crate::codec::{Map, Value, encode_map};
use crate::id::{AgentIri, Cid, Codec, EntryCid, Epoch, Principal, UnixMillis};
use crate::limits;

/// The fields of one map, being read.
pub(crate) struct Fields<'m, 'a> {
    map: &'m Map<'a>,
    what: &'static str,
}

impl<'m, 'a> Fields<'m, 'a> {
    /// Takes a map that may have `required` and `optional` keys and no others.
    pub(crate) fn closed(
        map: &'m Map<'a>,
        what: &'static str,
        required: &[&str],
        optional: &[&str],
    ) -> Result<Self, Reject> {
        for (key, _) in map.iter() {
            if !key.is_ascii() {
                return Err(Reject::new(Code::SchemaKey, format!("{what}: a key that is not ASCII")));
            }
        }
        for (key, _) in map.iter() {
            if !required.contains(&key) && !optional.contains(&key) {
                let shown: String = key.chars().take(32).filter(|c| c.is_ascii_graphic()).collect();
                return Err(Reject::new(Code::SchemaUnknown, format!("{what} has no field `{shown}`")));
            }
        }
        for key in required {
            if !map.contains(key) {
                return Err(Reject::new(Code::SchemaMissing, format!("{what} needs `{key}`")));
            }
        }
        Ok(Fields { map, what })
    }

    /// Takes a map whose unknown keys are kept and not looked at.
    pub(crate) fn open(map: &'m Map<'a>, what: &'static str, required: &[&str]) -> Result<Self, Reject> {
        // Not through `closed`: a hostile map of many keys would cost the square of their number.
        if map.iter().any(|(key, _)| !key.is_ascii()) {
            return Err(Reject::new(Code::SchemaKey, format!("{what}: a key that is not ASCII")));
        }
        for key in required {
            if !map.contains(key) {
                return Err(Reject::new(Code::SchemaMissing, format!("{what} needs `{key}`")));
            }
        }
        Ok(Fields { map, what })
    }

    /// A field that must be there.
    pub(crate) fn need<T>(
        &self,
        key: &str,
        kind: impl Fn(&Value<'a>) -> Result<T, Reject>,
    ) -> Result<T, Reject> {
        match self.map.get(key) {
            None => Err(Reject::new(Code::SchemaMissing, format!("{} needs `{key}`", self.what))),
            Some(Value::Null) => Err(self.null(key)),
            Some(value) => kind(value).map_err(|reject| self.place(reject, key)),
        }
    }

    /// A field that is left out when absent, empty, zero or false.
    pub(crate) fn maybe<T>(
        &self,
        key: &str,
        kind: impl Fn(&Value<'a>) -> Result<T, Reject>,
    ) -> Result<Option<T>, Reject> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Null) => Err(self.null(key)),
            Some(value) if value.is_default() => {
                Err(Reject::new(Code::CborNoncanon, format!("{}.{key} spells out its default", self.what)))
            }
            Some(value) => kind(value).map(Some).map_err(|reject| self.place(reject, key)),
        }
    }

    /// A field of Seed's types, which may spell out its default.
    pub(crate) fn lax<T>(
        &self,
        key: &str,
        kind: impl Fn(&Value<'a>) -> Result<T, Reject>,
    ) -> Result<Option<T>, Reject> {
        if self.map.contains(key) { self.need(key, kind).map(Some) } else { Ok(None) }
    }

    fn null(&self, key: &str) -> Reject {
        Reject::new(Code::SchemaNull, format!("{}.{key} is null", self.what))
    }

    fn place(&self, reject: Reject, key: &str) -> Reject {
        reject.within(&format!("{}.{key}", self.what))
    }
}

fn wrong_kind<T>(expected: &str) -> Result<T, Reject> {
    Err(Reject::new(Code::SchemaType, format!("expected {expected}")))
}

fn wrong_length<T>(expected: &str, got: usize) -> Result<T, Reject> {
    Err(Reject::new(Code::SchemaLen, format!("expected {expected}, got {got}")))
}

/// Any text.
pub(crate) fn text(value: &Value<'_>) -> Result<String, Reject> {
    value.as_text().map_or_else(|| wrong_kind("text"), |text| Ok(text.to_owned()))
}

/// Control characters and bidi controls, which no name may hold.
#[must_use]
pub fn is_unsafe_char(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `id`: 1…128 bytes of printable ASCII without space.
pub(crate) fn id(value: &Value<'_>) -> Result<String, Reject> {
    let Some(text) = value.as_text() else { return wrong_kind("text") };
    if !(1..=128).contains(&text.len()) {
        return wrong_length("1 to 128 bytes", text.len());
    }
    if !text.bytes().all(|byte| (0x21..=0x7e).contains(&byte)) {
        return Err(Reject::new(Code::SchemaText, "expected printable ASCII without spaces"));
    }
    Ok(text.to_owned())
}

/// `name`: 1…256 bytes without control or bidi characters.
pub(crate) fn name(value: &Value<'_>) -> Result<String, Reject> {
    let Some(text) = value.as_text() else { return wrong_kind("text") };
    if !(1..=256).contains(&text.len()) {
        return wrong_length("1 to 256 bytes", text.len());
    }
    if text.chars().any(is_unsafe_char) {
        return Err(Reject::new(Code::SchemaText, "a control or bidi character"));
    }
    Ok(text.to_owned())
}

/// `principal`.
pub(crate) fn principal(value: &Value<'_>) -> Result<Principal, Reject> {
    value.as_bytes().map_or_else(|| wrong_kind("bytes"), Principal::from_bytes)
}

/// A byte string of exactly `N` bytes.
pub(crate) fn fixed<const N: usize>(value: &Value<'_>) -> Result<[u8; N], Reject> {
    let Some(bytes) = value.as_bytes() else { return wrong_kind("bytes") };
    <[u8; N]>::try_from(bytes).or_else(|_| wrong_length(&format!("{N} bytes"), bytes.len()))
}

/// Any byte string.
pub(crate) fn bytes(value: &Value<'_>) -> Result<Vec<u8>, Reject> {
    value.as_bytes().map_or_else(|| wrong_kind("bytes"), |bytes| Ok(bytes.to_vec()))
}

/// `uint` up to 2^53 − 1.
pub(crate) fn uint(value: &Value<'_>) -> Result<u64, Reject> {
    let Some(int) = value.as_int() else { return wrong_kind("an integer") };
    u64::try_from(int).map_err(|_| Reject::new(Code::CborIntrange, "expected no negative number"))
}

/// `ms`: Unix milliseconds below 2^48.
pub(crate) fn millis(value: &Value<'_>) -> Result<UnixMillis, Reject> {
    UnixMillis::new(uint(value)?)
}

/// An epoch.
pub(crate) fn epoch(value: &Value<'_>) -> Result<Epoch, Reject> {
    Epoch::new(uint(value)?)
}

/// true; false is omitted.
pub(crate) fn bool(value: &Value<'_>) -> Result<bool, Reject> {
    if let Value::Bool(value) = value { Ok(*value) } else { wrong_kind("true or false") }
}

/// Any link of an allowed form (`block`).
pub(crate) fn block(value: &Value<'_>) -> Result<Cid, Reject> {
    value.as_link().map_or_else(|| wrong_kind("a link"), Ok)
}

/// `entry`: a link to a dag-cbor block under sha2-256.
pub(crate) fn entry(value: &Value<'_>) -> Result<EntryCid, Reject> {
    block(value).and_then(EntryCid::try_from)
}

/// `cap`: a link to a dag-cbor block under either hash.
pub(crate) fn cap(value: &Value<'_>) -> Result<Cid, Reject> {
    let cid = block(value)?;
    if cid.codec() == Codec::DagCbor {
        Ok(cid)
    } else {
        Err(Reject::new(Code::CidCodec, "expected a link to a dag-cbor block"))
    }
}

/// An agent IRI.
pub(crate) fn iri(value: &Value<'_>) -> Result<AgentIri, Reject> {
    value.as_text().map_or_else(|| wrong_kind("text"), |text| text.parse())
}

/// An array of at most `max` items.
pub(crate) fn list<'a, T>(
    max: usize,
    kind: impl Fn(&Value<'a>) -> Result<T, Reject>,
) -> impl Fn(&Value<'a>) -> Result<Vec<T>, Reject> {
    move |value| {
        let Value::List(items) = value else { return wrong_kind("an array") };
        if items.len() > max {
            return wrong_length(&format!("at most {max} items"), items.len());
        }
        items
            .iter()
            .map(|item| {
                if *item == Value::Null {
                    Err(Reject::new(Code::SchemaNull, "null in an array"))
                } else {
                    kind(item)
                }
            })
            .collect()
    }
}

/// A nested map, read by `kind`.
pub(crate) fn map<'a, T>(
    kind: impl Fn(&Map<'a>) -> Result<T, Reject>,
) -> impl Fn(&Value<'a>) -> Result<T, Reject> {
    move |value| value.as_map().map_or_else(|| wrong_kind("a map"), &kind)
}

/// One word of a list.
pub(crate) fn word<'a, T: Copy>(
    words: &'static [(&'static str, T)],
) -> impl Fn(&Value<'a>) -> Result<T, Reject> {
    move |value| {
        let Some(text) = value.as_text() else { return wrong_kind("text") };
        let found = words.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            Reject::new(Code::SchemaType, format!("expected one of {}", known.join(", ")))
        })
    }
}

/// `x`: at most 4 KiB of anything canonical but null.
pub(crate) fn ext(value: &Value<'_>) -> Result<Map<'static>, Reject> {
    let Value::Map(map) = value else { return wrong_kind("a map") };
    let size = encode_map(map).len();
    if size > limits::EXT_BYTES_MAX {
        return Err(Reject::new(Code::TooBig, format!("expected at most 4096 bytes, got {size}")));
    }
    if holds_null(value) {
        return Err(Reject::new(Code::SchemaNull, "null in an extension field"));
    }
    Ok(map.clone().into_owned())
}

fn holds_null(value: &Value<'_>) -> bool {
    match value {
        Value::Null => true,
        Value::List(items) => items.iter().any(holds_null),
        Value::Map(map) => map.iter().any(|(_, value)| holds_null(value)),
        Value::Bool(_) | Value::Int(_) | Value::Bytes(_) | Value::Text(_) | Value::Link(_) => false,
    }
}
