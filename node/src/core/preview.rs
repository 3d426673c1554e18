//! What a revocation would keep and cut, before anybody signs it.
//!
//! The preview is selection itself, run over what is held plus the tombstone in question: nothing is guessed.

use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Capability, Control};
use throughline_protocol::entry::Entry;
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{Cid, Codec, EntryCid, HashKind, Principal, Seq, SessionId};
use throughline_store::{Reader, SessionRow};

use super::authority::sessions_of_owner;
use super::base::need_session;
use super::controls::controls_of;
use super::verify::decode;
use super::{Node, shape};
use crate::api::error::{Answer, Problem};

/// What is to be revoked.
#[derive(Clone, Copy, Debug)]
pub enum Revoke {
    /// Every capability whose delegate this is.
    Delegate(Principal),
    /// One capability.
    Capability(Cid),
}

/// One session's part of a preview.
struct Part {
    row: SessionRow,
    /// Entries by the key in question, and the deepest of them.
    last_by_key: Option<Seq>,
    /// The deepest anchor that does not depend on the key.
    anchored: Option<Seq>,
    is_holder: bool,
}

impl Node {
    /// Previews a revocation.
    ///
    /// # Errors
    /// `E_CAP_MISSING` when nothing of the kind is held.
    pub fn preview_revocation(&self, revoke: Revoke) -> Answer<Value> {
        let owner = self.need_owner()?;
        let reader = self.reader()?;
        let controls = controls_of(&reader, owner, None)?;
        let capabilities = named(&controls, owner, revoke);
        if capabilities.is_empty() {
            let what = match revoke {
                Revoke::Delegate(delegate) => format!("{} has no capability of this owner", delegate.short()),
                Revoke::Capability(cid) => format!("capability {} is not held", cid.short()),
            };
            return Err(Problem::new(Code::CapMissing, what).hint("throughline grants"));
        }
        let delegates: Vec<Principal> = capabilities.iter().map(|(_, capability)| capability.delegate).collect();
        let cids: Vec<Cid> = capabilities.iter().map(|(cid, _)| *cid).collect();
        let mut sessions = Vec::new();
        let mut still_holder = Vec::new();
        for session in sessions_of_owner(&reader, owner)? {
            let Some(part) = part_of(&reader, session, owner, &cids, &delegates)? else { continue };
            if part.is_holder {
                still_holder.push(session.to_string());
            }
            sessions.push(part.to_json());
        }
        let capabilities: Vec<Value> = capabilities
            .iter()
            .map(|(cid, capability)| {
                json!({
                    "cid": cid.to_string(), "delegate": capability.delegate.to_string(),
                    "role": capability.role, "path": capability.path,
                    "revoked": controls.revoked_by(cid, owner).is_some(),
                })
            })
            .collect();
        Ok(json!({
            "v": 1, "kind": "preview", "capabilities": capabilities,
            "sessions": sessions, "stillHolder": still_holder,
        }))
    }
}

/// The capabilities that a revocation names, with their CIDs.
fn named(controls: &Controls, owner: Principal, revoke: Revoke) -> Vec<(Cid, Capability)> {
    let asked = match revoke {
        Revoke::Capability(cid) => controls.capability_hash(&cid),
        Revoke::Delegate(_) => None,
    };
    controls
        .capabilities()
        .filter(|(hash, capability)| match revoke {
            Revoke::Delegate(delegate) => capability.delegate == delegate && capability.signer == owner,
            Revoke::Capability(_) => Some(**hash) == asked,
        })
        .map(|(hash, capability)| {
            (Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash), capability.clone())
        })
        .collect()
}

/// A session's part; none if the key never wrote in it.
fn part_of(
    reader: &Reader,
    session: SessionId,
    owner: Principal,
    cids: &[Cid],
    delegates: &[Principal],
) -> Answer<Option<Part>> {
    let row = need_session(reader, session)?;
    let is_holder = row.summary.holder.is_some_and(|holder| delegates.contains(&holder));
    let mut last_by_key = None;
    let mut anchored = None;
    let refs = anchor_heads(reader, session, owner, cids)?;
    for stored in reader.entries(session, Seq::ZERO, row.tip.seq)? {
        let stored = stored?;
        let decoded = decode(&stored)?;
        let entry: &Entry = decoded.value();
        if entry.capability().is_some_and(|cited| cids.contains(&cited)) {
            last_by_key = Some(stored.seq);
        } else if entry.signer == owner || anchors(entry) {
            anchored = Some(stored.seq);
        }
        if refs.contains(&stored.cid) {
            anchored = Some(stored.seq);
        }
    }
    Ok((last_by_key.is_some() || is_holder).then_some(Part { row, last_by_key, anchored, is_holder }))
}

/// Whether an entry by somebody else than the owner anchors what lies below it: a device's or another holder's.
fn anchors(entry: &Entry) -> bool {
    use throughline_protocol::entry::Body;
    // Contributors never anchor; what they sign is user messages without an origin under their own grant.
    !matches!(entry.body, Body::UserMessage(_)) || matches!(&entry.body, Body::UserMessage(m) if m.origin.is_some())
}

/// Heads of Refs that stay anchors when these capabilities go.
fn anchor_heads(
    reader: &Reader,
    session: SessionId,
    owner: Principal,
    cids: &[Cid],
) -> Answer<Vec<EntryCid>> {
    let mut heads = Vec::new();
    for bytes in reader.refs_of_session(session)? {
        let Control::Ref(value) = Decoded::<Control>::decode(bytes)?.value().clone() else { continue };
        let counts = value.signer == owner || value.capability.is_some_and(|cited| !cids.contains(&cited));
        if let (true, Ok(head)) = (counts, value.session_head()) {
            heads.push(head.head);
        }
    }
    Ok(heads)
}

impl Part {
    fn to_json(&self) -> Value {
        let tip = self.row.tip;
        // Anchoring the tip keeps all; without it, what lies after the last anchor falls.
        let cut = match (self.last_by_key, self.anchored) {
            (Some(last), Some(anchored)) => last.get().saturating_sub(anchored.get()),
            (Some(last), None) => last.get() + 1,
            (None, _) => 0,
        };
        json!({
            "session": self.row.session.to_string(),
            "title": self.row.summary.title,
            "head": shape::mark(&tip),
            "keptThrough": {"cid": tip.cid.to_string(), "seq": tip.seq.get()},
            "anchoredBefore": self.anchored.map(Seq::get),
            "cutEntries": 0,
            "cutWithoutAnchor": cut,
            "holder": self.is_holder,
            "anchor": {
                "head": {"cid": tip.cid.to_string(), "seq": tip.seq.get()},
                "epoch": tip.epoch.get(), "class": self.row.summary.class.word(),
            },
        })
    }
}
