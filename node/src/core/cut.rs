//! What was cut since this node started: a list that met its bound has a cursor, or is noted here, and `status` shows it.
//! `docs/LIMITS.md` says which bound does what.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::{Value, json};

use super::Node;

/// Names that are kept of what was left out.
const NAMES_MAX: usize = 8;

/// A list that can be shorter than what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// Peers that might have had a session and were not asked.
    Providers,
    /// Owners whose announcements are not listened to.
    Topics,
    /// Sessions of which a range was refused, because the control blobs that it needs are more than an answer holds.
    RangeControls,
}

impl Cut {
    fn word(self) -> &'static str {
        match self {
            Cut::Providers => "providers",
            Cut::Topics => "topics",
            Cut::RangeControls => "range-controls",
        }
    }

    fn means(self) -> &'static str {
        match self {
            Cut::Providers => {
                "peers were not asked for a session: named ones come first, of strangers a random choice is asked"
            }
            Cut::Topics => {
                "announcements of owners are not listened to: their news comes when heads are compared"
            }
            Cut::RangeControls => {
                "sessions were refused to a peer: their owner has more grants than one answer holds"
            }
        }
    }
}

/// What is known of one kind.
#[derive(Debug)]
struct Noted {
    times: u64,
    /// How many were left out the last time.
    left_out: usize,
    names: Vec<String>,
    last: Instant,
}

/// The notes.
#[derive(Debug, Default)]
pub(super) struct Cuts(Mutex<BTreeMap<Cut, Noted>>);

impl Node {
    /// Notes that these were left out of a list; nothing, when there are none.
    pub fn note_cut(&self, what: Cut, left_out: impl IntoIterator<Item = String>) {
        let mut left_out = left_out.into_iter();
        let names: Vec<String> = left_out.by_ref().take(NAMES_MAX).collect();
        if names.is_empty() {
            return;
        }
        let mut cuts = self.inner.cuts.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = cuts.get(&what).map_or(0, |noted| noted.times) + 1;
        let left_out = names.len() + left_out.count();
        cuts.insert(what, Noted { times, left_out, names, last: Instant::now() });
    }

    /// What was cut since the start, as `status` shows it.
    #[must_use]
    pub fn cuts(&self) -> Vec<Value> {
        let cuts = self.inner.cuts.0.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |(what, noted): (&Cut, &Noted)| {
            json!({
                "what": what.word(), "message": what.means(), "times": noted.times, "leftOut": noted.left_out,
                "names": noted.names,
                "lastAgeMs": u64::try_from(noted.last.elapsed().as_millis()).unwrap_or(u64::MAX),
            })
        };
        cuts.iter().map(one).collect()
    }
}
