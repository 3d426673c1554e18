//! Append as holder: entries that a program on this machine states, signed by the node's key.
//!
//! The order of the checks is the order in which a refusal helps most: the same request again, where the session stands,
//! who holds it, what the guard allows, then the entries themselves.

use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::fork::{Controls, Holds, Mark};
use throughline_protocol::id::{EntryCid, SessionId};
use throughline_protocol::limits;
use throughline_protocol::verify::{Ancestry, ChainState, VerifiedSegment, Verifier};
use throughline_protocol::view::EntryDraft;
use throughline_store::{
    AdoptError, AdoptOptions, Adopted, GuardUse, Idempotency, Naming, Reader, Scope, SessionRow, Used,
};

use super::base::{Standing, head_moved};
use super::controls::grant_of;
use super::create::RequestKey;
use super::seal_up::{check_payloads, links_of, sign_on};
use super::stated::Stated;
use super::{Node, now, random, summary};
use crate::api::error::{Answer, Problem};

/// What to append.
#[derive(Clone, Debug)]
pub struct AppendRequest {
    /// The session.
    pub session: SessionId,
    /// The head that the caller built on. Only the first append to a draft may leave it out.
    pub base: Option<EntryCid>,
    /// The entries, in order; all or nothing.
    pub entries: Vec<EntryDraft>,
    /// The request's key and the sha-256 of its body.
    pub key: Option<RequestKey>,
    /// Check everything and store nothing.
    pub dry_run: bool,
}

/// Stands before the idempotency keys of programs, so that they never meet those that the node keeps for itself.
pub const PROGRAM_KEYS: &str = "http:";

/// Whether something is done, or only tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Real,
    DryRun,
}

impl Use {
    pub(super) fn of(dry_run: bool) -> Self {
        if dry_run { Use::DryRun } else { Use::Real }
    }
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
    /// `E_SIGN_GUARD`, `E_INPUT_NOT_FOUND` for a file that is not here, or what the schema or [`Stated`] refuses. Nothing is stored then.
    pub fn append(&self, request: &AppendRequest) -> Answer<Appended> {
        self.judge_if_owed(request.session)?;
        let turn = self.turn(request.session);
        let reader = self.reader()?;
        if let Some(appended) = replay(&reader, request)? {
            return Ok(appended);
        }
        if request.entries.is_empty() || request.entries.len() > limits::APPEND_ENTRIES_MAX {
            let what = format!(
                "expected 1 to {} entries, got {}",
                limits::APPEND_ENTRIES_MAX,
                request.entries.len()
            );
            return Err(Problem::new(Code::ApiBody, what));
        }
        if let Some(appended) = self.append_to_draft(request)? {
            return Ok(appended);
        }
        let genesis = request.session.genesis();
        if request.base.is_none_or(|base| base == genesis) && reader.session(request.session)?.is_none() {
            // Only a draft has no other entry to build on.
            return Err(Problem::from(Code::DraftGone).hint("post the session again with its first entry"));
        }
        let standing = self.standing(&reader, request.session)?;
        let base = request.base.ok_or_else(|| {
            Problem::new(Code::ApiBody, "the body needs `base`: the head that the entries were built on")
        })?;
        self.may_sign(&reader, &standing)?;
        if base != standing.state.tip().cid {
            return Err(head_moved(&reader, &standing, base)?);
        }
        let controls = self.warm().controls(&reader, standing.row.owner)?;
        let Standing { row, state } = standing;
        let segment = self.sign_entries(&reader, &row, state, &controls, &request.entries)?;
        let links = links_of(&reader, request.session, segment.entries(), Naming::Brings)?.at_hand()?;
        let answer = answer_of(request.session, &segment, Use::of(request.dry_run));
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
            links,
            naming: Naming::Brings,
            summary: summary::after_extension(&reader, Some(&row), &segment)?,
            ..AdoptOptions::at(now())
        };
        let told = options.summary.is_some();
        self.warm().keep_after(&segment);
        let key = request.key.as_ref();
        let appended = match self.store().adopt(segment, options).map_err(|error| refused(error, key))? {
            Adopted::Now { .. } => Appended { answer, replayed: false },
            Adopted::Replayed { result } => kept(&result)?,
        };
        drop(turn);
        if !told {
            self.judge_again(request.session)?;
        }
        self.after_commit(request.session);
        Ok(appended)
    }

    fn sign_entries(
        &self,
        reader: &Reader,
        row: &SessionRow,
        state: ChainState,
        controls: &Controls,
        entries: &[EntryDraft],
    ) -> Answer<VerifiedSegment> {
        let (session, owner, agent) = (row.session, row.owner, state.agent());
        let granted = grant_of(controls, owner, self.principal(), Role::Writer, Some((session, agent)));
        let authority = granted.authority(owner, self.principal(), agent)?;
        let mut verifier = Verifier::resume(state, controls.clone()).with_ancestry(Held { reader, session });
        let mut stated = Stated::new(reader, session);
        for (at, draft) in entries.iter().enumerate() {
            stated
                .check(draft)
                .and_then(|()| sign_on(&mut verifier, draft, Some(authority), now(), random()?, self.key()))
                .map_err(|problem| problem.with("entry", at))?;
        }
        let segment = verifier.finish()?.ok_or_else(|| Problem::new(Code::Internal, "nothing was signed"))?;
        check_payloads(reader, session, segment.entries())?;
        Ok(segment)
    }
}

/// The answer of an earlier, equal request.
fn replay(reader: &Reader, request: &AppendRequest) -> Answer<Option<Appended>> {
    let Some((key, hash)) = &request.key else { return Ok(None) };
    match reader.idempotency(&Scope::Session(request.session), key, hash)? {
        Used::Never => Ok(None),
        Used::Same(result) => kept(&result).map(Some),
        Used::Other => Err(used_otherwise(key)),
    }
}

/// A kept answer, marked as a repeat: by this in every answer of the API.
///
/// # Errors
/// `E_STORE_CORRUPT`.
pub(crate) fn kept(result: &[u8]) -> Answer<Appended> {
    let mut answer: Value = serde_json::from_slice(result).map_err(|_| {
        Problem::new(Code::StoreCorrupt, "the kept answer of an idempotency key is not readable")
    })?;
    answer["replayed"] = true.into();
    Ok(Appended { answer, replayed: true })
}

/// The refusal of a key that came with another request before, by the name that the caller gave it. Every such refusal is this one.
pub(crate) fn used_otherwise(key: &str) -> Problem {
    let given = key.strip_prefix(PROGRAM_KEYS).unwrap_or(key);
    let shown: String = given.chars().filter(|c| !c.is_control()).take(64).collect();
    Problem::new(Code::Idempotency, format!("key `{shown}` stands for another request"))
        .hint("send the first request again as it was, or this one under a key of its own")
}

/// The refusal of a commit: another request came under the key since it was looked for, or what the store says.
pub(super) fn refused(error: AdoptError, key: Option<&RequestKey>) -> Problem {
    match (error, key) {
        (AdoptError::Idempotency, Some((key, _))) => used_otherwise(key),
        (error, _) => error.into(),
    }
}

/// The answer object of an append that is made now, or that would be.
pub(super) fn answer_of(session: SessionId, segment: &VerifiedSegment, use_of: Use) -> Value {
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
        "replayed": false, "durable": use_of == Use::Real,
    })
}
