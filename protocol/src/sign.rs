//! The one Ed25519 predicate, and signing by Seed's rule. `docs/PROTOCOL.md` §Signatures.
//!
//! A signature covers the blob's own bytes with the 64 signature bytes zeroed. Accepting one is the same decision
//! everywhere: the key is canonical, on the curve, not of small order and torsion-free (checked once per key and
//! remembered), then strict verification (RFC 8032, S < L, cofactorless, R canonical). Batch verification is never
//! used to decide: it accepts other signatures. Tables for a key that signs many change what a check costs, not what it says.

use std::collections::BTreeMap;
use std::sync::Arc;

use ed25519_dalek::Signer as _;
use zeroize::Zeroizing;

use crate::code::{Code, Reject};
use crate::id::Principal;
use crate::public_key::{PublicKey, TABLES_AFTER, Tables};

/// Length of a signature in bytes.
pub const SIGNATURE_BYTES: usize = 64;

/// A private key, kept as its 32-byte seed.
pub struct SigningKey {
    key: ed25519_dalek::SigningKey,
    principal: Principal,
    /// Its public side, with what was made for the checks of its own signatures.
    public: Arc<PublicKey>,
}

impl SigningKey {
    /// The key of a seed (RFC 8032 §5.1.5).
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        let key = ed25519_dalek::SigningKey::from_bytes(seed);
        let principal = Principal::from_key(key.verifying_key().to_bytes());
        let public = Arc::new(PublicKey::of_signer(&key));
        SigningKey { key, principal, public }
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

/// Keys that have tables, for one [`VerifyingKeys`]: 30 KiB each.
const TABLES_MAX: usize = 16;

/// Verifies signatures; remembers which keys passed the key checks, and makes tables for those that sign many. Bounded: it
/// forgets all of them at the limit. A clone shares what is known so far.
#[derive(Clone, Debug)]
pub struct VerifyingKeys {
    known: BTreeMap<Principal, Arc<PublicKey>>,
    keys_max: usize,
    tables_after: u32,
    /// How many of the known keys were seen with tables.
    tables: usize,
}

impl Default for VerifyingKeys {
    fn default() -> Self {
        VerifyingKeys { known: BTreeMap::new(), keys_max: 4_096, tables_after: TABLES_AFTER, tables: 0 }
    }
}

impl VerifyingKeys {
    /// Keys that make tables for a key at its first signature: for many signatures of a few keys.
    #[must_use]
    pub fn with_tables() -> Self {
        VerifyingKeys { tables_after: 0, ..VerifyingKeys::default() }
    }

    /// Keys that know the public side of `key` already: one that is made from its seed passes every key check, so what
    /// was just signed is verified without them.
    pub(crate) fn of_signer(key: &SigningKey) -> Self {
        let mut keys = VerifyingKeys::default();
        keys.known.insert(key.principal(), Arc::clone(&key.public));
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
        let tables = if self.tables < TABLES_MAX { Tables::After(self.tables_after) } else { Tables::None };
        let key = self.key(signer)?;
        let had_tables = key.has_tables();
        let is_valid = key.verify(message, signature, tables);
        let made = usize::from(!had_tables && key.has_tables());
        self.tables += made;
        if is_valid {
            return Ok(());
        }
        Err(Reject::new(Code::Sig, format!("the signature of {} does not verify", signer.short())))
    }

    /// Checks a key without a signature: whether anything that it signs could ever be accepted.
    ///
    /// # Errors
    /// `E_KEY_NONCANON`, `E_KEY_POINT`, `E_KEY_SMALL` or `E_KEY_TORSION`.
    pub fn check(&mut self, signer: &Principal) -> Result<(), Reject> {
        self.key(signer).map(|_| ())
    }

    fn key(&mut self, signer: &Principal) -> Result<&PublicKey, Reject> {
        if !self.known.contains_key(signer) {
            let checked = PublicKey::check(signer.key());
            let key = checked
                .map_err(|code| Reject::new(code, format!("key {}: {}", signer.short(), code.title())))?;
            if self.known.len() >= self.keys_max {
                self.known.clear();
                self.tables = 0;
            }
            self.known.insert(*signer, Arc::new(key));
        }
        self.known.get(signer).map(|key| &**key).ok_or_else(|| Code::Internal.into())
    }
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
    fn a_point_off_the_curve_is_named() {
        let mut key = [0; 32];
        key[0] = 2;
        let reject = VerifyingKeys::default().verify(&Principal::from_key(key), b"", &[0; 64]).unwrap_err();
        assert_eq!(reject.code, Code::KeyPoint);
    }

    #[test]
    fn few_keys_have_tables() {
        let mut keys = VerifyingKeys::with_tables();
        let signers: Vec<_> =
            (0..).take(TABLES_MAX + 1).map(|seed| SigningKey::from_seed(&[seed; 32])).collect();
        for _ in 0..2 {
            for signer in &signers {
                assert_eq!(keys.verify(&signer.principal(), b"m", &signer.sign(b"m")), Ok(()));
            }
        }
        let with_tables: Vec<bool> =
            signers.iter().map(|signer| keys.known[&signer.principal()].has_tables()).collect();
        assert_eq!(with_tables, [vec![true; TABLES_MAX], vec![false]].concat());
    }

    #[test]
    fn at_the_limit_all_keys_are_forgotten_with_their_tables() {
        let mut keys = VerifyingKeys { keys_max: 2, ..VerifyingKeys::with_tables() };
        for seed in 0..3 {
            let signer = SigningKey::from_seed(&[seed; 32]);
            assert_eq!(keys.verify(&signer.principal(), b"m", &signer.sign(b"m")), Ok(()));
        }
        assert_eq!((keys.known.len(), keys.tables), (1, 1));
    }

    #[test]
    fn a_signer_keeps_the_tables_for_its_own_signatures() {
        let signer = SigningKey::from_seed(&[7; 32]);
        for _ in 0..=TABLES_AFTER {
            let signature = signer.sign(b"m");
            assert_eq!(
                VerifyingKeys::of_signer(&signer).verify(&signer.principal(), b"m", &signature),
                Ok(())
            );
        }
        assert!(signer.public.has_tables());
    }
}
