//! One move that this node drives: a task around `protocol::handoff::Driver`. Decides nothing: each output becomes one
//! act, each answer one input.
//!
//! A phase is acted on once the journal holds it, because the driver waits for the report of the write. The handoff goes
//! into this node's own chain as soon as the journal has it: from then on it is true, wherever it arrives first.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use throughline_protocol::code::Reject;
use throughline_protocol::handoff::driver::{Input, Output, Phase, View};
use throughline_protocol::handoff::{Driver, RequestId};
use throughline_protocol::id::{Principal, UnixMillis};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::verify::Prechecked;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::Desk;
use super::desk::Leave;
use super::drive_owner::{Question, Unsealed};
use super::facts::Sent;
use super::journal::Journal;
use super::report::{self, Names, Progress, State};
use super::told::{Listener, Teller, Told};
use crate::api::error::{Answer, Problem};
use crate::core::Arrived;

/// Acts and answers that wait for the task; whoever sends one more waits.
pub(super) const ACTS_MAX: usize = 64;

/// What somebody wants of a move; answered once it was done.
pub(super) type Done = oneshot::Sender<Answer<()>>;

/// One thing that happens to a move.
pub(super) enum Act {
    /// An answer to something that the driver asked for.
    Heard(Input),
    /// What a peer's copy came to; none: it did not answer.
    Viewed(Principal, Option<Looked>),
    /// Entries that the target told to hold before it was offered anything.
    Before(u64),
    /// What is to be signed, and what the target lacked.
    Facts(RequestId, Answer<(Value, Sent)>),
    /// How long a step may go without progress from now on.
    Patience(Duration),
    /// Go on although something is lacking: a Yes to this question.
    Confirm(Question, Done),
    /// The owner signed.
    Handoff(Vec<u8>, Done),
    /// Ask again, now.
    Resume(Done),
    /// Take it back; with [`Leave::Offline`] without waiting for a source that does not answer.
    Abort(Leave, Done),
}

/// What a peer has of the session, and what it says.
pub(super) struct Looked {
    /// What its copy came to, verified here.
    pub(super) view: Box<View>,
    /// Why no handoff may be signed, when it says that it knows of a later epoch than the one that the move ends.
    pub(super) later: Option<Reject>,
}

/// The task of one move.
pub(super) struct Drive {
    pub(super) desk: Desk,
    pub(super) driver: Driver,
    pub(super) owner: Principal,
    pub(super) acts: mpsc::Sender<Act>,
    pub(super) before: Option<u64>,
    pub(super) looking: BTreeMap<Principal, RequestId>,
    /// Who says that it knows of a later epoch, of those who are asked. Nobody has to show it: a handoff of an epoch that is used
    /// already would stop the session, one that is not signed costs a move.
    pub(super) later: BTreeMap<Principal, Reject>,
    /// Messages under way: they end with the phase that sent them, and with this task.
    pub(super) sends: JoinSet<()>,
    inbox: mpsc::Receiver<Act>,
    told: Teller,
    began: UnixMillis,
    clock: Instant,
    pub(super) progress: Progress,
    names: Names,
    pub(super) unsealed: Option<Unsealed>,
}

/// Where a move is told what to do and what it shows.
pub(super) struct Handles {
    pub(super) acts: mpsc::Sender<Act>,
    pub(super) told: Listener,
}

impl Drive {
    /// Starts the task of a move. The zero of the driver's time is now.
    pub(super) fn start(
        desk: Desk,
        (driver, owner, names): (Driver, Principal, Names),
        began: UnixMillis,
        progress: Progress,
    ) -> Handles {
        let (acts, inbox) = mpsc::channel(ACTS_MAX);
        let clock = Instant::now();
        let (told, listener) = watch::channel(Told::of(&driver, &progress, &names));
        let handles = Handles { acts: acts.clone(), told: listener };
        let drive = Drive {
            desk,
            driver,
            owner,
            acts,
            before: None,
            looking: BTreeMap::new(),
            later: BTreeMap::new(),
            sends: JoinSet::new(),
            inbox,
            told,
            began,
            clock,
            progress,
            names,
            unsealed: None,
        };
        tokio::spawn(drive.run());
        handles
    }

