//! Errors of the parts below as the one refusal that a command ends with.

use std::io;
use std::path::Path;

use throughline_protocol::code::Code;

use crate::api::error::Problem;
use crate::config::ConfigError;
use crate::dirs::DirsError;
use crate::keys::{KeyError, PassphraseError};

/// Marks a refusal that only says that nobody reads stdout any more.
const CLOSED_PIPE: &str = "closedPipe";

/// A key could not be read, written or opened.
pub(crate) fn key(error: KeyError) -> Problem {
    Problem::new(error.code(), error.to_string())
}

/// A directory could not be named, made or trusted.
pub(crate) fn dirs(error: DirsError) -> Problem {
    Problem::new(error.code(), error.to_string())
}

/// The configuration is not usable.
pub(crate) fn config(error: ConfigError) -> Problem {
    Problem::new(error.code(), error.to_string()).hint("throughline config check")
}

/// There is no passphrase.
pub(crate) fn passphrase(error: PassphraseError) -> Problem {
    Problem::new(error.code(), error.to_string())
}

/// stdout takes no more.
pub(crate) fn stdout(error: io::Error) -> Problem {
    let closed = error.kind() == io::ErrorKind::BrokenPipe;
    Problem::new(Code::StoreIo, format!("expected to write to stdout, got: {error}"))
        .with(CLOSED_PIPE, closed)
}

/// Whether it only says that somebody closed stdout.
pub(crate) fn is_closed_pipe(problem: &Problem) -> bool {
    problem.fact(CLOSED_PIPE).and_then(serde_json::Value::as_bool).unwrap_or_default()
}

/// A file that was named on the line could not be read.
pub(crate) fn input(path: &Path, error: io::Error) -> Problem {
    let code = if error.kind() == io::ErrorKind::NotFound { Code::InputNotFound } else { Code::StoreIo };
    Problem::new(code, format!("expected to read {}, got: {error}", path.display()))
}

/// A file could not be written.
pub(crate) fn write(path: &Path, error: io::Error) -> Problem {
    Problem::new(Code::StoreIo, format!("expected to write {}, got: {error}", path.display()))
}

/// A word on the line is not what it should be.
pub(crate) fn usage(detail: impl Into<String>) -> Problem {
    Problem::new(Code::Usage, detail)
}
