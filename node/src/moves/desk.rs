//! The desk: every move that this node drives or drove, by id. Begins them, hands them what people decide, shows them.
//!
//! One unfinished move a session. A move outlives this process in its journal; with a network it goes on by itself after a
//! restart, without one it waits until somebody resumes it.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use throughline_protocol::code::Code;
use throughline_protocol::handoff::{Driver, Limits, MoveId};
use throughline_protocol::id::{SessionId, UnixMillis};
use tokio::sync::{mpsc, oneshot, watch};

use super::Desk;
use super::drive::{Act, Done, Drive, Handles};
use super::drive_owner::Question;
use super::journal::{self, Journal};
use super::plan::Planned;
use super::report::{Names, Progress};
use super::told::{Driven, Listener, Told};
use crate::api::error::{Answer, Problem};
use crate::core::{now, standing};

/// Finished moves that are remembered; the oldest go first.
const FINISHED_MAX: usize = 256;

/// Whether the server that is left is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// It is asked to freeze.
    Auto,
    /// It is not: what it never replicated is cut off, and said.
    Offline,
}

impl FromStr for Leave {
    type Err = Problem;

    fn from_str(word: &str) -> Answer<Self> {
        match word {
            "auto" => Ok(Leave::Auto),
            "offline" => Ok(Leave::Offline),
            _ => Err(Problem::new(Code::ApiBody, "expected source auto or offline")),
        }
    }
}

/// Whether something is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// The move begins.
    Begin,
    /// Only what would happen is told.
    DryRun,
}

/// A move that is asked for.
#[derive(Clone, Debug)]
pub struct Begin {
    /// The session.
    pub session: SessionId,
    /// The next holder: `self`, an alias or a full principal.
    pub to: String,
    /// How the present holder is left.
    pub leave: Leave,
    /// Who is asked for the session first: an alias, a principal or a ticket. None asks everybody who is known, and only about
    /// a session that is not held here.
    pub ask: Option<String>,
    /// Whether it begins.
    pub depth: Depth,
}

/// One move in memory.
pub(super) struct Entry {
    session: SessionId,
    began: UnixMillis,
    told: Listener,
    /// The driver's task; none while it does not run.
    acts: Option<mpsc::Sender<Act>>,
    /// The driver as the journal had it, for a move that was not begun by this process.
    parked: Option<Vec<u8>>,
}

impl Entry {
    fn is_finished(&self) -> bool {
        self.told.borrow().is_over()
    }

    fn shown(&self) -> Value {
        self.told.borrow().object().clone()
    }
}

impl Desk {
    /// Begins a move; answers with where it stands at once. A target without a grant that covers the session is told
    /// apart before anybody is asked to freeze: `needs-grant`, with the refusal and the command that helps. A target that holds the
    /// session and goes on is no move: `held`, and nothing is signed.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET` for a session that is not held here and that nobody who was asked gives, `E_UNREACHABLE` when the one who
    /// was named does not answer, `E_PEER_UNKNOWN`, `E_MOVE_STATE` while another move of it is not finished,
    /// `E_SEALED`, `EV_EQUIVOCATION`.
    pub async fn begin(&self, begin: Begin) -> Answer<Value> {
        self.give_up_rollback(&begin).await?;
        self.find_session(&begin).await?;
        let peers = self.moves.road.peers(&self.node).await;
        self.blocking(Desk::forget_oldest).await?;
        match self.plan(&begin, peers).await? {
            Planned::Told(value) | Planned::Held { answer: value, .. } => Ok(value),
            Planned::Ready { mut plan, owner, names } => {
                if let Some(source) = plan.origin.server() {
                    plan.told = self.moves.road.told(&self.node, source, plan.session).await;
                }
                let (session, move_id) = (plan.session, plan.move_id);
                let began = now();
                let limits = Limits { idle_max: self.idle_max(), ..self.moves.limits };
                let driver = Driver::new(Duration::ZERO, *plan, limits);
                let mut driven = self.driven();
                expect_none_open(&driven, session)?;
                let Handles { acts, told } =
                    Drive::start(self.clone(), (driver, owner, names), began, Progress::new());
                let entry = Entry { session, began, told, acts: Some(acts), parked: None };
                let value = entry.shown();
                driven.insert(move_id, entry);
                Ok(value)
            }
        }
    }

    /// Whoever hands over without the source does not wait for it in the move before either: if that one is only being taken
    /// back it ends first, durably.
    async fn give_up_rollback(&self, begin: &Begin) -> Answer<()> {
        let waits = |entry: &Entry| entry.session == begin.session && entry.told.borrow().is_rolling_back();
        let waiting = self.driven().iter().find(|(_, entry)| waits(entry)).map(|(id, _)| *id);
        match (waiting, begin.leave, begin.depth) {
            (Some(id), Leave::Offline, Depth::Begin) => {
                self.abort(begin.session, id, Leave::Offline).await.map(drop)
            }
            (Some(_) | None, Leave::Auto | Leave::Offline, Depth::Begin | Depth::DryRun) => Ok(()),
        }
    }

