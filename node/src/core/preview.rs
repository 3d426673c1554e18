//! What a revocation would keep and cut, before anybody signs it.
//!
//! The preview is selection itself, run over what is held plus the tombstone in question, once as it is and once with
//! the owner's anchor at the head: nothing is guessed. The tombstone and the anchor are never stored.

use serde_json::{Value, json};
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::build::Writable as _;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Capability, Control, Role, Tombstone};
use throughline_protocol::fork::{Controls, Judged, Mark, Selection, Set};
use throughline_protocol::id::{Cid, Codec, EntryCid, HashKind, Principal, SessionId};
use throughline_protocol::sign::SIGNATURE_BYTES;
use throughline_protocol::verify::ChainState;
use throughline_store::Reader;

use super::authority::sessions_of_owner;
use super::base::need_session;
use super::controls::{Granted, controls_of, grant_of};
use super::refs::ref_facts;
use super::scene::{Scene, is_disputed};
use super::{Node, now, shape};
use crate::api::error::{Answer, Problem};

/// What is to be revoked.
#[derive(Clone, Copy, Debug)]
pub enum Revoke {
    /// Every capability whose delegate this is.
    Delegate(Principal),
    /// One capability.
    Capability(Cid),
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
        let named = named(&controls, owner, revoke);
        let Some((_, first)) = named.first() else {
            let what = match revoke {
                Revoke::Delegate(delegate) => format!("{} has no capability of this owner", delegate.short()),
                Revoke::Capability(cid) => format!("capability {} is not held", cid.short()),
            };
            return Err(Problem::new(Code::CapMissing, what).hint("throughline grants"));
        };
        let delegate = first.delegate;
        let asked = Asked {
            owner,
            delegate,
            tombstones: named
                .iter()
                .filter(|(cid, _)| controls.revoked_by(cid, owner).is_none())
                .map(|(cid, _)| tombstone(owner, *cid))
                .collect::<Answer<_>>()?,
            capabilities: named.iter().map(|(cid, _)| *cid).collect(),
        };
        let mut sessions = Vec::new();
        let mut still_holder = Vec::new();
        for session in sessions_of_owner(&reader, owner)? {
            let Some(part) = asked.part_of(&reader, session)? else { continue };
            if part["holder"] == true {
                still_holder.push(session.to_string());
            }
            sessions.push(part);
        }
        let capabilities: Vec<Value> = named
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
            "v": 1, "kind": "preview", "delegate": delegate.to_string(), "capabilities": capabilities,
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

/// A tombstone as the owner would sign it. It has no signature: it is put into a set that is thrown away.
fn tombstone(owner: Principal, capability: Cid) -> Answer<Signed<Control>> {
    unsigned(&Control::Tombstone(Tombstone {
        ts: now(),
        signer: owner,
        capability,
        keep: Vec::new(),
        reason: None,
        ext: None,
    }))
}

fn unsigned(control: &Control) -> Answer<Signed<Control>> {
    Ok(Decoded::<Control>::decode(control.write(&[0; SIGNATURE_BYTES]))?.assume_signed())
}

/// A revocation that is looked at.
struct Asked {
    owner: Principal,
    delegate: Principal,
    capabilities: Vec<Cid>,
    /// Of those that are in force.
    tombstones: Vec<Signed<Control>>,
}

impl Asked {
    /// What it does to a session; none if the key never wrote in it and does not hold it.
    fn part_of(&self, reader: &Reader, session: SessionId) -> Answer<Option<Value>> {
        let row = need_session(reader, session)?;
        let controls = controls_of(reader, row.owner, Some(session))?;
        let scene = Scene::held(reader, session, Some(row.clone()), controls)?;
        let judged = scene.set.judge();
        let wrote = judged
            .entries()
            .any(|(entry, ..)| entry.capability().is_some_and(|cited| self.capabilities.contains(&cited)));
        let holds = row.summary.holder == Some(self.delegate);
        if !wrote && !holds {
            return Ok(None);
        }
        let selection = judged.selection();
        let to_anchor = to_anchor(&judged, &selection, row.tip);
        let mut set = scene.set.clone();
        for tombstone in &self.tombstones {
            set.insert_control(tombstone);
        }
        let without = Outcome::of(&set, &scene.main);
        let state = to_anchor.and_then(|mark| ChainState::at(&judged, scene.set.controls(), mark.cid));
        let blocked = holds && !self.may_still_write(&set, &judged);
        let (with, anchor) = match (to_anchor, state) {
            (Some(mark), Some(state)) => {
                let ts = state.position().ts;
                let value = ref_facts(session, mark, ts, self.owner, true);
                set.insert_control(&unsigned(&Control::Ref(value))?);
                let facts = json!({
                    "session": session.to_string(), "head": {"cid": mark.cid.to_string(), "seq": mark.seq.get()},
                    "epoch": mark.epoch.get(), "notBeforeMs": ts.get(), "class": state.class().word(),
                });
                (Outcome::of(&set, &scene.main), facts)
            }
            _ => (without, Value::Null),
        };
        Ok(Some(json!({
            "session": session.to_string(),
            "title": row.summary.title,
            "head": shape::mark(&to_anchor.unwrap_or(row.tip)),
            "keptThrough": with.kept.map(|mark| json!({"cid": mark.cid.to_string(), "seq": mark.seq.get()})),
            "cutEntries": with.cut,
            "anchoredBefore": without.kept.map(|mark| mark.seq.get()),
            "cutWithoutAnchor": without.cut,
            "holder": blocked,
            "anchor": anchor,
        })))
    }

    /// Whether another grant lets the key go on writing.
    fn may_still_write(&self, after: &Set, judged: &Judged<'_>) -> bool {
        let covers = judged.facts().map(|facts| (facts.id, &facts.agent));
        let granted = grant_of(after.controls(), self.owner, self.delegate, Role::Writer, covers);
        matches!(granted, Granted::Live(_))
    }
}

/// Where an owner's anchor keeps most and decides nothing else: the tip; in dispute the last entry that is not disputed,
/// since an anchor above it would choose a side.
fn to_anchor(judged: &Judged<'_>, selection: &Selection, tip: Mark) -> Option<Mark> {
    if is_disputed(selection) { selection.head } else { judged.mark(tip.cid) }
}

/// How much of the main chain counts.
#[derive(Clone, Copy)]
struct Outcome {
    /// The last entry of the main chain that counts.
    kept: Option<Mark>,
    /// Entries of the main chain that do not.
    cut: u64,
}

impl Outcome {
    fn of(set: &Set, main: &[EntryCid]) -> Self {
        let judged = set.judge();
        let valid = judged.selection().valid;
        let cut = main.iter().filter(|cid| !valid.contains(*cid)).count();
        let kept = main.iter().rev().find(|cid| valid.contains(*cid));
        Outcome { kept: kept.and_then(|cid| judged.mark(*cid)), cut: cut as u64 }
    }
}
