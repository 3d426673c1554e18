//! Adoption: a verified segment becomes part of the main chain, with everything that belongs to it, in one transaction.
//!
//! The segment was verified before; here only what can have changed since is checked again, in the transaction that
//! writes: the base is still the tip, no later epoch is known, the session is not frozen or handed over, the sign guard allows
//! what was signed here, and the idempotency key is unused. A refusal leaves nothing.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::clock;
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Class, Entry, Note};
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};
use throughline_protocol::verify::{Base, ChainState, VerifiedEntry, VerifiedSegment};

use crate::brought::Naming;
use crate::control::OwnerDigest;
use crate::error::{AdoptError, StoreError};
use crate::events::{self, Change};
use crate::files::{Files, INLINE_BYTES_MAX, InFlight};
use crate::guard::{self, GuardUse};
use crate::health::Urgency;
use crate::idempotency::{self, Idempotency, Used};
use crate::index::{self, Lane, Place};
use crate::payloads::{self, size_of};
use crate::rows::{Ahead, EntryRow, Pin, SessionRow, SessionState, SideRow, SideStatus, Summary};
use crate::tables::{self, meta};
use crate::writer::{Changes, Step, View};
use crate::{control, pins, sessions, side, staging};

/// What goes with a segment, in the same transaction.
#[derive(Clone, Debug)]
pub struct AdoptOptions {
    /// When; the events say so.
    pub at: UnixMillis,
    /// What it means for the sign guard.
    pub guard: GuardUse,
    /// The key of the request that it answers.
    pub idempotency: Option<Idempotency>,
    /// Control blobs that came with it.
    pub controls: Vec<Signed<Control>>,
    /// The owner and what was known of its capabilities and tombstones when the segment was judged: other ones now are
    /// [`AdoptError::ControlsMoved`]. None for a session that is held: whoever judges for a tombstone finds it.
    pub judged_under: Option<(Principal, OwnerDigest)>,
    /// Config blocks and files that it names: seq of the entry and digest of the block.
    pub links: Vec<(Seq, [u8; 32])>,
    /// What that naming does.
    pub naming: Naming,
    /// What lists show after it; none leaves what stood there.
    pub summary: Option<Summary>,
    /// The session's state after it; none leaves it.
    pub state: Option<SessionState>,
    /// A pin to set.
    pub pin: Option<Pin>,
    /// What becomes of the session's staging area.
    pub staging: StagingUse,
}

/// What becomes of what the session has staged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StagingUse {
    /// It stays.
    #[default]
    Keep,
    /// It goes: all of it is adopted now.
    Clear,
}

impl AdoptOptions {
    /// Nothing but the segment.
    #[must_use]
    pub fn at(at: UnixMillis) -> Self {
        AdoptOptions {
            at,
            guard: GuardUse::Untouched,
            idempotency: None,
            controls: Vec::new(),
            judged_under: None,
            links: Vec::new(),
            naming: Naming::Nothing,
            summary: None,
            state: None,
            pin: None,
            staging: StagingUse::Keep,
        }
    }
}

/// Adopts a segment.
#[derive(Debug)]
pub struct Adopt {
    /// The segment.
    pub segment: VerifiedSegment,
    /// What goes with it.
    pub options: AdoptOptions,
}

/// A segment was adopted, or had been under the same idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Adopted {
    /// It is on the main chain, durably.
    Now {
        /// The tip.
        tip: Mark,
        /// Id of the last event of this adoption.
        event: u64,
    },
    /// The same request was adopted before; nothing changed.
    Replayed {
        /// The answer that was kept.
        result: Vec<u8>,
    },
}

/// What was found when the adoption was checked.
#[doc(hidden)]
#[derive(Debug)]
pub enum AdoptPlan {
    Replay(Vec<u8>),
    Extend(Box<SessionRow>),
    Create,
}

impl Step for Adopt {
    type Output = Adopted;
    type Error = AdoptError;
    type Plan = AdoptPlan;

    fn prepare(&mut self, files: &Arc<Files>) -> Result<Vec<InFlight>, AdoptError> {
        // Here, not on the writer's thread: callers have more of them.
        let _ = self.segment.after_bytes();
        Ok(put_large_payloads(files, self.segment.entries())?)
    }

