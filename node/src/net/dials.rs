//! Who waits for which connection attempt.

use std::collections::HashMap;

use libp2p::PeerId;
use libp2p::swarm::{ConnectionId, DialError};

use super::error::NetError;
use super::handle::Reply;
use super::peers::ConnectedPeer;

/// Addresses whose failure is spelled out in a reason.
const REASONS_MAX: usize = 4;

type DialReply = Reply<Result<ConnectedPeer, NetError>>;

/// The waiting callers, by attempt; the limit of pending connections bounds it.
#[derive(Default)]
pub(super) struct Dials {
    waiting: HashMap<ConnectionId, (PeerId, DialReply)>,
}

impl Dials {
    /// A caller waits for this attempt.
    pub(super) fn wait(&mut self, attempt: ConnectionId, peer: PeerId, reply: DialReply) {
        self.waiting.insert(attempt, (peer, reply));
    }

    /// The peer is connected, by whichever attempt: all who wait for it are done.
    pub(super) fn connected(&mut self, peer: &ConnectedPeer) {
        let done: Vec<_> =
            self.waiting.iter().filter(|(_, (who, _))| *who == peer.peer).map(|(id, _)| *id).collect();
        for attempt in done {
            if let Some((_, reply)) = self.waiting.remove(&attempt) {
                let _ = reply.send(Ok(peer.clone()));
            }
        }
    }

    /// An attempt failed.
    pub(super) fn failed(&mut self, attempt: ConnectionId, error: &DialError) {
        if let Some((peer, reply)) = self.waiting.remove(&attempt) {
            let _ = reply.send(Err(NetError::Dial { peer, reason: reason(error) }));
        }
    }
}

/// Why a dial failed, on one line.
pub(super) fn reason(error: &DialError) -> String {
    match error {
        DialError::Transport(attempts) => {
            let told = attempts.iter().take(REASONS_MAX).map(|(addr, error)| format!("{addr}: {error}"));
            told.collect::<Vec<_>>().join("; ")
        }
        DialError::WrongPeerId { obtained, address } => format!("{address} is {obtained}"),
        DialError::LocalPeerId { address } => format!("{address} is this node"),
        DialError::Denied { cause } => cause.to_string(),
        DialError::NoAddresses => "no address is known".to_owned(),
        DialError::Aborted | DialError::DialPeerConditionFalse(_) => "the attempt was given up".to_owned(),
    }
}
