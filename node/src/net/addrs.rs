//! What an address says: which IP, how far it reaches, over which transport.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol as Part;

/// How a peer is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// QUIC version 1 over UDP.
    Quic,
    /// TCP with Noise and Yamux.
    Tcp,
}

impl Transport {
    /// The transport that an address names.
    pub(super) fn of(addr: &Multiaddr) -> Self {
        if addr.iter().any(|part| matches!(part, Part::QuicV1)) { Transport::Quic } else { Transport::Tcp }
    }
}

/// How far an address reaches, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// This host.
    Loopback,
    /// The local network: private, shared, link-local and unique local ranges, and everything else that is not
    /// routed.
    Lan,
    /// The internet.
    Public,
}

impl Scope {
    /// The scope of an address; names are not resolved and have none.
    pub(super) fn of(addr: &Multiaddr) -> Option<Self> {
        ip_of(addr).map(|ip| match ip {
            IpAddr::V4(ip) => scope_v4(ip),
            IpAddr::V6(ip) => scope_v6(ip),
        })
    }
}

fn scope_v4(ip: Ipv4Addr) -> Scope {
    let [first, second, third, _] = ip.octets();
    let unrouted = ip.is_private()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation()
        || first == 0
        || first >= 240
        || (first == 100 && second & 0xc0 == 64)
        || (first == 192 && second == 0 && third == 0)
        || (first == 198 && second & 0xfe == 18);
    match (ip.is_loopback(), unrouted) {
        (true, _) => Scope::Loopback,
        (false, true) => Scope::Lan,
        (false, false) => Scope::Public,
    }
}

fn scope_v6(ip: Ipv6Addr) -> Scope {
    let [first, second, ..] = ip.segments();
    if ip.is_loopback() {
        Scope::Loopback
    } else if first & 0xe000 == 0x2000 && !(first == 0x2001 && second == 0x0db8) {
        Scope::Public
    } else {
        Scope::Lan
    }
}

/// The IP that an address starts with; IPv4 written as IPv6 is IPv4.
pub(super) fn ip_of(addr: &Multiaddr) -> Option<IpAddr> {
    let first = addr.iter().next()?;
    if let Part::Ip4(ip) = first {
        Some(IpAddr::V4(ip))
    } else if let Part::Ip6(ip) = first {
        Some(IpAddr::V6(ip).to_canonical())
    } else {
        None
    }
}

/// The part of the network that an address is in, as far as that says who is behind it: an IPv4 /24, an IPv6 /48. None for
/// addresses of this machine.
pub(crate) fn network_of(addr: &Multiaddr) -> Option<Vec<u8>> {
    match ip_of(addr)? {
        ip if ip.is_loopback() => None,
        IpAddr::V4(ip) => Some(ip.octets()[..3].to_vec()),
        IpAddr::V6(ip) => Some(ip.octets()[..6].to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_told_apart() {
        let cases = [
            ("/ip4/127.0.0.1/tcp/1", Some(Scope::Loopback)),
            ("/ip6/::1/tcp/1", Some(Scope::Loopback)),
            ("/ip6/::ffff:127.0.0.1/tcp/1", Some(Scope::Loopback)),
            ("/ip4/10.1.2.3/udp/1/quic-v1", Some(Scope::Lan)),
            ("/ip4/192.168.1.1/tcp/1", Some(Scope::Lan)),
            ("/ip4/100.64.0.1/tcp/1", Some(Scope::Lan)),
            ("/ip4/169.254.0.1/tcp/1", Some(Scope::Lan)),
            ("/ip4/0.0.0.0/tcp/1", Some(Scope::Lan)),
            ("/ip6/fe80::1/tcp/1", Some(Scope::Lan)),
            ("/ip6/fd00::1/tcp/1", Some(Scope::Lan)),
            ("/ip4/100.128.0.1/tcp/1", Some(Scope::Public)),
            ("/ip4/8.8.8.8/tcp/1", Some(Scope::Public)),
            ("/ip6/2a00:1450::1/tcp/1", Some(Scope::Public)),
            ("/dns4/example.org/tcp/1", None),
        ];
        for (addr, scope) in cases {
            assert_eq!(Scope::of(&addr.parse().unwrap()), scope, "{addr}");
        }
    }

    #[test]
    fn transports_are_told_apart() {
        assert_eq!(Transport::of(&"/ip4/1.2.3.4/udp/1/quic-v1".parse().unwrap()), Transport::Quic);
        assert_eq!(Transport::of(&"/ip4/1.2.3.4/tcp/1".parse().unwrap()), Transport::Tcp);
    }
}