    fn check(&self, view: &View<'_>) -> Result<AdoptPlan, AdoptError> {
        if let Some(result) = kept_answer(view, &self.options)? {
            return Ok(AdoptPlan::Replay(result));
        }
        self.options.controls.iter().try_for_each(control::check)?;
        let held = index::session(view.txn, self.segment.session())?;
        check_base(&self.segment, held.as_ref())?;
        if let Some((owner, known)) = self.options.judged_under
            && control::owner_digest(view.txn, owner)? != known
        {
            return Err(AdoptError::ControlsMoved);
        }
        if let Some(row) = &held {
            check_fence(&self.segment, row, self.options.guard)?;
        }
        guard::check_segment(view.txn, held.as_ref(), &self.segment, self.options.guard)?
            .map_err(AdoptError::SignGuard)?;
        check_not_main(view, self.segment.entries())?;
        Ok(held.map_or(AdoptPlan::Create, |row| AdoptPlan::Extend(Box::new(row))))
    }

    fn write(self, plan: AdoptPlan, changes: &Changes<'_>) -> Result<Adopted, StoreError> {
        let mut row = match plan {
            AdoptPlan::Replay(result) => return Ok(Adopted::Replayed { result }),
            AdoptPlan::Extend(row) => *row,
            AdoptPlan::Create => create(changes, &self.segment, self.options.at)?,
        };
        append(changes, &mut row, self.segment.entries(), self.segment.after_bytes(), self.options.at)?;
        let tip = row.tip;
        guard::put(changes, &self.segment, self.options.guard)?;
        finish(changes, row, self.options)?;
        Ok(Adopted::Now { tip, event: events::newest(changes.txn)? })
    }
}

/// The answer that was kept for the same request, if it was adopted before.
fn kept_answer(view: &View<'_>, options: &AdoptOptions) -> Result<Option<Vec<u8>>, AdoptError> {
    let Some(wanted) = &options.idempotency else { return Ok(None) };
    match idempotency::look(view.txn, &wanted.scope, &wanted.key, &wanted.request)? {
        Used::Never => Ok(None),
        Used::Same(result) => Ok(Some(result)),
        Used::Other => Err(AdoptError::Idempotency),
    }
}

/// The base must be the tip; a first segment must not meet a session that is held.
fn check_base(segment: &VerifiedSegment, held: Option<&SessionRow>) -> Result<(), AdoptError> {
    let tip = held.map(|row| row.tip);
    let fits = match segment.base() {
        Base::Nothing => tip.is_none() && !segment.entries().is_empty(),
        Base::On(base) => tip.is_some_and(|tip| tip.cid == base.cid && tip.seq == base.seq),
    };
    if fits { Ok(()) } else { Err(AdoptError::HeadMoved { tip }) }
}

/// The fence, the freeze and the retirement, as they are now.
fn check_fence(segment: &VerifiedSegment, row: &SessionRow, usage: GuardUse) -> Result<(), AdoptError> {
    let (Some(first), Some(last)) = (segment.entries().first(), segment.entries().last()) else {
        return Ok(());
    };
    let (first, last) = (first.signed().value().epoch(), last.signed().value().epoch());
    let signed_here = matches!(usage, GuardUse::Signed(_));
    match row.state {
        SessionState::Frozen { epoch, .. } if first <= epoch => return Err(AdoptError::Frozen { epoch }),
        SessionState::Retired { epoch } if signed_here && first <= epoch => {
            return Err(AdoptError::Retired { epoch });
        }
        SessionState::Active | SessionState::Frozen { .. } | SessionState::Retired { .. } => {}
    }
    let held = row.fence;
    // What was fetched of an earlier epoch is history on the way to the opening that is known.
    if signed_here && last < held { Err(AdoptError::Fenced { held, offered: last }) } else { Ok(()) }
}

/// No entry may stand on a main chain already: the base was the tip, so only a damaged index says otherwise.
fn check_not_main(view: &View<'_>, entries: &[VerifiedEntry]) -> Result<(), StoreError> {
    for entry in entries {
        let cid = entry.signed().cid();
        if index::find(view.txn, cid)?.is_some_and(|place| place.lane == Lane::Main) {
            let what = format!("{} is indexed on a main chain that ends before it", cid.short());
            return Err(StoreError::Index { what });
        }
    }
    Ok(())
}

/// Digest and bytes of a payload that becomes a file. What made the entry checked that they hash to what it names.
pub(crate) fn large_payload<'e>(
    entry: &'e Signed<Entry>,
    bytes: Option<&'e Arc<[u8]>>,
) -> Option<(&'e [u8; 32], &'e [u8])> {
    let (named, bytes) = (entry.value().payload.as_ref()?, bytes?);
    (bytes.len() > INLINE_BYTES_MAX).then_some((named.cid.digest(), &bytes[..]))
}

