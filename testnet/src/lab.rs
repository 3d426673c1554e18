//! A temporary directory with the homes of several nodes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::invocation::Invocation;
use crate::node::Node;

/// Loopback only, ports chosen by the system, no multicast.
const CONFIG: &str = "[node]\n\
    listen = [\"/ip4/127.0.0.1/udp/0/quic-v1\", \"/ip4/127.0.0.1/tcp/0\"]\n\
    mdns = false\n\n\
    [api]\n\
    http = \"127.0.0.1:0\"\n";

/// One experiment: a binary and a directory that goes when this is dropped.
#[derive(Debug)]
pub struct Lab {
    bin: PathBuf,
    dir: tempfile::TempDir,
}

impl Lab {
    /// A lab for the program at `bin`.
    ///
    /// # Errors
    /// When no temporary directory can be made.
    pub fn new(bin: impl Into<PathBuf>) -> Result<Self> {
        // The socket's path must fit 108 bytes, so the name is short.
        let dir = tempfile::Builder::new().prefix("tl-").tempdir().context("a temporary directory")?;
        fs::create_dir(dir.path().join("user")).context("a home for the user")?;
        Ok(Lab { bin: bin.into(), dir })
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A home directory of this name; nothing is made yet.
    #[must_use]
    pub fn home(&self, name: &str) -> Home {
        Home { bin: self.bin.clone(), user: self.dir.path().join("user"), path: self.dir.path().join(name) }
    }

    /// A command that belongs to no home.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> Invocation {
        Invocation::new(&self.bin, &self.dir.path().join("user"), None, args)
    }

    /// Writes a file into the lab and returns its path.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes).with_context(|| format!("writing {name}"))?;
        Ok(path)
    }
}

/// The home directory of one node.
#[derive(Clone, Debug)]
pub struct Home {
    bin: PathBuf,
    user: PathBuf,
    path: PathBuf,
}

impl Home {
    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or directory below it.
    #[must_use]
    pub fn join(&self, relative: &str) -> PathBuf {
        self.path.join(relative)
    }

    /// Writes a configuration under which nothing leaves this machine: loopback, ports chosen by the system, nobody
    /// looked for. `init` keeps it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn configure(&self) -> Result<()> {
        fs::create_dir_all(&self.path).with_context(|| format!("making {}", self.path.display()))?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&self.path, mode).context("making it private")?;
        fs::write(self.join("config.toml"), CONFIG).context("writing the configuration")
    }

    /// A command on this home. It never asks: `--no-input` is always given.
    #[must_use]
    pub fn cli(&self, args: &[&str]) -> Invocation {
        Invocation::new(&self.bin, &self.user, Some(&self.path), args)
    }

    /// Runs a command with `--json` that must end with 0 and returns its object.
    ///
    /// # Errors
    /// When it ends otherwise, or its output breaks a rule of every output.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        self.cli(args).json()?.expect(0)
    }

    /// Starts a node and waits until it is ready.
    ///
    /// # Errors
    /// When it ends before, with what it wrote.
    pub fn serve(&self) -> Result<Node> {
        Node::start(self, &[])
    }

    /// Starts a node with further arguments of `serve`.
    ///
    /// # Errors
    /// As [`Home::serve`].
    pub fn serve_with(&self, args: &[&str]) -> Result<Node> {
        Node::start(self, args)
    }

    /// The token of the TCP door.
    ///
    /// # Errors
    /// When the node never served here.
    pub fn token(&self) -> Result<String> {
        let path = self.path.join("run").join("token");
        Ok(fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?
            .trim()
            .to_owned())
    }
}
