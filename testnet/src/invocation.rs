//! One command of the program under test, from its arguments to its exit code.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{LIMIT, hygiene};

/// A command that was not started yet.
#[derive(Debug)]
pub struct Invocation {
    bin: PathBuf,
    user: PathBuf,
    home: Option<PathBuf>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    stdin: Vec<u8>,
    secrets: Vec<String>,
}

impl Invocation {
    pub(crate) fn new(bin: &Path, user: &Path, home: Option<&Path>, args: &[&str]) -> Self {
        Invocation {
            bin: bin.to_owned(),
            user: user.to_owned(),
            home: home.map(Path::to_owned),
            args: args.iter().map(OsString::from).collect(),
            env: Vec::new(),
            stdin: Vec::new(),
            secrets: Vec::new(),
        }
    }

    /// With one more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// With an environment variable. No other but `PATH`, `HOME`, `TERM` and the locale is passed on.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// With these bytes on stdin.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// With a passphrase on stdin, which must then appear in neither stream.
    #[must_use]
    pub fn passphrase(mut self, passphrase: &str) -> Self {
        self.secrets.push(passphrase.to_owned());
        self.args.extend(["--passphrase-fd", "0"].map(OsString::from));
        self.stdin(format!("{passphrase}\n"))
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// When it cannot be started, does not end within [`LIMIT`], or a stream breaks a rule of every output.
    pub fn run(self) -> Result<Ran> {
        let mut child = self.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            let bytes = self.stdin.clone();
            // A command that reads nothing closes the pipe; that is no failure.
            std::thread::spawn(move || stdin.write_all(&bytes));
        }
        let stdout = drain(child.stdout.take().context("no stdout")?);
        let stderr = drain(child.stderr.take().context("no stderr")?);
        let began = Instant::now();
        let mut collect =
            |from: Receiver<Vec<u8>>| match from.recv_timeout(LIMIT.saturating_sub(began.elapsed())) {
                Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
                Err(_) => {
                    child.kill().ok();
                    bail!("{} did not end within {LIMIT:?}", self.shown())
                }
            };
        let (stdout, stderr) = (collect(stdout)?, collect(stderr)?);
        let status = child.wait().context("waiting for the command")?;
        let mut secrets = self.home.as_deref().map(hygiene::secrets_below).unwrap_or_default();
        secrets.extend(self.secrets.iter().cloned());
        let ran = Ran { shown: self.shown(), code: status.code(), stdout, stderr };
        hygiene::check(&ran.stdout, "stdout", &secrets).with_context(|| ran.to_string())?;
        hygiene::check(&ran.stderr, "stderr", &secrets).with_context(|| ran.to_string())?;
        Ok(ran)
    }

    /// Runs it with `--json`: stdout must be exactly one line that holds one object.
    ///
    /// # Errors
    /// As [`Invocation::run`], and when stdout is anything else.
    pub fn json(self) -> Result<Ran> {
        let ran = self.arg("--json").run()?;
        ensure!(
            ran.stdout.ends_with('\n') && ran.stdout.lines().count() == 1,
            "expected one line on stdout\n{ran}"
        );
        ensure!(
            ran.object().is_some_and(|object| object.is_object()),
            "expected one object on stdout\n{ran}"
        );
        Ok(ran)
    }

    /// Starts it with pipes on all three streams.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn spawn(&self) -> Result<Child> {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().with_context(|| format!("starting {}", self.shown()))
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.bin);
        command.env_clear().env("HOME", &self.user).env("TERM", "dumb").env("LC_ALL", "C.UTF-8");
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command.envs(self.env.iter().cloned());
        if let Some(home) = &self.home {
            command.arg("--home").arg(home);
        }
        command.arg("--no-input").args(&self.args);
        command
    }

    pub(crate) fn shown(&self) -> String {
        let args: Vec<_> = self.args.iter().map(|arg| arg.to_string_lossy()).collect();
        format!("throughline {}", args.join(" "))
    }
}

/// Reads a stream to its end on a thread of its own, so that neither pipe can fill up and block the other.
fn drain(mut stream: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).ok();
        sender.send(bytes)
    });
    receiver
}

/// A command that ended.
#[derive(Clone, Debug)]
pub struct Ran {
    shown: String,
    /// The exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

impl Ran {
    /// The object on stdout, if there is one.
    #[must_use]
    pub fn object(&self) -> Option<Value> {
        serde_json::from_str(self.stdout.trim_end()).ok()
    }

