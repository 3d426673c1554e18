//! A key that passed every check, and the strict predicate for it; tables for one that signs many.
//!
//! It decides what the library's `verify_strict` decides, with and without tables; nothing else than that may ever be
//! accepted here. `docs/PROTOCOL.md` §Signatures, `docs/decisions/0025-tables-for-a-key-that-signs-many.md`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use curve25519_dalek::constants::ED25519_BASEPOINT_TABLE;
use curve25519_dalek::edwards::{CompressedEdwardsY, EdwardsBasepointTable, EdwardsPoint};
use curve25519_dalek::scalar::Scalar;
use curve25519_dalek::traits::BasepointTable as _;
use sha2::{Digest as _, Sha512};

use crate::code::Code;
use crate::sign::SIGNATURE_BYTES;

/// Signatures of one key after which tables are made for it: about as many as making them costs (1.3 ms), counted in what the
/// tables save of each one afterwards.
pub(crate) const TABLES_AFTER: u32 = 64;

/// A key that is never refused: on the curve, canonical, not of small order, torsion-free.
pub(crate) struct PublicKey {
    point: EdwardsPoint,
    bare: ed25519_dalek::VerifyingKey,
    /// Signatures that were checked before there were tables.
    seen: AtomicU32,
    /// Multiples of the point's negative, 30 KiB.
    tables: OnceLock<Box<EdwardsBasepointTable>>,
}

/// Whether tables may be made for one more key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tables {
    /// They may, after so many signatures.
    After(u32),
    /// There are enough of them.
    None,
}

impl PublicKey {
    /// Checks a key.
    ///
    /// # Errors
    /// `E_KEY_POINT`, `E_KEY_NONCANON`, `E_KEY_SMALL` or `E_KEY_TORSION`, in this order.
    pub(crate) fn check(key: &[u8; 32]) -> Result<Self, Code> {
        let compressed = CompressedEdwardsY(*key);
        let point = compressed.decompress().ok_or(Code::KeyPoint)?;
        if point.compress() != compressed {
            return Err(Code::KeyNoncanon);
        }
        if point.is_small_order() {
            return Err(Code::KeySmall);
        }
        if !point.is_torsion_free() {
            return Err(Code::KeyTorsion);
        }
        let bare = ed25519_dalek::VerifyingKey::from_bytes(key).map_err(|_| Code::KeyPoint)?;
        Ok(PublicKey { point, bare, seen: AtomicU32::new(0), tables: OnceLock::new() })
    }

    /// The public side of a private key. One that is made from its seed passes every check.
    pub(crate) fn of_signer(key: &ed25519_dalek::SigningKey) -> Self {
        let bare = key.verifying_key();
        PublicKey { point: bare.to_edwards(), bare, seen: AtomicU32::new(0), tables: OnceLock::new() }
    }

    /// Whether there are tables.
    pub(crate) fn has_tables(&self) -> bool {
        self.tables.get().is_some()
    }

    /// Strict verification (RFC 8032 §5.1.7, S < L, cofactorless, R canonical and not of small order).
    pub(crate) fn verify(&self, message: &[u8], signature: &[u8; SIGNATURE_BYTES], tables: Tables) -> bool {
        if let Some(table) = self.tables.get() {
            return self.verify_with(table, message, signature);
        }
        // Only an estimate of the work to come: a lost count makes the tables later.
        let seen = self.seen.fetch_add(1, Ordering::Relaxed);
        match tables {
            Tables::After(count) if seen >= count => {
                let table = self.tables.get_or_init(|| Box::new(EdwardsBasepointTable::create(&-self.point)));
                self.verify_with(table, message, signature)
            }
            Tables::After(_) | Tables::None => {
                self.bare.verify_strict(message, &ed25519_dalek::Signature::from_bytes(signature)).is_ok()
            }
        }
    }

    /// The same by tables. With R' = S·B − k·A, where k = SHA-512(R ‖ A ‖ M), the library accepts when R decompresses, is
    /// not of small order, and is what R' compresses to. What a point compresses to decompresses to that point, so when R' compresses to
    /// R the first holds and the second may be asked of R'.
    fn verify_with(
        &self,
        negative: &EdwardsBasepointTable,
        message: &[u8],
        signature: &[u8; SIGNATURE_BYTES],
    ) -> bool {
        let (mut r, mut s) = ([0; 32], [0; 32]);
        r.copy_from_slice(&signature[..32]);
        s.copy_from_slice(&signature[32..]);
        let Some(s) = Option::<Scalar>::from(Scalar::from_canonical_bytes(s)) else { return false };
        let hash = Sha512::new().chain_update(r).chain_update(self.bare.as_bytes()).chain_update(message);
        let k = Scalar::from_bytes_mod_order_wide(&hash.finalize().into());
        let expected = ED25519_BASEPOINT_TABLE.mul_base(&s) + negative.mul_base(&k);
        !expected.is_small_order() && expected.compress().to_bytes() == r
    }
}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PublicKey")
            .field("key", &self.bare.as_bytes())
            .field("tables", &self.has_tables())
            .finish()
    }
}

#[cfg(test)]
#[path = "public_key_tests.rs"]
mod tests;
