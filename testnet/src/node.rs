//! A running node: `serve` as a child process.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Read};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::http::{Api, Door};
use crate::lab::Home;
use crate::sse::Event;
use crate::{LIMIT, hygiene};

/// Resident memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Now, in bytes.
    pub now_bytes: u64,
    /// The highest point, in bytes.
    pub peak_bytes: u64,
}

/// A node that said it is ready. Dropping it kills it.
#[derive(Debug)]
pub struct Node {
    home: Home,
    child: Child,
    ready: Value,
    stdout: Receiver<String>,
    stderr: Arc<Mutex<String>>,
}

impl Node {
    pub(crate) fn start(home: &Home, args: &[&str]) -> Result<Self> {
        let args = [&["serve", "--json"], args].concat();
        let mut child = home.cli(&args).spawn()?;
        drop(child.stdin.take());
        let stdout = lines_of(child.stdout.take().context("no stdout")?);
        let stderr = captured(child.stderr.take().context("no stderr")?);
        let mut node = Node { home: home.clone(), child, ready: Value::Null, stdout, stderr };
        let began = Instant::now();
        loop {
            let left = LIMIT.saturating_sub(began.elapsed());
            let Ok(line) = node.stdout.recv_timeout(left) else {
                let status = node.child.try_wait().ok().flatten();
                bail!("`serve` was not ready ({status:?}): {}", node.stderr());
            };
            let Ok(event) = serde_json::from_str::<Value>(&line) else {
                bail!("`serve --json` wrote something else than an object a line: {line:?}");
            };
            if event["kind"] == "ready" {
                node.ready = event;
                return Ok(node);
            }
            if event["kind"] == "error" {
                bail!("`serve` refused: {line}");
            }
        }
    }

