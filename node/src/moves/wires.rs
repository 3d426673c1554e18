//! Wires between the nodes of a test bench: a road that loses what a test wants lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use throughline_protocol::block::Decoded;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::entry::Entry;
use throughline_protocol::handoff::Point;
use throughline_protocol::id::{Principal, Seq, SessionId};
use throughline_protocol::verify::Prechecked;
use throughline_protocol::wire::handoff::{HandoffAnswer, HandoffRequest, HandoffStep};
use throughline_store::PayloadState;

use super::Asker;
use super::road::{Provider, Road};
use crate::api::error::Answer;
use crate::core::{Arrived, Node};
use crate::sync::Tally;

/// Which step of a move a fault is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Activate,
    Retire,
}

#[derive(Default)]
pub(super) struct Lines {
    pub(super) nodes: BTreeMap<Principal, Node>,
    dead: BTreeSet<Principal>,
    /// Who is dialled for as long as somebody waits, and never reached.
    stalled: BTreeSet<Principal>,
    /// Nobody reaches anybody: who is opened now has no network.
    is_cut: bool,
    /// Requests that are on their way to somebody who is stalled.
    on_the_way: usize,
    /// After this step is done at the peer its answer is lost, and the peer is heard no more.
    dies_after: BTreeMap<Principal, Step>,
    /// Heads that a node told before it died.
    pub(super) told: BTreeMap<Principal, Point>,
    log: Vec<(Principal, &'static str)>,
}

/// Wires between the nodes of a bench.
#[derive(Clone, Default)]
pub(super) struct Wires(Arc<Mutex<Lines>>);

impl Wires {
    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap()
    }

    pub(super) fn kill(&self, node: &Node) {
        self.lines().dead.insert(node.principal());
    }

    pub(super) fn cut(&self) {
        self.lines().is_cut = true;
    }

    pub(super) fn stall(&self, node: &Node) {
        self.lines().stalled.insert(node.principal());
    }

    pub(super) fn on_the_way(&self) -> usize {
        self.lines().on_the_way
    }

    pub(super) fn revive(&self, node: &Node) {
        let mut lines = self.lines();
        lines.dead.remove(&node.principal());
        lines.dies_after.remove(&node.principal());
    }

    pub(super) fn dies_after(&self, node: &Node, step: Step) {
        self.lines().dies_after.insert(node.principal(), step);
    }

    /// Steps that a node was asked for, in order.
    pub(super) fn asked(&self, node: &Node) -> Vec<&'static str> {
        let own = node.principal();
        self.lines().log.iter().filter(|(peer, _)| *peer == own).map(|(_, step)| *step).collect()
    }

    fn alive(&self, peer: Principal) -> Option<Node> {
        let lines = self.lines();
        lines.nodes.get(&peer).filter(|_| !lines.dead.contains(&peer)).cloned()
    }
}

/// A request on its way, for as long as somebody waits for it.
struct OnTheWay(Wires);

impl OnTheWay {
    fn to_nowhere(wires: &Wires) -> Self {
        wires.lines().on_the_way += 1;
        OnTheWay(wires.clone())
    }
}

impl Drop for OnTheWay {
    fn drop(&mut self) {
        self.0.lines().on_the_way -= 1;
    }
}

impl Road for Wires {
    fn serve(&self, node: &Node) {
        self.lines().nodes.insert(node.principal(), node.clone());
    }

    fn is_open(&self, _: &Node) -> bool {
        !self.lines().is_cut
    }

