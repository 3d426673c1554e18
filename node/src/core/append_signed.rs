//! Appends that arrive signed: what the owner, a device or a contributor says, put in order by the holder.
//!
//! The entry's own `prev` is its base. It is ordered by compare-and-append: on another head the answer is the conflict with
//! what to sign on, and nothing is stored. The owner's handoffs and seals open the next epoch, so any node takes them.

use std::sync::Arc;

use throughline_protocol::block::{Signed, sha256};
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::fork::Ending;
use throughline_protocol::id::SessionId;
use throughline_protocol::limits;
use throughline_protocol::payload::{Payload, Words};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::verify::{Prechecked, Pushed, Verifier};
use throughline_store::{AdoptOptions, Adopted, Idempotency, PutControls, Scope, SessionState, Used};

use super::append::{Appended, Held, answer_of, kept};
use super::base::{head_moved, standing};
use super::controls::controls_of;
use super::evaluate::Arrived;
use super::seal_up::links_of;
use super::{Node, now, shape, summary};
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
    /// `E_HEAD_MOVED` with what to sign on; `E_NOT_HOLDER`, `E_FROZEN`, `E_RETIRED`, `E_SEALED`; `W_FUTURE` for an entry that is too far ahead of
    /// this clock; or what the verifier refuses.
    pub fn append_signed(&self, request: &SignedAppend) -> Answer<Appended> {
        let mut keys = VerifyingKeys::default();
        let signed = Signed::<Entry>::check(Arc::clone(&request.entry), &mut keys)?;
        if signed.value().session(signed.cid()) != request.session {
            return Err(Problem::new(Code::SessionMismatch, "the entry is of another session"));
        }
        let grants: Vec<Signed<Control>> = request
            .grants
            .iter()
            .map(|bytes| Signed::check(bytes.as_slice(), &mut keys))
            .collect::<Result<_, _>>()?;
        let checked = Prechecked::of(signed, request.payload.clone())?;
        if opens(checked.signed().value()) {
            return self.take_opening(request, checked, grants);
        }
        self.order(request, checked, grants)
    }

    /// A handoff or the owner's seal: selection decides what it does.
    fn take_opening(
        &self,
        request: &SignedAppend,
        checked: Prechecked,
        grants: Vec<Signed<Control>>,
    ) -> Answer<Appended> {
        let cid = checked.signed().cid();
        let (seq, epoch) = (checked.signed().value().seq(), checked.signed().value().epoch());
        let type_name = checked.signed().value().body.type_name();
        if !request.dry_run {
            self.store().run(PutControls { controls: grants, at: now() })?;
            let arrived = Arrived { entries: vec![checked], ..Arrived::default() };
            self.take_in(request.session, arrived)?;
        }
        let answer = serde_json::json!({
            "v": 1, "kind": "append", "session": request.session.to_string(),
            "entries": [{"cid": cid.to_string(), "seq": seq.get(), "type": type_name}],
            "head": {"cid": cid.to_string(), "seq": seq.get()}, "epoch": epoch.get(),
            "replayed": false, "durable": !request.dry_run,
        });
        Ok(Appended { answer, replayed: false })
    }

    fn order(
        &self,
        request: &SignedAppend,
        checked: Prechecked,
        grants: Vec<Signed<Control>>,
    ) -> Answer<Appended> {
        let reader = self.reader()?;
        let session = request.session;
        let message = message_key(&checked)?;
        if let Some(key) = &message
            && let Used::Same(result) =
                reader.idempotency(&Scope::Session(session), key, &sha256(key.as_bytes()))?
        {
            return kept(&result);
        }
        let standing = standing(&reader, session)?;
        let entry = checked.signed().value();
        if let Some((held, stored)) = reader.entry(checked.signed().cid())?
            && held == session
        {
            let mark = serde_json::json!({"cid": stored.cid.to_string(), "seq": stored.seq.get()});
            let answer = serde_json::json!({
                "v": 1, "kind": "append", "session": session.to_string(), "entries": [mark], "head": mark,
                "epoch": entry.epoch().get(), "replayed": true, "durable": true,
            });
            return Ok(Appended { answer, replayed: true });
        }
        self.may_order(&standing)?;
        let base = entry.prev().ok_or(Code::PrevMissing)?;
        if base != standing.state.tip().cid {
            return Err(head_moved(&reader, &standing, base)?);
        }
        let ahead = entry.ts.get().saturating_sub(now().get());
        if ahead > limits::FUTURE_TS_MS_MAX {
            return Err(Problem::new(Code::Future, format!("the entry is {} s ahead of this clock", ahead / 1000)));
        }
        let mut controls = controls_of(&reader, standing.row.owner, Some(session))?;
        for grant in &grants {
            controls.insert(grant);
        }
        let mut verifier = Verifier::resume(standing.state.clone(), controls)
            .with_ancestry(Held { reader: &reader, session });
        if !matches!(verifier.link(checked)?, Pushed::Linked(..)) {
            return Err(head_moved(&reader, &standing, base)?);
        }
        let segment = verifier.finish()?.ok_or(Code::Internal)?;
        let answer = answer_of(session, &segment, false);
        if request.dry_run {
            return Ok(Appended { answer, replayed: false });
        }
        let options = AdoptOptions {
            idempotency: message.map(|key| Idempotency {
                scope: Scope::Session(session),
                request: sha256(key.as_bytes()),
                key,
                result: answer.to_string().into_bytes(),
                expires: None,
            }),
            controls: grants,
            links: links_of(segment.entries())?,
            summary: summary::after_extension(Some(&standing.row), &segment)?,
            ..AdoptOptions::at(now())
        };
        let appended = match self.store().adopt(segment, options)? {
            Adopted::Now { .. } => Appended { answer, replayed: false },
            Adopted::Replayed { result } => kept(&result)?,
        };
        self.after_commit(session);
        Ok(appended)
    }

    /// Whether this node orders entries of the session: it holds it and is not on its way out.
    fn may_order(&self, standing: &super::base::Standing) -> Answer<()> {
        let (row, state) = (&standing.row, &standing.state);
        let problem = |code, what: String| {
            Err(Problem::new(code, what)
                .with("session", row.session.to_string())
                .with("head", shape::mark(&state.tip()))
                .with("holder", state.holder().map(|holder| holder.to_string()))
                .hint(format!("throughline status {}", row.session.short())))
        };
        match row.state {
            SessionState::Frozen { epoch, .. } => {
                return problem(Code::Frozen, format!("frozen at epoch {epoch} for a handoff"));
            }
            SessionState::Retired { epoch } => {
                return problem(Code::Retired, format!("handed over after epoch {epoch}"));
            }
            SessionState::Active => {}
        }
        if state.position().ending == Ending::Sealed {
            return problem(Code::Sealed, format!("sealed at seq {}", state.tip().seq));
        }
        if state.holder() == Some(self.principal()) {
            Ok(())
        } else {
            problem(Code::NotHolder, "only the holder puts entries in order; send it there".to_owned())
        }
    }
}

/// Whether an entry opens an epoch.
fn opens(entry: &Entry) -> bool {
    entry.authority.is_none() && entry.body.may_open() && matches!(entry.body, Body::Handoff(_) | Body::Seal(_))
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
