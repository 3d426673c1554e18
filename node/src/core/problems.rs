//! What is wrong with a session, each with the command that goes on: the `problems` of lists and `status`. `docs/OPERATIONS.md`.
//!
//! It decides from the row of a session, the grants of its owner, this node's sign guard where it is the holder, where the moves
//! stand that it drives, and the time. Grants and moves are read once for all sessions, and a chain state only of a session that
//! something is said about, so that a thousand sessions are told at once. It must never refuse anything: who may sign is for
//! [`super::may`], whose order of refusals it keeps, so that what helps most stands alone. What cannot be read is a problem of its
//! own. A move under way is none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};
use throughline_protocol::clock;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Grant, Role};
use throughline_protocol::fork::{Ending, Mark};
use throughline_protocol::handoff::{Limits, MoveId};
use throughline_protocol::id::{AgentIri, Cid, Codec, Epoch, HashKind, Principal, SessionId, UnixMillis};
use throughline_protocol::verify::ChainState;
use throughline_store::{GuardError, Reader, SessionRow, SessionState};

use super::controls::controls_of;
use super::{Node, now};
use crate::api::error::{Answer, Problem};
use crate::moves::{Course, Driven, Halt, Halted};

/// How a grant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Force {
    Live,
    Revoked,
    Never,
}

/// The writer grants of an owner, by delegate.
type Writers = BTreeMap<Principal, Vec<(Grant, Force)>>;

/// What the problems of sessions are told from, over one snapshot.
pub struct Lookout<'a> {
    reader: &'a Reader,
    own: Principal,
    /// Owners whose grants were read, or why they could not be.
    owners: BTreeMap<Principal, Result<Writers, Problem>>,
    /// The moves that this node drives; one of a session is open at a time.
    open: BTreeMap<SessionId, Driven>,
    /// Those that it drove.
    over: BTreeSet<MoveId>,
    now: UnixMillis,
    /// How long a step of a move may go without progress.
    idle_max: Duration,
}

impl<'a> Lookout<'a> {
    /// Over a snapshot of the node's store.
    #[must_use]
    pub fn new(node: &Node, reader: &'a Reader) -> Self {
        Lookout::at(node, reader, now())
    }

    /// As [`Lookout::new`], for a given time.
    #[must_use]
    pub fn at(node: &Node, reader: &'a Reader, now: UnixMillis) -> Self {
        // A node that moves no sessions has no desk.
        let desk = node.moves().ok();
        let idle_max = desk.as_ref().map_or_else(|| Limits::default().idle_max, |desk| desk.idle_max());
        let driven = desk.map(|desk| desk.courses()).unwrap_or_default();
        let (over, open): (Vec<_>, Vec<_>) =
            driven.into_iter().partition(|driven| driven.course == Course::Over);
        Lookout {
            reader,
            own: node.principal(),
            owners: BTreeMap::new(),
            open: open.into_iter().map(|driven| (driven.session, driven)).collect(),
            over: over.into_iter().map(|driven| driven.move_id).collect(),
            now,
            idle_max,
        }
    }

    /// What is wrong with a session, as objects of `code`, `message`, `by` (whose act helps) and `fix`.
    pub fn of(&mut self, row: &SessionRow) -> Vec<Value> {
        let mut found: Vec<Value> = by_verdict(row).into_iter().chain(behind(row)).collect();
        match self.reader.is_to_judge(row.session) {
            Ok(true) => found.push(unjudged()),
            Ok(false) => {}
            Err(unread) => found.push(unreadable(&unread.into())),
        }
        if let Some(Driven { course: Course::Halted(why), .. }) = self.open.get(&row.session) {
            found.push(halted(row, why));
        }
        found.extend(self.of_clock(row));
        match row.state {
            SessionState::Frozen { epoch, move_id } => {
                found.extend(self.of_freeze(row, epoch, MoveId::from_bytes(move_id)));
            }
            SessionState::Active | SessionState::Retired { .. } => match self.of_holder(row) {
                Ok(problem) => found.extend(problem),
                Err(unread) => found.push(unreadable(&unread)),
            },
        }
        found
    }

    /// A clock that was ahead when its entry came, until that time has come here too. Nothing waits for it.
    fn of_clock(&self, row: &SessionRow) -> Option<Value> {
        let ahead = row.ahead.filter(|ahead| ahead.ts > self.now)?;
        let message = format!(
            "seq {} was signed by a clock that was {} ahead of this one when it came; those after it repeat its time",
            ahead.seq,
            clock::length(ahead.by_ms)
        );
        let fix = format!("throughline log {}, then set the clock of its signer", row.session.short());
        Some(problem(Code::Future.name(), &message, By::Operator, fix))
    }

