//! One range answer, frame by frame. `docs/PROTOCOL.md` §Streams.
//!
//! ```text
//!  Path ──▶ Control ──▶ Items ──▶ Done          any violation: Refused, for good
//! ```
//!
//! The path comes first: entries linked by hash from `want` down to an entry that the asker named. From then on the
//! base, the length and one CID every few hops are fixed, before any bulk. Then come control blobs, then every entry
//! from the base to `want`, each once, oldest first. It decides whether the sender keeps to that, within the limits,
//! and who is to be charged if not. It holds the path and counters only, so memory stays flat however long the chain.
//!
//! It must never pass on an entry that does not follow by hash from the one before. It does not check signatures,
//! skip pointers or authority of the entries it passes on: that is for [`crate::verify`]. Entries since the last
//! checkpoint may still turn out to be of another branch than `want`; whoever adopts them as they come has a verified prefix all
//! the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::block::{Decoded, sha256};
use crate::code::{Code, Reject};
use crate::control::Control;
use crate::entry::Entry;
use crate::id::{EntryCid, Principal, Seq, SessionId};
use crate::limits;
use crate::skip;

use super::Point;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest {
    /// The session.
    pub session: SessionId,
    /// The head to reach. Its seq is what somebody told.
    pub want: Point,
    /// What is held: the tip, its skip, the skip of that, … the genesis. Empty: nothing.
    pub have: Vec<EntryCid>,
    /// Whether payloads come along.
    pub payloads: Payloads,
}

/// Whether payloads come along with their entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payloads {
    /// Each after its entry, where the sender has it.
    With,
    /// None.
    Without,
}

/// Quotas of one answer. What the protocol itself bounds is in [`crate::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLimits {
    /// Entries between base and `want`.
    pub entries_max: u64,
    /// Bytes of path, control blobs, entries and payloads together.
    pub bytes_max: u64,
}

impl Default for RangeLimits {
    fn default() -> Self {
        RangeLimits { entries_max: 1_000_000, bytes_max: 1 << 30 }
    }
}

/// Who is charged for a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Charged {
    /// The peer that sent the answer.
    Sender,
    /// Whoever told the head: the bytes are those of its CID, and not what was told about it.
    Teller,
    /// Nobody: a quota of this node is full, or this program is too old to judge.
    Nobody,
}

/// Why an answer is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reject}")]
pub struct Violation {
    /// The code and what was expected.
    pub reject: Reject,
    /// Who is charged.
    pub charged: Charged,
}

/// What an item says about where it stands: all that [`RangeCheck::place`] judges. Reading it depends on nothing else, so
/// any thread may do that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    cid: EntryCid,
    session: SessionId,
    seq: Seq,
    prev: Option<EntryCid>,
    entry_bytes: usize,
    payload_bytes: Option<usize>,
    names_payload: Named,
}

/// Whether an entry names a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Yes,
    No,
}

impl Place {
    /// The place of a decoded entry, with the payload that came along.
    #[must_use]
    pub fn of(entry: &Decoded<Entry>, payload: Option<&[u8]>) -> Self {
        let (cid, value) = (entry.cid(), entry.value());
        Place {
            cid,
            session: value.session(cid),
            seq: value.seq(),
            prev: value.prev(),
            entry_bytes: entry.bytes().len(),
            payload_bytes: payload.map(<[u8]>::len),
            names_payload: if value.payload.is_some() { Named::Yes } else { Named::No },
        }
    }

    /// Bytes of the entry and its payload.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.entry_bytes + self.payload_bytes.unwrap_or(0)
    }

    /// The entry's seq.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.seq
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Path,
    Control,
    Items,
    Done,
    Refused(Violation),
}

/// One hop of the path, as far as it is needed again.
#[derive(Clone, Copy, Debug)]
struct Hop {
    seq: u64,
    cid: EntryCid,
    prev: Option<EntryCid>,
    /// The skip pointer; `prev` where the entry has none.
    skip: Option<EntryCid>,
    took: Link,
}

/// How a hop was reached from the one above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Want,
    Skip,
    Prev,
}

/// The check of one range answer. Feed it the frames in the order they come.
#[derive(Clone, Debug)]
pub struct RangeCheck {
    request: RangeRequest,
    limits: RangeLimits,
    stage: Stage,
    have: BTreeSet<EntryCid>,
    hops: Vec<Hop>,
    /// CIDs that the path fixed, by seq, from above the base to `want`.
    checkpoints: BTreeMap<u64, EntryCid>,
    base: Option<Point>,
    /// Whose session it is, as the entry that was asked for says.
    owner: Option<Principal>,
    controls: BTreeSet<[u8; 32]>,
    control_bytes: usize,
    bytes: u64,
    /// The last entry that was passed on, or the base.
    last: Option<Point>,
}

