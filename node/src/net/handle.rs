//! What callers do with the network: every act is a command to the event loop and waits for its answer.

use std::sync::Arc;
use std::time::Duration;

use libp2p::{Multiaddr, PeerId, Stream};
use throughline_protocol::code::Code;
use throughline_protocol::id::Principal;
use throughline_protocol::limits;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::charges::Charges;
use super::error::NetError;
use super::events::{Counters, NetCounts};
use super::frames::{FrameStream, FrameTiming};
use super::gossip::{GossipId, Published, Verdict};
use super::peers::ConnectedPeer;
use super::streams::{OpenError, OpenReply, Protocol};

/// How long a dial may take over all addresses.
const DIAL: Duration = Duration::from_secs(20);
/// How long opening a stream may take.
const OPEN: Duration = Duration::from_secs(15);

/// Where an answer goes. The asker may be gone; then nobody reads it.
pub(super) type Reply<T> = oneshot::Sender<T>;

/// One act for the event loop.
pub(super) enum Command {
    ListenAddrs(Reply<Vec<Multiaddr>>),
    Connected(Reply<Vec<ConnectedPeer>>),
    Followers(Principal, Reply<Vec<PeerId>>),
    Dial { peer: PeerId, addrs: Vec<Multiaddr>, reply: Reply<Result<ConnectedPeer, NetError>> },
    Block(PeerId),
    Unblock(PeerId),
    Charges(Reply<Vec<Charges>>),
    Know(PeerId),
    Charge(PeerId, Code),
    Open { peer: PeerId, protocol: Protocol, reply: OpenReply },
    Subscribe(Principal, Reply<Result<(), NetError>>),
    Unsubscribe(Principal),
    Publish { owner: Principal, data: Vec<u8>, reply: Reply<Result<Published, NetError>> },
    Report(GossipId, Verdict),
    Shutdown(Reply<()>),
}

/// A hold on the running network. Clones share it; when the last one is dropped the network stops.
#[derive(Clone)]
pub struct NetHandle {
    pub(super) peer: PeerId,
    pub(super) principal: Principal,
    pub(super) timing: FrameTiming,
    pub(super) counters: Arc<Counters>,
    pub(super) commands: mpsc::Sender<Command>,
}

impl NetHandle {
    /// Our own peer id.
    #[must_use]
    pub fn peer_id(&self) -> PeerId {
        self.peer
    }

    /// Our own peer key as a principal.
    #[must_use]
    pub fn peer_principal(&self) -> Principal {
        self.principal
    }

    /// What was dropped, refused and charged so far.
    #[must_use]
    pub fn counts(&self) -> NetCounts {
        self.counters.snapshot()
    }

    /// The addresses the node listens on now, with real ports; none once it is shut down.
    pub async fn listen_addrs(&self) -> Vec<Multiaddr> {
        self.ask(Command::ListenAddrs).await.unwrap_or_default()
    }

    /// The connected peers, in no order; none once the network is shut down.
    pub async fn connected(&self) -> Vec<ConnectedPeer> {
        self.ask(Command::Connected).await.unwrap_or_default()
    }

    /// The connected peers that follow an owner's topic.
    pub async fn followers(&self, owner: Principal) -> Vec<PeerId> {
        self.ask(|reply| Command::Followers(owner, reply)).await.unwrap_or_default()
    }

    /// Connects to a peer and waits until that succeeds or fails; at once when there is a connection. Without
    /// `addrs`, only a peer found on the local network can be reached.
    ///
    /// # Errors
    /// `Dial` with what each address answered, `Timeout`, `Stopped`.
    pub async fn dial(&self, peer: PeerId, addrs: Vec<Multiaddr>) -> Result<ConnectedPeer, NetError> {
        let asked = self.ask(|reply| Command::Dial { peer, addrs, reply });
        timeout(DIAL, asked).await.map_err(|_| NetError::Timeout { peer })??
    }

