//! What is wrong with a session, each with the command that goes on: the `problems` of lists and `status`. `docs/OPERATIONS.md`.
//!
//! It decides from the row of a session, the grants of its owner, this node's sign guard where it is the holder, and the moves
//! that it drives. Grants and moves are read once for all sessions, and a chain state only of a session that something is said
//! about, so that a thousand sessions are told at once. It must never refuse anything: who may sign is for [`super::may`],
//! whose order of refusals it keeps, so that what helps most stands alone. What cannot be read is a problem of its own.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::control::{Grant, Role};
use throughline_protocol::fork::Ending;
use throughline_protocol::id::{AgentIri, Cid, Codec, HashKind, Principal, SessionId};
use throughline_protocol::verify::ChainState;
use throughline_store::{Reader, SessionRow, SessionState};

use super::Node;
use super::controls::controls_of;
use crate::api::error::{Answer, Problem};

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
    /// Moves of this node that do not go on by themselves, as they are shown.
    moves: BTreeMap<SessionId, Value>,
}

impl<'a> Lookout<'a> {
    /// Over a snapshot of the node's store.
    #[must_use]
    pub fn new(node: &Node, reader: &'a Reader) -> Self {
        // A node that moves no sessions has no desk.
        let moves = node.moves().map(|desk| desk.halted().into_iter().collect()).unwrap_or_default();
        Lookout { reader, own: node.principal(), owners: BTreeMap::new(), moves }
    }

    /// What is wrong with a session, as objects of `code`, `message` and `fix`.
    pub fn of(&mut self, row: &SessionRow) -> Vec<Value> {
        let mut found: Vec<Value> = by_verdict(row).into_iter().chain(behind(row)).collect();
        let halted = self.moves.get(&row.session).map(|told| halted(row, told));
        let is_moving = halted.is_some();
        found.extend(halted);
        match row.state {
            SessionState::Frozen { epoch, .. } if !is_moving => found.push(frozen(row, epoch.get())),
            SessionState::Frozen { .. } => {}
            SessionState::Active | SessionState::Retired { .. } => match self.of_holder(row) {
                Ok(problem) => found.extend(problem),
                Err(unread) => found.push(unreadable(&unread)),
            },
        }
        found
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
                format!("throughline move {} --to PEER", row.session.short()),
            )),
            Force::Never => Some(problem(
                Code::CapMissing.name(),
                "the holder has no grant for this session: nobody can append",
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
        let guard = self.reader.check_guard(row.session, row.tip.epoch, row.tip)?;
        Ok(guard.err().map(|why| {
            problem(
                Code::SignGuard.name(),
                &format!("this node may not sign here until a handoff: {why}"),
                format!("throughline move {} --to self", row.session.short()),
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

fn problem(code: &str, message: &str, fix: String) -> Value {
    json!({"code": code, "message": message, "fix": fix})
}

fn unreadable(why: &Problem) -> Value {
    problem(why.code().name(), why.detail(), "throughline fsck --repair".to_owned())
}

/// What selection said.
fn by_verdict(row: &SessionRow) -> Option<Value> {
    let (code, message, command) = match row.summary.verdict.as_str() {
        "forked" => ("EV_EQUIVOCATION", "the holder signed two histories", "fork"),
        "frozen" => ("EV_OWNER_EQUIVOCATION", "the owner opened one epoch twice", "fork"),
        "revoked-tail" => {
            ("E_REVOKED", "entries of a revoked key lie after the last anchor; they do not count", "verify")
        }
        "fenced-tail" => {
            ("E_FENCED", "a server went on after it was handed over; its entries do not count", "verify")
        }
        "incomplete" => ("E_INCOMPLETE", "blobs that are needed to judge are missing", "fetch"),
        _ => return None,
    };
    Some(problem(code, message, format!("throughline {command} {}", row.session.short())))
}

fn behind(row: &SessionRow) -> Option<Value> {
    (row.fence > row.tip.epoch).then(|| {
        problem(
            "E_FENCED",
            "a later epoch exists and is not held here",
            format!("throughline fetch {}", row.session.short()),
        )
    })
}

/// This node stands still for a move that another one drives.
fn frozen(row: &SessionRow, epoch: u64) -> Value {
    problem(
        Code::Frozen.name(),
        &format!("this node stopped at the end of epoch {epoch} for a handoff that has not come yet"),
        format!("throughline move --resume {}, on the node that began the move", row.session.short()),
    )
}

/// A move that this node drives waits, or is being taken back.
fn halted(row: &SessionRow, told: &Value) -> Value {
    let session = row.session.short();
    let peer = |end: &str| told[end]["peer"].as_str().unwrap_or("a peer").to_owned();
    let code = told["error"]["code"].as_str();
    let resume = format!("throughline move --resume {session}");
    match (told["state"].as_str(), told["phase"].as_str()) {
        (_, Some("rollback")) => problem(
            code.unwrap_or(Code::Unreachable.name()),
            &format!("a move is being taken back, and {} has not heard it: it may stand still", peer("from")),
            format!("{resume}, or without it: throughline move --abort {session} --source offline"),
        ),
        (Some("needs-handoff"), _) => problem(
            Code::MoveState.name(),
            &format!("a move to {} waits for the owner to sign the handoff", peer("to")),
            resume,
        ),
        (Some("needs-confirmation"), _) => problem(
            Code::MoveState.name(),
            &format!("a move to {} asks whether it is to go on", peer("to")),
            resume,
        ),
        (_, _) => problem(
            code.unwrap_or(Code::Unreachable.name()),
            &format!("a move to {} waits for an answer", peer("to")),
            resume,
        ),
    }
}
