//! Catching up: the machines hear what the chain says by now, and the session's state says what the machines decided.
//!
//! After a crash, after a sync, and around every request. It decides nothing: what it finds are inputs that were, or would
//! have been, given before.

use throughline_protocol::fork::Mark;
use throughline_protocol::handoff::source::{self, Standing, Turn};
use throughline_protocol::handoff::{MoveId, Opening, Source, target};
use throughline_protocol::id::Epoch;
use throughline_store::SessionState;

use super::held::{Held, point};
use super::{Desk, facts};
use crate::api::error::Answer;

impl Held {
    /// Tells the machines what the chain says by now, whoever brought it, and makes the session's state say what the
    /// source's row says. After a crash, after a sync, and around every request.
    pub(super) fn catch_up(&mut self, desk: &Desk) -> Answer<()> {
        let Some(row) = self.row(&desk.node)? else { return Ok(()) };
        let reader = desk.node.reader()?;
        if let Some(opening) = facts::opening(&reader, self.session, row.owner, row.tip.seq)? {
            self.learned(desk, opening);
        }
        if let SessionState::Frozen { epoch, move_id } = row.state {
            self.refreeze(desk, epoch, MoveId::from_bytes(move_id), row.tip);
        }
        self.report_progress(row.tip);
        self.run(desk);
        self.align(desk)
    }

    fn learned(&mut self, desk: &Desk, opening: Opening) {
        let is_ours = opening.holder() == Some(self.me);
        let is_adopted = self.target.adopted().is_some_and(|held| held.point() == opening.point());
        if !is_adopted {
            self.target.handle(target::Input::Learned { opening: opening.clone() });
            self.run(desk);
        }
        match &mut self.source {
            Some(source) if is_ours => source.handle(source::Input::Adopted { opening }),
            Some(source) => source.handle(source::Input::Learned { opening }),
            None if is_ours => {
                self.source = Some(Source::holder(self.session, self.me, opening.epoch(), self.limits));
            }
            None => {}
        }
        self.run(desk);
    }

    /// The store froze and the row does not say so: a crash came between, in a freeze or in an abort.
    fn refreeze(&mut self, desk: &Desk, epoch: Epoch, move_id: MoveId, tip: Mark) {
        let is_active =
            self.source.as_ref().is_some_and(|source| *source.standing() == Standing::Active { epoch });
        if is_active {
            let (request, turn) = (self.request(), Turn::Idle { head: point(tip) });
            self.tell_source(source::Input::Freeze { request, move_id, epoch, turn });
            self.run(desk);
            let _ = self.take_answer(request);
        }
    }

    /// Thaws what the row says is active, closes what it says is not.
    fn align(&self, desk: &Desk) -> Answer<()> {
        let (Some(source), Some(row)) = (&self.source, self.row(&desk.node)?) else { return Ok(()) };
        let wanted = match source.standing() {
            Standing::Active { epoch } if row.fence <= *epoch => SessionState::Active,
            // A later epoch is known without its entries: nothing is signed here until they come.
            Standing::Active { .. } => return Ok(()),
            Standing::Frozen { epoch, move_id, .. } => {
                SessionState::Frozen { epoch: *epoch, move_id: move_id.to_bytes() }
            }
            Standing::Retired { opening, .. } => match row.state {
                SessionState::Retired { .. } => return Ok(()),
                SessionState::Active | SessionState::Frozen { .. } => {
                    let ended = opening.epoch().get().saturating_sub(1);
                    SessionState::Retired { epoch: Epoch::new(ended)? }
                }
            },
        };
        if row.state != wanted {
            self.set_state(&desk.node, row.state, wanted)?;
        }
        Ok(())
    }
}
