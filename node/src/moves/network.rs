//! The network as the road of moves: requests of `/throughline/handoff/1`, chain sync for everything that is fetched.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use libp2p::multiaddr::Protocol as Part;
use libp2p::{Multiaddr, PeerId};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::handoff::Point;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::limits;
use throughline_protocol::ticket::{PeerTicket, Ticket};
use throughline_protocol::wire::WireError;
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffRequest};

use super::drive::until_ended;
use super::road::{Provider, Road};
use super::{Asker, facts};
use crate::api::error::{Answer, Problem};
use crate::core::Node;
use crate::net::{peer_of, principal_of};
use crate::sync::{self, FetchRequest, HandoffHandler, Network, Tally, Use, Wanted};

/// How long a peer that is asked for a session may send nothing.
const IDLE: Duration = Duration::from_secs(10);

/// The network as a road.
pub(super) struct NetworkRoad;

/// Answers other nodes. It lets the node go when that is to end, for the node holds the network that holds this.
struct Server(Arc<Mutex<Option<Node>>>);

impl HandoffHandler for Server {
    fn handle(&self, asker: sync::Asker, request: HandoffRequest) -> BoxFuture<'static, HandoffAnswer> {
        let node = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        async move {
            let desk = node.and_then(|node| node.moves().ok());
            let Some(desk) = desk else { return HandoffAnswer::Error(WireError::new(Code::Interrupted)) };
            let asker = asker.principal.map_or(Asker::Stranger, Asker::Proven);
            desk.answer(asker, request).await
        }
        .boxed()
    }

    fn ended(&self, session: SessionId, opening: Arc<[u8]>) -> BoxFuture<'static, Answer<()>> {
        let node = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        async move {
            let desk = node.ok_or(Code::Interrupted)?.moves()?;
            desk.blocking(move |desk| desk.ended(session, &opening)).await
        }
        .boxed()
    }
}

fn network(node: &Node) -> Result<&Network, Code> {
    node.network().ok_or(Code::Unreachable)
}

/// A lost answer and a peer that is not there are one to a move: it asks again.
fn lost(code: Code) -> Code {
    if code == Code::Timeout { code } else { Code::Unreachable }
}

fn is_silence(code: Code) -> bool {
    matches!(code, Code::Unreachable | Code::Timeout | Code::PeerUnknown | Code::Interrupted)
}

impl Road for NetworkRoad {
    fn serve(&self, node: &Node) {
        let Some(network) = node.network() else { return };
        let server = Arc::new(Mutex::new(Some(node.clone())));
        network.serve_handoffs(Arc::new(Server(Arc::clone(&server))));
        let mut stopping = node.stopping();
        tokio::spawn(async move {
            until_ended(&mut stopping).await;
            server.lock().unwrap_or_else(PoisonError::into_inner).take();
        });
    }

    fn is_open(&self, node: &Node) -> bool {
        node.network().is_some()
    }

