//! What a network is started with: the peer key, where to listen, and every bound on what peers may take.

use std::time::Duration;

use libp2p::Multiaddr;
use zeroize::Zeroizing;

use super::frames::FrameTiming;

/// Who is meant to reach this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Any address of this host.
    Open,
    /// This host only: other listen addresses are refused, and peers that share an address are not capped, because
    /// every local peer shares one.
    Loopback,
}

/// Everything that [`super::spawn`] needs. There is no `Debug`: the seed must not reach a log.
pub struct NetConfig {
    /// Seed of the peer key, the identity on the wire. It signs connections, never entries.
    pub seed: Zeroizing<[u8; 32]>,
    /// Addresses to listen on, such as `/ip4/0.0.0.0/udp/4101/quic-v1`; port 0 lets the system choose.
    pub listen: Vec<Multiaddr>,
    /// Whether to announce to, find and dial peers on the local network. Off by default: it tells everyone on the
    /// link that this node is here.
    pub mdns: bool,
    /// Who is meant to reach this node.
    pub reach: Reach,
    /// The bounds.
    pub limits: NetLimits,
}

impl NetConfig {
    /// A node with the default bounds that listens on `listen`, without mDNS.
    #[must_use]
    pub fn new(seed: Zeroizing<[u8; 32]>, listen: Vec<Multiaddr>) -> Self {
        NetConfig { seed, listen, mdns: false, reach: Reach::Open, limits: NetLimits::default() }
    }

    /// A node for tests and local trials: the same bounds but no cap per address, and this host only.
    #[must_use]
    pub fn loopback(seed: Zeroizing<[u8; 32]>, listen: Vec<Multiaddr>) -> Self {
        NetConfig { reach: Reach::Loopback, ..NetConfig::new(seed, listen) }
    }
}

/// Bounds on connections, streams, queues and misbehaviour. The defaults are those of `docs/THREAT_MODEL.md`.
#[derive(Clone, Debug)]
pub struct NetLimits {
    /// Connections being set up by others.
    pub pending_in_max: u32,
    /// Connections being set up by us.
    pub pending_out_max: u32,
    /// Connections that others opened.
    pub established_in_max: u32,
    /// Connections that we opened.
    pub established_out_max: u32,
    /// Connections with one peer, both directions together.
    pub per_peer_max: u32,
    /// Connections that one IPv4 address or one IPv6 /64 opened. Not applied under [`Reach::Loopback`].
    pub per_ip_max: u32,
    /// Streams of one connection, all protocols together (Yamux and QUIC).
    pub muxer_streams_max: u32,
    /// Streams of one connection whose protocol is not agreed yet.
    pub negotiating_max: usize,
    /// Incoming streams of our own protocols that one peer may hold open.
    pub streams_per_peer_max: usize,
    /// Incoming streams of our own protocols that may be open in all. A quarter of them is kept for peers that are known.
    pub streams_max: usize,
    /// How long a connection without streams is kept.
    pub idle: Duration,
    /// Events waiting for the consumer; a quarter of them is kept for connection events.
    pub events_max: usize,
    /// Topics subscribed to by us, and by one peer as far as we remember them.
    pub topics_max: usize,
    /// Charges within [`NetLimits::charge_window`] that make a peer be blocked.
    pub charges_max: u32,
    /// How long a charge counts.
    pub charge_window: Duration,
    /// How long a charged peer stays blocked.
    pub block_for: Duration,
    /// Deadlines of every frame stream.
    pub frames: FrameTiming,
}

impl Default for NetLimits {
    fn default() -> Self {
        NetLimits {
            pending_in_max: 64,
            pending_out_max: 64,
            established_in_max: 256,
            established_out_max: 64,
            per_peer_max: 2,
            per_ip_max: 8,
            muxer_streams_max: 64,
            negotiating_max: 32,
            streams_per_peer_max: 4,
            streams_max: 64,
            idle: Duration::from_secs(60),
            events_max: 1_024,
            topics_max: 1_024,
            charges_max: 8,
            charge_window: Duration::from_secs(10 * 60),
            block_for: Duration::from_secs(10 * 60),
            frames: FrameTiming::default(),
        }
    }
}
