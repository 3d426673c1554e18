//! Rows that say something of their own, made again from what other rows say. `docs/decisions/0024-what-a-repair-may-make-again.md`.
//!
//! A chain is verified again from its genesis, streamed, and what comes of it is the verifier's state after the tip; of a session whose
//! row is lost, the row too. It must never guess: what stood only in that row — a freeze, a retirement, a later epoch that is known
//! without its entries — may have forbidden a signature. So the sign guard says *unknown* in the transaction that makes the row again:
//! nothing is signed in the session until a handoff that is made later (`docs/PROTOCOL.md` §Authority).

use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::verify::{ChainState, Collect, Prechecked, Pushed, Verifier};

use crate::ancestry::OnChain;
use crate::error::StoreError;
use crate::events::{self, Change};
use crate::index::{self, Lane};
use crate::payloads::{PayloadState, size_of};
use crate::read::Reader;
use crate::rows::{EntryRow, SessionRow, SessionState, SideRow, Summary};
use crate::source::{Source, lookup};
use crate::tables;
use crate::writer::{Changes, Step, View};
use crate::{control, guard, sessions};

/// A row that cannot be read, or is missing, and that no peer has. In the order in which they are put right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LostRow {
    /// What this node may do in a session, and what lists show of it: [`Rebuild`].
    Session(SessionId),
    /// The verifier's state after a session's tip: [`Rebuild`].
    State(SessionId),
    /// What this node signed last in a session, held or not: [`NoteUnknownGuard`].
    Guard(SessionId),
    /// Files of evidence against keys of a session, held or not: made by judging it, else [`crate::DropUnreadableEvidence`].
    Evidence(SessionId),
}

impl LostRow {
    /// Of which session.
    #[must_use]
    pub fn session(self) -> SessionId {
        match self {
            LostRow::Session(session)
            | LostRow::State(session)
            | LostRow::Guard(session)
            | LostRow::Evidence(session) => session,
        }
    }
}

/// A main chain that was verified again from its genesis; nothing else makes one.
#[derive(Clone, Debug)]
pub struct ReadAgain {
    number: u64,
    state: ChainState,
    title: Option<String>,
    entry_bytes: u64,
    /// The highest epoch of any entry that is held, on the chain or beside it.
    epoch: Epoch,
}

impl ReadAgain {
    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.state.session()
    }
}

