//! Streams of our own protocols: opened on request, taken in up to a cap.
//!
//! This stands where `libp2p-stream` would: that crate hands incoming streams over through a queue of one place
//! and silently drops what does not fit, so of several streams that arrive at once all but one are lost after the
//! asker was told they are open. It also keeps a channel for every connection that ever was. Here a stream that is
//! within the cap is never lost, and one over the cap never leaves the connection's task.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    NotifyHandler, Stream, StreamUpgradeError, SubstreamProtocol, THandler, THandlerInEvent,
    THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use tokio::sync::{Semaphore, oneshot};

use super::frames::Place;

/// Requests on their way to connections; the swarm takes them at every turn, so this is never near.
const OUTBOX_MAX: usize = 1_024;

/// A protocol that runs on frame streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Comparing heads and fetching ranges and blobs.
    Chain,
    /// Handing a signed entry to the holder.
    Append,
    /// Moving a session to another holder.
    Handoff,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 3] = [Protocol::Chain, Protocol::Append, Protocol::Handoff];

    /// The name that peers agree on.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Chain => "/throughline/chain/1",
            Protocol::Append => "/throughline/append/1",
            Protocol::Handoff => "/throughline/handoff/1",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl AsRef<str> for Protocol {
    fn as_ref(&self) -> &str {
        self.name()
    }
}

/// Why a stream was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenError {
    /// There is no connection, or it closed meanwhile.
    NotConnected,
    /// The peer does not speak the protocol.
    Unsupported,
    /// The peer did not agree on the protocol in time.
    Timeout,
    /// Too many requests are waiting.
    Busy,
}

/// Where the answer to a request goes; dropped unanswered it means that the connection closed.
pub(super) type OpenReply = oneshot::Sender<Result<Stream, OpenError>>;

/// A request for a stream, on its way to a connection.
#[derive(Debug)]
pub(super) struct Open {
    protocol: Protocol,
    reply: OpenReply,
}

/// A stream that a peer opened, within the cap.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) protocol: Protocol,
    pub(super) stream: Stream,
    pub(super) place: Place,
}

/// An [`Arrived`] and whose it is.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) peer: PeerId,
    pub(super) arrived: Arrived,
}

/// One part in so many of all places is for known peers alone: strangers cannot take the last ones, whatever addresses they come
/// from.
const KEPT_PART: usize = 4;
/// Known peers that are remembered; the one made known longest ago is forgotten first.
const KNOWN_MAX: usize = 1_024;

/// What one peer has, over all its connections. Held by them and by its open streams.
#[derive(Debug)]
pub(super) struct PeerRoom {
    places: Arc<Semaphore>,
    known: AtomicBool,
}

/// The counts that an incoming stream must find room in.
#[derive(Clone)]
struct Room {
    peer: Arc<PeerRoom>,
    of_all: Arc<Semaphore>,
    of_strangers: Arc<Semaphore>,
    refused: Arc<AtomicU64>,
}

impl Room {
    fn take(&self) -> Option<Place> {
        let place = self.find();
        if place.is_none() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        place
    }

    fn find(&self) -> Option<Place> {
        let of_peer = Arc::clone(&self.peer.places).try_acquire_owned().ok()?;
        let of_strangers = if self.peer.known.load(Ordering::Relaxed) {
            None
        } else {
            Some(Arc::clone(&self.of_strangers).try_acquire_owned().ok()?)
        };
        let of_all = Arc::clone(&self.of_all).try_acquire_owned().ok()?;
        Some(Place {
            _of_peer: of_peer,
            _of_strangers: of_strangers,
            _of_all: of_all,
            _peer: Arc::clone(&self.peer),
        })
    }
}

/// The behaviour: which connections a peer has, and its count.
pub(super) struct Behaviour {
    per_peer_max: usize,
    of_all: Arc<Semaphore>,
    of_strangers: Arc<Semaphore>,
    refused: Arc<AtomicU64>,
    /// Who may use the places that are kept, the newest last. They outlive connections: a party that was cut off finds its place.
    known: VecDeque<PeerId>,
    connections: HashMap<PeerId, Vec<ConnectionId>>,
    /// Held by connections and open streams, so that a peer that reconnects does not start from zero.
    of_peers: HashMap<PeerId, Weak<PeerRoom>>,
    outbox: VecDeque<ToSwarm<Incoming, Open>>,
}

impl Behaviour {
    /// At most `per_peer_max` incoming streams of one peer and `max` in all; `refused` counts the others.
    pub(super) fn new(per_peer_max: usize, max: usize, refused: Arc<AtomicU64>) -> Self {
        Behaviour {
            per_peer_max,
            of_all: Arc::new(Semaphore::new(max)),
            of_strangers: Arc::new(Semaphore::new(max - max / KEPT_PART)),
            refused,
            known: VecDeque::new(),
            connections: HashMap::new(),
            of_peers: HashMap::new(),
            outbox: VecDeque::new(),
        }
    }

    /// Lets a peer use the places that are kept for known ones, from its next stream on.
    pub(super) fn know(&mut self, peer: PeerId) {
        self.known.retain(|known| *known != peer);
        self.known.push_back(peer);
        self.mark(peer, true);
        if self.known.len() > KNOWN_MAX
            && let Some(oldest) = self.known.pop_front()
        {
            self.mark(oldest, false);
        }
    }

    fn mark(&self, peer: PeerId, known: bool) {
        if let Some(room) = self.of_peers.get(&peer).and_then(Weak::upgrade) {
            room.known.store(known, Ordering::Relaxed);
        }
    }

