//! What a move asks of people: whether it goes on although something is lacking, and the owner's signature.
//!
//! A Yes counts for the question that was read, and a signature for the entry that is the newest one here in the act of taking it
//! (R-HO-4 of `docs/PROTOCOL.md`). It must never take either for another one.

use std::str::FromStr;

use serde_json::{Value, json};
use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::entry::Entry;
use throughline_protocol::handoff::driver::{Input, Phase, Unsigned};
use throughline_protocol::handoff::{Readiness, RequestId};
use throughline_protocol::sign::VerifyingKeys;

use super::drive::Drive;
use super::facts::{self, Sent};
use super::report::{self, State};
use crate::api::error::{Answer, Problem};

/// What a move asks before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether the server that does not answer is left without its last words.
    Silence,
    /// Whether the session goes to a target that lacks something.
    Lacking,
}

impl Question {
    /// The phase in which it is asked, by its word.
    #[must_use]
    pub fn phase(self) -> &'static str {
        match self {
            Question::Silence => Phase::Freeze.word(),
            Question::Lacking => Phase::Sign.word(),
        }
    }
}

impl FromStr for Question {
    type Err = Problem;

    fn from_str(word: &str) -> Answer<Self> {
        let all = [Question::Silence, Question::Lacking];
        all.into_iter().find(|question| question.phase() == word).ok_or_else(|| {
            Problem::new(Code::ApiBody, format!("expected phase freeze or handoff, got {word:?}"))
        })
    }
}

/// A handoff that waits for the owner.
pub(super) struct Unsealed {
    request: RequestId,
    /// None until the facts were found.
    facts: Option<Value>,
}

impl Drive {
    /// Asks the owner for the handoff, unless more is held here by now, or somebody tells of a later epoch.
    pub(super) async fn need_signature(
        &mut self,
        request: RequestId,
        facts: Unsigned,
        readiness: Readiness,
    ) -> Option<Input> {
        if let Some(later) = self.later.values().next() {
            return Some(Input::Signed { request, result: Err(later.clone()) });
        }
        if let Err(problem) = self.read_own_copy().await {
            let result = Err(Reject::new(problem.code(), problem.detail()));
            return Some(Input::Signed { request, result });
        }
        if self.driver.phase() == Phase::Sign {
            self.progress.readiness = Some(readiness);
            self.unsealed = Some(Unsealed { request, facts: None });
            self.find_facts(request, facts);
        }
        None
    }

    pub(super) fn facts_found(&mut self, request: RequestId, found: Answer<(Value, Sent)>) {
        let Some(unsealed) = self.unsealed.as_mut().filter(|unsealed| unsealed.request == request) else {
            return;
        };
        match found {
            Ok((facts, sent)) => {
                self.progress.sent = Some(sent);
                unsealed.facts = Some(facts.clone());
                let lacking = self.progress.readiness.as_ref().and_then(report::lacking);
                self.progress.state = lacking.map_or(State::NeedsHandoff(facts), State::NeedsConfirmation);
            }
            Err(problem) => {
                self.unsealed = None;
                let result = Err(Reject::new(problem.code(), problem.detail()));
                self.driver.handle(self.now(), Input::Signed { request, result });
            }
        }
    }

    /// Takes a Yes to the question that the move asks now.
    pub(super) fn confirm(&mut self, said: Question) -> Answer<()> {
        let State::NeedsConfirmation(reason) = &self.progress.state else {
            return Err(Problem::new(Code::MoveState, "expected a move that asks, this one does not"));
        };
        let facts = self.unsealed.as_ref().and_then(|unsealed| unsealed.facts.clone());
        let asked = if facts.is_some() { Question::Lacking } else { Question::Silence };
        if said != asked {
            let (said, asked) = (said.phase(), asked.phase());
            let detail = format!(
                "expected a yes to what is asked in phase {asked}, got one for phase {said}: {reason}"
            );
            return Err(Problem::new(Code::MoveState, detail));
        }
        match facts {
            Some(facts) => self.progress.state = State::NeedsHandoff(facts),
            None => {
                self.progress.state = State::Running;
                self.driver.handle(self.now(), Input::LeaveSource);
            }
        }
        Ok(())
    }

    /// Takes the handoff that the owner signed. One that is not what was asked for changes nothing. What is held here is read in
    /// this very act: a handoff that would cut some of it off is refused, and the move goes on from the newest entry.
    pub(super) async fn sealed(&mut self, bytes: Vec<u8>) -> Answer<()> {
        let signed = Signed::<Entry>::check(bytes, &mut VerifyingKeys::default())?;
        self.read_own_copy().await?;
        self.expect_newest(&signed)?;
        let (Phase::Sign, State::NeedsHandoff(facts)) = (self.driver.phase(), &self.progress.state) else {
            return Err(Problem::new(
                Code::MoveState,
                "expected a move that waits for the owner's signature",
            ));
        };
        let opening = facts::check_signed(&signed, self.owner, facts)?;
        let unsealed = self.unsealed.take().ok_or(Code::Internal)?;
        self.progress.state = State::Running;
        let input = Input::Signed { request: unsealed.request, result: Ok(opening) };
        self.driver.handle(self.now(), input);
        Ok(())
    }

    /// Refuses a handoff that stands on another entry than the one that the move hands over, and not above it.
    fn expect_newest(&self, signed: &Signed<Entry>) -> Answer<()> {
        let (Some(base), Some(place)) = (self.driver.base(), signed.value().place) else { return Ok(()) };
        if place.prev == base.cid || place.seq > base.seq.next() {
            return Ok(());
        }
        let detail = format!(
            "expected a handoff that stands on seq {}, got one at seq {}, which would cut off what is held here from there on; \
             the move goes on from seq {0}",
            base.seq, place.seq
        );
        Err(Problem::new(Code::HeadMoved, detail)
            .with("session", place.genesis.to_string())
            .with("held", json!({"cid": base.cid.to_string(), "seq": base.seq.get()}))
            .hint(format!("throughline move --resume {}", self.driver.plan().session.short())))
    }
}
