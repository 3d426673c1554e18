//! What this node knows of a move that it drives: the typed facts that are decided by, and the object that is made of them.
//!
//! Whoever decides asks the facts. It must never read the object's words again: they are for people and programs, and may change.
//! After a restart the facts come from the driver's own journal.

use serde_json::Value;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::handoff::driver::Phase;
use throughline_protocol::handoff::{Driver, MoveId};
use throughline_protocol::id::SessionId;
use tokio::sync::watch;

use super::report::{self, Names, Progress, State};

/// Where a move stands, and what is shown of it.
#[derive(Clone, Debug)]
pub(super) struct Told {
    state: State,
    phase: Phase,
    names: Names,
    object: Value,
}

impl Told {
    /// Of a move whose driver runs.
    pub(super) fn of(driver: &Driver, progress: &Progress, names: &Names) -> Self {
        Told {
            state: progress.state.clone(),
            phase: driver.phase(),
            names: names.clone(),
            object: report::of(driver, progress, names),
        }
    }

    /// Of a move whose driver lies in its journal. One that ended is told as it ended, whether a crash came before its last report
    /// or not; any other waits until its driver runs. `earlier` is what was shown last, `code` what it was waiting with.
    pub(super) fn parked(driver: &Driver, earlier: Value, code: Option<Code>) -> Self {
        let (phase, names) = (driver.phase(), Names::shown(&earlier));
        if let Some(outcome) = driver.outcome() {
            return Told::of(driver, &Progress::ended(earlier, outcome.clone()), &names);
        }
        let cause = Reject::from(code.unwrap_or(Code::Unreachable));
        let (state, mut object) = (State::Waiting(cause), earlier);
        object["state"] = state.word().into();
        Told { state, phase, names, object }
    }

    /// The `move` object.
    pub(super) fn object(&self) -> &Value {
        &self.object
    }

    /// Whether it ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }

    /// Whether it goes on by itself.
    pub(super) fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Whether it is being taken back, and a server that it drew in may not have heard of that.
    pub(super) fn is_rolling_back(&self) -> bool {
        !self.is_over() && self.phase == Phase::RollBack
    }

    /// Whether people see another step of it than in `before`.
    pub(super) fn differs(&self, before: &Told) -> bool {
        self.state.word() != before.state.word() || self.phase.word() != before.phase.word()
    }

    /// Where it stands, for those who tell what is wrong.
    pub(super) fn course(&self) -> Course {
        if self.is_over() {
            return Course::Over;
        }
        let code = match &self.state {
            State::Waiting(cause) => cause.code,
            State::Running | State::NeedsConfirmation(_) | State::NeedsHandoff(_) | State::Ended(_) => {
                Code::Unreachable
            }
        };
        let why = match (&self.state, self.phase) {
            (_, Phase::RollBack) => Halt::RollingBack(code),
            (State::NeedsHandoff(_), _) => Halt::NeedsHandoff,
            (State::NeedsConfirmation(_), _) => Halt::NeedsConfirmation,
            (State::Waiting(_), _) => Halt::Waiting(code),
            (State::Running | State::Ended(_), _) => return Course::UnderWay,
        };
        Course::Halted(Halted { why, from: self.names.from.clone(), to: self.names.to.clone() })
    }
}

/// A move that this node drives or drove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driven {
    /// Of which session.
    pub session: SessionId,
    /// Which one.
    pub move_id: MoveId,
    /// Where it stands.
    pub course: Course,
}

/// Where a move stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Course {
    /// It goes on by itself.
    UnderWay,
    /// It waits for somebody, or is being taken back.
    Halted(Halted),
    /// It ended, however it did: nobody drives it any more.
    Over,
}

/// A move that does not go on by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halted {
    /// What it waits for.
    pub why: Halt,
    /// The server that is left, as people call it; none: nobody holds the session.
    pub from: Option<String>,
    /// The server that takes over, as people call it.
    pub to: String,
}

/// What a move waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It is being taken back, until the server that is left has heard so; with what was heard last.
    RollingBack(Code),
    /// The owner has to sign the handoff.
    NeedsHandoff,
    /// A person has to say whether it goes on.
    NeedsConfirmation,
    /// Nobody answers, or its driver does not run; with what was heard last.
    Waiting(Code),
}

/// Keeps what is told of a move up to date for whoever looks or waits.
pub(super) type Teller = watch::Sender<Told>;
/// Looks at what is told of a move.
pub(super) type Listener = watch::Receiver<Told>;

#[cfg(test)]
#[path = "told_tests.rs"]
mod tests;
