//! Append as holder: entries that a program on this machine states, signed by the node's key.
//!
//! The order of the checks is the order in which a refusal helps most: the same request again, where the session stands,
//! who holds it, what the guard allows, then the entries themselves.

use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::fork::{Controls, Ending, Holds, Mark};
use throughline_protocol::id::{EntryCid, SessionId};
use throughline_protocol::limits;
use throughline_protocol::verify::{Ancestry, Verifier, VerifiedSegment};
use throughline_protocol::view::EntryDraft;
use throughline_store::{
    AdoptOptions, Adopted, GuardUse, Idempotency, Reader, Scope, SessionState, Used,
};

use super::base::{Standing, head_moved, standing};
use super::controls::{controls_of, grant_of};
use super::seal_up::{links_of, sign_on};
use super::{Node, now, random, shape, summary};
use crate::api::error::{Answer, Problem};

/// What to append.
#[derive(Clone, Debug)]
pub struct AppendRequest {
    /// The session.
    pub session: SessionId,
    /// The head that the caller built on.
    pub base: EntryCid,
    /// The entries, in order; all or nothing.
    pub entries: Vec<EntryDraft>,
    /// The request's key and the sha-256 of its body.
    pub key: Option<(String, [u8; 32])>,
    /// Check everything and store nothing.
    pub dry_run: bool,
}

/// What an append gave.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The answer object.
    pub answer: Value,
    /// Whether the same request was answered before.
    pub replayed: bool,
}

/// Answers for links to earlier entries from the store's index.
pub(super) struct Held<'r> {
    pub(super) reader: &'r Reader,
    pub(super) session: SessionId,
}

impl Ancestry for Held<'_> {
    fn holds(&self, cid: EntryCid, tip: Mark) -> Holds {
        match self.reader.is_ancestor(self.session, cid, tip.seq) {
            Ok(true) => Holds::Yes,
            Ok(false) => Holds::No,
            Err(_) => Holds::Unknown,
        }
    }
}

impl Node {
    /// Appends entries as the session's holder.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`, `E_IDEMPOTENCY`, `E_HEAD_MOVED`, `E_FROZEN`, `E_RETIRED`, `E_FENCED`, `E_SEALED`, `E_NOT_HOLDER`, `E_REVOKED`, `E_CAP_MISSING`,
    /// `E_SIGN_GUARD`, or what the schema refuses. Nothing is stored then.
    pub fn append(&self, request: &AppendRequest) -> Answer<Appended> {
        let reader = self.reader()?;
        if let Some(appended) = replay(&reader, request)? {
            return Ok(appended);
        }
        if request.entries.is_empty() || request.entries.len() > limits::APPEND_ENTRIES_MAX {
            let what = format!("expected 1 to {} entries, got {}", limits::APPEND_ENTRIES_MAX, request.entries.len());
            return Err(Problem::new(Code::ApiBody, what));
        }
        let standing = standing(&reader, request.session)?;
        self.may_sign(&reader, &standing)?;
        if request.base != standing.state.tip().cid {
            return Err(head_moved(&reader, &standing, request.base)?);
        }
        let controls = controls_of(&reader, standing.row.owner, Some(request.session))?;
        let segment = self.sign_entries(&reader, &standing, controls, &request.entries)?;
        let answer = answer_of(request.session, &segment, false);
        if request.dry_run {
            return Ok(Appended { answer, replayed: false });
        }
        let options = AdoptOptions {
            guard: GuardUse::Signed(self.principal()),
            idempotency: request.key.as_ref().map(|(key, hash)| Idempotency {
                scope: Scope::Session(request.session),
                key: key.clone(),
                request: *hash,
                result: answer.to_string().into_bytes(),
                expires: None,
            }),
            links: links_of(segment.entries())?,
            summary: summary::after_extension(Some(&standing.row), &segment)?,
            ..AdoptOptions::at(now())
        };
        let appended = match self.store().adopt(segment, options)? {
            Adopted::Now { .. } => Appended { answer, replayed: false },
            Adopted::Replayed { result } => kept(&result)?,
        };
        self.after_commit(request.session);
        Ok(appended)
    }