impl Reader {
    /// The owner of a session, also of one whose row cannot be read: every entry names it.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn owner_of(&self, session: SessionId) -> Result<Option<Principal>, StoreError> {
        let Some(number) = index::session_number(&self.txn, session)? else { return Ok(None) };
        if let Ok(row) = index::session_by_number(&self.txn, number) {
            return Ok(Some(row.owner));
        }
        for row in self.txn.table(tables::ENTRIES)?.range((number, 0)..=(number, u64::MAX))? {
            let row = row?.1;
            let Ok(stored) = EntryRow::from_bytes(row.value()) else { continue };
            if let Ok(entry) = Decoded::<Entry>::decode(stored.bytes) {
                return Ok(Some(entry.value().owner()));
            }
        }
        Ok(None)
    }

    /// Verifies the main chain of a session again, from its genesis to its last entry, under the control blobs that are held. Memory
    /// does not grow with the chain. `told` hears the seq of every entry that verified.
    ///
    /// # Errors
    /// Why it does not verify, or does not end where other rows say that it ends; `E_STORE_CORRUPT` when an entry or control blob
    /// that it needs is damaged.
    pub fn read_again(&self, session: SessionId, told: &mut dyn FnMut(Seq)) -> Result<ReadAgain, StoreError> {
        let missing = || StoreError::not_found(format!("session {}", session.short()));
        let number = index::session_number(&self.txn, session)?.ok_or_else(missing)?;
        let mut verifier = self.verifier(session, number)?;
        let (mut keys, mut title, mut entry_bytes) = (VerifyingKeys::default(), None, 0_u64);
        for row in self.txn.table(tables::ENTRIES)?.range((number, 0)..=(number, u64::MAX))? {
            let (key, row) = row?;
            let stored = EntryRow::from_bytes(row.value())?;
            let signed = Signed::<Entry>::check(stored.bytes, &mut keys)?;
            let seq = signed.value().seq();
            let checked = self.with_title(signed)?;
            title = checked.title().map(str::to_owned).or(title);
            let is_next = matches!(verifier.link(checked)?, Pushed::Linked(..)) && seq.get() == key.value().1;
            if !is_next {
                let what = format!("{} does not follow the entry before it", stored.cid.short());
                return Err(StoreError::Index { what });
            }
            entry_bytes = entry_bytes.saturating_add(size_of(stored.bytes));
            told(seq);
        }
        if !verifier.unsettled().is_empty() {
            return Err(StoreError::Index { what: format!("a link of {} leads nowhere", session.short()) });
        }
        let state = verifier.state().cloned().ok_or_else(missing)?;
        self.check_end(&state, number)?;
        let epoch = highest_beside(&self.txn, number)?.max(state.tip().epoch);
        Ok(ReadAgain { number, state, title, entry_bytes, epoch })
    }

    /// A verifier at the genesis. One that lacks a tombstone would come to another state, so all that is listed has to be there.
    fn verifier(&self, session: SessionId, number: u64) -> Result<Verifier<OnChain<'_>>, StoreError> {
        let genesis = |row: &[u8]| {
            let stored = EntryRow::from_bytes(row)?;
            let is_it = stored.cid == session.genesis();
            let owner = Decoded::<Entry>::decode(stored.bytes)?.value().owner();
            Ok::<_, StoreError>(is_it.then_some(owner))
        };
        let owner = lookup(&self.txn, tables::ENTRIES, (number, 0), genesis)?.transpose()?.flatten();
        let owner = owner.ok_or_else(|| StoreError::Index {
            what: format!("the chain of {} does not begin with its genesis", session.short()),
        })?;
        let (mut controls, mut keys) = (Controls::new(), VerifyingKeys::default());
        let held = control::of_owner(&self.txn, owner)?.into_iter();
        for bytes in held.chain(control::refs_of(&self.txn, session)?) {
            controls.insert(&Signed::<Control>::check(bytes, &mut keys)?);
        }
        let ancestry = OnChain::new(self, session);
        Ok(Verifier::begin(controls).collecting(Collect::Nothing).with_ancestry(ancestry))
    }

    /// An entry with its payload, if that may set a title and can be read.
    fn with_title(&self, signed: Signed<Entry>) -> Result<Prechecked, StoreError> {
        let named = signed.value().payload.map(|payload| payload.cid);
        if let (Body::Genesis(_) | Body::Note(_), Some(cid)) = (&signed.value().body, named)
            && let Ok(PayloadState::Present(bytes)) = self.payload(cid)
            && let Ok(titled) = Prechecked::of(signed.clone(), Some(bytes.into()))
        {
            return Ok(titled);
        }
        Ok(Prechecked::of(signed, None)?)
    }

    /// The chain ends where every row that can be read says that it ends: one that lost its last entries is not taken for the whole.
    fn check_end(&self, state: &ChainState, number: u64) -> Result<(), StoreError> {
        let tip = state.tip();
        let ends = |at: Seq| StoreError::Index {
            what: format!("the chain of {} ends at seq {}, not at {at}", state.session().short(), tip.seq),
        };
        if let Ok(row) = index::session_by_number(&self.txn, number) {
            return if row.tip == tip { Ok(()) } else { Err(ends(row.tip.seq)) };
        }
        if let Some(Ok(stored)) = lookup(&self.txn, tables::CHAIN_STATES, number, ChainState::from_bytes)?
            && stored.tip() != tip
        {
            return Err(ends(stored.tip().seq));
        }
        for row in self.txn.table(tables::INDEX)?.iter()? {
            let Ok(Some(place)) = index::find(&self.txn, EntryCid::from_digest(*row?.0.value())) else {
                continue;
            };
            if place.session == number && place.lane == Lane::Main && place.seq > tip.seq {
                return Err(ends(place.seq));
            }
        }
        Ok(())
    }
}

/// The highest epoch of an entry beside the chain; what cannot be read is passed over.
fn highest_beside(source: &impl Source, number: u64) -> Result<Epoch, StoreError> {
    let mut highest = Epoch::ZERO;
    for row in source.table(tables::SIDE)?.range((number, &[0; 32])..=(number, &[0xff; 32]))? {
        let (key, row) = row?;
        let cid = EntryCid::from_digest(*key.value().1);
        let Ok(side) = SideRow::from_bytes(cid, row.value()) else { continue };
        if let Ok(entry) = Decoded::<Entry>::decode(side.bytes) {
            highest = highest.max(entry.value().epoch());
        }
    }
    Ok(highest)
}

/// Makes the rows of a session that were lost again, those that were and no others.
#[derive(Clone, Debug)]
pub struct Rebuild {
    /// The chain, verified again.
    pub chain: ReadAgain,
    /// When. Only a handoff that is made later lets this node sign in a session whose row was lost.
    pub at: UnixMillis,
}

