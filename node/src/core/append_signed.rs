//! Appends that arrive signed: what the owner, a device or a contributor says, put in order by the holder.
//!
//! The entry's own `prev` is its base. It is ordered by compare-and-append: on another head the answer is the conflict with
//! what to sign on, and nothing is stored. The owner's handoffs and seals open the next epoch, so any node takes them.

use std::sync::Arc;

use serde_json::{Value, json};
use throughline_protocol::block::{Block, Decoded, Signed, sha256};
use throughline_protocol::clock;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::fork::{Controls, Mark};
use throughline_protocol::id::{Cid, SessionId, UnixMillis};
use throughline_protocol::payload::{Payload, Words};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::verify::{Prechecked, Pushed, VerifiedSegment, Verifier};
use throughline_store::{
    AdoptOptions, Adopted, GuardUse, Idempotency, Naming, PayloadState, Reader, Scope, Used,
};

use super::append::{Appended, Held, Use, answer_of, kept};
use super::base::{Standing, head_moved, need_session};
use super::evaluate::Arrived;
use super::files::Blocks;
use super::seal_up::{blocks_of, check_payloads, links_of};
use super::{Node, now, summary};
use crate::api::error::{Answer, Problem};

/// A signed entry with what came along.
#[derive(Clone, Debug)]
pub struct SignedAppend {
    /// The session it was sent to.
    pub session: SessionId,
    /// The entry's bytes.
    pub entry: Arc<[u8]>,
    /// Its payload's bytes.
    pub payload: Option<Arc<[u8]>>,
    /// Capabilities that it needs, as bytes.
    pub grants: Vec<Vec<u8>>,
    /// Check everything and store nothing.
    pub dry_run: bool,
}

impl Node {
    /// Takes a signed entry into the chain, as its holder.
    ///
    /// # Errors
    /// `E_HEAD_MOVED` with what to sign on; `E_NOT_HOLDER`, `E_FROZEN`, `E_RETIRED`, `E_SEALED`, `E_REVOKED`; `W_FUTURE` for an entry that is too far ahead of
    /// this clock; `E_SCHEMA_EXCLUSIVE` for a payload that an earlier entry names; `E_INPUT_NOT_FOUND` for a payload, config block or file that is not
    /// here for the session; `E_CID_CODEC` for a file that can be none; or what the verifier refuses.
    pub fn append_signed(&self, request: &SignedAppend) -> Answer<Appended> {
        let mut keys = VerifyingKeys::default();
        let signed = Signed::<Entry>::check(Arc::clone(&request.entry), &mut keys)?;
        if signed.value().session(signed.cid()) != request.session {
            return Err(Problem::new(Code::SessionMismatch, "the entry is of another session"));
        }
        let owner = signed.value().owner();
        let mut grants: Vec<Signed<Control>> = Vec::new();
        for bytes in &request.grants {
            let control = Signed::<Control>::check(bytes.as_slice(), &mut keys)?;
            // What comes along has to be the owner's: nothing else can allow the entry, and nothing else is stored.
            match control.value() {
                Control::Capability(capability) if capability.signer == owner => grants.push(control),
                Control::Capability(_) | Control::Tombstone(_) | Control::Ref(_) => {
                    let what = "expected capabilities of the owner in `grants`";
                    return Err(Problem::new(Code::CapIssuer, what));
                }
            }
        }
        let payload = match &request.payload {
            Some(payload) => Some(Arc::clone(payload)),
            None => payload_here(&self.reader()?, request.session, signed.value())?,
        };
        let checked = Prechecked::of(signed, payload)?;
        checked.check_files()?;
        if opens(checked.signed().value()) {
            return self.take_opening(request, checked, grants);
        }
        self.order(request, checked, grants)
    }

    /// Blocks that an entry names, as far as that is known, and that are not here for its session; at most `limit`.
    ///
    /// # Errors
    /// What the entry or its payload is refused for.
    pub fn lacking(&self, entry: &Arc<[u8]>, payload: Option<Arc<[u8]>>, limit: usize) -> Answer<Vec<Cid>> {
        let entry = Signed::<Entry>::check(Arc::clone(entry), &mut VerifyingKeys::default())?;
        let session = entry.value().session(entry.cid());
        let reader = self.reader()?;
        let payload = match payload {
            Some(payload) => Some(payload),
            None => payload_here(&reader, session, entry.value())?,
        };
        let absent = entry.value().payload.filter(|_| payload.is_none()).map(|payload| payload.cid.cid());
        let checked = Prechecked::of(entry, payload)?;
        let mut lacking: Vec<Cid> = absent.into_iter().collect();
        for file in checked.files() {
            let room = limit.saturating_sub(lacking.len());
            lacking
                .extend(blocks_of(&reader, session, *file, Naming::Nothing)?.lacking.into_iter().take(room));
        }
        Ok(lacking)
    }

