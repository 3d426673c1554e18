//! The line of types that a blob moves along; each type says which checks are done. `docs/PROTOCOL.md` §Verification.
//!
//! ```text
//! bytes ─▶ Block (hash matches the CID) ─▶ Decoded<T> (canonical, schema) ─▶ Signed<T> (key, signature)
//!                                                                  ─▶ VerifiedSegment (links, authority, epoch)
//! ```
//!
//! Each keeps the received bytes: hashes and signatures are checked over them, never over a re-encoding.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::code::{Code, Reject};
use crate::id::{Cid, EntryCid, Principal};
use crate::sign::{SIGNATURE_BYTES, VerifyingKeys};

/// Bytes that hash to their CID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    cid: Cid,
    bytes: Arc<[u8]>,
}

impl Block {
    /// Checks that `bytes` hash to `cid`.
    ///
    /// # Errors
    /// `E_CID_MISMATCH`: whoever handed the bytes over is to blame.
    pub fn check(cid: Cid, bytes: impl Into<Arc<[u8]>>) -> Result<Self, Reject> {
        let bytes = bytes.into();
        if cid.matches(&bytes) {
            Ok(Block { cid, bytes })
        } else {
            Err(Reject::new(
                Code::CidMismatch,
                format!("{} bytes given for {} hash to something else", bytes.len(), cid.short()),
            ))
        }
    }

    /// A block of our own bytes, named by sha2-256.
    pub fn of(codec: crate::id::Codec, bytes: impl Into<Arc<[u8]>>) -> Self {
        let bytes = bytes.into();
        Block { cid: Cid::sha256(codec, &bytes), bytes }
    }

    /// The CID.
    #[must_use]
    pub fn cid(&self) -> Cid {
        self.cid
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

/// A signed blob type: how it is read from canonical bytes and what it says about its signature.
pub trait SignedBlob: Sized {
    /// Reads the value; checks size, codec and schema, and that writing it again gives the same bytes.
    ///
    /// # Errors
    /// The first failure in the order size, codec, schema.
    fn read(bytes: &[u8]) -> Result<(Self, SignatureField), Reject>;

    /// Who signed it.
    fn signer(&self) -> Principal;
}

/// The signature of a blob and where its 64 bytes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureField {
    /// Offset of the first signature byte in the blob.
    pub offset: usize,
    /// The signature.
    pub signature: [u8; SIGNATURE_BYTES],
}

/// A blob that is canonical and fits its schema. Its signature was not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded<T> {
    value: T,
    bytes: Arc<[u8]>,
    cid: EntryCid,
    signature: SignatureField,
}

impl<T: SignedBlob> Decoded<T> {
    /// Decodes bytes; their CID is computed, so nothing has to be believed about them.
    ///
    /// # Errors
    /// The first failure in the order size, codec, schema.
    pub fn decode(bytes: impl Into<Arc<[u8]>>) -> Result<Self, Reject> {
        let bytes = bytes.into();
        let (value, signature) = T::read(&bytes)?;
        let cid = EntryCid::of(&bytes);
        Ok(Decoded { value, bytes, cid, signature })
    }

    /// The blob that `bytes` become with `signature` at `offset`, where they had zeros when `value` was read from them.
    /// Reading takes any 64 bytes there, so it need not be done again.
    pub(crate) fn filled(
        value: T,
        offset: usize,
        mut bytes: Vec<u8>,
        signature: [u8; SIGNATURE_BYTES],
    ) -> Self {
        bytes[offset..offset + SIGNATURE_BYTES].copy_from_slice(&signature);
        let cid = EntryCid::of(&bytes);
        Decoded { value, bytes: bytes.into(), cid, signature: SignatureField { offset, signature } }
    }

    /// Checks the key and the signature.
    ///
    /// # Errors
    /// An `E_KEY_…` code or `E_SIG`.
    pub fn verify(self, keys: &mut VerifyingKeys) -> Result<Signed<T>, Reject> {
        let mut unsigned = self.bytes.to_vec();
        unsigned[self.signature.offset..self.signature.offset + SIGNATURE_BYTES].fill(0);
        keys.verify(&self.value.signer(), &unsigned, &self.signature.signature)
            .map_err(|reject| reject.within(&self.cid.short()))?;
        Ok(Signed { value: self.value, bytes: self.bytes, cid: self.cid })
    }

    /// Takes the signature as checked. Only for bytes read back from a store that verified them before it took them;
    /// anything that came from a peer, a file or a request goes through [`Decoded::verify`].
    #[must_use]
    pub fn assume_signed(self) -> Signed<T> {
        Signed { value: self.value, bytes: self.bytes, cid: self.cid }
    }

    /// Where the signature lies, and what it is.
    #[must_use]
    pub fn signature(&self) -> &SignatureField {
        &self.signature
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The sha2-256 CID of the received bytes.
    #[must_use]
    pub fn cid(&self) -> EntryCid {
        self.cid
    }

    /// The received bytes.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

/// A blob whose bytes, schema, key and signature were checked. What it may do in a session was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed<T> {
    value: T,
    bytes: Arc<[u8]>,
    cid: EntryCid,
}

impl<T: SignedBlob> Signed<T> {
    /// Decodes and verifies in one step.
    ///
    /// # Errors
    /// As [`Decoded::decode`] and [`Decoded::verify`].
    pub fn check(bytes: impl Into<Arc<[u8]>>, keys: &mut VerifyingKeys) -> Result<Self, Reject> {
        Decoded::decode(bytes)?.verify(keys)
    }
}

impl<T> Signed<T> {
    /// The value.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The sha2-256 CID of the received bytes.
    #[must_use]
    pub fn cid(&self) -> EntryCid {
        self.cid
    }

    /// The received bytes.
    #[must_use]
    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// sha2-256 of the bytes: what names a capability, whichever CID was cited.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        *self.cid.digest()
    }
}

/// sha2-256 of `bytes`.
#[must_use]
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
