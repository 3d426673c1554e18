//! The sign guard: one durable row a session with the last entry that this node signed as holder. `docs/PROTOCOL.md` §Authority.
//!
//! It decides whether another signature as holder may be made. The row is written in the transaction that adopts the
//! entry, before the entry leaves; after a crash the stored bytes are sent again. It must never be possible to sign two
//! entries at one place: a data directory that was restored or cloned has no rows (a backup leaves the table out, and
//! [`crate::open`] empties it when it sees a copy), and without a row nothing is signed in an existing session until a handoff opens a
//! new epoch. A row that is damaged, or that stands beside a session row that was, is never made up: it says *unknown* from then on,
//! and only a handoff that was made later ends that.

use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Epoch, Principal, SessionId, UnixMillis};
use throughline_protocol::verify::{Base, VerifiedSegment};

use crate::error::{GuardError, StoreError};
use crate::index;
use crate::rows::{GuardMark, GuardRow, SessionRow, SignedMark, check_hash};
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::writer::Changes;

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
    let Some(GuardMark::Signed(SignedMark { epoch, seq, cid, bytes })) = mark(source, session)?? else {
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
    let kept = GuardMark::Signed(SignedMark { epoch, seq, cid, bytes: Some(bytes) });
    changes.put(tables::GUARD, session.genesis().digest(), kept.to_bytes().as_slice())
}

/// Notes that what was signed in a session is not known: nothing is signed there until a handoff that is made after `at` opens an
/// epoch above `epoch` and above whatever the row says.
pub(crate) fn put_unknown(
    changes: &Changes<'_>,
    session: SessionId,
    epoch: Epoch,
    at: UnixMillis,
) -> Result<(), StoreError> {
    let told = mark(changes.txn, session)?.ok().flatten().map(|mark| mark.epoch());
    let mark = GuardMark::Unknown { epoch: told.map_or(epoch, |told| told.max(epoch)), since: at };
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
    let Some(row) = row_of(segment, usage) else { return Ok(()) };
    changes.put(tables::GUARD, segment.session().genesis().digest(), row.to_bytes().as_slice())
}

/// Whether the next signature as holder, of `epoch` on `prev`, may be made in a session that is held.
pub(crate) fn check(
    source: &impl Source,
    session: &SessionRow,
    epoch: Epoch,
    prev: Mark,
) -> Result<Result<(), GuardError>, StoreError> {
    let row = match mark(source, session.session)? {
        Ok(Some(GuardMark::Signed(row))) => row,
        Ok(Some(GuardMark::Unknown { epoch, .. })) => return Ok(Err(GuardError::Unknown { epoch })),
        Ok(None) => return Ok(Err(GuardError::NoRow)),
        Err(_) => return Ok(Err(GuardError::Damaged)),
    };
    if epoch < row.epoch {
        return Ok(Err(GuardError::EpochBehind { signed: row.epoch, offered: epoch }));
    }
    // A higher epoch was opened by an owner-signed handoff: what was signed in an earlier one is fenced, whatever it was.
    if epoch > row.epoch || index::is_ancestor(source, session.number, row.cid, prev.seq)? {
        Ok(Ok(()))
    } else {
        Ok(Err(GuardError::NotDescendant { seq: row.seq, epoch: row.epoch }))
    }
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
    Ok(match mark(source, segment.session())? {
        Ok(None) => Ok(()),
        Ok(Some(GuardMark::Signed(row))) => Err(GuardError::NotDescendant { seq: row.seq, epoch: row.epoch }),
        Ok(Some(GuardMark::Unknown { epoch, .. })) => Err(GuardError::Unknown { epoch }),
        Err(_) => Err(GuardError::Damaged),
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
    match mark(source, segment.session())? {
        // When that came about is not known, so no handoff is known to be later.
        Err(_) => return Ok(Err(GuardError::Damaged)),
        Ok(Some(row)) if row.epoch() >= entry.epoch() => {
            return Ok(Err(GuardError::EpochBehind { signed: row.epoch(), offered: entry.epoch() }));
        }
        Ok(Some(GuardMark::Unknown { epoch, since })) if entry.ts < since => {
            return Ok(Err(GuardError::Unknown { epoch }));
        }
        Ok(Some(_) | None) => {}
    }
    if entry.place.is_none() {
        let trusted = counter(source, meta::GUARD_TRUSTED)? == 1;
        return Ok(if trusted { Ok(()) } else { Err(GuardError::NoRow) });
    }
    if !entry.body.may_open() || entry.signer != entry.owner() {
        return Ok(Err(GuardError::NotOurs));
    }
    // A handoff made before this directory was restored may be one that this node already signed after.
    let is_stale = entry.ts.get() < counter(source, meta::GUARD_RESET_MS)?;
    Ok(if is_stale { Err(GuardError::NoRow) } else { Ok(()) })
}

/// The row that an adopted segment leaves, if it leaves one.
fn row_of(segment: &VerifiedSegment, usage: GuardUse) -> Option<GuardMark> {
    if usage == GuardUse::Untouched {
        return None;
    }
    let last = segment.entries().last()?.signed();
    let (epoch, seq) = (last.value().epoch(), last.value().seq());
    Some(GuardMark::Signed(SignedMark { epoch, seq, cid: last.cid(), bytes: None }))
}
