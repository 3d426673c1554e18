//! Peers that are no strangers: those of the address book, and those that proved to be a party to the owner of this node.
//!
//! It decides who may use what is kept for known peers, no more: what anybody may see or do is for [`super::policy`]. A stranger
//! proves a key of its own as well as anybody, so a proof alone makes nobody known.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use libp2p::PeerId;
use throughline_protocol::id::Principal;
use tokio::sync::Notify;

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

/// Principals whose last agreement is remembered; the one that agreed longest ago is forgotten first.
const AGREED_MAX: usize = 1_024;

/// What one principal was last seen to hold of one owner's control blobs.
struct Agreement {
    who: Principal,
    owner: Principal,
    digest: [u8; 32],
}

/// What others were last seen to hold of an owner's control blobs, of those that they are told: the digest of what was told. `told` and
/// `pending` are a view of it.
#[derive(Default)]
pub(super) struct Agreed {
    seen: Mutex<VecDeque<Agreement>>,
    changed: Notify,
}

impl Agreed {
    /// `who` holds all that it is told of `owner`.
    pub(super) fn note(&self, who: Principal, owner: Principal, digest: [u8; 32]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|of| (of.who, of.owner) != (who, owner));
        if seen.len() == AGREED_MAX {
            seen.pop_front();
        }
        seen.push_back(Agreement { who, owner, digest });
        drop(seen);
        self.changed.notify_waiters();
    }

    /// What `who` was last seen to hold of `owner`.
    pub(super) fn last(&self, who: Principal, owner: Principal) -> Option<[u8; 32]> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().find(|of| (of.who, of.owner) == (who, owner)).map(|of| of.digest)
    }

    /// Returns once all of these are seen to agree.
    pub(super) async fn all(&self, owner: Principal, wanted: &[(Principal, [u8; 32])]) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if wanted.iter().all(|(who, digest)| self.last(*who, owner) == Some(*digest)) {
                return;
            }
            changed.await;
        }
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

    #[tokio::test]
    async fn who_agreed_is_bounded_and_agrees_to_what_was_told_last() {
        let agreed = Agreed::default();
        let key = |number: u8| Principal::from_key([number; 32]);
        agreed.note(key(1), key(9), [1; 32]);
        agreed.note(key(1), key(9), [2; 32]);
        agreed.all(key(9), &[(key(1), [2; 32])]).await;
        assert_eq!((agreed.last(key(1), key(9)), agreed.last(key(1), key(8))), (Some([2; 32]), None));
        for number in 0..AGREED_MAX {
            let mut owner = [0; 32];
            owner[..8].copy_from_slice(&number.to_be_bytes());
            agreed.note(key(2), Principal::from_key(owner), [3; 32]);
        }
        assert_eq!(agreed.last(key(1), key(9)), None);
    }

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
