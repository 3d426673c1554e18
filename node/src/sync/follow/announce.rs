//! Telling others: a new head after a commit, a handoff, a revocation. Public sessions on the owner's topic; everything else
//! directly, to connected peers that proved who they are and may read it. `docs/PROTOCOL.md` §Announcements, tickets, files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::PeerId;
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::control::{Control, Ref};
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::evidence::Accusation;
use throughline_protocol::id::{Cid, Codec, EntryCid, HashKind, Principal, SessionId};
use throughline_protocol::wire::announce::{Hint, Message};
use throughline_protocol::wire::chain::{ChainAsk, OwnerState};
use throughline_store::Reader;
use tokio::sync::Notify;

use crate::api::error::Answer;
use crate::core::{Node, controls_of};
use crate::sync::evidence;
use crate::sync::fault::PeerFault;
use crate::sync::peers;
use crate::sync::policy::{Asker, Gate, Reach, View};
use crate::sync::published::published;
use crate::sync::shared::Shared;

/// Sessions that wait to be announced; beyond it the timer's comparison tells.
const WAITING_MAX: usize = 4_096;
/// Sessions whose last announced tip is remembered.
const ANNOUNCED_MAX: usize = 4_096;

/// Sessions with news, each once.
#[derive(Default)]
pub(in crate::sync) struct Outbox {
    waiting: Mutex<BTreeSet<SessionId>>,
    announced: Mutex<BTreeMap<SessionId, EntryCid>>,
    news: Notify,
}

impl Outbox {
    /// The session moved; it will be announced soon.
    pub(in crate::sync) fn put(&self, session: SessionId) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING_MAX {
            waiting.insert(session);
        }
        drop(waiting);
        self.news.notify_one();
    }

    fn take(&self) -> BTreeSet<SessionId> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether this tip was not announced before; then it is now.
    fn is_new(&self, session: SessionId, tip: EntryCid) -> bool {
        let mut announced = self.announced.lock().unwrap_or_else(PoisonError::into_inner);
        if announced.len() >= ANNOUNCED_MAX && !announced.contains_key(&session) {
            announced.pop_first();
        }
        announced.insert(session, tip) != Some(tip)
    }
}

/// How long those who are connected are waited for to agree.
const AGREES_WITHIN: Duration = Duration::from_secs(5);

/// Who is seen to know an owner's control blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Those who were seen to hold all that they are told.
    pub peers: usize,
    /// Those who were not, since it changed last: they hear of it when they meet somebody who knows.
    pub pending: usize,
}

/// Something to be told, and to whom.
struct Letter {
    owner: Principal,
    message: Arc<[u8]>,
    /// Whether it may be read by anybody.
    on_topic: bool,
    readers: Vec<PeerId>,
    /// The evidence that it tells, which is told once.
    evidence: Option<(SessionId, Accusation)>,
}

/// Announces what is put into the outbox.
pub(in crate::sync) async fn run(shared: Arc<Shared>) {
    loop {
        shared.outbox.news.notified().await;
        // More commits of the same sessions follow closely: they are told at once.
        tokio::time::sleep(shared.limits.announce_after).await;
        for session in shared.outbox.take() {
            let askers = askers(&shared).await;
            let worker = Arc::clone(&shared);
            let letters = shared.on_node(move |node| letters(&worker, node, session, &askers)).await;
            match letters {
                Ok(letters) => post_all(&shared, letters).await,
                Err(problem) => tracing::debug!(session = session.short(), %problem, "not announced"),
            }
        }
    }
}

/// The connected peers that proved who stands behind them.
async fn askers(shared: &Shared) -> Vec<Asker> {
    let connected = shared.net.connected().await;
    let proven = connected.into_iter().filter_map(|connected| {
        let principal = shared.contacts.principal_of(connected.principal)?;
        let (peer, peer_key) = (connected.peer, connected.principal);
        Some(Asker { peer, peer_key, principal: Some(principal), grants: Vec::new(), apart: None })
    });
    proven.collect()
}

