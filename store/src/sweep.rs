//! Housekeeping: what has expired goes, a bounded number of rows at a time. The time is the caller's.

use throughline_protocol::id::UnixMillis;

use crate::error::StoreError;
use crate::writer::{Changes, Step, View};
use crate::{events, idempotency, payloads, staging};

/// Rows of each kind that one sweep removes.
const ROWS_MAX: usize = 1_000;

/// Removes expired staging areas, leases of blocks that nothing links, idempotency keys, and old events.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// Now.
    pub now: UnixMillis,
    /// How many events stay.
    pub events_kept: u64,
}

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Staging areas.
    pub staging: usize,
    /// Leases that ended; the block went unless something links it.
    pub leases: usize,
    /// Idempotency keys.
    pub keys: usize,
    /// Events.
    pub events: usize,
}

impl Swept {
    /// Whether there may be more to remove: then sweep again.
    #[must_use]
    pub fn is_more(&self) -> bool {
        [self.staging, self.leases, self.keys, self.events].contains(&ROWS_MAX)
    }
}

impl Step for Sweep {
    type Output = Swept;
    type Error = StoreError;
    type Plan = ();

    fn check(&self, _view: &View<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn write(self, (): (), changes: &Changes<'_>) -> Result<Swept, StoreError> {
        Ok(Swept {
            staging: staging::expire(changes, self.now, ROWS_MAX)?,
            leases: payloads::end_leases(changes, self.now, ROWS_MAX)?,
            keys: idempotency::expire(changes, self.now, ROWS_MAX)?,
            events: events::trim(changes, self.events_kept, ROWS_MAX)?,
        })
    }
}
