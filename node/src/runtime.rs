//! Bringing a node up: in a command's own process, or as the server that `serve` runs.

use std::io::{self, ErrorKind, Write as _};
use std::net::SocketAddr as TcpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use throughline_protocol::code::Code;
use throughline_store::Sweep;

use crate::address;
use crate::api::client::{Client, Endpoint};
use crate::api::error::{Answer, Problem};
use crate::api::gate::Gate;
use crate::api::listen::Doors;
use crate::api::token::Tokens;
use crate::api::{App, router};
use crate::config::Config;
use crate::core::{Node, now};
use crate::dirs::Dirs;
use crate::moves;
use crate::net::{NetConfig, Reach};
use crate::sync::Network;
use crate::taken::{self, Port};

/// Between two sweeps of what has expired.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// How long a node that ends waits for its connections to close.
const GOODBYE: Duration = Duration::from_secs(3);
/// Bytes of a path at which a socket can be: `sun_path` of `sockaddr_un` (unix(7)) without the zero byte that ends it.
const SOCKET_PATH_MAX: usize = if cfg!(target_os = "linux") { 107 } else { 103 };
/// Events that stay for readers that come back.
const EVENTS_KEPT: u64 = 100_000;

/// Whether a command needs the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkNeed {
    /// It does its work on what is held here.
    Off,
    /// It asks peers.
    On,
}

/// Keeps a node of this process up; the data directory is let go when it is dropped.
pub struct Guard {
    node: Node,
}

impl Guard {
    /// Ends the node, and returns when its peers were told: a connection that just goes silent takes one of the few places that a
    /// peer gives it, until that peer's timeout.
    pub async fn close(self) {
        self.node.stop();
        goodbye(&self.node).await;
    }
}

/// Closes every connection, within [`GOODBYE`].
async fn goodbye(node: &Node) {
    if let Some(network) = node.network() {
        // Who does not answer in time is left.
        let _ = tokio::time::timeout(GOODBYE, network.stopped()).await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.node.stop();
        if let Some(network) = self.node.network() {
            network.shutdown();
        }
    }
}

/// Opens the data directory in this process and gives a client of its API.
///
/// # Errors
/// `E_NOT_INITIALISED`, `E_LOCKED`, `E_KEYFILE_…`, `E_STORE_…`.
pub async fn open_in_process(dirs: &Dirs, config: &Config, need: NetworkNeed) -> Answer<(Client, Guard)> {
    let node = open(dirs, config).await?;
    if need == NetworkNeed::On {
        start_network(&node, NetworkNeed::Off).await?;
    }
    moves::attach(&node)?;
    let app = App::new(node.clone());
    let client = Client::new(Endpoint::InProcess(router(app, None)));
    Ok((client, Guard { node }))
}

/// Runs the node until it is told to end: by a signal, or by `POST /v1/stop`. `on_ready` is called once the API answers.
///
/// # Errors
/// As [`open_in_process`]; `E_CONFIG` when an address cannot be bound.
pub async fn serve(dirs: &Dirs, config: &Config, on_ready: impl FnOnce() + Send + 'static) -> Answer<()> {
    let node = open(dirs, config).await?;
    node.set_serving();
    start_network(&node, NetworkNeed::On).await.map_err(no_network)?;
    moves::attach(&node)?;
    let tokens = Tokens::open(dirs.run())?;
    let gate = Arc::new(Gate { hosts: config.api.allowed_hosts.clone(), tokens });
    let app = App::new(node.clone());
    let doors = Doors::new(router(app.clone(), Some(gate)), node.stopping());
    let socket = config.api.socket.clone();
    let opened = doors.open_socket(&socket).await;
    let mut tasks = vec![opened.map_err(|error| no_socket(&socket, &error))?];
    if let Some(addr) = config.api.http {
        let (bound, task) = doors.open_tcp(addr).await.map_err(|error| no_http(addr, &error))?;
        app.set_http(bound);
        tasks.push(task);
    }
    write_pid(dirs);
    if let Err(error) = address::write(dirs, &socket) {
        tracing::warn!("writing where the API answers failed: {error}");
    }
    tokio::spawn(sweep(node.clone()));
    on_ready();
    until_stopped(&node).await;
    for task in tasks {
        let _ = task.await;
    }
    address::remove(dirs);
    let _ = std::fs::remove_file(&socket);
    let _ = std::fs::remove_file(dirs.pid_file());
    goodbye(&node).await;
    Ok(())
}

