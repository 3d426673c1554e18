//! What all parts of the network side hold in common.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use throughline_protocol::code::Code;
use throughline_protocol::id::{SessionId, UnixMillis};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::contacts::Contacts;
use super::follow::{Anchors, Asking, Outbox, Topics};
use super::parties::{Agreed, Parties};
use super::policy::Targets;
use super::published::Classes;
use super::serve::HandoffHandler;
use crate::api::error::{Answer, Problem};
use crate::core::{Node, now};
use crate::net::NetHandle;

/// How the network side paces itself.
#[derive(Clone, Copy, Debug)]
pub struct SyncLimits {
    /// How often heads and control digests are compared with connected peers.
    pub compare_every: Duration,
    /// How long commits of one session are collected before they are announced.
    pub announce_after: Duration,
    /// The first pause before a known peer is dialled again; it doubles.
    pub redial_min: Duration,
    /// The longest pause before a known peer is dialled again.
    pub redial_max: Duration,
    /// Peers that are asked for the same thing at a time.
    pub peers_max: usize,
    /// How often a device anchors one session.
    pub anchor_every: Duration,
    /// The clock that peer proofs are made and checked by.
    pub clock: fn() -> UnixMillis,
}

impl Default for SyncLimits {
    fn default() -> Self {
        SyncLimits {
            compare_every: Duration::from_secs(15),
            announce_after: Duration::from_millis(50),
            redial_min: Duration::from_secs(1),
            redial_max: Duration::from_secs(60),
            peers_max: 16,
            anchor_every: Duration::from_secs(60),
            clock: now,
        }
    }
}

/// The state behind [`super::Network`].
pub(super) struct Shared {
    /// Let go at the shutdown: the node holds the network, and would otherwise never close.
    node: RwLock<Option<Node>>,
    pub(super) net: NetHandle,
    pub(super) limits: SyncLimits,
    pub(super) contacts: Contacts,
    pub(super) targets: Targets,
    pub(super) classes: Classes,
    pub(super) moves: OnceLock<Arc<dyn HandoffHandler>>,
    pub(super) outbox: Outbox,
    pub(super) asking: Asking,
    pub(super) topics: Topics,
    pub(super) parties: Parties,
    pub(super) agreed: Agreed,
    pub(super) anchors: Anchors,
    pub(super) evidence: super::evidence::Told,
    pub(super) book_changed: Notify,
    fetching: Mutex<BTreeMap<SessionId, Arc<tokio::sync::Mutex<()>>>>,
    pub(super) stop: CancellationToken,
    tasks: TaskTracker,
}

impl Shared {
    pub(super) fn new(node: Node, net: NetHandle, limits: SyncLimits) -> Arc<Self> {
        Arc::new(Shared {
            node: RwLock::new(Some(node)),
            net,
            limits,
            contacts: Contacts::default(),
            targets: Targets::default(),
            classes: Classes::default(),
            moves: OnceLock::new(),
            outbox: Outbox::default(),
            asking: Asking::default(),
            topics: Topics::default(),
            parties: Parties::default(),
            agreed: Agreed::default(),
            anchors: Anchors::default(),
            evidence: super::evidence::Told::default(),
            book_changed: Notify::new(),
            fetching: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// The node; a refusal once the network is shut down.
    pub(super) fn node(&self) -> Answer<Node> {
        let node = self.node.read().unwrap_or_else(PoisonError::into_inner).clone();
        node.ok_or_else(|| Problem::new(Code::Interrupted, "the network is shut down"))
    }

    /// Runs a blocking act of the node on its own thread.
    pub(super) async fn on_node<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Node) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let node = self.node()?;
        blocking(move || act(&node)).await
    }

    /// Starts a task that ends with the network.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            // Cancelled or done: there is nothing to tell.
            let _ = stop.run_until_cancelled(task).await;
        });
    }

    /// The right to fetch a session: one transfer of it at a time.
    pub(super) fn turn_of(&self, session: SessionId) -> Arc<tokio::sync::Mutex<()>> {
        let mut fetching = self.fetching.lock().unwrap_or_else(PoisonError::into_inner);
        fetching.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(fetching.entry(session).or_default())
    }

    /// Lets the node go and tells every task to end.
    pub(super) fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.node.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let net = self.net.clone();
            runtime.spawn(async move { net.shutdown().await });
        }
    }

    /// Returns when every task has ended and every connection is closed.
    pub(super) async fn ended(&self) {
        self.net.shutdown().await;
        self.tasks.wait().await;
    }
}

/// Runs blocking work on a thread of its own.
pub(super) async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let done = tokio::task::spawn_blocking(act).await;
    done.unwrap_or_else(|_| Err(Problem::new(Code::Internal, "a task of the node ended early")))
}
