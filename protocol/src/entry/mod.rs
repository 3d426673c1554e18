//! Session entries: the header that all share, and reading and writing one. `docs/PROTOCOL.md` §Entries.
//!
//! Reading decides what can be decided from the bytes of one entry: size, form, schema. What needs the chain — links,
//! authority, epoch — is for [`crate::verify`].

mod body;

use std::collections::BTreeSet;

use crate::block::{SignatureField, SignedBlob};
use crate::code::{Code, Reject};
use crate::codec::{self, Facts, Map, Value, encode_map, uint as uint_value};
use crate::id::{Cid, EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};
use crate::limits;
use crate::schema::{self, Fields};
use crate::sign::SIGNATURE_BYTES;

pub use body::{
    Body, Call, Class, Genesis, Handoff, Model, ModelResponse, Note, Origin, Outcome, Parent, PayloadNeed,
    ResponseStatus, Seal, ToolCall, Usage, UserMessage,
};
pub(crate) use body::{keys as body_keys, read as read_body, shown_type, write as write_body};

/// One signed entry of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Claimed time; at least that of `prev`.
    pub ts: UnixMillis,
    /// Who signed it.
    pub signer: Principal,
    /// The owner and the capability that a signer who is not the owner acts under.
    pub authority: Option<Authority>,
    /// Where it stands; none for a genesis.
    pub place: Option<Place>,
    /// What it says.
    pub body: Body,
    /// Where its words are.
    pub payload: Option<PayloadRef>,
    /// Extension fields; they never change a verdict.
    pub ext: Option<Map<'static>>,
}

/// Under whose permission an entry was signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The owning account.
    pub space: Principal,
    /// The capability.
    pub capability: Cid,
}

/// Where an entry stands in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The session.
    pub genesis: EntryCid,
    /// The entry before.
    pub prev: EntryCid,
    /// One more than that of `prev`.
    pub seq: Seq,
    /// How many handoffs and owner seals came before, this one included.
    pub epoch: Epoch,
    /// The skip pointer, when it is not `prev`.
    pub skip: Option<EntryCid>,
}

/// Names a payload block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadRef {
    /// The block.
    pub cid: EntryCid,
    /// Its length in bytes, 1…1,048,576.
    pub size: u64,
}

const HEADER_KEYS: &[&str] = &["ts", "sig", "type", "signer"];
const HEADER_OPTIONAL: &[&str] = &["space", "capability", "v", "x"];
const PLACE_KEYS: &[&str] = &["seq", "genesis"];
const PLACE_ALL: &[&str] = &["seq", "prev", "genesis", "epoch", "skip"];

impl Entry {
    /// The owner that the entry names: `space`, else the signer.
    #[must_use]
    pub fn owner(&self) -> Principal {
        self.authority.map_or(self.signer, |authority| authority.space)
    }

    /// The capability it was signed under.
    #[must_use]
    pub fn capability(&self) -> Option<Cid> {
        self.authority.map(|authority| authority.capability)
    }

