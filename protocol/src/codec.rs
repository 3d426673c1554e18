//! Strict DAG-CBOR: one content has one encoding, and nothing else is read. `docs/PROTOCOL.md` §Bytes.
//!
//! [`decode`] accepts exactly the bytes that [`encode`] writes for the value it returns; a property test and every
//! vector hold it to that. It borrows from its input, allocates nothing from a declared length and is bounded in
//! depth, so hostile input costs no more than its own size. What depends on the blob's type — ASCII keys, null, the
//! number of links — is reported as [`Facts`] and judged by the schema, in the order the protocol gives.
//!
//! A general decoder would not do: `serde_ipld_dagcbor` accepts a trailing byte inside a link, CIDv0, identity and
//! truncated hashes and floats, and reports one error for many faults. Tests run it beside this one.

use std::borrow::Cow;

use crate::code::{Code, Reject};
use crate::id::Cid;
use crate::limits::{self, INTEGER_MAX};

/// A DAG-CBOR value of our profile: no floats, no tag but a link, integers within ±(2^53 − 1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// null; only Seed's bodies may hold it.
    Null,
    /// true or false.
    Bool(bool),
    /// An integer within ±(2^53 − 1).
    Int(i64),
    /// A byte string.
    Bytes(Cow<'a, [u8]>),
    /// A text string.
    Text(Cow<'a, str>),
    /// An array.
    List(Vec<Value<'a>>),
    /// A map with text keys.
    Map(Map<'a>),
    /// A link: tag 42.
    Link(Cid),
}

/// A map in canonical order: shorter keys first, then bytewise; no key twice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map<'a>(Vec<(Cow<'a, str>, Value<'a>)>);

impl<'a> Map<'a> {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Map(Vec::new())
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value<'a>> {
        self.0.binary_search_by(|(held, _)| canonical_order(held, key)).ok().map(|at| &self.0[at].1)
    }

    /// Sets `key`, keeping the canonical order; returns what stood there.
    pub fn insert(&mut self, key: impl Into<Cow<'a, str>>, value: impl Into<Value<'a>>) -> Option<Value<'a>> {
        let (key, value) = (key.into(), value.into());
        match self.0.binary_search_by(|(held, _)| canonical_order(held, &key)) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// The same map with `key` set.
    #[must_use]
    pub fn with(mut self, key: impl Into<Cow<'a, str>>, value: impl Into<Value<'a>>) -> Self {
        self.insert(key, value);
        self
    }

    /// The same map with `key` set if there is a value.
    #[must_use]
    pub fn with_some(self, key: &'static str, value: Option<impl Into<Value<'a>>>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &str) -> Option<Value<'a>> {
        let at = self.0.binary_search_by(|(held, _)| canonical_order(held, key)).ok()?;
        Some(self.0.remove(at).1)
    }

    /// Whether `key` is there.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Keys and values in canonical order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value<'a>)> {
        self.0.iter().map(|(key, value)| (key.as_ref(), value))
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A copy that borrows nothing.
    #[must_use]
    pub fn into_owned(self) -> Map<'static> {
        Map(self
            .0
            .into_iter()
            .map(|(key, value)| (Cow::Owned(key.into_owned()), value.into_owned()))
            .collect())
    }
}

impl<'a> FromIterator<(Cow<'a, str>, Value<'a>)> for Map<'a> {
    fn from_iter<I: IntoIterator<Item = (Cow<'a, str>, Value<'a>)>>(pairs: I) -> Self {
        let mut map = Map::new();
        for (key, value) in pairs {
            map.insert(key, value);
        }
        map
    }
}

impl<'a> Value<'a> {
    /// The text, if it is text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }

    /// The bytes, if it is a byte string.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        if let Value::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// The integer, if it is one.
    #[must_use]
    pub fn as_int(&self) -> Option<i64> {
        if let Value::Int(int) = self { Some(*int) } else { None }
    }

    /// The integer, if it is one and not negative.
    #[must_use]
    pub fn as_uint(&self) -> Option<u64> {
        self.as_int().and_then(|int| u64::try_from(int).ok())
    }

