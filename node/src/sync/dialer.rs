//! Keeps known peers connected: dialled at the start, and again after a pause that doubles.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libp2p::multiaddr::Protocol as Part;
use libp2p::{Multiaddr, PeerId};
use throughline_protocol::id::Principal;

use super::shared::Shared;
use super::{parties, peers};
use crate::net::{peer_of, principal_of};

/// How often it is looked whether somebody is to be dialled.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// When a peer may be dialled again.
struct Pause {
    until: Instant,
    length: Duration,
}

/// Pauses by connection key. Pure: time comes in as a value.
struct Pauses {
    min: Duration,
    max: Duration,
    held: BTreeMap<Principal, Pause>,
}

impl Pauses {
    /// Whether the peer is to be dialled now; the next pause begins then.
    fn is_due(&mut self, peer: Principal, now: Instant) -> bool {
        match self.held.get_mut(&peer) {
            Some(pause) if pause.until > now => false,
            Some(pause) => {
                pause.length = (pause.length * 2).min(self.max);
                pause.until = now + pause.length;
                true
            }
            None => {
                self.held.insert(peer, Pause { until: now + self.min, length: self.min });
                true
            }
        }
    }

    /// The peer is connected: the next pause is the first one again.
    fn reset(&mut self, peer: &Principal) {
        self.held.remove(peer);
    }
}

/// Dials until the network stops.
pub(super) async fn run(shared: Arc<Shared>) {
    let (min, max) = (shared.limits.redial_min, shared.limits.redial_max);
    let mut pauses = Pauses { min, max, held: BTreeMap::new() };
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.book_changed.notified() => {}
        }
        for (peer, addrs) in due(&shared, &mut pauses).await {
            let net = shared.net.clone();
            shared.spawn(async move {
                if let Err(error) = net.dial(peer, addrs).await {
                    tracing::debug!(%peer, %error, "a known peer is not reached");
                }
            });
        }
    }
}

async fn due(shared: &Shared, pauses: &mut Pauses) -> Vec<(PeerId, Vec<Multiaddr>)> {
    let known = shared.on_node(|node| {
        let book = peers::list(&node.reader()?)?;
        Ok((book, node.config().node.bootstrap.clone()))
    });
    let Ok((book, bootstrap)) = known.await else { return Vec::new() };
    for peer in &book {
        parties::know(shared, peer.peer).await;
    }
    let mut wanted: BTreeMap<Principal, Vec<Multiaddr>> =
        book.into_iter().filter(|peer| !peer.addrs.is_empty()).map(|peer| (peer.peer, peer.addrs)).collect();
    for addr in bootstrap {
        if let Some(peer) = named_peer(&addr) {
            wanted.entry(peer).or_default().push(addr);
        }
    }
    wanted.remove(&shared.net.peer_principal());
    for connected in shared.net.connected().await {
        pauses.reset(&connected.principal);
        wanted.remove(&connected.principal);
    }
    let now = Instant::now();
    let due = wanted.into_iter().filter(|(peer, _)| pauses.is_due(*peer, now));
    due.filter_map(|(peer, addrs)| Some((peer_of(&peer)?, addrs))).collect()
}

/// The peer that an address ends with.
fn named_peer(addr: &Multiaddr) -> Option<Principal> {
    addr.iter().find_map(|part| if let Part::P2p(peer) = part { principal_of(&peer) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_connection() {
        let (start, peer) = (Instant::now(), Principal::from_key([1; 32]));
        let second = Duration::from_secs(1);
        let mut pauses = Pauses { min: second, max: 4 * second, held: BTreeMap::new() };
        let mut dialled = Vec::new();
        for tick in 0..16 {
            if pauses.is_due(peer, start + second * tick) {
                dialled.push(tick);
            }
        }
        assert_eq!(dialled, [0, 1, 3, 7, 11, 15]);
        pauses.reset(&peer);
        assert!(pauses.is_due(peer, start));
        assert!(!pauses.is_due(peer, start));
    }
}
