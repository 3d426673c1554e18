//! Peers that are no strangers: those of the address book, and those that proved to be a party to the owner of this node.
//!
//! It decides who may use what is kept for known peers, no more: what anybody may see or do is for [`super::policy`]. A stranger
//! proves a key of its own as well as anybody, so a proof alone makes nobody known.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use libp2p::PeerId;
use throughline_protocol::id::Principal;

use super::policy::{Party, party};
use super::shared::Shared;
use crate::core::controls_of;
use crate::net::{peer_of, principal_of};

/// Peers that are known at a time; the one made known longest ago is forgotten first.
const KNOWN_MAX: usize = 1_024;

/// The known peers, by connection key, the newest last.
#[derive(Default)]
pub(super) struct Parties(Mutex<VecDeque<Principal>>);

impl Parties {
    /// Whether a peer is known.
    pub(super) fn knows(&self, peer: Principal) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&peer)
    }

    /// Makes a peer known; false if it was.
    fn add(&self, peer: Principal) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&peer) {
            return false;
        }
        if known.len() == KNOWN_MAX {
            known.pop_front();
        }
        known.push_back(peer);
        true
    }
}

/// A peer of the address book.
pub(super) async fn know(shared: &Shared, peer: Principal) {
    if shared.parties.add(peer)
        && let Some(id) = peer_of(&peer)
    {
        shared.net.know(id).await;
    }
}

/// A peer proved who stands behind it: it is known if that is the owner of this node, or has a live grant of the owner.
pub(super) async fn proved(shared: &Shared, peer: PeerId, principal: Principal) {
    let Some(key) = principal_of(&peer).filter(|key| !shared.parties.knows(*key)) else { return };
    let is_party = shared.on_node(move |node| {
        let Some(owner) = node.owner() else { return Ok(false) };
        let controls = controls_of(&node.reader()?, owner, None)?;
        Ok(party(&controls, owner, Some(principal), None) != Party::Stranger)
    });
    if let Ok(true) = is_party.await {
        know(shared, key).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_are_bounded_and_the_oldest_goes_first() {
        let parties = Parties::default();
        let key = |number: usize| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            Principal::from_key(key)
        };
        for number in 0..=KNOWN_MAX {
            assert!(parties.add(key(number)));
        }
        assert!(!parties.add(key(KNOWN_MAX)));
        assert!(!parties.knows(key(0)) && parties.knows(key(1)) && parties.knows(key(KNOWN_MAX)));
    }
}
