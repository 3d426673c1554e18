//! The owner key: the account. Encrypted under a passphrase unless its owner chose otherwise in so many words.

use std::fmt;

use throughline_protocol::id::Principal;
use zeroize::Zeroizing;

use super::file::{KEY_FILE_BYTES_MAX, KeysDir};
use super::passphrase::Passphrase;
use super::seal::{KdfParams, Sealed};
use super::seed::Seed;
use super::text::{KeyKind, KeyText, Secret, sealed_header};
use super::{KeyError, KeyOrigin};
use crate::dirs::Dirs;

const KIND: KeyKind = KeyKind::Owner;

/// How a new owner key is stored.
#[derive(Clone, Copy, Debug)]
pub enum Protection<'a> {
    /// Under this passphrase.
    Passphrase(&'a Passphrase),
    /// In the clear (`--no-passphrase`): whoever reads the file has the account.
    Plain,
}

/// A well-formed owner key file, not opened yet.
pub struct OwnerKeyFile(KeyText);

impl OwnerKeyFile {
    /// Makes a new owner key and stores it.
    ///
    /// # Errors
    /// [`KeyError::Exists`] when one is there already; otherwise what writing gives.
    pub fn create(dirs: &Dirs, protection: Protection<'_>) -> Result<Self, KeyError> {
        OwnerKeyFile::create_from(dirs, &Seed::generate()?, protection, KdfParams::RECOMMENDED)
    }

    pub(super) fn create_from(
        dirs: &Dirs,
        seed: &Seed,
        protection: Protection<'_>,
        kdf: KdfParams,
    ) -> Result<Self, KeyError> {
        let principal = seed.principal();
        let secret = match protection {
            Protection::Plain => Secret::Plain(seed.clone()),
            Protection::Passphrase(passphrase) => {
                let header = |sealed: &Sealed| sealed_header(KIND, principal, sealed);
                Secret::Sealed(Sealed::seal(seed, passphrase, kdf, header)?)
            }
        };
        let file = OwnerKeyFile(KeyText { kind: KIND, principal, secret });
        file.store(dirs)?;
        Ok(file)
    }

    /// Reads the owner key file; no passphrase is needed to learn whose it is.
    ///
    /// # Errors
    /// One of the `E_KEYFILE_…` codes; `E_KEYFILE_MISSING` on a machine without an owner key.
    pub fn inspect(dirs: &Dirs) -> Result<Self, KeyError> {
        let keys = KeysDir::open(dirs, KIND.file_name())?;
        let text = keys.read(KIND.file_name())?;
        let place = keys.path(KIND.file_name()).display().to_string();
        Ok(OwnerKeyFile(KeyText::parse(KIND, &text, &place)?))
    }

    /// Whose key it is. Of an encrypted file this is a claim until it is unlocked.
    #[must_use]
    pub fn principal(&self) -> Principal {
        self.0.principal
    }

    /// Whether a passphrase is needed.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        matches!(self.0.secret, Secret::Sealed(_))
    }

    /// The seed. Takes about a tenth of a second and 64 MiB; not for an async thread.
    ///
    /// A passphrase given for a key that is stored in the clear is not looked at.
    ///
    /// # Errors
    /// [`KeyError::Locked`] when a passphrase is needed, [`KeyError::Passphrase`] when it is another one (or the
    /// file was changed), [`KeyError::Format`] when the key is not the principal's.
    pub fn unlock(&self, passphrase: Option<&Passphrase>) -> Result<Seed, KeyError> {
        let sealed = match &self.0.secret {
            Secret::Plain(seed) => return Ok(seed.clone()),
            Secret::Sealed(sealed) => sealed,
        };
        let passphrase = passphrase.ok_or(KeyError::Locked)?;
        let seed = sealed.open(passphrase, &sealed_header(KIND, self.0.principal, sealed))?;
        if seed.principal() != self.0.principal {
            let expected = format!("the key of {}", self.0.principal.short());
            return Err(KeyError::Format { place: "the owner key".to_owned(), expected });
        }
        Ok(seed)
    }

    /// The portable text: what the file holds. An encrypted key stays encrypted; one in the clear is a secret.
    #[must_use]
    pub fn export(&self) -> Zeroizing<String> {
        self.0.render()
    }

    /// Reads an exported text; blank space around it and the line ends of a mail or another system do not matter.
    ///
    /// # Errors
    /// [`KeyError::Format`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let place = "the text to import";
        if text.len() > KEY_FILE_BYTES_MAX {
            let expected = format!("at most {KEY_FILE_BYTES_MAX} bytes");
            return Err(KeyError::Format { place: place.to_owned(), expected });
        }
        let mut clean = Zeroizing::new(String::with_capacity(text.len() + 1));
        for line in text.trim().lines() {
            clean.push_str(line.trim_end());
            clean.push('\n');
        }
        Ok(OwnerKeyFile(KeyText::parse(KIND, &clean, place)?))
    }

    /// Stores this key on this machine after opening it, so that a key nobody can open is never taken for a copy.
    /// The same owner's key that is there already stays as it is.
    ///
    /// # Errors
    /// As [`OwnerKeyFile::unlock`]; [`KeyError::OtherOwner`] when another owner's key is there.
    pub fn import(&self, dirs: &Dirs, passphrase: Option<&Passphrase>) -> Result<KeyOrigin, KeyError> {
        self.unlock(passphrase)?;
        match self.store(dirs) {
            Ok(()) => Ok(KeyOrigin::Created),
            Err(KeyError::Exists { .. }) => {
                let have = OwnerKeyFile::inspect(dirs)?.principal();
                let need = self.principal();
                if have == need { Ok(KeyOrigin::Existing) } else { Err(KeyError::OtherOwner { have, need }) }
            }
            Err(error) => Err(error),
        }
    }

    fn store(&self, dirs: &Dirs) -> Result<(), KeyError> {
        dirs.create()?;
        KeysDir::open(dirs, KIND.file_name())?.write_new(KIND.file_name(), &self.0.render())
    }
}

impl fmt::Debug for OwnerKeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_encrypted() { "encrypted" } else { "in the clear" };
        write!(f, "OwnerKeyFile of {}, {state}", self.principal().short())
    }
}
