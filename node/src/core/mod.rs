//! The node's acts on sessions, synchronous and without a network: append, judge, verify, take in, show.
//!
//! An act reads one snapshot, decides with the protocol crate, and hands the store one operation that re-checks what
//! may have changed. It never holds the owner key: what only the owner may say arrives signed.

mod append;
mod append_signed;
mod authority;
mod base;
mod bring_back;
mod car;
mod car_read;
mod change;
mod controls;
mod create;
#[cfg(test)]
pub(crate) mod damaged;
mod errors;
mod evaluate;
mod evidence;
mod extend;
mod files;
mod fork;
mod import;
mod import_agents;
mod import_lines;
mod import_lives;
mod import_run;
mod may;
mod owed;
mod preview;
mod problems;
mod refs;
mod repair;
mod resolve;
mod scene;
mod seal_up;
pub mod shape;
mod stated;
mod summary;
mod turns;
mod verify;
mod warm;

use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use throughline_protocol::id::{Principal, UnixMillis};
use throughline_protocol::sign::SigningKey;
use throughline_store::{KeyOrigin, OpenOptions, Reader, Store};
use tokio::sync::watch;

use crate::api::error::{Answer, Problem};
use crate::config::Config;
use crate::dirs::Dirs;
use crate::keys::{FRESH_MARK, NodeKeys, OwnerKeyFile, Seed};

pub use append::{AppendRequest, Appended, PROGRAM_KEYS};
pub(crate) use append::{kept, used_otherwise};
pub use append_signed::SignedAppend;
pub use authority::{ControlKind, ControlsTaken, Keeping};
pub(crate) use base::{Standing, need_session, standing};
pub use bring_back::BringBack;
pub(crate) use controls::held_controls;
pub use controls::{Granted, controls_of, grant_of};
pub use create::{CreateRequest, Created, Drafts, RequestKey};
pub use evaluate::{Arrived, Evaluated, Taken, Takeover};
pub use evidence::{EvidenceTaken, Fate, Source};
pub use files::{Incoming, LEASE_MS, Outgoing, StoredBlob};
pub use import::ImportRequest;
pub use import_agents::{AgentName, SUB_AGENT_NAME_BYTES_MAX, SUB_AGENTS_MAX, check_sub_agents};
pub use preview::Revoke;
pub use problems::Lookout;
pub use refs::ref_facts;
pub use repair::{cids_of as cids_of_damaged, fsck_json, plan as repair_plan};
pub use verify::PayloadUse;
pub(crate) use verify::settle_links;

/// A node's state, shared by everything that acts for it. Clones are the same node.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    dirs: Dirs,
    config: Config,
    store: Store,
    key: SigningKey,
    peer_seed: Seed,
    owner: Option<Principal>,
    started: Instant,
    /// Id of the newest event; moves after each commit.
    commits: watch::Sender<u64>,
    stop: watch::Sender<bool>,
    drafts: Drafts,
    turns: turns::Turns,
    warm: warm::Warm,
    void: evidence::Void,
    network: OnceLock<crate::sync::Network>,
    moves: OnceLock<Arc<crate::moves::Moves>>,
    serving: std::sync::atomic::AtomicBool,
}

impl Node {
    /// Opens the data directory for this process alone.
    ///
    /// # Errors
    /// `E_NOT_INITIALISED` without keys, `E_KEYFILE_…`, `E_LOCKED`, `E_STORE_…`.
    pub fn open(dirs: Dirs, config: Config, command: &str) -> Answer<Self> {
        let keys = NodeKeys::load(&dirs)?;
        dirs.create()?;
        let owner = match config.owner.principal {
            Some(owner) => Some(owner),
            None => OwnerKeyFile::inspect(&dirs).ok().map(|file| file.principal()),
        };
        let commits = watch::Sender::new(0);
        let mut options = OpenOptions::new(now(), command);
        options.key_origin = key_origin(&dirs);
        let hook = commits.clone();
        options.on_commit = Some(Box::new(move |newest| {
            hook.send_replace(newest);
        }));
        let store = Store::open(dirs.data(), options)?;
        forget_mark(&dirs)?;
        remove_spools(&dirs);
        let newest = store.reader()?.newest_event()?;
        commits.send_replace(newest);
        let node = Node {
            inner: Arc::new(Inner {
                key: keys.node().signing_key(),
                peer_seed: Seed::from_bytes(zeroize::Zeroizing::new(*keys.peer().bytes())),
                dirs,
                config,
                store,
                owner,
                started: Instant::now(),
                commits,
                stop: watch::Sender::new(false),
                drafts: Drafts::default(),
                turns: turns::Turns::default(),
                warm: warm::Warm::default(),
                void: evidence::Void::default(),
                network: OnceLock::new(),
                moves: OnceLock::new(),
                serving: std::sync::atomic::AtomicBool::new(false),
            }),
        };
        node.judge_all_owed(owed::Again::NotDamaged)?;
        node.settle_unfinished()?;
        Ok(node)
    }

