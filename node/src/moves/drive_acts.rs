//! What a driver asks of others: grants, messages, views of peers, and the facts to sign. Each goes its own way and comes
//! back as one act.

use std::future::Future;
use std::sync::Arc;

use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Role;
use throughline_protocol::handoff::driver::{Input, Message, Origin, Unsigned, View};
use throughline_protocol::handoff::{MoveId, Point, RequestId};
use throughline_protocol::id::{Cid, Epoch, Principal, SessionId};
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffRequest, HandoffStep};

use super::drive::{Act, Drive, Looked, until_ended};
use super::road::Provider;
use super::{Asker, Desk, facts, wire};
use crate::api::error::Answer;
use crate::core::{Granted, controls_of, grant_of, standing};
use crate::sync::Tally;

impl Drive {
    /// Tells the driver what this node's own copy has. One that cannot be read is read again with the next commit, and before
    /// anything is signed.
    pub(super) async fn learn(&mut self) {
        if let Err(problem) = self.read_own_copy().await {
            let session = self.driver.plan().session;
            tracing::warn!(session = %session.short(), "reading a session on the move failed: {problem}");
        }
    }

    /// Tells the driver what this node's own copy has: the opening of a later epoch, else its newest entry.
    pub(super) async fn read_own_copy(&mut self) -> Answer<()> {
        let (plan, owner) = (self.driver.plan(), self.owner);
        let (session, ends) = (plan.session, plan.epoch);
        let found =
            self.desk.blocking(move |desk| facts::own_copy(&desk.node.reader()?, session, owner, ends));
        if let Some(input) = found.await? {
            self.driver.handle(self.now(), input);
        }
        Ok(())
    }

    /// The live grant under which the target would hold the session.
    pub(super) async fn grant(&self, target: Principal) -> Result<Option<Cid>, Reject> {
        let session = self.driver.plan().session;
        let granted = self.desk.blocking(move |desk| desk.grant_for(session, target)).await;
        let granted = granted.map_err(|problem| Reject::new(problem.code(), problem.detail()))?;
        match granted {
            Granted::Live(cid) => Ok(Some(cid)),
            Granted::Revoked(_) => Err(Reject::new(Code::Revoked, "the target's grant was revoked")),
            Granted::Never => {
                Err(Reject::new(Code::CapMissing, format!("{} has no writer grant for it", target.short())))
            }
        }
    }

    /// Sends a message, until [`Drive::sends`] ends it: the dial to a server that is silent must not outlive the phase, or it
    /// would deliver what nobody wants any more.
    pub(super) fn send(&mut self, request: RequestId, to: Principal, message: Message) {
        let (desk, owner, plan) = (self.desk.clone(), self.owner, self.driver.plan());
        let (session, move_id, source) = (plan.session, plan.move_id, plan.origin.server());
        let acts = self.acts.clone();
        let asks_before = matches!(message, Message::Offer { .. }) && self.before.is_none();
        let providers = self.providers(&message);
        let errand = self.errand(async move {
            let grant = match &message {
                Message::Offer { grant, .. } | Message::Activate { grant, .. } => *grant,
                Message::Freeze { .. } | Message::Prepare | Message::Retire { .. } | Message::Abort => None,
            };
            let grants = desk.grants(owner, grant).await;
            if asks_before && let Message::Offer { head, .. } = &message {
                desk.hold(session, *head, source).await;
                let status = wire::request(session, move_id, HandoffStep::Status, grants.clone());
                let entries = desk.held_before(to, status, *head).await;
                // The task of the move may be over; then nobody needs it.
                let _ = acts.send(Act::Before(entries)).await;
            }
            let addresses = desk.moves.road.addresses(&desk.node, providers).await;
            let step = wire::step(message, addresses);
            Act::Heard(match desk.ask(to, wire::request(session, move_id, step, grants)).await {
                Ok(answer) => Input::Replied { request, reply: wire::reply(answer, move_id) },
                Err(code) => Input::Lost { request, code },
            })
        });
        while self.sends.try_join_next().is_some() {}
        self.sends.spawn(errand);
    }