    /// The object, after the exit code was checked.
    ///
    /// # Errors
    /// When it ended with another code or wrote no object.
    pub fn expect(&self, code: i32) -> Result<Value> {
        ensure!(self.code == Some(code), "expected exit code {code}\n{self}");
        self.object().with_context(|| format!("expected an object on stdout\n{self}"))
    }

    /// The error object, after exit code and error code were checked.
    ///
    /// # Errors
    /// When it ended with another code, or with another error.
    pub fn refused(&self, code: i32, name: &str) -> Result<Value> {
        let object = self.expect(code)?;
        ensure!(object["kind"] == "error", "expected an error object\n{self}");
        ensure!(object["error"]["code"] == name, "expected {name}\n{self}");
        Ok(object["error"].clone())
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "$ {}   -> {:?}", self.shown, self.code)?;
        writeln!(f, "stdout: {}", self.stdout)?;
        write!(f, "stderr: {}", self.stderr)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use crate::Lab;

    /// One test at a time: a child that another thread has just forked still holds a script open for writing, and
    /// then it cannot be run.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn alone() -> MutexGuard<'static, ()> {
        ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A lab whose program is a shell script; `--home DIR --no-input` come first.
    fn lab(dir: &tempfile::TempDir, script: &str) -> Lab {
        let bin = dir.path().join("program");
        fs::write(&bin, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&bin, fs::Permissions::from_mode(0o700)).unwrap();
        Lab::new(bin).unwrap()
    }

    #[test]
    fn the_object_and_the_code_are_both_checked() {
        let _alone = alone();
        let dir = tempfile::tempdir().unwrap();
        let script = r#"echo '{"v":1,"kind":"error","error":{"code":"E_SEALED"}}'; exit 7"#;
        let ran = lab(&dir, script).home("a").cli(&["append"]).json().unwrap();
        assert_eq!(ran.refused(7, "E_SEALED").unwrap()["code"], "E_SEALED");
        assert!(ran.refused(7, "E_FENCED").is_err());
        assert!(ran.expect(0).is_err());
    }

    #[test]
    fn json_is_one_line_and_nothing_else() {
        let _alone = alone();
        let dir = tempfile::tempdir().unwrap();
        for script in ["echo '{}'; echo '{}'", "printf '{}'", "echo hello", "echo '[]'", ":"] {
            assert!(lab(&dir, script).home("a").cli(&[]).json().is_err(), "{script}");
        }
        assert!(lab(&dir, "echo '{}'").home("a").cli(&[]).json().is_ok());
    }

    #[test]
    fn a_passphrase_reaches_stdin_and_must_not_come_back() {
        let _alone = alone();
        let dir = tempfile::tempdir().unwrap();
        let reads = r#"read line; test "$line" = "open sesame" && echo "$@""#;
        let ran = lab(&dir, reads).home("a").cli(&["init"]).passphrase("open sesame").run().unwrap();
        assert!(ran.stdout.ends_with("--no-input init --passphrase-fd 0\n"), "{ran}");
        let leaks = lab(&dir, r#"read line; echo "$line" >&2"#);
        assert!(leaks.home("a").cli(&["init"]).passphrase("open sesame").run().is_err());
    }

    #[test]
    fn only_named_variables_are_passed_on() {
        let _alone = alone();
        let dir = tempfile::tempdir().unwrap();
        let ran = lab(&dir, "env").cli(&[]).env("PAGER", "cat").run().unwrap();
        let shell_sets = ["PWD", "OLDPWD", "SHLVL", "_"];
        let names = ran.stdout.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name);
        let mut names: Vec<_> = names.filter(|name| !shell_sets.contains(name)).collect();
        names.sort_unstable();
        assert_eq!(names, ["HOME", "LC_ALL", "PAGER", "PATH", "TERM"]);
    }

    #[test]
    fn a_terminal_is_one() {
        let _alone = alone();
        let dir = tempfile::tempdir().unwrap();
        let lab = lab(&dir, "test -t 0 && test -t 1 && test -t 2 && echo yes; exit 3");
        let terminal = lab.cli(&[]).on_terminal().unwrap();
        assert_eq!((terminal.code, terminal.bytes.as_slice()), (Some(3), &b"yes\r\n"[..]));
    }
}
