//! Evidence on the network: whether a piece that somebody tells is news, what is told to whom, once. `docs/PROTOCOL.md` §Evidence.
//!
//! A piece is passed on by whoever learns something new from it, after it was checked, and by nobody twice: the mark is in
//! the store. What is told of sessions that are not public goes to those who may read them whole.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use libp2p::PeerId;
use throughline_protocol::code::Reject;
use throughline_protocol::entry::Class;
use throughline_protocol::evidence::{Accusation, Exhibit};
use throughline_protocol::id::SessionId;
use throughline_protocol::wire::announce;
use throughline_store::MarkTold;

use super::news::Worth;
use super::shared::Shared;
use crate::api::error::Answer;
use crate::core::{Node, now};

/// Pieces of evidence that one peer may tell in [`WINDOW`]: each costs some signatures to check.
const PER_WINDOW: u32 = 32;
const WINDOW: Duration = Duration::from_secs(60);
/// Peers that are counted; the one that began longest ago makes room.
const PEERS_MAX: usize = 1_024;
/// Sessions that wait for somebody to tell, looked at at a time.
const UNTOLD_MAX: usize = 256;
/// How a message that tells evidence begins: a map of one key.
const BEGINS: &[u8] = b"\xa1\x68evidence";

/// How much evidence each peer told lately.
#[derive(Default)]
pub(super) struct Told(Mutex<BTreeMap<PeerId, (Instant, u32)>>);

impl Told {
    /// Whether a message may be looked at: any that tells no evidence, and so many that do.
    pub(super) fn allows(&self, peer: PeerId, message: &[u8]) -> bool {
        !message.starts_with(BEGINS) || self.counts(peer, Instant::now())
    }

    fn counts(&self, peer: PeerId, now: Instant) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= PEERS_MAX && !told.contains_key(&peer) {
            let oldest = told.iter().min_by_key(|(_, (since, _))| *since).map(|(peer, _)| *peer);
            oldest.map(|oldest| told.remove(&oldest));
        }
        let (since, count) = told.entry(peer).or_insert((now, 0));
        if now.saturating_duration_since(*since) >= WINDOW {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        *count <= PER_WINDOW
    }
}

/// Evidence is worth something where its session is held and the accusation is new, and not found void before; else it goes no
/// further.
pub(super) async fn weigh(shared: &Shared, exhibit: &Exhibit) -> Result<Worth, Reject> {
    let exhibit = exhibit.clone();
    let is_news = shared.on_node(move |node| {
        Ok(node.is_new_evidence(&exhibit)? && node.reader()?.session(exhibit.session())?.is_some())
    });
    match is_news.await {
        Ok(true) => Ok(Worth::Good),
        Ok(false) => Ok(Worth::Doubtful),
        Err(problem) => Err(Reject::new(problem.code(), problem.detail())),
    }
}

/// Notes that others know.
pub(super) async fn mark_told(shared: &Shared, session: SessionId, accusation: Accusation) {
    let mark = MarkTold { session, accusation, at: now() };
    let marked = shared.on_node(move |node| node.store().run(mark).map_err(Into::into)).await;
    if let Err(problem) = marked {
        tracing::warn!(session = session.short(), %problem, "evidence may be told twice");
    }
}

/// An accusation that is still to be told, and the message for it.
pub(super) type Untold = (Accusation, Arc<[u8]>);

/// What is still to be told of a session. What is too large for a message is told to nobody, since who compares heads finds the
/// branches: it is marked, or it would stand in the way of what waits behind it.
pub(super) fn untold(node: &Node, session: SessionId) -> Answer<Vec<Untold>> {
    let mut messages = Vec::new();
    for kept in node.reader()?.evidence(session)?.into_iter().filter(|kept| kept.told.is_none()) {
        let exhibit = crate::exhibit::check(kept.bytes)?;
        match announce::evidence_message(&exhibit) {
            Ok(message) => messages.push((kept.accusation, message.into())),
            Err(_) => node.store().run(MarkTold { session, accusation: kept.accusation, at: now() })?,
        }
    }
    Ok(messages)
}

/// Whether anybody may be told: all of a session that is public here is published by its holder's next Ref at the latest.
pub(super) fn is_public(class: Class, published: Option<throughline_store::Mark>) -> bool {
    class == Class::Public && published.is_some()
}

/// Puts sessions into the outbox of which nobody could be told so far.
pub(super) async fn remind(shared: &Shared) {
    let untold = shared.on_node(|node| Ok(node.reader()?.sessions_with_untold_evidence(UNTOLD_MAX)?));
    for session in untold.await.unwrap_or_default() {
        shared.outbox.put(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_tells_too_much_is_not_listened_to_for_a_while() {
        let (told, start) = (Told::default(), Instant::now());
        let (loud, calm) = (PeerId::random(), PeerId::random());
        for number in 0..2 * PER_WINDOW {
            assert_eq!(told.counts(loud, start), number < PER_WINDOW, "{number}");
        }
        assert!(told.counts(calm, start), "another peer has its own count");
        assert!(told.counts(loud, start + WINDOW));
        assert!(told.allows(loud, b"\xa1\x64blob"), "other news is not counted");
    }

    #[test]
    fn the_count_of_peers_is_bounded() {
        let (told, start) = (Told::default(), Instant::now());
        for number in 0..u64::try_from(PEERS_MAX).unwrap() + 10 {
            assert!(told.counts(PeerId::random(), start + Duration::from_millis(number)));
        }
        assert_eq!(told.0.lock().unwrap().len(), PEERS_MAX);
    }

    #[test]
    fn a_message_of_evidence_is_known_by_its_first_bytes() {
        use throughline_protocol::codec::{Map, encode_map};
        let message = encode_map(&Map::new().with("evidence", &[0_u8; 4][..]));
        assert!(message.starts_with(BEGINS));
    }
}