    /// Who has the chain: the source while it answers, this node, then the others. Not the target itself. Where this node takes over
    /// without the source that is nobody: the survey brought here what the others have, and who does not have it would only fail.
    fn providers(&self, message: &Message) -> Vec<Principal> {
        let Message::Offer { providers, .. } = message else { return Vec::new() };
        let (plan, own) = (self.driver.plan(), self.desk.node.principal());
        let online = match plan.origin {
            Origin::Online(source) => Some(source),
            Origin::Offline(_) if plan.target == own => return Vec::new(),
            Origin::Offline(_) => None,
        };
        let others = providers.iter().copied().filter(|peer| Some(*peer) != plan.origin.server());
        let mut all: Vec<Principal> = Vec::new();
        for peer in online.into_iter().chain([own]).chain(others) {
            if peer != plan.target && !all.contains(&peer) {
                all.push(peer);
            }
        }
        all
    }

    /// Asks a peer for its head and verifies what it has, and asks which epoch it knows. One question to a peer at a time: an older one is answered by
    /// the same look.
    pub(super) fn look(&mut self, request: RequestId, peer: Principal) {
        if self.looking.insert(peer, request).is_some() {
            return;
        }
        let (desk, owner, plan) = (self.desk.clone(), self.owner, self.driver.plan());
        let (session, move_id, ends) = (plan.session, plan.move_id, plan.epoch);
        tokio::spawn(self.errand(async move {
            let status = wire::request(session, move_id, HandoffStep::Status, desk.grants(owner, None).await);
            let (view, later) =
                tokio::join!(desk.view_of(peer, session, owner), desk.later_at(peer, status, ends));
            // Who gives its chain and does not say what it knows was not heard yet.
            let looked = view.zip(later.ok());
            Act::Viewed(peer, looked.map(|(view, later)| Looked { view: Box::new(view), later }))
        }));
    }

    /// Takes in what a look at a peer came to.
    pub(super) fn looked(&mut self, peer: Principal, looked: Option<Looked>) {
        let Some(request) = self.looking.remove(&peer) else { return };
        let view = looked.map(|Looked { view, later }| {
            match later {
                Some(later) => self.later.insert(peer, later),
                None => self.later.remove(&peer),
            };
            view
        });
        self.driver.handle(self.now(), Input::Seen { request, view });
    }

    /// Holds the chain up to the handoff's place, then finds what is to be signed and what the target lacked.
    pub(super) fn find_facts(&mut self, request: RequestId, unsigned: Unsigned) {
        let desk = self.desk.clone();
        let plan = self.driver.plan();
        let from = plan.origin.server().into_iter().chain([plan.target]).map(Provider::Peer).collect();
        let before = self.before.unwrap_or(0);
        tokio::spawn(self.errand(async move {
            let found = desk.facts_of(unsigned, from, before).await;
            Act::Facts(request, found)
        }));
    }

    /// Something that takes its time, and comes back as one act unless the node ends.
    fn errand(
        &self,
        errand: impl Future<Output = Act> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (acts, mut stopping) = (self.acts.clone(), self.desk.node.stopping());
        async move {
            let act = tokio::select! {
                act = errand => act,
                () = until_ended(&mut stopping) => return,
            };
            // The task of the move may be over; then nobody waits for the answer.
            let _ = acts.send(act).await;
        }
    }
}

impl Desk {
    pub(super) fn grant_for(&self, session: SessionId, target: Principal) -> Answer<Granted> {
        let reader = self.node.reader()?;
        let standing = standing(&reader, session)?;
        let owner = standing.row.owner;
        let controls = controls_of(&reader, owner, None)?;
        Ok(grant_of(&controls, owner, target, Role::Writer, Some((session, standing.state.agent()))))
    }

    /// A request of a move to a server: this node is asked without the network.
    pub(super) async fn ask(&self, to: Principal, request: HandoffRequest) -> Result<HandoffAnswer, Code> {
        if to == self.node.principal() {
            Ok(self.answer(Asker::Local, request).await)
        } else {
            self.moves.road.ask(&self.node, to, request).await
        }
    }

    pub(super) async fn grants(&self, owner: Principal, grant: Option<Cid>) -> Vec<Arc<[u8]>> {
        let own = self.node.principal();
        let found =
            self.blocking(move |desk| facts::grants_for(&desk.node.reader()?, owner, own, grant)).await;
        found.unwrap_or_default()
    }