impl RangeCheck {
    /// Begins to check the answer to `request`.
    ///
    /// # Errors
    /// `E_TOO_BIG` if the request itself names more than a locator may.
    pub fn new(request: RangeRequest, limits: RangeLimits) -> Result<Self, Reject> {
        if request.have.len() > limits::LOCATOR_MAX {
            let detail = format!("expected at most {} CIDs, got {}", limits::LOCATOR_MAX, request.have.len());
            return Err(Reject::new(Code::TooBig, detail));
        }
        Ok(RangeCheck {
            have: request.have.iter().copied().collect(),
            request,
            limits,
            stage: Stage::Path,
            hops: Vec::new(),
            checkpoints: BTreeMap::new(),
            base: None,
            owner: None,
            controls: BTreeSet::new(),
            control_bytes: 0,
            bytes: 0,
            last: None,
        })
    }

    /// The highest entry of the locator that `want` stands on; none before the path is complete, or if nothing is held.
    #[must_use]
    pub fn base(&self) -> Option<Point> {
        self.base
    }

    /// How many entries are still to come; none before the path is complete.
    #[must_use]
    pub fn remaining(&self) -> Option<u64> {
        let next = self.next_seq();
        let is_fixed = !matches!(self.stage, Stage::Path | Stage::Refused(_));
        is_fixed.then(|| (self.request.want.seq.get() + 1).saturating_sub(next))
    }

    /// Bytes taken so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether everything came.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// Takes a `path` frame.
    ///
    /// # Errors
    /// The violation; the answer is to be dropped, and everything fed later gives the same one.
    pub fn path(&mut self, entries: &[Arc<[u8]>]) -> Result<(), Violation> {
        self.guard(|check| {
            if check.stage != Stage::Path {
                return Err(unsolicited("a path after it was complete"));
            }
            if entries.is_empty() {
                return Err(unsolicited("an empty path frame"));
            }
            entries.iter().try_for_each(|bytes| check.hop(bytes))
        })
    }

    /// Takes a `control` frame. The blobs are for the caller to verify; here they are counted, and have to be the owner's: nobody
    /// else can make a reader keep more than a few.
    ///
    /// # Errors
    /// As [`RangeCheck::path`].
    pub fn control(&mut self, blobs: &[Arc<[u8]>]) -> Result<(), Violation> {
        self.guard(|check| {
            if check.stage != Stage::Control {
                return Err(unsolicited("control blobs out of place"));
            }
            if blobs.is_empty() {
                return Err(unsolicited("an empty control frame"));
            }
            blobs.iter().try_for_each(|bytes| check.control_blob(bytes))
        })
    }

    /// Takes one item of an `entries` frame, by its place. Whether its payload has the size and hash that it names is for
    /// the caller to have checked; what failed there is told with [`RangeCheck::refuse`].
    ///
    /// # Errors
    /// As [`RangeCheck::path`].
    pub fn place(&mut self, place: &Place) -> Result<(), Violation> {
        self.guard(|check| {
            check.expect_item(place.bytes())?;
            check.next_place(place)
        })
    }

    /// The item that comes next, of `bytes` bytes, is none: it was refused for what it is by itself. Gives the violation that
    /// ends the answer.
    pub fn refuse(&mut self, bytes: usize, reject: Reject) -> Violation {
        let refused: Result<(), Violation> = self.guard(|check| {
            check.expect_item(bytes)?;
            Err(by_sender(reject))
        });
        match refused {
            Err(violation) => violation,
            Ok(()) => unsolicited("an item that is none"),
        }
    }

    /// Takes the `end` frame.
    ///
    /// # Errors
    /// As [`RangeCheck::path`]: the answer ended before `want`.
    pub fn end(&mut self) -> Result<(), Violation> {
        self.guard(|check| {
            let is_whole = match check.stage {
                Stage::Control | Stage::Items => check.remaining() == Some(0),
                Stage::Path | Stage::Done | Stage::Refused(_) => false,
            };
            if is_whole {
                check.stage = Stage::Done;
                Ok(())
            } else {
                Err(unsolicited("the answer ended before the head that was asked for, or twice"))
            }
        })
    }