/// What there is to tell about a session that moved.
fn letters(shared: &Shared, node: &Node, session: SessionId, askers: &[Asker]) -> Answer<Vec<Letter>> {
    let reader = node.reader()?;
    let Some(view) = View::read(&reader, session)? else { return Ok(Vec::new()) };
    let tip = view.row.tip;
    let untold = evidence::untold(node, session)?;
    let moved = shared.outbox.is_new(session, tip.cid);
    if !moved && untold.is_empty() {
        return Ok(Vec::new());
    }
    let mut told = Vec::new();
    if !moved {
        return evidence_letters(shared, &reader, &view, untold, askers);
    }
    let handoff = reader.entry_at(session, tip.seq)?.filter(|stored| is_handoff(&stored.bytes));
    told.extend(handoff.map(|stored| Arc::<[u8]>::from(stored.bytes)));
    let holder_ref = node.holder_ref(session)?;
    if let Some(reference) = &holder_ref {
        keep_publishing(node, reference)?;
        told.push(Arc::clone(reference.bytes()));
    }
    let reader = node.reader()?;
    let readers = readers_of(shared, &reader, session, askers)?;
    let controls = controls_of(&reader, view.row.owner, None)?;
    let shown = published(&reader, &shared.classes, &view, &controls)?;
    let on_topic = shown.is_some_and(|mark| mark.cid == tip.cid);
    let hint = Hint { seq: tip.seq, epoch: tip.epoch, ..Hint::default() };
    let owner = view.row.owner;
    let letter = |blob: Arc<[u8]>| -> Answer<Letter> {
        let control = cited(&reader, owner, &blob)?;
        let message = Message { blob, control, hint: hint.clone() }.encode()?;
        let readers = readers.clone();
        Ok(Letter { owner, message: message.into(), on_topic, readers, evidence: None })
    };
    let mut letters = told.into_iter().map(letter).collect::<Answer<Vec<_>>>()?;
    letters.extend(evidence_letters(shared, &reader, &view, untold, askers)?);
    Ok(letters)
}

/// What is still to be told of a session's evidence: to everybody where it is public, else to those who may read all of it.
fn evidence_letters(
    shared: &Shared,
    reader: &Reader,
    view: &View,
    untold: Vec<evidence::Untold>,
    askers: &[Asker],
) -> Answer<Vec<Letter>> {
    if untold.is_empty() {
        return Ok(Vec::new());
    }
    let (session, owner) = (view.row.session, view.row.owner);
    let readers = readers_of(shared, reader, session, askers)?;
    let shown = published(reader, &shared.classes, view, &controls_of(reader, owner, None)?)?;
    let on_topic = evidence::is_public(view.state.class(), shown);
    let letter = |(accusation, message)| {
        let evidence = Some((session, accusation));
        Letter { owner, message, on_topic, readers: readers.clone(), evidence }
    };
    Ok(untold.into_iter().map(letter).collect())
}

/// A holder's Ref that publishes is kept: it decides what strangers see.
fn keep_publishing(node: &Node, reference: &Signed<Control>) -> Answer<()> {
    if let Control::Ref(Ref { private: false, .. }) = reference.value() {
        let controls = vec![reference.clone()];
        node.store().run(throughline_store::PutControls { controls, at: crate::core::now() })?;
    }
    Ok(())
}

fn is_handoff(bytes: &[u8]) -> bool {
    Decoded::<Entry>::decode(bytes).is_ok_and(|entry| matches!(entry.value().body, Body::Handoff(_)))
}

/// The capability that a blob was signed under, or the grant that a handoff names.
fn cited(reader: &Reader, owner: Principal, blob: &Arc<[u8]>) -> Answer<Vec<Arc<[u8]>>> {
    let cited = match Decoded::<Control>::decode(Arc::clone(blob)) {
        Ok(control) => match control.value() {
            Control::Ref(value) => value.capability,
            Control::Tombstone(tombstone) => Some(tombstone.capability),
            Control::Capability(_) => None,
        },
        Err(_) => match Decoded::<Entry>::decode(Arc::clone(blob))?.value().body {
            Body::Handoff(ref handoff) => handoff.grant,
            Body::Genesis(_)
            | Body::UserMessage(_)
            | Body::ModelResponse(_)
            | Body::ToolCall(_)
            | Body::Note(_)
            | Body::Seal(_) => None,
        },
    };
    let Some(cited) = cited else { return Ok(Vec::new()) };
    // Only the owner's own grants may come along.
    let is_owners = controls_of(reader, owner, None)?.capability_hash(&cited).is_some();
    Ok(reader.control(&cited)?.filter(|_| is_owners).map(Arc::from).into_iter().collect())
}

