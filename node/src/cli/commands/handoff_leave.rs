//! Leaving a holder without its last words: what is said of it first, and who has to agree. It decides nothing about the move.

use serde_json::{Value, json};
use throughline_protocol::code::Code;

use super::handoff::Drive;
use super::unfetched::Unfetched;
use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::resolve::Peer;
use crate::cli::silence::Silence;
use crate::cli::view;

impl Drive<'_> {
    /// Says what the move would do; without the holder also what is known of its last words.
    pub(super) fn try_out(&self, path: &str, peer: &Peer) -> Answer<Outcome> {
        let mut told = self.api.ask(Call::post(path, &self.trial(peer)))?;
        if view::text(&told, "/state") == "needs-grant" {
            told["error"] = self.grant_missing(peer).to_json();
        }
        let is_left = self.args.source == "offline" && leaves_holder(&told);
        let silence = is_left.then(|| Silence::unasked(self.api, &told, &peer.word())).transpose()?;
        if let Some(silence) = &silence {
            told["without"] = silence.facts();
        }
        let unfetched = is_left.then(|| self.unfetched()).transpose()?;
        if let Some(unfetched) = &unfetched {
            told["unfetched"] = unfetched.json();
        }
        let mut outcome = self.told(told);
        unfetched.iter().for_each(|unfetched| unfetched.tell(&mut outcome.page));
        if let Some(silence) = silence {
            outcome.page.mark(Mark::Warning, silence.says());
        }
        Ok(outcome)
    }

    /// Makes sure, before anything begins, that somebody agrees to leave the holder without its last words: the person at the
    /// terminal, or a script with `--yes`.
    ///
    /// # Errors
    /// `E_PROMPT` where nobody can be asked, with what to run; `E_INTERRUPTED` after a No.
    pub(super) fn agree_to_leave(&self, path: &str, peer: &Peer) -> Answer<()> {
        let body = self.trial(peer);
        let planned = match self.api.ask(Call::post(path, &body)) {
            Err(problem) if problem.code() == Code::NotFoundYet => {
                // What nobody has here yet is looked for before it is said how much of it is known.
                let wanted = json!({"session": self.session.to_string(), "payloads": "all"});
                self.api.ask(Call::post("/v1/fetch", &wanted))?;
                self.api.ask(Call::post(path, &body))?
            }
            Err(problem) if problem.code() == Code::MoveState => {
                let open = self.find()?;
                if view::text(&open, "/phase") != "rollback" {
                    // It goes on as it was begun, and asks when it comes to that.
                    return Ok(());
                }
                open
            }
            answer => answer?,
        };
        if !leaves_holder(&planned) {
            return Ok(());
        }
        if view::text(&planned, "/state") == "needs-grant" && !self.ctx.can_ask() {
            // A yes would only lead there.
            return Err(self.grant_missing(peer));
        }
        self.unfetched()?.agree(self.ctx, self.args.cut_unfetched)?;
        let silence = Silence::unasked(self.api, &planned, &peer.word())?;
        match self.ctx.confirm(&silence.question()) {
            Ok(true) => {
                if self.ctx.is_unattended() {
                    let mut page = Page::default();
                    page.mark(Mark::Warning, silence.says());
                    self.ctx.out().aside(&page);
                }
                Ok(())
            }
            Ok(false) => {
                Err(Problem::new(Code::Interrupted, "not moved: the answer was no; nothing was signed"))
            }
            Err(problem) if problem.code() == Code::Prompt => Err(silence.unsaid()),
            Err(problem) => Err(problem),
        }
    }

    /// What is not here of the session although a known peer told it, after all of them were asked.
    fn unfetched(&self) -> Answer<Unfetched> {
        Unfetched::of(self.ctx, self.api, &[self.session.to_string()])
    }

    /// A server that does not answer is left without its last words only by somebody who says so: to a person here, to a script
    /// with `--source offline --yes`. Where nobody says so, or somebody says No, the move stays as it is, and goes on if the server
    /// comes back: to take it back would be to ask the very server that does not answer, and to wait for it.
    pub(super) fn leave_silent(&self, answer: &Value) -> Answer<Value> {
        let unfetched = self.unfetched()?;
        let silence = Silence::of(self.api, answer)?;
        if self.ctx.is_unattended() && self.args.source != "offline" {
            return Err(silence.problem());
        }
        unfetched.agree(self.ctx, self.args.cut_unfetched)?;
        silence.is_left(|question| self.ctx.confirm(question))?;
        self.decided(answer, true)
    }
}

/// Whether a planned move leaves a holder behind.
fn leaves_holder(planned: &Value) -> bool {
    view::text(planned, "/state") != "held" && !view::at(planned, "/from/principal").is_null()
}

/// Whether a move asks to leave a server behind that does not answer.
pub(super) fn asks_to_leave(answer: &Value) -> bool {
    view::text(answer, "/state") == "needs-confirmation" && view::text(answer, "/phase") == "freeze"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_nobody_else_holds_is_left_by_nobody() {
        let mut planned = json!({"state": "planned", "from": {"principal": "z6Mk"}});
        assert!(leaves_holder(&planned));
        planned["state"] = "held".into();
        assert!(!leaves_holder(&planned));
        assert!(!leaves_holder(&json!({"state": "planned", "from": {"principal": null}})));
    }

    #[test]
    fn only_the_question_about_a_silent_server_is_one_to_leave_it() {
        let mut answer = json!({"state": "needs-confirmation", "phase": "freeze"});
        assert!(asks_to_leave(&answer));
        // Tools that the target lacks cut nothing off.
        answer["phase"] = "handoff".into();
        assert!(!asks_to_leave(&answer));
        answer = json!({"state": "running", "phase": "freeze"});
        assert!(!asks_to_leave(&answer));
    }
}