    /// Closes every connection with a peer and takes none until [`NetHandle::unblock`] or a restart.
    pub async fn block(&self, peer: PeerId) {
        self.tell(Command::Block(peer)).await;
    }

    /// Lifts a block, also one that charges led to, and forgets the charges.
    pub async fn unblock(&self, peer: PeerId) {
        self.tell(Command::Unblock(peer)).await;
    }

    /// Says that a peer is no stranger: it may use the quarter of all incoming streams that strangers cannot take. At most 1,024 peers
    /// are known at a time, the newest.
    pub async fn know(&self, peer: PeerId) {
        self.tell(Command::Know(peer)).await;
    }

    /// Counts something against a peer. After [`super::NetLimits::charges_max`] of them it is disconnected and
    /// blocked for [`super::NetLimits::block_for`]. `reason` is for the log; whose fault it is decides the caller.
    pub async fn charge(&self, peer: PeerId, reason: Code) {
        self.tell(Command::Charge(peer, reason)).await;
    }

    /// The peers with charges that count, or that are shut out for them, in no order.
    pub async fn charges(&self) -> Vec<Charges> {
        self.ask(Command::Charges).await.unwrap_or_default()
    }

    /// Opens a stream to a connected peer. It never dials. A peer that has no place left drops the stream, which
    /// shows at the first read.
    ///
    /// # Errors
    /// `NotConnected`, `Unsupported`, `Timeout`, `Limit`, `Stopped`.
    pub async fn open(&self, peer: PeerId, protocol: Protocol) -> Result<FrameStream, NetError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Open { peer, protocol, reply }).await?;
        let opened = timeout(OPEN, answer).await.map_err(|_| NetError::Timeout { peer })?;
        // An unanswered request means that its connection closed.
        let stream: Stream = opened.unwrap_or(Err(OpenError::NotConnected)).map_err(|error| match error {
            OpenError::NotConnected => NetError::NotConnected { peer },
            OpenError::Unsupported => NetError::Unsupported { peer, protocol },
            OpenError::Timeout => NetError::Timeout { peer },
            OpenError::Busy => NetError::Limit { what: "streams being opened" },
        })?;
        Ok(FrameStream::new(stream, self.timing))
    }

    /// Follows an owner's topic.
    ///
    /// # Errors
    /// `Limit` beyond [`super::NetLimits::topics_max`], `Stopped`.
    pub async fn subscribe(&self, owner: Principal) -> Result<(), NetError> {
        self.ask(|reply| Command::Subscribe(owner, reply)).await?
    }

    /// Follows an owner's topic no more.
    pub async fn unsubscribe(&self, owner: Principal) {
        self.tell(Command::Unsubscribe(owner)).await;
    }

    /// Announces `data` on an owner's topic, followed or not. Only public sessions may be announced this way.
    ///
    /// # Errors
    /// `TooBig` above 16 KiB, `Stopped`.
    pub async fn publish(&self, owner: Principal, data: Vec<u8>) -> Result<Published, NetError> {
        let max = limits::ANNOUNCEMENT_BYTES_MAX;
        if data.len() > max {
            return Err(NetError::TooBig { got: data.len(), max });
        }
        self.ask(|reply| Command::Publish { owner, data, reply }).await?
    }

    /// Says what is to become of a received message.
    pub async fn report(&self, id: GossipId, verdict: Verdict) {
        self.tell(Command::Report(id, verdict)).await;
    }

    /// Closes every connection and stops; returns when it is done.
    pub async fn shutdown(&self) {
        // Stopped already is what was asked for.
        let _ = self.ask(Command::Shutdown).await;
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, NetError> {
        let (reply, answer) = oneshot::channel();
        self.send(command(reply)).await?;
        answer.await.map_err(|_| NetError::Stopped)
    }

    /// For acts whose outcome shows in events; after a shutdown there is nothing left to act on.
    async fn tell(&self, command: Command) {
        let _ = self.send(command).await;
    }

    async fn send(&self, command: Command) -> Result<(), NetError> {
        self.commands.send(command).await.map_err(|_| NetError::Stopped)
    }
}
