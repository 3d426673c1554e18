//! A cap on the connections that one address opens, so that one host cannot take every incoming place under
//! many peer ids.
//!
//! Counted are incoming connections from the moment they arrive, one count per IPv4 address or IPv6 /64 (what one
//! host usually gets). Connections that we open are our own choice and do not count; neither does loopback.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::task::{Context, Poll};

use libp2p::core::Endpoint;
use libp2p::core::transport::PortUse;
use libp2p::swarm::{
    ConnectionDenied, ConnectionId, FromSwarm, NetworkBehaviour, THandler, THandlerInEvent, THandlerOutEvent,
    ToSwarm, dummy,
};
use libp2p::{Multiaddr, PeerId};

use super::addrs::ip_of;

/// The part of an address that one host is assumed to own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    V4(Ipv4Addr),
    V6([u16; 4]),
}

impl Origin {
    fn of(addr: &Multiaddr) -> Option<Self> {
        match ip_of(addr)? {
            ip if ip.is_loopback() => None,
            IpAddr::V4(ip) => Some(Origin::V4(ip)),
            IpAddr::V6(ip) => {
                let [a, b, c, d, ..] = ip.segments();
                Some(Origin::V6([a, b, c, d]))
            }
        }
    }
}

/// The address has as many connections as it may have.
#[derive(Debug, thiserror::Error)]
#[error("an address may open at most {max} connections")]
struct TooMany {
    max: u32,
}

/// The behaviour that holds the counts.
pub(super) struct Behaviour {
    max: u32,
    counts: HashMap<Origin, u32>,
    connections: HashMap<ConnectionId, Origin>,
}

impl Behaviour {
    /// At most `max` connections from one address.
    pub(super) fn new(max: u32) -> Self {
        Behaviour { max, counts: HashMap::new(), connections: HashMap::new() }
    }

    fn admit(&mut self, connection: ConnectionId, remote: &Multiaddr) -> Result<(), TooMany> {
        let Some(origin) = Origin::of(remote) else { return Ok(()) };
        let held = self.counts.get(&origin).copied().unwrap_or(0);
        if held >= self.max {
            return Err(TooMany { max: self.max });
        }
        self.counts.insert(origin, held + 1);
        self.connections.insert(connection, origin);
        Ok(())
    }

    fn forget(&mut self, connection: ConnectionId) {
        let Some(origin) = self.connections.remove(&connection) else { return };
        match self.counts.get_mut(&origin) {
            Some(held) if *held > 1 => *held -= 1,
            _ => drop(self.counts.remove(&origin)),
        }
    }
}

impl NetworkBehaviour for Behaviour {
    type ConnectionHandler = dummy::ConnectionHandler;
    type ToSwarm = Infallible;

    fn handle_pending_inbound_connection(
        &mut self,
        connection: ConnectionId,
        _: &Multiaddr,
        remote: &Multiaddr,
    ) -> Result<(), ConnectionDenied> {
        self.admit(connection, remote).map_err(ConnectionDenied::new)
    }

    fn handle_established_inbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: &Multiaddr,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn handle_established_outbound_connection(
        &mut self,
        _: ConnectionId,
        _: PeerId,
        _: &Multiaddr,
        _: Endpoint,
        _: PortUse,
    ) -> Result<THandler<Self>, ConnectionDenied> {
        Ok(dummy::ConnectionHandler)
    }

    fn on_swarm_event(&mut self, event: FromSwarm<'_>) {
        if let FromSwarm::ConnectionClosed(closed) = event {
            self.forget(closed.connection_id);
        } else if let FromSwarm::ListenFailure(failed) = event {
            self.forget(failed.connection_id);
        }
    }

    fn on_connection_handler_event(&mut self, _: PeerId, _: ConnectionId, event: THandlerOutEvent<Self>) {
        match event {}
    }

    fn poll(&mut self, _: &mut Context<'_>) -> Poll<ToSwarm<Self::ToSwarm, THandlerInEvent<Self>>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> Multiaddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_is_capped_and_freed_again() {
        let mut cap = Behaviour::new(2);
        let ids: Vec<_> = (0..3).map(ConnectionId::new_unchecked).collect();
        let remote = addr("/ip4/203.0.113.7/tcp/1");
        assert!(cap.admit(ids[0], &remote).is_ok());
        assert!(cap.admit(ids[1], &addr("/ip4/203.0.113.7/udp/9/quic-v1")).is_ok());
        assert!(cap.admit(ids[2], &remote).is_err());
        assert!(cap.admit(ids[2], &addr("/ip4/203.0.113.8/tcp/1")).is_ok());
        cap.forget(ids[0]);
        cap.forget(ids[0]);
        assert!(cap.admit(ids[0], &remote).is_ok());
        ids.iter().for_each(|id| cap.forget(*id));
        assert!(cap.counts.is_empty() && cap.connections.is_empty());
    }

    #[test]
    fn a_v6_host_is_its_first_64_bits_and_a_mapped_v4_is_v4() {
        let mut cap = Behaviour::new(1);
        let id = ConnectionId::new_unchecked;
        assert!(cap.admit(id(1), &addr("/ip6/2a00:1:2:3::1/tcp/1")).is_ok());
        assert!(cap.admit(id(2), &addr("/ip6/2a00:1:2:3:ffff::2/tcp/1")).is_err());
        assert!(cap.admit(id(3), &addr("/ip6/2a00:1:2:4::1/tcp/1")).is_ok());
        assert!(cap.admit(id(4), &addr("/ip4/203.0.113.7/tcp/1")).is_ok());
        assert!(cap.admit(id(5), &addr("/ip6/::ffff:203.0.113.7/tcp/1")).is_err());
    }

    #[test]
    fn loopback_is_not_capped() {
        let mut cap = Behaviour::new(1);
        for id in 0..9 {
            assert!(cap.admit(ConnectionId::new_unchecked(id), &addr("/ip4/127.0.0.1/tcp/1")).is_ok());
        }
    }
}
