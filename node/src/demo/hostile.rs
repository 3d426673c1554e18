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

#[cfg(test)]
mod tests {
    use throughline_protocol::testing::SessionBuilder;
    use throughline_protocol::wire::Credentials;
    use throughline_protocol::wire::chain::{ChainAnswer, ChainAsk};

    use super::*;
    use crate::net::peer_of;

    /// One request over the network, and all frames of its answer.
    async fn ask(net: &NetHandle, ticket: &PeerTicket, ask: ChainAsk) -> Vec<ChainAnswer> {
        let peer = peer_of(&ticket.peer).unwrap();
        let addrs = ticket.addresses.iter().map(|addr| addr.parse().unwrap()).collect();
        net.dial(peer, addrs).await.unwrap();
        let mut stream = net.open(peer, Protocol::Chain).await.unwrap();
        let request = ChainRequest { credentials: Credentials::default(), ask };
        stream.write(&request.encode_body()).await.unwrap();
        stream.finish().await.unwrap();
        let mut frames = Vec::new();
        while let Some(body) = stream.read().await.unwrap() {
            frames.push(ChainAnswer::decode_body(&body).unwrap());
        }
        frames
    }

    #[tokio::test]
    async fn it_is_found_by_its_ticket_and_answers_over_the_network() {
        let session = SessionBuilder::new("demo hostile");
        let genesis = throughline_protocol::car::EntryBlocks {
            entry: session.entries()[0].entry.bytes(),
            payload: session.entries()[0].payload.as_deref(),
            config: None,
            files: &[],
        };
        let mut car = Vec::new();
        throughline_protocol::car::SessionWriter::begin(&mut car, session.head().entry.cid(), &genesis, []);
        let copy = SessionCopy::from_car(&car).unwrap();
        let (liar, ticket) = HostilePeer::start(copy.clone()).await.unwrap();
        let Ticket::Peer(ticket) = ticket else { panic!("expected a peer's ticket") };
        let listen = vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()];
        let (net, _events) = net::spawn(NetConfig::loopback(Zeroizing::new([7; 32]), listen)).unwrap();
        let heads = ChainAsk::Heads { owners: Vec::new(), sessions: Vec::new() };
        let answered = ask(&net, &ticket, heads.clone()).await;
        assert_eq!(answered, copy.answer(&heads));
        liar.stop().await;
        net.shutdown().await;
    }
}
