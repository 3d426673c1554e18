//! New sessions. A session exists only once there is substance: a draft lives in memory, and its genesis is stored together
//! with its first entry.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::entry::{Authority, Body, Class, Genesis};
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{AgentIri, SessionId};
use throughline_protocol::payload::{GenesisWords, PayloadDraft, Words};
use throughline_protocol::verify::{NoIndex, VerifiedSegment, Verifier};
use throughline_protocol::view::EntryDraft;
use throughline_store::{
    AdoptError, AdoptOptions, Adopted, GuardUse, Idempotency, Naming, Pin, PinDepth, Reader, Scope, Used,
};

use super::append::{AppendRequest, Appended, Use, answer_of, kept, refused, used_otherwise};
use super::controls::{controls_of, grant_of};
use super::evaluate::ATTEMPTS;
use super::seal_up::{links_of, sign_on};
use super::stated::Stated;
use super::{Node, now, random, summary};
use crate::api::error::{Answer, Problem};

/// Drafts that are remembered.
const DRAFTS_MAX: usize = 256;

/// A session to be made.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The agent; none is the owner's root agent.
    pub agent: Option<AgentIri>,
    /// A title.
    pub title: Option<String>,
    /// Internal or confidential; `public` is only reached by publishing.
    pub class: Class,
    /// The first entry; without one the session is a draft.
    pub first_entry: Option<EntryDraft>,
    /// The request's key and the sha-256 of its body.
    pub key: Option<RequestKey>,
    /// Check everything and keep nothing.
    pub dry_run: bool,
}

/// A request's idempotency key and the sha-256 of its body.
pub type RequestKey = (String, [u8; 32]);

/// A session that was made.
#[derive(Clone, Debug)]
pub struct Created {
    /// The answer object.
    pub answer: Value,
    /// Whether the same request was answered before.
    pub replayed: bool,
}

/// Draft sessions: their signed genesis, waiting for a first entry.
#[derive(Default)]
pub struct Drafts {
    known: Mutex<VecDeque<(SessionId, Arc<Draft>)>>,
}

struct Draft {
    verifier: Verifier<NoIndex>,
    authority: Authority,
    /// The request that made it: asked again it gives the same draft.
    key: Option<RequestKey>,
}

impl Drafts {
    fn put(&self, session: SessionId, draft: Draft) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() == DRAFTS_MAX {
            known.pop_front();
        }
        known.push_back((session, Arc::new(draft)));
    }

    fn find(&self, session: SessionId) -> Option<Arc<Draft>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(id, _)| *id == session).map(|(_, draft)| Arc::clone(draft))
    }

    /// The draft that a request made.
    fn of_request(&self, key: &RequestKey) -> Answer<Option<SessionId>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let made = known.iter().find(|(_, draft)| draft.key.as_ref().is_some_and(|(text, _)| *text == key.0));
        match made {
            Some((_, draft)) if draft.key.as_ref() != Some(key) => Err(used_otherwise(&key.0)),
            made => Ok(made.map(|(session, _)| *session)),
        }
    }

    fn forget(&self, session: SessionId) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).retain(|(id, _)| *id != session);
    }

    /// Whether a session is a draft.
    #[must_use]
    pub fn holds(&self, session: SessionId) -> bool {
        self.find(session).is_some()
    }
}

impl Node {
    /// Makes a session: a draft, or the session and its first entry in one commit.
    ///
    /// # Errors
    /// `E_CAP_MISSING` or `E_REVOKED` without a grant, `E_CLASS_DOWNGRADE` for class public, or what the schema refuses.
    pub fn create(&self, request: &CreateRequest) -> Answer<Created> {
        let mut created = self.made(request)?;
        created.answer["replayed"] = created.replayed.into();
        Ok(created)
    }

