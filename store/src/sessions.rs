//! The row of a session: what this node may do in it, and what lists show.

use throughline_protocol::id::{Epoch, Principal, SessionId, UnixMillis};

use crate::error::{AdoptError, StoreError};
use crate::events::{self, Change};
use crate::health::Urgency;
use crate::index;
use crate::rows::{SessionRow, SessionState, Summary};
use crate::tables;
use crate::writer::{Changes, Step, View};

/// Writes a session's row.
pub(crate) fn put(changes: &Changes<'_>, row: &SessionRow) -> Result<(), StoreError> {
    changes.put(tables::SESSIONS, row.number, row.to_bytes().as_slice())
}

/// Puts a summary into a row; the change of a verdict is an event.
pub(crate) fn set_summary(
    changes: &Changes<'_>,
    row: &mut SessionRow,
    summary: Summary,
    at: UnixMillis,
) -> Result<(), StoreError> {
    if row.summary.verdict != summary.verdict {
        let (from, to) = (row.summary.verdict.clone(), summary.verdict.clone());
        events::write(changes, at, &Change::Verdict { session: row.session, from, to })?;
    }
    row.summary = summary;
    row.changed = at;
    Ok(())
}

/// Keeps what selection and the payloads say of a session, so that lists read no chain.
#[derive(Clone, Debug)]
pub struct SetSelection {
    /// The session.
    pub session: SessionId,
    /// What lists show.
    pub summary: Summary,
    /// When.
    pub at: UnixMillis,
}

impl Step for SetSelection {
    type Output = ();
    type Error = StoreError;
    type Plan = SessionRow;

    fn urgency(&self) -> Urgency {
        Urgency::Urgent
    }

    fn check(&self, view: &View<'_>) -> Result<SessionRow, StoreError> {
        index::need_session(view.txn, self.session)
    }

    fn write(self, mut row: SessionRow, changes: &Changes<'_>) -> Result<(), StoreError> {
        set_summary(changes, &mut row, self.summary, self.at)?;
        put(changes, &row)
    }
}

/// Changes what this node may do in a session: freeze, thaw, retire.
///
/// A frozen session thaws only while no later epoch is known: [`AdoptError::Fenced`] then.
#[derive(Clone, Debug)]
pub struct SetState {
    /// The session.
    pub session: SessionId,
    /// The state that it must be in; another one is [`StoreError::Moved`].
    pub from: SessionState,
    /// The state it gets.
    pub to: SessionState,
    /// When.
    pub at: UnixMillis,
}

impl Step for SetState {
    /// The row after it, with the head at which the session froze.
    type Output = SessionRow;
    type Error = AdoptError;
    type Plan = SessionRow;

    fn check(&self, view: &View<'_>) -> Result<SessionRow, AdoptError> {
        let row = index::need_session(view.txn, self.session)?;
        if row.state != self.from {
            return Err(StoreError::Moved { what: "the session's state".to_owned() }.into());
        }
        if let (SessionState::Frozen { epoch, .. }, SessionState::Active) = (self.from, self.to)
            && row.fence > epoch
        {
            return Err(AdoptError::Fenced { held: row.fence, offered: epoch });
        }
        Ok(row)
    }

    fn write(self, mut row: SessionRow, changes: &Changes<'_>) -> Result<SessionRow, StoreError> {
        row.state = self.to;
        row.changed = self.at;
        put(changes, &row)?;
        events::write(changes, self.at, &Change::State { session: self.session })?;
        Ok(row)
    }
}

/// Freezes an active session for a move.
#[derive(Clone, Copy, Debug)]
pub struct Freeze {
    /// The session.
    pub session: SessionId,
    /// The epoch that it stops in.
    pub epoch: Epoch,
    /// The move.
    pub move_id: [u8; 16],
    /// Who asks for it, when that is not this node.
    pub by: Option<Principal>,
    /// When.
    pub at: UnixMillis,
}

impl Freeze {
    fn set(&self) -> SetState {
        let to = SessionState::Frozen { epoch: self.epoch, move_id: self.move_id };
        SetState { session: self.session, from: SessionState::Active, to, at: self.at }
    }
}

impl Step for Freeze {
    /// The row after it, with the head at which the session froze.
    type Output = SessionRow;
    type Error = AdoptError;
    type Plan = SessionRow;

    fn check(&self, view: &View<'_>) -> Result<SessionRow, AdoptError> {
        self.set().check(view)
    }

    fn write(self, row: SessionRow, changes: &Changes<'_>) -> Result<SessionRow, StoreError> {
        let frozen = self.set().write(row, changes)?;
        if let Some(by) = self.by {
            let change = Change::ByDelegate { session: self.session, by, entry: None };
            events::write(changes, self.at, &change)?;
        }
        Ok(frozen)
    }
}

/// Remembers that a later epoch exists although its entries are not held yet. It never goes down.
#[derive(Clone, Copy, Debug)]
pub struct RaiseFence {
    /// The session.
    pub session: SessionId,
    /// An epoch that a verified handoff or seal opened.
    pub epoch: Epoch,
    /// When.
    pub at: UnixMillis,
}

impl Step for RaiseFence {
    /// The fence after it.
    type Output = Epoch;
    type Error = StoreError;
    type Plan = SessionRow;

    fn check(&self, view: &View<'_>) -> Result<SessionRow, StoreError> {
        index::need_session(view.txn, self.session)
    }

    fn write(self, mut row: SessionRow, changes: &Changes<'_>) -> Result<Epoch, StoreError> {
        if self.epoch > row.fence {
            row.fence = self.epoch;
            row.changed = self.at;
            put(changes, &row)?;
        }
        Ok(row.fence)
    }
}
