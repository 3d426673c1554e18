//! The sign guard: one durable row a session with the last entry that this node signed as holder. `docs/PROTOCOL.md` §Authority.
//!
//! It decides whether another signature as holder may be made. The row is written in the transaction that adopts the
//! entry, before the entry leaves; after a crash the stored bytes are sent again. It must never be possible to sign two
//! entries at one place: a data directory that was restored or cloned has no rows (a backup leaves the table out, and
//! [`crate::open`] empties it when it sees a copy), and without a row nothing is signed in an existing session until a handoff opens a
//! new epoch. A row that is damaged, or that stands beside a session row that was, is never made up: it says *unknown* from then on.
//!
//! In a directory that was reset, and under an unknown row, not every handoff will do: this key may have signed after it in another
//! life, or may do so now in the directory that this one is a copy of. One counts whose offer was answered here ([`NoteOffer`]), for
//! that epoch on that head. No time is asked, and an epoch that merely came by sync frees nothing.

use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Epoch, Principal, SessionId};
use throughline_protocol::verify::{Base, VerifiedSegment};

use crate::error::{GuardError, StoreError};
use crate::index;
use crate::rows::{GuardMark, GuardRow, LastSigned, Offered, SessionRow, SignedMark, check_hash};
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::writer::{Changes, Step, View};

/// What an adoption means for the sign guard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuardUse {
    /// Nothing here was signed by this node as holder: fetched entries.
    #[default]
    Untouched,
    /// All entries of the segment were signed by this node's key as holder: each is checked, and the last becomes the row.
    Signed(Principal),
    /// The segment's last entry makes this node the holder: a handoff, or a genesis that another key signed. It becomes the
    /// row, so that this node may sign after it.
    Activated,
}

/// The row of a session, held or forgotten. An error is one of the database; a row that cannot be read is one inside.
fn mark(
    source: &impl Source,
    session: SessionId,
) -> Result<Result<Option<GuardMark>, StoreError>, StoreError> {
    let row = lookup(source, tables::GUARD, session.genesis().digest(), GuardMark::from_bytes)?;
    Ok(row.transpose())
}

/// What was signed last, held or forgotten, with the bytes; none when nothing was, or when it is not known.
pub(crate) fn row(source: &impl Source, session: SessionId) -> Result<Option<GuardRow>, StoreError> {
    let Some(LastSigned::Known(SignedMark { epoch, seq, cid, bytes })) =
        mark(source, session)??.and_then(|mark| mark.signed)
    else {
        return Ok(None);
    };
    let bytes = match bytes {
        Some(bytes) => bytes,
        // The entry is where it was adopted, or beside the chain; it only goes with its session.
        None => index::entry_bytes(source, cid)?.ok_or_else(|| StoreError::Index {
            what: format!("the signed entry {} of a guard row is not held", cid.short()),
        })?,
    };
    check_hash(cid, &bytes, "the signed entry of a guard row")?;
    Ok(Some(GuardRow { epoch, seq, cid, bytes }))
}

