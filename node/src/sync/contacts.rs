//! What is known of peers while the node runs: who proved to stand behind a connection, which heads they told, when.
//!
//! A told head is a hint. It decides what is worth asking for and what `status` shows, never what is valid.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use throughline_protocol::clock::Apart;
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Principal, SessionId};

use crate::core::ControlDigest;

/// Peers that are remembered, connected or not.
const CONTACTS_MAX: usize = 1_024;
/// Heads that are remembered of one peer.
const HEADS_MAX: usize = 4_096;
/// Owners whose digest, as a peer told it, is remembered.
const DIGESTS_MAX: usize = 256;

/// How a peer's copy of a session stands to ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The same head.
    Equal,
    /// It has more.
    Ahead,
    /// It has less.
    Behind,
    /// Another history.
    Diverged,
    /// It told no head.
    Unknown,
}

impl Relation {
    /// The word of the JSON interface.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Relation::Equal => "equal",
            Relation::Ahead => "ahead",
            Relation::Behind => "behind",
            Relation::Diverged => "diverged",
            Relation::Unknown => "unknown",
        }
    }
}

/// A head that a peer told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) head: Mark,
    pub(super) at: Instant,
    /// The head up to which everything was fetched from this peer; where there was no room for it, what it was judged by.
    taken: Option<(EntryCid, Option<ControlDigest>)>,
}

/// Whether a head was fetched from its teller before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Before,
    /// It was, and was not kept: judged by these control blobs there was no room for it.
    Left(ControlDigest),
    NotYet,
}

/// Whether it was known who stands behind a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proved {
    Now,
    Before,
}

#[derive(Default)]
struct Contact {
    proven: Option<Principal>,
    seen: Option<Instant>,
    heads: BTreeMap<SessionId, Told>,
    digests: BTreeMap<Principal, [u8; 32]>,
    /// How its clock stands to this one, while they differ by more than a proof may.
    apart: Option<Apart>,
}

/// All contacts, by connection key.
#[derive(Default)]
pub(super) struct Contacts(Mutex<BTreeMap<Principal, Contact>>);

impl Contacts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Principal, Contact>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, peer: Principal, act: impl FnOnce(&mut Contact) -> T) -> T {
        let mut all = self.lock();
        if all.len() >= CONTACTS_MAX && !all.contains_key(&peer) {
            let oldest = all.iter().min_by_key(|(_, contact)| contact.seen).map(|(peer, _)| *peer);
            oldest.map(|oldest| all.remove(&oldest));
        }
        act(all.entry(peer).or_default())
    }

    /// The peer said something.
    pub(super) fn heard(&self, peer: Principal) {
        self.with(peer, |contact| contact.seen = Some(Instant::now()));
    }

    /// A valid proof named the principal behind the connection; says whether it did so before.
    pub(super) fn proved(&self, peer: Principal, principal: Principal) -> Proved {
        self.with(peer, |contact| {
            contact.seen = Some(Instant::now());
            contact.apart = None;
            match contact.proven.replace(principal) {
                Some(before) if before == principal => Proved::Before,
                Some(_) | None => Proved::Now,
            }
        })
    }

    /// A proof of the peer's was right but for its time, or it said so of one of ours.
    pub(super) fn apart(&self, peer: Principal, apart: Apart) {
        self.with(peer, |contact| contact.apart = Some(apart));
    }

    /// The peer took a proof of ours.
    pub(super) fn took_proof(&self, peer: Principal) {
        if let Some(contact) = self.lock().get_mut(&peer) {
            contact.apart = None;
        }
    }

    /// How the peer's clock stands to this one, when they differ by more than a proof may.
    pub(super) fn apart_of(&self, peer: Principal) -> Option<Apart> {
        self.lock().get(&peer).and_then(|contact| contact.apart)
    }

    /// The connection is gone, and with it what was proved over it.
    pub(super) fn left(&self, peer: Principal) {
        if let Some(contact) = self.lock().get_mut(&peer) {
            contact.proven = None;
            contact.digests.clear();
        }
    }

    /// Who stands behind a connection.
    pub(super) fn principal_of(&self, peer: Principal) -> Option<Principal> {
        self.lock().get(&peer).and_then(|contact| contact.proven)
    }

    /// The connections that a principal proved to stand behind.
    pub(super) fn peers_of(&self, principal: Principal) -> Vec<Principal> {
        let all = self.lock();
        all.iter().filter(|(_, contact)| contact.proven == Some(principal)).map(|(peer, _)| *peer).collect()
    }

    /// How long ago the peer said something.
    pub(super) fn silence(&self, peer: Principal) -> Option<Duration> {
        self.lock().get(&peer).and_then(|contact| contact.seen).map(|seen| seen.elapsed())
    }

    /// The peer told a head; says whether that head was fetched from it before.
    pub(super) fn told(&self, peer: Principal, session: SessionId, head: Mark) -> Taken {
        self.with(peer, |contact| {
            contact.seen = Some(Instant::now());
            let taken = contact.heads.get(&session).and_then(|told| told.taken);
            if contact.heads.len() >= HEADS_MAX && !contact.heads.contains_key(&session) {
                contact.heads.pop_first();
            }
            contact.heads.insert(session, Told { head, at: Instant::now(), taken });
            match taken {
                Some((cid, None)) if cid == head.cid => Taken::Before,
                Some((cid, Some(left))) if cid == head.cid => Taken::Left(left),
                Some(_) | None => Taken::NotYet,
            }
        })
    }

    /// Everything up to this head was fetched from the peer; `left` says what it was judged by if it was not kept.
    pub(super) fn took(
        &self,
        peer: Principal,
        session: SessionId,
        head: EntryCid,
        left: Option<ControlDigest>,
    ) {
        if let Some(told) = self.lock().get_mut(&peer).and_then(|contact| contact.heads.get_mut(&session)) {
            told.taken = Some((head, left));
        }
    }

    /// The heads that a peer told.
    pub(super) fn heads(&self, peer: Principal) -> Vec<(SessionId, Told)> {
        let all = self.lock();
        all.get(&peer)
            .map(|contact| contact.heads.iter().map(|(id, told)| (*id, *told)).collect())
            .unwrap_or_default()
    }

    /// Whether the peer told what it holds of an owner.
    pub(super) fn told_of(&self, peer: Principal, owner: Principal) -> bool {
        self.lock().get(&peer).is_some_and(|contact| contact.digests.contains_key(&owner))
    }

    /// The peer told what it holds of an owner; says whether it told that before. A difference leads to one look, not to
    /// one a request: two nodes that cannot agree would ask each other for ever.
    pub(super) fn told_digest(&self, peer: Principal, owner: Principal, digest: [u8; 32]) -> Taken {
        self.with(peer, |contact| {
            if contact.digests.len() >= DIGESTS_MAX && !contact.digests.contains_key(&owner) {
                contact.digests.pop_first();
            }
            if contact.digests.insert(owner, digest) == Some(digest) { Taken::Before } else { Taken::NotYet }
        })
    }
}