    /// The map, if it is one.
    #[must_use]
    pub fn as_map(&self) -> Option<&Map<'a>> {
        if let Value::Map(map) = self { Some(map) } else { None }
    }

    /// The items, if it is an array.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Value<'a>]> {
        if let Value::List(items) = self { Some(items) } else { None }
    }

    /// The link, if it is one.
    #[must_use]
    pub fn as_link(&self) -> Option<Cid> {
        if let Value::Link(cid) = self { Some(*cid) } else { None }
    }

    /// Whether it is what an omitted field stands for: absent, empty, zero or false.
    #[must_use]
    pub fn is_default(&self) -> bool {
        match self {
            Value::Null | Value::Link(_) => false,
            Value::Bool(value) => !value,
            Value::Int(int) => *int == 0,
            Value::Bytes(bytes) => bytes.is_empty(),
            Value::Text(text) => text.is_empty(),
            Value::List(items) => items.is_empty(),
            Value::Map(map) => map.is_empty(),
        }
    }

    /// A copy that borrows nothing.
    #[must_use]
    pub fn into_owned(self) -> Value<'static> {
        match self {
            Value::Null => Value::Null,
            Value::Bool(value) => Value::Bool(value),
            Value::Int(int) => Value::Int(int),
            Value::Bytes(bytes) => Value::Bytes(Cow::Owned(bytes.into_owned())),
            Value::Text(text) => Value::Text(Cow::Owned(text.into_owned())),
            Value::List(items) => Value::List(items.into_iter().map(Value::into_owned).collect()),
            Value::Map(map) => Value::Map(map.into_owned()),
            Value::Link(cid) => Value::Link(cid),
        }
    }
}

macro_rules! into_value {
    ($($from:ty => |$value:ident| $made:expr;)*) => {
        $(impl<'a> From<$from> for Value<'a> {
            fn from($value: $from) -> Self { $made }
        })*
    };
}

into_value! {
    bool => |value| Value::Bool(value);
    i64 => |value| Value::Int(value);
    Cid => |value| Value::Link(value);
    crate::id::EntryCid => |value| Value::Link(value.cid());
    crate::id::SessionId => |value| Value::Link(value.genesis().cid());
    crate::id::Principal => |value| Value::Bytes(Cow::Owned(value.to_bytes().to_vec()));
    crate::id::Seq => |value| uint(value.get());
    crate::id::Epoch => |value| uint(value.get());
    crate::id::UnixMillis => |value| uint(value.get());
    Map<'a> => |value| Value::Map(value);
    Vec<Value<'a>> => |value| Value::List(value);
    &'a str => |value| Value::Text(Cow::Borrowed(value));
    String => |value| Value::Text(Cow::Owned(value));
    &'a [u8] => |value| Value::Bytes(Cow::Borrowed(value));
    Vec<u8> => |value| Value::Bytes(Cow::Owned(value));
}

/// An unsigned integer as a value. Larger ones than 2^53 − 1 saturate there: no such value is ever written.
#[must_use]
pub fn uint(value: u64) -> Value<'static> {
    Value::Int(i64::try_from(value.min(INTEGER_MAX)).unwrap_or(i64::MAX))
}

/// What a decoded item holds that its schema has to judge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Number of links anywhere in it.
    pub links: usize,
    /// Whether a key somewhere is not ASCII.
    pub non_ascii_key: bool,
    /// Whether it holds null somewhere.
    pub null: bool,
}

/// Reads one item that fills `bytes` exactly and is nested at most `depth_max` levels (the item itself is level 1).
///
/// # Errors
/// One of the `E_CBOR…` and `E_CID…` codes. Within a head the order is EOF, SYNTAX, INDEF, LEN, NONCANON.
pub fn decode(bytes: &[u8], depth_max: usize) -> Result<(Value<'_>, Facts), Reject> {
    let mut reader = Reader { rest: bytes, total: bytes.len(), depth_max, facts: Facts::default() };
    let value = reader.item(1)?;
    if !reader.rest.is_empty() {
        return Err(
            reader.reject(Code::CborTrailing, &format!("{} bytes follow the item", reader.rest.len()))
        );
    }
    Ok((value, reader.facts))
}

