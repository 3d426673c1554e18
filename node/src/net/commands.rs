//! The event loop's answers to commands: one act each.

use std::time::Instant;

use libp2p::gossipsub::PublishError;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId};
use throughline_protocol::code::Code;
use throughline_protocol::id::Principal;

use super::charges::Charged;
use super::dials;
use super::error::NetError;
use super::event_loop::EventLoop;
use super::events::count;
use super::gossip::{Published, topic_of, topic_score};
use super::handle::{Command, Reply};
use super::peers::ConnectedPeer;

/// Addresses of one peer that are tried.
const DIAL_ADDRS_MAX: usize = 16;

impl EventLoop {
    /// Does what was asked. Where there is a reply the asker may be gone; then nobody reads it.
    pub(super) fn on_command(&mut self, command: Command) {
        match command {
            Command::ListenAddrs(reply) => {
                let _ = reply.send(self.swarm.listeners().cloned().collect());
            }
            Command::Connected(reply) => {
                let _ = reply.send(self.peers.views());
            }
            Command::Followers(owner, reply) => {
                let _ = reply.send(self.followers(&owner));
            }
            Command::Dial { peer, addrs, reply } => self.dial(peer, addrs, Some(reply)),
            Command::Block(peer) => {
                self.shut_out.insert(peer);
                self.swarm.behaviour_mut().blocked.block_peer(peer);
            }
            Command::Unblock(peer) => {
                self.shut_out.remove(&peer);
                self.ledger.forgive(&peer);
                self.swarm.behaviour_mut().blocked.unblock_peer(peer);
            }
            Command::Know(peer) => self.swarm.behaviour_mut().streams.know(peer),
            Command::Charge(peer, reason) => self.charge(peer, reason),
            Command::Charges(reply) => {
                let _ = reply.send(self.ledger.open(Instant::now()));
            }
            Command::Open { peer, protocol, reply } => {
                self.swarm.behaviour_mut().streams.open(peer, protocol, reply);
            }
            Command::Subscribe(owner, reply) => {
                let _ = reply.send(self.subscribe(&owner));
            }
            Command::Unsubscribe(owner) => {
                self.swarm.behaviour_mut().gossip.unsubscribe(&topic_of(&owner));
            }
            Command::Publish { owner, data, reply } => {
                let _ = reply.send(self.publish(&owner, data));
            }
            Command::Report(id, verdict) => self.judge(&id, verdict.into()),
            // The loop ends at a shutdown before it comes here.
            Command::Shutdown(reply) => drop(reply),
        }
    }

    /// Starts a connection attempt; `reply` hears how it ends.
    pub(super) fn dial(
        &mut self,
        peer: PeerId,
        mut addrs: Vec<Multiaddr>,
        reply: Option<Reply<Result<ConnectedPeer, NetError>>>,
    ) {
        if let Some(view) = self.peers.view(&peer) {
            if let Some(reply) = reply {
                let _ = reply.send(Ok(view));
            }
            return;
        }
        addrs.truncate(DIAL_ADDRS_MAX);
        let opts = DialOpts::peer_id(peer)
            .condition(PeerCondition::Disconnected)
            .addresses(addrs)
            .extend_addresses_through_behaviour()
            .build();
        let attempt = opts.connection_id();
        match (self.swarm.dial(opts), reply) {
            (Ok(()), Some(reply)) => self.dials.wait(attempt, peer, reply),
            (Err(error), Some(reply)) => {
                let _ = reply.send(Err(NetError::Dial { peer, reason: dials::reason(&error) }));
            }
            (Ok(()), None) => {}
            (Err(error), None) => tracing::debug!(%peer, reason = dials::reason(&error), "not dialled"),
        }
    }

    fn charge(&mut self, peer: PeerId, reason: Code) {
        count(&self.counters.charges);
        tracing::debug!(%peer, %reason, "charged");
        match self.ledger.charge(peer, reason, Instant::now()) {
            Charged::Counted | Charged::AlreadyBlocked => {}
            Charged::Block => {
                tracing::info!(%peer, %reason, "blocked for a while");
                self.swarm.behaviour_mut().blocked.block_peer(peer);
            }
        }
    }

    fn followers(&self, owner: &Principal) -> Vec<PeerId> {
        let topic = topic_of(owner).hash();
        let peers = self.swarm.behaviour().gossip.all_peers();
        peers.filter(|(_, topics)| topics.contains(&&topic)).map(|(peer, _)| *peer).collect()
    }

    fn subscribe(&mut self, owner: &Principal) -> Result<(), NetError> {
        let topics_max = self.limits.topics_max;
        let gossip = &mut self.swarm.behaviour_mut().gossip;
        let topic = topic_of(owner);
        if gossip.topics().any(|held| *held == topic.hash()) {
            return Ok(());
        }
        let limit = NetError::Limit { what: "topics followed" };
        if gossip.topics().count() >= topics_max {
            return Err(limit);
        }
        gossip.set_topic_params(topic.clone(), topic_score()).map_err(|reason| start(reason.to_owned()))?;
        gossip.subscribe(&topic).map_err(|error| start(error.to_string()))?;
        Ok(())
    }

    fn publish(&mut self, owner: &Principal, data: Vec<u8>) -> Result<Published, NetError> {
        let got = data.len();
        match self.swarm.behaviour_mut().gossip.publish(topic_of(owner), data) {
            Ok(_) => Ok(Published::Sent),
            Err(PublishError::Duplicate) => Ok(Published::Duplicate),
            Err(PublishError::NoPeersSubscribedToTopic | PublishError::AllQueuesFull(_)) => {
                Ok(Published::NoPeers)
            }
            Err(PublishError::MessageTooLarge) => {
                Err(NetError::TooBig { got, max: throughline_protocol::limits::ANNOUNCEMENT_BYTES_MAX })
            }
            Err(error @ (PublishError::SigningError(_) | PublishError::TransformFailed(_))) => {
                Err(start(error.to_string()))
            }
        }
    }
}

/// The router is not put together as it should be.
fn start(reason: String) -> NetError {
    NetError::Start { reason }
}
