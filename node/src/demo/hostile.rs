//! A peer that lies: it speaks chain sync over the real network and serves a copy of a session with one bit changed.
//!
//! It lives in the process that runs the demo (or the test) and stands behind an identity of its own. It decides nothing
//! about sessions; what it serves is [`SessionCopy`]'s.

use std::sync::Arc;

use throughline_protocol::code::Code;
use throughline_protocol::ticket::{PeerTicket, Ticket};
use throughline_protocol::wire::Message as _;
use throughline_protocol::wire::chain::ChainRequest;
use zeroize::Zeroizing;

use super::copy::SessionCopy;
use crate::api::error::{Answer, Problem};
use crate::net::{self, FrameError, FrameStream, NetConfig, NetEvent, NetEvents, NetHandle, Protocol};

/// A running liar. It stops when this is dropped.
pub struct HostilePeer {
    net: NetHandle,
}

impl HostilePeer {
    /// Starts to serve `copy` on loopback.
    ///
    /// # Errors
    /// When the network cannot be started.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn start(copy: SessionCopy) -> Answer<(Self, Ticket)> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *seed).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
        let listen = "/ip4/127.0.0.1/tcp/0";
        let listen = listen.parse().map_err(|_| Problem::new(Code::Internal, "expected an address"))?;
        let (net, events) = net::spawn(NetConfig::loopback(seed, vec![listen])).map_err(cannot_start)?;
        let peer = net.peer_principal();
        let events = Listening::wait(events).await?;
        let addresses = net.listen_addrs().await.iter().map(ToString::to_string).collect();
        tokio::spawn(serve(events, Arc::new(copy)));
        // Nobody signs as it, so its connection key stands for both.
        Ok((HostilePeer { net }, Ticket::Peer(PeerTicket { principal: peer, peer, addresses })))
    }

    /// Stops it and returns when it has.
    pub async fn stop(self) {
        self.net.shutdown().await;
    }
}

struct Listening;

impl Listening {
    /// The events after the one that says where it listens.
    async fn wait(mut events: NetEvents) -> Answer<NetEvents> {
        loop {
            match events.recv().await {
                Some(NetEvent::Listening(_)) => return Ok(events),
                Some(_) => {}
                None => {
                    return Err(Problem::new(Code::Unreachable, "the network stopped before it listened"));
                }
            }
        }
    }
}

fn cannot_start(error: net::NetError) -> Problem {
    Problem::new(Code::Unreachable, error.to_string())
}

async fn serve(mut events: NetEvents, copy: Arc<SessionCopy>) {
    while let Some(event) = events.recv().await {
        match event {
            NetEvent::Incoming { protocol: Protocol::Chain, stream, .. } => {
                let copy = Arc::clone(&copy);
                tokio::spawn(async move {
                    if let Err(error) = answer(stream, &copy).await {
                        tracing::debug!(%error, "an asker left");
                    }
                });
            }
            // It holds nothing and takes nothing: streams of other protocols close when they are dropped.
            NetEvent::Incoming { .. }
            | NetEvent::Connected(_)
            | NetEvent::Disconnected { .. }
            | NetEvent::Listening(_)
            | NetEvent::Gossip { .. } => {}
        }
    }
}

async fn answer(mut stream: FrameStream, copy: &SessionCopy) -> Result<(), FrameError> {
    let Some(body) = stream.read().await? else { return Ok(()) };
    // What it cannot read it does not answer; the asker sees the stream end.
    let Ok(request) = ChainRequest::decode_body(&body) else { return Ok(()) };
    for frame in copy.answer(&request.ask) {
        stream.write(&frame.encode_body()).await?;
    }
    stream.finish().await
}
