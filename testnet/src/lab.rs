//! A temporary directory with the homes of several nodes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::invocation::Invocation;
use crate::node::{Node, ServeOptions};

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

    /// Starts a node that listens on loopback and waits until it is ready.
    ///
    /// # Errors
    /// When it ends before, with what it wrote.
    pub fn serve(&self) -> Result<Node> {
        self.serve_with(&ServeOptions::default())
    }

    /// Starts a node with further arguments.
    ///
    /// # Errors
    /// As [`Home::serve`].
    pub fn serve_with(&self, options: &ServeOptions) -> Result<Node> {
        Node::start(self, options)
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
