//! Who misbehaved, how often and until when they are shut out. Pure: time comes in as a value.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libp2p::PeerId;

/// Peers remembered. Beyond it the one charged longest ago is forgotten; a blocked one never is, because its place
/// in the block list would outlive its account.
const PEERS_MAX: usize = 1_024;

/// What a charge leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charged {
    /// It was counted; the peer stays.
    Counted,
    /// It was one too many: the peer is to be disconnected and blocked until released.
    Block,
    /// The peer is blocked already.
    AlreadyBlocked,
}

struct Account {
    charges: u32,
    last: Instant,
    blocked_until: Option<Instant>,
}

/// The accounts.
pub(super) struct Ledger {
    charges_max: u32,
    window: Duration,
    block_for: Duration,
    accounts: HashMap<PeerId, Account>,
}

impl Ledger {
    /// `charges_max` charges, each less than `window` after the one before, block a peer for `block_for`.
    pub(super) fn new(charges_max: u32, window: Duration, block_for: Duration) -> Self {
        Ledger { charges_max, window, block_for, accounts: HashMap::new() }
    }

    /// Counts one charge.
    pub(super) fn charge(&mut self, peer: PeerId, now: Instant) -> Charged {
        if !self.accounts.contains_key(&peer) && !self.make_room(now) {
            return Charged::Counted;
        }
        let window = self.window;
        let account =
            self.accounts.entry(peer).or_insert(Account { charges: 0, last: now, blocked_until: None });
        if account.blocked_until.is_some() {
            return Charged::AlreadyBlocked;
        }
        if now.duration_since(account.last) >= window {
            account.charges = 0;
        }
        account.charges += 1;
        account.last = now;
        if account.charges < self.charges_max {
            return Charged::Counted;
        }
        account.blocked_until = Some(now + self.block_for);
        Charged::Block
    }

    /// The peers whose time is over; each is returned once.
    pub(super) fn release(&mut self, now: Instant) -> Vec<PeerId> {
        let free = |account: &Account| account.blocked_until.is_some_and(|until| until <= now);
        let released: Vec<_> =
            self.accounts.iter().filter(|(_, account)| free(account)).map(|(peer, _)| *peer).collect();
        for peer in &released {
            self.accounts.remove(peer);
        }
        released
    }

    /// Forgets what a peer did, for a user who lifts the block.
    pub(super) fn forgive(&mut self, peer: &PeerId) {
        self.accounts.remove(peer);
    }

    /// Whether there is room for one more account, after forgetting what no longer matters.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.accounts.len() < PEERS_MAX {
            return true;
        }
        let window = self.window;
        self.accounts.retain(|_, account| {
            account.blocked_until.is_some() || now.duration_since(account.last) < window
        });
        let oldest = self
            .accounts
            .iter()
            .filter(|(_, account)| account.blocked_until.is_none())
            .min_by_key(|(_, account)| account.last)
            .map(|(peer, _)| *peer);
        match oldest {
            Some(peer) if self.accounts.len() >= PEERS_MAX => self.accounts.remove(&peer).is_some(),
            _ => self.accounts.len() < PEERS_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> Ledger {
        Ledger::new(3, Duration::from_secs(60), Duration::from_secs(100))
    }

    #[test]
    fn the_last_of_the_allowed_charges_blocks_and_time_releases() {
        let (mut ledger, peer, start) = (ledger(), PeerId::random(), Instant::now());
        assert_eq!(ledger.charge(peer, start), Charged::Counted);
        assert_eq!(ledger.charge(peer, start), Charged::Counted);
        assert_eq!(ledger.charge(peer, start), Charged::Block);
        assert_eq!(ledger.charge(peer, start), Charged::AlreadyBlocked);
        assert!(ledger.release(start + Duration::from_secs(99)).is_empty());
        assert_eq!(ledger.release(start + Duration::from_secs(100)), [peer]);
        assert!(ledger.release(start + Duration::from_secs(100)).is_empty());
        assert_eq!(ledger.charge(peer, start + Duration::from_secs(100)), Charged::Counted);
    }

    #[test]
    fn old_charges_do_not_count() {
        let (mut ledger, peer, start) = (ledger(), PeerId::random(), Instant::now());
        for minute in 0..9 {
            assert_eq!(ledger.charge(peer, start + Duration::from_secs(60 * minute)), Charged::Counted);
        }
    }

    #[test]
    fn the_ledger_stays_small() {
        let (mut ledger, start) = (ledger(), Instant::now());
        for _ in 0..PEERS_MAX + 10 {
            ledger.charge(PeerId::random(), start);
        }
        assert_eq!(ledger.accounts.len(), PEERS_MAX);
        let mut ledger = Ledger::new(1, Duration::from_secs(60), Duration::from_secs(100));
        for _ in 0..PEERS_MAX + 10 {
            ledger.charge(PeerId::random(), start);
        }
        assert_eq!(ledger.accounts.len(), PEERS_MAX);
    }
}
