//! `heads` and `control`: what is held, for those who may know.

use std::collections::BTreeSet;
use std::sync::Arc;

use throughline_protocol::block::Decoded;
use throughline_protocol::control::Control;
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::limits;
use throughline_protocol::wire::chain::{ChainAnswer, HeadState, OwnerState};
use throughline_protocol::wire::pack;

use super::super::ending::Head;
use super::super::policy::{Gate, Reach, Seen};
use super::{End, Out, Scene, Served, send};
use crate::api::error::Answer;

/// Sessions that one answer lists.
const LISTED_MAX: usize = 16_384;
/// Sessions read at a time.
const PAGE: usize = 256;
/// Room for a head's fields in a frame, without its Ref.
const HEAD_BYTES: usize = 256;

/// Answers `heads`.
pub(super) fn heads(scene: &Scene, owners: &[OwnerState], sessions: &[SessionId], out: &Out) -> Served {
    let mut gate = scene.gate();
    let mut held = Vec::with_capacity(owners.len());
    for asked in owners {
        let told = owner_state(&mut gate, asked.owner)?;
        if told.count > 0 && told.digest == asked.digest {
            agrees(scene, told);
        }
        held.push(told);
    }
    let mut frame = Frame { owners: held, sessions: Vec::new(), bytes: owners.len() * HEAD_BYTES };
    if sessions.is_empty() {
        let mut after = None;
        let mut listed = 0;
        loop {
            let page = scene.reader.sessions(after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.session);
            for row in &page {
                if listed < LISTED_MAX
                    && let Some(head) = head_of(scene, &mut gate, row.session)?
                {
                    listed += 1;
                    if let Some(full) = frame.push(head) {
                        send!(out, full);
                    }
                }
            }
        }
    }
    // Each once: a question of a thousand times the same would cost a thousand answers.
    for session in sessions.iter().collect::<BTreeSet<_>>() {
        if let Some(head) = head_of(scene, &mut gate, *session)?
            && let Some(full) = frame.push(head)
        {
            send!(out, full);
        }
    }
    send!(out, frame.take());
    Ok(Ok(End::Done))
}

/// Heads on their way into a frame.
struct Frame {
    owners: Vec<OwnerState>,
    sessions: Vec<HeadState>,
    bytes: usize,
}

impl Frame {
    /// Adds a head; returns the frame before it when that is full.
    fn push(&mut self, head: HeadState) -> Option<ChainAnswer> {
        let bytes = HEAD_BYTES + head.reference.as_ref().map_or(0, |blob| blob.len());
        let is_full = self.bytes + bytes > limits::FRAME_TARGET_BYTES
            || self.sessions.len() >= limits::HEADS_SESSIONS_MAX;
        let full = is_full.then(|| self.take());
        self.sessions.push(head);
        self.bytes += bytes;
        full
    }

    fn take(&mut self) -> ChainAnswer {
        self.bytes = 0;
        ChainAnswer::Heads {
            owners: std::mem::take(&mut self.owners),
            sessions: std::mem::take(&mut self.sessions),
        }
    }
}

/// What the asker is told of an owner's control blobs; of none, for those whom they do not concern.
fn owner_state(gate: &mut Gate<'_>, owner: Principal) -> Answer<OwnerState> {
    Ok(OwnerState::of(owner, &gate.disclosed(owner)?))
}

/// The asker holds all that it is told.
fn agrees(scene: &Scene, told: OwnerState) {
    if let Some(who) = scene.asker.principal {
        scene.shared.agreed.note(who, told.owner, told.digest);
    }
}

fn head_of(scene: &Scene, gate: &mut Gate<'_>, session: SessionId) -> Answer<Option<HeadState>> {
    let (head, reference) = match gate.head(session)? {
        Some(Head::Seen(seen, head)) => (head, reference_to(scene, &seen, head)?),
        Some(Head::Ended(opening)) => (opening, None),
        None => return Ok(None),
    };
    Ok(Some(HeadState { session, head: head.cid, seq: head.seq, epoch: head.epoch, reference }))
}

/// A Ref that names the head, the owner's first, then a device's, then the holder's; to those who see a published part, only
/// one that publishes.
fn reference_to(scene: &Scene, seen: &Seen, head: Mark) -> Answer<Option<Arc<[u8]>>> {
    let publishes_only = seen.reach != Reach::Whole;
    let (owner, holder) = (seen.view.row.owner, seen.view.state.holder());
    let mut best = None;
    for bytes in scene.reader.refs_of_session(seen.view.row.session)? {
        let blob = Decoded::<Control>::decode(bytes)?;
        if let Control::Ref(value) = blob.value()
            && !(publishes_only && value.private)
            && value.session_head().is_ok_and(|named| named.head == head.cid)
        {
            let rank = (value.signer != owner, Some(value.signer) == holder);
            if best.as_ref().is_none_or(|(held, _)| rank < *held) {
                best = Some((rank, Arc::clone(blob.bytes())));
            }
        }
    }
    Ok(best.map(|(_, bytes)| bytes))
}

/// Answers `control`: what the asker is told of the owner and does not hold.
pub(super) fn control(scene: &Scene, owner: Principal, have: &[[u8; 32]], out: &Out) -> Served {
    let mut missing = scene.gate().disclosed(owner)?;
    let told = OwnerState::of(owner, &missing);
    for hash in have {
        missing.remove(hash);
    }
    let mut blobs = Vec::with_capacity(missing.len());
    for hash in &missing {
        blobs.extend(scene.reader.control_by_hash(hash)?.map(Arc::<[u8]>::from));
    }
    // Whoever takes them in by parts holds a capability before what revokes it.
    blobs.sort_by_cached_key(|blob| {
        let decoded = Decoded::<Control>::decode(Arc::clone(blob));
        decoded.is_ok_and(|blob| matches!(blob.value(), Control::Tombstone(_)))
    });
    for frame in pack(ChainAnswer::Control, blobs) {
        send!(out, frame);
    }
    agrees(scene, told);
    Ok(Ok(End::Done))
}
