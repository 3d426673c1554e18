//! The text of a key file. `docs/OPERATIONS.md` §Key files.
//!
//! One form for all three kinds, a `name: value` a line, in this order and with one line feed after each:
//!
//! ```text
//! throughline-key 1                      the format and its version
//! kind: node                             node | peer | owner
//! principal: z6Mk…                       of the public key
//! seed: …                                32 bytes: a key that is stored in the clear
//! ```
//!
//! An encrypted owner key has these lines in the place of `seed`:
//!
//! ```text
//! memory-kib: 65536                      Argon2id (RFC 9106), version 0x13
//! passes: 3
//! lanes: 4
//! salt: …                                16 bytes
//! nonce: …                               24 bytes
//! sealed: …                              48 bytes: XChaCha20-Poly1305 of the seed; the lines above are its associated data
//! ```
//!
//! Bytes are base64 (RFC 4648 §4) without padding. A text is accepted only if writing what was read gives the same
//! text again: a cut, padded or reordered file is refused.

use std::fmt::Write as _;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use throughline_protocol::id::Principal;
use zeroize::Zeroizing;

use super::KeyError;
use super::seal::{KdfParams, NONCE_BYTES, SALT_BYTES, SEALED_BYTES, Sealed};
use super::seed::{SEED_BYTES, Seed};

/// The first line.
const HEADER: &str = "throughline-key 1";

/// Which of the three keys a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// This machine's signing key.
    Node,
    /// This machine's network identity.
    Peer,
    /// The account.
    Owner,
}

impl KeyKind {
    /// The word in the file.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            KeyKind::Node => "node",
            KeyKind::Peer => "peer",
            KeyKind::Owner => "owner",
        }
    }

    /// The name of the file in the keys directory.
    #[must_use]
    pub fn file_name(self) -> &'static str {
        match self {
            KeyKind::Node => "node.key",
            KeyKind::Peer => "peer.key",
            KeyKind::Owner => "owner.key",
        }
    }
}

/// The secret part of a key file.
#[derive(Clone)]
pub(super) enum Secret {
    Plain(Seed),
    Sealed(Sealed),
}

/// A key file that was read and is well formed. A plain seed belongs to the principal; whether a sealed one does is
/// known when it is opened.
#[derive(Clone)]
pub(super) struct KeyText {
    pub(super) kind: KeyKind,
    pub(super) principal: Principal,
    pub(super) secret: Secret,
}

impl KeyText {
    /// Reads `text`, which came from `place` and must be of this kind.
    pub(super) fn parse(kind: KeyKind, text: &str, place: &str) -> Result<Self, KeyError> {
        let refuse =
            |expected: &str| KeyError::Format { place: place.to_owned(), expected: expected.to_owned() };
        let mut lines = Lines { lines: text.lines(), place };
        if lines.lines.next() != Some(HEADER) {
            return Err(refuse(&format!("the first line {HEADER:?}")));
        }
        if lines.field("kind")? != kind.word() {
            return Err(refuse(&format!("the key kind {:?}", kind.word())));
        }
        let principal = lines.parsed::<Principal>("principal")?;
        let secret = match (kind, text.contains("\nseed: ")) {
            (KeyKind::Owner, false) => Secret::Sealed(lines.sealed()?),
            _ => Secret::Plain(Seed::from_bytes(lines.bytes::<SEED_BYTES>("seed")?)),
        };
        if let Secret::Plain(seed) = &secret
            && seed.principal() != principal
        {
            return Err(refuse("a seed that belongs to the principal"));
        }
        let read = KeyText { kind, principal, secret };
        if read.render().as_str() != text {
            return Err(refuse("the exact form of a key file"));
        }
        Ok(read)
    }

    /// The text, as it is stored.
    pub(super) fn render(&self) -> Zeroizing<String> {
        // Reserved at once: growing would leave copies of the seed behind.
        let mut text = Zeroizing::new(String::with_capacity(1024));
        match &self.secret {
            Secret::Plain(seed) => {
                text.push_str(&header(self.kind, self.principal));
                line(&mut text, "seed", &Zeroizing::new(STANDARD_NO_PAD.encode(seed.bytes())));
            }
            Secret::Sealed(sealed) => {
                text.push_str(&sealed_header(self.kind, self.principal, sealed));
                line(&mut text, "sealed", &STANDARD_NO_PAD.encode(sealed.bytes));
            }
        }
        text
    }
}

/// The lines above `seed`.
fn header(kind: KeyKind, principal: Principal) -> String {
    let mut text = format!("{HEADER}\n");
    line(&mut text, "kind", kind.word());
    line(&mut text, "principal", &principal.to_string());
    text
}

/// The lines above `sealed`, which are also its associated data: none of them can be changed unnoticed.
pub(super) fn sealed_header(kind: KeyKind, principal: Principal, sealed: &Sealed) -> String {
    let mut text = header(kind, principal);
    line(&mut text, "memory-kib", &sealed.kdf.memory_kib.to_string());
    line(&mut text, "passes", &sealed.kdf.passes.to_string());
    line(&mut text, "lanes", &sealed.kdf.lanes.to_string());
    line(&mut text, "salt", &STANDARD_NO_PAD.encode(sealed.salt));
    line(&mut text, "nonce", &STANDARD_NO_PAD.encode(sealed.nonce));
    text
}

fn line(text: &mut String, name: &str, value: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{name}: {value}");
}

/// Reads the fields of a key file in their order.
struct Lines<'a> {
    lines: std::str::Lines<'a>,
    place: &'a str,
}

impl<'a> Lines<'a> {
    fn refuse(&self, expected: String) -> KeyError {
        KeyError::Format { place: self.place.to_owned(), expected }
    }

    fn field(&mut self, name: &str) -> Result<&'a str, KeyError> {
        let value = self.lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.ok_or_else(|| self.refuse(format!("a line {name:?}")))
    }

    fn parsed<T: FromStr>(&mut self, name: &str) -> Result<T, KeyError> {
        let value = self.field(name)?;
        value.parse().map_err(|_| self.refuse(format!("a usable value of {name:?}")))
    }

    fn bytes<const N: usize>(&mut self, name: &str) -> Result<Zeroizing<[u8; N]>, KeyError> {
        let value = self.field(name)?;
        // Padded to whole groups of three: the decoder estimates the length that it needs that way.
        let mut decoded = Zeroizing::new(vec![0; N + 3]);
        let length = STANDARD_NO_PAD.decode_slice(value, &mut decoded);
        if length != Ok(N) {
            return Err(self.refuse(format!("{N} bytes of {name:?}")));
        }
        let mut bytes = Zeroizing::new([0; N]);
        bytes.copy_from_slice(&decoded[..N]);
        Ok(bytes)
    }

    fn sealed(&mut self) -> Result<Sealed, KeyError> {
        let kdf = KdfParams {
            memory_kib: self.parsed("memory-kib")?,
            passes: self.parsed("passes")?,
            lanes: self.parsed("lanes")?,
        };
        kdf.check().map_err(|expected| self.refuse(expected))?;
        Ok(Sealed {
            kdf,
            salt: *self.bytes::<SALT_BYTES>("salt")?,
            nonce: *self.bytes::<NONCE_BYTES>("nonce")?,
            bytes: *self.bytes::<SEALED_BYTES>("sealed")?,
        })
    }
}
