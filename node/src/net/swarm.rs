//! Building the swarm: transports with their windows and stream limits, and the listeners.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use libp2p::core::transport::TransportError;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol as Part;
use libp2p::{Multiaddr, Swarm, SwarmBuilder, noise, quic, tcp, yamux};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::addrs::{Scope, ip_of};
use super::behaviour::Behaviour;
use super::config::{NetConfig, NetLimits, Reach};
use super::error::NetError;
use crate::taken::{self, Port};

/// QUIC bytes in flight on one connection.
const QUIC_CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;
/// QUIC bytes in flight on one stream.
const QUIC_STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// How long a QUIC handshake may take.
const QUIC_HANDSHAKE: Duration = Duration::from_secs(5);
/// How long any connection may take to be set up and secured.
const CONNECT: Duration = Duration::from_secs(10);

/// A swarm that listens where `config` says.
///
/// # Errors
/// `Start` for an unusable key or configuration, `Listen` for an address that is refused or taken.
pub(super) fn build(mut config: NetConfig, refused: Arc<AtomicU64>) -> Result<Swarm<Behaviour>, NetError> {
    let key = Keypair::ed25519_from_bytes(config.seed.as_mut_slice()).map_err(unusable)?;
    let limits = config.limits;
    let muxer_streams = limits.muxer_streams_max;
    let mut swarm = SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, move || {
            yamux_config(muxer_streams)
        })
        .map_err(unusable)?
        .with_quic_config(|quic| quic_config(quic, &limits))
        .with_behaviour(|key| Behaviour::new(key, &limits, config.reach, config.mdns, refused))
        .map_err(unusable)?
        .with_swarm_config(|swarm| {
            swarm
                .with_idle_connection_timeout(limits.idle)
                .with_max_negotiating_inbound_streams(limits.negotiating_max)
        })
        .with_connection_timeout(CONNECT)
        .build();
    for addr in config.listen {
        listen(&mut swarm, addr, config.reach)?;
    }
    Ok(swarm)
}

fn unusable(error: impl std::fmt::Display) -> NetError {
    NetError::Start { reason: error.to_string() }
}

fn yamux_config(streams_max: u32) -> yamux::Config {
    let mut config = yamux::Config::default();
    config.set_max_num_streams(usize::try_from(streams_max).unwrap_or(usize::MAX));
    config
}

fn quic_config(mut config: quic::Config, limits: &NetLimits) -> quic::Config {
    config.max_concurrent_stream_limit = limits.muxer_streams_max;
    config.max_connection_data = QUIC_CONNECTION_WINDOW_BYTES;
    config.max_stream_data = QUIC_STREAM_WINDOW_BYTES;
    config.handshake_timeout = QUIC_HANDSHAKE;
    config
}

fn listen(swarm: &mut Swarm<Behaviour>, addr: Multiaddr, reach: Reach) -> Result<(), NetError> {
    if reach == Reach::Loopback && Scope::of(&addr) != Some(Scope::Loopback) {
        return Err(NetError::Listen { addr, reason: "expected a loopback address".to_owned() });
    }
    let reason = match (probe(&addr), port_of(&addr)) {
        (Err(error), Some(port)) => taken::why(&error, port),
        (Err(error), None) => error.to_string(),
        (Ok(()), port) => match (swarm.listen_on(addr.clone()), port) {
            (Ok(_), _) => return Ok(()),
            (Err(TransportError::Other(error)), Some(port)) => taken::why(&error, port),
            (Err(TransportError::Other(error)), None) => error.to_string(),
            (Err(TransportError::MultiaddrNotSupported(_)), _) => {
                "expected an address such as /ip4/0.0.0.0/udp/4747/quic-v1 or /ip4/0.0.0.0/tcp/4747"
                    .to_owned()
            }
        },
    };
    Err(NetError::Listen { addr, reason })
}

/// The TCP transport shares ports, so that a second node of the same user would silently take half of the
/// connections, and what QUIC says of a port that is taken has no reason. A plain socket says when one is.
fn probe(addr: &Multiaddr) -> io::Result<()> {
    let (kind, port) = match port_of(addr) {
        Some(Port::Tcp(port)) if port != 0 => (SocketType::STREAM, port),
        Some(Port::Udp(port)) if port != 0 => (SocketType::DGRAM, port),
        Some(Port::Tcp(_) | Port::Udp(_)) | None => return Ok(()),
    };
    let Some(ip) = ip_of(addr) else { return Ok(()) };
    let family = if ip.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if ip.is_ipv6() {
        // As the transports do: else `::` would take the IPv4 addresses too, where this very node listens already.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if kind == SocketType::STREAM {
        // What a connection that ended left behind takes no port.
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    bind(&socket, &SocketAddr::new(ip, port))?;
    Ok(())
}

fn port_of(addr: &Multiaddr) -> Option<Port> {
    addr.iter().find_map(|part| {
        if let Part::Tcp(port) = part {
            return Some(Port::Tcp(port));
        }
        if let Part::Udp(port) = part { Some(Port::Udp(port)) } else { None }
    })
}