    async fn run(mut self) {
        let mut stopping = self.desk.node.stopping();
        let mut commits = self.desk.node.commits();
        // Before anything is sent: an epoch that was opened while no task ran must not thaw its source.
        self.learn().await;
        self.settle().await;
        while !self.driver.is_over() {
            let tick_in = self.driver.poll_timeout().map(|due| due.saturating_sub(self.now()));
            tokio::select! {
                act = self.inbox.recv() => match act {
                    Some(act) => {
                        let asked = self.take(act).await;
                        self.settle().await;
                        if let Some((done, result)) = asked {
                            // Whoever asked may be gone; what was asked is done all the same.
                            let _ = done.send(result);
                        }
                    }
                    None => return,
                },
                () = sleep(tick_in) => {
                    self.driver.handle(self.now(), Input::Tick);
                    self.settle().await;
                }
                Ok(()) = commits.changed() => {
                    self.learn().await;
                    self.settle().await;
                }
                () = until_ended(&mut stopping) => return,
            }
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Performs what the driver wants done until it wants nothing more, then shows where the move stands.
    async fn settle(&mut self) {
        while let Some(output) = self.driver.poll_output() {
            if let Some(input) = self.perform(output).await {
                self.driver.handle(self.now(), input);
            }
        }
        self.show();
    }

    fn show(&mut self) {
        self.progress.tick(self.now());
        self.told.send_replace(Told::of(&self.driver, &self.progress, &self.names));
    }

    // ---- what happens to it -----------------------------------------------------------------------------------------

    /// Takes one act in. What somebody asked for is answered once everything that follows from it is done.
    async fn take(&mut self, act: Act) -> Option<(Done, Answer<()>)> {
        let now = self.now();
        match act {
            Act::Heard(input) => self.driver.handle(now, input),
            Act::Viewed(peer, looked) => self.looked(peer, looked),
            Act::Before(entries) => self.before = Some(entries),
            Act::Facts(request, found) => self.facts_found(request, found),
            Act::Patience(idle) => self.driver.wait_at_most(idle),
            Act::Confirm(question, done) => return Some((done, self.confirm(question))),
            Act::Handoff(bytes, done) => return Some((done, self.sealed(bytes).await)),
            Act::Resume(done) => {
                if matches!(self.progress.state, State::Waiting(_)) {
                    self.progress.state = State::Running;
                }
                self.driver.handle(now, Input::Retry);
                return Some((done, Ok(())));
            }
            Act::Abort(leave, done) => {
                let aborted = self.driver.abort(now).map_err(Problem::from);
                if aborted.is_ok() && leave == Leave::Offline {
                    self.driver.handle(now, Input::LeaveSource);
                }
                return Some((done, aborted));
            }
        }
        None
    }

    // ---- what it wants done -----------------------------------------------------------------------------------------

    async fn perform(&mut self, output: Output) -> Option<Input> {
        match output {
            Output::Persist { ticket, journal } => Some(match self.keep(journal).await {
                Ok(()) => Input::Persisted { ticket },
                Err(problem) => {
                    let reject = Reject::new(problem.code(), problem.detail());
                    Input::PersistFailed { ticket, reject }
                }
            }),
            Output::NeedGrant { request, target } => {
                let result = self.grant(target).await;
                Some(Input::Granted { request, result })
            }
            Output::Send { request, to, message } => {
                self.send(request, to, message);
                None
            }
            Output::Cancel => {
                self.sends.shutdown().await;
                None
            }
            Output::AskPeer { request, peer } => {
                self.look(request, peer);
                None
            }
            Output::NeedSignature { request, facts, readiness } => {
                self.need_signature(request, facts, readiness).await
            }
            Output::Entered { phase } => {
                self.entered(phase).await;
                None
            }
            Output::Copied { through } => {
                self.progress.through = Some(through);
                None
            }
            Output::Waiting { phase, code } => {
                self.progress.state = report::silence(phase, self.driver.plan().held, code);
                None
            }
            Output::Finished(outcome) => {
                self.progress.enter(self.now(), Phase::Finished);
                self.progress.end(self.now(), outcome);
                self.finished().await;
                None
            }
        }
    }

    async fn keep(&mut self, driver: Vec<u8>) -> Answer<()> {
        self.progress.tick(self.now());
        let shown = report::of(&self.driver, &self.progress, &self.names);
        let waits = match &self.progress.state {
            State::Waiting(cause) => Some(cause.code),
            State::Running | State::NeedsConfirmation(_) | State::NeedsHandoff(_) | State::Ended(_) => None,
        };
        let move_id = self.driver.plan().move_id;
        let journal = Journal { move_id, began: self.began, driver, waits, shown };
        self.desk.blocking(move |desk| journal.keep(&desk.node)).await
    }

    async fn entered(&mut self, phase: Phase) {
        self.progress.enter(self.now(), phase);
        self.progress.state = State::Running;
        if phase != Phase::Sign {
            self.unsealed = None;
        }
        if (Phase::Copy..=Phase::Activate).contains(&phase) {
            let plan = self.driver.plan();
            self.desk.moves.road.open(&self.desk.node, plan.session, plan.target);
        }
        if matches!(phase, Phase::Activate | Phase::Retire)
            && let Err(problem) = self.adopt_handoff().await
        {
            tracing::warn!(
                session = %self.driver.plan().session.short(),
                "taking in the handoff here failed: {problem}"
            );
        }
    }

    /// The signed handoff as an entry of this node's own copy.
    async fn adopt_handoff(&self) -> Answer<()> {
        let Some(opening) = self.driver.opening().cloned() else { return Ok(()) };
        self.desk
            .blocking(move |desk| {
                let checked = Prechecked::check(opening.bytes(), None, &mut VerifyingKeys::default())?;
                let arrived = Arrived { entries: vec![checked], ..Arrived::default() };
                desk.node.take_in(opening.session(), arrived).map(|_| ())
            })
            .await
    }

    /// Keeps what is shown for good, and tells the peers where the session is now.
    async fn finished(&mut self) {
        let plan = self.driver.plan();
        self.desk.moves.road.close(&self.desk.node, plan.session, plan.target);
        let driver = self.driver.to_bytes();
        if let Err(problem) = self.keep(driver).await {
            tracing::warn!("keeping the report of a move failed: {problem}");
        }
        if self.driver.opening().is_some() {
            self.desk.node.after_commit(self.driver.plan().session);
        }
    }
}

/// Returns when the node is to end.
pub(super) async fn until_ended(stopping: &mut watch::Receiver<bool>) {
    // Ended or gone: nobody needs the rest.
    let _ = stopping.wait_for(|stop| *stop).await;
}

async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
