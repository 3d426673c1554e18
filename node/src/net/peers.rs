//! Who is connected, over what, and where else they say they can be reached.

use std::collections::HashMap;
use std::time::Duration;

use libp2p::swarm::ConnectionId;
use libp2p::{Multiaddr, PeerId};
use throughline_protocol::id::Principal;

use super::addrs::{Scope, Transport};
use super::identity::principal_of;

/// Addresses kept of what one peer announces.
const ANNOUNCED_MAX: usize = 8;

/// A peer and its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedPeer {
    /// Its libp2p name.
    pub peer: PeerId,
    /// The same key as a principal.
    pub principal: Principal,
    /// The remote address of every connection, then the addresses that the peer announces. Of a connection that
    /// the peer opened over TCP, the port is not one that it listens on.
    pub addrs: Vec<Multiaddr>,
    /// QUIC when any connection is.
    pub transport: Transport,
    /// The last round trip measured; the first comes soon after connecting.
    pub rtt: Option<Duration>,
}

struct Entry {
    principal: Principal,
    connections: Vec<(ConnectionId, Multiaddr)>,
    announced: Vec<Multiaddr>,
    rtt: Option<Duration>,
}

/// The table of connected peers; the connection limits bound it.
#[derive(Default)]
pub(super) struct Peers {
    entries: HashMap<PeerId, Entry>,
}

impl Peers {
    /// Notes a connection; says whether it is the first with this peer. Nothing for a peer whose key is not Ed25519.
    pub(super) fn opened(
        &mut self,
        peer: PeerId,
        connection: ConnectionId,
        remote: Multiaddr,
    ) -> Option<bool> {
        let principal = principal_of(&peer)?;
        let entry = self.entries.entry(peer).or_insert_with(|| Entry {
            principal,
            connections: Vec::new(),
            announced: Vec::new(),
            rtt: None,
        });
        entry.connections.push((connection, remote));
        Some(entry.connections.len() == 1)
    }

    /// Forgets a connection; says whether it was the last with this peer.
    pub(super) fn closed(&mut self, peer: &PeerId, connection: ConnectionId) -> bool {
        let Some(entry) = self.entries.get_mut(peer) else { return false };
        entry.connections.retain(|(held, _)| *held != connection);
        entry.connections.is_empty() && self.entries.remove(peer).is_some()
    }

    /// Notes a measured round trip.
    pub(super) fn measured(&mut self, peer: &PeerId, rtt: Duration) {
        if let Some(entry) = self.entries.get_mut(peer) {
            entry.rtt = Some(rtt);
        }
    }

    /// Notes what a peer announces. An address is believed when it reaches at least as far as the connection it
    /// came over: nobody on the internet makes us dial into our own network.
    pub(super) fn announced(&mut self, peer: &PeerId, connection: ConnectionId, addrs: Vec<Multiaddr>) {
        let Some(entry) = self.entries.get_mut(peer) else { return };
        let remote = entry.connections.iter().find(|(held, _)| *held == connection);
        let Some(nearest) = remote.and_then(|(_, addr)| Scope::of(addr)) else { return };
        let believed = addrs.into_iter().filter(|addr| Scope::of(addr).is_some_and(|scope| scope >= nearest));
        entry.announced = believed.take(ANNOUNCED_MAX).collect();
    }

    /// Whether there is a connection.
    pub(super) fn contains(&self, peer: &PeerId) -> bool {
        self.entries.contains_key(peer)
    }

    /// One peer as callers see it.
    pub(super) fn view(&self, peer: &PeerId) -> Option<ConnectedPeer> {
        self.entries.get(peer).map(|entry| view(*peer, entry))
    }

    /// All peers as callers see them.
    pub(super) fn views(&self) -> Vec<ConnectedPeer> {
        self.entries.iter().map(|(peer, entry)| view(*peer, entry)).collect()
    }
}

fn view(peer: PeerId, entry: &Entry) -> ConnectedPeer {
    let mut addrs: Vec<Multiaddr> = Vec::new();
    for addr in entry.connections.iter().map(|(_, addr)| addr).chain(&entry.announced) {
        if !addrs.contains(addr) {
            addrs.push(addr.clone());
        }
    }
    let quic = entry.connections.iter().any(|(_, addr)| Transport::of(addr) == Transport::Quic);
    let transport = if quic { Transport::Quic } else { Transport::Tcp };
    ConnectedPeer { peer, principal: entry.principal, addrs, transport, rtt: entry.rtt }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_and_the_last_connection_are_told() {
        let (mut peers, peer) = (Peers::default(), PeerId::random());
        assert_eq!(peers.opened(peer, ConnectionId::new_unchecked(1), addr("/ip4/10.0.0.1/tcp/1")), None);
        let peer = super::super::identity::peer_of(&Principal::from_key([
            0x3b, 0x6a, 0x27, 0xbc, 0xce, 0xb6, 0xa4, 0x2d, 0x62, 0xa3, 0xa8, 0xd0, 0x2a, 0x6f, 0x0d, 0x73,
            0x65, 0x32, 0x15, 0x77, 0x1d, 0xe2, 0x43, 0xa6, 0x3a, 0xc0, 0x48, 0xa1, 0x8b, 0x59, 0xda, 0x29,
        ]))
        .unwrap();
        let id = ConnectionId::new_unchecked;
        assert_eq!(peers.opened(peer, id(1), addr("/ip4/10.0.0.1/tcp/1")), Some(true));
        assert_eq!(peers.opened(peer, id(2), addr("/ip4/10.0.0.1/udp/1/quic-v1")), Some(false));
        assert_eq!(peers.view(&peer).unwrap().transport, Transport::Quic);
        assert!(!peers.closed(&peer, id(2)));
        assert_eq!(peers.view(&peer).unwrap().transport, Transport::Tcp);
        assert!(peers.closed(&peer, id(1)));
        assert!(!peers.contains(&peer));

        peers.opened(peer, id(3), addr("/ip4/8.8.8.8/tcp/1"));
        let told =
            ["/ip4/10.0.0.9/tcp/1", "/ip4/127.0.0.1/tcp/1", "/ip4/9.9.9.9/tcp/1", "/dns4/a.example/tcp/1"];
        peers.announced(&peer, id(3), told.iter().map(|text| addr(text)).collect());
        assert_eq!(
            peers.view(&peer).unwrap().addrs,
            [addr("/ip4/8.8.8.8/tcp/1"), addr("/ip4/9.9.9.9/tcp/1")]
        );
    }
}
