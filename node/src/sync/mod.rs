//! Sessions over the network: what is served to whom, what is fetched, what is followed. `docs/PROTOCOL.md` §Streams.
//!
//! ```text
//!   net ──Incoming─▶ serve ─▶ policy ─▶ store reader            never enters what fetches
//!    │  ──Gossip───▶ news ──▶ verdict, then pull
//!    │  ──Connected▶ follow ─▶ heads ─▶ fetch ─▶ Node::take_in ─▶ after_commit ─▶ announce ─▶ net
//!    └◀─ dialer ◀── peers (address book)
//! ```
//!
//! It decides who may see what, whom to ask for what, and what of it is handed to the node. It must never decide what is
//! valid: that is for [`throughline_protocol::verify`] and [`throughline_protocol::fork`], through [`crate::core`]. Nothing here
//! waits for a peer while it holds a lock, and every blocking act of the node runs on a thread of its own.

mod ask;
mod contacts;
mod dialer;
mod disclosure;
mod driver;
mod ending;
mod evidence;
mod fault;
mod fetch;
mod follow;
mod forward;
mod news;
mod parties;
pub mod peers;
mod policy;
mod published;
mod serve;
mod shared;
#[cfg(test)]
mod testbench;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_bounds;
#[cfg(test)]
mod tests_evidence;
#[cfg(test)]
mod tests_follow;
#[cfg(test)]
mod tests_hostile;
#[cfg(test)]
mod tests_parts;
mod view;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use libp2p::{Multiaddr, PeerId};
use serde_json::Value;
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::wire::append::{AppendAnswer, AppendRequest};
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffRequest};

use crate::api::error::{Answer, Problem};
use crate::core::{Appended, Node, SignedAppend};
use crate::net::{self, NetConfig, NetCounts};
use shared::Shared;

pub use contacts::Relation;
pub use fault::PeerFault;
pub use fetch::{
    BlobsCame, Claim, Count, FetchRequest, Fetched, Freshness, FromPeer, Tallied, Tally, Transfer, Unfetched,
    Use, Wanted, Who,
};
pub use follow::Told;
pub use policy::{Asker, Party, Reach, Tie};
pub use serve::HandoffHandler;
pub use shared::SyncLimits;
pub use view::{HeadView, PeerView};

/// How long a named peer is dialled for one request.
const DIAL: Duration = Duration::from_secs(10);

/// A hold on the node's running network. Clones share it.
#[derive(Clone)]
pub struct Network {
    shared: Arc<Shared>,
}

