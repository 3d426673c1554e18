//! Bytes per window.

use std::time::Duration;

/// How much of a quota is used in the running window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    window_began: Duration,
    used: u64,
}

impl Meter {
    /// Counts bytes; a window that has ended is forgotten first.
    pub(super) fn count(&mut self, now: Duration, window: Duration, bytes: u64) {
        if now >= self.window_began + window {
            *self = Meter { window_began: now, used: 0 };
        }
        self.used = self.used.saturating_add(bytes);
    }

    /// When there is room again: `None` if there is now.
    pub(super) fn full_until(&self, now: Duration, window: Duration, max: u64) -> Option<Duration> {
        let ends = self.window_began + window;
        (self.used >= max && now < ends).then_some(ends)
    }
}
