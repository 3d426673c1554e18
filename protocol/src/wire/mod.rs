//! What peers say to each other: typed requests, answers and announcements. `docs/PROTOCOL.md` §Streams,
//! §Announcements, tickets, files.
//!
//! ```text
//! asker ── length ‖ request ──▶ answerer          one stream, one request
//! asker ◀── length ‖ answer ─── answerer          one or more frames; chain/1 ends with `end` or `error`
//! ```
//!
//! A message decides what its own bytes decide: size, canonical form, fields, bounds. Blobs inside it stay bytes, no
//! larger than their kind may be; they go down the line of [`crate::block`] afterwards. Nothing here trusts a peer,
//! knows who it is, or says whether an answer fits its request: that is for the sync and handoff engines.
//!
//! Unknown keys are ignored, so a later version may add some; an unknown `op` or `k` is refused with `E_SCHEMA_TYPE`.

pub mod announce;
pub mod append;
pub mod chain;
pub mod frame;
pub mod handoff;
mod pack;
pub mod proof;

use std::sync::Arc;

use crate::clock::Apart;
use crate::code::{Code, Reject};
use crate::codec::{Map, Value, encode_map};
use crate::id::UnixMillis;
use crate::limits;
use crate::schema::{self, Fields, is_unsafe_char};

pub use pack::{Packer, pack};

/// Name of the chain sync protocol.
pub const CHAIN_PROTOCOL: &str = "/throughline/chain/1";
/// Name of the append protocol.
pub const APPEND_PROTOCOL: &str = "/throughline/append/1";
/// Name of the handoff protocol.
pub const HANDOFF_PROTOCOL: &str = "/throughline/handoff/1";

/// A message that is one frame body.
pub trait Message: Sized {
    /// The message as a canonical map.
    fn to_map(&self) -> Map<'_>;

    /// Reads the message from a map. Keys that it does not know are ignored.
    ///
    /// # Errors
    /// An `E_SCHEMA_…` code; `E_CBOR_NONCANON` for an optional field that spells out its default; `E_TOO_BIG` for a
    /// blob larger than its kind may be.
    fn from_map(map: &Map<'_>) -> Result<Self, Reject>;

    /// The frame body: the canonical bytes, without the length.
    fn encode_body(&self) -> Vec<u8> {
        encode_map(&self.to_map())
    }

    /// The whole frame: length and body.
    ///
    /// # Errors
    /// `E_FRAME_LEN` when the body is larger than a frame may be.
    fn encode_frame(&self) -> Result<Vec<u8>, Reject> {
        frame::encode(&self.encode_body())
    }

    /// Reads a frame body.
    ///
    /// # Errors
    /// An `E_CBOR_…` or `E_CID_…` code, `E_BUDGET` for more items than a frame may hold, and as [`Message::from_map`].
    fn decode_body(body: &[u8]) -> Result<Self, Reject> {
        Self::from_map(&frame::read_body(body)?)
    }
}

/// What any request may carry beside its question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// A peer proof; see [`proof`]. Without one the asker is a stranger.
    pub auth: Option<Arc<[u8]>>,
    /// Capabilities that the asker holds.
    pub grants: Vec<Arc<[u8]>>,
}

/// Whether a request spells out its grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrantsField {
    /// Left out when there are none.
    Optional,
    /// Always there: the operation is about them.
    Required,
}

impl Credentials {
    fn write<'a>(&'a self, map: Map<'a>, field: GrantsField) -> Map<'a> {
        let present = field == GrantsField::Required || !self.grants.is_empty();
        map.with_some("auth", self.auth.as_deref()).with_some("grants", present.then(|| blobs(&self.grants)))
    }

    fn read(fields: &Fields<'_, '_>, field: GrantsField) -> Result<Self, Reject> {
        let kind = schema::list(limits::GRANTS_MAX, control_blob);
        Ok(Credentials {
            auth: fields.maybe("auth", control_blob)?,
            grants: match field {
                GrantsField::Optional => fields.maybe("grants", kind)?.unwrap_or_default(),
                GrantsField::Required => fields.need("grants", kind)?,
            },
        })
    }
}

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError {
    code: ErrorCode,
    detail: Option<String>,
    clock: Option<UnixMillis>,
}

/// The code of an error answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    /// One of ours.
    Known(Code),
    /// One that a newer peer knows.
    Unknown(String),
}

impl WireError {
    /// An error without detail.
    #[must_use]
    pub fn new(code: Code) -> Self {
        WireError { code: ErrorCode::Known(code), detail: None, clock: None }
    }

    /// The answer to a proof whose only fault is its time: with what this clock shows, by which the asker finds the difference.
    #[must_use]
    pub fn apart(apart: Apart) -> Self {
        let error = WireError::from(Reject::from(proof::Refused::Apart(apart)));
        WireError { clock: Some(apart.ours), ..error }
    }

