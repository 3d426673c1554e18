//! Announcements that arrive, by gossip or directly. `docs/PROTOCOL.md` R-FI-1.
//!
//! What a message's own bytes decide is decided by [`announce::check`]; here it is held against what this node holds. A message is a
//! hint: a revocation is taken in, because the owner signed it; a head or a handoff only leads to asking whoever told it.

use std::sync::Arc;

use libp2p::PeerId;
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::{Control, Role};
use throughline_protocol::entry::{Body, Entry, Handoff};
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{EntryCid, Principal, Seq, SessionId};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::wire::announce::{self, Acting, Announcement, News};
use throughline_store::{Pin, PinDepth, SetPin};

use super::evidence;
use super::follow::{self, Scope};
use super::shared::{Shared, blocking};
use crate::api::error::Answer;
use crate::core::{Node, Source, controls_of, now};
use crate::net::{GossipId, Verdict, principal_of};

/// What a checked announcement means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// It fits what is held, or there is nothing to hold it against.
    Good,
    /// It was signed under a capability that is revoked or not held.
    Doubtful,
}

/// What there is to do about a good announcement.
#[derive(Debug)]
enum Todo {
    Nothing,
    Pull(SessionId),
}

/// Judges a message that arrived by gossip, then acts on it.
pub(super) async fn take_gossip(
    shared: Arc<Shared>,
    id: GossipId,
    from: PeerId,
    owner: Principal,
    data: Vec<u8>,
) {
    if !shared.evidence.allows(from, &data) {
        return shared.net.report(id, Verdict::Ignore).await;
    }
    let checked = blocking(move || Ok(announce::check(owner, &data, &mut VerifyingKeys::default()))).await;
    let announcement = match checked {
        Ok(Ok(announcement)) => announcement,
        Ok(Err(reject)) => {
            let verdict = verdict_of(&reject);
            tracing::debug!(%from, %reject, ?verdict, "an announcement is not taken");
            if verdict == Verdict::Reject {
                // No honest node passes on what its own bytes refuse, so whoever did is at fault.
                shared.net.charge(from, reject.code).await;
            }
            return shared.net.report(id, verdict).await;
        }
        Err(_) => return shared.net.report(id, Verdict::Ignore).await,
    };
    match weigh(&shared, owner, &announcement).await {
        Ok(Worth::Good) => shared.net.report(id, Verdict::Accept).await,
        Ok(Worth::Doubtful) | Err(_) => return shared.net.report(id, Verdict::Ignore).await,
    }
    let told = match &announcement.news {
        // Accepting it passed it on.
        News::Evidence(exhibit) => Some((exhibit.session(), exhibit.accusation())),
        News::Head { .. } | News::Handoff { .. } | News::Tombstone(_) => None,
    };
    act(&shared, from, owner, announcement).await;
    if let Some((session, accusation)) = told {
        evidence::mark_told(&shared, session, accusation).await;
    }
}

/// Takes an announcement that a peer handed over directly. The answer says nothing about what is held.
pub(super) async fn take_announced(
    shared: &Arc<Shared>,
    from: PeerId,
    message: Arc<[u8]>,
) -> Result<(), Reject> {
    if !shared.evidence.allows(from, &message) {
        return Err(Reject::new(Code::Quota, "too much evidence at a time; say it later"));
    }
    let checked = blocking(move || {
        let mut keys = VerifyingKeys::default();
        Ok(owner_of(&message).and_then(|owner| Ok((owner, announce::check(owner, &message, &mut keys)?))))
    });
    let checked = checked.await.map_err(|problem| Reject::new(problem.code(), problem.detail()))?;
    let (owner, announcement) = match checked {
        Ok(checked) => checked,
        Err(reject) => {
            if verdict_of(&reject) == Verdict::Reject {
                shared.net.charge(from, reject.code).await;
            }
            return Err(reject);
        }
    };
    if weigh(shared, owner, &announcement).await == Ok(Worth::Good) {
        act(shared, from, owner, announcement).await;
    }
    Ok(())
}

/// Every honest node refuses what its own bytes refuse, so passing it on is a fault; but a newer version's blob is none.
fn verdict_of(reject: &Reject) -> Verdict {
    if reject.code == Code::Version { Verdict::Ignore } else { Verdict::Reject }
}

/// The owner whose topic a message belongs to.
fn owner_of(message: &[u8]) -> Result<Principal, Reject> {
    if let Some(exhibit) = announce::evidence(message, &mut VerifyingKeys::default())? {
        return Ok(exhibit.owner());
    }
    let message = announce::Message::decode(message)?;
    match Decoded::<Control>::decode(Arc::clone(&message.blob)) {
        Ok(control) => Ok(match control.value() {
            Control::Ref(value) => value.owner(),
            Control::Tombstone(tombstone) => tombstone.signer,
            Control::Capability(_) => {
                return Err(Reject::new(Code::Type, "expected a Ref, SessionHandoff or CapabilityTombstone"));
            }
        }),
        Err(reject) if reject.code == Code::Type => {
            Ok(Decoded::<Entry>::decode(message.blob)?.value().owner())
        }
        Err(reject) => Err(reject),
    }
}

