//! How far a transfer, or a check of what is held, is: counters that are written by whoever moves bytes and read by whoever shows them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The counters of one transfer. They only tell how far it is; nothing is decided by them.
#[derive(Debug, Default)]
pub struct Tally {
    verified: AtomicU64,
    expected: AtomicU64,
    bytes: AtomicU64,
    blocks: AtomicU64,
    blocks_expected: AtomicU64,
    moved: Notify,
}

/// What the counters said at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tallied {
    /// Entries that were verified, in order.
    pub entries: u64,
    /// Entries that will have been in the end, as the skip path fixed it; none before that came.
    pub entries_total: Option<u64>,
    /// Bytes of frames.
    pub bytes: u64,
    /// Payloads and parts of files that were asked for after the entries and came.
    pub blocks: u64,
    /// How many were asked for so far.
    pub blocks_total: u64,
}

impl Tally {
    /// Counters at nothing.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// What they say now.
    #[must_use]
    pub fn now(&self) -> Tallied {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Tallied {
            entries: of(&self.verified),
            entries_total: Some(of(&self.expected)).filter(|total| *total > 0),
            bytes: of(&self.bytes),
            blocks: of(&self.blocks),
            blocks_total: of(&self.blocks_expected),
        }
    }

    /// Waits until they have moved since somebody last waited.
    pub async fn moved(&self) {
        self.moved.notified().await;
    }

    fn add(&self, counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
        self.moved.notify_one();
    }

    /// So many bytes came, or were gone through.
    pub(crate) fn came(&self, bytes: u64) {
        self.add(&self.bytes, bytes);
    }

    /// So many entries are still to come: those that were verified before count too, a second provider goes on after them.
    pub(crate) fn expect(&self, entries: u64) {
        let total = self.verified.load(Ordering::Relaxed).saturating_add(entries);
        self.expected.store(total, Ordering::Relaxed);
        self.moved.notify_one();
    }

    /// Everything is gone through once more.
    pub(super) fn again(&self) {
        self.verified.store(0, Ordering::Relaxed);
        self.expected.store(0, Ordering::Relaxed);
        self.moved.notify_one();
    }

    /// So many entries more were verified.
    pub(crate) fn verified(&self, entries: u64) {
        self.add(&self.verified, entries);
    }

    /// Blocks were asked for.
    pub(super) fn expect_blocks(&self, blocks: u64) {
        self.add(&self.blocks_expected, blocks);
    }

    /// Blocks of so many bytes came.
    pub(super) fn blocks(&self, blocks: u64, bytes: u64) {
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        self.add(&self.bytes, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_known_once_the_path_is_and_a_second_provider_goes_on() {
        let tally = Tally::new();
        assert_eq!(tally.now(), Tallied::default());
        tally.expect(10);
        tally.verified(4);
        tally.came(99);
        // The first one failed; what is left is asked of the next.
        tally.expect(6);
        tally.verified(6);
        let now = tally.now();
        assert_eq!((now.entries, now.entries_total, now.bytes), (10, Some(10), 99));
    }
}
