//! Where a passphrase comes from: a file descriptor or the terminal, never an argument or an environment variable.

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Read};

use throughline_protocol::code::Code;
use zeroize::Zeroizing;

/// Longest passphrase, in bytes.
pub const PASSPHRASE_BYTES_MAX: usize = 1024;

/// A passphrase: not empty, one line, wiped when dropped, never printed.
#[derive(Clone)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// Takes `text` as it is, without a line end.
    ///
    /// # Errors
    /// [`PassphraseError::Empty`], [`PassphraseError::TooLong`].
    pub fn new(text: Zeroizing<String>) -> Result<Self, PassphraseError> {
        if text.is_empty() {
            return Err(PassphraseError::Empty);
        }
        if text.len() > PASSPHRASE_BYTES_MAX {
            return Err(PassphraseError::TooLong);
        }
        Ok(Passphrase(text))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Passphrase")
    }
}

/// Why there is no passphrase.
#[derive(Debug, thiserror::Error)]
pub enum PassphraseError {
    /// Nobody can be asked.
    #[error("a passphrase is needed and there is no terminal to ask on: pass --passphrase-fd N")]
    NoTerminal,
    /// Asking was forbidden.
    #[error("a passphrase is needed and --no-input forbids to ask: pass --passphrase-fd N")]
    NoInput,
    /// Nothing was given.
    #[error("expected a passphrase, got an empty line")]
    Empty,
    /// More than any passphrase.
    #[error("expected a passphrase of at most {PASSPHRASE_BYTES_MAX} bytes, got more")]
    TooLong,
    /// Not text.
    #[error("expected a passphrase in utf-8, got other bytes")]
    NotText,
    /// The second time differs from the first.
    #[error("expected the same passphrase twice, got two different ones")]
    Differs,
    /// The number names an output.
    #[error("expected a descriptor to read from in --passphrase-fd, got {0}, which is an output")]
    Output(u32),
    /// The descriptor or the terminal could not be read.
    #[error("expected to read the passphrase from {place}, got: {source}")]
    Io {
        /// What was read.
        place: String,
        /// What the operating system said.
        source: io::Error,
    },
}

impl PassphraseError {
    /// The stable code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            PassphraseError::NoTerminal | PassphraseError::NoInput => Code::Prompt,
            PassphraseError::Empty
            | PassphraseError::TooLong
            | PassphraseError::NotText
            | PassphraseError::Differs
            | PassphraseError::Output(_)
            | PassphraseError::Io { .. } => Code::Usage,
        }
    }
}

/// Where the passphrase of this command comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassphraseSource {
    /// `--passphrase-fd N`: the first line of this descriptor.
    Descriptor(u32),
    /// The terminal, if there is one.
    Terminal,
    /// Nowhere: `--no-input` was given and no descriptor.
    Nowhere,
}

impl PassphraseSource {
    /// The passphrase of an existing key.
    ///
    /// # Errors
    /// [`PassphraseError`]; `E_PROMPT` when nobody can be asked.
    pub fn existing(self, prompt: &str) -> Result<Passphrase, PassphraseError> {
        match self {
            PassphraseSource::Descriptor(fd) => from_descriptor(fd),
            PassphraseSource::Terminal => from_terminal(prompt),
            PassphraseSource::Nowhere => Err(PassphraseError::NoInput),
        }
    }

    /// The passphrase for a new key; a person types it twice.
    ///
    /// # Errors
    /// As [`PassphraseSource::existing`], and [`PassphraseError::Differs`].
    pub fn new_key(self, prompt: &str) -> Result<Passphrase, PassphraseError> {
        let first = self.existing(prompt)?;
        if self == PassphraseSource::Terminal && from_terminal("Again: ")?.bytes() != first.bytes() {
            return Err(PassphraseError::Differs);
        }
        Ok(first)
    }
}

