//! `blobs`: single blocks, in the order asked.
//!
//! A part of a file that no entry links yet is allowed with its file: whoever asks names the root (and the nodes between)
//! first, in the same request. A file that names what another session links opens nothing: that session decides too.

use std::collections::BTreeSet;
use std::sync::Arc;

use throughline_protocol::id::Cid;
use throughline_protocol::unixfs;
use throughline_protocol::wire::chain::ChainAnswer;
use throughline_store::Found;

use super::super::policy::Gate;
use super::{End, Out, Scene, Served, send};
use crate::api::error::Answer;

/// Answers `blobs`.
pub(super) fn blobs(scene: &Scene, cids: &[Cid], out: &Out) -> Served {
    let mut gate = scene.gate();
    let mut parts: BTreeSet<Cid> = BTreeSet::new();
    for cid in cids {
        let allowed = is_allowed(scene, &mut gate, cid, &parts)?;
        let bytes = if allowed { scene.reader.block(cid)? } else { None };
        parts.extend(bytes.as_deref().map(|bytes| unixfs::parts(cid, bytes)).unwrap_or_default());
        send!(out, ChainAnswer::Blob { cid: *cid, bytes: bytes.map(Arc::from) });
    }
    Ok(Ok(End::Done))
}

fn is_allowed(scene: &Scene, gate: &mut Gate<'_>, cid: &Cid, parts: &BTreeSet<Cid>) -> Answer<bool> {
    match scene.reader.find(cid)? {
        Some(Found::Block { sessions, .. }) if sessions.is_empty() && parts.contains(cid) => Ok(true),
        Some(found) => gate.block(&found, scene.own),
        None => Ok(false),
    }
}