    /// Stores blocks that came for a session, leased until an entry of it links them.
    ///
    /// # Errors
    /// `E_STORE_FULL` where there is no room; when the disk refuses.
    pub fn put_blocks(&self, session: SessionId, blocks: Vec<Block>) -> Answer<()> {
        let mut put = Blocks::new(self, Some(session));
        blocks.into_iter().try_for_each(|block| put.put(block))?;
        put.finish().map(|_| ())
    }

    /// A handoff or the owner's seal: selection decides what it does.
    fn take_opening(
        &self,
        request: &SignedAppend,
        checked: Prechecked,
        grants: Vec<Signed<Control>>,
    ) -> Answer<Appended> {
        let session = request.session;
        let entry = checked.signed().clone();
        let reader = self.reader()?;
        need_session(&reader, session)?;
        if reader.entry(entry.cid())?.is_some_and(|(held, _)| held == session) {
            let row = need_session(&reader, session)?;
            return Ok(Appended {
                answer: opening_answer(&entry, &row.summary.verdict, row.tip, Told::Again),
                replayed: true,
            });
        }
        clock::check(entry.value().ts, ts_before(&reader, entry.value())?, now())?;
        let arrived = Arrived { entries: vec![checked], controls: grants, ..Arrived::default() };
        let (told, evaluated) = if request.dry_run {
            (Told::DryRun, self.try_in(session, &arrived)?)
        } else {
            (Told::Now, self.take_in(session, arrived)?)
        };
        if let Some((_, reject)) = evaluated.refused {
            return Err(reject.into());
        }
        let tip = evaluated.tip.ok_or(Code::Internal)?;
        Ok(Appended { answer: opening_answer(&entry, &evaluated.verdict, tip, told), replayed: false })
    }

    fn order(
        &self,
        request: &SignedAppend,
        checked: Prechecked,
        grants: Vec<Signed<Control>>,
    ) -> Answer<Appended> {
        let session = request.session;
        self.judge_if_owed(session)?;
        let turn = self.turn(session);
        let reader = self.reader()?;
        let message = message_key(&checked)?;
        if let Some(key) = &message
            && let Used::Same(result) =
                reader.idempotency(&Scope::Session(session), key, &sha256(key.as_bytes()))?
        {
            return kept(&result);
        }
        let standing = self.standing(&reader, session)?;
        let tip = standing.state.tip();
        if reader.is_ancestor(session, checked.signed().cid(), tip.seq)? {
            return Ok(Appended { answer: held_answer(checked.signed()), replayed: true });
        }
        let (segment, own) = self.place(&reader, &standing, checked, &grants)?;
        check_payloads(&reader, session, segment.entries())?;
        let links = links_of(&reader, session, segment.entries(), Naming::Nothing)?.at_hand()?;
        let answer = answer_of(session, &segment, Use::of(request.dry_run));
        if request.dry_run {
            return Ok(Appended { answer, replayed: false });
        }
        let options = AdoptOptions {
            guard: own,
            idempotency: message.map(|key| Idempotency {
                scope: Scope::Session(session),
                request: sha256(key.as_bytes()),
                key,
                result: answer.to_string().into_bytes(),
                expires: None,
            }),
            controls: grants,
            links,
            summary: summary::after_extension(&reader, Some(&standing.row), &segment)?,
            ..AdoptOptions::at(now())
        };
        let is_told = options.summary.is_some();
        self.warm().keep_after(&segment);
        let appended = match self.store().adopt(segment, options)? {
            Adopted::Now { .. } => Appended { answer, replayed: false },
            Adopted::Replayed { result } => kept(&result)?,
        };
        drop(turn);
        if !is_told {
            self.judge_again(session)?;
        }
        self.after_commit(session);
        Ok(appended)
    }

