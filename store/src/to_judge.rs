//! What has still to be judged: a tombstone is kept together with the mark that it was not applied yet, in one transaction, so that no crash
//! and no error leaves a revocation stored and without effect. `docs/PROTOCOL.md` R-SE-1, `docs/decisions/0042-a-revocation-is-owed-until-it-is-judged.md`.
//!
//! ```text
//! a new tombstone ─▶ mark of the tombstone ─ every session that it concerns was judged, or is marked itself ─▶ gone
//!                                            └─▶ mark of a session ─ judged, or forgotten ─▶ gone
//! ```
//!
//! Who judges is not decided here. A mark that names nothing that is held, as a flipped bit makes one, costs a judgement and goes.

use std::collections::BTreeMap;

use throughline_protocol::id::{EntryCid, Principal, SessionId};

use crate::error::StoreError;
use crate::health::Urgency;
use crate::index;
use crate::source::Source;
use crate::tables;
use crate::writer::{Changes, Step, View};

/// A mark of a tombstone, in the place of a [`Wait`].
const TOMBSTONE: u64 = 0;

/// When a session that could not be judged is judged again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// When the node starts.
    Start,
    /// When what it lacks was mended: a start would read it for nothing.
    Mend,
}

impl Wait {
    fn number(self) -> u64 {
        match self {
            Wait::Start => 1,
            Wait::Mend => 2,
        }
    }
}

/// What is to be judged of one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToJudge {
    /// Tombstones that were not applied to all sessions, by the sha2-256 of their bytes, ascending.
    pub tombstones: Vec<[u8; 32]>,
    /// Sessions that could not be judged.
    pub sessions: BTreeMap<SessionId, Wait>,
}

/// Marks a tombstone that is new.
pub(crate) fn mark(changes: &Changes<'_>, owner: Principal, tombstone: &[u8; 32]) -> Result<(), StoreError> {
    changes.put(tables::TO_JUDGE, (owner.key(), tombstone), TOMBSTONE)
}

/// Drops the mark of a session that goes.
pub(crate) fn forget(changes: &Changes<'_>, owner: Principal, session: SessionId) -> Result<(), StoreError> {
    changes.remove(tables::TO_JUDGE, (owner.key(), session.genesis().digest())).map(|_| ())
}

pub(crate) fn of_owner(source: &impl Source, owner: Principal) -> Result<ToJudge, StoreError> {
    let table = source.table(tables::TO_JUDGE)?;
    let mut found = ToJudge::default();
    for row in table.range((owner.key(), &[0; 32])..=(owner.key(), &[0xff; 32]))? {
        let (key, what) = row?;
        let digest = *key.value().1;
        let session = SessionId::of_genesis(EntryCid::from_digest(digest));
        let wait = match what.value() {
            TOMBSTONE => {
                found.tombstones.push(digest);
                continue;
            }
            2 => Wait::Mend,
            _ => Wait::Start,
        };
        found.sessions.insert(session, wait);
    }
    Ok(found)
}

/// Owners of whom something is to be judged, ascending.
pub(crate) fn owners(source: &impl Source) -> Result<Vec<Principal>, StoreError> {
    let table = source.table(tables::TO_JUDGE)?;
    let mut found: Vec<Principal> = Vec::new();
    for row in table.iter()? {
        let owner = Principal::from_key(*row?.0.value().0);
        if found.last() != Some(&owner) {
            found.push(owner);
        }
    }
    Ok(found)
}

/// Whether a session may stand otherwise than its verdict says: it is marked, or a tombstone of its owner is.
pub(crate) fn may_concern(source: &impl Source, session: SessionId) -> Result<bool, StoreError> {
    let table = source.table(tables::TO_JUDGE)?;
    // Nearly always; every append asks.
    if table.iter()?.next().is_none() {
        return Ok(false);
    }
    let Some(row) = index::session(source, session)? else { return Ok(false) };
    for marked in table.range((row.owner.key(), &[0; 32])..=(row.owner.key(), &[0xff; 32]))? {
        let (key, what) = marked?;
        if what.value() == TOMBSTONE || key.value().1 == session.genesis().digest() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes away the marks of what was judged, and marks the sessions that could not be. Marks of tombstones that came meanwhile stay.
#[derive(Clone, Debug)]
pub struct NoteJudged {
    /// Whose.
    pub owner: Principal,
    /// Tombstones that were applied to every session but those that are marked from now on.
    pub tombstones: Vec<[u8; 32]>,
    /// Sessions that were judged, and those that could not be, with what they wait for.
    pub sessions: BTreeMap<SessionId, Option<Wait>>,
}

impl Step for NoteJudged {
    type Output = ();
    type Error = StoreError;
    /// Sessions that are held: of others nothing is noted.
    type Plan = BTreeMap<SessionId, Option<Wait>>;

    fn urgency(&self) -> Urgency {
        Urgency::Urgent
    }

    fn check(&self, view: &View<'_>) -> Result<Self::Plan, StoreError> {
        let mut noted = self.sessions.clone();
        for (session, wait) in &mut noted {
            if wait.is_some() && index::session_number(view.txn, *session)?.is_none() {
                *wait = None;
            }
        }
        Ok(noted)
    }

    fn write(self, noted: Self::Plan, changes: &Changes<'_>) -> Result<(), StoreError> {
        let owner = self.owner.key();
        for tombstone in &self.tombstones {
            changes.remove(tables::TO_JUDGE, (owner, tombstone))?;
        }
        for (session, wait) in noted {
            match wait {
                Some(wait) => {
                    changes.put(tables::TO_JUDGE, (owner, session.genesis().digest()), wait.number())?;
                }
                None => forget(changes, self.owner, session)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "to_judge_tests.rs"]
mod tests;
