//! Gossip: one topic per owner, every message judged by us before it goes on. `docs/PROTOCOL.md` §Announcements, tickets, files.
//!
//! The router never forwards by itself: each message comes out as an event with a [`GossipId`] and waits for one
//! [`Verdict`]. A message is known by its topic and data alone, so that signing it again does not make it new.

use std::time::Duration;

use libp2p::PeerId;
use libp2p::gossipsub::{
    self, ConfigBuilder, IdentTopic, IdentityTransform, MaxCountSubscriptionFilter, Message,
    MessageAcceptance, MessageAuthenticity, MessageId, PeerScoreParams, PeerScoreThresholds, TopicHash,
    TopicScoreParams, TopicSubscriptionFilter, ValidationMode,
};
use libp2p::identity::Keypair;
use sha2::{Digest, Sha256};
use throughline_protocol::id::Principal;
use throughline_protocol::limits;

use super::config::Reach;

/// What every topic begins with; the owner's principal follows.
const TOPIC_PREFIX: &str = "/throughline/1/";
/// What the router wraps around a message: topic, source, sequence number, signature and their tags.
const ENVELOPE_BYTES_MAX: usize = 1_024;
/// The router measures its whole read buffer against its limit, also the start of the next message, and reads in
/// steps of this size. Without room for one step, two honest messages in a row would break the stream.
const READ_AHEAD_BYTES: usize = 8 * 1_024;
/// Message ids in one control message; at 32 bytes and their tags they stay below the 16 KiB that peers take.
const CONTROL_IDS_MAX: usize = 400;
/// Heartbeats, of one second each, that a message waits for its verdict.
const HISTORY_HEARTBEATS: usize = 10;
/// Weight of the square of a peer's invalid messages.
const INVALID_MESSAGE_WEIGHT: f64 = -10.0;

/// The router with our filter.
pub(super) type Behaviour =
    gossipsub::Behaviour<IdentityTransform, MaxCountSubscriptionFilter<OwnerTopicsOnly>>;

/// Names one received message until its verdict. Give it back with [`super::NetHandle::report`], once, within
/// a few seconds: later the message is no longer held and goes nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GossipId {
    pub(super) message: MessageId,
    pub(super) source: PeerId,
}

/// What is to become of a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forward it.
    Accept,
    /// Drop it; nobody is to blame.
    Ignore,
    /// Drop it and lower the score of whoever sent it: only for what every honest node would have refused.
    Reject,
}

impl From<Verdict> for MessageAcceptance {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Accept => MessageAcceptance::Accept,
            Verdict::Ignore => MessageAcceptance::Ignore,
            Verdict::Reject => MessageAcceptance::Reject,
        }
    }
}

/// What became of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// It went to at least one peer.
    Sent,
    /// The same bytes went over this topic within the last ten minutes.
    Duplicate,
    /// No connected peer follows this owner, or none could take it.
    NoPeers,
}

/// Remembers of a peer's subscriptions only those that are topics of ours.
#[derive(Clone, Debug)]
pub(super) struct OwnerTopicsOnly;

impl TopicSubscriptionFilter for OwnerTopicsOnly {
    fn can_subscribe(&mut self, topic: &TopicHash) -> bool {
        owner_of(topic).is_some()
    }
}

/// The topic of an owner.
pub(super) fn topic_of(owner: &Principal) -> IdentTopic {
    IdentTopic::new(format!("{TOPIC_PREFIX}{owner}"))
}

/// The owner of a topic, if it is one of ours in its canonical spelling.
pub(super) fn owner_of(topic: &TopicHash) -> Option<Principal> {
    let text = topic.as_str().strip_prefix(TOPIC_PREFIX)?;
    let owner: Principal = text.parse().ok()?;
    (owner.to_string() == text).then_some(owner)
}