async fn post_all(shared: &Arc<Shared>, letters: Vec<Letter>) {
    for letter in letters {
        let mut reached = 0;
        if letter.on_topic {
            match shared.net.publish(letter.owner, letter.message.to_vec()).await {
                Ok(_) => reached += 1,
                Err(error) => tracing::debug!(%error, "not published"),
            }
        }
        reached += post(shared, letter.owner, &letter.readers, &letter.message).await.len();
        if let (Some((session, accusation)), 1..) = (letter.evidence, reached) {
            evidence::mark_told(shared, session, accusation).await;
        }
    }
}

/// Hands a message to each of these peers; returns those that took it.
async fn post(
    shared: &Shared,
    owner: Principal,
    readers: &[PeerId],
    message: &Arc<[u8]>,
) -> BTreeSet<PeerId> {
    let tell = |peer: PeerId| {
        let message = Arc::clone(message);
        async move {
            let credentials = shared.credentials(peer, Some(owner), None).await.ok()?;
            match shared.tell(peer, &credentials, message).await {
                Ok(()) => Some(peer),
                Err(fault) => {
                    tracing::debug!(%peer, %fault, "a peer was not told");
                    None
                }
            }
        }
    };
    let told: Vec<_> = readers.iter().map(|peer| tell(*peer)).collect();
    let at_a_time = shared.limits.peers_max.max(1);
    futures::stream::iter(told).buffer_unordered(at_a_time).filter_map(std::future::ready).collect().await
}

/// Tells peers about control blobs of an owner, which are stored already. A Ref is handed to those who may read its session, and is
/// published where it publishes, as a revocation is. Grants and revocations are a difference that is found when two meet: those
/// who are connected are shown that there is one, and what is told of it is who was seen to agree since.
pub(in crate::sync) async fn tell_controls(
    shared: &Arc<Shared>,
    owner: Principal,
    blobs: Vec<Arc<[u8]>>,
) -> Told {
    let askers = askers(shared).await;
    let (worker, given) = (Arc::clone(shared), blobs.clone());
    let gathered = shared.on_node(move |node| gather(&worker, node, owner, &given, &askers)).await;
    let Ok(Gathered { letters, shown }) = gathered else { return Told::default() };
    let mut reached = BTreeSet::new();
    for letter in &letters {
        if letter.on_topic {
            let _ = shared.net.publish(owner, letter.message.to_vec()).await;
        }
        reached.extend(post(shared, owner, &letter.readers, &letter.message).await);
    }
    if let Some(shown) = shown {
        let mut wanted = Vec::new();
        for (peer, who, state) in shown {
            match show_digest(shared, peer, state).await {
                Ok(()) => wanted.push((who, state.digest)),
                Err(fault) => tracing::debug!(%peer, %fault, "a peer was not told"),
            }
        }
        // Who takes longer is told all the same; it is not seen to agree yet.
        let _ = tokio::time::timeout(AGREES_WITHIN, shared.agreed.all(owner, &wanted)).await;
        let worker = Arc::clone(shared);
        return shared.on_node(move |node| told(&worker, node, owner, &blobs)).await.unwrap_or_default();
    }
    let book = shared.on_node(|node| peers::list(&node.reader()?)).await.unwrap_or_default();
    let is_reached =
        |peer: &peers::KnownPeer| crate::net::peer_of(&peer.peer).is_some_and(|peer| reached.contains(&peer));
    Told { peers: reached.len(), pending: book.iter().filter(|peer| !is_reached(peer)).count() }
}

/// What there is to tell, and to whom.
struct Gathered {
    /// Messages that are published, or handed over.
    letters: Vec<Letter>,
    /// The connected peers whom the owner's control blobs concern, with what each is told of; none when there are only Refs.
    shown: Option<Vec<(PeerId, Principal, OwnerState)>>,
}

