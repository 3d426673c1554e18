//! Throwaway nodes: a temporary home with keys of its own, on loopback, for an owner who exists for one bench.

use std::fs;
use std::path::Path;

use tempfile::TempDir;
use throughline_protocol::block::Signed;
use throughline_protocol::build;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Capability, Control, Role};
use throughline_protocol::entry::Class;
use throughline_protocol::id::{EntryCid, Principal, SessionId};
use throughline_protocol::sign::SigningKey;
use throughline_protocol::view::EntryDraft;

use crate::api::error::{Answer, Problem};
use crate::config::{Config, Overrides};
use crate::core::{AppendRequest, CreateRequest, Node, now, random};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;

/// An owner whose key lives in memory.
pub(super) struct Owner {
    key: SigningKey,
}

impl Owner {
    /// A new one.
    pub(super) fn new() -> Answer<Self> {
        Ok(Owner { key: SigningKey::from_seed(&random()?) })
    }

    /// Lets `delegate` do what `role` does, everywhere.
    pub(super) fn grant(&self, delegate: Principal, role: Role) -> Answer<Signed<Control>> {
        let capability = Capability {
            ts: now(),
            signer: self.key.principal(),
            delegate,
            role: Some(role.word().to_owned()),
            path: None,
            label: None,
            audience: None,
        };
        Ok(build::sign(Control::Capability(capability), &self.key)?)
    }
}

/// A node's home, removed when dropped.
pub(super) struct Home {
    dir: TempDir,
    dirs: Dirs,
    config: Config,
    principal: Principal,
}

impl Home {
    /// A home with keys and configuration.
    pub(super) fn new(owner: &Owner) -> Answer<Self> {
        // Short, because the path of a socket has 108 bytes.
        let dir = tempfile::Builder::new().prefix("tl-bench-").tempdir().map_err(|error| on_disk(&error))?;
        let config = format!(
            "[node]\nlisten = [\"/ip4/127.0.0.1/udp/0/quic-v1\"]\nmdns = false\n\n[api]\nhttp = \"off\"\n\n\
             [owner]\nprincipal = \"{}\"\n\n[log]\nlevel = \"error\"\n",
            owner.key.principal()
        );
        fs::write(dir.path().join("config.toml"), config).map_err(|error| on_disk(&error))?;
        // Nothing of the user's environment may point it elsewhere.
        let nowhere = Environment::default();
        let dirs = Dirs::locate(Some(dir.path()), &nowhere)?;
        let keys = NodeKeys::load_or_create(&dirs)?;
        let config = Config::load(&dirs, &Overrides::from_environment(&nowhere))?;
        Ok(Home { principal: keys.principal(), dir, dirs, config })
    }

    /// Its directory.
    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Its directories.
    pub(super) fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    /// Its configuration.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    /// Who it is.
    pub(super) fn principal(&self) -> Principal {
        self.principal
    }

    /// Opens it in this process; it is let go with the last clone of the node.
    pub(super) fn open(&self) -> Answer<Node> {
        Node::open(self.dirs.clone(), self.config.clone(), "throughline bench")
    }
}

/// Makes a session on `node` with its first entry, and says its name and head.
pub(super) fn begin(node: &Node, first: EntryDraft) -> Answer<(SessionId, EntryCid)> {
    let created = node.create(&CreateRequest {
        agent: None,
        title: None,
        class: Class::Internal,
        first_entry: Some(first),
        key: None,
        dry_run: false,
    })?;
    let session = text(&created.answer["session"])?.parse()?;
    Ok((session, head_of(&created.answer)?))
}

/// Appends on `base` and says the new head.
pub(super) fn append(
    node: &Node,
    session: SessionId,
    base: EntryCid,
    entries: Vec<EntryDraft>,
) -> Answer<EntryCid> {
    let request = AppendRequest { session, base: Some(base), entries, key: None, dry_run: false };
    head_of(&node.append(&request)?.answer)
}

fn head_of(answer: &serde_json::Value) -> Answer<EntryCid> {
    Ok(text(&answer["head"]["cid"])?.parse()?)
}

fn text(value: &serde_json::Value) -> Answer<&str> {
    value
        .as_str()
        .ok_or_else(|| Problem::new(Code::Internal, "expected text in the answer of an act, got none"))
}

/// A temporary file or directory could not be used.
pub(super) fn on_disk(error: &std::io::Error) -> Problem {
    Problem::new(Code::StoreIo, format!("the temporary directory of a bench: {error}"))
}
