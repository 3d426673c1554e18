//! The task that owns the swarm. It turns each command into one act and each swarm event into at most one event
//! for the consumer; it waits for nobody but the swarm, the commands and the clock.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use libp2p::gossipsub::{self, MessageAcceptance};
use libp2p::swarm::{ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, identify, mdns};
use throughline_protocol::limits as protocol_limits;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::addrs::Scope;
use super::behaviour::{Behaviour, BehaviourEvent};
use super::charges::Ledger;
use super::config::NetLimits;
use super::dials::Dials;
use super::events::{Counters, EventSink, NetEvent, count};
use super::frames::FrameStream;
use super::gossip::{GossipId, owner_of};
use super::handle::{Command, Reply};
use super::peers::Peers;
use super::streams::{Arrived, Incoming};

/// How often blocks are looked at for release.
const RELEASE_EVERY: Duration = Duration::from_secs(5);
/// How long a shutdown waits for connections to close.
const CLOSING: Duration = Duration::from_secs(2);

/// The swarm and what is known beside it.
pub(super) struct EventLoop {
    pub(super) swarm: Swarm<Behaviour>,
    commands: mpsc::Receiver<Command>,
    sink: EventSink,
    pub(super) limits: NetLimits,
    pub(super) counters: Arc<Counters>,
    pub(super) peers: Peers,
    pub(super) dials: Dials,
    pub(super) ledger: Ledger,
    /// Blocked by the user: time does not release them.
    pub(super) shut_out: HashSet<PeerId>,
}

impl EventLoop {
    /// A loop over a swarm that was just built.
    pub(super) fn new(
        swarm: Swarm<Behaviour>,
        commands: mpsc::Receiver<Command>,
        sink: EventSink,
        limits: NetLimits,
        counters: Arc<Counters>,
    ) -> Self {
        let ledger = Ledger::new(limits.charges_max, limits.charge_window, limits.block_for);
        EventLoop {
            swarm,
            commands,
            sink,
            limits,
            counters,
            peers: Peers::default(),
            dials: Dials::default(),
            ledger,
            shut_out: HashSet::new(),
        }
    }