    /// Brings the chain up to the head that is offered here first: the owner's node can then give it to the target even where
    /// the source may not. What fails here is found out when the handoff is to be signed.
    async fn hold(&self, session: SessionId, head: Point, source: Option<Principal>) {
        let is_held = self.blocking(move |desk| facts::is_held(&desk.node.reader()?, session, head)).await;
        let source = source.filter(|source| *source != self.node.principal());
        if let (Ok(false), Some(source)) = (is_held, source) {
            let fetched = self
                .moves
                .road
                .fetch(&self.node, session, head, vec![Provider::Peer(source)], Tally::new())
                .await;
            if let Err(reject) = fetched {
                tracing::info!(session = %session.short(), "the offered head is not held here yet: {reject}");
            }
        }
    }

    /// How many entries of the chain up to `head` the target says it holds already.
    async fn held_before(&self, target: Principal, status: HandoffRequest, head: Point) -> u64 {
        let session = status.session;
        let Ok(HandoffAnswer::State(status)) = self.ask(target, status).await else { return 0 };
        let Some(cid) = status.head else { return 0 };
        let told = Point { cid, seq: status.seq };
        let common = self.blocking(move |desk| facts::is_held(&desk.node.reader()?, session, told)).await;
        match common {
            Ok(true) => told.seq.min(head.seq).get() + 1,
            Ok(false) | Err(_) => 0,
        }
    }

    /// What a peer's copy comes to, verified here. None: it did not answer.
    async fn view_of(&self, peer: Principal, session: SessionId, owner: Principal) -> Option<View> {
        let own = peer == self.node.principal();
        let told = if own {
            let row = self.blocking(move |desk| Ok(desk.node.reader()?.session(session)?)).await;
            row.ok()?.map(|row| Point { cid: row.tip.cid, seq: row.tip.seq })
        } else {
            self.moves.road.look(&self.node, peer, session).await.ok()?
        };
        let Some(head) = told else { return Some(View::default()) };
        let found = self.blocking(move |desk| {
            let reader = desk.node.reader()?;
            let receipt = facts::newest_ref(&reader, session, peer)?;
            Ok(facts::told_head(&reader, session, owner, head.cid)?.map(|found| (found, receipt)))
        });
        Some(match found.await {
            Ok(Some(((opening, point), receipt))) => View { opening, head: Some(point), told, receipt },
            Ok(None) | Err(_) => View { told, ..View::default() },
        })
    }

    /// Why nothing may be signed after epoch `ends`, when a peer says that it knows of a later one: as a former source that was told
    /// of an opening does, and shows the chain of before.
    ///
    /// # Errors
    /// It did not answer.
    async fn later_at(
        &self,
        peer: Principal,
        status: HandoffRequest,
        ends: Epoch,
    ) -> Result<Option<Reject>, Code> {
        let asked = tokio::time::timeout(self.moves.limits.answer_max, self.ask(peer, status));
        let answer = asked.await.map_err(|_| Code::Timeout)??;
        Ok(wire::later(&answer, ends).map(|epoch| {
            let detail = format!(
                "{} knows of {epoch}, and nobody who was asked gives its entries: a handoff after epoch {ends} would be the \
                 second one",
                peer.short()
            );
            Reject::new(Code::EpochOld, detail)
        }))
    }

    async fn facts_of(
        &self,
        unsigned: Unsigned,
        from: Vec<Provider>,
        before: u64,
    ) -> Answer<(serde_json::Value, facts::Sent)> {
        let Unsigned { session, prev, .. } = unsigned;
        let own = Provider::Peer(self.node.principal());
        let from: Vec<Provider> = from.into_iter().filter(|provider| *provider != own).collect();
        let is_held = self.blocking(move |desk| facts::is_held(&desk.node.reader()?, session, prev)).await?;
        if !is_held {
            self.moves.road.fetch(&self.node, session, prev, from, Tally::new()).await?;
        }
        self.blocking(move |desk| {
            let reader = desk.node.reader()?;
            Ok((facts::to_sign(&reader, &unsigned)?, facts::sent(&reader, session, prev, before)?))
        })
        .await
    }

    /// Runs blocking work of this desk on a thread of its own.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Desk) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let desk = self.clone();
        let done = tokio::task::spawn_blocking(move || act(&desk)).await;
        done.unwrap_or_else(|_| Err(Code::Internal.into()))
    }
}

/// Makes the id of a new move.
pub(super) fn fresh_id() -> Answer<MoveId> {
    Ok(MoveId::from_bytes(crate::core::random()?))
}
