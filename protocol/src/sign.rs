//! The one Ed25519 predicate, and signing by Seed's rule. `docs/PROTOCOL.md` §Signatures.
//!
//! A signature covers the blob's own bytes with the 64 signature bytes zeroed. Accepting one is the same decision
//! everywhere: the key is canonical, on the curve, not of small order and torsion-free (checked once per key and
//! remembered), then strict verification (RFC 8032, S < L, cofactorless, R canonical). Batch verification is never
//! used to decide: it accepts other signatures.

use std::collections::BTreeMap;

use curve25519_dalek::edwards::CompressedEdwardsY;
use ed25519_dalek::Signer as _;
use zeroize::Zeroizing;

use crate::code::{Code, Reject};
use crate::id::Principal;

/// Length of a signature in bytes.
pub const SIGNATURE_BYTES: usize = 64;

/// A private key, kept as its 32-byte seed.
pub struct SigningKey {
    key: ed25519_dalek::SigningKey,
    principal: Principal,
}

impl SigningKey {
    /// The key of a seed (RFC 8032 §5.1.5).
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let key = ed25519_dalek::SigningKey::from_bytes(seed);
        let principal = Principal::from_key(key.verifying_key().to_bytes());
        SigningKey { key, principal }
    }

    /// The public side.
    #[must_use]
    pub fn principal(&self) -> Principal {
        self.principal
    }

    /// The seed, for writing a key file.
    #[must_use]
    pub fn seed(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.key.to_bytes())
    }

    /// Signs `message`. For blobs use [`crate::build`], which zeroes and fills the signature field.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        self.key.sign(message).to_bytes()
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({})", self.principal.short())
    }
}

/// Verifies signatures; remembers which keys passed the key checks. Bounded: it forgets all of them at the limit.
#[derive(Clone, Debug)]
pub struct VerifyingKeys {
    known: BTreeMap<Principal, ed25519_dalek::VerifyingKey>,
    keys_max: usize,
}

impl Default for VerifyingKeys {
    fn default() -> Self {
        VerifyingKeys { known: BTreeMap::new(), keys_max: 4_096 }
    }
}

impl VerifyingKeys {
    /// Keys that know the public side of `key` already: one that is made from its seed passes every key check, so what
    /// was just signed is verified without them.
    pub(crate) fn of_signer(key: &SigningKey) -> Self {
        let mut keys = VerifyingKeys::default();
        keys.known.insert(key.principal(), key.key.verifying_key());
        keys
    }

    /// Checks the key of `signer`, then `signature` over `message`.
    ///
    /// # Errors
    /// `E_KEY_NONCANON`, `E_KEY_POINT`, `E_KEY_SMALL` or `E_KEY_TORSION` for a key that is never accepted, `E_SIG` for a
    /// signature that does not verify.
    pub fn verify(
        &mut self,
        signer: &Principal,
        message: &[u8],
        signature: &[u8; SIGNATURE_BYTES],
    ) -> Result<(), Reject> {
        let signature = ed25519_dalek::Signature::from_bytes(signature);
        self.key(signer)?.verify_strict(message, &signature).map_err(|_| {
            Reject::new(Code::Sig, format!("the signature of {} does not verify", signer.short()))
        })
    }

    fn key(&mut self, signer: &Principal) -> Result<&ed25519_dalek::VerifyingKey, Reject> {
        if !self.known.contains_key(signer) {
            let key = check_key(signer)?;
            if self.known.len() >= self.keys_max {
                self.known.clear();
            }
            self.known.insert(*signer, key);
        }
        self.known.get(signer).ok_or_else(|| Code::Internal.into())
    }
}

/// The key checks: on the curve, canonical, not of small order, without torsion.
fn check_key(signer: &Principal) -> Result<ed25519_dalek::VerifyingKey, Reject> {
    let reject = |code: Code| Reject::new(code, format!("key {}: {}", signer.short(), code.title()));
    let compressed = CompressedEdwardsY(*signer.key());
    let point = compressed.decompress().ok_or_else(|| reject(Code::KeyPoint))?;
    if point.compress() != compressed {
        return Err(reject(Code::KeyNoncanon));
    }
    if point.is_small_order() {
        return Err(reject(Code::KeySmall));
    }
    if !point.is_torsion_free() {
        return Err(reject(Code::KeyTorsion));
    }
    ed25519_dalek::VerifyingKey::from_bytes(signer.key()).map_err(|_| reject(Code::KeyPoint))
}

/// A key for the bare library verification that the benchmarks compare with: parsed once, checked for nothing else. It
/// decides nothing.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct BareKey(ed25519_dalek::VerifyingKey);

impl BareKey {
    /// The key of a principal.
    #[must_use]
    pub fn new(signer: &Principal) -> Option<Self> {
        ed25519_dalek::VerifyingKey::from_bytes(signer.key()).ok().map(BareKey)
    }

    /// `verify_strict` of the library and nothing more.
    #[must_use]
    pub fn verify_strict(&self, message: &[u8], signature: &[u8; SIGNATURE_BYTES]) -> bool {
        self.0.verify_strict(message, &ed25519_dalek::Signature::from_bytes(signature)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_and_verifies() {
        let key = SigningKey::from_seed(&[7; 32]);
        let signature = key.sign(b"message");
        let mut keys = VerifyingKeys::default();
        assert_eq!(keys.verify(&key.principal(), b"message", &signature), Ok(()));
        assert_eq!(keys.verify(&key.principal(), b"massage", &signature).unwrap_err().code, Code::Sig);
    }

    #[test]
    fn a_signer_s_own_key_would_pass_the_key_checks() {
        for seed in 0..64 {
            let key = SigningKey::from_seed(&[seed; 32]);
            let known = VerifyingKeys::of_signer(&key).known;
            assert_eq!(check_key(&key.principal()), Ok(known[&key.principal()]));
        }
    }

    #[test]
    fn a_point_off_the_curve_is_named() {
        let mut key = [0; 32];
        key[0] = 2;
        let reject = VerifyingKeys::default().verify(&Principal::from_key(key), b"", &[0; 64]).unwrap_err();
        assert_eq!(reject.code, Code::KeyPoint);
    }
}
