//! The keys of this machine and of its owner, on disk and in memory.
//!
//! | file | what it does | protected by |
//! | --- | --- | --- |
//! | `node.key` | signs entries as holder and device, proves who asks | file mode |
//! | `peer.key` | network identity | file mode |
//! | `owner.key` | grants, revokes, hands over, says what the owner says | a passphrase, and file mode |
//!
//! A file holds the seed only; all else is derived. No file is read that another user could have read or written,
//! none is ever overwritten, and no secret is printed: `Debug` of every type here shows principals only. The form of
//! a file stands in the `text` module.

mod error;
mod file;
mod node;
mod owner;
mod passphrase;
mod seal;
mod seed;
#[cfg(test)]
mod tests;
mod text;

pub use error::KeyError;
pub(crate) use file::{read_private, write_private};
pub use node::{FRESH_MARK, KeyOrigin, NodeKeys};
pub use owner::{OwnerKeyFile, Protection};
pub use passphrase::{PASSPHRASE_BYTES_MAX, Passphrase, PassphraseError, PassphraseSource};
pub use seed::{SEED_BYTES, Seed};
pub use text::KeyKind;