/// Refuses bytes of more than `heads_max` CBOR heads with `code`, before any of them becomes a value: a value costs many times the
/// byte that may encode it. A map's keys, a tag and what it stands over count as one each. Walks without recursion and builds nothing;
/// what is not CBOR is left to [`decode`] to name.
pub(crate) fn expect_heads(bytes: &[u8], heads_max: usize, code: Code) -> Result<(), Reject> {
    if bytes.len() <= heads_max {
        return Ok(());
    }
    let mut rest = bytes;
    let mut heads = 0_usize;
    while let Some((&first, after)) = rest.split_first() {
        heads += 1;
        if heads > heads_max {
            return Err(Reject::new(code, format!("expected at most {heads_max} items, got more")));
        }
        let width = match first & 0x1f {
            0..=23 => 0,
            24 => 1,
            25 => 2,
            26 => 4,
            27 => 8,
            _ => return Ok(()),
        };
        let Some((argument, after)) = after.split_at_checked(width) else { return Ok(()) };
        let argument = match width {
            0 => u64::from(first & 0x1f),
            _ => argument.iter().fold(0, |value, byte| (value << 8) | u64::from(*byte)),
        };
        let is_string = matches!(first >> 5, 2 | 3);
        let skipped = if is_string { usize::try_from(argument).unwrap_or(usize::MAX) } else { 0 };
        let Some(after) = after.get(skipped..) else { return Ok(()) };
        rest = after;
    }
    Ok(())
}

/// [`decode`] for payloads, config blocks and blobs of Seed: 64 levels, and a bound on how many items there are.
///
/// # Errors
/// `E_TOO_BIG` for more than [`limits::PAYLOAD_HEADS_MAX`] heads; else as [`decode`].
pub(crate) fn decode_payload(bytes: &[u8]) -> Result<(Value<'_>, Facts), Reject> {
    expect_heads(bytes, limits::PAYLOAD_HEADS_MAX, Code::TooBig)?;
    decode(bytes, limits::PAYLOAD_DEPTH_MAX)
}

/// The `type` of a blob, if it is a map with one.
///
/// # Errors
/// `E_TOO_BIG` for more than [`limits::PAYLOAD_HEADS_MAX`] heads; else as [`decode`], at 16 levels.
pub(crate) fn type_word(bytes: &[u8]) -> Result<Option<String>, Reject> {
    expect_heads(bytes, limits::PAYLOAD_HEADS_MAX, Code::TooBig)?;
    let (value, _) = decode(bytes, limits::ENTRY_DEPTH_MAX)?;
    Ok(value.as_map().and_then(|map| map.get("type")).and_then(Value::as_text).map(str::to_owned))
}

/// The canonical bytes of a value.
#[must_use]
pub fn encode(value: &Value<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write_value(&mut out, value);
    out
}

/// The canonical bytes of a map.
#[must_use]
pub fn encode_map(map: &Map<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    write_map(&mut out, map);
    out
}

/// The order of map keys: shorter first, then bytewise.
fn canonical_order(a: &str, b: &str) -> std::cmp::Ordering {
    a.len().cmp(&b.len()).then_with(|| a.as_bytes().cmp(b.as_bytes()))
}

struct Reader<'a> {
    rest: &'a [u8],
    total: usize,
    depth_max: usize,
    facts: Facts,
}

/// The first bytes of an item: major type and argument.
struct Head {
    major: u8,
    argument: u64,
    /// The additional information, 0…27.
    info: u8,
}

impl<'a> Reader<'a> {
    fn reject(&self, code: Code, what: &str) -> Reject {
        Reject::new(code, format!("at byte {}: {what}", self.total - self.rest.len()))
    }