    /// A session that is not held here may have been made elsewhere a moment ago: it is fetched before anything is refused. So is
    /// one that somebody named has, for what is newest there.
    async fn find_session(&self, begin: &Begin) -> Answer<()> {
        let session = begin.session;
        let is_held = self.blocking(move |desk| Ok(desk.node.reader()?.session(session)?.is_some())).await?;
        match (is_held, &begin.ask, begin.depth) {
            (true, None, _) | (true, Some(_), Depth::DryRun) => Ok(()),
            (false, _, Depth::DryRun) => {
                let what = "this session is not held here, and a dry run fetches nothing";
                Err(Problem::new(Code::NotFoundYet, what)
                    .with("session", session.to_string())
                    .hint(format!("throughline fetch {session}")))
            }
            (false, _, Depth::Begin) | (true, Some(_), Depth::Begin) => {
                self.moves.road.find(&self.node, session, begin.ask.clone()).await
            }
        }
    }

    /// Goes on although something is lacking, or without the server that does not answer.
    ///
    /// # Errors
    /// `E_MOVE_STATE` for a move that does not ask this; `E_NOT_FOUND_YET` for none at all.
    pub async fn confirm(&self, session: SessionId, id: MoveId, question: Question) -> Answer<Value> {
        self.act(session, id, |done| Act::Confirm(question, done)).await
    }

    /// Takes the handoff that the owner signed. From here the move only goes forward.
    ///
    /// # Errors
    /// `E_HEAD_MOVED` for a handoff below the newest entry that is held here: the move goes on from that one and asks again.
    /// `E_MOVE_STATE` for a handoff that is not asked for, or says something else than was asked; an `E_SCHEMA_…` or `E_SIG` code.
    pub async fn give_handoff(&self, session: SessionId, id: MoveId, bytes: Vec<u8>) -> Answer<Value> {
        self.act(session, id, |done| Act::Handoff(bytes, done)).await
    }

    /// Tries again now. After a lost reply the target is asked which epoch it holds, and the move finishes either way.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`.
    pub async fn resume(&self, session: SessionId, id: MoveId) -> Answer<Value> {
        if self.entry(session, id, Entry::is_finished)? {
            return self.get(session, id);
        }
        self.act(session, id, Act::Resume).await
    }

    /// Takes a move back, while no handoff is signed, and waits until source and target have heard it or it is clear that they do not
    /// answer. With [`Leave::Offline`] the source is given up: the move ends without it, and nothing of it is sent there again.
    ///
    /// # Errors
    /// `E_MOVE_STATE` once the handoff is signed or the move is over.
    pub async fn abort(&self, session: SessionId, id: MoveId, leave: Leave) -> Answer<Value> {
        self.act(session, id, |done| Act::Abort(leave, done)).await?;
        let mut told = self.entry(session, id, |entry| entry.told.clone())?;
        let settled = told.wait_for(|told| !told.is_running()).await;
        Ok(settled.map_err(|_| interrupted())?.object().clone())
    }

    /// Where a move stands.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`.
    pub fn get(&self, session: SessionId, id: MoveId) -> Answer<Value> {
        self.entry(session, id, Entry::shown)
    }

    /// Where a move stands; of one that goes on by itself, the next state, if it comes within `time`.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`.
    pub async fn wait(&self, session: SessionId, id: MoveId, time: Duration) -> Answer<Value> {
        let mut told = self.entry(session, id, |entry| entry.told.clone())?;
        let before = told.borrow_and_update().clone();
        if before.is_running() {
            let changed = told.wait_for(|now| now.differs(&before));
            // Nothing new in time, or the node ends: what is known is the answer.
            let _ = tokio::time::timeout(time, changed).await;
        }
        self.get(session, id)
    }