    /// Verifies an entry on the tip. An entry by this node's own key goes through the sign guard like any that is made here.
    fn place(
        &self,
        reader: &Reader,
        standing: &Standing,
        checked: Prechecked,
        grants: &[Signed<Control>],
    ) -> Answer<(VerifiedSegment, GuardUse)> {
        self.may_sign(reader, standing)?;
        let (session, owner) = (standing.row.session, standing.row.owner);
        let entry = checked.signed().value();
        let base = entry.prev().ok_or(Code::PrevMissing)?;
        if base != standing.state.tip().cid {
            return Err(head_moved(reader, standing, base)?);
        }
        clock::check(entry.ts, standing.state.position().ts, now())?;
        let mut controls = Controls::clone(&*self.warm().controls(reader, owner)?);
        for grant in grants {
            controls.insert(grant);
        }
        if let Some(authority) = entry.authority
            && controls.revoked_by(&authority.capability, owner).is_some()
        {
            // It would be anchored by the next entry of the holder, and count for ever.
            let what =
                format!("the grant {} of {} was revoked", authority.capability.short(), entry.signer.short());
            return Err(Problem::new(Code::Revoked, what));
        }
        let guard = if entry.signer == self.principal() {
            GuardUse::Signed(self.principal())
        } else {
            GuardUse::Untouched
        };
        let mut verifier =
            Verifier::resume(standing.state.clone(), controls).with_ancestry(Held { reader, session });
        if !matches!(verifier.link(checked)?, Pushed::Linked(..)) {
            return Err(head_moved(reader, standing, base)?);
        }
        Ok((verifier.finish()?.ok_or(Code::Internal)?, guard))
    }
}

/// The time of what an entry stands on, as far as that is held.
fn ts_before(reader: &Reader, entry: &Entry) -> Answer<UnixMillis> {
    let Some(prev) = entry.prev() else { return Ok(UnixMillis::default()) };
    let Some((_, stored)) = reader.entry(prev)? else { return Ok(UnixMillis::default()) };
    Ok(Decoded::<Entry>::decode(stored.bytes)?.value().ts)
}

/// The payload that an entry names, where its bytes were uploaded for the session before.
fn payload_here(reader: &Reader, session: SessionId, entry: &Entry) -> Answer<Option<Arc<[u8]>>> {
    let Some(named) = entry.payload else { return Ok(None) };
    if !reader.is_here(session, &named.cid.cid())? {
        return Ok(None);
    }
    Ok(match reader.payload(named.cid)? {
        PayloadState::Present(bytes) => Some(bytes.into()),
        PayloadState::Absent | PayloadState::Dropped => None,
    })
}

/// What is said about an entry that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Now,
    Again,
    DryRun,
}

fn opening_answer(entry: &Signed<Entry>, verdict: &str, tip: Mark, told: Told) -> Value {
    let value = entry.value();
    json!({
        "v": 1, "kind": "append", "session": value.session(entry.cid()).to_string(),
        "entries": [entry_mark(entry)], "head": {"cid": tip.cid.to_string(), "seq": tip.seq.get()},
        "epoch": tip.epoch.get(), "verdict": verdict, "replayed": told == Told::Again, "durable": told != Told::DryRun,
    })
}

/// The answer for an entry that is on the chain already.
fn held_answer(entry: &Signed<Entry>) -> Value {
    let value = entry.value();
    json!({
        "v": 1, "kind": "append", "session": value.session(entry.cid()).to_string(),
        "entries": [entry_mark(entry)],
        "head": {"cid": entry.cid().to_string(), "seq": value.seq().get()}, "epoch": value.epoch().get(),
        "replayed": true, "durable": true,
    })
}

fn entry_mark(entry: &Signed<Entry>) -> Value {
    let value = entry.value();
    json!({"cid": entry.cid().to_string(), "seq": value.seq().get(), "type": value.body.type_name()})
}

/// Whether an entry opens an epoch.
fn opens(entry: &Entry) -> bool {
    entry.authority.is_none()
        && entry.body.may_open()
        && matches!(entry.body, Body::Handoff(_) | Body::Seal(_))
}

/// The key under which a repeated message is known, although it was signed again on another head.
fn message_key(checked: &Prechecked) -> Answer<Option<String>> {
    let (signed, payload) = checked.clone().into_parts();
    let Some(bytes) = payload else { return Ok(None) };
    let payload = Payload::check(signed.value(), bytes)?;
    let Words::UserMessage(words) = payload.words() else { return Ok(None) };
    let signer = signed.value().signer;
    Ok(words.client_message_id.as_ref().map(|id| format!("message:{signer}:{id}")))
}