impl Step for Rebuild {
    /// Which rows were made again.
    type Output = Vec<LostRow>;
    type Error = StoreError;
    type Plan = Vec<LostRow>;

    fn check(&self, view: &View<'_>) -> Result<Vec<LostRow>, StoreError> {
        let ReadAgain { number, state, .. } = &self.chain;
        let (session, tip) = (state.session(), state.tip());
        let moved = || StoreError::Moved { what: format!("the chain of {}", session.short()) };
        let cid_at = |seq: Seq| {
            let read = |row: &[u8]| EntryRow::from_bytes(row).map(|entry| entry.cid);
            lookup(view.txn, tables::ENTRIES, (*number, seq.get()), read)?.transpose()
        };
        let ends_here = cid_at(tip.seq)? == Some(tip.cid) && cid_at(tip.seq.next())?.is_none();
        if !ends_here || index::session_number(view.txn, session)? != Some(*number) {
            return Err(moved());
        }
        let mut lost = Vec::new();
        let read = |row: &[u8]| SessionRow::from_bytes(*number, row);
        match lookup(view.txn, tables::SESSIONS, *number, read)? {
            Some(Ok(row)) if row.session == session && row.tip == tip => {}
            Some(Ok(_)) => return Err(moved()),
            Some(Err(_)) | None => lost.push(LostRow::Session(session)),
        }
        let stored = lookup(view.txn, tables::CHAIN_STATES, *number, ChainState::from_bytes)?;
        if !matches!(stored, Some(Ok(stored)) if stored.tip() == tip) {
            lost.push(LostRow::State(session));
        }
        Ok(lost)
    }

    fn write(self, lost: Vec<LostRow>, changes: &Changes<'_>) -> Result<Vec<LostRow>, StoreError> {
        let ReadAgain { number, state, .. } = &self.chain;
        for row in &lost {
            match row {
                LostRow::Session(session) => {
                    sessions::put(changes, &self.row())?;
                    guard::put_unknown(changes, *session, self.chain.epoch)?;
                    events::write(changes, self.at, &Change::State { session: *session })?;
                }
                LostRow::State(_) => {
                    changes.put(tables::CHAIN_STATES, number, state.to_bytes().as_slice())?
                }
                LostRow::Guard(_) | LostRow::Evidence(_) => {}
            }
        }
        Ok(lost)
    }
}

impl Rebuild {
    /// The row that the chain tells. What lists show is judged later: until then the session is `incomplete`, so that an end of the
    /// process between the two leaves a session that is judged at the next start.
    fn row(&self) -> SessionRow {
        let ReadAgain { number, state, title, entry_bytes, .. } = &self.chain;
        let tip = state.tip();
        let (class, title, holder) = (state.class(), title.clone(), state.holder());
        SessionRow {
            session: state.session(),
            owner: state.owner(),
            agent: state.agent().to_string(),
            tip,
            fence: tip.epoch,
            state: SessionState::Active,
            summary: Summary { class, title, holder, ..Summary::default() },
            entry_bytes: *entry_bytes,
            changed: self.at,
            ahead: None,
            number: *number,
        }
    }
}

/// Notes in the place of a sign guard's row that cannot be read that what it said is not known. It never says more: nothing is signed
/// in the session until a handoff whose offer is answered from now on opens an epoch above all that are known.
#[derive(Clone, Copy, Debug)]
pub struct NoteUnknownGuard {
    /// The session, held or not.
    pub session: SessionId,
}

/// Whether something had to be noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It was.
    Now,
    /// The row can be read, or there is none.
    Needless,
}

impl Step for NoteUnknownGuard {
    type Output = Noted;
    type Error = StoreError;
    /// The highest epoch that is known; none when the row can be read.
    type Plan = Option<Epoch>;

    fn check(&self, view: &View<'_>) -> Result<Option<Epoch>, StoreError> {
        if !guard::is_damaged(view.txn, self.session)? {
            return Ok(None);
        }
        let Some(number) = index::session_number(view.txn, self.session)? else {
            return Ok(Some(Epoch::ZERO));
        };
        let fence = index::session_by_number(view.txn, number).map(|row| row.fence).unwrap_or_default();
        Ok(Some(highest_beside(view.txn, number)?.max(fence)))
    }

    fn write(self, epoch: Option<Epoch>, changes: &Changes<'_>) -> Result<Noted, StoreError> {
        let Some(epoch) = epoch else { return Ok(Noted::Needless) };
        guard::put_unknown(changes, self.session, epoch)?;
        Ok(Noted::Now)
    }
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
