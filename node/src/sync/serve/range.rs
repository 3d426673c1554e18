//! `range`: the skip path, the control blobs, the entries oldest first. `docs/PROTOCOL.md` R-ST-5.

use std::collections::BTreeSet;
use std::sync::Arc;

use throughline_protocol::block::{Decoded, sha256};
use throughline_protocol::code::Code;
use throughline_protocol::control::{Capability, Control, Ref};
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{Cid, EntryCid, HashKind, Principal, Seq, SessionId};
use throughline_protocol::limits;
use throughline_protocol::wire::chain::{ChainAnswer, EntryItem, Payloads, RangeAsk};
use throughline_protocol::wire::{Packer, pack};
use throughline_store::{Found, Lane, PayloadState, StoredEntry};

use super::super::policy::{Reach, Seen};
use super::{End, Out, Scene, Served, not_found, refuse, send, wrong};
use crate::api::error::Answer;

/// Refs that come along, those of the highest generation first.
const REFS_MAX: usize = 64;

/// Answers `range`.
pub(super) fn range(scene: &Scene, ask: &RangeAsk, out: &Out) -> Served {
    let mut gate = scene.gate();
    let Some(seen) = gate.session(ask.session)? else { return refuse(not_found()) };
    if !is_served(scene, &seen, ask)? {
        return refuse(not_found());
    }
    let base = scene.reader.base_of(ask.session, &ask.have, ask.want.seq)?.map(|base| base.seq);
    let (base, first) = match base {
        Some(base) => (base, base.next()),
        None if ask.have.is_empty() => (Seq::ZERO, Seq::ZERO),
        None => return wrong(Code::SyncUnsolicited, "the locator names no entry of this session"),
    };
    let path = scene.reader.skip_path(ask.session, ask.want.seq, base)?;
    for frame in pack(ChainAnswer::Path, path.into_iter().map(|hop| Arc::from(hop.bytes))) {
        send!(out, frame);
    }
    for frame in pack(ChainAnswer::Control, controls(scene, &seen, first, ask.want.seq)?) {
        send!(out, frame);
    }
    let mut packer = Packer::new(ChainAnswer::Entries);
    for stored in scene.reader.entries(ask.session, first, ask.want.seq)? {
        let stored = stored?;
        let payload = match ask.payloads {
            Payloads::With => payload(scene, ask.session, &stored)?,
            Payloads::Without => None,
        };
        if let Some(full) = packer.push(EntryItem { entry: stored.bytes.into(), payload }) {
            send!(out, full);
        }
    }
    if let Some(last) = packer.finish() {
        send!(out, last);
    }
    Ok(Ok(End::Done))
}

/// Whether `want` lies on the main chain, within what the asker may see.
fn is_served(scene: &Scene, seen: &Seen, ask: &RangeAsk) -> Answer<bool> {
    let Some(limit) = seen.reach.limit(seen.view.row.tip) else { return Ok(false) };
    let found = scene.reader.find(&ask.want.cid.cid())?;
    Ok(match found {
        Some(Found::Entry { session, seq, lane: Lane::Main }) => {
            session == ask.session && seq == ask.want.seq && seq <= limit.seq
        }
        Some(Found::Entry { .. } | Found::Control { .. } | Found::Block { .. }) | None => false,
    })
}

/// The payload of an entry that the asker may see, if this session brought it: one that it names and another brought stays here.
fn payload(scene: &Scene, session: SessionId, stored: &StoredEntry) -> Answer<Option<Arc<[u8]>>> {
    let Some(cid) = stored.payload else { return Ok(None) };
    if !scene.reader.is_here(session, &cid.cid())? {
        return Ok(None);
    }
    Ok(match scene.reader.payload(cid)? {
        PayloadState::Present(bytes) => Some(bytes.into()),
        PayloadState::Absent | PayloadState::Dropped => None,
    })
}

