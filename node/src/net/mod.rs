//! The network substrate: connections, streams of frames, gossip. Bytes in, bytes out; it knows no session.
//!
//! It decides who may connect, how much a peer may hold open, how slow it may be, and who is shut out for a while.
//! It must never decide what bytes mean, and never waits for its consumer: what does not fit a queue is dropped and
//! counted. `docs/PROTOCOL.md` §Streams has the protocols, `docs/THREAT_MODEL.md` the bounds.
//!
//! ```text
//!  NetHandle ──Command──▶ EventLoop ◀──▶ Swarm ── QUIC, TCP (Noise, Yamux)
//!  NetEvents ◀─NetEvent──     │            ├ blocked, limits, ip_cap     who may connect
//!                             │            ├ identify, ping, mdns        who is there
//!                             ├ peers      ├ gossip                      announcements, each with a verdict
//!                             ├ dials      └ streams ──▶ FrameStream     asks and answers
//!                             └ charges
//! ```

mod addrs;
mod behaviour;
mod charges;
mod commands;
mod config;
mod dials;
mod error;
mod event_loop;
mod events;
mod frames;
mod gossip;
mod handle;
mod identity;
mod ip_cap;
mod peers;
mod streams;
mod swarm;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use tokio::sync::mpsc;

use event_loop::EventLoop;
use events::{Counters, EventSink};

pub use addrs::Transport;
pub(crate) use addrs::network_of;
pub use charges::Charges;
pub use config::{NetConfig, NetLimits, Reach};
pub use error::NetError;
pub use events::{NetCounts, NetEvent, NetEvents};
pub use frames::{FrameError, FrameStream, FrameTiming, Slow};
pub use gossip::{GossipId, Published, Verdict};
pub use handle::NetHandle;
pub use identity::{peer_of, principal_of};
pub use peers::ConnectedPeer;
pub use streams::Protocol;

/// Commands waiting for the event loop; callers wait for a place.
const COMMANDS_MAX: usize = 256;

/// Starts the network on the current tokio runtime. It runs until [`NetHandle::shutdown`], or until the last handle
/// is dropped.
///
/// # Errors
/// [`NetError::Start`] for an unusable configuration, [`NetError::Listen`] for an address that is refused or taken.
///
/// # Panics
/// Outside a tokio runtime.
pub fn spawn(config: NetConfig) -> Result<(NetHandle, NetEvents), NetError> {
    let limits = config.limits.clone();
    let counters = Arc::new(Counters::default());
    let swarm = swarm::build(config, Arc::clone(&counters.streams_refused))?;
    let peer = *swarm.local_peer_id();
    let principal = principal_of(&peer)
        .ok_or_else(|| NetError::Start { reason: "expected an ed25519 peer key".to_owned() })?;
    let (sender, receiver) = mpsc::channel(COMMANDS_MAX);
    let (sink, events) = EventSink::new(limits.events_max);
    let handle = NetHandle {
        peer,
        principal,
        timing: limits.frames,
        counters: Arc::clone(&counters),
        commands: sender,
    };
    tokio::spawn(EventLoop::new(swarm, receiver, sink, limits, counters).run());
    Ok((handle, events))
}
