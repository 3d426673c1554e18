//! Salts and nonces of an import, derived so that importing the same source twice gives the same bytes.
//! `docs/PROTOCOL.md` §Payloads.
//!
//! They are secret as long as the node key is: nobody without it can confirm a guess at redacted words.

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::codec::{Value, encode, uint as uint_value};

const INFO: &[u8] = b"throughline/import/1";

/// What names a record within its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordId<'a> {
    /// The record's own id.
    Id(&'a str),
    /// The number of its first line, counted from 1.
    Line(u64),
}

/// Derives the salts and nonces of one node's imports.
pub struct ImportSalts {
    /// The derived key, filled up with zeros to the hash's block as HMAC does with short keys.
    key: Zeroizing<[u8; 64]>,
}

impl ImportSalts {
    /// Of the node with this key seed: HKDF-SHA-256, no salt, info `throughline/import/1`.
    #[must_use]
    pub fn new(node_seed: &[u8; 32]) -> Self {
        ImportSalts::with_info(node_seed, INFO)
    }

    /// Of the node with this key seed in a later life of its data directory: the 32 bytes that name the life follow the info. What
    /// is imported then is never taken for what the same key signed before.
    #[must_use]
    pub fn of_life(node_seed: &[u8; 32], life: &[u8; 32]) -> Self {
        ImportSalts::with_info(node_seed, &[INFO, life].concat())
    }

    fn with_info(node_seed: &[u8; 32], info: &[u8]) -> Self {
        let mut key = Zeroizing::new([0; 64]);
        #[expect(
            clippy::expect_used,
            reason = "the one error is an output of more than 255 blocks; this is one"
        )]
        Hkdf::<Sha256>::new(None, node_seed).expand(info, &mut key[..32]).expect("one block of output");
        ImportSalts { key }
    }

    /// The salt of the payload made from a record. `entry_type` is the full type name, such as `SessionUserMessage`.
    #[must_use]
    pub fn salt(&self, format: &str, session: &str, record: RecordId<'_>, entry_type: &str) -> [u8; 32] {
        let record = match record {
            RecordId::Id(id) => Value::from(id),
            RecordId::Line(line) => uint_value(line),
        };
        let data = Value::List(vec![format.into(), session.into(), record, entry_type.into()]);
        let mut mac = Hmac::<Sha256>::new((&*self.key).into());
        mac.update(&encode(&data));
        mac.finalize().into_bytes().into()
    }

    /// The nonce of the genesis of an imported session. The genesis is made from the whole source, so it stands at line 0.
    #[must_use]
    pub fn nonce(&self, format: &str, session: &str) -> [u8; 16] {
        let derived = self.salt(format, session, RecordId::Line(0), "SessionGenesis");
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&derived[..16]);
        nonce
    }

    /// The salt of the genesis's payload: `salt` stands for the entry type, since the type's own value is the nonce.
    #[must_use]
    pub fn genesis_salt(&self, format: &str, session: &str) -> [u8; 32] {
        self.salt(format, session, RecordId::Line(0), "salt")
    }
}

impl std::fmt::Debug for ImportSalts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ImportSalts(…)")
    }
}
