//! Times that writers set, beside another clock. `docs/PROTOCOL.md` R-CH-2.
//!
//! A clock decides nothing about what is valid. Whoever puts in order what another key signed bounds how far ahead it may be, so that
//! one wrong clock does not become everybody's time; and what one such entry brought into a chain holds up nobody who comes after it:
//! its time may be repeated, whatever the clock says.

use std::fmt;

use crate::code::{Code, Reject};
use crate::id::UnixMillis;
use crate::limits::FUTURE_TS_MS_MAX;

/// The `ts` of what is made at `clock` on something of `prev`.
#[must_use]
pub fn written(clock: UnixMillis, prev: UnixMillis) -> UnixMillis {
    clock.max(prev)
}

/// By how many milliseconds a blob on something of `prev` is ahead of `clock`, when that is more than a writer may be: it is beyond
/// both five minutes from now and what it stands on.
#[must_use]
pub fn ahead_ms(ts: UnixMillis, prev: UnixMillis, clock: UnixMillis) -> Option<u64> {
    let ahead_ms = ts.get().saturating_sub(clock.get());
    (ts > prev && ahead_ms > FUTURE_TS_MS_MAX).then_some(ahead_ms)
}

/// Checks what another key signed before it is put in order.
///
/// # Errors
/// `W_FUTURE` for a `ts` above max(clock + 5 minutes, prev). `E_TS_ORDER`, for one below prev, is the verifier's.
pub fn check(ts: UnixMillis, prev: UnixMillis, clock: UnixMillis) -> Result<(), Reject> {
    let Some(ahead_ms) = ahead_ms(ts, prev, clock) else { return Ok(()) };
    let what = format!(
        "expected a time of at most {} after this clock, or that of the entry before, got one {} after it",
        length(FUTURE_TS_MS_MAX),
        length(ahead_ms)
    );
    Err(Reject::new(Code::Future, what))
}

/// How another machine's clock stands to this one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apart {
    /// What the other one shows.
    pub theirs: UnixMillis,
    /// What this one shows.
    pub ours: UnixMillis,
}

impl Apart {
    /// By how many milliseconds they differ.
    #[must_use]
    pub fn ms(self) -> u64 {
        self.theirs.get().abs_diff(self.ours.get())
    }

    /// Whether the other one is ahead.
    #[must_use]
    pub fn is_ahead(self) -> bool {
        self.theirs > self.ours
    }
}

/// As in *its clock is 2 h 5 min ahead of this one*.
impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = if self.is_ahead() { "ahead of this one" } else { "behind this one" };
        write!(f, "{} {word}", length(self.ms()))
    }
}

/// A length of time for people: its two largest units.
#[must_use]
pub fn length(ms: u64) -> String {
    let (days, hours, minutes, seconds) =
        (ms / 86_400_000, ms / 3_600_000 % 24, ms / 60_000 % 60, ms / 1_000 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {seconds} s"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        (_, _, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> UnixMillis {
        UnixMillis::new(ms).unwrap()
    }

    #[test]
    fn the_bound_is_five_minutes_or_what_stands_there() {
        let clock = at(1_000_000);
        let bound = 1_000_000 + FUTURE_TS_MS_MAX;
        for (ts, prev, ok) in [
            (bound, 0, true),
            (bound + 1, 0, false),
            (bound + 1, bound, false),
            (bound + 1, bound + 1, true),
            (bound + 2, bound + 1, false),
        ] {
            assert_eq!(check(at(ts), at(prev), clock).is_ok(), ok, "{ts} on {prev}");
            assert_eq!(ahead_ms(at(ts), at(prev), clock), (!ok).then(|| ts - 1_000_000));
        }
    }

    #[test]
    fn a_difference_is_told_in_words() {
        let apart = |theirs, ours| Apart { theirs: at(theirs), ours: at(ours) }.to_string();
        assert_eq!(apart(8_700_000, 1_200_000), "2 h 5 min ahead of this one");
        assert_eq!(apart(0, 660_500), "11 min 0 s behind this one");
        assert_eq!(apart(1_000, 0), "1 s ahead of this one");
        assert_eq!(apart(0, 200_000_000), "2 d 7 h behind this one");
    }

    proptest! {
        /// Whatever stands there: who writes by a clock that is right is refused by nobody whose clock is right, and in order.
        #[test]
        fn what_a_right_clock_writes_is_taken(
            prev in 0..1_u64 << 48,
            clock in 0..(1_u64 << 48) - FUTURE_TS_MS_MAX,
            apart in 0..=FUTURE_TS_MS_MAX,
        ) {
            let ts = written(at(clock + apart), at(prev));
            prop_assert!(ts >= at(prev));
            prop_assert_eq!(check(ts, at(prev), at(clock)), Ok(()));
        }
    }
}