    /// Its home.
    #[must_use]
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// The object that it printed when it was ready.
    #[must_use]
    pub fn ready(&self) -> &Value {
        &self.ready
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Begins a measurement of its memory: the highest point is the present one again.
    ///
    /// # Errors
    /// When the system keeps no such figure.
    pub fn forget_peak_memory(&self) -> Result<()> {
        // 5 resets VmHWM; see proc_pid_clear_refs(5).
        std::fs::write(format!("/proc/{}/clear_refs", self.pid()), "5")
            .context("forgetting the peak of memory")
    }

    /// Its resident memory now, and the highest since it started or since [`Node::forget_peak_memory`], in bytes.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn memory(&self) -> Result<Memory> {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).context("reading its status")?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
            kib.map(|kib| kib * 1024).with_context(|| format!("no {name} in its status"))
        };
        Ok(Memory { now_bytes: field("VmRSS:")?, peak_bytes: field("VmHWM:")? })
    }

    /// What it wrote to stderr so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.lock().map(|text| text.clone()).unwrap_or_default()
    }

    /// The API over the socket.
    #[must_use]
    pub fn api(&self) -> Api {
        Api::new(Door::Socket(self.home.join("run/api.sock")))
    }

    /// The API over TCP, with the token of the home.
    ///
    /// # Errors
    /// When the node has no TCP door.
    pub fn tcp(&self) -> Result<Api> {
        let token = self.home.token()?;
        Ok(self.tcp_without_token()?.header("authorization", &format!("Bearer {token}")))
    }

    /// The API over TCP as a program sees it that has no token.
    ///
    /// # Errors
    /// When the node has no TCP door.
    pub fn tcp_without_token(&self) -> Result<Api> {
        let node = self.api().get("/v1/node")?.expect(200)?;
        let http = node["api"]["http"].as_str().with_context(|| format!("no api.http in {node}"))?;
        let authority = http.trim_start_matches("http://").trim_end_matches('/').to_owned();
        Ok(Api::new(Door::Tcp(authority.clone())).header("host", &authority))
    }

    /// The ticket that others add it by.
    ///
    /// # Errors
    /// When the node gives none.
    pub fn ticket(&self) -> Result<String> {
        let node = self.api().get("/v1/node")?.expect(200)?;
        Ok(node["ticket"].as_str().with_context(|| format!("no ticket in {node}"))?.to_owned())
    }

    /// The principal that it signs as.
    ///
    /// # Errors
    /// When the node does not say.
    pub fn principal(&self) -> Result<String> {
        let node = self.api().get("/v1/node")?.expect(200)?;
        Ok(node["principal"].as_str().with_context(|| format!("no principal in {node}"))?.to_owned())
    }

    /// Waits until what the API says at `path` is so, and returns it. The node is asked at every event of its log, from the first one
    /// on, so nothing that happened before is missed: this is for facts whose change is an event. `what` says in words what is
    /// waited for.
    ///
    /// # Errors
    /// When it is not so within [`LIMIT`]; says what the last answer was.
    pub fn until(&self, what: &str, path: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let last = RefCell::new(Value::Null);
        let asked = |_: &Event| {
            // What is not there yet is refused: that is an answer, too.
            let answer = self.api().get(path).and_then(|reply| Ok((reply.status, reply.json()?)));
            let (status, answer) = answer.unwrap_or_else(|error| (0, Value::String(error.to_string())));
            let is_so = status == 200 && is_so(&answer);
            last.replace(answer);
            is_so
        };
        let found = self.api().events("", Some("0"))?.find(what, asked);
        found.with_context(|| format!("GET {path} last said {}", last.borrow()))?;
        Ok(last.into_inner())
    }

    /// As [`Node::until`] for what has no events, such as connections and charges: the node is asked again and again.
    ///
    /// # Errors
    /// As [`Node::until`].
    pub fn until_asked(&self, what: &str, path: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
        let began = Instant::now();
        loop {
            let answer = self.api().get(path)?.expect(200)?;
            if is_so(&answer) {
                return Ok(answer);
            }
            ensure!(began.elapsed() < LIMIT, "waited {LIMIT:?} for {what}; GET {path} last said {answer}");
            std::thread::yield_now();
        }
    }

    /// Waits until it is connected to another node, whichever of them dialled.
    ///
    /// # Errors
    /// As [`Node::until_asked`].
    pub fn until_connected(&self, other: &Node) -> Result<()> {
        let peer = other.peer_id()?;
        let is_connected =
            |row: &Value| row["peer"] == peer.as_str() && row["connected"] == Value::Bool(true);
        let listed =
            |peers: &Value| peers["items"].as_array().is_some_and(|rows| rows.iter().any(is_connected));
        self.until_asked(&format!("a connection to {peer}"), "/v1/peers", listed)?;
        Ok(())
    }

    /// The key of its connections, as others name it.
    ///
    /// # Errors
    /// When the node does not say.
    pub fn peer_id(&self) -> Result<String> {
        let node = self.api().get("/v1/node")?.expect(200)?;
        Ok(node["peerId"].as_str().with_context(|| format!("no peerId in {node}"))?.to_owned())
    }

    /// Ends it as a power cut would, and returns its home.
    ///
    /// # Errors
    /// When it was gone already.
    pub fn kill(mut self) -> Result<Home> {
        self.child.kill().context("kill -9")?;
        self.child.wait().context("waiting for the killed node")?;
        Ok(self.home.clone())
    }

    /// Asks it to end and waits until it has; it must end with 0 and must have printed no secret.
    ///
    /// # Errors
    /// When it ends otherwise or not at all.
    pub fn stop(mut self) -> Result<Home> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).context("asking the node to end")?;
        let began = Instant::now();
        // The pipe closes when the process is gone.
        while self.stdout.recv_timeout(LIMIT.saturating_sub(began.elapsed())).is_ok() {}
        if began.elapsed() >= LIMIT {
            bail!("the node did not end within {LIMIT:?}: {}", self.stderr());
        }
        let status = self.child.wait().context("waiting for the node")?;
        if !status.success() {
            bail!("the node ended with {status}: {}", self.stderr());
        }
        hygiene::check(&self.stderr(), "stderr of serve", &hygiene::secrets_below(self.home.path()))?;
        Ok(self.home.clone())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The lines of a stream; the channel closes at its end.
fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The text of a stream as it grows.
fn captured(stream: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let held = Arc::clone(&text);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if let Ok(mut text) = held.lock() {
                text.push_str(&line);
                text.push('\n');
            }
        }
    });
    text
}
