//! Why the network could not do what was asked.

use libp2p::{Multiaddr, PeerId};
use throughline_protocol::code::Code;

use super::streams::Protocol;

/// What went wrong, with the stable code that it answers as.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    /// The node cannot be put together: a key, a limit or a socket is unusable.
    #[error("the network cannot start: {reason}")]
    Start {
        /// What is unusable.
        reason: String,
    },
    /// A listen address is refused or taken.
    #[error("cannot listen on {addr}: {reason}")]
    Listen {
        /// The address asked for.
        addr: Multiaddr,
        /// What the system or the configuration has against it.
        reason: String,
    },
    /// No connection came about.
    #[error("cannot reach {peer}: {reason}")]
    Dial {
        /// Who was dialled.
        peer: PeerId,
        /// What each address answered.
        reason: String,
    },
    /// The peer did not answer in time.
    #[error("{peer} did not answer in time")]
    Timeout {
        /// Who was waited for.
        peer: PeerId,
    },
    /// There is no connection to the peer.
    #[error("not connected to {peer}")]
    NotConnected {
        /// Who was asked for.
        peer: PeerId,
    },
    /// The peer does not speak this protocol.
    #[error("{peer} does not speak {protocol}")]
    Unsupported {
        /// Who was asked.
        peer: PeerId,
        /// What for.
        protocol: Protocol,
    },
    /// A bound of our own is reached.
    #[error("the limit of {what} is reached")]
    Limit {
        /// What there is too much of.
        what: &'static str,
    },
    /// The message is larger than an announcement may be.
    #[error("expected an announcement of at most {max} bytes, got {got}")]
    TooBig {
        /// The size that was offered, in bytes.
        got: usize,
        /// The bound, in bytes.
        max: usize,
    },
    /// The network was shut down.
    #[error("the network is shut down")]
    Stopped,
}

impl NetError {
    /// The stable code that callers and the API answer with.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            NetError::Start { .. } | NetError::Listen { .. } => Code::Config,
            NetError::Dial { .. } | NetError::NotConnected { .. } => Code::Unreachable,
            NetError::Timeout { .. } => Code::Timeout,
            NetError::Unsupported { .. } => Code::PeerVersion,
            NetError::Limit { .. } => Code::Quota,
            NetError::TooBig { .. } => Code::TooBig,
            NetError::Stopped => Code::Interrupted,
        }
    }
}