    /// A check that failed fails for good.
    fn guard<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T, Violation>) -> Result<T, Violation> {
        if let Stage::Refused(violation) = &self.stage {
            return Err(violation.clone());
        }
        let result = step(self);
        if let Err(violation) = &result {
            self.stage = Stage::Refused(violation.clone());
        }
        result
    }

    // ---- path --------------------------------------------------------------------------------------------------

    fn hop(&mut self, bytes: &Arc<[u8]>) -> Result<(), Violation> {
        if self.stage != Stage::Path {
            return Err(unsolicited("the path goes on below the base"));
        }
        if self.hops.len() >= limits::LOCATOR_MAX {
            return Err(unsolicited(format!("a path of more than {} entries", limits::LOCATOR_MAX)));
        }
        self.count(bytes.len())?;
        let hop = match self.hops.last() {
            None => self.want_hop(bytes)?,
            Some(above) => self.lower_hop(*above, bytes)?,
        };
        self.hops.push(hop);
        // Only a genesis stands at 0, and each hop was found to be of this session: it is this session's genesis.
        let is_base = if self.have.is_empty() { hop.seq == 0 } else { self.have.contains(&hop.cid) };
        if is_base {
            self.fix(hop)
        } else if hop.seq == 0 {
            Err(unsolicited("the path passes below everything that is held"))
        } else {
            Ok(())
        }
    }

    fn want_hop(&mut self, bytes: &Arc<[u8]>) -> Result<Hop, Violation> {
        let want = self.request.want;
        if EntryCid::of(bytes) != want.cid {
            return Err(unsolicited("the path does not begin with the head that was asked for"));
        }
        // The bytes are those that the CID names, so the sender did as asked, whatever they are.
        let told = |reject| Violation { charged: charged_or(&reject, Charged::Teller), reject };
        let entry = Decoded::<Entry>::decode(Arc::clone(bytes)).map_err(told)?;
        if entry.value().session(entry.cid()) != self.request.session {
            return Err(told(Reject::new(Code::SessionMismatch, "the head is of another session")));
        }
        if entry.value().seq() != want.seq {
            let detail = format!("the head was told to be at {}, it is at {}", want.seq, entry.value().seq());
            return Err(told(Reject::new(Code::Seq, detail)));
        }
        self.owner = Some(entry.value().owner());
        Ok(hop_of(&entry, Link::Want))
    }

    fn lower_hop(&self, above: Hop, bytes: &Arc<[u8]>) -> Result<Hop, Violation> {
        let cid = EntryCid::of(bytes);
        let (took, seq) = if above.skip == Some(cid) {
            (Link::Skip, skip::target(above.seq))
        } else if above.prev == Some(cid) {
            (Link::Prev, above.seq.saturating_sub(1))
        } else {
            return Err(unsolicited(format!("the path breaks below seq {}", above.seq)));
        };
        let entry = Decoded::<Entry>::decode(Arc::clone(bytes)).map_err(by_sender)?;
        self.check_session(&entry)?;
        if entry.value().seq().get() != seq {
            let detail =
                format!("a link of seq {} leads to {}, not to {seq}", above.seq, entry.value().seq());
            return Err(by_sender(Reject::new(Code::Skip, detail)));
        }
        Ok(hop_of(&entry, took))
    }

    /// The path has reached `base`: now its shape can be judged, and the bulk is fixed.
    fn fix(&mut self, base: Hop) -> Result<(), Violation> {
        for pair in self.hops.windows(2) {
            let (above, below) = (pair[0], pair[1]);
            let is_shortcut_left = below.took == Link::Prev && skip::target(above.seq) >= base.seq;
            if is_shortcut_left && above.skip != above.prev {
                return Err(unsolicited(format!("the path leaves the skip of seq {}", above.seq)));
            }
        }
        let count = self.request.want.seq.get() - base.seq;
        if count >= self.limits.entries_max {
            let detail = format!("expected at most {} entries, {count} are missing", self.limits.entries_max);
            return Err(Violation { reject: Reject::new(Code::Budget, detail), charged: Charged::Nobody });
        }
        self.checkpoints = self.hops.iter().map(|hop| (hop.seq, hop.cid)).collect();
        self.hops = Vec::new();
        if !self.have.is_empty() {
            let seq = Seq::new(base.seq).map_err(by_sender)?;
            let base = Point { cid: base.cid, seq };
            (self.base, self.last) = (Some(base), Some(base));
        }
        self.stage = Stage::Control;
        Ok(())
    }

    // ---- control and items -------------------------------------------------------------------------------------

    fn control_blob(&mut self, bytes: &Arc<[u8]>) -> Result<(), Violation> {
        self.count(bytes.len())?;
        self.control_bytes += bytes.len();
        if bytes.len() > limits::CONTROL_BYTES_MAX || self.control_bytes > limits::CONTROL_TOTAL_BYTES_MAX {
            return Err(by_sender(Reject::new(Code::TooBig, "more bytes of control blobs than allowed")));
        }
        if self.controls.len() >= limits::CONTROL_BLOBS_MAX {
            return Err(unsolicited(format!("more than {} control blobs", limits::CONTROL_BLOBS_MAX)));
        }
        let blob = Decoded::<Control>::decode(Arc::clone(bytes)).map_err(by_sender)?;
        if !self.owner.is_some_and(|owner| blob.value().is_of(owner)) {
            return Err(unsolicited("a control blob of another owner"));
        }
        if self.controls.insert(sha256(bytes)) {
            Ok(())
        } else {
            Err(unsolicited("a control blob came twice"))
        }
    }

    /// Whether an item of so many bytes may come now.
    fn expect_item(&mut self, bytes: usize) -> Result<(), Violation> {
        if !matches!(self.stage, Stage::Control | Stage::Items) {
            return Err(unsolicited("an entry before the path was complete, or after the last one"));
        }
        self.stage = Stage::Items;
        if self.next_seq() > self.request.want.seq.get() {
            return Err(unsolicited("an entry beyond the head that was asked for"));
        }
        self.count(bytes)
    }

    fn next_place(&mut self, place: &Place) -> Result<(), Violation> {
        let (expected, cid) = (self.next_seq(), place.cid);
        if place.session != self.request.session {
            return Err(by_sender(Reject::new(Code::SessionMismatch, "an entry of another session")));
        }
        if place.seq.get() != expected {
            return Err(unsolicited(format!("expected the entry at {expected}, got {}", place.seq)));
        }
        if place.prev != self.last.map(|last| last.cid) {
            return Err(unsolicited(format!("the entry at {expected} is of another branch")));
        }
        if self.have.contains(&cid) {
            return Err(unsolicited(format!("the entry at {expected} is held, as the request said")));
        }
        if self.checkpoints.get(&expected).is_some_and(|fixed| *fixed != cid) {
            return Err(unsolicited(format!("the entry at {expected} is not the one on the path")));
        }
        let is_asked = self.request.payloads == Payloads::With && place.names_payload == Named::Yes;
        if place.payload_bytes.is_some() && !is_asked {
            return Err(unsolicited("a payload that was not asked for"));
        }
        self.last = Some(Point { cid, seq: place.seq });
        Ok(())
    }

    fn check_session(&self, entry: &Decoded<Entry>) -> Result<(), Violation> {
        if entry.value().session(entry.cid()) == self.request.session {
            Ok(())
        } else {
            Err(by_sender(Reject::new(Code::SessionMismatch, "an entry of another session")))
        }
    }

    /// The seq of the next item.
    fn next_seq(&self) -> u64 {
        self.last.map_or(0, |last| last.seq.get() + 1)
    }

    fn count(&mut self, bytes: usize) -> Result<(), Violation> {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes <= self.limits.bytes_max {
            return Ok(());
        }
        let detail = format!("expected at most {} bytes", self.limits.bytes_max);
        Err(Violation { reject: Reject::new(Code::Budget, detail), charged: Charged::Nobody })
    }
}