fn put_large_payloads(files: &Arc<Files>, entries: &[VerifiedEntry]) -> Result<Vec<InFlight>, StoreError> {
    let named = entries.iter().filter_map(|entry| large_payload(entry.signed(), entry.payload()));
    files.put_all(named)
}

/// Gives a new session its number and row. Its tip is set by [`append`].
fn create(
    changes: &Changes<'_>,
    segment: &VerifiedSegment,
    at: UnixMillis,
) -> Result<SessionRow, StoreError> {
    let session = segment.session();
    let number = changes.next_number(meta::NEXT_SESSION)?;
    changes.put(tables::SESSION_IDS, session.genesis().digest(), number)?;
    let genesis = segment.entries().first().map(|entry| entry.signed().value());
    let class = match genesis.map(|entry| &entry.body) {
        Some(Body::Genesis(genesis)) => genesis.class,
        Some(_) | None => Class::Internal,
    };
    Ok(SessionRow {
        session,
        owner: segment.after().owner(),
        agent: segment.after().agent().to_string(),
        tip: Mark { cid: session.genesis(), seq: Seq::ZERO, epoch: Epoch::ZERO },
        fence: Epoch::ZERO,
        state: SessionState::Active,
        summary: Summary { class, holder: segment.after().holder(), ..Summary::default() },
        entry_bytes: 0,
        changed: at,
        ahead: None,
        number,
    })
}

/// Writes entries after the tip of `row`, and the verifier's state after them.
fn append(
    changes: &Changes<'_>,
    row: &mut SessionRow,
    entries: &[VerifiedEntry],
    after: &[u8],
    at: UnixMillis,
) -> Result<(), StoreError> {
    changes.put(tables::CHAIN_STATES, row.number, after)?;
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(()) };
    row.ahead = ahead(changes, row, entries, at)?;
    let mut added_bytes = 0;
    for entry in entries {
        added_bytes += put_entry(changes, (row.number, row.session), entry)?;
    }
    let (first, last) = (first.signed(), last.signed());
    row.tip = Mark { cid: last.cid(), seq: last.value().seq(), epoch: last.value().epoch() };
    row.fence = row.fence.max(row.tip.epoch);
    row.entry_bytes += added_bytes;
    row.changed = at;
    changes.count(meta::ENTRY_BYTES, added_bytes, 0)?;
    let change = Change::Entries {
        session: row.session,
        first: first.value().seq(),
        last: row.tip.seq,
        head: row.tip.cid,
        epoch: row.tip.epoch,
    };
    events::write(changes, at, &change)?;
    for entry in entries.iter().map(VerifiedEntry::signed) {
        let Entry { body, authority: Some(_), signer, .. } = entry.value() else { continue };
        if let Body::Note(Note::Class(_) | Note::Delete) = body {
            let change = Change::ByDelegate { session: row.session, by: *signer, entry: Some(entry.cid()) };
            events::write(changes, at, &change)?;
        }
    }
    Ok(())
}

/// Which entry was signed by a clock that is ahead, after these came: the newest of them, else the one before, while the chain's
/// time is still ahead. Those that only repeat the time of the one before are not to blame.
fn ahead(
    changes: &Changes<'_>,
    row: &SessionRow,
    entries: &[VerifiedEntry],
    at: UnixMillis,
) -> Result<Option<Ahead>, StoreError> {
    let ts_of = |entry: &VerifiedEntry| entry.signed().value().ts;
    let Some(last) = entries.last().map(ts_of) else { return Ok(row.ahead) };
    // Times never fall along a chain: what is not ahead of the clock at its end is not before.
    if clock::ahead_ms(last, UnixMillis::default(), at).is_none() {
        return Ok(None);
    }
    let before = match entries.first().and_then(|entry| entry.signed().value().prev()) {
        Some(prev) => index::entry_bytes(changes.txn, prev)?,
        None => None,
    };
    let before = before.map(|bytes| Decoded::<Entry>::decode(bytes).map(|entry| entry.value().ts));
    let mut prev = before.transpose().map_err(StoreError::Refused)?.unwrap_or_default();
    let mut newest = row.ahead;
    for entry in entries {
        let (ts, seq) = (ts_of(entry), entry.signed().value().seq());
        newest = clock::ahead_ms(ts, prev, at).map(|by_ms| Ahead { seq, ts, by_ms }).or(newest);
        prev = ts;
    }
    Ok(newest)
}