    fn item(&mut self, depth: usize) -> Result<Value<'a>, Reject> {
        let head = self.head()?;
        if depth > self.depth_max {
            return Err(
                self.reject(Code::CborDepth, &format!("nested deeper than {} levels", self.depth_max))
            );
        }
        match head.major {
            0 => self.integer(head.argument, false),
            1 => self.integer(head.argument, true),
            2 => Ok(Value::Bytes(Cow::Borrowed(self.take(head.argument)))),
            3 => self.text(head.argument).map(|text| Value::Text(Cow::Borrowed(text))),
            4 => self.list(head.argument, depth),
            5 => self.map(head.argument, depth),
            6 => self.link(head.argument, depth),
            _ => self.simple(&head),
        }
    }

    /// Reads a head; checks, in this order, that it is there, is CBOR, is definite, fits and is the shortest.
    fn head(&mut self) -> Result<Head, Reject> {
        let eof = |reader: &Self| reader.reject(Code::CborEof, "the bytes end where an item was expected");
        let (&first, after) = self.rest.split_first().ok_or_else(|| eof(self))?;
        let (major, info) = (first >> 5, first & 0x1f);
        let width = match info {
            0..=23 => 0,
            24 => 1,
            25 => 2,
            26 => 4,
            27 => 8,
            31 if (2..=5).contains(&major) => {
                return Err(self.reject(Code::CborIndef, "an item of indefinite length"));
            }
            _ => return Err(self.reject(Code::CborSyntax, &format!("reserved initial byte {first:#04x}"))),
        };
        if after.len() < width {
            return Err(eof(self));
        }
        let (argument_bytes, after) = after.split_at(width);
        let argument =
            argument_bytes.iter().fold(if width == 0 { u64::from(info) } else { 0 }, |value, byte| {
                (value << 8) | u64::from(*byte)
            });
        if (2..=5).contains(&major) && argument > after.len() as u64 {
            let what = format!("declares {argument} but {} bytes remain", after.len());
            return Err(self.reject(Code::CborLen, &what));
        }
        let shortest = match width {
            0 => true,
            1 => argument >= 24,
            2 => argument > 0xff,
            4 => argument > 0xffff,
            _ => argument > 0xffff_ffff,
        };
        if !shortest && major != 7 {
            return Err(self.reject(Code::CborNoncanon, "a head longer than it needs to be"));
        }
        self.rest = after;
        Ok(Head { major, argument, info })
    }

    fn take(&mut self, length: u64) -> &'a [u8] {
        // The head was checked against the bytes that remain, so the length fits.
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        taken
    }

    fn integer(&self, argument: u64, negative: bool) -> Result<Value<'a>, Reject> {
        let magnitude = if negative { argument.checked_add(1) } else { Some(argument) };
        match magnitude.filter(|magnitude| *magnitude <= INTEGER_MAX).and_then(|m| i64::try_from(m).ok()) {
            Some(magnitude) => Ok(Value::Int(if negative { -magnitude } else { magnitude })),
            None => Err(self.reject(Code::CborIntrange, "an integer outside ±(2^53 − 1)")),
        }
    }

    fn text(&mut self, length: u64) -> Result<&'a str, Reject> {
        let bytes = self.take(length);
        std::str::from_utf8(bytes).map_err(|_| self.reject(Code::CborUtf8, "text is not valid UTF-8"))
    }

    fn list(&mut self, count: u64, depth: usize) -> Result<Value<'a>, Reject> {
        // Grown as items arrive: a declared count allocates nothing.
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.item(depth + 1)?);
        }
        Ok(Value::List(items))
    }

    fn map(&mut self, count: u64, depth: usize) -> Result<Value<'a>, Reject> {
        let mut pairs: Vec<(Cow<'a, str>, Value<'a>)> = Vec::new();
        for _ in 0..count {
            let head = self.head()?;
            if head.major != 3 {
                return Err(self.reject(Code::CborKeytype, "a map key that is not text"));
            }
            let key = self.text(head.argument)?;
            if let Some((last, _)) = pairs.last() {
                match canonical_order(last, key) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => {
                        return Err(self.reject(Code::CborDupkey, "a map key stands twice"));
                    }
                    std::cmp::Ordering::Greater => {
                        return Err(self.reject(Code::CborKeyorder, "map keys are out of order"));
                    }
                }
            }
            self.facts.non_ascii_key |= !key.is_ascii();
            let value = self.item(depth + 1)?;
            pairs.push((Cow::Borrowed(key), value));
        }
        Ok(Value::Map(Map(pairs)))
    }

    fn link(&mut self, tag: u64, depth: usize) -> Result<Value<'a>, Reject> {
        if tag != 42 {
            return Err(self.reject(Code::CborTag, &format!("expected tag 42, got tag {tag}")));
        }
        // Only a byte string is a link. Anything else is read first, one level down, so that what is wrong inside it
        // is told, and nested tags end at the depth limit.
        if self.rest.first().is_none_or(|first| first >> 5 != 2) {
            self.item(depth + 1)?;
            return Err(self.reject(Code::CborTag, "tag 42 over something that is no byte string"));
        }
        let head = self.head()?;
        let bytes = self.take(head.argument);
        let Some(cid) = bytes.strip_prefix(&[0]) else {
            return Err(self.reject(Code::CidPrefix, "a link without its 0x00 prefix"));
        };
        let cid = Cid::from_bytes(cid).map_err(|reject| self.reject(reject.code, &reject.detail))?;
        self.facts.links += 1;
        Ok(Value::Link(cid))
    }

    fn simple(&mut self, head: &Head) -> Result<Value<'a>, Reject> {
        match head.info {
            20 => Ok(Value::Bool(false)),
            21 => Ok(Value::Bool(true)),
            22 => {
                self.facts.null = true;
                Ok(Value::Null)
            }
            25..=27 => Err(self.reject(Code::CborFloat, "a floating-point number")),
            _ => Err(self.reject(Code::CborSimple, &format!("simple value {}", head.argument))),
        }
    }
}

