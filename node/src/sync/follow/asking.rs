//! The engine that decides whom to ask ([`throughline_protocol::sync::engine`]) on this network: what it wants is done here, and
//! how that ended goes back to it. It decides nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libp2p::PeerId;
use throughline_protocol::code::Code;
use throughline_protocol::id::{EntryCid, Principal, SessionId};
use throughline_protocol::sync::Engine;
use throughline_protocol::sync::engine::{End, Input, Limits, Output, Scope, Standing, Weight};
use tokio::time::Instant;

use super::pull;
use crate::net::{peer_of, principal_of};
use crate::sync::shared::Shared;

struct State {
    engine: Engine,
    /// When the clock that runs for the engine ends.
    armed: Option<Duration>,
}

/// The engine, and since when its time counts.
pub(in crate::sync) struct Asking {
    began: Instant,
    state: Mutex<State>,
}

impl Default for Asking {
    fn default() -> Self {
        let state = State { engine: Engine::new(Limits::default()), armed: None };
        Asking { began: Instant::now(), state: Mutex::new(state) }
    }
}

impl Asking {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a head of a session that is not held is worth a transfer now.
    pub(in crate::sync) fn weigh(
        &self,
        who: (Principal, Standing),
        session: SessionId,
        head: EntryCid,
    ) -> Weight {
        self.lock().engine.weigh(self.began.elapsed(), who, session, head)
    }
}

/// As what a peer stands now.
pub(in crate::sync) fn standing(shared: &Shared, key: Principal) -> Standing {
    if shared.parties.knows(key) {
        Standing::Known(shared.contacts.principal_of(key).unwrap_or(key))
    } else {
        Standing::Stranger
    }
}

/// A connected peer may have something: it is compared with, soon.
pub(in crate::sync) fn hint(shared: &Arc<Shared>, peer: PeerId, scope: Scope) {
    // A key of another kind names nobody of this protocol.
    let Some(key) = principal_of(&peer) else { return };
    feed(shared, Input::Hint { peer: key, standing: standing(shared, key), scope });
}

/// A connection is gone.
pub(in crate::sync) fn left(shared: &Arc<Shared>, key: Principal) {
    feed(shared, Input::Left { peer: key });
}

/// A transfer of a session. When it ends, also by being dropped, whoever had news of it meanwhile is asked again.
pub(in crate::sync) struct Transferring<'a> {
    shared: &'a Arc<Shared>,
    session: SessionId,
}

impl<'a> Transferring<'a> {
    pub(in crate::sync) fn of(shared: &'a Arc<Shared>, session: SessionId) -> Self {
        Transferring { shared, session }
    }
}

impl Drop for Transferring<'_> {
    fn drop(&mut self) {
        feed(self.shared, Input::Settled { session: self.session });
    }
}

/// A peer has news of a session that is being fetched already.
pub(super) fn busy(shared: &Arc<Shared>, key: Principal, session: SessionId) {
    feed(shared, Input::Busy { peer: key, standing: standing(shared, key), session });
    // The transfer may have ended before this was noted.
    if shared.turn_of(session).try_lock().is_ok() {
        feed(shared, Input::Settled { session });
    }
}

/// Gives the engine an input, and begins what it wants done.
pub(super) fn feed(shared: &Arc<Shared>, input: Input) {
    if shared.stop.is_cancelled() {
        return;
    }
    let (outputs, due) = {
        let mut state = shared.asking.lock();
        state.engine.handle(shared.asking.began.elapsed(), input);
        let outputs: Vec<Output> = std::iter::from_fn(|| state.engine.poll_output()).collect();
        let due = state.engine.poll_timeout();
        let due = due.filter(|due| state.armed.is_none_or(|armed| *due < armed));
        state.armed = due.or(state.armed);
        (outputs, due)
    };
    for output in outputs {
        match output {
            Output::Compare { peer, scope } => compare(shared, peer, scope),
            Output::Charge { peer, code } => charge(shared, peer, code),
        }
    }
    if let Some(due) = due {
        wake_at(shared, due);
    }
}

fn compare(shared: &Arc<Shared>, key: Principal, scope: Scope) {
    // Whatever becomes of the task, the place is given back.
    let turn = Turn { shared: Arc::clone(shared), key, end: End::Done };
    shared.spawn(turn.run(scope));
}

fn charge(shared: &Arc<Shared>, key: Principal, code: Code) {
    let worker = Arc::clone(shared);
    shared.spawn(async move {
        if let Some(peer) = peer_of(&key) {
            worker.net.charge(peer, code).await;
        }
    });
}

fn wake_at(shared: &Arc<Shared>, due: Duration) {
    let worker = Arc::clone(shared);
    shared.spawn(async move {
        tokio::time::sleep_until(worker.asking.began + due).await;
        worker.asking.lock().armed.take_if(|armed| *armed == due);
        feed(&worker, Input::Tick);
    });
}

/// A comparison under way.
struct Turn {
    shared: Arc<Shared>,
    key: Principal,
    end: End,
}

impl Turn {
    async fn run(mut self, scope: Scope) {
        if let Some(peer) = peer_of(&self.key) {
            self.end = pull::compare(&self.shared, peer, self.key, scope).await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        feed(&self.shared, Input::Compared { peer: self.key, end: self.end });
    }
}