    fn made(&self, request: &CreateRequest) -> Answer<Created> {
        let reader = self.reader()?;
        if let Some(created) = self.made_before(&reader, request)? {
            return Ok(created);
        }
        let owner = self.need_owner()?;
        let agent = request.agent.clone().unwrap_or_else(|| AgentIri::new(owner, None));
        if agent.account() != owner {
            let what = format!("expected an agent of {}, got {agent}", owner.short());
            return Err(Problem::new(Code::CapScope, what));
        }
        if request.class == Class::Public {
            return Err(Problem::new(Code::ClassDowngrade, "a session becomes public by `publish` only"));
        }
        let controls = controls_of(&reader, owner, None)?;
        let (verifier, authority) = self.sign_genesis(controls, &agent, request)?;
        let session = verifier.state().map(|state| state.session()).ok_or(Code::Internal)?;
        let draft = Draft { verifier, authority, key: request.key.clone() };
        let Some(first) = &request.first_entry else {
            if !request.dry_run {
                self.drafts().put(session, draft);
            }
            return Ok(Created { answer: draft_answer(session, &agent), replayed: false });
        };
        let _turn = self.turn(session);
        let first =
            First { entries: std::slice::from_ref(first), key: request.key.as_ref(), scope: Scope::Node };
        let mut appended = self.begin(session, &draft, &first, Use::of(request.dry_run))?;
        appended.answer["kind"] = "session".into();
        appended.answer["state"] = "active".into();
        Ok(Created { answer: appended.answer, replayed: appended.replayed })
    }

    /// What the same request made earlier.
    fn made_before(&self, reader: &Reader, request: &CreateRequest) -> Answer<Option<Created>> {
        let Some(key) = &request.key else { return Ok(None) };
        match reader.idempotency(&Scope::Node, &key.0, &key.1)? {
            Used::Same(result) => {
                let Appended { mut answer, replayed } = kept(&result)?;
                answer["kind"] = "session".into();
                answer["state"] = "active".into();
                Ok(Some(Created { answer, replayed }))
            }
            Used::Other => Err(used_otherwise(&key.0)),
            Used::Never => {
                let made = self.drafts().of_request(key)?;
                Ok(made.and_then(|session| {
                    let draft = self.drafts().find(session)?;
                    let agent = draft.verifier.state()?.agent().clone();
                    Some(Created { answer: draft_answer(session, &agent), replayed: true })
                }))
            }
        }
    }

    /// Appends the first entries of a draft; none if the session is no draft here. The caller has the session's turn.
    ///
    /// # Errors
    /// As [`Node::append`].
    pub(super) fn append_to_draft(&self, request: &AppendRequest) -> Answer<Option<Appended>> {
        let session = request.session;
        let Some(draft) = self.drafts().find(session) else { return Ok(None) };
        if request.base.is_some_and(|base| base != session.genesis()) {
            return Err(Problem::new(
                Code::HeadMoved,
                "the session is a draft: only its genesis is there to build on",
            )
            .with("head", json!({"cid": session.genesis().to_string(), "seq": 0, "epoch": 0})));
        }
        let first =
            First { entries: &request.entries, key: request.key.as_ref(), scope: Scope::Session(session) };
        let appended = self.begin(session, &draft, &first, Use::of(request.dry_run))?;
        if !request.dry_run {
            self.drafts().forget(session);
        }
        Ok(Some(appended))
    }

    fn sign_genesis(
        &self,
        controls: Controls,
        agent: &AgentIri,
        request: &CreateRequest,
    ) -> Answer<(Verifier<NoIndex>, Authority)> {
        let owner = agent.account();
        // A one-session grant cannot cover a session that has no name yet, so the agent's own path must be covered.
        let probe = SessionId::of_genesis(throughline_protocol::id::EntryCid::from_digest([0; 32]));
        let granted = grant_of(&controls, owner, self.principal(), Role::Writer, Some((probe, agent)));
        let authority = granted.authority(owner, self.principal(), agent)?;
        let body = Body::Genesis(Genesis {
            agent: agent.clone(),
            nonce: random()?,
            holder: None,
            class: request.class,
            parent: None,
            continues: None,
        });
        let payload = request.title.clone().map(|title| {
            PayloadDraft::new(Words::Genesis(GenesisWords { title: Some(title), ..GenesisWords::default() }))
        });
        let mut verifier = Verifier::begin(controls);
        let draft = EntryDraft { body, payload, ext: None };
        sign_on(&mut verifier, &draft, Some(authority), now(), random()?, self.key())?;
        Ok((verifier, authority))
    }

