//! Errors of the parts below as the one refusal that a command ends with.

use std::io;
use std::path::Path;

use throughline_protocol::code::Code;

use crate::api::error::{Answer, Problem};
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
    let hint = match error {
        ConfigError::Missing { .. } => "throughline init",
        ConfigError::Io { .. }
        | ConfigError::TooBig { .. }
        | ConfigError::Syntax { .. }
        | ConfigError::Unknown { .. }
        | ConfigError::Value { .. } => "throughline config check",
    };
    Problem::new(error.code(), error.to_string()).hint(hint)
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

/// A file that was named on the line could not be read. Only a fault of the disk is one of the disk.
pub(crate) fn input(path: &Path, error: io::Error) -> Problem {
    use io::ErrorKind as Kind;
    let (shown, kind) = (path.display(), error.kind());
    let (code, detail) = if matches!(kind, Kind::NotFound | Kind::NotADirectory) {
        (Code::InputNotFound, format!("expected to read {shown}, got: {error}"))
    } else if kind == Kind::IsADirectory {
        (Code::InputFormat, format!("expected a file, got a directory: {shown}"))
    } else if kind == Kind::InvalidData {
        (Code::InputFormat, format!("expected text in UTF-8 in {shown}, got other bytes"))
    } else if matches!(kind, Kind::PermissionDenied | Kind::InvalidFilename | Kind::InvalidInput) {
        (Code::Usage, format!("expected a file that may be read, got {shown}: {error}"))
    } else {
        (Code::StoreIo, format!("expected to read {shown}, got: {error}"))
    };
    Problem::new(code, detail)
}

/// A file that `flag` named could not be written. Only a fault of the disk is one of the disk.
pub(crate) fn write(path: &Path, flag: &str, error: io::Error) -> Problem {
    use io::ErrorKind as Kind;
    let (shown, kind) = (path.display(), error.kind());
    let detail = if matches!(kind, Kind::NotFound | Kind::NotADirectory) {
        format!("expected a directory that exists, got none: {}", directory(path).display())
    } else if kind == Kind::IsADirectory {
        format!("expected a file to write, got a directory: {shown}")
    } else if kind == Kind::AlreadyExists {
        format!("expected a file that is not there yet, got one that stays as it is: {shown}")
    } else if matches!(kind, Kind::PermissionDenied | Kind::ReadOnlyFilesystem) {
        format!("expected a place that may be written to, got {shown}: permission denied")
    } else if matches!(kind, Kind::InvalidFilename | Kind::InvalidInput) {
        format!("expected a file name, got {shown}: {error}")
    } else {
        return Problem::new(Code::StoreIo, format!("expected to write {shown}, got: {error}"));
    };
    usage(detail).hint(format!("name another one with {flag}"))
}

/// Looks, before anything else is done, whether a file that `flag` named has a place to stand.
///
/// # Errors
/// As [`write`], for a directory in its place and for a directory above it that is not there.
pub(crate) fn writable(path: &Path, flag: &str) -> Answer<()> {
    let missing = if path.is_dir() {
        io::ErrorKind::IsADirectory
    } else if directory(path).is_dir() {
        return Ok(());
    } else {
        io::ErrorKind::NotFound
    };
    Err(write(path, flag, missing.into()))
}

/// The directory that a file is in.
#[must_use]
pub(crate) fn directory(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A word on the line is not what it should be.
pub(crate) fn usage(detail: impl Into<String>) -> Problem {
    Problem::new(Code::Usage, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fault_of_the_disk_is_called_one() {
        use io::ErrorKind as Kind;
        let path = Path::new("a/b.car");
        for (kind, reading, writing) in [
            (Kind::NotFound, Code::InputNotFound, Code::Usage),
            (Kind::NotADirectory, Code::InputNotFound, Code::Usage),
            (Kind::IsADirectory, Code::InputFormat, Code::Usage),
            (Kind::PermissionDenied, Code::Usage, Code::Usage),
            (Kind::InvalidFilename, Code::Usage, Code::Usage),
            (Kind::StorageFull, Code::StoreIo, Code::StoreIo),
            (Kind::Other, Code::StoreIo, Code::StoreIo),
        ] {
            assert_eq!(input(path, kind.into()).code(), reading, "{kind}");
            let problem = write(path, "-o", kind.into());
            assert_eq!(problem.code(), writing, "{kind}");
            assert_eq!(problem.fact("hint").is_some(), writing == Code::Usage, "{kind}");
        }
        assert!(write(path, "-o", Kind::NotFound.into()).detail().ends_with(": a"));
    }

    #[test]
    fn a_place_is_looked_at_before_the_work() {
        let place = tempfile::tempdir().unwrap();
        assert!(writable(&place.path().join("new.car"), "-o").is_ok());
        assert!(writable(Path::new("new.car"), "-o").is_ok(), "a bare name stands where the command runs");
        for path in [place.path().to_path_buf(), place.path().join("no/new.car")] {
            assert_eq!(writable(&path, "-o").unwrap_err().code(), Code::Usage, "{}", path.display());
        }
    }
}