/// Whether what was signed under a capability is covered by one that is held or came along, and live.
async fn weigh(shared: &Shared, owner: Principal, announcement: &Announcement) -> Result<Worth, Reject> {
    if let News::Evidence(exhibit) = &announcement.news {
        return evidence::weigh(shared, exhibit).await;
    }
    let cited = match announcement.authority {
        Acting::Owner => return Ok(Worth::Good),
        Acting::Under(cited) | Acting::Cited(cited) => cited,
    };
    let came = announcement.control.clone();
    let signer = match &announcement.news {
        News::Head { reference, .. } => reference.value().signer,
        News::Handoff { .. } | News::Tombstone(_) | News::Evidence(_) => owner,
    };
    let weighed = shared.on_node(move |node| {
        let mut controls = controls_of(&node.reader()?, owner, None)?;
        came.iter().for_each(|control| {
            controls.insert(control);
        });
        let acts = controls
            .grant(&cited, signer, owner)
            .is_ok_and(|grant| matches!(grant.role, Role::Agent | Role::Writer));
        let live = controls.revoked_by(&cited, owner).is_none();
        Ok(if acts && live { Worth::Good } else { Worth::Doubtful })
    });
    weighed.await.map_err(|problem| Reject::new(problem.code(), problem.detail()))
}

async fn act(shared: &Arc<Shared>, from: PeerId, owner: Principal, announcement: Announcement) {
    if let (Some(session), Some(key)) = (announcement.session(), principal_of(&from))
        && let News::Head { head, .. } = &announcement.news
    {
        // A hint may leave the place out. Then nothing is noted of a head that is not held: who asks for it is told its place.
        let (cid, epoch, hinted) = (head.head, head.epoch, announcement.hint.seq);
        let place = shared.on_node(move |node| Ok(place_of(&node.reader()?, session, cid, hinted)?)).await;
        if let Ok(Some(seq)) = place {
            shared.contacts.told(key, session, Mark { seq, epoch, cid });
        }
    }
    let taken = shared.on_node(move |node| take(node, owner, announcement)).await;
    match taken {
        Ok(Todo::Nothing) => {}
        Ok(Todo::Pull(session)) => follow::hint(shared, from, Scope::Session(session)),
        Err(problem) => tracing::debug!(%from, %problem, "an announcement came to nothing"),
    }
}

/// The place of an announced head: that of the entry where it is held, else what the hint says.
fn place_of(
    reader: &throughline_store::Reader,
    session: SessionId,
    head: EntryCid,
    hinted: Seq,
) -> Result<Option<Seq>, throughline_store::StoreError> {
    let held = reader.entry(head)?.filter(|(of, _)| *of == session).map(|(_, stored)| stored.seq);
    let is_told = hinted > Seq::ZERO || head == session.genesis();
    Ok(held.or(is_told.then_some(hinted)))
}

/// Stores what may be stored at once, and tells what is to be fetched.
fn take(node: &Node, owner: Principal, announcement: Announcement) -> Answer<Todo> {
    let reader = node.reader()?;
    if !follow::follows_owner(node, &reader, owner)? {
        return Ok(Todo::Nothing);
    }
    let mut controls = announcement.control;
    let todo = match announcement.news {
        News::Evidence(exhibit) => {
            drop(reader);
            node.take_evidence(&exhibit, Source::Peer)?;
            return Ok(Todo::Nothing);
        }
        News::Tombstone(tombstone) => {
            controls.push(Signed::<Control>::check(
                Arc::clone(tombstone.bytes()),
                &mut VerifyingKeys::default(),
            )?);
            Todo::Nothing
        }
        News::Head { reference, head } => {
            let held = reader.session(head.session)?.is_some();
            if held && follow::is_kept(&reader, owner, head.session, reference.value())? {
                let bytes = Arc::clone(reference.bytes());
                controls.push(Signed::<Control>::check(bytes, &mut VerifyingKeys::default())?);
            }
            pull_unless_held(&reader, head.session, head.head)?
        }
        News::Handoff { entry, session } => {
            keep_what_is_handed_over(node, &reader, owner, session, entry.value())?;
            pull_unless_held(&reader, session, entry.cid())?
        }
    };
    drop(reader);
    if !controls.is_empty() {
        node.take_controls(controls)?;
    }
    Ok(todo)
}

/// The owner of this node makes it the holder of a session that it does not know yet: then the session is this node's to keep.
fn keep_what_is_handed_over(
    node: &Node,
    reader: &throughline_store::Reader,
    owner: Principal,
    session: SessionId,
    handoff: &Entry,
) -> Answer<()> {
    let Body::Handoff(Handoff { holder: Some(holder), .. }) = &handoff.body else { return Ok(()) };
    let known = reader.session(session)?.is_some() || reader.pin(session)?.is_some();
    if known || *holder != node.principal() || node.owner() != Some(owner) {
        return Ok(());
    }
    let pin = Some(Pin { since: now(), depth: PinDepth::Files });
    node.store().run(SetPin { session, pin, at: now() })?;
    Ok(())
}

fn pull_unless_held(reader: &throughline_store::Reader, session: SessionId, head: EntryCid) -> Answer<Todo> {
    Ok(if reader.find(&head.cid())?.is_some() { Todo::Nothing } else { Todo::Pull(session) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a message that says nothing, with a map head that is longer than it needs to be.
    const NOT_CANONICAL: &[u8] = &[0xb8, 0x01, 0x64, b'b', b'l', b'o', b'b', 0x40];

    #[test]
    fn what_no_honest_node_passes_on_is_a_fault() {
        let owner = throughline_protocol::testing::key("account").principal();
        let refused = announce::check(owner, NOT_CANONICAL, &mut VerifyingKeys::default()).unwrap_err();
        assert_eq!((refused.code, verdict_of(&refused)), (Code::CborNoncanon, Verdict::Reject));
        // What a newer node may take is nobody's fault.
        assert_eq!(verdict_of(&Code::Version.into()), Verdict::Ignore);
    }
}