    /// Whether this node may sign the next entry as holder.
    pub(super) fn may_sign(&self, reader: &Reader, standing: &Standing) -> Answer<()> {
        let (row, state) = (&standing.row, &standing.state);
        let at = |problem: Problem| {
            problem
                .with("session", row.session.to_string())
                .with("head", shape::mark(&state.tip()))
                .with("holder", state.holder().map(|holder| holder.to_string()))
                .hint(format!("throughline status {}", row.session.short()))
        };
        match row.state {
            SessionState::Frozen { epoch, .. } => {
                return Err(at(Problem::new(Code::Frozen, format!("frozen at epoch {epoch} for a handoff"))));
            }
            SessionState::Retired { epoch } => {
                return Err(at(Problem::new(Code::Retired, format!("handed over after epoch {epoch}"))));
            }
            SessionState::Active => {}
        }
        if matches!(row.summary.verdict.as_str(), "forked" | "frozen") {
            let code = if row.summary.verdict == "forked" { Code::Equivocation } else { Code::OwnerEquivocation };
            return Err(at(Problem::new(code, "two histories are held; the owner has to decide")));
        }
        if state.position().ending == Ending::Sealed {
            return Err(at(Problem::new(Code::Sealed, format!("sealed at seq {}", state.tip().seq))));
        }
        if row.fence > state.tip().epoch {
            return Err(at(Problem::new(Code::Fenced, format!("epoch {} has begun elsewhere", row.fence))));
        }
        if state.holder() != Some(self.principal()) {
            let holder = state.holder().map_or_else(|| "nobody".to_owned(), |holder| holder.short());
            return Err(at(Problem::new(Code::NotHolder, format!("{holder} holds the session in this epoch"))));
        }
        reader
            .check_guard(row.session, state.tip().epoch, state.tip())?
            .map_err(|guard| at(Problem::new(Code::SignGuard, guard.to_string())))
    }

    fn sign_entries(
        &self,
        reader: &Reader,
        standing: &Standing,
        controls: Controls,
        entries: &[EntryDraft],
    ) -> Answer<VerifiedSegment> {
        let (session, owner, agent) = (standing.row.session, standing.row.owner, standing.state.agent());
        let granted = grant_of(&controls, owner, self.principal(), Role::Writer, Some((session, agent)));
        let authority = granted.authority(owner, self.principal(), agent)?;
        let mut verifier = Verifier::resume(standing.state.clone(), controls).with_ancestry(Held { reader, session });
        for (at, draft) in entries.iter().enumerate() {
            sign_on(&mut verifier, draft, Some(authority), now(), random()?, self.key())
                .map_err(|problem| problem.with("entry", at))?;
        }
        verifier.finish()?.ok_or_else(|| Problem::new(Code::Internal, "nothing was signed"))
    }
}

/// The answer of an earlier, equal request.
fn replay(reader: &Reader, request: &AppendRequest) -> Answer<Option<Appended>> {
    let Some((key, hash)) = &request.key else { return Ok(None) };
    match reader.idempotency(&Scope::Session(request.session), key, hash)? {
        Used::Never => Ok(None),
        Used::Same(result) => kept(&result).map(Some),
        Used::Other => Err(Problem::new(Code::Idempotency, format!("key `{}` stands for another request", clean(key)))),
    }
}

/// A kept answer, marked as a repeat.
pub(super) fn kept(result: &[u8]) -> Answer<Appended> {
    let mut answer: Value = serde_json::from_slice(result)
        .map_err(|_| Problem::new(Code::StoreCorrupt, "the kept answer of an idempotency key is not readable"))?;
    answer["replayed"] = true.into();
    Ok(Appended { answer, replayed: true })
}

fn clean(key: &str) -> String {
    key.chars().filter(|c| !c.is_control()).take(64).collect()
}

/// The answer object of an append.
pub(super) fn answer_of(session: SessionId, segment: &VerifiedSegment, replayed: bool) -> Value {
    let entries: Vec<Value> = segment
        .entries()
        .iter()
        .map(|entry| {
            let signed = entry.signed();
            json!({
                "cid": signed.cid().to_string(),
                "seq": signed.value().seq().get(),
                "type": signed.value().body.type_name(),
            })
        })
        .collect();
    let tip = segment.after().tip();
    json!({
        "v": 1, "kind": "append", "session": session.to_string(), "entries": entries,
        "head": {"cid": tip.cid.to_string(), "seq": tip.seq.get()}, "epoch": tip.epoch.get(),
        "replayed": replayed, "durable": true,
    })
}
