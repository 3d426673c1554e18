//! Claims: a peer tells a head of a session of this node's owner that is not held here. Pure: time comes in as a value.
//!
//! To find out whether it is true costs a transfer, up to one batch of it (16 MiB), and a stranger can tell any number of heads. So
//! what came to nothing is remembered:
//!
//! - the same head is not asked for again from that peer for [`REFUTED_FOR`];
//! - after each failure the peer's next claim waits, twice as long as before, up to [`PAUSE_MAX`];
//! - after [`FREE`] failures each one is charged;
//! - all strangers together have [`STRANGERS_MAX`] failures in [`WINDOW`], so that many keys are no more than one.
//!
//! A claim that proves true makes up for the peer's failures. What is held already is no claim, and a peer that is known shares no
//! budget with strangers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::engine::{PeerKey, Standing};
use crate::id::{EntryCid, SessionId};

/// How long a head that came to nothing is not asked for again from its teller.
const REFUTED_FOR: Duration = Duration::from_secs(10 * 60);
/// The pause after the first failure; it doubles.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60 * 60);
/// Failures of one peer that are not charged: it may be cut off, or know of grants that this node does not.
const FREE: u32 = 3;
/// Failures of all strangers together in one [`WINDOW`]: 16 batches of 16 MiB.
const STRANGERS_MAX: u32 = 16;
/// Over what time they count.
const WINDOW: Duration = Duration::from_secs(10 * 60);
/// Peers that are remembered; the one that failed longest ago is forgotten first.
const PEERS_MAX: usize = 1_024;
/// Heads of one peer that are remembered.
const HEADS_MAX: usize = 1_024;

/// What a failure leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    Counted,
    /// It was one too many.
    Charge,
}

#[derive(Clone, Debug)]
struct Account {
    failures: u32,
    last: Duration,
    refuted: BTreeMap<SessionId, (EntryCid, Duration)>,
}

impl Account {
    fn pause(&self) -> Duration {
        let doublings = self.failures.saturating_sub(1).min(16);
        PAUSE_MIN.saturating_mul(1 << doublings).min(PAUSE_MAX)
    }
}

/// What peers claimed in vain.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    accounts: BTreeMap<PeerKey, Account>,
    window_began: Option<Duration>,
    strangers: u32,
}

impl Claims {
    /// Failures of strangers in the window that runs at `now`.
    fn strangers_at(&self, now: Duration) -> u32 {
        let runs = self.window_began.is_some_and(|began| now.saturating_sub(began) < WINDOW);
        if runs { self.strangers } else { 0 }
    }

    fn account(&mut self, peer: PeerKey, now: Duration) -> &mut Account {
        if self.accounts.len() >= PEERS_MAX && !self.accounts.contains_key(&peer) {
            let oldest = self.accounts.iter().min_by_key(|(_, account)| account.last).map(|(peer, _)| *peer);
            oldest.map(|oldest| self.accounts.remove(&oldest));
        }
        let fresh = || Account { failures: 0, last: now, refuted: BTreeMap::new() };
        self.accounts.entry(peer).or_insert_with(fresh)
    }

    /// Whether a head that a peer told is looked at now.
    pub(super) fn is_due(
        &self,
        (peer, standing): (PeerKey, Standing),
        session: SessionId,
        head: EntryCid,
        now: Duration,
    ) -> bool {
        if standing == Standing::Stranger && self.strangers_at(now) >= STRANGERS_MAX {
            return false;
        }
        let Some(account) = self.accounts.get(&peer).filter(|account| account.failures > 0) else {
            return true;
        };
        let is_refuted = account
            .refuted
            .get(&session)
            .is_some_and(|(refuted, at)| *refuted == head && now.saturating_sub(*at) < REFUTED_FOR);
        !is_refuted && now.saturating_sub(account.last) >= account.pause()
    }

    /// A head that a peer told came to nothing.
    pub(super) fn failed(
        &mut self,
        (peer, standing): (PeerKey, Standing),
        session: SessionId,
        head: EntryCid,
        now: Duration,
    ) -> Failed {
        if standing == Standing::Stranger {
            let before = self.strangers_at(now);
            if before == 0 {
                self.window_began = Some(now);
            }
            self.strangers = before + 1;
        }
        let account = self.account(peer, now);
        account.failures = account.failures.saturating_add(1);
        account.last = now;
        if account.refuted.len() >= HEADS_MAX && !account.refuted.contains_key(&session) {
            account.refuted.pop_first();
        }
        account.refuted.insert(session, (head, now));
        if account.failures > FREE { Failed::Charge } else { Failed::Counted }
    }

