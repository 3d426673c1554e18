//! Letting a whole session go: after a handoff, or to make room. Only on demand; nothing here decides when.

use throughline_protocol::id::{EntryCid, SessionId, UnixMillis};

use crate::error::StoreError;
use crate::events::{self, Change};
use crate::evidence;
use crate::guard;
use crate::health::Urgency;
use crate::index;
use crate::payloads::{self, size_of};
use crate::rows::{EntryRow, SessionRow, SideRow};
use crate::source::Source;
use crate::tables::{self, meta};
use crate::to_judge;
use crate::writer::{Changes, Step, View};

/// Removes a session: its entries, evidence, links, row and pin, and the payloads and files that no other session brought and
/// nothing leases. Its guard row, its idempotency keys and control blobs stay: a session that comes back is not signed anew.
#[derive(Clone, Copy, Debug)]
pub struct Forget {
    /// The session.
    pub session: SessionId,
    /// The tip that the decision was made on; another one is [`StoreError::Moved`].
    pub expected_tip: EntryCid,
    /// When.
    pub at: UnixMillis,
}

/// What goes.
#[doc(hidden)]
#[derive(Debug)]
pub struct ForgetPlan {
    row: SessionRow,
    entries: Vec<Gone>,
    sides: Vec<Gone>,
}

/// An entry that goes.
#[derive(Debug)]
struct Gone {
    cid: EntryCid,
    seq: u64,
    size: u64,
    payload: Option<EntryCid>,
}

impl Step for Forget {
    type Output = ();
    type Error = StoreError;
    type Plan = ForgetPlan;

    fn urgency(&self) -> Urgency {
        Urgency::Urgent
    }

    fn check(&self, view: &View<'_>) -> Result<ForgetPlan, StoreError> {
        let row = index::need_session(view.txn, self.session)?;
        if row.tip.cid != self.expected_tip {
            return Err(StoreError::Moved { what: "the session's tip".to_owned() });
        }
        let (mut entries, mut sides) = (Vec::new(), Vec::new());
        let table = view.txn.table(tables::ENTRIES)?;
        for stored in table.range((row.number, 0)..=(row.number, u64::MAX))? {
            let (key, stored) = stored?;
            let entry = EntryRow::from_bytes(stored.value())?;
            let (cid, payload, size) = (entry.cid, entry.payload, size_of(entry.bytes));
            entries.push(Gone { cid, seq: key.value().1, size, payload });
        }
        let table = view.txn.table(tables::SIDE)?;
        for stored in table.range((row.number, &[0; 32])..=(row.number, &[0xff; 32]))? {
            let (key, stored) = stored?;
            let cid = EntryCid::from_digest(*key.value().1);
            let side = SideRow::from_bytes(cid, stored.value())?;
            let (payload, size) = (side.payload, size_of(&side.bytes));
            sides.push(Gone { cid, seq: side.seq.get(), size, payload });
        }
        Ok(ForgetPlan { row, entries, sides })
    }

    fn write(self, plan: ForgetPlan, changes: &Changes<'_>) -> Result<(), StoreError> {
        let number = plan.row.number;
        let session = (number, self.session);
        guard::keep_bytes(changes, self.session)?;
        for gone in &plan.entries {
            changes.remove(tables::ENTRIES, (number, gone.seq))?;
            changes.remove(tables::INDEX, gone.cid.digest())?;
            changes.count(meta::ENTRY_BYTES, 0, gone.size)?;
        }
        for gone in &plan.sides {
            changes.remove(tables::SIDE, (number, gone.cid.digest()))?;
            changes.remove(tables::INDEX, gone.cid.digest())?;
            changes.count(meta::SIDE_BYTES, 0, gone.size)?;
        }
        for (digest, seq) in payloads::links_of(changes.txn, number)? {
            payloads::unlink(changes, &digest, session, seq)?;
        }
        for gone in plan.entries.iter().chain(&plan.sides) {
            if let Some(payload) = gone.payload {
                payloads::unlink(changes, payload.digest(), session, gone.seq)?;
            }
        }
        evidence::forget(changes, self.session)?;
        to_judge::forget(changes, plan.row.owner, self.session)?;
        changes.remove(tables::CHAIN_STATES, number)?;
        changes.remove(tables::SESSIONS, number)?;
        changes.remove(tables::SESSION_IDS, self.session.genesis().digest())?;
        changes.remove(tables::PINS, self.session.genesis().digest())?;
        events::write(changes, self.at, &Change::Forgotten { session: self.session })?;
        Ok(())
    }
}