    /// Its position; 0 for a genesis.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.place.map_or(Seq::ZERO, |place| place.seq)
    }

    /// Its epoch; 0 for a genesis.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.place.map_or(Epoch::ZERO, |place| place.epoch)
    }

    /// The entry before it; none for a genesis.
    #[must_use]
    pub fn prev(&self) -> Option<EntryCid> {
        self.place.map(|place| place.prev)
    }

    /// The session it names, given its own CID (which is the session's, for a genesis).
    #[must_use]
    pub fn session(&self, own: EntryCid) -> SessionId {
        SessionId::of_genesis(self.place.map_or(own, |place| place.genesis))
    }

    /// The entry as a map, with this signature.
    #[must_use]
    pub fn to_map<'a>(&'a self, signature: &'a [u8; SIGNATURE_BYTES]) -> Map<'a> {
        let map = Map::new()
            .with("ts", self.ts)
            .with("sig", &signature[..])
            .with("type", self.body.type_name())
            .with("signer", self.signer)
            .with_some("space", self.authority.map(|authority| authority.space))
            .with_some("capability", self.authority.map(|authority| authority.capability))
            .with_some("x", self.ext.clone())
            .with_some(
                "payload",
                self.payload.map(|payload| {
                    Map::new().with("cid", payload.cid).with("size", uint_value(payload.size))
                }),
            );
        let map = match &self.place {
            None => map,
            Some(place) => map
                .with("seq", place.seq)
                .with("prev", place.prev)
                .with("genesis", place.genesis)
                .with_some("epoch", (place.epoch > Epoch::ZERO).then_some(place.epoch))
                .with_some("skip", place.skip),
        };
        body::write(&self.body, map)
    }

    /// The canonical bytes with this signature.
    #[must_use]
    pub fn to_bytes(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8> {
        encode_map(&self.to_map(signature))
    }

    fn from_map(map: &Map<'_>, size: usize) -> Result<Self, Reject> {
        let type_name = type_of(map)?;
        let kind = map.get("kind").and_then(Value::as_text);
        let Some((required, optional)) = body::keys(&type_name, kind) else {
            return Err(Reject::new(
                Code::Type,
                format!("expected an entry, got {}", shown_type(&type_name)),
            ));
        };
        let is_genesis = type_name == "SessionGenesis";
        if type_name == "SessionHandoff" {
            check_handoff(map, size)?;
        }
        if is_genesis && let Some(key) = PLACE_ALL.iter().find(|key| map.contains(key)) {
            return Err(Reject::new(Code::Genesis, format!("a genesis has no `{key}`")));
        }
        let place_keys = if is_genesis { &[][..] } else { PLACE_KEYS };
        let place_optional = if is_genesis { &[][..] } else { &["prev", "epoch", "skip"][..] };
        let fields = Fields::closed(
            map,
            "entry",
            &[HEADER_KEYS, place_keys, required].concat(),
            &[HEADER_OPTIONAL, place_optional, optional].concat(),
        )?;
        if !is_genesis && !map.contains("prev") {
            return Err(Reject::new(
                Code::PrevMissing,
                "every entry but the genesis names the one before it",
            ));
        }
        check_version_spelling(map)?;
        // In the order of R-BY-6: which of several faults is told is part of the protocol.
        let ts = fields.need("ts", schema::millis)?;
        let signer = fields.need("signer", schema::principal)?;
        let authority = read_authority(map, &fields)?;
        let place = if is_genesis { None } else { Some(read_place(&fields)?) };
        let body = body::read(&type_name, &fields)?;
        if let Body::Genesis(genesis) = &body
            && genesis.holder == Some(signer)
        {
            return Err(Reject::new(Code::CborNoncanon, "`holder` equals `signer`"));
        }
        // Where a payload has to be there, an empty map is a payload without its fields, not one that is spelled out.
        let payload_ref = schema::map(read_payload_ref);
        let payload = if required.contains(&"payload") {
            Some(fields.need("payload", payload_ref)?)
        } else {
            fields.maybe("payload", payload_ref)?
        };
        let ext = fields.maybe("x", schema::ext)?;
        Ok(Entry { ts, signer, authority, place, body, payload, ext })
    }
}

impl SignedBlob for Entry {
    fn read(bytes: &[u8]) -> Result<(Self, SignatureField), Reject> {
        read_typed(bytes, limits::ENTRY_BYTES_MAX, |map, size| {
            let entry = Entry::from_map(map, size)?;
            Ok((entry, Entry::to_bytes as fn(&Entry, &[u8; 64]) -> Vec<u8>))
        })
    }

    fn signer(&self) -> Principal {
        self.signer
    }
}

/// Reads a blob of one of our own closed types: size, codec, links, version, then `read`, then the typed re-encoding.
pub(crate) fn read_typed<T>(
    bytes: &[u8],
    bytes_max: usize,
    read: impl FnOnce(&Map<'_>, usize) -> Result<(T, fn(&T, &[u8; SIGNATURE_BYTES]) -> Vec<u8>), Reject>,
) -> Result<(T, SignatureField), Reject> {
    let map = open_map(bytes, bytes_max, limits::ENTRY_DEPTH_MAX)?;
    let (value, write) = read(&map, bytes.len())?;
    let signature = signature_field(bytes, &map)?;
    if write(&value, &signature.signature) != bytes {
        return Err(Reject::new(Code::CborNoncanon, "writing the blob again gives other bytes"));
    }
    Ok((value, signature))
}

/// Size, codec, number of links and version: what comes before the schema.
pub(crate) fn open_map(bytes: &[u8], bytes_max: usize, depth_max: usize) -> Result<Map<'_>, Reject> {
    if bytes.len() > bytes_max {
        return Err(Reject::new(
            Code::TooBig,
            format!("expected at most {bytes_max} bytes, got {}", bytes.len()),
        ));
    }
    let (value, facts) = codec::decode(bytes, depth_max)?;
    let Value::Map(map) = value else {
        return Err(Reject::new(Code::SchemaType, "expected a map"));
    };
    check_facts(&map, facts)?;
    Ok(map)
}

fn check_facts(map: &Map<'_>, facts: Facts) -> Result<(), Reject> {
    if facts.links > limits::ENTRY_LINKS_MAX {
        return Err(Reject::new(
            Code::TooManyLinks,
            format!("expected at most {} links, got {}", limits::ENTRY_LINKS_MAX, facts.links),
        ));
    }
    // Seed's own types have no versions: there `v` is a key like any other that they do not have.
    let is_versioned = !matches!(map.get("type").and_then(Value::as_text), Some("Capability" | "Ref"));
    if is_versioned && map.get("v").and_then(Value::as_uint).is_some_and(|version| version > 1) {
        return Err(Reject::new(Code::Version, "a version above 1"));
    }
    if facts.non_ascii_key {
        return Err(Reject::new(Code::SchemaKey, "a key that is not ASCII"));
    }
    Ok(())
}