/// Writes one entry and its payload; returns the entry's bytes.
fn put_entry(
    changes: &Changes<'_>,
    (session, id): (u64, SessionId),
    entry: &VerifiedEntry,
) -> Result<u64, StoreError> {
    let signed = entry.signed();
    let (cid, seq) = (signed.cid(), signed.value().seq());
    let payload = signed.value().payload.map(|payload| payload.cid);
    let row = EntryRow { cid, payload, bytes: signed.bytes() };
    changes.put(tables::ENTRIES, (session, seq.get()), row.to_bytes().as_slice())?;
    // The row is not read: what it holds is this entry, and one that is damaged goes as well.
    if changes.remove(tables::SIDE, (session, cid.digest()))? {
        changes.count(meta::SIDE_BYTES, 0, size_of(signed.bytes()))?;
    }
    let place = Place { session, seq, lane: Lane::Main };
    changes.put(tables::INDEX, cid.digest(), place.to_row())?;
    if let Some(payload) = payload {
        let digest = payload.digest();
        match entry.payload() {
            Some(bytes) if !payloads::is_refused(changes.txn, digest)? => {
                let inline = (bytes.len() <= INLINE_BYTES_MAX).then_some(&bytes[..]);
                payloads::put(changes, digest, size_of(bytes), inline, 0, Some((session, seq.get())))?;
            }
            Some(_) | None => {
                payloads::link_payload(changes, digest, (session, id), seq, Naming::Nothing)?;
            }
        }
    }
    Ok(size_of(signed.bytes()))
}

/// Writes the rest of what goes with a segment, and the session's row.
fn finish(changes: &Changes<'_>, mut row: SessionRow, options: AdoptOptions) -> Result<(), StoreError> {
    let at = options.at;
    control::put_all(changes, &options.controls, at)?;
    for (seq, digest) in &options.links {
        payloads::link(changes, digest, (row.number, row.session), *seq, options.naming)?;
    }
    if let Some(idempotency) = &options.idempotency {
        idempotency::put(changes, idempotency)?;
    }
    if let Some(pin) = options.pin {
        pins::put(changes, row.session, pin)?;
    }
    if options.staging == StagingUse::Clear {
        staging::clear(changes, row.session.genesis().digest())?;
    }
    if let Some(state) = options.state
        && state != row.state
    {
        row.state = state;
        events::write(changes, at, &Change::State { session: row.session })?;
    }
    if let Some(summary) = options.summary {
        sessions::set_summary(changes, &mut row, summary, at)?;
    }
    sessions::put(changes, &row)
}

/// Moves the entries above `keep_through` beside the main chain and goes on from there: what selection asks for after a
/// handoff of a higher epoch, a tombstone or an equivocation.
#[derive(Debug)]
pub struct ReplaceTail {
    /// The session.
    pub session: SessionId,
    /// The tip that the decision was made on; another one is [`AdoptError::HeadMoved`].
    pub expected_tip: EntryCid,
    /// The last entry of the main chain that stays.
    pub keep_through: Mark,
    /// What follows it.
    pub tail: NewTail,
    /// Why each entry goes; those that are not named go as `fallback`.
    pub statuses: BTreeMap<EntryCid, SideStatus>,
    /// Why the others go.
    pub fallback: SideStatus,
    /// What goes with it, in the same transaction.
    pub options: AdoptOptions,
}

/// What follows the entry that stays.
#[derive(Debug)]
pub enum NewTail {
    /// A segment whose base it is.
    Segment(Box<VerifiedSegment>),
    /// Nothing: the verifier's state at the entry that stays.
    Cut(Box<ChainState>),
}

impl NewTail {
    fn entries(&self) -> &[VerifiedEntry] {
        match self {
            NewTail::Segment(segment) => segment.entries(),
            NewTail::Cut(_) => &[],
        }
    }

    fn after(&self) -> &ChainState {
        match self {
            NewTail::Segment(segment) => segment.after(),
            NewTail::Cut(state) => state,
        }
    }

    fn after_bytes(&self) -> Cow<'_, [u8]> {
        match self {
            NewTail::Segment(segment) => segment.after_bytes().into(),
            NewTail::Cut(state) => state.to_bytes().into(),
        }
    }

    fn session(&self) -> SessionId {
        self.after().session()
    }
}

/// What was found when the replacement was checked.
#[doc(hidden)]
#[derive(Debug)]
pub struct TailPlan(Tail);

/// A kept answer, or the session and the entries that leave its main chain.
#[derive(Debug)]
enum Tail {
    Replay(Vec<u8>),
    Replace(Box<SessionRow>, Vec<(EntryCid, SideRow)>),
}