    fn ask<'a>(
        &'a self,
        node: &'a Node,
        peer: Principal,
        request: HandoffRequest,
    ) -> BoxFuture<'a, Result<HandoffAnswer, Code>> {
        async move {
            if self.lines().stalled.contains(&peer) {
                let _on_the_way = OnTheWay::to_nowhere(self);
                return std::future::pending().await;
            }
            let there = self.alive(peer).ok_or(Code::Unreachable)?;
            let (word, step) = match &request.step {
                HandoffStep::Freeze { .. } => ("freeze", None),
                HandoffStep::Offer { .. } => ("offer", None),
                HandoffStep::Prepare => ("prepare", None),
                HandoffStep::Activate { .. } => ("activate", Some(Step::Activate)),
                HandoffStep::Retire { .. } => ("retire", Some(Step::Retire)),
                HandoffStep::Abort => ("abort", None),
                HandoffStep::Status => ("status", None),
            };
            // A question about where it stands is no step.
            if request.step != HandoffStep::Status {
                self.lines().log.push((peer, word));
            }
            let desk = there.moves().map_err(|problem| problem.code())?;
            let answer = desk.answer(Asker::Proven(node.principal()), request).await;
            let mut lines = self.lines();
            if step.is_some() && lines.dies_after.get(&peer).copied() == step {
                lines.dead.insert(peer);
                return Err(Code::Timeout);
            }
            Ok(answer)
        }
        .boxed()
    }

    fn look<'a>(
        &'a self,
        node: &'a Node,
        peer: Principal,
        session: SessionId,
    ) -> BoxFuture<'a, Result<Option<Point>, Code>> {
        async move {
            let there = self.alive(peer).ok_or(Code::Unreachable)?;
            if !copy(&there, node, session) {
                return Ok(None);
            }
            let tip = there.reader().unwrap().session(session).unwrap().unwrap().tip;
            Ok(Some(Point { cid: tip.cid, seq: tip.seq }))
        }
        .boxed()
    }

    fn find<'a>(
        &'a self,
        node: &'a Node,
        session: SessionId,
        from: Option<String>,
    ) -> BoxFuture<'a, Answer<()>> {
        async move {
            let named = match from {
                Some(name) => vec![name.parse().map_err(|_| Code::PeerUnknown)?],
                None => self.peers(node).await,
            };
            let found = named
                .into_iter()
                .filter_map(|peer| self.alive(peer))
                .any(|there| copy(&there, node, session));
            if found { Ok(()) } else { Err(Code::NotFoundYet.into()) }
        }
        .boxed()
    }

    fn fetch<'a>(
        &'a self,
        node: &'a Node,
        session: SessionId,
        head: Point,
        from: Vec<Provider>,
        _tally: Arc<Tally>,
    ) -> BoxFuture<'a, Result<(), Reject>> {
        async move {
            for provider in from {
                let peer = match provider {
                    Provider::Peer(peer) => peer,
                    Provider::Address(text) => text.parse().unwrap(),
                };
                let Some(there) = self.alive(peer) else { continue };
                if copy(&there, node, session) {
                    let held = node.reader().unwrap().entry(head.cid).unwrap();
                    return held.map(|_| ()).ok_or_else(|| Code::NotFoundYet.into());
                }
            }
            Err(Code::NotFoundYet.into())
        }
        .boxed()
    }

    fn open(&self, _: &Node, _: SessionId, _: Principal) {}

    fn close(&self, _: &Node, _: SessionId, _: Principal) {}

    fn addresses<'a>(&'a self, _: &'a Node, peers: Vec<Principal>) -> BoxFuture<'a, Vec<String>> {
        async move { peers.iter().map(ToString::to_string).collect() }.boxed()
    }

    fn told<'a>(&'a self, _: &'a Node, peer: Principal, _: SessionId) -> BoxFuture<'a, Option<Point>> {
        let told = self.lines().told.get(&peer).copied();
        async move { told }.boxed()
    }

    fn peers<'a>(&'a self, node: &'a Node) -> BoxFuture<'a, Vec<Principal>> {
        let lines = self.lines();
        let alive =
            lines.nodes.keys().filter(|peer| !lines.dead.contains(peer) && **peer != node.principal());
        let alive = alive.copied().collect();
        async move { alive }.boxed()
    }
}

/// Copies what one node has of a session to another, as a sync would. False: the first one has nothing.
pub(super) fn copy(from: &Node, to: &Node, session: SessionId) -> bool {
    let reader = from.reader().unwrap();
    let Some(row) = reader.session(session).unwrap() else { return false };
    let mut arrived = Arrived::default();
    for bytes in reader.controls_of_session(session).unwrap() {
        arrived.controls.push(Decoded::<Control>::decode(bytes).unwrap().assume_signed());
    }
    for stored in reader.entries(session, Seq::ZERO, row.tip.seq).unwrap() {
        let stored = stored.unwrap();
        let payload = stored.payload.and_then(|cid| match reader.payload(cid).unwrap() {
            PayloadState::Present(bytes) => Some(Arc::from(bytes)),
            PayloadState::Absent | PayloadState::Dropped => None,
        });
        let signed = Decoded::<Entry>::decode(stored.bytes).unwrap().assume_signed();
        arrived.entries.push(Prechecked::of(signed, payload).unwrap());
    }
    to.take_in(session, arrived).unwrap();
    true
}