/// All tombstones, the capabilities that the entries were signed under, Refs of the session: at most 256 and 1 MiB.
fn controls(scene: &Scene, seen: &Seen, first: Seq, last: Seq) -> Answer<Vec<Arc<[u8]>>> {
    let signers = signers(scene, seen, first, last)?;
    let (mut tombstones, mut capabilities) = (Vec::new(), Vec::new());
    for bytes in scene.reader.controls_of_owner(seen.view.row.owner)? {
        let blob = Decoded::<Control>::decode(bytes)?;
        match blob.value() {
            Control::Tombstone(_) => tombstones.push(blob),
            Control::Capability(grant) if signers.contains(&grant.delegate) && may_be_cited(seen, grant) => {
                capabilities.push(blob);
            }
            Control::Capability(_) | Control::Ref(_) => {}
        }
    }
    // Where there are more tombstones than fit, those that concern these signers come first.
    let cited: BTreeSet<Cid> = capabilities.iter().flat_map(|blob| names_of(blob.bytes())).collect();
    tombstones.sort_by_key(|blob| match blob.value() {
        Control::Tombstone(tombstone) => !cited.contains(&tombstone.capability),
        Control::Capability(_) | Control::Ref(_) => true,
    });
    let refs = refs(scene, seen)?;
    let blobs = tombstones.into_iter().chain(capabilities).chain(refs).map(|blob| Arc::clone(blob.bytes()));
    let mut kept = Vec::new();
    let mut room_bytes = limits::CONTROL_TOTAL_BYTES_MAX;
    for blob in blobs {
        if kept.len() < limits::CONTROL_BLOBS_MAX && blob.len() <= room_bytes {
            room_bytes -= blob.len();
            kept.push(blob);
        }
    }
    Ok(kept)
}

/// Whether entries of the session can stand on a capability. One for another session would only tell that there is one.
fn may_be_cited(seen: &Seen, capability: &Capability) -> bool {
    let (session, agent) = (seen.view.row.session, seen.view.state.agent());
    capability.grant().is_ok_and(|grant| grant.covers(session, agent))
}

/// The two CIDs that a capability may be cited by.
fn names_of(bytes: &[u8]) -> [Cid; 2] {
    use throughline_protocol::id::Codec;
    let sha256 = Cid::from_parts(Codec::DagCbor, HashKind::Sha256, sha256(bytes));
    [sha256, Cid::blake2b(Codec::DagCbor, bytes)]
}

/// Whose capabilities are needed. The chain knows its signers; where only a part of it may be seen, or there are more than it
/// remembers, the part is read.
fn signers(scene: &Scene, seen: &Seen, first: Seq, last: Seq) -> Answer<BTreeSet<Principal>> {
    if seen.reach == Reach::Whole
        && let Some(all) = seen.view.state.participants()
    {
        return Ok(all.into_iter().chain(seen.view.state.holder()).collect());
    }
    let mut found = BTreeSet::new();
    for stored in scene.reader.entries(seen.view.row.session, first, last)? {
        let entry = Decoded::<Entry>::decode(stored?.bytes)?;
        found.insert(entry.value().signer);
    }
    Ok(found)
}

/// The session's Refs that the asker may see, highest first.
fn refs(scene: &Scene, seen: &Seen) -> Answer<Vec<Decoded<Control>>> {
    let mut kept = Vec::new();
    for bytes in scene.reader.refs_of_session(seen.view.row.session)? {
        let blob = Decoded::<Control>::decode(bytes)?;
        let Control::Ref(value) = blob.value() else { continue };
        if may_show(scene, seen, value)? {
            let rank = (value.generation, value.ts);
            kept.push((rank, blob));
        }
    }
    kept.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    kept.truncate(REFS_MAX);
    Ok(kept.into_iter().map(|(_, blob)| blob).collect())
}

/// Nothing tells of entries above the published ones.
fn may_show(scene: &Scene, seen: &Seen, value: &Ref) -> Answer<bool> {
    let Reach::Through(limit) = seen.reach else { return Ok(true) };
    let Ok(named) = value.session_head() else { return Ok(false) };
    is_at_most(scene, seen, named.head, limit.seq)
}

fn is_at_most(scene: &Scene, seen: &Seen, head: EntryCid, limit: Seq) -> Answer<bool> {
    Ok(scene.reader.is_ancestor(seen.view.row.session, head, limit)?)
}