/// How one of our topics counts towards a peer's score. Mesh delivery does not: it punishes topics on which
/// nothing is said, which is most of ours most of the time.
pub(super) fn topic_score() -> TopicScoreParams {
    TopicScoreParams {
        time_in_mesh_weight: 0.01,
        time_in_mesh_quantum: Duration::from_secs(1),
        mesh_message_deliveries_weight: 0.0,
        mesh_failure_penalty_weight: 0.0,
        invalid_message_deliveries_weight: INVALID_MESSAGE_WEIGHT,
        invalid_message_deliveries_decay: gossipsub::score_parameter_decay(Duration::from_secs(10 * 60)),
        ..TopicScoreParams::default()
    }
}

/// The router.
pub(super) fn behaviour(key: &Keypair, reach: Reach, topics_max: usize) -> Result<Behaviour, String> {
    let config = ConfigBuilder::default()
        .validation_mode(ValidationMode::Strict)
        .validate_messages()
        .message_id_fn(message_id)
        .max_transmit_size(limits::ANNOUNCEMENT_BYTES_MAX + ENVELOPE_BYTES_MAX + READ_AHEAD_BYTES)
        .max_control_messages_sent(CONTROL_IDS_MAX)
        .mesh_n_low(6)
        .mesh_n(8)
        .mesh_n_high(12)
        .duplicate_cache_time(Duration::from_secs(10 * 60))
        .history_length(HISTORY_HEARTBEATS)
        .build()
        .map_err(|error| error.to_string())?;
    let filter = MaxCountSubscriptionFilter {
        filter: OwnerTopicsOnly,
        max_subscribed_topics: topics_max,
        max_subscriptions_per_request: topics_max,
    };
    let mut router =
        Behaviour::new_with_subscription_filter(MessageAuthenticity::Signed(key.clone()), config, filter)?;
    router.with_peer_score(peer_score(reach), PeerScoreThresholds::default())?;
    Ok(router)
}

fn peer_score(reach: Reach) -> PeerScoreParams {
    let defaults = PeerScoreParams::default();
    match reach {
        Reach::Open => defaults,
        // Every local peer has the same address.
        Reach::Loopback => PeerScoreParams { ip_colocation_factor_weight: 0.0, ..defaults },
    }
}

/// SHA-256 over topic and data. The topic's length stands first, so that no other split gives the same id.
fn message_id(message: &Message) -> MessageId {
    let topic = message.topic.as_str();
    let mut hasher = Sha256::new();
    hasher.update(u64::try_from(topic.len()).unwrap_or(u64::MAX).to_be_bytes());
    hasher.update(topic);
    hasher.update(&message.data);
    MessageId::new(hasher.finalize().as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(topic: &str, data: &[u8], sequence: u64) -> Message {
        Message {
            source: Some(PeerId::random()),
            data: data.to_vec(),
            sequence_number: Some(sequence),
            topic: TopicHash::from_raw(topic),
        }
    }

    #[test]
    fn topics_and_owners_belong_together() {
        let owner = Principal::from_key([3; 32]);
        let topic = topic_of(&owner);
        assert_eq!(topic.hash().as_str(), format!("/throughline/1/{owner}"));
        assert_eq!(owner_of(&topic.hash()), Some(owner));
        for other in ["", "/throughline/1/", "/throughline/1/zzz", "/throughline/2/z6Mk", "chat"] {
            assert_eq!(owner_of(&TopicHash::from_raw(other)), None, "{other}");
        }
        assert_eq!(owner_of(&TopicHash::from_raw(format!("/throughline/1/{owner} "))), None);
    }

    #[test]
    fn the_id_is_of_topic_and_data_only() {
        assert_eq!(message_id(&message("t", b"data", 1)), message_id(&message("t", b"data", 2)));
        assert_ne!(message_id(&message("t", b"data", 1)), message_id(&message("t", b"date", 1)));
        assert_ne!(message_id(&message("td", b"ata", 1)), message_id(&message("t", b"data", 1)));
    }

    #[test]
    fn the_configuration_is_taken_and_does_not_punish_silence() {
        let key = Keypair::ed25519_from_bytes([1; 32]).unwrap();
        assert!(behaviour(&key, Reach::Open, 8).is_ok());
        assert!(topic_score().validate().is_ok());
        assert!(topic_score().mesh_message_deliveries_weight.abs() < f64::EPSILON);
    }
}
