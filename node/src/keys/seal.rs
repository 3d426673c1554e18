//! A seed under a passphrase: Argon2id makes a key from the passphrase, XChaCha20-Poly1305 seals the seed with it.

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{Key, KeyInit, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use super::KeyError;
use super::passphrase::Passphrase;
use super::seed::{SEED_BYTES, Seed, fill_random};

/// Length of the Argon2 salt in bytes, as RFC 9106 §3.1 recommends.
pub(super) const SALT_BYTES: usize = 16;
/// Length of an XChaCha20 nonce in bytes.
pub(super) const NONCE_BYTES: usize = 24;
/// Length of a sealed seed in bytes: the seed and a tag of 16.
pub(super) const SEALED_BYTES: usize = SEED_BYTES + 16;

/// Memory that a file may ask for: 1 GiB. A file that asks for more is an attack or a mistake.
const MEMORY_KIB_MAX: u32 = 1024 * 1024;
/// Passes that a file may ask for.
const PASSES_MAX: u32 = 16;
/// Lanes that a file may ask for.
const LANES_MAX: u32 = 16;

/// What the key derivation costs. Written into the file, so that it can be raised later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KdfParams {
    pub(super) memory_kib: u32,
    pub(super) passes: u32,
    pub(super) lanes: u32,
}

impl KdfParams {
    /// RFC 9106 §4, the second recommended option: 64 MiB, three passes, four lanes.
    pub(super) const RECOMMENDED: KdfParams = KdfParams { memory_kib: 64 * 1024, passes: 3, lanes: 4 };

    /// Whether the work is within bounds; the error says what was expected.
    pub(super) fn check(self) -> Result<(), String> {
        if self.memory_kib > MEMORY_KIB_MAX || self.passes > PASSES_MAX || self.lanes > LANES_MAX {
            return Err(format!(
                "a key derivation of at most {MEMORY_KIB_MAX} KiB, {PASSES_MAX} passes and {LANES_MAX} lanes"
            ));
        }
        self.params().map(|_| ()).map_err(|error| format!("a usable key derivation ({error})"))
    }

    fn params(self) -> Result<Params, argon2::Error> {
        Params::new(self.memory_kib, self.passes, self.lanes, Some(SEED_BYTES))
    }

    /// The key of `passphrase`. Takes about a tenth of a second and the memory that the parameters say.
    fn derive(self, passphrase: &Passphrase, salt: &[u8]) -> Result<Zeroizing<[u8; 32]>, KeyError> {
        let system = |error: argon2::Error| KeyError::System {
            expected: "the memory for the key derivation",
            got: error.to_string(),
        };
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, self.params().map_err(system)?);
        let mut key = Zeroizing::new([0; 32]);
        argon2.hash_password_into(passphrase.bytes(), salt, key.as_mut()).map_err(system)?;
        Ok(key)
    }
}

/// A sealed seed and all that is needed, besides the passphrase, to open it.
#[derive(Clone)]
pub(super) struct Sealed {
    pub(super) kdf: KdfParams,
    pub(super) salt: [u8; SALT_BYTES],
    pub(super) nonce: [u8; NONCE_BYTES],
    pub(super) bytes: [u8; SEALED_BYTES],
}

impl Sealed {
    /// Seals `seed` with a new salt and nonce. `header` makes the associated data from what it is sealed with.
    pub(super) fn seal(
        seed: &Seed,
        passphrase: &Passphrase,
        kdf: KdfParams,
        header: impl Fn(&Sealed) -> String,
    ) -> Result<Self, KeyError> {
        let mut sealed =
            Sealed { kdf, salt: [0; SALT_BYTES], nonce: [0; NONCE_BYTES], bytes: [0; SEALED_BYTES] };
        fill_random(&mut sealed.salt)?;
        fill_random(&mut sealed.nonce)?;
        let aad = header(&sealed);
        let payload = Payload { msg: seed.bytes(), aad: aad.as_bytes() };
        let bytes = sealed.cipher(passphrase)?.encrypt(&XNonce::from(sealed.nonce), payload);
        // Encryption fails only for messages of 256 GiB and more.
        let bytes = bytes.ok().and_then(|bytes| bytes.try_into().ok());
        let failed = || KeyError::System { expected: "a sealed seed", got: "another length".to_owned() };
        sealed.bytes = bytes.ok_or_else(failed)?;
        Ok(sealed)
    }

    /// The seed, if the passphrase fits and nothing was changed.
    pub(super) fn open(&self, passphrase: &Passphrase, header: &str) -> Result<Seed, KeyError> {
        let payload = Payload { msg: &self.bytes, aad: header.as_bytes() };
        let opened = self.cipher(passphrase)?.decrypt(&XNonce::from(self.nonce), payload);
        let opened = Zeroizing::new(opened.map_err(|_| KeyError::Passphrase)?);
        let mut seed = Zeroizing::new([0; SEED_BYTES]);
        // The tag was checked, so the length is that of what was sealed.
        if opened.len() != SEED_BYTES {
            return Err(KeyError::Passphrase);
        }
        seed.copy_from_slice(&opened);
        Ok(Seed::from_bytes(seed))
    }

    fn cipher(&self, passphrase: &Passphrase) -> Result<XChaCha20Poly1305, KeyError> {
        let key = self.kdf.derive(passphrase, &self.salt)?;
        Ok(XChaCha20Poly1305::new(<&Key>::from(&*key)))
    }
}
