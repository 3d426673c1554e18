//! What the swarm is made of. Order matters: whatever refuses connections comes first.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use libp2p::allow_block_list::{self, BlockedPeers};
use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::identity::Keypair;
use libp2p::swarm::NetworkBehaviour;
use libp2p::swarm::behaviour::toggle::Toggle;
use libp2p::{identify, mdns, ping};

use super::config::{NetLimits, Reach};
use super::{gossip, ip_cap, streams};

/// What identify calls the protocol family.
const IDENTIFY_PROTOCOL: &str = "/throughline/id/1";
/// What identify calls this program.
const AGENT: &str = concat!("throughline/", env!("CARGO_PKG_VERSION"));

/// The parts of the swarm.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    pub(super) blocked: allow_block_list::Behaviour<BlockedPeers>,
    limits: connection_limits::Behaviour,
    ip_cap: Toggle<ip_cap::Behaviour>,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    mdns: Toggle<mdns::tokio::Behaviour>,
    pub(super) gossip: gossip::Behaviour,
    pub(super) streams: streams::Behaviour,
}

impl Behaviour {
    /// The parts, under the given bounds.
    pub(super) fn new(
        key: &Keypair,
        limits: &NetLimits,
        reach: Reach,
        mdns: bool,
        refused: Arc<AtomicU64>,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let peer = key.public().to_peer_id();
        let mdns = mdns.then(|| mdns::tokio::Behaviour::new(mdns::Config::default(), peer)).transpose()?;
        let ip_cap = (reach == Reach::Open).then(|| ip_cap::Behaviour::new(limits.per_ip_max));
        Ok(Behaviour {
            blocked: allow_block_list::Behaviour::default(),
            limits: connection_limits::Behaviour::new(connection_limits(limits)),
            ip_cap: ip_cap.into(),
            identify: identify::Behaviour::new(identify_config(key)),
            ping: ping::Behaviour::default(),
            mdns: mdns.into(),
            gossip: gossip::behaviour(key, reach, limits.topics_max)?,
            streams: streams::Behaviour::new(limits.streams_per_peer_max, limits.streams_max, refused),
        })
    }
}

fn connection_limits(limits: &NetLimits) -> ConnectionLimits {
    ConnectionLimits::default()
        .with_max_pending_incoming(Some(limits.pending_in_max))
        .with_max_pending_outgoing(Some(limits.pending_out_max))
        .with_max_established_incoming(Some(limits.established_in_max))
        .with_max_established_outgoing(Some(limits.established_out_max))
        .with_max_established_per_peer(Some(limits.per_peer_max))
}

/// Identify sends every peer the same list, so it cannot show private addresses to the local network only. It
/// therefore shows no listen address by itself: the event loop adds the public ones, and on the local network mDNS
/// tells the others. Addresses that peers announce are not kept for dialling either (cache size 0); the peer table
/// filters them.
fn identify_config(key: &Keypair) -> identify::Config {
    identify::Config::new(IDENTIFY_PROTOCOL.to_owned(), key.public())
        .with_agent_version(AGENT.to_owned())
        .with_hide_listen_addrs(true)
        .with_cache_size(0)
}
