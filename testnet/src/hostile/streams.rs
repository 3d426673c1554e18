//! Streams in both directions, none lost and none limited: as many as the other side allows.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use anyhow::{Context as _, Result, anyhow};
use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::core::upgrade::{InboundUpgrade, OutboundUpgrade, UpgradeInfo};
use libp2p::swarm::handler::{
    ConnectionEvent, DialUpgradeError, FullyNegotiatedInbound, FullyNegotiatedOutbound,
};
use libp2p::swarm::{
    ConnectionDenied, ConnectionHandler, ConnectionHandlerEvent, ConnectionId, FromSwarm, NetworkBehaviour,
    NotifyHandler, Stream, SubstreamProtocol, THandler, THandlerInEvent, THandlerOutEvent, ToSwarm,
};
use libp2p::{Multiaddr, PeerId};
use throughline_protocol::wire::CHAIN_PROTOCOL;
use tokio::sync::{mpsc, oneshot};

type Opened = oneshot::Sender<Result<Stream>>;

/// A stream that is wanted.
#[derive(Debug)]
pub(super) struct Open {
    protocol: &'static str,
    opened: Opened,
}

/// The hold on the streams of a host.
#[derive(Clone, Debug)]
pub(super) struct Control(mpsc::UnboundedSender<(PeerId, Open)>);

impl Control {
    /// Opens a stream to a connected peer.
    ///
    /// # Errors
    /// When there is no connection or the peer does not take it.
    pub(super) async fn open_stream(&self, peer: PeerId, protocol: &'static str) -> Result<Stream> {
        let (opened, answer) = oneshot::channel();
        self.0.send((peer, Open { protocol, opened })).ok().context("the hostile peer is gone")?;
        answer.await.context("the connection is gone")?
    }
}

/// The behaviour.
pub(super) struct Behaviour {
    wanted: mpsc::UnboundedReceiver<(PeerId, Open)>,
    arrived: mpsc::UnboundedSender<Stream>,
    connections: HashMap<PeerId, Vec<ConnectionId>>,
}

/// A behaviour, the hold on it, and the chain streams that others open.
pub(super) fn new() -> (Behaviour, Control, mpsc::UnboundedReceiver<Stream>) {
    let (sender, wanted) = mpsc::unbounded_channel();
    let (arrived, incoming) = mpsc::unbounded_channel();
    (Behaviour { wanted, arrived, connections: HashMap::new() }, Control(sender), incoming)
}

impl Behaviour {
    fn handler(&self) -> Handler {
        Handler { arrived: self.arrived.clone(), wanted: VecDeque::new() }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = Handler;
    type ToSwarm = Infallible;

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler())
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(self.handler())
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let FromSwarm::ConnectionEstablished(made) = event {
            self.connections.entry(made.peer_id).or_default().push(made.connection_id);
        } else if let FromSwarm::ConnectionClosed(gone) = event
            && let Some(held) = self.connections.get_mut(&gone.peer_id)
        {
            held.retain(|connection| *connection != gone.connection_id);
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ToSwarm<Infallible, THandlerInEvent<Self>>> {
        while let Poll::Ready(Some((peer_id, event))) = self.wanted.poll_recv(cx) {
            match self.connections.get(&peer_id).and_then(|held| held.last()) {
                Some(connection) => {
                    let handler = NotifyHandler::One(*connection);
                    return Poll::Ready(ToSwarm::NotifyHandler { peer_id, handler, event });
                }
                None => drop(event.opened.send(Err(anyhow!("not connected")))),
            }
        }
        Poll::Pending
    }
}

/// Agrees on one protocol and nothing more.
pub(super) struct Agree(&'static str);

impl UpgradeInfo for Agree {
    type Info = &'static str;
    type InfoIter = std::iter::Once<&'static str>;

    fn protocol_info(&self) -> Self::InfoIter {
        std::iter::once(self.0)
    }
}

impl InboundUpgrade<Stream> for Agree {
    type Output = Stream;
    type Error = Infallible;
    type Future = Ready<Result<Stream, Infallible>>;

    fn upgrade_inbound(self, stream: Stream, _: &'static str) -> Self::Future {
        ready(Ok(stream))
    }
}

impl OutboundUpgrade<Stream> for Agree {
    type Output = Stream;
    type Error = Infallible;
    type Future = Ready<Result<Stream, Infallible>>;

    fn upgrade_outbound(self, stream: Stream, _: &'static str) -> Self::Future {
        ready(Ok(stream))
    }
}

/// One connection's part.
pub(super) struct Handler {
    arrived: mpsc::UnboundedSender<Stream>,
    wanted: VecDeque<Open>,
}

impl ConnectionHandler for Handler {
    type FromBehaviour = Open;
    type ToBehaviour = Infallible;
    type InboundProtocol = Agree;
    type OutboundProtocol = Agree;
    type InboundOpenInfo = ();
    type OutboundOpenInfo = Opened;

    fn listen_protocol(&self) -> SubstreamProtocol<Agree> {
        SubstreamProtocol::new(Agree(CHAIN_PROTOCOL), ())
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ConnectionHandlerEvent<Agree, Opened, Infallible>> {
        match self.wanted.pop_front() {
            Some(Open { protocol, opened }) => {
                Poll::Ready(ConnectionHandlerEvent::OutboundSubstreamRequest {
                    protocol: SubstreamProtocol::new(Agree(protocol), opened),
                })
            }
            None => Poll::Pending,
        }
    }

    fn on_behaviour_event(&mut self, open: Open) {
        self.wanted.push_back(open);
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the other events concern no stream of ours")]
    fn on_connection_event(&mut self, event: ConnectionEvent<'_, Agree, Agree, (), Opened>) {
        // Whoever wanted a stream may have given up; then nobody reads the answer.
        match event {
            ConnectionEvent::FullyNegotiatedInbound(FullyNegotiatedInbound { protocol, .. }) => {
                let _ = self.arrived.send(protocol);
            }
            ConnectionEvent::FullyNegotiatedOutbound(FullyNegotiatedOutbound { protocol, info }) => {
                let _ = info.send(Ok(protocol));
            }
            ConnectionEvent::DialUpgradeError(DialUpgradeError { info, error }) => {
                let _ = info.send(Err(anyhow!("not opened: {error}")));
            }
            _ => {}
        }
    }
}
