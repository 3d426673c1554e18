//! Peers as `peer list` and `status` show them.

use std::time::Duration;

use libp2p::Multiaddr;
use serde_json::{Value, json};
use throughline_protocol::clock::Apart;
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Principal, SessionId};

use super::contacts::Relation;
use super::peers;
use super::shared::Shared;
use crate::api::error::Answer;
use crate::core::Node;
use crate::net::{Charges, Transport, peer_of, principal_of};

/// A peer as `peer list` and `status` show it.
#[derive(Clone, Debug)]
pub struct PeerView {
    /// What the user calls it.
    pub alias: Option<String>,
    /// Who stands behind it, as it proved, else as the address book says.
    pub principal: Option<Principal>,
    /// Its connection key in principal form.
    pub peer: Principal,
    /// Where it is connected or can be reached.
    pub addrs: Vec<Multiaddr>,
    /// Whether there is a connection.
    pub connected: bool,
    /// How it is connected; none when it is not.
    pub transport: Option<Transport>,
    /// The last round trip.
    pub rtt: Option<Duration>,
    /// How long ago it said something.
    pub seen: Option<Duration>,
    /// What it is charged with; none when nothing counts against it.
    pub charges: Option<Charges>,
    /// How its clock stands to this one, when they differ by more than a proof may.
    pub apart: Option<Apart>,
    /// The heads that it told.
    pub heads: Vec<HeadView>,
}

/// A head that a peer told.
#[derive(Clone, Copy, Debug)]
pub struct HeadView {
    /// The session.
    pub session: SessionId,
    /// What it told.
    pub head: Mark,
    /// How that stands to what is held here.
    pub relation: Relation,
    /// How long ago.
    pub age: Duration,
}

impl PeerView {
    fn known(shared: &Shared, known: peers::KnownPeer) -> Self {
        let mut view = PeerView::of(shared, known.peer);
        view.alias = Some(known.alias);
        view.principal = view.principal.or(Some(known.principal));
        view.addrs = known.addrs;
        view
    }

    fn of(shared: &Shared, peer: Principal) -> Self {
        let heads = shared.contacts.heads(peer).into_iter().map(|(session, told)| HeadView {
            session,
            head: told.head,
            relation: Relation::Unknown,
            age: told.at.elapsed(),
        });
        PeerView {
            alias: None,
            principal: shared.contacts.principal_of(peer),
            peer,
            addrs: Vec::new(),
            connected: false,
            transport: None,
            rtt: None,
            seen: shared.contacts.silence(peer),
            charges: None,
            apart: shared.contacts.apart_of(peer),
            heads: heads.collect(),
        }
    }

    /// The object of the JSON interface.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "v": 1, "kind": "peer", "alias": self.alias,
            "principal": self.principal.map(|principal| principal.to_string()),
            "peer": peer_of(&self.peer).map(|peer| peer.to_string()),
            "addrs": self.addrs.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "connected": self.connected,
            "transport": self.transport.map(|transport| match transport {
                Transport::Quic => "quic",
                Transport::Tcp => "tcp",
            }),
            "rttMs": self.rtt.map(millis),
            "seenAgeMs": self.seen.map(millis),
            "clock": self.apart.map(apart_json),
            "charges": self.charges.map(|charges| json!({
                "count": charges.count, "code": charges.reason.name(), "ageMs": millis(charges.age),
                "blockedForMs": charges.blocked_for.map(millis),
            })),
        })
    }

    /// The head of a session that the peer told, when that is no part of the history here.
    #[must_use]
    pub fn diverged(&self, session: SessionId) -> Option<Mark> {
        let told = self.heads.iter().find(|head| head.session == session)?;
        (told.relation == Relation::Diverged).then_some(told.head)
    }

    /// What to call it.
    #[must_use]
    pub fn name(&self) -> String {
        self.alias.clone().unwrap_or_else(|| self.principal.unwrap_or(self.peer).short())
    }

    /// The peer's copy of a session, as it told it; none when it told nothing of that session.
    #[must_use]
    pub fn replica(&self, session: SessionId, tip: Mark) -> Option<Value> {
        let told = self.heads.iter().find(|head| head.session == session)?;
        let relation = if told.head.cid == tip.cid { Relation::Equal } else { told.relation };
        Some(json!({
            "peer": self.principal.unwrap_or(self.peer).to_string(), "alias": self.alias,
            "head": {"cid": told.head.cid.to_string(), "seq": told.head.seq.get()},
            "epoch": told.head.epoch.get(), "relation": relation.word(),
            "connected": self.connected, "seenAgeMs": millis(told.age),
        }))
    }
}

/// How another clock stands to this one, as the JSON interface says it.
pub(super) fn apart_json(apart: Apart) -> Value {
    json!({"differsMs": apart.ms(), "isAhead": apart.is_ahead()})
}

/// Milliseconds, as the JSON interface gives times.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Everybody in the address book, everybody connected and everybody with charges.
pub(super) async fn peers(shared: &Shared) -> Vec<PeerView> {
    let book = shared.on_node(|node| peers::list(&node.reader()?)).await.unwrap_or_default();
    let mut views: Vec<PeerView> = book.into_iter().map(|known| PeerView::known(shared, known)).collect();
    for peer in shared.net.connected().await {
        let at = views.iter().position(|view| view.peer == peer.principal).unwrap_or(views.len());
        if at == views.len() {
            views.push(PeerView::of(shared, peer.principal));
        }
        let Some(view) = views.get_mut(at) else { continue };
        view.connected = true;
        view.transport = Some(peer.transport);
        view.rtt = peer.rtt;
        for addr in peer.addrs {
            if !view.addrs.contains(&addr) {
                view.addrs.push(addr);
            }
        }
    }
    for charges in shared.net.charges().await {
        let Some(peer) = principal_of(&charges.peer) else { continue };
        let at = views.iter().position(|view| view.peer == peer).unwrap_or(views.len());
        if at == views.len() {
            views.push(PeerView::of(shared, peer));
        }
        if let Some(view) = views.get_mut(at) {
            view.charges = Some(charges);
        }
    }
    let shown = views.clone();
    // Without a store to compare with, what was told is all there is to show.
    shared.on_node(move |node| relate(node, views)).await.unwrap_or(shown)
}

/// How told heads stand to what is held.
fn relate(node: &Node, mut views: Vec<PeerView>) -> Answer<Vec<PeerView>> {
    let reader = node.reader()?;
    for head in views.iter_mut().flat_map(|view| &mut view.heads) {
        let Some(row) = reader.session(head.session)? else { continue };
        let (told, tip) = (head.head, row.tip);
        head.relation = if told.cid == tip.cid {
            Relation::Equal
        } else if reader.is_ancestor(head.session, told.cid, tip.seq)? {
            Relation::Behind
        } else if (told.epoch, told.seq) > (tip.epoch, tip.seq) {
            Relation::Ahead
        } else {
            Relation::Diverged
        };
    }
    Ok(views)
}
