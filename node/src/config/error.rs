//! Why the configuration is not usable.

use std::io;
use std::path::PathBuf;

use throughline_protocol::code::Code;

/// Why the configuration is not usable. Every message says where: a line of the file, a variable or a flag.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("expected to read {}, got: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The user named a file and there is none.
    #[error("expected the config file that {variable} names, got none: {}", path.display())]
    Missing {
        /// Which file.
        path: PathBuf,
        /// What named it.
        variable: &'static str,
    },
    /// The file is larger than any configuration.
    #[error("expected {} to have at most {max_bytes} bytes, got more", path.display())]
    TooBig {
        /// Which file.
        path: PathBuf,
        /// The limit.
        max_bytes: u64,
    },
    /// The file is no TOML.
    #[error("{place}: expected toml, got: {message}")]
    Syntax {
        /// File and line.
        place: String,
        /// What the parser said.
        message: String,
    },
    /// A key or a section that does not exist.
    #[error("{place}: expected a known key, got {got:?}; the nearest is {nearest:?}")]
    Unknown {
        /// File and line.
        place: String,
        /// The key as it stands there.
        got: String,
        /// The known key that is most like it.
        nearest: &'static str,
    },
    /// A value of another type, out of range or not understood.
    #[error("{place}: expected {key} to be {expected}, got {got}")]
    Value {
        /// File and line, variable or flag.
        place: String,
        /// The key.
        key: &'static str,
        /// What it takes.
        expected: String,
        /// What came.
        got: String,
    },
}

impl ConfigError {
    /// The stable code: always `E_CONFIG`.
    #[must_use]
    pub fn code(&self) -> Code {
        Code::Config
    }
}
