//! API tokens: 32 random bytes in a 0600 file, compared in constant time, with a read or a write scope.
//!
//! A token file is read as a key file is: one that is a link, of another user or open to others is refused, for whoever could read
//! it may know the token, and whoever could write it may have chosen it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::keys::{KeyError, read_private, write_private};

/// Length of a token's text, in bytes: 32 random bytes in base64url.
const TOKEN_BYTES: usize = 43;

/// What a token allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// GET and HEAD.
    Read,
    /// Everything. Owner acts need owner-signed blobs all the same.
    Write,
}

impl Scope {
    /// The word of the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Write => "write",
        }
    }
}

/// The tokens of one run directory. Only their hashes stay in memory.
#[derive(Debug, Default)]
pub struct Tokens {
    known: RwLock<Vec<([u8; 32], Scope)>>,
    dir: Option<PathBuf>,
}

impl Tokens {
    /// Reads `token` (write) and `token.read` under `dir`; makes them if they are not there.
    ///
    /// # Errors
    /// `E_KEYFILE_MODE`, `E_KEYFILE_OWNER` or `E_KEYFILE_TYPE` for a file that others could have read or written; when it cannot be
    /// read or written.
    pub fn open(dir: &Path) -> Result<Self, KeyError> {
        let tokens = Tokens { known: RwLock::default(), dir: Some(dir.to_owned()) };
        for scope in [Scope::Write, Scope::Read] {
            let text = read_or_make(&file(dir, scope))?;
            tokens.add(&text, scope);
        }
        Ok(tokens)
    }

    /// Where the token of a scope is kept.
    #[must_use]
    pub fn path(&self, scope: Scope) -> Option<PathBuf> {
        self.dir.as_deref().map(|dir| file(dir, scope))
    }

    fn add(&self, token: &str, scope: Scope) {
        if let Ok(mut known) = self.known.write() {
            known.push((Sha256::digest(token.as_bytes()).into(), scope));
        }
    }

    /// The scope of a token, if it is one of ours. Hashes are compared, all of each of them.
    #[must_use]
    pub fn scope_of(&self, token: &str) -> Option<Scope> {
        let given: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let known = self.known.read().ok()?;
        let mut found = None;
        for (hash, scope) in known.iter() {
            let difference = hash.iter().zip(&given).fold(0_u8, |all, (a, b)| all | (a ^ b));
            if difference == 0 {
                found = Some(*scope);
            }
        }
        found
    }
}

fn file(dir: &Path, scope: Scope) -> PathBuf {
    dir.join(match scope {
        Scope::Write => "token",
        Scope::Read => "token.read",
    })
}

/// The token in a file, which is made when it is not there. One that is cut short is made anew.
///
/// # Errors
/// As [`Tokens::open`].
pub(crate) fn read_or_make(path: &Path) -> Result<Zeroizing<String>, KeyError> {
    match read(path) {
        Ok(text) if text.len() >= TOKEN_BYTES => return Ok(text),
        Ok(_) => fs::remove_file(path).map_err(KeyError::io("replace", path))?,
        Err(KeyError::Missing { .. }) => {}
        Err(refused) => return Err(refused),
    }
    let mut bytes = Zeroizing::new([0_u8; 32]);
    getrandom::fill(&mut *bytes)
        .map_err(|error| KeyError::System { expected: "random bytes", got: error.to_string() })?;
    let text = Zeroizing::new(URL_SAFE_NO_PAD.encode(*bytes));
    match write_private(path, &text) {
        Ok(()) => Ok(text),
        // Another process made it at the same time.
        Err(KeyError::Exists { .. }) => read(path),
        Err(refused) => Err(refused),
    }
}

/// The token in a file.
///
/// # Errors
/// As [`Tokens::open`]; that it is not there.
pub(crate) fn read(path: &Path) -> Result<Zeroizing<String>, KeyError> {
    Ok(Zeroizing::new(read_private(path)?.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use tempfile::TempDir;
    use throughline_protocol::code::Code;

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn refused(dir: &Path) -> KeyError {
        Tokens::open(dir).expect_err("a refusal")
    }

    #[test]
    fn tokens_are_made_once_for_their_owner_alone() {
        let dir = TempDir::new().unwrap();
        let tokens = Tokens::open(dir.path()).unwrap();
        for (name, scope) in [("token", Scope::Write), ("token.read", Scope::Read)] {
            let path = dir.path().join(name);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let text = read(&path).unwrap();
            assert_eq!((text.len(), tokens.scope_of(&text)), (TOKEN_BYTES, Some(scope)));
            Tokens::open(dir.path()).unwrap();
            assert_eq!(read(&path).unwrap(), text);
            // What is stricter is as good; what was cut short is no token.
            mode(&path, 0o400);
            assert_eq!(Tokens::open(dir.path()).unwrap().scope_of(&text), Some(scope));
            mode(&path, 0o600);
            fs::write(&path, &text[..20]).unwrap();
            let again = Tokens::open(dir.path()).unwrap();
            assert_eq!((again.scope_of(&text), again.scope_of(&text[..20])), (None, None));
        }
    }

    #[test]
    fn a_token_that_others_could_read_or_write_is_refused_with_the_command_that_helps() {
        let dir = TempDir::new().unwrap();
        for name in ["token", "token.read"] {
            Tokens::open(dir.path()).unwrap();
            let path = dir.path().join(name);
            for loose in [0o640, 0o604, 0o602, 0o660, 0o644] {
                mode(&path, loose);
                let error = refused(dir.path());
                assert_eq!(error.code(), Code::KeyfileMode);
                assert!(error.to_string().ends_with(&format!("chmod 600 {}", path.display())), "{error}");
            }
            mode(&path, 0o600);
        }
    }

    #[test]
    fn a_token_that_is_a_link_or_no_file_is_refused() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("token");
        let elsewhere = dir.path().join("elsewhere");
        write_private(&elsewhere, &"t".repeat(TOKEN_BYTES)).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert_eq!(refused(dir.path()).code(), Code::KeyfileType);
        // A link to nothing must not be followed to make a file where it points.
        fs::remove_file(&elsewhere).unwrap();
        assert_eq!(refused(dir.path()).code(), Code::KeyfileType);
        assert!(!elsewhere.exists());
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(refused(dir.path()).code(), Code::KeyfileType);
    }
}