    /// Whether a freeze is none of a move under way. Where another node drives the move, this one knows since when its row stands
    /// as it does, and nothing else: a step of a move that takes longer than [`Limits::idle_max`] is not told from one that is stuck.
    fn of_freeze(&self, row: &SessionRow, epoch: Epoch, move_id: MoveId) -> Option<Value> {
        let is_left = match self.open.get(&row.session) {
            // It is told already.
            Some(Driven { course: Course::Halted(_), .. }) => false,
            Some(driven) if driven.move_id == move_id => false,
            Some(_) | None => self.over.contains(&move_id) || self.is_overdue(row),
        };
        is_left.then(|| frozen(row, epoch.get()))
    }

    /// Whether a row stands as it does for longer than a step of a move may take. A time that lies as far ahead is that of
    /// a clock that was set back since, so it says nothing: who waits for it is told.
    fn is_overdue(&self, row: &SessionRow) -> bool {
        u128::from(self.now.get().abs_diff(row.changed.get())) >= self.idle_max.as_millis()
    }

    /// Why the holder cannot go on; none when it can, or when something else has to be settled first.
    fn of_holder(&mut self, row: &SessionRow) -> Answer<Option<Value>> {
        let is_settled = matches!(row.summary.verdict.as_str(), "valid" | "revoked-tail" | "fenced-tail");
        let Some(holder) = row.summary.holder.filter(|_| is_settled && row.fence <= row.tip.epoch) else {
            return Ok(None);
        };
        let found = match self.force(row, holder)? {
            Force::Revoked => Some(problem(
                Code::Revoked.name(),
                "the grant of the holder was revoked: nobody can append until the owner moves the session",
                By::Owner,
                format!("throughline move {} --to PEER", row.session.short()),
            )),
            Force::Never => Some(problem(
                Code::CapMissing.name(),
                "the holder has no grant for this session: nobody can append",
                By::Owner,
                format!("throughline grant {holder} --agent {}", row.agent),
            )),
            Force::Live => self.of_guard(row, holder)?,
        };
        // A tail beside a sealed session hides the seal from its verdict; nobody has to append there.
        if found.is_some() && self.is_sealed(row)? { Ok(None) } else { Ok(found) }
    }

    /// Whether a key may write the session as its holder.
    fn force(&mut self, row: &SessionRow, holder: Principal) -> Answer<Force> {
        if holder == row.owner {
            return Ok(Force::Live);
        }
        let reader = self.reader;
        let writers = self.owners.entry(row.owner).or_insert_with(|| writers_of(reader, row.owner));
        let writers = writers.as_ref().map_err(Clone::clone)?;
        let Some(grants) = writers.get(&holder) else { return Ok(Force::Never) };
        let agent: AgentIri = row.agent.parse().map_err(Problem::from)?;
        let fitting = grants.iter().filter(|(grant, _)| grant.covers(row.session, &agent));
        Ok(fitting.map(|(_, force)| *force).fold(Force::Never, |best, force| match (best, force) {
            (Force::Live, _) | (_, Force::Live) => Force::Live,
            (Force::Revoked, _) | (_, Force::Revoked) => Force::Revoked,
            (Force::Never, Force::Never) => Force::Never,
        }))
    }

    /// Whether this node, as the holder, may sign the next entry.
    fn of_guard(&self, row: &SessionRow, holder: Principal) -> Answer<Option<Value>> {
        if holder != self.own || row.state != SessionState::Active {
            return Ok(None);
        }
        let guard = self.reader.check_guard(row, row.tip.epoch, row.tip)?;
        Ok(guard.err().map(|why| {
            let (by, fix) = match why {
                // Before that no answer to an offer can be noted.
                GuardError::Damaged => (By::Operator, "throughline fsck --repair".to_owned()),
                GuardError::NoRow
                | GuardError::NotDescendant { .. }
                | GuardError::EpochBehind { .. }
                | GuardError::NotTakenOver { .. }
                | GuardError::Unknown { .. }
                | GuardError::NotOurs => {
                    (By::Owner, format!("throughline move {} --to self", row.session.short()))
                }
            };
            problem(
                Code::SignGuard.name(),
                &format!("this node may not sign here until a handoff: {why}"),
                by,
                fix,
            )
        }))
    }

    fn is_sealed(&self, row: &SessionRow) -> Answer<bool> {
        let Some(bytes) = self.reader.chain_state(row.session)? else { return Ok(false) };
        Ok(ChainState::from_bytes(&bytes)?.position().ending == Ending::Sealed)
    }
}

fn writers_of(reader: &Reader, owner: Principal) -> Answer<Writers> {
    let controls = controls_of(reader, owner, None)?;
    let mut writers = Writers::new();
    for (hash, capability) in controls.capabilities() {
        let Ok(grant) = capability.grant() else { continue };
        if grant.owner != owner || grant.role != Role::Writer {
            continue;
        }
        let cid = Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash);
        let force = if controls.revoked_by(&cid, owner).is_none() { Force::Live } else { Force::Revoked };
        writers.entry(grant.delegate).or_default().push((grant, force));
    }
    Ok(writers)
}