impl Network {
    /// Starts the network of a node on the current tokio runtime: it serves, follows and dials from now on. Returns when it
    /// listens.
    ///
    /// # Errors
    /// `E_CONFIG` for an unusable configuration or an address that is taken.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn start(node: &Node, config: NetConfig) -> Answer<Self> {
        Network::start_with(node, config, SyncLimits::default()).await
    }

    /// As [`Network::start`], at another pace.
    ///
    /// # Errors
    /// As [`Network::start`].
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn start_with(node: &Node, config: NetConfig, limits: SyncLimits) -> Answer<Self> {
        let addresses = config.listen.len();
        let (net, mut events) =
            net::spawn(config).map_err(|error| Problem::new(error.code(), error.to_string()))?;
        let shared = Shared::new(node.clone(), net, limits);
        driver::until_listening(&shared, &mut events, addresses).await;
        shared.spawn(driver::run(Arc::clone(&shared), events));
        shared.spawn(dialer::run(Arc::clone(&shared)));
        shared.spawn(follow::run_pulse(Arc::clone(&shared)));
        shared.spawn(follow::run_announcer(Arc::clone(&shared)));
        Ok(Network { shared })
    }

    /// The addresses it listens on, with real ports.
    pub async fn listen_addrs(&self) -> Vec<Multiaddr> {
        self.shared.net.listen_addrs().await
    }

    /// Where the node of a principal listens, as far as is known.
    pub async fn addrs_of(&self, peer: Principal) -> Vec<Multiaddr> {
        let views = self.peers().await;
        let fits = |view: &PeerView| view.principal == Some(peer) || view.peer == peer;
        views.into_iter().filter(fits).flat_map(|view| view.addrs).collect()
    }

    /// The connection key in principal form.
    #[must_use]
    pub fn peer_principal(&self) -> Principal {
        self.shared.net.peer_principal()
    }

    /// What the network dropped, refused and charged so far.
    #[must_use]
    pub fn counts(&self) -> NetCounts {
        self.shared.net.counts()
    }

    /// A session moved: peers that may know are told soon. Returns at once; commits that follow closely are told together.
    pub fn announce(&self, session: SessionId) {
        self.shared.outbox.put(session);
    }

    /// Tells peers about an owner's control blobs, which are stored already; returns when those that are connected know.
    pub async fn tell_controls(&self, owner: Principal, blobs: Vec<Arc<[u8]>>) -> Told {
        follow::tell_controls(&self.shared, owner, blobs).await
    }

    /// Fetches or audits a session.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET` when nobody who was asked offers it, in the same words whether it is absent or not for this node;
    /// `E_UNREACHABLE` when no named peer answers, or fewer than `peers_min` of those that are no strangers; `E_PEER_UNKNOWN`; `E_QUOTA`; else what was wrong with
    /// what a peer sent, with the peer, when no other gave it right.
    pub async fn fetch(&self, request: FetchRequest) -> Answer<Fetched> {
        self.fetch_counted(request, Tally::new()).await
    }

    /// As [`Network::fetch`]; `tally` tells meanwhile how far it is.
    ///
    /// # Errors
    /// As [`Network::fetch`].
    pub async fn fetch_counted(&self, request: FetchRequest, tally: Arc<Tally>) -> Answer<Fetched> {
        let _transferring = follow::Transferring::of(&self.shared, request.session);
        self.shared.fetch(request, tally).await
    }

    /// Asks known peers for their heads of sessions that are held, fetches what is not here, and tells what then is not; also of how many
    /// sessions all came, and which known peers did not answer.
    ///
    /// # Errors
    /// When the store cannot be read. What no peer gives is in the answer.
    pub async fn unfetched(
        &self,
        sessions: Vec<SessionId>,
        idle: Option<Duration>,
    ) -> Answer<(Vec<Unfetched>, usize, Vec<String>)> {
        let idle = match idle {
            Some(idle) => idle,
            None => self.shared.node()?.config().limits.idle_timeout,
        };
        let (told, silent) = self.shared.told_above(sessions, idle).await?;
        for unfetched in &told {
            let request = FetchRequest {
                session: unfetched.session,
                from: Vec::new(),
                payloads: Wanted::Referenced,
                idle: Some(idle),
                mode: Use::Adopt,
                peers_min: 1,
            };
            if let Err(problem) = self.fetch(request).await {
                tracing::info!(session = unfetched.session.short(), %problem, "what a peer told is not here");
            }
        }
        let count = told.len();
        let left = self.shared.still_above(told).await?;
        let came = count.saturating_sub(left.len());
        Ok((left, came, silent))
    }

    /// As [`Network::fetch`], as the object that the API answers with: the shape of `verify`, and the figures of the transfer.
    ///
    /// # Errors
    /// As [`Network::fetch`].
    pub async fn fetch_answer(&self, request: FetchRequest, tally: Arc<Tally>) -> Answer<Value> {
        let wanted = request.payloads;
        let fetched = self.fetch_counted(request, tally).await?;
        self.shared.on_node(move |node| fetch::answer(node, &fetched, wanted)).await
    }

    /// Asks for single blobs by CID: `from` names whom, without it everybody who is known.
    ///
    /// # Errors
    /// `E_PEER_UNKNOWN`.
    pub async fn blobs(
        &self,
        from: &[String],
        owner: Option<Principal>,
        wanted: std::collections::BTreeSet<throughline_protocol::id::Cid>,
    ) -> Answer<BlobsCame> {
        self.shared.blobs(from, owner, wanted).await
    }

    /// As [`Network::tell_controls`], for one blob of whichever owner.
    pub async fn tell_control(&self, blob: Vec<u8>) -> Told {
        match Decoded::<Control>::decode(blob) {
            Ok(control) => {
                let owner = match control.value() {
                    Control::Capability(capability) => capability.signer,
                    Control::Tombstone(tombstone) => tombstone.signer,
                    Control::Ref(value) => value.owner(),
                };
                self.tell_controls(owner, vec![Arc::clone(control.bytes())]).await
            }
            Err(_) => Told::default(),
        }
    }

    /// The address book changed: who is new in it is dialled now.
    pub fn peers_changed(&self) {
        self.shared.book_changed.notify_one();
    }

    /// Everybody in the address book and everybody connected, with the heads they told.
    pub async fn peers(&self) -> Vec<PeerView> {
        view::peers(&self.shared).await
    }

    /// Sends an append to the node of a principal.
    ///
    /// # Errors
    /// `E_PEER_UNKNOWN`, `E_UNREACHABLE`, `E_TIMEOUT`; a refusal by the peer is an answer.
    pub async fn request_append(&self, who: Principal, mut request: AppendRequest) -> Answer<AppendAnswer> {
        let peer = self.shared.connect(&who.to_string()).await?;
        let credentials = self.shared.credentials(peer, None, None).await?;
        request.credentials.auth = request.credentials.auth.or(credentials.auth);
        Ok(self.shared.ask_append(peer, &request).await?)
    }

    /// Hands a signed append to the session's holder. None when that is this node, or nobody.
    ///
    /// # Errors
    /// What the holder refuses, such as `E_HEAD_MOVED` with what to sign on; `E_UNREACHABLE` when it cannot be asked.
    pub async fn forward_append(&self, append: &SignedAppend) -> Answer<Option<Appended>> {
        forward::append(&self.shared, append).await
    }

    /// Sends a handoff request to the node of a principal.
    ///
    /// # Errors
    /// As [`Network::request_append`].
    pub async fn request_handoff(
        &self,
        who: Principal,
        mut request: HandoffRequest,
    ) -> Answer<HandoffAnswer> {
        let peer = self.shared.connect(&who.to_string()).await?;
        let credentials = self.shared.credentials(peer, None, None).await?;
        request.credentials.auth = request.credentials.auth.or(credentials.auth);
        Ok(self.shared.ask_handoff(peer, &request).await?)
    }

    /// Registers who answers handoff requests; once. Until then they are refused.
    pub fn serve_handoffs(&self, handler: Arc<dyn HandoffHandler>) {
        if self.shared.moves.set(handler).is_err() {
            tracing::warn!("handoffs are answered already");
        }
    }

    /// A handoff to `target` is under way: it may see the session whatever its class, until [`Network::close_to`].
    pub fn open_to(&self, session: SessionId, target: Principal) {
        self.shared.targets.open(session, target);
    }

    /// The handoff is over.
    pub fn close_to(&self, session: SessionId, target: Principal) {
        self.shared.targets.close(session, target);
    }

    /// Compares heads and control blobs with a connected peer now, without waiting for the timer.
    ///
    /// # Errors
    /// `E_PEER_UNKNOWN`, `E_UNREACHABLE`.
    pub async fn compare_with(&self, who: &str) -> Answer<()> {
        let peer = self.shared.connect(who).await?;
        follow::hint(&self.shared, peer, follow::Scope::All);
        Ok(())
    }

    /// Lets the node go and begins to end every task and close every connection. [`Network::stopped`] waits for that.
    pub fn shutdown(&self) {
        self.shared.shutdown();
    }

    /// Shuts down, and returns when every task has ended and every connection is closed.
    pub async fn stopped(&self) {
        self.shared.shutdown();
        self.shared.ended().await;
    }
}

impl Shared {
    /// The connection to whoever a name stands for; dials when there is none.
    fn connect<'a>(&'a self, who: &'a str) -> BoxFuture<'a, Answer<PeerId>> {
        Box::pin(async move {
            let providers = self.providers(&[who.to_owned()]).await?.asked;
            let mut last = None;
            for provider in providers {
                match self.reach(&provider, DIAL).await {
                    Ok(_) => {
                        // The dialer reads the address book now and then; who stands in it is known at once.
                        if provider.alias.is_some() {
                            parties::know(self, provider.key).await;
                        }
                        return Ok(provider.peer);
                    }
                    Err(fault) => last = Some(fault),
                }
            }
            Err(last.map_or_else(|| Problem::from(Code::Unreachable), Problem::from).with("peer", who))
        })
    }
}