    fn ask<'a>(
        &'a self,
        node: &'a Node,
        peer: Principal,
        request: HandoffRequest,
    ) -> BoxFuture<'a, Result<HandoffAnswer, Code>> {
        async move {
            let answer = network(node)?.request_handoff(peer, request).await;
            answer.map_err(|problem| lost(problem.code()))
        }
        .boxed()
    }

    fn look<'a>(
        &'a self,
        node: &'a Node,
        peer: Principal,
        session: SessionId,
    ) -> BoxFuture<'a, Result<Option<Point>, Code>> {
        async move {
            match network(node)?.fetch(request(session, vec![peer.to_string()])).await {
                Ok(fetched) => Ok(Some(Point { cid: fetched.told.cid, seq: fetched.told.seq })),
                Err(problem) if is_silence(problem.code()) => Err(lost(problem.code())),
                // It answered, with nothing that this node could verify.
                Err(_) => Ok(None),
            }
        }
        .boxed()
    }

    fn find<'a>(
        &'a self,
        node: &'a Node,
        session: SessionId,
        from: Option<String>,
    ) -> BoxFuture<'a, Answer<()>> {
        async move {
            let from = from.into_iter().collect();
            network(node)?.fetch(request(session, from)).await.map(drop)
        }
        .boxed()
    }

    fn fetch<'a>(
        &'a self,
        node: &'a Node,
        session: SessionId,
        head: Point,
        from: Vec<Provider>,
        tally: Arc<Tally>,
    ) -> BoxFuture<'a, Result<(), Reject>> {
        async move {
            let failed = |problem: Problem| Reject::new(problem.code(), problem.detail());
            network(node)?.fetch_counted(request(session, names(from)), tally).await.map_err(failed)?;
            let held = node.reader().and_then(|reader| facts::is_held(&reader, session, head));
            match held.map_err(failed)? {
                true => Ok(()),
                false => {
                    let detail = "the providers did not give the chain up to the offered head";
                    Err(Reject::new(Code::Incomplete, detail))
                }
            }
        }
        .boxed()
    }

    fn open(&self, node: &Node, session: SessionId, target: Principal) {
        if let Some(network) = node.network() {
            network.open_to(session, target);
        }
    }

    fn close(&self, node: &Node, session: SessionId, target: Principal) {
        if let Some(network) = node.network() {
            network.close_to(session, target);
        }
    }

    fn addresses<'a>(&'a self, node: &'a Node, peers: Vec<Principal>) -> BoxFuture<'a, Vec<String>> {
        async move {
            let Some(network) = node.network() else { return Vec::new() };
            let known = network.peers().await;
            let mut all = Vec::new();
            for peer in peers {
                if peer == node.principal() {
                    all.extend(full(network.peer_principal(), network.listen_addrs().await));
                }
                for view in known.iter().filter(|view| view.principal == Some(peer)) {
                    all.extend(full(view.peer, view.addrs.clone()));
                }
            }
            all.truncate(limits::ADDRESSES_MAX);
            all
        }
        .boxed()
    }

    fn told<'a>(
        &'a self,
        node: &'a Node,
        peer: Principal,
        session: SessionId,
    ) -> BoxFuture<'a, Option<Point>> {
        async move {
            let peers = node.network()?.peers().await;
            let heads =
                peers.into_iter().filter(|view| view.principal == Some(peer)).flat_map(|view| view.heads);
            let told = heads.filter(|told| told.session == session).map(|told| told.head);
            told.max_by_key(|head| (head.epoch, head.seq)).map(|head| Point { cid: head.cid, seq: head.seq })
        }
        .boxed()
    }

    fn peers<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Vec<Principal>> {
        async move {
            let Some(network) = node.network() else { return Vec::new() };
            let peers = network.peers().await;
            let known = peers.into_iter().filter(|peer| peer.alias.is_some() && peer.connected);
            known.filter_map(|peer| peer.principal).collect()
        }
        .boxed()
    }
}

/// Addresses as texts that end in the peer's id.
fn full(key: Principal, addrs: Vec<Multiaddr>) -> Vec<String> {
    let Some(peer) = peer_of(&key) else { return Vec::new() };
    let ends = |addr: &Multiaddr| matches!(addr.iter().last(), Some(Part::P2p(_)));
    addrs
        .into_iter()
        .map(|addr| if ends(&addr) { addr } else { addr.with(Part::P2p(peer)) }.to_string())
        .collect()
}

/// Everything of a session, with files.
fn request(session: SessionId, from: Vec<String>) -> FetchRequest {
    FetchRequest { session, from, payloads: Wanted::All, idle: Some(IDLE), mode: Use::Adopt, peers_min: 0 }
}

/// Providers as a fetch names them: peers by principal, the addresses of an offer as one ticket for each peer. An address
/// without a peer's key at its end says nothing about who would answer and is passed over.
fn names(from: Vec<Provider>) -> Vec<String> {
    let mut names = Vec::new();
    let mut offered: BTreeMap<Principal, Vec<String>> = BTreeMap::new();
    for provider in from {
        match provider {
            Provider::Peer(peer) => names.push(peer.to_string()),
            Provider::Address(text) => {
                if let Some(key) = peer_at(&text).as_ref().and_then(principal_of) {
                    offered.entry(key).or_default().push(text);
                }
            }
        }
    }
    names.extend(offered.into_iter().map(|(peer, addresses)| {
        // Who signs there is not known, and not needed for a connection.
        Ticket::Peer(PeerTicket { principal: peer, peer, addresses }).to_string()
    }));
    names
}

fn peer_at(address: &str) -> Option<PeerId> {
    let address: Multiaddr = address.parse().ok()?;
    let Some(Part::P2p(peer)) = address.iter().last() else { return None };
    Some(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_peer_become_one_ticket() {
        let key = libp2p::identity::Keypair::ed25519_from_bytes([7; 32]).unwrap();
        let peer = key.public().to_peer_id();
        let at = |address: &str| Provider::Address(address.to_owned());
        let quic = format!("/ip4/127.0.0.1/udp/4747/quic-v1/p2p/{peer}");
        let tcp = format!("/ip4/127.0.0.1/tcp/4747/p2p/{peer}");
        let names = names(vec![at(&quic), at(&tcp), at("/ip4/127.0.0.1/tcp/1"), at("nonsense")]);
        assert_eq!(names.len(), 1);
        let Ticket::Peer(ticket) = names[0].parse().unwrap() else { panic!("a peer's ticket") };
        assert_eq!(ticket.addresses, [quic, tcp]);
        assert_eq!(Some(ticket.peer), principal_of(&peer));
    }
}
