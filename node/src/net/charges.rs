//! Who misbehaved, how often and until when they are shut out. Pure: time comes in as a value.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libp2p::PeerId;
use throughline_protocol::code::Code;

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

/// What a peer is charged with, for those who run the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charges {
    /// The peer.
    pub peer: PeerId,
    /// Charges that count: each came less than the window after the one before.
    pub count: u32,
    /// What the last one was for.
    pub reason: Code,
    /// How long ago the last one was.
    pub age: Duration,
    /// For how long it is still shut out; none when it is not.
    pub blocked_for: Option<Duration>,
}

struct Account {
    charges: u32,
    reason: Code,
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
    pub(super) fn charge(&mut self, peer: PeerId, reason: Code, now: Instant) -> Charged {
        if !self.accounts.contains_key(&peer) && !self.make_room(now) {
            return Charged::Counted;
        }
        let window = self.window;
        let account = self.accounts.entry(peer).or_insert(Account {
            charges: 0,
            reason,
            last: now,
            blocked_until: None,
        });
        if account.blocked_until.is_some() {
            return Charged::AlreadyBlocked;
        }
        if now.duration_since(account.last) >= window {
            account.charges = 0;
        }
        account.charges += 1;
        (account.reason, account.last) = (reason, now);
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

    /// The accounts that matter still, in no order.
    pub(super) fn open(&self, now: Instant) -> Vec<Charges> {
        let matters = |account: &&Account| {
            account.blocked_until.is_some() || now.duration_since(account.last) < self.window
        };
        let open = self.accounts.iter().filter(|(_, account)| matters(account));
        open.map(|(peer, account)| Charges {
            peer: *peer,
            count: account.charges,
            reason: account.reason,
            age: now.duration_since(account.last),
            blocked_for: account.blocked_until.map(|until| until.saturating_duration_since(now)),
        })
        .collect()
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
        assert_eq!(ledger.charge(peer, Code::Sig, start), Charged::Counted);
        assert_eq!(ledger.charge(peer, Code::Sig, start), Charged::Counted);
        assert_eq!(ledger.charge(peer, Code::Sig, start), Charged::Block);
        assert_eq!(ledger.charge(peer, Code::Sig, start), Charged::AlreadyBlocked);
        assert!(ledger.release(start + Duration::from_secs(99)).is_empty());
        assert_eq!(ledger.release(start + Duration::from_secs(100)), [peer]);
        assert!(ledger.release(start + Duration::from_secs(100)).is_empty());
        assert_eq!(ledger.charge(peer, Code::Sig, start + Duration::from_secs(100)), Charged::Counted);
    }

    #[test]
    fn old_charges_do_not_count() {
        let (mut ledger, peer, start) = (ledger(), PeerId::random(), Instant::now());
        for minute in 0..9 {
            assert_eq!(
                ledger.charge(peer, Code::Sig, start + Duration::from_secs(60 * minute)),
                Charged::Counted
            );
        }
    }

    #[test]
    fn what_counts_can_be_looked_at() {
        let (mut ledger, [one, other], start) =
            (ledger(), [PeerId::random(), PeerId::random()], Instant::now());
        ledger.charge(one, Code::Sig, start);
        for _ in 0..3 {
            ledger.charge(other, Code::FrameLen, start);
        }
        let at = |seconds| {
            let mut open = ledger.open(start + Duration::from_secs(seconds));
            open.sort_by_key(|charges| charges.count);
            open
        };
        let age = Duration::from_secs(20);
        let blocked_for = Some(Duration::from_secs(80));
        assert_eq!(
            at(20),
            [
                Charges { peer: one, count: 1, reason: Code::Sig, age, blocked_for: None },
                Charges { peer: other, count: 3, reason: Code::FrameLen, age, blocked_for },
            ]
        );
        assert_eq!(
            at(61).iter().map(|charges| charges.peer).collect::<Vec<_>>(),
            [other],
            "old ones do not count"
        );
    }

    #[test]
    fn the_ledger_stays_small() {
        let (mut ledger, start) = (ledger(), Instant::now());
        for _ in 0..PEERS_MAX + 10 {
            ledger.charge(PeerId::random(), Code::Sig, start);
        }
        assert_eq!(ledger.accounts.len(), PEERS_MAX);
        let mut ledger = Ledger::new(1, Duration::from_secs(60), Duration::from_secs(100));
        for _ in 0..PEERS_MAX + 10 {
            ledger.charge(PeerId::random(), Code::Sig, start);
        }
        assert_eq!(ledger.accounts.len(), PEERS_MAX);
    }
}