    /// Stores a draft's genesis and its first entries in one commit.
    fn begin(&self, session: SessionId, draft: &Draft, first: &First<'_>, use_of: Use) -> Answer<Appended> {
        let mut verifier = draft.verifier.clone();
        let reader = self.reader()?;
        let mut stated = Stated::new(&reader, session);
        for (at, entry) in first.entries.iter().enumerate() {
            stated
                .check(entry)
                .and_then(|()| {
                    sign_on(&mut verifier, entry, Some(draft.authority), now(), random()?, self.key())
                })
                .map_err(|problem| problem.with("entry", at))?;
        }
        let segment = verifier.finish()?.ok_or(Code::Internal)?;
        links_of(&reader, session, segment.entries(), Naming::Brings)?.at_hand()?;
        let answer = answer_of(session, &segment, use_of);
        if use_of == Use::DryRun {
            return Ok(Appended { answer, replayed: false });
        }
        let appended = match self.adopt_first(&segment, draft.authority, first, &answer)? {
            Adopted::Now { .. } => Appended { answer, replayed: false },
            Adopted::Replayed { result } => kept(&result)?,
        };
        self.after_commit(session);
        Ok(appended)
    }

    /// Adopts what begins a session, unless what it is signed under was revoked since the draft was made.
    fn adopt_first(
        &self,
        segment: &VerifiedSegment,
        authority: Authority,
        first: &First<'_>,
        answer: &Value,
    ) -> Answer<Adopted> {
        for _ in 0..ATTEMPTS {
            let reader = self.reader()?;
            let owner = authority.space;
            if self.warm().controls(&reader, owner)?.revoked_by(&authority.capability, owner).is_some() {
                let what = format!("the grant {} was revoked since", authority.capability.short());
                return Err(Problem::new(Code::Revoked, what).hint("post the session again"));
            }
            let options = AdoptOptions {
                guard: GuardUse::Signed(self.principal()),
                idempotency: first.key.map(|(key, hash)| Idempotency {
                    scope: first.scope,
                    key: key.clone(),
                    request: *hash,
                    result: answer.to_string().into_bytes(),
                    expires: None,
                }),
                judged_under: Some((owner, reader.owner_digest(owner)?)),
                links: links_of(&reader, segment.session(), segment.entries(), Naming::Brings)?.links,
                naming: Naming::Brings,
                summary: summary::after_extension(&reader, None, segment)?,
                pin: self.own_pin(),
                ..AdoptOptions::at(now())
            };
            match self.store().adopt(segment.clone(), options) {
                Err(AdoptError::ControlsMoved) => {}
                adopted => return adopted.map_err(|error| refused(error, first.key)),
            }
        }
        Err(AdoptError::ControlsMoved.into())
    }

    /// The pin that sessions of one's own get.
    pub(super) fn own_pin(&self) -> Option<Pin> {
        self.config().sessions.pin_own.then(|| Pin { since: now(), depth: PinDepth::Files })
    }
}

/// The first entries of a session, and the request that they answer.
struct First<'a> {
    entries: &'a [EntryDraft],
    key: Option<&'a RequestKey>,
    scope: Scope,
}

fn draft_answer(session: SessionId, agent: &AgentIri) -> Value {
    json!({
        "v": 1, "kind": "session", "session": session.to_string(), "state": "draft", "agent": agent.to_string(),
    })
}
