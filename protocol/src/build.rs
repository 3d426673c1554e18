//! Making signed blobs: the one way bytes of ours come to be. `docs/PROTOCOL.md` §Signatures.
//!
//! A value is written with a zeroed signature and read back as bytes from a peer are; it is the value that was read that goes
//! on. Then the bytes are signed, the signature is put in its place, and verified. So what this program writes is what it
//! would accept, and an append that a verifier would refuse fails here, before anything is stored.
//!
//! It never signs for another key, and never writes a blob that a stock Seed daemon would take for one of Seed's
//! types: the daemon searches raw bytes for the type, at any depth, and one such blob fails a whole batch there.

use crate::block::{Decoded, Signed, SignedBlob};
use crate::code::{Code, Reject};
use crate::control::{Capability, Control, Ref, Tombstone};
use crate::entry::Entry;
use crate::sign::{SIGNATURE_BYTES, SigningKey, VerifyingKeys};

/// The type names that a stock Seed daemon looks for.
pub const SEED_TYPES: &[&str] = &["Capability", "Change", "Comment", "Contact", "DagPB", "Profile", "Ref"];

/// A signed blob type that can be written.
pub trait Writable: SignedBlob {
    /// The canonical bytes with this signature.
    fn write(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8>;
}

macro_rules! writable {
    ($($type:ty),*) => {
        $(impl Writable for $type {
            fn write(&self, signature: &[u8; SIGNATURE_BYTES]) -> Vec<u8> {
                self.to_bytes(signature)
            }
        })*
    };
}

writable!(Entry, Capability, Tombstone, Ref, Control);

/// Signs a value and checks the result as if it had been received.
///
/// # Errors
/// `E_INTERNAL` when the value names another signer than `key`; `E_SCHEMA_TEXT` when its bytes hold a Seed type name
/// after a `type` key anywhere but at its own head; else whatever reading the bytes refuses.
pub fn sign<T: Writable>(value: T, key: &SigningKey) -> Result<Signed<T>, Reject> {
    if value.signer() != key.principal() {
        let what = format!("expected a blob by {}, got {}", key.principal().short(), value.signer().short());
        return Err(Reject::new(Code::Internal, what));
    }
    let bytes = value.write(&[0; SIGNATURE_BYTES]);
    let (value, field) = T::read(&bytes)?;
    refuse_seed_lookalike(&bytes)?;
    let signature = key.sign(&bytes);
    Decoded::filled(value, field.offset, bytes, signature).verify(&mut VerifyingKeys::of_signer(key))
}

/// Refuses bytes in which a stock daemon would find a Seed type other than the blob's own.
fn refuse_seed_lookalike(bytes: &[u8]) -> Result<(), Reject> {
    let mut found = seed_types_within(bytes).peekable();
    if found.peek().is_none() {
        return Ok(());
    }
    let own = own_type_offset(bytes);
    match found.find(|(offset, _)| Some(*offset) != own) {
        None => Ok(()),
        Some((offset, name)) => Err(Reject::new(
            Code::SchemaText,
            format!("at byte {offset}: a stock Seed daemon would take the blob for a {name}"),
        )),
    }
}

/// Where in `bytes` the CBOR of `"type"` is followed by the CBOR of a Seed type name, and which name.
///
/// Publishing to a stock daemon asks this of payloads too: they hold foreign words, so writing one is never refused.
pub fn seed_types_within(bytes: &[u8]) -> impl Iterator<Item = (usize, &'static str)> + '_ {
    const KEY: &[u8] = b"\x64type";
    bytes.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY).filter_map(|(offset, _)| {
        let value = &bytes[offset + KEY.len()..];
        let (head, text) = value.split_first()?;
        let named =
            |name: &&&str| usize::from(*head) == 0x60 + name.len() && text.starts_with(name.as_bytes());
        SEED_TYPES.iter().find(named).map(|name| (offset, *name))
    })
}

/// Offset of the top map's own `type` key. The bytes were read before, so they are one canonical map with text keys.
fn own_type_offset(bytes: &[u8]) -> Option<usize> {
    let (crate::codec::Value::Map(map), _) =
        crate::codec::decode(bytes, crate::limits::PAYLOAD_DEPTH_MAX).ok()?
    else {
        return None;
    };
    let crate::codec::Value::Text(std::borrow::Cow::Borrowed(name)) = map.get("type")? else { return None };
    // The name's one-byte head and the five bytes of the key stand before it.
    name.as_ptr().addr().checked_sub(bytes.as_ptr().addr())?.checked_sub(6)
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
