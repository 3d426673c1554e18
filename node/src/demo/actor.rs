//! One node of the demo: a home, and at most one process that serves it.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::Value;
use throughline_protocol::code::Code;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::api::client::{Client, Endpoint};
use crate::api::error::{Answer, Problem};
use crate::outcome::Exit;

/// The longest that one command may take. It only ends what hangs.
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// Loopback only, ports chosen by the system, nobody looked for, no TCP door.
const CONFIG: &str = "[node]\nlisten = [\"/ip4/127.0.0.1/udp/0/quic-v1\", \"/ip4/127.0.0.1/tcp/0\"]\nmdns = false\n\n\
                      [api]\nhttp = \"off\"\n";

/// A node of the demo.
pub(super) struct Actor {
    name: &'static str,
    exe: PathBuf,
    home: PathBuf,
    serving: Option<Child>,
}

/// A command that ended with an object.
pub(super) struct Ran {
    shown: String,
    exit: Option<i32>,
    object: Value,
}

impl Actor {
    /// A node of this name below `dir`, with its configuration.
    pub(super) fn new(name: &'static str, exe: &Path, dir: &Path) -> Answer<Self> {
        let home = dir.join(name);
        std::fs::create_dir(&home)
            .and_then(|()| std::fs::write(home.join("config.toml"), CONFIG))
            .map_err(|error| Problem::new(Code::StoreIo, format!("{}: {error}", home.display())))?;
        Ok(Actor { name, exe: exe.to_owned(), home, serving: None })
    }

    /// Its name, which is also its alias among the others.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Its home directory.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// Its API.
    pub(super) fn api(&self) -> Client {
        Client::new(Endpoint::Socket(self.home.join("run").join("api.sock")))
    }

    /// Runs a command on this home to its end.
    pub(super) async fn run(&self, args: &[&str]) -> Answer<Ran> {
        let shown = format!("throughline {}", args.join(" "));
        let mut command = self.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = timeout(COMMAND_MAX, command.output()).await.map_err(|_| {
            Problem::new(Code::Timeout, format!("{}: {shown} did not end in {COMMAND_MAX:?}", self.name))
        })?;
        let output = ended.map_err(|error| self.cannot("run a command", &error))?;
        let object = serde_json::from_slice(&output.stdout).map_err(|_| {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Problem::new(Code::Internal, format!("{}: {shown} answered without JSON: {said}", self.name))
        })?;
        Ok(Ran { shown, exit: output.status.code(), object })
    }

    /// Runs a command that must succeed. An import with losses is a success that says so.
    pub(super) async fn done(&self, args: &[&str]) -> Answer<Value> {
        let ran = self.run(args).await?;
        if ran.exit == Some(Exit::Done.number().into()) || ran.exit == Some(Exit::Losses.number().into()) {
            return Ok(ran.object);
        }
        Err(ran.unexpected(self.name))
    }

    /// Starts to serve and returns when the node is ready.
    pub(super) async fn serve(&mut self) -> Answer<()> {
        let log = std::fs::File::create(self.home.join("serve.log"));
        let log = log.map_err(|error| self.cannot("open a log", &error))?;
        let mut command = self.command(&["serve"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|error| self.cannot("serve", &error))?;
        let Some(stdout) = child.stdout.take() else { return Err(Code::Internal.into()) };
        let mut lines = BufReader::new(stdout).lines();
        self.serving = Some(child);
        timeout(COMMAND_MAX, ready(&mut lines))
            .await
            .map_err(|_| {
                Problem::new(Code::Timeout, format!("{} was not ready in {COMMAND_MAX:?}", self.name))
            })?
            .map_err(|why| Problem::new(Code::Internal, format!("{} did not serve: {why}", self.name)))?;
        // The node goes on to write a line an event; a full pipe would stop it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(())
    }

    /// Ends its process with SIGKILL, as a power cut would.
    pub(super) async fn kill(&mut self) -> Answer<Option<ExitStatus>> {
        let Some(mut child) = self.serving.take() else { return Ok(None) };
        child.start_kill().map_err(|error| self.cannot("end the node", &error))?;
        child.wait().await.map(Some).map_err(|error| self.cannot("end the node", &error))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        for (name, _) in std::env::vars_os() {
            // A variable of the user's must not point a node of the demo at the user's own.
            if name.to_string_lossy().starts_with("THROUGHLINE_") {
                command.env_remove(name);
            }
        }
        command.arg("--home").arg(&self.home).args(["--no-input", "--json"]).args(args).kill_on_drop(true);
        command
    }

    fn cannot(&self, act: &str, error: &std::io::Error) -> Problem {
        Problem::new(Code::Internal, format!("{} could not {act}: {error}", self.name))
    }
}

/// Reads up to the line that says the node is ready.
async fn ready(lines: &mut Lines<BufReader<ChildStdout>>) -> Result<(), String> {
    while let Some(line) = lines.next_line().await.map_err(|error| error.to_string())? {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        match event["kind"].as_str() {
            Some("ready") => return Ok(()),
            Some("error") => return Err(line),
            _ => {}
        }
    }
    Err("it ended before it was ready".to_owned())
}

impl Ran {
    /// What it printed, when it ended with `exit`.
    pub(super) fn expect(self, exit: Exit) -> Answer<Value> {
        if self.exit == Some(exit.number().into()) { Ok(self.object) } else { Err(self.unexpected("demo")) }
    }

    /// The error object of a command that must be refused.
    pub(super) fn refused(self) -> Answer<Value> {
        if self.object["kind"] == "error" {
            Ok(self.object["error"].clone())
        } else {
            Err(self.unexpected("demo"))
        }
    }

    fn unexpected(&self, actor: &str) -> Problem {
        let exit = self.exit.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        let said = match Problem::from_json(&self.object["error"]) {
            Some(problem) => problem.to_string(),
            None => self.object.to_string(),
        };
        Problem::new(Code::Internal, format!("{actor}: {} ended with {exit}: {said}", self.shown))
    }
}
