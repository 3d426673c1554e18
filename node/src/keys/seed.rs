//! The 32 bytes that a key is made from. They are wiped when dropped and never printed.

use std::fmt;

use throughline_protocol::id::Principal;
use throughline_protocol::sign::SigningKey;
use zeroize::Zeroizing;

use super::KeyError;

/// Length of a seed in bytes.
pub const SEED_BYTES: usize = 32;

/// An Ed25519 seed (RFC 8032 §5.1.5): the whole secret of a key.
#[derive(Clone)]
pub struct Seed(Zeroizing<[u8; SEED_BYTES]>);

impl Seed {
    /// A new seed from the operating system.
    ///
    /// # Errors
    /// [`KeyError::System`] when it has no random bytes.
    pub fn generate() -> Result<Self, KeyError> {
        let mut bytes = Zeroizing::new([0; SEED_BYTES]);
        fill_random(bytes.as_mut())?;
        Ok(Seed(bytes))
    }

    /// The seed of these bytes. Every 32 bytes are one.
    #[must_use]
    pub fn from_bytes(bytes: Zeroizing<[u8; SEED_BYTES]>) -> Self {
        Seed(bytes)
    }

    /// The key that signs.
    #[must_use]
    pub fn signing_key(&self) -> SigningKey {
        SigningKey::from_seed(&self.0)
    }

    /// The secret bytes, for what derives other secrets from them or needs another library's key.
    #[must_use]
    pub fn bytes(&self) -> &[u8; SEED_BYTES] {
        &self.0
    }

    /// The principal of the public key.
    #[must_use]
    pub fn principal(&self) -> Principal {
        self.signing_key().principal()
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seed of {}", self.principal().short())
    }
}

/// Fills `bytes` from the operating system.
pub(super) fn fill_random(bytes: &mut [u8]) -> Result<(), KeyError> {
    getrandom::fill(bytes)
        .map_err(|error| KeyError::System { expected: "random bytes", got: error.to_string() })
}