#[cfg(test)]
mod tests {
    use throughline_protocol::id::{Epoch, Seq};

    use super::*;

    fn peer(byte: u8) -> Principal {
        Principal::from_key([byte; 32])
    }

    fn head(byte: u8) -> Mark {
        Mark { seq: Seq::ZERO, epoch: Epoch::ZERO, cid: EntryCid::from_digest([byte; 32]) }
    }

    #[test]
    fn a_head_that_was_fetched_is_news_only_when_it_moves() {
        let (contacts, session) =
            (Contacts::default(), SessionId::of_genesis(EntryCid::from_digest([9; 32])));
        assert_eq!(contacts.told(peer(1), session, head(1)), Taken::NotYet);
        contacts.took(peer(1), session, head(1).cid, None);
        assert_eq!(contacts.told(peer(1), session, head(1)), Taken::Before);
        assert_eq!(contacts.told(peer(1), session, head(2)), Taken::NotYet);
        assert_eq!(contacts.told(peer(2), session, head(1)), Taken::NotYet);
    }

    #[test]
    fn a_proof_ends_with_its_connection() {
        let contacts = Contacts::default();
        assert_eq!(contacts.proved(peer(1), peer(7)), Proved::Now);
        assert_eq!(contacts.proved(peer(1), peer(7)), Proved::Before);
        assert_eq!(
            (contacts.principal_of(peer(1)), contacts.peers_of(peer(7))),
            (Some(peer(7)), vec![peer(1)])
        );
        contacts.left(peer(1));
        assert_eq!((contacts.principal_of(peer(1)), contacts.peers_of(peer(7))), (None, Vec::new()));
    }

    #[test]
    fn a_difference_is_news_once() {
        let contacts = Contacts::default();
        assert_eq!(contacts.told_digest(peer(1), peer(7), [1; 32]), Taken::NotYet);
        assert_eq!(contacts.told_digest(peer(1), peer(7), [1; 32]), Taken::Before);
        assert_eq!(contacts.told_digest(peer(1), peer(7), [2; 32]), Taken::NotYet);
    }

    #[test]
    fn contacts_are_bounded() {
        let contacts = Contacts::default();
        for number in 0..CONTACTS_MAX + 10 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            contacts.heard(Principal::from_key(key));
        }
        assert_eq!(contacts.lock().len(), CONTACTS_MAX);
    }
}