    /// Where its files are.
    #[must_use]
    pub fn dirs(&self) -> &Dirs {
        &self.inner.dirs
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Its store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// A snapshot of the store.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn reader(&self) -> Answer<Reader> {
        Ok(self.inner.store.reader()?)
    }

    /// The key that signs entries as holder and as device.
    #[must_use]
    pub fn key(&self) -> &SigningKey {
        &self.inner.key
    }

    /// This node's principal.
    #[must_use]
    pub fn principal(&self) -> Principal {
        self.inner.key.principal()
    }

    /// The seed of its network identity.
    #[must_use]
    pub fn peer_seed(&self) -> &Seed {
        &self.inner.peer_seed
    }

    /// The owner that it works for.
    #[must_use]
    pub fn owner(&self) -> Option<Principal> {
        self.inner.owner
    }

    /// The owner, or a refusal that says how to set one.
    ///
    /// # Errors
    /// `E_OWNER_KEY`.
    pub fn need_owner(&self) -> Answer<Principal> {
        self.inner.owner.ok_or_else(|| {
            Problem::new(
                throughline_protocol::code::Code::OwnerKey,
                "expected an owner in the config or an owner key, found neither",
            )
            .hint("throughline init --owner PRINCIPAL")
        })
    }

    /// When it was opened.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.inner.started
    }

    /// The id of the newest event, and its changes.
    #[must_use]
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.inner.commits.subscribe()
    }

    /// Asks every part of the node to end.
    pub fn stop(&self) {
        self.inner.stop.send_replace(true);
    }

    /// Becomes true when the node is to end.
    #[must_use]
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.inner.stop.subscribe()
    }

    /// Waits until no other act works on the session. Never to be asked for twice by one act.
    fn turn(&self, session: throughline_protocol::id::SessionId) -> std::sync::MutexGuard<'_, ()> {
        self.inner.turns.wait(session)
    }

    /// Waits until no other import runs.
    fn import_turn(&self) -> std::sync::MutexGuard<'_, ()> {
        self.inner.turns.wait_for_imports()
    }

    /// What the last acts read.
    fn warm(&self) -> &warm::Warm {
        &self.inner.warm
    }

    /// Evidence that was found void.
    fn void(&self) -> &evidence::Void {
        &self.inner.void
    }

    /// Draft sessions.
    #[must_use]
    pub fn drafts(&self) -> &Drafts {
        &self.inner.drafts
    }

    /// The network, when it runs.
    #[must_use]
    pub fn network(&self) -> Option<&crate::sync::Network> {
        self.inner.network.get()
    }

    /// Whether this process is the node's server, not a command that works alone.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.inner.serving.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Marks this process as the node's server.
    pub fn set_serving(&self) {
        self.inner.serving.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// The desk for moves, when it is open.
    #[must_use]
    pub fn attached_moves(&self) -> Option<&Arc<crate::moves::Moves>> {
        self.inner.moves.get()
    }

    /// Opens the desk for moves; once.
    pub fn attach_moves(&self, moves: Arc<crate::moves::Moves>) {
        let _ = self.inner.moves.set(moves);
    }

    /// Connects the node to its network; once.
    pub fn attach_network(&self, network: crate::sync::Network) {
        let _ = self.inner.network.set(network);
    }
}

/// Now, as this machine's clock has it. A clock outside the protocol's range is clamped into it.
#[must_use]
pub fn now() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    UnixMillis::new(ms.min(throughline_protocol::limits::TS_MS_MAX)).unwrap_or_default()
}

/// `size` random bytes from the operating system.
///
/// # Errors
/// `E_INTERNAL` when it has none.
pub fn random<const N: usize>() -> Answer<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Problem::new(
            throughline_protocol::code::Code::Internal,
            format!("the operating system gives no random bytes: {error}"),
        )
    })?;
    Ok(bytes)
}

/// Whether the node key was made together with a data directory that is not there yet: then it has signed nothing, and
/// the sign guard may trust the new directory. `init` makes both; a key that was brought here has no such mark.
fn key_origin(dirs: &Dirs) -> KeyOrigin {
    if dirs.keys().join(FRESH_MARK).exists() { KeyOrigin::MadeWithStore } else { KeyOrigin::Older }
}

/// From the first store on the key may have signed: a second store, made after the first was lost, is not trusted.
fn forget_mark(dirs: &Dirs) -> Answer<()> {
    match std::fs::remove_file(dirs.keys().join(FRESH_MARK)) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Problem::new(
            throughline_protocol::code::Code::StoreIo,
            format!("removing {FRESH_MARK}: {error}"),
        )),
    }
}

/// Removes bodies that a process that ended left in the staging directory: nobody reads them again.
fn remove_spools(dirs: &Dirs) {
    let Ok(left) = std::fs::read_dir(dirs.staging()) else { return };
    for path in left.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| path.is_file()) {
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!("a spooled body stays behind: {error}");
        }
    }
}
