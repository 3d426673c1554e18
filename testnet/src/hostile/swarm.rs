//! The host: one task that drives the swarm and does what it is told.

use anyhow::{Result, anyhow};
use futures::StreamExt as _;
use libp2p::gossipsub::{self, IdentTopic, MessageAuthenticity, ValidationMode};
use libp2p::identity::Keypair;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, SwarmBuilder, noise, tcp, yamux};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

use super::streams;

/// Parts of the host. It validates nothing and limits nothing.
#[derive(NetworkBehaviour)]
pub(super) struct Behaviour {
    gossip: gossipsub::Behaviour,
    streams: streams::Behaviour,
}

/// What the host is told to do.
pub(super) enum Command {
    /// Connect.
    Dial { peer: PeerId, addr: Multiaddr, done: oneshot::Sender<Result<()>> },
    /// Follow a topic.
    Subscribe(String),
    /// Say when somebody else is known to follow a topic.
    AwaitFollower { topic: String, done: oneshot::Sender<()> },
    /// Announce.
    Publish { topic: String, messages: Vec<Vec<u8>>, done: oneshot::Sender<u64> },
}

/// A swarm that listens on loopback.
pub(super) fn build(key: Keypair, streams: streams::Behaviour) -> Result<Swarm<Behaviour>> {
    let mut swarm = SwarmBuilder::with_existing_identity(key)
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)?
        .with_quic()
        .with_behaviour(|key| Ok(Behaviour { gossip: gossip(key)?, streams }))
        .map_err(|error| anyhow!("a hostile host: {error}"))?
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
        .build();
    swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse()?)?;
    Ok(swarm)
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Gossip that takes and repeats anything: an id of its own for every message, so that nothing is held back as a repetition.
fn gossip(key: &Keypair) -> Result<gossipsub::Behaviour, Failure> {
    let config = gossipsub::ConfigBuilder::default()
        .validation_mode(ValidationMode::None)
        .message_id_fn(|message| {
            let mut hasher = DefaultHasher::new();
            (&message.data, message.sequence_number).hash(&mut hasher);
            gossipsub::MessageId::from(hasher.finish().to_be_bytes().to_vec())
        })
        .max_transmit_size(1 << 20)
        .flood_publish(true)
        .build()?;
    Ok(gossipsub::Behaviour::new(MessageAuthenticity::Signed(key.clone()), config)?)
}

/// Drives the swarm until nobody holds the host any more.
#[expect(clippy::wildcard_enum_match_arm, reason = "the other events concern no command")]
pub(super) async fn run(
    mut swarm: Swarm<Behaviour>,
    mut inbox: mpsc::UnboundedReceiver<Command>,
    listening: oneshot::Sender<Multiaddr>,
) {
    let mut listening = Some(listening);
    let mut waiting: Vec<(gossipsub::TopicHash, oneshot::Sender<()>)> = Vec::new();
    let mut dials: HashMap<PeerId, Vec<oneshot::Sender<Result<()>>>> = HashMap::new();
    loop {
        tokio::select! {
            command = inbox.recv() => match command {
                None => return,
                Some(Command::Dial { peer, addr, done }) => {
                    if swarm.is_connected(&peer) {
                        // The one who asked may have given up; then nobody waits.
                        let _ = done.send(Ok(()));
                        continue;
                    }
                    let opts = DialOpts::peer_id(peer).condition(PeerCondition::Disconnected).addresses(vec![addr]);
                    match swarm.dial(opts.build()) {
                        Ok(()) => dials.entry(peer).or_default().push(done),
                        Err(error) => { let _ = done.send(Err(anyhow!("not dialled: {error}"))); }
                    }
                }
                Some(Command::Subscribe(topic)) => {
                    let _ = swarm.behaviour_mut().gossip.subscribe(&IdentTopic::new(topic));
                }
                Some(Command::AwaitFollower { topic, done }) => {
                    let topic = IdentTopic::new(topic).hash();
                    let is_followed =
                        swarm.behaviour().gossip.all_peers().any(|(_, topics)| topics.contains(&&topic));
                    if is_followed { let _ = done.send(()); } else { waiting.push((topic, done)); }
                }
                Some(Command::Publish { topic, messages, done }) => {
                    let mut sent = 0;
                    for message in messages {
                        // A full queue loses a message of a flood; the flood is as good without it.
                        let topic = IdentTopic::new(topic.clone());
                        sent += u64::from(swarm.behaviour_mut().gossip.publish(topic, message).is_ok());
                    }
                    let _ = done.send(sent);
                }
            },
            event = swarm.select_next_some() => match event {
                SwarmEvent::Behaviour(BehaviourEvent::Gossip(gossipsub::Event::Subscribed { topic, .. })) => {
                    for (_, done) in waiting.extract_if(.., |(wanted, _)| *wanted == topic) {
                        let _ = done.send(());
                    }
                }
                SwarmEvent::NewListenAddr { address, .. } => {
                    if let Some(listening) = listening.take() { let _ = listening.send(address); }
                }
                SwarmEvent::ConnectionEstablished { peer_id, .. } => {
                    for done in dials.remove(&peer_id).unwrap_or_default() { let _ = done.send(Ok(())); }
                }
                SwarmEvent::OutgoingConnectionError { peer_id: Some(peer), error, .. } => {
                    for done in dials.remove(&peer).unwrap_or_default() {
                        let _ = done.send(Err(anyhow!("not connected: {error}")));
                    }
                }
                _ => {}
            },
        }
    }
}
