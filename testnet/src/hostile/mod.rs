//! A peer that misbehaves on purpose, on the real wire.
//!
//! It is a libp2p host of its own that shares no line with the node: it opens streams and writes bytes that no honest
//! program writes, floods, falls silent, and answers what it is asked with what its [`Lie`] makes of the truth. What it may
//! never do is decide whether the node stood it: a test looks at the node from outside.
//!
//! ```text
//! Hostile ─┬─ commands ─▶ swarm task (TCP or QUIC, gossip)
//!          ├─ floods     acts on its own: streams, frames, wants, gossip
//!          └─ lies       answers to `/throughline/chain/1`
//! ```

mod floods;
mod lies;
mod streams;
mod swarm;

use std::future::Future;

use anyhow::{Context as _, Result, bail};
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId};
use throughline_protocol::id::Principal;
use throughline_protocol::ticket::{PeerTicket, Ticket};
use throughline_protocol::wire::proof::Ends;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use crate::LIMIT;
use swarm::Command;

pub use floods::{Churned, Want};
pub use lies::{Answers, Ending, Lie, Script};

/// How a hostile peer reaches its victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Road {
    /// TCP, Noise, Yamux.
    Tcp,
    /// QUIC.
    Quic,
}

/// A running hostile peer. Dropping it closes its connections.
pub struct Hostile {
    runtime: Runtime,
    commands: mpsc::UnboundedSender<Command>,
    streams: streams::Control,
    principal: Principal,
    peer: PeerId,
    listens: Multiaddr,
}

impl std::fmt::Debug for Hostile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hostile").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Hostile {
    /// Starts a peer with the connection key of this name, which answers chain requests as `answers` says.
    ///
    /// # Errors
    /// When it cannot listen on loopback.
    pub fn start(name: &str, answers: Answers) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("a runtime for a hostile peer")?;
        let mut seed = throughline_protocol::testing::seed(&format!("hostile {name}"));
        let principal = throughline_protocol::testing::key(&format!("hostile {name}")).principal();
        let key = Keypair::ed25519_from_bytes(&mut seed).context("a connection key")?;
        let peer = key.public().to_peer_id();
        let (commands, inbox) = mpsc::unbounded_channel();
        let guard = runtime.enter();
        let (behaviour, streams, incoming) = streams::new();
        let swarm = swarm::build(key, behaviour)?;
        let (listening, heard) = oneshot::channel();
        runtime.spawn(swarm::run(swarm, inbox, listening));
        runtime.spawn(lies::answer(incoming, answers));
        drop(guard);
        let listens = runtime.block_on(within(heard))?.context("the hostile peer does not listen")?;
        Ok(Hostile { runtime, commands, streams, principal, peer, listens })
    }

    /// The ticket that a victim can fetch from it by.
    #[must_use]
    pub fn ticket(&self) -> String {
        let addresses = vec![self.listens.to_string()];
        Ticket::Peer(PeerTicket { principal: self.principal, peer: self.principal, addresses }).to_string()
    }

    /// Its peer id, as the node names it.
    #[must_use]
    pub fn peer_id(&self) -> String {
        self.peer.to_string()
    }

    /// Connects to the node behind a ticket.
    ///
    /// # Errors
    /// When it refuses, or has no address of that road.
    pub fn connect(&self, ticket: &str, road: Road) -> Result<Victim> {
        let Ticket::Peer(ticket) = ticket.parse::<Ticket>().context("a ticket of a peer")? else {
            bail!("expected a ticket of a peer");
        };
        let fits = |addr: &&Multiaddr| addr.to_string().contains("quic") == (road == Road::Quic);
        let addrs: Vec<Multiaddr> = ticket.addresses.iter().filter_map(|addr| addr.parse().ok()).collect();
        let addr = addrs.iter().find(fits).with_context(|| format!("no {road:?} among {addrs:?}"))?.clone();
        let peer = peer_of(&ticket.peer)?;
        let victim = Victim { peer, addr, ends: Ends { mine: self.principal, theirs: ticket.peer } };
        self.run(self.dial(&victim))?;
        Ok(victim)
    }

    /// Announces messages on a topic; says how many of them are on their way. None is while the node is not known to
    /// follow the topic.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn publish(&self, topic: &str, messages: Vec<Vec<u8>>) -> Result<u64> {
        let topic = topic.to_owned();
        self.run(async {
            let (done, heard) = oneshot::channel();
            self.tell(Command::Publish { topic, messages, done })?;
            heard.await.context("the hostile peer is gone")
        })
    }

    /// Follows a topic, so that the node counts it among those it sends to.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn follow(&self, topic: &str) -> Result<()> {
        self.tell(Command::Subscribe(topic.to_owned()))
    }

    /// Waits until somebody else is known to follow a topic.
    ///
    /// # Errors
    /// When nobody does, or the peer is gone.
    pub fn await_follower(&self, topic: &str) -> Result<()> {
        let topic = topic.to_owned();
        self.run(async {
            let (done, heard) = oneshot::channel();
            self.tell(Command::AwaitFollower { topic, done })?;
            heard.await.context("the hostile peer is gone")
        })
    }

    async fn dial(&self, victim: &Victim) -> Result<()> {
        let (done, heard) = oneshot::channel();
        self.tell(Command::Dial { peer: victim.peer, addr: victim.addr.clone(), done })?;
        heard.await.context("the hostile peer is gone")?
    }

    fn tell(&self, command: Command) -> Result<()> {
        self.commands.send(command).ok().context("the hostile peer is gone")
    }

    fn run<T>(&self, act: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(within(act))?
    }
}

/// A node under attack.
#[derive(Clone, Debug)]
pub struct Victim {
    peer: PeerId,
    addr: Multiaddr,
    ends: Ends,
}

impl Victim {
    /// Both ends of the connection, as the hostile side sees them.
    #[must_use]
    pub fn ends(&self) -> Ends {
        self.ends
    }
}

/// Whatever takes longer than [`LIMIT`] hangs.
async fn within<T>(act: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(LIMIT, act).await.context("a hostile act hangs")
}

/// The peer id of a connection key in principal form.
fn peer_of(principal: &Principal) -> Result<PeerId> {
    let key =
        libp2p::identity::ed25519::PublicKey::try_from_bytes(principal.key()).context("a connection key")?;
    Ok(libp2p::identity::PublicKey::from(key).to_peer_id())
}