/// Who can do something about a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// The owner of the session: what helps is signed with the owner key.
    Owner,
    /// Whoever runs this node.
    Operator,
}

impl By {
    fn word(self) -> &'static str {
        match self {
            By::Owner => "owner",
            By::Operator => "operator",
        }
    }
}

fn problem(code: &str, message: &str, by: By, fix: String) -> Value {
    json!({"code": code, "message": message, "by": by.word(), "fix": fix})
}

fn unreadable(why: &Problem) -> Value {
    problem(why.code().name(), why.detail(), By::Operator, "throughline fsck --repair".to_owned())
}

/// What selection said.
fn by_verdict(row: &SessionRow) -> Option<Value> {
    let (code, message, by, command) = match row.summary.verdict.as_str() {
        "forked" => ("EV_EQUIVOCATION", "the holder signed two histories", By::Owner, "fork"),
        "frozen" => ("EV_OWNER_EQUIVOCATION", "the owner opened one epoch twice", By::Owner, "fork"),
        "revoked-tail" => (
            "E_REVOKED",
            "entries of a revoked key lie after the last anchor; they do not count",
            By::Operator,
            "verify",
        ),
        "fenced-tail" => (
            "E_FENCED",
            "a server went on after it was handed over; its entries do not count",
            By::Operator,
            "fork",
        ),
        "incomplete" => ("E_INCOMPLETE", "blobs that are needed to judge are missing", By::Operator, "fetch"),
        _ => return None,
    };
    let fix = match command {
        "fork" if code == "E_FENCED" => bring_back(row),
        command => format!("throughline {command} {}", row.session.short()),
    };
    Some(problem(code, message, by, fix))
}

/// A revocation was kept and could not be applied to the session; all others of the owner were judged.
fn unjudged() -> Value {
    problem(
        Code::Revoked.name(),
        "a revocation is kept here and was not applied to this session yet, so its verdict may be wrong",
        By::Operator,
        "throughline fsck --repair".to_owned(),
    )
}

fn behind(row: &SessionRow) -> Option<Value> {
    if row.fence <= row.tip.epoch {
        return None;
    }
    let is_left = matches!(row.state, SessionState::Retired { .. });
    Some(if is_left {
        problem(
            "E_FENCED",
            "the owner handed this session over while this node was away: it signs here no more, and what it signed since does not count",
            By::Operator,
            bring_back(row),
        )
    } else {
        problem(
            "E_FENCED",
            "a later epoch exists and is not held here",
            By::Operator,
            format!("throughline fetch {}", row.session.short()),
        )
    })
}

fn bring_back(row: &SessionRow) -> String {
    format!("throughline fork {} --bring-back", row.session.short())
}

/// A peer told a head that is no part of the history here: it went on after it was left, or somebody signed two histories.
#[must_use]
pub fn diverged(row: &SessionRow, peer: &str, told: Mark) -> Value {
    let (session, seq, epoch) = (row.session.short(), told.seq, told.epoch);
    if told.epoch < row.tip.epoch {
        let message = format!(
            "{peer} went on to seq {seq} of epoch {epoch} after the session was handed over; that does not count"
        );
        return problem("E_FENCED", &message, By::Operator, format!("{}, on {peer}", bring_back(row)));
    }
    let message = format!("{peer} tells seq {seq} of epoch {epoch}, which is no part of the history here");
    problem(
        "E_REF_INCONSISTENT",
        &message,
        By::Operator,
        format!("throughline fetch {session} --from {peer}"),
    )
}

/// This node stands still for a move that is stuck, or that nobody drives.
fn frozen(row: &SessionRow, epoch: u64) -> Value {
    problem(
        Code::Frozen.name(),
        &format!("this node stopped at the end of epoch {epoch} for a handoff that has not come yet"),
        By::Owner,
        format!("throughline move --resume {}, on the node that began the move", row.session.short()),
    )
}

/// A move that this node drives waits, or is being taken back. It goes on where the handoff can be signed.
fn halted(row: &SessionRow, halted: &Halted) -> Value {
    let session = row.session.short();
    let resume = format!("throughline move --resume {session}");
    let (from, to) = (halted.from.as_deref().unwrap_or("a peer"), &halted.to);
    match halted.why {
        Halt::RollingBack(code) => problem(
            code.name(),
            &format!("a move is being taken back, and {from} has not heard it: it may stand still"),
            By::Owner,
            format!("{resume}, or without it: throughline move --abort {session} --source offline"),
        ),
        Halt::NeedsHandoff => problem(
            Code::MoveState.name(),
            &format!("a move to {to} waits for the owner to sign the handoff"),
            By::Owner,
            resume,
        ),
        Halt::NeedsConfirmation => problem(
            Code::MoveState.name(),
            &format!("a move to {to} asks whether it is to go on"),
            By::Owner,
            resume,
        ),
        Halt::Waiting(code) => {
            problem(code.name(), &format!("a move to {to} waits for an answer"), By::Owner, resume)
        }
    }
}