impl ReplaceTail {
    fn leaving(&self, view: &View<'_>, row: &SessionRow) -> Result<Vec<(EntryCid, SideRow)>, StoreError> {
        use crate::source::Source as _;
        let table = view.txn.table(tables::ENTRIES)?;
        let first = self.keep_through.seq.next().get();
        let mut leaving = Vec::new();
        for stored in table.range((row.number, first)..=(row.number, row.tip.seq.get()))? {
            let (key, stored) = stored?;
            let entry = EntryRow::from_bytes(stored.value())?;
            let status = self.statuses.get(&entry.cid).copied().unwrap_or(self.fallback);
            let seq = Seq::new(key.value().1).map_err(StoreError::Refused)?;
            let (payload, bytes) = (entry.payload, entry.bytes.to_vec());
            leaving.push((entry.cid, SideRow { status, seq, since: self.options.at, payload, bytes }));
        }
        Ok(leaving)
    }

    fn check_marks(&self, view: &View<'_>, row: &SessionRow) -> Result<(), AdoptError> {
        let moved = || AdoptError::HeadMoved { tip: Some(row.tip) };
        let keep = self.keep_through;
        let place = index::find(view.txn, keep.cid)?;
        let is_held = place.is_some_and(|place| {
            place.session == row.number && place.lane == Lane::Main && place.seq == keep.seq
        });
        let is_base = match &self.tail {
            NewTail::Segment(segment) => {
                matches!(segment.base(), Base::On(base) if base.cid == keep.cid)
                    && !segment.entries().is_empty()
            }
            NewTail::Cut(state) => state.tip().cid == keep.cid,
        };
        if row.tip.cid == self.expected_tip && is_held && is_base && self.tail.session() == self.session {
            Ok(())
        } else {
            Err(moved())
        }
    }
}

impl Step for ReplaceTail {
    type Output = Adopted;
    type Error = AdoptError;
    type Plan = TailPlan;

    fn prepare(&mut self, files: &Arc<Files>) -> Result<Vec<InFlight>, AdoptError> {
        Ok(put_large_payloads(files, self.tail.entries())?)
    }

    fn urgency(&self) -> Urgency {
        match self.tail {
            NewTail::Segment(_) => Urgency::Ordinary,
            NewTail::Cut(_) => Urgency::Urgent,
        }
    }

    fn check(&self, view: &View<'_>) -> Result<TailPlan, AdoptError> {
        if let Some(result) = kept_answer(view, &self.options)? {
            return Ok(TailPlan(Tail::Replay(result)));
        }
        self.options.controls.iter().try_for_each(control::check)?;
        let row = index::need_session(view.txn, self.session)?;
        self.check_marks(view, &row)?;
        if let NewTail::Segment(segment) = &self.tail {
            guard::check_segment(view.txn, Some(&row), segment, self.options.guard)?
                .map_err(AdoptError::SignGuard)?;
        }
        let leaving = self.leaving(view, &row)?;
        Ok(TailPlan(Tail::Replace(Box::new(row), leaving)))
    }

    fn write(self, plan: TailPlan, changes: &Changes<'_>) -> Result<Adopted, StoreError> {
        let (mut row, leaving) = match plan.0 {
            Tail::Replay(result) => return Ok(Adopted::Replayed { result }),
            Tail::Replace(row, leaving) => (*row, leaving),
        };
        let mut gone_bytes = 0;
        for (cid, side_row) in &leaving {
            changes.remove(tables::ENTRIES, (row.number, side_row.seq.get()))?;
            side::put(changes, row.number, *cid, side_row)?;
            gone_bytes += size_of(&side_row.bytes);
        }
        changes.count(meta::ENTRY_BYTES, 0, gone_bytes)?;
        row.entry_bytes = row.entry_bytes.saturating_sub(gone_bytes);
        row.tip = self.keep_through;
        row.ahead = row.ahead.filter(|ahead| ahead.seq <= self.keep_through.seq);
        let entries = size_of_list(&leaving);
        let cut = Change::Cut { session: self.session, keep_through: self.keep_through.seq, entries };
        events::write(changes, self.options.at, &cut)?;
        append(changes, &mut row, self.tail.entries(), &self.tail.after_bytes(), self.options.at)?;
        if let NewTail::Segment(segment) = &self.tail {
            guard::put(changes, segment, self.options.guard)?;
        }
        let tip = row.tip;
        finish(changes, row, self.options)?;
        Ok(Adopted::Now { tip, event: events::newest(changes.txn)? })
    }
}

fn size_of_list<T>(list: &[T]) -> u64 {
    u64::try_from(list.len()).unwrap_or(u64::MAX)
}