fn gather(
    shared: &Shared,
    node: &Node,
    owner: Principal,
    blobs: &[Arc<[u8]>],
    askers: &[Asker],
) -> Answer<Gathered> {
    let reader = node.reader()?;
    let mut letters = Vec::new();
    let mut is_compared = false;
    for blob in blobs {
        let control = Decoded::<Control>::decode(Arc::clone(blob))?;
        let mut hint = Hint::default();
        let (readers, on_topic) = match control.value() {
            Control::Capability(_) => {
                is_compared = true;
                continue;
            }
            // Revocations concern everybody who follows the owner; they name no session that is not public.
            Control::Tombstone(_) => {
                is_compared = true;
                (Vec::new(), true)
            }
            Control::Ref(value) => {
                let head = value.session_head()?;
                let session = head.session;
                if let Some((_, stored)) = reader.entry(head.head)? {
                    hint = Hint { seq: stored.seq, epoch: head.epoch, ..hint };
                }
                (readers_of(shared, &reader, session, askers)?, !value.private)
            }
        };
        let control = cited(&reader, owner, blob)?;
        let message = Message { blob: Arc::clone(blob), control, hint }.encode()?;
        letters.push(Letter { owner, message: message.into(), on_topic, readers, evidence: None });
    }
    let mut shown = Vec::new();
    for asker in askers.iter().filter(|_| is_compared) {
        let told = Gate::new(&reader, asker, &shared.targets, &shared.classes).disclosed(owner)?;
        if let (Some(who), false) = (asker.principal, told.is_empty()) {
            shown.push((asker.peer, who, OwnerState::of(owner, &told)));
        }
    }
    Ok(Gathered { letters, shown: is_compared.then_some(shown) })
}

/// Who was seen to agree about an owner's control blobs, and who was not: of those with a live grant, those whom the address book
/// names, and those whose grant these blobs revoke.
fn told(shared: &Shared, node: &Node, owner: Principal, blobs: &[Arc<[u8]>]) -> Answer<Told> {
    let reader = node.reader()?;
    let controls = controls_of(&reader, owner, None)?;
    let mut revoked = BTreeSet::new();
    for blob in blobs {
        if let Control::Tombstone(tombstone) = Decoded::<Control>::decode(Arc::clone(blob))?.value() {
            revoked.extend(controls.capability_hash(&tombstone.capability));
        }
    }
    let book: BTreeSet<Principal> = peers::list(&reader)?.into_iter().map(|peer| peer.principal).collect();
    let mut known = BTreeSet::new();
    for (hash, capability) in controls.capabilities() {
        let cid = Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash);
        let is_known = book.contains(&capability.delegate)
            || revoked.contains(hash)
            || controls.revoked_by(&cid, owner).is_none();
        if capability.signer == owner && capability.grant().is_ok() && is_known {
            known.insert(capability.delegate);
        }
    }
    known.remove(&node.principal());
    known.remove(&owner);
    let mut counts = Told::default();
    for who in known {
        let agrees = match shared.agreed.last(who, owner) {
            Some(last) => {
                let asker = Asker {
                    peer: shared.net.peer_id(),
                    peer_key: who,
                    principal: Some(who),
                    apart: None,
                    grants: Vec::new(),
                };
                let told = Gate::new(&reader, &asker, &shared.targets, &shared.classes).disclosed(owner)?;
                OwnerState::of(owner, &told).digest == last
            }
            None => false,
        };
        *(if agrees { &mut counts.peers } else { &mut counts.pending }) += 1;
    }
    Ok(counts)
}

fn readers_of(shared: &Shared, reader: &Reader, session: SessionId, askers: &[Asker]) -> Answer<Vec<PeerId>> {
    let mut readers = Vec::new();
    for asker in askers {
        let mut gate = Gate::new(reader, asker, &shared.targets, &shared.classes);
        if gate.session(session)?.is_some_and(|seen| seen.reach == Reach::Whole) {
            readers.push(asker.peer);
        }
    }
    Ok(readers)
}

/// Shows a peer what this node holds of an owner; one that holds something else asks back.
async fn show_digest(shared: &Shared, peer: PeerId, state: OwnerState) -> Result<(), PeerFault> {
    let credentials = shared.credentials(peer, Some(state.owner), None).await;
    let credentials = credentials.map_err(|problem| PeerFault::ours(&problem))?;
    let nobody = SessionId::of_genesis(EntryCid::from_digest([0; 32]));
    let ask = ChainAsk::Heads { owners: vec![state], sessions: vec![nobody] };
    shared.ask_heads(peer, &credentials, ask).await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tip_is_announced_once() {
        let outbox = Outbox::default();
        let session = SessionId::of_genesis(EntryCid::from_digest([1; 32]));
        let tip = |byte| EntryCid::from_digest([byte; 32]);
        outbox.put(session);
        outbox.put(session);
        assert_eq!(outbox.take(), BTreeSet::from([session]));
        assert!(outbox.take().is_empty());
        assert!(outbox.is_new(session, tip(1)));
        assert!(!outbox.is_new(session, tip(1)));
        assert!(outbox.is_new(session, tip(2)));
    }
}
