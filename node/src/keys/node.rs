//! The two keys of this machine: the node key signs, the peer key is the network identity. Both lie in the clear,
//! since a server must start without a person.

use throughline_protocol::id::Principal;

use super::KeyError;
use super::file::KeysDir;
use super::seed::Seed;
use super::text::{KeyKind, KeyText, Secret};
use crate::dirs::Dirs;

/// The file beside the keys that says that the node key has signed nothing yet.
pub const FRESH_MARK: &str = "node.fresh";

/// Whether a key was there or was made just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrigin {
    /// Made and stored by this call.
    Created,
    /// Read from its file.
    Existing,
}

/// The seeds of this machine's keys.
#[derive(Clone, Debug)]
pub struct NodeKeys {
    node: Seed,
    peer: Seed,
    origin: KeyOrigin,
}

impl NodeKeys {
    /// Reads both keys. What serves or signs uses this: a node whose key is lost must not turn into another one
    /// unnoticed.
    ///
    /// # Errors
    /// One of the `E_KEYFILE_…` codes; see [`KeyError`].
    pub fn load(dirs: &Dirs) -> Result<Self, KeyError> {
        let node = read(dirs, KeyKind::Node)?;
        let peer = read(dirs, KeyKind::Peer)?;
        Ok(NodeKeys { node, peer, origin: KeyOrigin::Existing })
    }

    /// Reads both keys and makes what is missing; for `init`. A file that exists but is unsafe or damaged is an
    /// error, never replaced.
    ///
    /// # Errors
    /// As [`NodeKeys::load`], but for missing files; and when a new file cannot be written.
    pub fn load_or_create(dirs: &Dirs) -> Result<Self, KeyError> {
        dirs.create()?;
        let (node, origin) = read_or_create(dirs, KeyKind::Node)?;
        let (peer, _) = read_or_create(dirs, KeyKind::Peer)?;
        if origin == KeyOrigin::Created && !dirs.store_file().exists() {
            mark_fresh(dirs)?;
        }
        Ok(NodeKeys { node, peer, origin })
    }

    /// The node key: signs entries, device Refs and peer proofs.
    #[must_use]
    pub fn node(&self) -> &Seed {
        &self.node
    }

    /// The peer key: the network identity only.
    #[must_use]
    pub fn peer(&self) -> &Seed {
        &self.peer
    }

    /// Who this node is.
    #[must_use]
    pub fn principal(&self) -> Principal {
        self.node.principal()
    }

    /// Whether the node key was made just now.
    #[must_use]
    pub fn origin(&self) -> KeyOrigin {
        self.origin
    }
}

/// Says that the node key has signed nothing yet: it was made before there was a store. Whoever opens the first store
/// takes the mark away, so it is never there for a second one.
fn mark_fresh(dirs: &Dirs) -> Result<(), KeyError> {
    match KeysDir::open(dirs, FRESH_MARK)?.write_new(FRESH_MARK, "this node key has signed nothing yet\n") {
        Ok(()) | Err(KeyError::Exists { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn read(dirs: &Dirs, kind: KeyKind) -> Result<Seed, KeyError> {
    let name = kind.file_name();
    let keys = KeysDir::open(dirs, name)?;
    let text = keys.read(name)?;
    let place = keys.path(name).display().to_string();
    match KeyText::parse(kind, &text, &place)?.secret {
        Secret::Plain(seed) => Ok(seed),
        Secret::Sealed(_) => Err(KeyError::Format { place, expected: "a seed in the clear".to_owned() }),
    }
}

fn read_or_create(dirs: &Dirs, kind: KeyKind) -> Result<(Seed, KeyOrigin), KeyError> {
    match read(dirs, kind) {
        Ok(seed) => return Ok((seed, KeyOrigin::Existing)),
        Err(KeyError::Missing { .. }) => {}
        Err(error) => return Err(error),
    }
    let seed = Seed::generate()?;
    let text = KeyText { kind, principal: seed.principal(), secret: Secret::Plain(seed.clone()) }.render();
    let name = kind.file_name();
    match KeysDir::open(dirs, name)?.write_new(name, &text) {
        Ok(()) => Ok((seed, KeyOrigin::Created)),
        // Another process was quicker: its key is the one.
        Err(KeyError::Exists { .. }) => Ok((read(dirs, kind)?, KeyOrigin::Existing)),
        Err(error) => Err(error),
    }
}