    /// Asks the peer for a stream, over the newest connection with it. Never dials.
    pub(super) fn open(&mut self, peer: PeerId, protocol: Protocol, reply: OpenReply) {
        let newest = self.connections.get(&peer).and_then(|connections| connections.last());
        let refusal = match newest {
            None => OpenError::NotConnected,
            Some(_) if self.outbox.len() >= OUTBOX_MAX => OpenError::Busy,
            Some(connection) => {
                let handler = NotifyHandler::One(*connection);
                let event = Open { protocol, reply };
                self.outbox.push_back(ToSwarm::NotifyHandler { peer_id: peer, handler, event });
                return;
            }
        };
        // The asker may have gone; then nobody waits for the answer.
        let _ = reply.send(Err(refusal));
    }

    fn handler_for(&mut self, peer: PeerId) -> Handler {
        let held = self.of_peers.get(&peer).and_then(Weak::upgrade);
        let of_peer = held.unwrap_or_else(|| {
            Arc::new(PeerRoom {
                places: Arc::new(Semaphore::new(self.per_peer_max)),
                known: AtomicBool::new(self.known.contains(&peer)),
            })
        });
        self.of_peers.retain(|_, held| held.strong_count() > 0);
        self.of_peers.insert(peer, Arc::downgrade(&of_peer));
        let room = Room {
            peer: of_peer,
            of_all: Arc::clone(&self.of_all),
            of_strangers: Arc::clone(&self.of_strangers),
            refused: Arc::clone(&self.refused),
        };
        Handler { room, requests: VecDeque::new(), arrived: VecDeque::new() }
    }

    fn forget(&mut self, peer: PeerId, connection: ConnectionId) {
        let Some(connections) = self.connections.get_mut(&peer) else { return };
        connections.retain(|held| *held != connection);
        if connections.is_empty() {
            self.connections.remove(&peer);
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Incoming;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler_for(peer))
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        peer: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler_for(peer))
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let FromSwarm::ConnectionEstablished(opened) = event {
            self.connections.entry(opened.peer_id).or_default().push(opened.connection_id);
        } else if let FromSwarm::ConnectionClosed(closed) = event {
            self.forget(closed.peer_id, closed.connection_id);
        }
    }

    fn on_connection_handler_event(
        &mut self,
        peer: PeerId,
        _: ConnectionId,
        arrived: THandlerOutEvent<Self>,
    ) {
        self.outbox.push_back(ToSwarm::GenerateEvent(Incoming { peer, arrived }));
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        match self.outbox.pop_front() {
            Some(event) => Poll::Ready(event),
            None => Poll::Pending,
        }
    }
}

/// Agrees on one of `protocols` and nothing more.
pub(super) struct Agree {
    protocols: &'static [Protocol],
}

impl Agree {
    fn on(protocol: Protocol) -> Self {
        let protocols = match protocol {
            Protocol::Chain => &[Protocol::Chain],
            Protocol::Append => &[Protocol::Append],
            Protocol::Handoff => &[Protocol::Handoff],
        };
        Agree { protocols }
    }
}

impl UpgradeInfo for Agree {
    type Info = Protocol;
    type InfoIter = std::iter::Copied<std::slice::Iter<'static, Protocol>>;

    fn protocol_info(&self) -> Self::InfoIter {
        self.protocols.iter().copied()
    }
}

impl InboundUpgrade<Stream> for Agree {
    type Output = (Stream, Protocol);
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_inbound(self, stream: Stream, protocol: Protocol) -> Self::Future {
        ready(Ok((stream, protocol)))
    }
}

impl OutboundUpgrade<Stream> for Agree {
    type Output = Stream;
    type Error = Infallible;
    type Future = Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_outbound(self, stream: Stream, _: Protocol) -> Self::Future {
        ready(Ok(stream))
    }
}

/// One connection's part.
pub(super) struct Handler {
    room: Room,
    requests: VecDeque<Open>,
    arrived: VecDeque<Arrived>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Open;
    type ToBehaviour = Arrived;
    type InboundProtocol = Agree;
    type OutboundProtocol = Agree;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = OpenReply;

    fn listen_protocol(&self) -> SubstreamProtocol<Agree> {
        SubstreamProtocol::new(Agree { protocols: &Protocol::ALL }, ())
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Agree, OpenReply, Arrived>> {
        if let Some(arrived) = self.arrived.pop_front() {
            return Poll::Ready(ConnectionHandlerEvent::NotifyBehaviour(arrived));
        }
        if let Some(Open { protocol, reply }) = self.requests.pop_front() {
            let protocol = SubstreamProtocol::new(Agree::on(protocol), reply);
            return Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest { protocol });
        }
        Poll::Pending
    }

    fn on_behaviour_event(&mut self, open: Open) {
        self.requests.push_back(open);
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the other events concern no stream of ours")]
    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Agree, Agree, (), OpenReply>) {
        // In each arm that answers, the asker may have gone; then nobody waits for the answer.
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                let (stream, protocol) = protocol;
                if let Some(place) = self.room.take() {
                    self.arrived.push_back(Arrived { protocol, stream, place });
                }
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                let _ = info.send(Ok(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let _ = info.send(Err(match error {
                    StreamUpgradeError::Timeout => OpenError::Timeout,
                    StreamUpgradeError::NegotiationFailed => OpenError::Unsupported,
                    StreamUpgradeError::Io(_) => OpenError::NotConnected,
                    StreamUpgradeError::Apply(never) => match never {},
                }));
            }
            _ => {}
        }
    }
}