    /// All moves, the oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Value> {
        let driven = self.driven();
        let mut all: Vec<(&MoveId, &Entry)> = driven.iter().collect();
        all.sort_by_key(|(id, entry)| (entry.began, **id));
        all.into_iter().map(|(_, entry)| entry.shown()).collect()
    }

    /// Where each move stands, by id.
    #[must_use]
    pub fn courses(&self) -> Vec<Driven> {
        let driven = self.driven();
        let course = |(move_id, entry): (&MoveId, &Entry)| Driven {
            session: entry.session,
            move_id: *move_id,
            course: entry.told.borrow().course(),
        };
        driven.iter().map(course).collect()
    }

    /// How long a step of a move may go without progress before it counts as stuck.
    #[must_use]
    pub fn idle_max(&self) -> Duration {
        self.idle.unwrap_or(self.moves.limits.idle_max)
    }

    /// The same desk for somebody who waits so long, where `idle` says so: what is asked of a move through it holds for the move from
    /// then on, until this process ends.
    #[must_use]
    pub fn patient(mut self, idle: Option<Duration>) -> Self {
        self.idle = idle;
        self
    }

    // ---- moves in memory ------------------------------------------------------------------------------------------

    /// Reads the journals; what is not finished goes on if there is a network. A damaged one is told and left where it is:
    /// the node has other things to do.
    pub(super) fn read_journals(&self) -> Answer<()> {
        let goes_on = self.moves.road.is_open(&self.node);
        for journal in journal::all(&self.node.reader()?)? {
            let id = journal.move_id;
            let parked = self.park(journal);
            let started = parked
                .and_then(|finished| if goes_on && !finished { self.running(id).map(drop) } else { Ok(()) });
            if let Err(problem) = started {
                tracing::error!(%id, "a move cannot go on: {problem}");
            }
        }
        self.forget_oldest()
    }

    /// Shows a move from its journal; says whether it is finished.
    fn park(&self, journal: Journal) -> Answer<bool> {
        let driver = Driver::from_bytes(Duration::ZERO, &journal.driver, self.moves.limits)?;
        let Journal { move_id, began, driver: parked, waits, shown } = journal;
        let told = Told::parked(&driver, shown, waits);
        let finished = told.is_over();
        let (session, told) = (driver.plan().session, watch::channel(told).1);
        self.driven().insert(move_id, Entry { session, began, told, acts: None, parked: Some(parked) });
        Ok(finished)
    }

    /// Keeps the finished moves from piling up.
    fn forget_oldest(&self) -> Answer<()> {
        let mut driven = self.driven();
        let mut finished: Vec<(UnixMillis, MoveId)> = driven
            .iter()
            .filter(|(_, entry)| entry.is_finished())
            .map(|(id, entry)| (entry.began, *id))
            .collect();
        finished.sort_unstable();
        let over = finished.len().saturating_sub(FINISHED_MAX);
        for (_, id) in finished.into_iter().take(over) {
            driven.remove(&id);
            journal::forget(&self.node, id)?;
        }
        Ok(())
    }

    /// The task of a move; a parked one is started.
    fn running(&self, id: MoveId) -> Answer<mpsc::Sender<Act>> {
        let mut driven = self.driven();
        let entry = driven.get_mut(&id).ok_or_else(unknown)?;
        if let Some(acts) = &entry.acts {
            return Ok(acts.clone());
        }
        let journal = entry.parked.take().ok_or_else(interrupted)?;
        let driver = Driver::from_bytes(Duration::ZERO, &journal, self.moves.limits)?;
        let plan = driver.plan();
        let owner = standing(&self.node.reader()?, plan.session)?.row.owner;
        let from = plan.origin.server().map(|peer| self.name(peer)).transpose()?;
        let names = Names { from, to: self.name(plan.target)? };
        let Handles { acts, told } =
            Drive::start(self.clone(), (driver, owner, names), entry.began, Progress::after(entry.shown()));
        entry.acts = Some(acts.clone());
        entry.told = told;
        Ok(acts)
    }

    async fn act(&self, session: SessionId, id: MoveId, act: impl FnOnce(Done) -> Act) -> Answer<Value> {
        if self.entry(session, id, Entry::is_finished)? {
            return Err(Problem::new(Code::MoveState, "the move is over")
                .with("move", id.to_string())
                .hint(format!("throughline status {}", session.short())));
        }
        let desk = self.clone();
        let acts = self.blocking(move |_| desk.running(id)).await?;
        if let Some(idle) = self.idle {
            let _ = acts.send(Act::Patience(idle)).await;
        }
        let (done, answer) = oneshot::channel();
        // A task that ended meanwhile drops the act, and with it the way back.
        let _ = acts.send(act(done)).await;
        answer.await.map_err(|_| interrupted())??;
        self.get(session, id)
    }

    fn entry<T>(&self, session: SessionId, id: MoveId, read: impl FnOnce(&Entry) -> T) -> Answer<T> {
        let driven = self.driven();
        driven.get(&id).filter(|entry| entry.session == session).map(read).ok_or_else(unknown)
    }

    pub(super) fn driven(&self) -> MutexGuard<'_, BTreeMap<MoveId, Entry>> {
        self.moves.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) fn expect_none_open(driven: &BTreeMap<MoveId, Entry>, session: SessionId) -> Answer<()> {
    let open = driven.iter().find(|(_, entry)| entry.session == session && !entry.is_finished());
    match open {
        None => Ok(()),
        Some((id, entry)) => {
            let (what, hint) = if entry.told.borrow().is_rolling_back() {
                (
                    "another move of this session is being taken back, and the server that it leaves does not answer",
                    format!(
                        "throughline move --resume {0} to ask again, or throughline move --abort {0} --source offline to \
                         give that server up",
                        session.short()
                    ),
                )
            } else {
                (
                    "another move of this session is not finished",
                    format!(
                        "throughline move --resume {0} to go on, or throughline move --abort {0} to take it back",
                        session.short()
                    ),
                )
            };
            Err(Problem::new(Code::MoveState, what)
                .with("session", session.to_string())
                .with("move", id.to_string())
                .hint(hint))
        }
    }
}

fn unknown() -> Problem {
    Problem::new(Code::NotFoundYet, "this node drives no such move of this session")
}

fn interrupted() -> Problem {
    Problem::new(Code::Interrupted, "the node is ending, or the move ended meanwhile")
}