fn write_head(out: &mut Vec<u8>, major: u8, argument: u64) {
    let major = major << 5;
    let bytes = argument.to_be_bytes();
    match argument {
        0..=23 => out.push(major | bytes[7]),
        24..=0xff => out.extend([major | 24, bytes[7]]),
        0x100..=0xffff => {
            out.push(major | 25);
            out.extend(&bytes[6..]);
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 26);
            out.extend(&bytes[4..]);
        }
        _ => {
            out.push(major | 27);
            out.extend(bytes);
        }
    }
}

fn write_value(out: &mut Vec<u8>, value: &Value<'_>) {
    match value {
        Value::Null => out.push(0xf6),
        Value::Bool(false) => out.push(0xf4),
        Value::Bool(true) => out.push(0xf5),
        Value::Int(int) if *int >= 0 => write_head(out, 0, int.unsigned_abs()),
        Value::Int(int) => write_head(out, 1, int.unsigned_abs() - 1),
        Value::Bytes(bytes) => {
            write_head(out, 2, bytes.len() as u64);
            out.extend(bytes.as_ref());
        }
        Value::Text(text) => {
            write_head(out, 3, text.len() as u64);
            out.extend(text.as_bytes());
        }
        Value::List(items) => {
            write_head(out, 4, items.len() as u64);
            for item in items {
                write_value(out, item);
            }
        }
        Value::Map(map) => write_map(out, map),
        Value::Link(cid) => {
            let bytes = cid.to_bytes();
            out.extend([0xd8, 42]);
            write_head(out, 2, bytes.len() as u64 + 1);
            out.push(0);
            out.extend(bytes);
        }
    }
}

fn write_map(out: &mut Vec<u8>, map: &Map<'_>) {
    write_head(out, 5, map.len() as u64);
    for (key, value) in map.iter() {
        write_head(out, 3, key.len() as u64);
        out.extend(key.as_bytes());
        write_value(out, value);
    }
}

#[cfg(test)]
#[path = "codec_tests.rs"]
mod tests;