    /// Runs until a shutdown, or until the last handle is gone.
    pub(super) async fn run(mut self) {
        let mut release = interval(RELEASE_EVERY);
        release.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let asker = loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.on_swarm_event(event),
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown(reply)) => break Some(reply),
                    Some(command) => self.on_command(command),
                    None => break None,
                },
                _ = release.tick() => self.release(),
            }
        };
        self.close(asker).await;
    }

    /// Says goodbye to every peer, so that they need not wait for a timeout.
    async fn close(mut self, asker: Option<Reply<()>>) {
        let connected: Vec<_> = self.swarm.connected_peers().copied().collect();
        for peer in connected {
            // A peer that left meanwhile needs no goodbye.
            let _ = self.swarm.disconnect_peer_id(peer);
        }
        let closing = async {
            while self.swarm.network_info().num_peers() > 0 {
                let event = self.swarm.select_next_some().await;
                self.on_swarm_event(event);
            }
        };
        // Who does not answer is left.
        let _ = timeout(CLOSING, closing).await;
        drop(self);
        if let Some(asker) = asker {
            let _ = asker.send(());
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "most swarm events concern nobody here")]
    fn on_swarm_event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(event) => self.on_behaviour_event(event),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                self.on_opened(peer_id, connection_id, endpoint.get_remote_address().clone());
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, .. } => {
                self.on_closed(peer_id, connection_id)
            }
            SwarmEvent::OutgoingConnectionError { connection_id, error, .. } => {
                self.dials.failed(connection_id, &error);
            }
            SwarmEvent::NewListenAddr { address, .. } => self.on_listening(address),
            SwarmEvent::ExpiredListenAddr { address, .. } => self.swarm.remove_external_address(&address),
            SwarmEvent::ListenerError { error, .. } => tracing::warn!(%error, "a listener has trouble"),
            SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                tracing::warn!(?addresses, ?reason, "a listener closed");
            }
            _ => {}
        }
    }

    fn on_behaviour_event(&mut self, event: BehaviourEvent) {
        match event {
            BehaviourEvent::Streams(incoming) => self.on_incoming(incoming),
            BehaviourEvent::Gossip(event) => self.on_gossip(event),
            BehaviourEvent::Ping(event) => {
                if let Ok(rtt) = event.result {
                    self.peers.measured(&event.peer, rtt);
                }
            }
            BehaviourEvent::Identify(event) => {
                if let identify::Event::Received { connection_id, peer_id, info } = event {
                    self.peers.announced(&peer_id, connection_id, info.listen_addrs);
                }
            }
            BehaviourEvent::Mdns(event) => {
                if let mdns::Event::Discovered(found) = event {
                    self.on_found(found);
                }
            }
            BehaviourEvent::Blocked(never) | BehaviourEvent::Limits(never) | BehaviourEvent::IpCap(never) => {
                match never {}
            }
        }
    }

    fn on_opened(&mut self, peer: PeerId, connection: ConnectionId, remote: Multiaddr) {
        let Some(first) = self.peers.opened(peer, connection, remote) else {
            // Only Ed25519 is compiled in, so this does not happen; if it does, we cannot name the peer.
            self.swarm.close_connection(connection);
            return;
        };
        let Some(view) = self.peers.view(&peer) else { return };
        self.dials.connected(&view);
        if first {
            self.tell(NetEvent::Connected(view));
        }
    }

    fn on_closed(&mut self, peer: PeerId, connection: ConnectionId) {
        if self.peers.closed(&peer, connection) {
            self.tell(NetEvent::Disconnected { peer });
        }
    }

    /// Public listen addresses are announced to peers; see the identify configuration for the others.
    fn on_listening(&mut self, addr: Multiaddr) {
        if Scope::of(&addr) == Some(Scope::Public) {
            self.swarm.add_external_address(addr.clone());
        }
        self.tell(NetEvent::Listening(addr));
    }

    fn on_incoming(&mut self, Incoming { peer, arrived }: Incoming) {
        let Arrived { protocol, stream, place } = arrived;
        let stream = FrameStream::incoming(stream, self.limits.frames, place);
        if !self.sink.offer(NetEvent::Incoming { peer, protocol, stream }) {
            count(&self.counters.streams_dropped);
        }
    }

    fn on_gossip(&mut self, event: gossipsub::Event) {
        let gossipsub::Event::Message { propagation_source, message_id, message } = event else { return };
        let id = GossipId { message: message_id, source: propagation_source };
        if message.data.len() > protocol_limits::ANNOUNCEMENT_BYTES_MAX {
            self.judge(&id, MessageAcceptance::Reject);
            return;
        }
        // We subscribe to owners' topics only, so a message on another one cannot come out of the router.
        let Some(owner) = owner_of(&message.topic) else {
            self.judge(&id, MessageAcceptance::Ignore);
            return;
        };
        let event = NetEvent::Gossip { id: id.clone(), from: propagation_source, owner, data: message.data };
        if !self.sink.offer(event) {
            count(&self.counters.gossip_dropped);
            self.judge(&id, MessageAcceptance::Ignore);
        }
    }

    /// Gives a verdict to the router, which may have let go of the message already.
    pub(super) fn judge(&mut self, id: &GossipId, verdict: MessageAcceptance) {
        let gossip = &mut self.swarm.behaviour_mut().gossip;
        let _held = gossip.report_message_validation_result(&id.message, &id.source, verdict);
    }

    /// Dials what mDNS found. Anyone on the link can claim anything, so only local addresses are dialled, and only
    /// up to half of our outgoing connections.
    fn on_found(&mut self, found: Vec<(PeerId, Multiaddr)>) {
        let mut addrs_of: HashMap<PeerId, Vec<Multiaddr>> = HashMap::new();
        for (peer, addr) in found {
            if !self.peers.contains(&peer) && Scope::of(&addr).is_some_and(|scope| scope < Scope::Public) {
                addrs_of.entry(peer).or_default().push(addr);
            }
        }
        for (peer, addrs) in addrs_of {
            let counters = self.swarm.network_info();
            let counters = counters.connection_counters();
            if counters.num_pending_outgoing() + counters.num_established_outgoing()
                >= self.limits.established_out_max / 2
            {
                return;
            }
            self.dial(peer, addrs, None);
        }
    }

    fn release(&mut self) {
        for peer in self.ledger.release(Instant::now()) {
            if !self.shut_out.contains(&peer) {
                self.swarm.behaviour_mut().blocked.unblock_peer(peer);
            }
        }
    }

    fn tell(&mut self, event: NetEvent) {
        if !self.sink.tell(event) {
            count(&self.counters.events_lost);
        }
    }
}