/// The node cannot listen for peers.
fn no_network(problem: Problem) -> Problem {
    if problem.code() != Code::Config {
        return problem;
    }
    problem.hint(
        "throughline serve --listen MADDR (port 0 is a free one), or change node.listen in the config file",
    )
}

/// Refuses a path at which the system takes no socket.
///
/// # Errors
/// `E_CONFIG` when it is too long, or holds a zero byte.
pub(crate) fn expect_socket_path(path: &Path) -> Answer<()> {
    let Err(error) = SocketAddr::from_pathname(path) else { return Ok(()) };
    let length = path.as_os_str().len();
    let why = if length > SOCKET_PATH_MAX {
        format!("expected at most {SOCKET_PATH_MAX} bytes, which is what a socket takes, got {length}")
    } else {
        error.to_string()
    };
    let detail = format!("there can be no socket of the local API (api.socket) at {}: {why}", path.display());
    Err(Problem::new(Code::Config, detail)
        .hint("use a shorter --home, or set api.socket in the config file to a shorter path"))
}

/// The local API has no socket.
fn no_socket(path: &Path, error: &io::Error) -> Problem {
    if let Err(problem) = expect_socket_path(path) {
        return problem;
    }
    let why = if error.kind() == ErrorKind::NotFound {
        "its directory does not exist".to_owned()
    } else if error.kind() == ErrorKind::PermissionDenied {
        "permission denied".to_owned()
    } else {
        error.to_string()
    };
    let detail = format!("cannot open the socket of the local API (api.socket), {}: {why}", path.display());
    Problem::new(Code::Config, detail).hint("throughline config path (then change api.socket in that file)")
}

/// The local API has no port.
fn no_http(addr: TcpAddr, error: &io::Error) -> Problem {
    let why = taken::why(error, Port::Tcp(addr.port()));
    Problem::new(Code::Config, format!("cannot open the local API on http://{addr} (api.http): {why}"))
        .hint("throughline serve --http 127.0.0.1:PORT or --http off, or change api.http in the config file")
}

async fn open(dirs: &Dirs, config: &Config) -> Answer<Node> {
    let (dirs, config) = (dirs.clone(), config.clone());
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let opened = tokio::task::spawn_blocking(move || Node::open(dirs, config, &command)).await;
    opened.map_err(|_| Problem::from(Code::Internal))?
}

/// Starts the network; a command of its own process listens nowhere.
async fn start_network(node: &Node, listening: NetworkNeed) -> Answer<()> {
    let config = node.config();
    let seed = zeroize::Zeroizing::new(*node.peer_seed().bytes());
    let listen = match listening {
        NetworkNeed::On => config.node.listen.clone(),
        NetworkNeed::Off => Vec::new(),
    };
    let mut net = NetConfig::new(seed, listen);
    net.mdns = config.node.mdns && listening == NetworkNeed::On;
    net.reach = Reach::Open;
    net.limits.established_in_max = config.limits.connections_in_max;
    net.limits.established_out_max = config.limits.connections_out_max;
    let network = Network::start(node, net).await?;
    node.attach_network(network);
    Ok(())
}

/// Ends on SIGINT, SIGTERM or a stop request.
async fn until_stopped(node: &Node) {
    let mut stopping = node.stopping();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).ok();
    let terminated = async {
        match &mut terminate {
            Some(signal) => {
                signal.recv().await;
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        () = terminated => {}
        _ = stopping.wait_for(|stop| *stop) => {}
    }
    node.stop();
}

/// Removes what a crash left and then, until the node ends, what has expired.
async fn sweep(node: Node) {
    let store = node.store().clone();
    // What a crash left between a file and its row, or brought back of one that was redacted.
    if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.remove_orphans()).await {
        tracing::warn!(code = error.code().name(), "removing files that nothing names failed: {error}");
    }
    let mut stopping = node.stopping();
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stopping.wait_for(|stop| *stop) => return,
        }
        let store = node.store().clone();
        let swept =
            tokio::task::spawn_blocking(move || store.run(Sweep { now: now(), events_kept: EVENTS_KEPT }));
        if let Ok(Err(error)) = swept.await {
            tracing::warn!(code = error.code().name(), "sweeping what has expired failed: {error}");
        }
    }
}

/// For people who look: which process runs. The lock is what decides.
fn write_pid(dirs: &Dirs) {
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(dirs.pid_file())
        .and_then(|mut file| writeln!(file, "{}", std::process::id()));
    if let Err(error) = written {
        tracing::warn!("writing the pid file failed: {error}");
    }
}