/// Reads the first line of a descriptor that was inherited.
///
/// It is opened by its name under `/proc/self/fd` (`/dev/fd` where there is no proc) and not taken over: a number
/// cannot be turned into an owned descriptor safely. Pipes, files and here-documents can be opened so; a socket
/// cannot.
fn from_descriptor(fd: u32) -> Result<Passphrase, PassphraseError> {
    let place = format!("descriptor {fd}");
    let failed = |source| PassphraseError::Io { place: place.clone(), source };
    match fd {
        0 => first_line(io::stdin().lock(), &place),
        // Opening the pipe behind an output would wait for ourselves.
        1 | 2 => Err(PassphraseError::Output(fd)),
        _ => {
            let names = if cfg!(target_os = "linux") { "/proc/self/fd" } else { "/dev/fd" };
            first_line(File::open(format!("{names}/{fd}")).map_err(failed)?, &place)
        }
    }
}

/// The first line of `input` without its end; what follows does not count.
fn first_line(mut input: impl Read, place: &str) -> Result<Passphrase, PassphraseError> {
    // Room for the longest passphrase and its line end, allocated once so that no copy is left behind.
    let mut bytes = Zeroizing::new([0_u8; PASSPHRASE_BYTES_MAX + 2]);
    let mut length = 0;
    while length < bytes.len() && !bytes[..length].contains(&b'\n') {
        match input.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(PassphraseError::Io { place: place.to_owned(), source }),
        }
    }
    let line = bytes[..length].split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| PassphraseError::NotText)?;
    Passphrase::new(Zeroizing::new(text.to_owned()))
}

fn from_terminal(prompt: &str) -> Result<Passphrase, PassphraseError> {
    if !io::stdin().is_terminal() {
        return Err(PassphraseError::NoTerminal);
    }
    let typed = rpassword::prompt_password(prompt);
    let typed = typed.map_err(|source| PassphraseError::Io { place: "the terminal".to_owned(), source })?;
    Passphrase::new(Zeroizing::new(typed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(input: &[u8]) -> Result<Vec<u8>, PassphraseError> {
        first_line(input, "a test").map(|passphrase| passphrase.bytes().to_vec())
    }

    #[test]
    fn the_first_line_counts() {
        assert_eq!(line(b"a b \nrest").unwrap(), b"a b ");
        assert_eq!(line(b"ab\r\n").unwrap(), b"ab");
        assert_eq!(line(b"no end").unwrap(), b"no end");
        assert!(matches!(line(b"\nrest"), Err(PassphraseError::Empty)));
        assert!(matches!(line(&[0xff]), Err(PassphraseError::NotText)));
    }

    #[test]
    fn the_length_is_bounded() {
        let longest = vec![b'a'; PASSPHRASE_BYTES_MAX];
        assert_eq!(line(&longest).unwrap(), longest);
        assert!(matches!(line(&vec![b'a'; PASSPHRASE_BYTES_MAX + 1]), Err(PassphraseError::TooLong)));
        assert!(matches!(line(&vec![b'a'; 10_000]), Err(PassphraseError::TooLong)));
    }

    #[test]
    fn a_descriptor_is_read_and_an_output_refused() {
        use std::io::{Seek, Write};
        use std::os::fd::AsRawFd;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"from a file\nmore").unwrap();
        file.rewind().unwrap();
        let fd = u32::try_from(file.as_raw_fd()).unwrap();
        assert_eq!(PassphraseSource::Descriptor(fd).new_key("").unwrap().bytes(), b"from a file");
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"from a pipe\n").unwrap();
        let fd = u32::try_from(reader.as_raw_fd()).unwrap();
        assert_eq!(PassphraseSource::Descriptor(fd).existing("").unwrap().bytes(), b"from a pipe");
        assert_eq!(PassphraseSource::Descriptor(1).existing("").unwrap_err().code(), Code::Usage);
        assert_eq!(PassphraseSource::Descriptor(9_999).existing("").unwrap_err().code(), Code::Usage);
    }

    #[test]
    fn without_input_the_flag_is_named() {
        let error = PassphraseSource::Nowhere.existing("").unwrap_err();
        assert_eq!(error.code(), Code::Prompt);
        assert!(error.to_string().contains("--passphrase-fd"));
    }
}