    /// A claim of the peer proved true.
    pub(super) fn kept(&mut self, peer: PeerKey) {
        self.accounts.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: usize) -> PeerKey {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        PeerKey::from_key(key)
    }

    fn session(byte: u8) -> SessionId {
        SessionId::of_genesis(EntryCid::from_digest([byte; 32]))
    }

    fn head(byte: u8) -> EntryCid {
        EntryCid::from_digest([byte; 32])
    }

    #[test]
    fn a_head_that_came_to_nothing_is_not_asked_for_again_and_another_waits_longer_each_time() {
        let (mut claims, start) = (Claims::default(), Duration::from_secs(1_000));
        let who = (peer(1), Standing::Known(peer(1)));
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(claims.is_due(who, session(1), head(1), at(0)));
        assert_eq!(claims.failed(who, session(1), head(1), at(0)), Failed::Counted);
        assert!(!claims.is_due(who, session(2), head(2), at(0)), "its next claim waits");
        assert!(claims.is_due(who, session(2), head(2), at(1)));
        assert!(!claims.is_due(who, session(1), head(1), at(1)), "the same head waits longer");
        assert!(claims.is_due(who, session(1), head(3), at(1)), "another head of it is news");
        assert!(
            claims.is_due((peer(2), Standing::Known(peer(1))), session(1), head(1), at(0)),
            "another peer may have it"
        );
        claims.failed(who, session(2), head(2), at(1));
        assert!(
            !claims.is_due(who, session(3), head(3), at(2)) && claims.is_due(who, session(3), head(3), at(3))
        );
        assert!(
            claims.is_due(who, session(1), head(1), at(10 * 60)),
            "not for ever: grants may have come since"
        );
        // One that proves true makes up for the others.
        claims.kept(peer(1));
        assert!(claims.is_due(who, session(1), head(1), at(3)));
    }

    #[test]
    fn failures_over_the_free_ones_are_charged_and_the_pause_has_an_end() {
        let (mut claims, start) = (Claims::default(), Duration::from_secs(1_000));
        let who = (peer(1), Standing::Known(peer(1)));
        for number in 0..40_u8 {
            let expected = if u32::from(number) < FREE { Failed::Counted } else { Failed::Charge };
            assert_eq!(claims.failed(who, session(number), head(number), start), expected);
        }
        assert!(!claims.is_due(who, session(99), head(99), start + PAUSE_MAX - Duration::from_millis(1)));
        assert!(claims.is_due(who, session(99), head(99), start + PAUSE_MAX));
    }

    #[test]
    fn many_strangers_have_no_more_than_one() {
        let (mut claims, start) = (Claims::default(), Duration::from_secs(1_000));
        let mut tried = 0;
        for number in 0..100 {
            let who = (peer(number), Standing::Stranger);
            if claims.is_due(who, session(1), head(1), start) {
                tried += 1;
                claims.failed(who, session(1), head(1), start);
            }
        }
        assert_eq!(tried, STRANGERS_MAX);
        assert!(
            claims.is_due((peer(200), Standing::Known(peer(1))), session(1), head(1), start),
            "who is known is not stopped"
        );
        assert!(claims.is_due((peer(201), Standing::Stranger), session(1), head(1), start + WINDOW));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut claims, start) = (Claims::default(), Duration::from_secs(1_000));
        for number in 0..PEERS_MAX + 10 {
            claims.failed((peer(number), Standing::Known(peer(1))), session(1), head(1), start);
        }
        for number in 0..HEADS_MAX + 10 {
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&number.to_be_bytes());
            let session = SessionId::of_genesis(EntryCid::from_digest(digest));
            claims.failed((peer(5_000), Standing::Known(peer(1))), session, head(1), start);
        }
        assert_eq!(
            (claims.accounts.len(), claims.accounts[&peer(5_000)].refuted.len()),
            (PEERS_MAX, HEADS_MAX)
        );
    }
}