/// The blob's `type`.
pub(crate) fn type_of(map: &Map<'_>) -> Result<String, Reject> {
    match map.get("type") {
        None => Err(Reject::new(Code::SchemaMissing, "a signed blob needs `type`")),
        Some(Value::Text(text)) => Ok(text.clone().into_owned()),
        Some(_) => Err(Reject::new(Code::SchemaType, "expected text in `type`")),
    }
}

/// The signature, found by parsing: the offset is that of the bytes the decoder borrowed.
pub(crate) fn signature_field(bytes: &[u8], map: &Map<'_>) -> Result<SignatureField, Reject> {
    let fields = Fields::open(map, "blob", &["sig"])?;
    let signature = fields.need("sig", schema::fixed::<SIGNATURE_BYTES>)?;
    let Some(Value::Bytes(std::borrow::Cow::Borrowed(held))) = map.get("sig") else {
        return Err(Reject::new(Code::SigLayout, "the signature does not lie in the blob"));
    };
    let offset = held.as_ptr().addr().wrapping_sub(bytes.as_ptr().addr());
    if bytes.get(offset..offset + SIGNATURE_BYTES) != Some(&signature[..]) {
        return Err(Reject::new(Code::SigLayout, "the signature does not lie in the blob"));
    }
    Ok(SignatureField { offset, signature })
}

/// `v: 1` is what an absent `v` means.
pub(crate) fn check_version_spelling(map: &Map<'_>) -> Result<(), Reject> {
    match map.get("v") {
        None => Ok(()),
        Some(Value::Null) => Err(Reject::new(Code::SchemaNull, "`v` is null")),
        Some(value) if value.is_default() => Err(Reject::new(Code::CborNoncanon, "`v` is empty")),
        Some(Value::Int(_)) => Err(Reject::new(Code::CborNoncanon, "version 1 is spelled out")),
        Some(_) => Err(Reject::new(Code::SchemaType, "expected an integer in `v`")),
    }
}

/// A handoff is the account's alone: it names neither another owner nor a capability, and is a control-sized blob.
fn check_handoff(map: &Map<'_>, size: usize) -> Result<(), Reject> {
    if size > limits::CONTROL_BYTES_MAX {
        return Err(Reject::new(Code::TooBig, format!("expected at most 8192 bytes, got {size}")));
    }
    if map.contains("space") || map.contains("capability") {
        return Err(Reject::new(Code::CapRole, "a handoff is signed by the account itself"));
    }
    Ok(())
}

fn read_authority(map: &Map<'_>, fields: &Fields<'_, '_>) -> Result<Option<Authority>, Reject> {
    let space = fields.maybe("space", schema::principal)?;
    let capability = fields.maybe("capability", schema::cap)?;
    match (space, capability) {
        (Some(space), Some(capability)) => {
            if map.get("signer") == map.get("space") {
                return Err(Reject::new(Code::CborNoncanon, "`space` equals `signer`"));
            }
            Ok(Some(Authority { space, capability }))
        }
        (None, None) => Ok(None),
        _ => Err(Reject::new(Code::SchemaMissing, "`space` and `capability` stand together")),
    }
}

fn read_place(fields: &Fields<'_, '_>) -> Result<Place, Reject> {
    let seq = Seq::new(fields.need("seq", schema::uint)?)?;
    let place = Place {
        genesis: fields.need("genesis", schema::entry)?,
        prev: fields.need("prev", schema::entry)?,
        seq,
        epoch: fields.maybe("epoch", schema::epoch)?.unwrap_or(Epoch::ZERO),
        skip: fields.maybe("skip", schema::entry)?,
    };
    if seq == Seq::ZERO {
        return Err(Reject::new(Code::Seq, "only a genesis has seq 0"));
    }
    if place.skip == Some(place.prev) {
        return Err(Reject::new(Code::CborNoncanon, "`skip` equals `prev`"));
    }
    Ok(place)
}

fn read_payload_ref(map: &Map<'_>) -> Result<PayloadRef, Reject> {
    let fields = Fields::closed(map, "payload", &["cid", "size"], &[])?;
    let cid = fields.need("cid", schema::entry)?;
    let size = fields.need("size", schema::uint)?;
    if size == 0 {
        return Err(Reject::new(Code::SchemaLen, "a payload is not empty"));
    }
    if size > limits::PAYLOAD_BYTES_MAX as u64 {
        return Err(Reject::new(
            Code::TooBig,
            format!("expected a payload of at most 1048576 bytes, got {size}"),
        ));
    }
    Ok(PayloadRef { cid, size })
}

/// `response` and `callId` name a call, so an id stands once among the calls of a response.
pub(crate) fn check_call_ids<'i>(ids: impl Iterator<Item = &'i str>) -> Result<(), Reject> {
    let mut seen = BTreeSet::new();
    for id in ids {
        if !seen.insert(id) {
            return Err(Reject::new(Code::SchemaExclusive, "two calls of one response have the same id"));
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
