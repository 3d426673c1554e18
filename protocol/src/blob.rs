//! Any signed blob, told apart by its `type`. `docs/PROTOCOL.md` §Bytes.
//!
//! [`Blob`] is for bytes whose type is not known beforehand: a file, a CAR, an answer. [`GenericSigned`] is what can be
//! said about a type that this program does not know: canonical, the four header fields, and the signature.

use std::sync::Arc;

use crate::block::{Decoded, Signed};
use crate::code::{Code, Reject};
use crate::control::Control;
use crate::entry::{Entry, shown_type, signature_field, type_of};
use crate::id::{EntryCid, Principal, UnixMillis};
use crate::schema::{self, Fields};
use crate::seed::{SeedBlob, SeedKind, open_seed};
use crate::sign::{SIGNATURE_BYTES, VerifyingKeys};

/// A signed blob of a known type, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blob {
    /// An entry of a session.
    Entry(Box<Decoded<Entry>>),
    /// A Capability, CapabilityTombstone or Ref.
    Control(Decoded<Control>),
    /// A document of Seed's.
    Seed(Decoded<SeedBlob>),
}

/// A signed blob of a known type whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignedAny {
    /// An entry of a session.
    Entry(Box<Signed<Entry>>),
    /// A Capability, CapabilityTombstone or Ref.
    Control(Signed<Control>),
    /// A document of Seed's.
    Seed(Signed<SeedBlob>),
}

impl Blob {
    /// Decodes bytes by the type they name.
    ///
    /// # Errors
    /// `E_TYPE` for a type that is not known; else the first failure in the order size, codec, schema.
    pub fn decode(bytes: impl Into<Arc<[u8]>>) -> Result<Self, Reject> {
        let bytes = bytes.into();
        let type_name = type_of(&open_seed(&bytes)?)?;
        match type_name.as_str() {
            "Capability" | "CapabilityTombstone" | "Ref" => Decoded::decode(bytes).map(Blob::Control),
            name if SeedKind::of(name).is_some() => Decoded::decode(bytes).map(Blob::Seed),
            name if name.starts_with("Session") => Decoded::decode(bytes).map(Box::new).map(Blob::Entry),
            name => Err(Reject::new(Code::Type, format!("expected a known type, got {}", shown_type(name)))),
        }
    }

    /// Checks the key and the signature.
    ///
    /// # Errors
    /// An `E_KEY_…` code or `E_SIG`.
    pub fn verify(self, keys: &mut VerifyingKeys) -> Result<SignedAny, Reject> {
        match self {
            Blob::Entry(blob) => blob.verify(keys).map(Box::new).map(SignedAny::Entry),
            Blob::Control(blob) => blob.verify(keys).map(SignedAny::Control),
            Blob::Seed(blob) => blob.verify(keys).map(SignedAny::Seed),
        }
    }

    /// The sha2-256 CID of the received bytes.
    #[must_use]
    pub fn cid(&self) -> EntryCid {
        match self {
            Blob::Entry(blob) => blob.cid(),
            Blob::Control(blob) => blob.cid(),
            Blob::Seed(blob) => blob.cid(),
        }
    }
}

impl SignedAny {
    /// Decodes and verifies in one step.
    ///
    /// # Errors
    /// As [`Blob::decode`] and [`Blob::verify`].
    pub fn check(bytes: impl Into<Arc<[u8]>>, keys: &mut VerifyingKeys) -> Result<Self, Reject> {
        Blob::decode(bytes)?.verify(keys)
    }

    /// The sha2-256 CID of the received bytes.
    #[must_use]
    pub fn cid(&self) -> EntryCid {
        match self {
            SignedAny::Entry(blob) => blob.cid(),
            SignedAny::Control(blob) => blob.cid(),
            SignedAny::Seed(blob) => blob.cid(),
        }
    }
}

/// What can be said about a signed blob of any type. Its fields beside the header were not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenericSigned {
    /// Its type, as it names it.
    pub type_name: String,
    /// When it was made, as its signer says.
    pub ts: UnixMillis,
    /// Who signed it.
    pub signer: Principal,
    /// The sha2-256 CID of the received bytes.
    pub cid: EntryCid,
    /// The received bytes.
    pub bytes: Arc<[u8]>,
}

impl GenericSigned {
    /// Checks form, header and signature of a blob of any type: at most 2 MiB, nested at most 64 levels.
    ///
    /// # Errors
    /// `E_TOO_BIG`, a codec code, `E_SCHEMA_…` for a header field, an `E_KEY_…` code or `E_SIG`.
    pub fn check(bytes: impl Into<Arc<[u8]>>, keys: &mut VerifyingKeys) -> Result<Self, Reject> {
        let bytes = bytes.into();
        let map = open_seed(&bytes)?;
        let fields = Fields::open(&map, "blob", &["ts", "sig", "type", "signer"])?;
        let type_name = type_of(&map)?;
        let ts = fields.need("ts", schema::millis)?;
        let signer = fields.need("signer", schema::principal)?;
        let field = signature_field(&bytes, &map)?;
        let mut unsigned = bytes.to_vec();
        unsigned[field.offset..field.offset + SIGNATURE_BYTES].fill(0);
        keys.verify(&signer, &unsigned, &field.signature)?;
        let cid = EntryCid::of(&bytes);
        drop(map);
        Ok(GenericSigned { type_name, ts, signer, cid, bytes })
    }
}

#[cfg(test)]
#[path = "blob_tests.rs"]
mod tests;
