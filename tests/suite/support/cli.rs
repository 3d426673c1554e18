//! Runs the command line as a process, hermetically: its own home, no variable of the surroundings, no terminal.
//!
//! Whatever runs, both streams are checked: no escape byte, and with `--json` exactly one line that is one object.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

/// The binary, built from the same `main` as `throughline`.
const BINARY: &str = env!("CARGO_BIN_EXE_throughline-under-test");

/// The command line with one home directory.
#[derive(Clone, Debug)]
pub(crate) struct Cli {
    home: PathBuf,
}

/// How a command ended.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// The exit code.
    pub(crate) rc: i32,
    /// All of stdout.
    pub(crate) stdout: String,
    /// All of stderr.
    pub(crate) stderr: String,
}

impl Cli {
    /// With `home`, which need not exist.
    pub(crate) fn new(home: impl Into<PathBuf>) -> Self {
        Cli { home: home.into() }
    }

    /// The home directory.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// A command that is not started yet. stdin is closed.
    pub(crate) fn command<I: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(BINARY);
        command
            .env_clear()
            .env("HOME", &self.home)
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("LANG", "C.UTF-8")
            .arg("--home")
            .arg(&self.home)
            .arg("--no-input")
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        Run::of(self.command(args).output().expect("the binary runs"))
    }

    /// Runs a command to its end with this on stdin; with `--passphrase-fd 0` it is the passphrase.
    pub(crate) fn run_with_stdin(&self, args: &[&str], stdin: &[u8]) -> Run {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().expect("the binary runs");
        let mut pipe = child.stdin.take().expect("stdin is a pipe");
        // A command that ends without reading its input closes the pipe; that is its right.
        let _ = pipe.write_all(stdin);
        drop(pipe);
        Run::of(child.wait_with_output().expect("the binary ends"))
    }

    /// Runs a command with `--json` to its end; the answer is its exit code and the one object.
    pub(crate) fn json(&self, args: &[&str]) -> (i32, Value) {
        let run = self.run(&[args, &["--json"]].concat());
        (run.rc, run.object())
    }

    /// Runs a command with `--json` that must end with 0.
    pub(crate) fn ok(&self, args: &[&str]) -> Value {
        let run = self.run(&[args, &["--json"]].concat());
        assert_eq!(run.rc, 0, "{args:?}\n{}\n{}", run.stdout, run.stderr);
        run.object()
    }

    /// Makes the home a node with an unprotected owner key.
    pub(crate) fn init_owner(&self) -> Value {
        self.ok(&["init", "--owner", "new", "--no-passphrase"])
    }

    /// Starts a node on loopback and waits until it is ready.
    pub(crate) fn serve(&self, more: &[&str]) -> Serving {
        self.serving(
            &[&["serve", "--json", "--listen", "/ip4/127.0.0.1/tcp/0", "--http", "off"], more].concat(),
        )
    }

    /// The same at another address.
    pub(crate) fn serve_on(&self, address: &str) -> Serving {
        self.serving(&["serve", "--json", "--listen", address, "--http", "off"])
    }

    /// No node of a test beside this one, and none on the machine's network, may be found and connected to.
    fn look_for_nobody(&self) {
        let path = self.home.join("config.toml");
        let config = std::fs::read_to_string(&path).expect("a configuration, which `init` wrote");
        // A server does not look; a desktop does unless it is told not to.
        let config = config.replace("#mdns = true", "mdns = false").replace("#mdns = false", "mdns = false");
        assert!(config.contains("\nmdns = false\n"), "{config}");
        std::fs::write(&path, config).expect("the configuration");
    }

    fn serving(&self, args: &[&str]) -> Serving {
        self.look_for_nobody();
        let mut child = self.command(args).stderr(Stdio::inherit()).spawn().expect("the binary runs");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not ready but {line:?}"));
        assert_eq!(ready["kind"], "ready", "{ready}");
        Serving { cli: self.clone(), child, lines, ready }
    }
}

impl Run {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| {
            assert!(!bytes.contains(&0x1b), "an escape byte in {:?}", String::from_utf8_lossy(&bytes));
            String::from_utf8(bytes).expect("utf-8")
        };
        let rc = output.status.code().unwrap_or(-1);
        Run { rc, stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// stdout as the one object of a `--json` command.
    pub(crate) fn object(&self) -> Value {
        let line = self.stdout.strip_suffix('\n').unwrap_or_else(|| panic!("expected a line, got {self:?}"));
        assert!(!line.contains('\n'), "expected one line, got {self:?}");
        let value: Value =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("expected JSON, got {self:?}"));
        assert_eq!(value["v"], 1, "{value}");
        assert!(value["kind"].is_string(), "{value}");
        value
    }

    /// stdout as the objects of a `--jsonl` command, without the last one, which must be `end`.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let mut objects: Vec<Value> =
            self.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let end = objects.pop().expect("an end");
        assert_eq!(end["kind"], "end", "{end}");
        assert_eq!(end["count"], objects.len(), "{end}");
        objects
    }

    /// The code of the error that the command ended with.
    pub(crate) fn error_code(&self) -> String {
        let object = self.object();
        assert_eq!(object["kind"], "error", "{object}");
        object["error"]["code"].as_str().expect("a code").to_owned()
    }
}

/// A node that runs; it is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Serving {
    cli: Cli,
    child: Child,
    lines: BufReader<ChildStdout>,
    ready: Value,
}

impl Serving {
    /// The line that told that it is ready.
    pub(crate) fn ready(&self) -> &Value {
        &self.ready
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }

    /// Asks it to end and waits; the answer is its exit code.
    pub(crate) fn stop(mut self) -> i32 {
        self.cli.ok(&["stop"]);
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("utf-8");
        self.child.wait().expect("it ends").code().unwrap_or(-1)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
