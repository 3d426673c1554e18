//! `range`: the skip path, the control blobs, the entries oldest first. `docs/PROTOCOL.md` R-ST-5.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throughline_protocol::block::Decoded;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{EntryCid, Principal, Seq, SessionId};
use throughline_protocol::limits::{
    CONTROL_BLOBS_MAX, CONTROL_SPARE_BLOBS_MAX, CONTROL_SPARE_BYTES_MAX, CONTROL_TOTAL_BYTES_MAX,
};
use throughline_protocol::sync::controls::Range;
use throughline_protocol::wire::chain::{ChainAnswer, EntryItem, Payloads, RangeAsk};
use throughline_protocol::wire::{Packer, WireError, pack};
use throughline_store::{Found, Lane, PayloadState, Reader, StoredEntry};

use super::super::policy::{Reach, Seen};
use super::{End, Out, Scene, Served, not_found, refuse, send, wrong};
use crate::api::error::Answer;
use crate::core::{Cut, held_controls};

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
    let controls = match controls(scene, &seen, ask.want.seq)? {
        Ok(controls) => controls,
        Err(refusal) => return refuse(refusal),
    };
    for frame in pack(ChainAnswer::Control, controls) {
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

/// The control blobs beside a range: what decides how its entries are judged, and some of the rest; the refusal where the first is
/// more than an answer holds.
fn controls(scene: &Scene, seen: &Seen, last: Seq) -> Answer<Result<Vec<Arc<[u8]>>, WireError>> {
    let row = &seen.view.row;
    let (held, places) = held(scene, seen)?;
    let range = Range {
        session: row.session,
        owner: row.owner,
        agent: seen.view.state.agent(),
        signers: signers(scene, seen, last)?,
        head: row.summary.head.map_or(row.tip.seq, |head| head.seq),
        places,
    };
    let chosen = range.choose(&held);
    let mut sending = Sending::new(&scene.reader);
    for hash in &chosen.needed {
        if !sending.take(hash, CONTROL_BLOBS_MAX, CONTROL_TOTAL_BYTES_MAX)? {
            scene.shared.node()?.note_cut(Cut::RangeControls, [row.session.to_string()]);
            let what = format!(
                "the owner's grants and revocations for this session are more than {CONTROL_BLOBS_MAX}, or more than {CONTROL_TOTAL_BYTES_MAX} bytes"
            );
            return Ok(Err(WireError::from(Reject::new(Code::Budget, what))));
        }
    }
    for hash in &chosen.spare {
        sending.take(hash, CONTROL_SPARE_BLOBS_MAX, CONTROL_SPARE_BYTES_MAX)?;
    }
    Ok(Ok(sending.blobs))
}

/// Control blobs that are read for an answer.
struct Sending<'a> {
    reader: &'a Reader,
    blobs: Vec<Arc<[u8]>>,
    bytes: usize,
}

impl<'a> Sending<'a> {
    fn new(reader: &'a Reader) -> Self {
        Sending { reader, blobs: Vec::new(), bytes: 0 }
    }

    /// Adds a blob; false when there would be more than so many, or more bytes. What the asker brought along is not held.
    fn take(&mut self, hash: &[u8; 32], blobs_max: usize, bytes_max: usize) -> Answer<bool> {
        if self.blobs.len() >= blobs_max {
            return Ok(false);
        }
        let Some(bytes) = self.reader.control_by_hash(hash)? else { return Ok(true) };
        if self.bytes + bytes.len() > bytes_max {
            return Ok(false);
        }
        self.bytes += bytes.len();
        self.blobs.push(bytes.into());
        Ok(true)
    }
}

/// Who signed or holds the session, up to the last entry that is sent: also below what the asker holds, since it may not have heard
/// what was revoked. The chain knows its signers; where only a part of it may be seen, or there are more than it remembers, the
/// part is read.
fn signers(scene: &Scene, seen: &Seen, last: Seq) -> Answer<BTreeSet<Principal>> {
    if seen.reach == Reach::Whole
        && let Some(all) = seen.view.state.participants()
    {
        return Ok(all.into_iter().chain(seen.view.state.holder()).collect());
    }
    let mut found = BTreeSet::new();
    for stored in scene.reader.entries(seen.view.row.session, Seq::ZERO, last)? {
        let entry = Decoded::<Entry>::decode(stored?.bytes)?;
        found.insert(entry.value().signer);
        found.extend(match &entry.value().body {
            Body::Genesis(genesis) => genesis.holder,
            Body::Handoff(handoff) => handoff.holder,
            Body::UserMessage(_)
            | Body::ModelResponse(_)
            | Body::ToolCall(_)
            | Body::Note(_)
            | Body::Seal(_) => None,
        });
    }
    Ok(found)
}

/// What is held of the owner and the session, and where the heads of its Refs stand. Nothing tells of entries above those that the
/// asker may see.
fn held(scene: &Scene, seen: &Seen) -> Answer<(Controls, BTreeMap<EntryCid, Seq>)> {
    let (mut held, mut places) = (Controls::new(), BTreeMap::new());
    let row = &seen.view.row;
    let limit = seen.reach.limit(row.tip);
    for control in held_controls(&scene.reader, row.owner, Some(row.session))? {
        if let Control::Ref(value) = control.value() {
            let Ok(named) = value.session_head() else { continue };
            let found = scene.reader.find(&named.head.cid())?;
            let Some(Found::Entry { session, seq, lane: Lane::Main }) = found else { continue };
            if session != row.session || limit.is_none_or(|limit| seq > limit.seq) {
                continue;
            }
            places.insert(named.head, seq);
        }
        held.insert(&control);
    }
    Ok((held, places))
}

#[cfg(test)]
#[path = "range_tests.rs"]
mod tests;