/// The seqs of the path from `want` down to `base`, both included: what an honest server sends.
///
/// Each step takes the skip pointer unless that passes the base, else `prev`. At most
/// [`limits::LOCATOR_MAX`] up to millions of entries.
pub fn path_seqs(want: Seq, base: Seq) -> impl Iterator<Item = Seq> {
    let step = move |seq: &Seq| {
        let below = seq.get().checked_sub(1).filter(|_| *seq > base)?;
        let skipped = skip::target(seq.get());
        Seq::new(if skipped >= base.get() { skipped } else { below }).ok()
    };
    std::iter::successors(Some(want), step)
}

fn hop_of(entry: &Decoded<Entry>, took: Link) -> Hop {
    let value = entry.value();
    let prev = value.prev();
    let skip = value.place.and_then(|place| place.skip).or(prev);
    Hop { seq: value.seq().get(), cid: entry.cid(), prev, skip, took }
}

fn unsolicited(detail: impl Into<String>) -> Violation {
    by_sender(Reject::new(Code::SyncUnsolicited, detail))
}

fn by_sender(reject: Reject) -> Violation {
    Violation { charged: charged_or(&reject, Charged::Sender), reject }
}

/// A version that this program does not know is nobody's fault.
fn charged_or(reject: &Reject, charged: Charged) -> Charged {
    if reject.code == Code::Version { Charged::Nobody } else { charged }
}

#[cfg(test)]
#[path = "range_tests.rs"]
mod tests;