/// Puts the signed bytes into the row itself, before the entry goes with its session. A row that cannot be read stays as it is:
/// while it is there nothing is signed in the session.
pub(crate) fn keep_bytes(changes: &Changes<'_>, session: SessionId) -> Result<(), StoreError> {
    let GuardRow { epoch, seq, cid, bytes } = match row(changes.txn, session) {
        Ok(Some(row)) => row,
        Ok(None) | Err(StoreError::Corrupt { .. } | StoreError::Index { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let signed = LastSigned::Known(SignedMark { epoch, seq, cid, bytes: Some(bytes) });
    put_mark(changes, session, &GuardMark { signed: Some(signed), offered: None })
}

/// Notes that what was signed in a session is not known: nothing is signed there until a handoff opens an epoch above `epoch` and
/// above whatever the row says, of which the offer is answered from now on.
pub(crate) fn put_unknown(changes: &Changes<'_>, session: SessionId, epoch: Epoch) -> Result<(), StoreError> {
    let told = mark(changes.txn, session)?.ok().flatten().and_then(|mark| mark.epoch());
    let signed = LastSigned::Unknown { epoch: told.map_or(epoch, |told| told.max(epoch)) };
    put_mark(changes, session, &GuardMark { signed: Some(signed), offered: None })
}

fn put_mark(changes: &Changes<'_>, session: SessionId, mark: &GuardMark) -> Result<(), StoreError> {
    changes.put(tables::GUARD, session.genesis().digest(), mark.to_bytes().as_slice())
}

/// Whether the row of a session is there and cannot be read.
pub(crate) fn is_damaged(source: &impl Source, session: SessionId) -> Result<bool, StoreError> {
    Ok(mark(source, session)?.is_err())
}

/// Writes the row that an adopted segment leaves, if it leaves one.
pub(crate) fn put(
    changes: &Changes<'_>,
    segment: &VerifiedSegment,
    usage: GuardUse,
) -> Result<(), StoreError> {
    let Some(mark) = mark_of(segment, usage) else { return Ok(()) };
    put_mark(changes, segment.session(), &mark)
}

/// Whether the next signature as holder, of `epoch` on `prev`, may be made in a session that is held.
pub(crate) fn check(
    source: &impl Source,
    session: &SessionRow,
    epoch: Epoch,
    prev: Mark,
) -> Result<Result<(), GuardError>, StoreError> {
    let row = match signed(source, session.session)? {
        Ok(Some(LastSigned::Known(row))) => row,
        Ok(Some(LastSigned::Unknown { epoch })) => return Ok(Err(GuardError::Unknown { epoch })),
        Ok(None) => return Ok(Err(GuardError::NoRow)),
        Err(damaged) => return Ok(Err(damaged)),
    };
    if epoch < row.epoch {
        return Ok(Err(GuardError::EpochBehind { signed: row.epoch, offered: epoch }));
    }
    // Taking over in an epoch writes its row; one that merely came here is none that this directory took over in.
    if epoch > row.epoch {
        return Ok(Err(GuardError::NotTakenOver { signed: row.epoch, epoch }));
    }
    if index::is_ancestor(source, session.number, row.cid, prev.seq)? {
        Ok(Ok(()))
    } else {
        Ok(Err(GuardError::NotDescendant { seq: row.seq, epoch: row.epoch }))
    }
}

/// What was signed; the error inside is that of a row that cannot be read.
fn signed(
    source: &impl Source,
    session: SessionId,
) -> Result<Result<Option<LastSigned>, GuardError>, StoreError> {
    let mark = mark(source, session)?;
    Ok(mark.map(|mark| mark.and_then(|mark| mark.signed)).map_err(|_| GuardError::Damaged))
}

/// Checks a segment against the guard, as its use says.
pub(crate) fn check_segment(
    source: &impl Source,
    session: Option<&SessionRow>,
    segment: &VerifiedSegment,
    usage: GuardUse,
) -> Result<Result<(), GuardError>, StoreError> {
    match usage {
        GuardUse::Untouched => Ok(Ok(())),
        GuardUse::Signed(key) => check_signed(source, session, segment, key),
        GuardUse::Activated => check_activated(source, segment),
    }
}

fn check_signed(
    source: &impl Source,
    session: Option<&SessionRow>,
    segment: &VerifiedSegment,
    key: Principal,
) -> Result<Result<(), GuardError>, StoreError> {
    let entries = segment.entries();
    let Some(first) = entries.first() else { return Ok(Err(GuardError::NotOurs)) };
    if entries.iter().any(|entry| entry.signed().value().signer != key) {
        return Ok(Err(GuardError::NotOurs));
    }
    if let (Some(session), Base::On(prev)) = (session, segment.base()) {
        return check(source, session, first.signed().value().epoch(), prev);
    }
    // A session that this node creates: the genesis has a fresh nonce, so no other history of it can exist. With a row it
    // is one that was forgotten.
    Ok(match signed(source, segment.session())? {
        Ok(None) => Ok(()),
        Ok(Some(LastSigned::Known(row))) => Err(GuardError::NotDescendant { seq: row.seq, epoch: row.epoch }),
        Ok(Some(LastSigned::Unknown { epoch })) => Err(GuardError::Unknown { epoch }),
        Err(damaged) => Err(damaged),
    })
}

/// Taking over: by a handoff of an epoch above whatever was signed here; by a genesis only while the guard is trusted,
/// since a restored directory may have signed in that session before.
fn check_activated(
    source: &impl Source,
    segment: &VerifiedSegment,
) -> Result<Result<(), GuardError>, StoreError> {
    let Some(last) = segment.entries().last() else { return Ok(Err(GuardError::NotOurs)) };
    let entry = last.signed().value();
    let Ok(mark) = mark(source, segment.session())? else { return Ok(Err(GuardError::Damaged)) };
    let mark = mark.unwrap_or_default();
    if let Some(signed) = mark.epoch().filter(|signed| *signed >= entry.epoch()) {
        return Ok(Err(GuardError::EpochBehind { signed, offered: entry.epoch() }));
    }
    let missed = match mark.signed {
        Some(LastSigned::Unknown { epoch }) => Some(GuardError::Unknown { epoch }),
        Some(LastSigned::Known(_)) | None if is_trusted(source)? => None,
        Some(LastSigned::Known(_)) | None => Some(GuardError::NoRow),
    };
    let Some(place) = &entry.place else { return Ok(missed.map_or(Ok(()), Err)) };
    if !entry.body.may_open() || entry.signer != entry.owner() {
        return Ok(Err(GuardError::NotOurs));
    }
    let handoff = Offered { epoch: place.epoch, head: place.prev };
    Ok(match missed {
        Some(missed) if mark.offered != Some(handoff) => Err(missed),
        Some(_) | None => Ok(()),
    })
}

/// Whether all that the key signed is in the rows, as far as can be told.
fn is_trusted(source: &impl Source) -> Result<bool, StoreError> {
    Ok(counter(source, meta::GUARD_TRUSTED)? == 1)
}

/// The row that an adopted segment leaves, if it leaves one.
fn mark_of(segment: &VerifiedSegment, usage: GuardUse) -> Option<GuardMark> {
    if usage == GuardUse::Untouched {
        return None;
    }
    let last = segment.entries().last()?.signed();
    let (epoch, seq) = (last.value().epoch(), last.value().seq());
    let signed = LastSigned::Known(SignedMark { epoch, seq, cid: last.cid(), bytes: None });
    Some(GuardMark { signed: Some(signed), offered: None })
}

/// Notes that an offer is about to be answered: the handoff of that epoch on that head is one in which this life of the directory
/// takes part. Nothing is written where any handoff will do, and none beside a row that cannot be read.
#[derive(Clone, Copy, Debug)]
pub struct NoteOffer {
    /// The session, held or not.
    pub session: SessionId,
    /// The epoch that the handoff would open.
    pub epoch: Epoch,
    /// The entry that it would stand on.
    pub head: EntryCid,
}

impl Step for NoteOffer {
    type Output = ();
    type Error = StoreError;
    /// The bytes of the row that it leaves.
    type Plan = Option<Vec<u8>>;

    fn check(&self, view: &View<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        let Ok(mark) = mark(view.txn, self.session)? else { return Ok(None) };
        let mark = mark.unwrap_or_default();
        if is_trusted(view.txn)? && !matches!(mark.signed, Some(LastSigned::Unknown { .. })) {
            return Ok(None);
        }
        let offered = Some(Offered { epoch: self.epoch, head: self.head });
        Ok((mark.offered != offered).then(|| GuardMark { offered, ..mark }.to_bytes()))
    }

    fn write(self, row: Option<Vec<u8>>, changes: &Changes<'_>) -> Result<(), StoreError> {
        let Some(row) = row else { return Ok(()) };
        changes.put(tables::GUARD, self.session.genesis().digest(), row.as_slice())
    }
}
