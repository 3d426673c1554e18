//! This node's part in a move that somebody drives: who may ask, and one answer for each request. `docs/PROTOCOL.md`
//! §Handing over.
//!
//! Only the owner and its live devices move a session; everybody else gets the same refusal, whether the session is held
//! here or not. The order of requests of one session is the order of its lock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throughline_protocol::code::{Code, Reject};
use throughline_protocol::handoff::{Answer as State, MoveId};
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffRequest, HandoffState, HandoffStep};
use throughline_store::PutControls;

use super::held::Held;
use super::{Desk, facts, wire};
use crate::api::error::{Answer, Problem};
use crate::core::{controls_of, need_session, now};

/// Sessions whose machines are kept in memory; the others are read again when somebody asks.
const HELD_MAX: usize = 256;
/// How long an answer that would say `fetching` waits for the fetch to end.
const FETCH_WAIT: Duration = Duration::from_secs(2);

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// This node itself, for a program on this machine.
    Local,
    /// A key that proved itself on the connection.
    Proven(Principal),
    /// Somebody without a proof.
    Stranger,
}

impl Desk {
    /// Answers a request of a move in which this node is source or target.
    pub async fn answer(&self, asker: Asker, request: HandoffRequest) -> HandoffAnswer {
        let mut fetched = self.moves.fetched.subscribe();
        let answer = self.answer_now(asker, request.clone()).await;
        let waits = matches!(request.step, HandoffStep::Offer { .. } | HandoffStep::Activate { .. });
        if !(waits && is_fetching(&answer)) {
            return answer;
        }
        // A short chain is here in a moment. Asking again changes nothing: requests are idempotent.
        match tokio::time::timeout(FETCH_WAIT, fetched.changed()).await {
            Ok(_) => self.answer_now(asker, request).await,
            Err(_) => answer,
        }
    }

    async fn answer_now(&self, asker: Asker, request: HandoffRequest) -> HandoffAnswer {
        let desk = self.clone();
        let answered = tokio::task::spawn_blocking(move || desk.answer_blocking(asker, &request)).await;
        let answered = answered.unwrap_or_else(|_| Err(Code::Internal.into()));
        answered.unwrap_or_else(|problem| {
            HandoffAnswer::Error(Reject::new(problem.code(), problem.detail()).into())
        })
    }

    fn answer_blocking(&self, asker: Asker, request: &HandoffRequest) -> Answer<HandoffAnswer> {
        let owner = self.admit(asker, request)?;
        let held = self.held(request.session)?;
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        let by = match asker {
            Asker::Proven(key) => Some(key),
            Asker::Local | Asker::Stranger => None,
        };
        let reply = held.handle(self, (by, owner), wire::move_of(request), &request.step);
        let tip = self.node.reader()?.session(request.session)?.map(|row| row.tip);
        let idle = matches!(reply, Ok(State::Idle { .. }));
        let mut answer = wire::answer(reply, tip);
        // A server that stages nothing still tells, when asked where it stands, which chain it has.
        if let (HandoffAnswer::State(status), HandoffStep::Status, true, Some(tip)) =
            (&mut answer, &request.step, idle, tip)
        {
            (status.seq, status.head) = (tip.seq, Some(tip.cid));
        }
        Ok(answer)
    }

    /// An opening that somebody showed ends the epoch before it here, as when the driver of its move sends it: the owner's signature
    /// decides, not who shows it.
    ///
    /// # Errors
    /// What the opening breaks; `E_NOT_FOUND_YET` for a session that is not held.
    pub(super) fn ended(&self, session: SessionId, opening: &[u8]) -> Answer<()> {
        let owner = need_session(&self.node.reader()?, session)?.owner;
        let held = self.held(session)?;
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        let retire = HandoffStep::Retire { handoff: Arc::from(opening), receipt: Arc::from([]) };
        held.handle(self, (None, owner), MoveId::from_bytes([0; 16]), &retire)?;
        Ok(())
    }

    /// Whether the asker may move the session; the session's owner. Grants that came along are kept only then.
    fn admit(&self, asker: Asker, request: &HandoffRequest) -> Answer<Principal> {
        let refused =
            || Problem::new(Code::CapMissing, "expected the owner or a live device of it, got another asker");
        let reader = self.node.reader()?;
        let owner = match reader.session(request.session)? {
            Some(row) => row.owner,
            None => self.node.owner().ok_or_else(refused)?,
        };
        let brought = facts::presented(&request.credentials.grants, owner);
        let mut controls = controls_of(&reader, owner, None)?;
        for grant in &brought {
            controls.insert(grant);
        }
        let may = match asker {
            Asker::Local => true,
            Asker::Proven(key) => facts::may_move(&controls, owner, key),
            Asker::Stranger => false,
        };
        if !may {
            return Err(refused());
        }
        if !brought.is_empty() {
            self.node.store().run(PutControls { controls: brought, at: now() })?;
        }
        Ok(owner)
    }

    /// The machines of a session, read from the store the first time.
    pub(super) fn held(&self, session: SessionId) -> Answer<Arc<Mutex<Held>>> {
        let mut all = self.moves.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = all.get(&session) {
            return Ok(Arc::clone(held));
        }
        if all.len() >= HELD_MAX {
            // Everything durable is in the store; only what is at work has to stay.
            all.retain(|_, held| {
                held.try_lock().is_ok_and(|held| held.fetching.is_some()) || Arc::strong_count(held) > 1
            });
        }
        if all.len() >= HELD_MAX {
            return Err(Problem::new(Code::Quota, "too many sessions are on the move"));
        }
        let held = Arc::new(Mutex::new(Held::load(self, session)?));
        all.insert(session, Arc::clone(&held));
        Ok(held)
    }
}

fn is_fetching(answer: &HandoffAnswer) -> bool {
    matches!(answer, HandoffAnswer::State(status) if matches!(status.state, HandoffState::Fetching { .. }))
}