    /// An error with a detail. What a detail may not hold is left out of it, and it is cut at
    /// [`limits::ERROR_DETAIL_BYTES_MAX`].
    #[must_use]
    pub fn with_detail(code: Code, detail: &str) -> Self {
        let mut kept: String = detail.chars().filter(|c| !is_unsafe_char(*c)).collect();
        let cut = kept.floor_char_boundary(limits::ERROR_DETAIL_BYTES_MAX);
        kept.truncate(cut);
        WireError { code: ErrorCode::Known(code), detail: (!kept.is_empty()).then_some(kept), clock: None }
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> &ErrorCode {
        &self.code
    }

    /// What the peer says about it: without control characters, not to be trusted otherwise.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// What the peer's clock shows, when it says that the two differ too much.
    #[must_use]
    pub fn clock(&self) -> Option<UnixMillis> {
        self.clock
    }

    fn to_map(&self) -> Map<'_> {
        let code = match &self.code {
            ErrorCode::Known(code) => code.name(),
            ErrorCode::Unknown(name) => name,
        };
        let map = Map::new().with("k", "error").with("code", code).with_some("detail", self.detail());
        map.with_some("clock", self.clock)
    }

    fn from_map(map: &Map<'_>) -> Result<Self, Reject> {
        let fields = Fields::open(map, "error", &["code"])?;
        let name = fields.need("code", schema::id)?;
        // Names are compared exactly: another spelling would not be written back as it came.
        let known = Code::ALL.iter().copied().find(|code| code.name() == name);
        Ok(WireError {
            code: known.map_or(ErrorCode::Unknown(name), ErrorCode::Known),
            detail: fields.maybe("detail", error_detail)?,
            clock: fields.maybe("clock", schema::millis)?,
        })
    }
}

impl From<Reject> for WireError {
    fn from(reject: Reject) -> Self {
        WireError::with_detail(reject.code, &reject.detail)
    }
}

/// The word under `key` that tells what a message is.
fn word_of<'m>(map: &'m Map<'_>, key: &str) -> Result<&'m str, Reject> {
    match map.get(key) {
        None => Err(Reject::new(Code::SchemaMissing, format!("a message needs `{key}`"))),
        Some(Value::Text(word)) => Ok(word),
        Some(Value::Null) => Err(Reject::new(Code::SchemaNull, format!("`{key}` is null"))),
        Some(_) => Err(Reject::new(Code::SchemaType, format!("expected text in `{key}`"))),
    }
}

fn unknown_word<T>(key: &str, known: &str) -> Result<T, Reject> {
    Err(Reject::new(Code::SchemaType, format!("expected `{key}` to be one of {known}")))
}

/// A list of blobs, borrowed.
fn blobs(blobs: &[Arc<[u8]>]) -> Vec<Value<'_>> {
    blobs.iter().map(|blob| Value::from(&blob[..])).collect()
}

/// A blob of at most `MAX` bytes.
fn blob<const MAX: usize>(value: &Value<'_>) -> Result<Arc<[u8]>, Reject> {
    let Some(bytes) = value.as_bytes() else {
        return Err(Reject::new(Code::SchemaType, "expected bytes"));
    };
    if bytes.len() > MAX {
        return Err(Reject::new(Code::TooBig, format!("expected at most {MAX} bytes, got {}", bytes.len())));
    }
    Ok(bytes.into())
}

fn entry_blob(value: &Value<'_>) -> Result<Arc<[u8]>, Reject> {
    blob::<{ limits::ENTRY_BYTES_MAX }>(value)
}

fn payload_blob(value: &Value<'_>) -> Result<Arc<[u8]>, Reject> {
    blob::<{ limits::PAYLOAD_BYTES_MAX }>(value)
}

fn control_blob(value: &Value<'_>) -> Result<Arc<[u8]>, Reject> {
    blob::<{ limits::CONTROL_BYTES_MAX }>(value)
}

fn error_detail(value: &Value<'_>) -> Result<String, Reject> {
    let text = schema::text(value)?;
    if text.len() > limits::ERROR_DETAIL_BYTES_MAX {
        let what = format!("expected at most {} bytes, got {}", limits::ERROR_DETAIL_BYTES_MAX, text.len());
        return Err(Reject::new(Code::SchemaLen, what));
    }
    if text.chars().any(is_unsafe_char) {
        return Err(Reject::new(Code::SchemaText, "a control or bidi character"));
    }
    Ok(text)
}

/// An address of a peer: a multiaddr, kept as text. 1…512 bytes of printable ASCII without space.
pub(crate) fn address(value: &Value<'_>) -> Result<String, Reject> {
    let text = schema::text(value)?;
    if !(1..=limits::ADDRESS_BYTES_MAX).contains(&text.len()) {
        return Err(Reject::new(
            Code::SchemaLen,
            format!("expected 1 to {} bytes, got {}", limits::ADDRESS_BYTES_MAX, text.len()),
        ));
    }
    if text.bytes().all(|byte| (0x21..=0x7e).contains(&byte)) {
        Ok(text)
    } else {
        Err(Reject::new(Code::SchemaText, "expected printable ASCII without spaces"))
    }
}

/// At most [`limits::ADDRESSES_MAX`] addresses.
pub(crate) fn addresses(value: &Value<'_>) -> Result<Vec<String>, Reject> {
    schema::list(limits::ADDRESSES_MAX, address)(value)
}

/// A list of texts, borrowed.
pub(crate) fn texts(texts: &[String]) -> Vec<Value<'_>> {
    texts.iter().map(|text| Value::from(text.as_str())).collect()
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
