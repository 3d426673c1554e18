//! What a target wants done: fetch, look whether this node could go on, adopt.

use std::sync::{Arc, PoisonError};

use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Role;
use throughline_protocol::fork::{Ending, Mark};
use throughline_protocol::handoff::target::{Input, Output, Stage};
use throughline_protocol::handoff::{MoveId, Opening, Point, Readiness, Receipt, Ticket};
use throughline_protocol::verify::Inventory;
use throughline_store::Unstage;
use tokio::task::AbortHandle;

use super::held::{Held, Shared, TARGET_JOB, put_job, receipt, reject};
use super::road::Provider;
use super::{Desk, facts};
use crate::api::error::Answer;
use crate::core::{Granted, controls_of, grant_of, standing};
use crate::sync::Tally;

/// A fetch under way for an offer.
pub(super) struct Fetching {
    ticket: Ticket,
    head: Point,
    task: AbortHandle,
    tally: Arc<Tally>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Held {
    pub(super) fn perform_target(&mut self, desk: &Desk, output: Output) {
        match output {
            Output::Persist { ticket, row } => {
                let input = match put_job(&desk.node, TARGET_JOB, self.session, row) {
                    Ok(()) => Input::Persisted { ticket },
                    Err(problem) => {
                        tracing::error!(session = %self.session.short(), "keeping the target's row failed: {problem}");
                        Input::PersistFailed { ticket }
                    }
                };
                self.target.handle(input);
            }
            Output::Answer { request, reply } => self.answered(request, reply),
            Output::Fetch { ticket, head, providers } => self.fetch(desk, ticket, head, providers),
            Output::Prepare { ticket } => {
                let result =
                    self.readiness(desk).unwrap_or_else(|problem| Err(problem.code().name().to_owned()));
                self.target.handle(Input::PrepareDone { ticket, result });
            }
            Output::Adopt { ticket, opening, row } => {
                let result = self.adopt(desk, &opening, row).map_err(reject);
                self.target.handle(Input::AdoptDone { ticket, result });
            }
            Output::DropStaging => {
                self.fetching = None;
                if let Err(error) = desk.node.store().run(Unstage { session: self.session }) {
                    tracing::warn!(session = %self.session.short(), "emptying the staging area failed: {error}");
                }
            }
        }
    }

    /// The move that is staged and may still be taken back.
    pub(super) fn staged_move(&self) -> Option<MoveId> {
        match self.target.stage() {
            Stage::Staging { offer, opening: None, .. } => offer.move_id,
            Stage::Staging { opening: Some(_), .. } | Stage::Idle | Stage::Active { .. } => None,
        }
    }

    /// Before another move is offered: one that nobody asks for any more was given up by its driver, whose abort did not
    /// arrive. That changes nothing for a handoff of it, should there be one: that is taken whatever is staged.
    pub(super) fn give_up_staged(&mut self, desk: &Desk, offered: MoveId) {
        let patience = self.limits.idle_max * 2;
        if let Some(move_id) = self.staged_move().filter(|staged| *staged != offered)
            && self.heard.elapsed() > patience
        {
            let request = self.request();
            self.target.handle(Input::Abort { request, move_id });
            self.run(desk);
            let _ = self.take_answer(request);
        }
    }

    /// Chain, state and guard are one transaction of the store; the row follows, and is caught up with after a crash.
    fn adopt(&self, desk: &Desk, opening: &Opening, row: Vec<u8>) -> Answer<Receipt> {
        self.adopt_opening(desk, opening)?;
        put_job(&desk.node, TARGET_JOB, self.session, row)?;
        receipt(&desk.node, self.session)
    }

    /// Whether this node could hold the session, or the reason as one word. A node runs no model and no tools and knows of
    /// none: what the agent server beside it has is not for it to promise, so it lists nothing.
    fn readiness(&self, desk: &Desk) -> Answer<Result<Readiness, String>> {
        let no = |reason: &str| Ok(Err(reason.to_owned()));
        if desk.node.store().read_only_reason().is_some() {
            return no("store-read-only");
        }
        let reader = desk.node.reader()?;
        let standing = standing(&reader, self.session)?;
        if standing.state.position().ending == Ending::Sealed {
            return no("sealed");
        }
        if matches!(standing.row.summary.verdict.as_str(), "forked" | "frozen") {
            return no("disputed");
        }
        let owner = standing.row.owner;
        let controls = controls_of(&reader, owner, None)?;
        let covers = Some((self.session, standing.state.agent()));
        match grant_of(&controls, owner, self.me, Role::Writer, covers) {
            Granted::Live(_) => {
                let inventory = match &self.inventory {
                    Some(inventory) => inventory.clone(),
                    None => desk.node.inventory(self.session, &mut |_| ())?,
                };
                Ok(Ok(Readiness { inventory: Some(inventory), ..Readiness::default() }))
            }
            Granted::Revoked(_) => no("grant-revoked"),
            Granted::Never => no("no-grant"),
        }
    }

    /// Begins a fetch; it replaces one that is under way. What is held whole needs no provider.
    fn fetch(&mut self, desk: &Desk, ticket: Ticket, head: Point, providers: Vec<String>) {
        (self.fetching, self.inventory) = (None, None);
        if providers.is_empty() && self.has(desk, head).is_ok() {
            self.target.handle(Input::FetchDone { ticket, result: Ok(()) });
            return;
        }
        let (desk, session) = (desk.clone(), self.session);
        let tally = Tally::new();
        let counted = Arc::clone(&tally);
        let task = tokio::spawn(async move {
            let from = providers.into_iter().map(Provider::Address).collect();
            let fetched = desk.moves.road.fetch(&desk.node, session, head, from, Arc::clone(&counted)).await;
            let ended = tokio::task::spawn_blocking(move || {
                // Without the lock: who asks meanwhile is told how far it is.
                let inventory =
                    fetched.is_ok().then(|| desk.node.inventory(session, &mut |read| counted.came(read)));
                let shared = desk.held(session)?;
                end_fetch(&shared, &desk, (ticket, head), fetched, inventory.and_then(Result::ok));
                desk.moves.fetched.send_modify(|count| *count += 1);
                Answer::Ok(())
            });
            if let Ok(Err(problem)) = ended.await {
                tracing::warn!(session = %session.short(), "the end of a fetch was lost: {problem}");
            }
        });
        self.fetching = Some(Fetching { ticket, head, task: task.abort_handle(), tally });
    }

    /// Whether the chain up to `head` is held and belongs to the owner who offers it.
    fn has(&self, desk: &Desk, head: Point) -> Result<(), Reject> {
        let row = self.row(&desk.node).map_err(reject)?.ok_or(Code::Incomplete)?;
        if self.owner.is_some_and(|owner| owner != row.owner) {
            return Err(Reject::new(
                Code::CapIssuer,
                "the session belongs to another owner than the one who offers it",
            ));
        }
        let reader = desk.node.reader().map_err(reject)?;
        if facts::is_held(&reader, self.session, head).map_err(reject)? {
            Ok(())
        } else {
            let what =
                format!("seq {} is held only through seq {}, or on another branch", head.seq, row.tip.seq);
            Err(Reject::new(Code::Incomplete, what))
        }
    }

    /// How far the chain is verified, for whoever asks meanwhile.
    pub(super) fn report_progress(&mut self, tip: Mark) {
        if let Some(Fetching { ticket, head, tally, .. }) = &self.fetching {
            let (through, bytes) = (tip.seq.min(head.seq), tally.now().bytes);
            self.target.handle(Input::Fetched { ticket: *ticket, through, bytes });
        }
    }
}

/// Reports the end of a fetch to the machine, and does what it wants then.
fn end_fetch(
    shared: &Shared,
    desk: &Desk,
    (ticket, head): (Ticket, Point),
    fetched: Result<(), Reject>,
    inventory: Option<Inventory>,
) {
    let mut held = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let result = fetched.and_then(|()| held.has(desk, head));
    if held.fetching.as_ref().is_some_and(|fetching| fetching.ticket == ticket) {
        (held.fetching, held.inventory) = (None, inventory);
    }
    held.target.handle(Input::FetchDone { ticket, result });
    held.run(desk);
    if let Err(problem) = held.catch_up(desk) {
        tracing::warn!(session = %held.session.short(), "catching up after a fetch failed: {problem}");
    }
}
