//! `blobs`: single blocks, in the order asked.
//!
//! Whoever may see only the published part of a session names a file's root (and the nodes between) before its parts, in the same
//! request. A file that names what another session brought opens nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use throughline_protocol::id::Cid;
use throughline_protocol::unixfs;
use throughline_protocol::wire::chain::ChainAnswer;

use super::{End, Out, Scene, Served, send};

/// Answers `blobs`.
pub(super) fn blobs(scene: &Scene, cids: &[Cid], out: &Out) -> Served {
    let mut gate = scene.gate();
    let mut parts: BTreeSet<Cid> = BTreeSet::new();
    for cid in cids {
        let allowed = gate.block(cid, &parts)?;
        let bytes = if allowed { scene.reader.block(cid)? } else { None };
        parts.extend(bytes.as_deref().map(|bytes| unixfs::parts(cid, bytes)).unwrap_or_default());
        send!(out, ChainAnswer::Blob { cid: *cid, bytes: bytes.map(Arc::from) });
    }
    Ok(Ok(End::Done))
}
