//! API tokens: 32 random bytes in a 0600 file, compared in constant time, with a read or a write scope.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::RwLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

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
    /// When a file cannot be read or written.
    pub fn open(dir: &Path) -> io::Result<Self> {
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

fn read_or_make(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if text.trim().len() >= 43 => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    let text = URL_SAFE_NO_PAD.encode(bytes);
    let fresh = path.with_extension("new");
    let _ = fs::remove_file(&fresh);
    let mut out = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    fs::rename(&fresh, path)?;
    Ok(text)
}
