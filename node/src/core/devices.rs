//! What the owner's other devices did: read from the event log, so nothing is counted twice and no list of its own grows.
//!
//! A device may publish, anchor, change a class, have a session frozen and delete. Whoever steals one may too, so the owner's nodes
//! show each of these acts with the device that did it. It decides nothing.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use throughline_protocol::block::Decoded;
use throughline_protocol::control::{Control, Ref, Role};
use throughline_protocol::entry::{Body, Entry, Note};
use throughline_protocol::id::{Cid, Codec, HashKind, Principal, SessionId};
use throughline_store::{Change, Event, Reader};

use super::controls::controls_of;
use super::{Node, shape};
use crate::api::error::Answer;

/// Acts that `status` counts, the newest.
const ACTS_MAX: usize = 1_024;

/// The devices of a node's owner but for the node itself, over one snapshot.
pub(crate) struct Devices<'a> {
    reader: &'a Reader,
    own: Principal,
    owner: Option<Principal>,
    /// Keys that are or were devices; read when they are first asked for.
    keys: OnceCell<BTreeSet<Principal>>,
}

/// What a device did.
pub(crate) struct Act {
    device: Principal,
    word: &'static str,
    session: SessionId,
    /// The Ref or the entry; none for a freeze.
    cid: Option<Cid>,
    at: String,
}

impl Act {
    /// The message of the event stream.
    pub(crate) fn to_json(&self, alias: Option<&str>) -> Value {
        json!({
            "device": self.device.to_string(), "deviceAlias": alias, "act": self.word,
            "session": self.session.to_string(), "cid": self.cid.map(|cid| cid.to_string()), "at": self.at,
        })
    }

    pub(crate) fn device(&self) -> Principal {
        self.device
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }
}

impl<'a> Devices<'a> {
    pub(crate) fn of(node: &Node, reader: &'a Reader) -> Self {
        Devices { reader, own: node.principal(), owner: node.owner(), keys: OnceCell::new() }
    }

    fn keys(&self) -> Answer<&BTreeSet<Principal>> {
        if let Some(keys) = self.keys.get() {
            return Ok(keys);
        }
        let mut keys = BTreeSet::new();
        if let Some(owner) = self.owner {
            let controls = controls_of(self.reader, owner, None)?;
            let grants = controls.capabilities().filter_map(|(_, capability)| capability.grant().ok());
            let devices = grants.filter(|grant| grant.owner == owner && grant.role == Role::Agent);
            // A revoked one did what it did.
            keys.extend(devices.map(|grant| grant.delegate).filter(|key| *key != self.own));
        }
        Ok(self.keys.get_or_init(|| keys))
    }

    /// The act that an event tells of, if it is one of a device of the owner.
    pub(crate) fn act(&self, event: &Event) -> Answer<Option<Act>> {
        let (Change::Control { by: Some(by), .. } | Change::ByDelegate { by, .. }) = &event.change else {
            return Ok(None);
        };
        if !self.keys()?.contains(by) {
            return Ok(None);
        }
        let (word, session, cid) = match &event.change {
            Change::Control { hash, .. } => {
                let cid = Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash);
                let Some((word, session)) = self.of_ref(&cid)? else { return Ok(None) };
                (word, session, Some(cid))
            }
            Change::ByDelegate { session, entry: None, .. } => {
                if !self.is_owners(*session)? {
                    return Ok(None);
                }
                ("freeze", *session, None)
            }
            Change::ByDelegate { session, entry: Some(entry), .. } => {
                let Some((held, stored)) = self.reader.entry(*entry)? else { return Ok(None) };
                let decoded = Decoded::<Entry>::decode(stored.bytes)?;
                let entry = decoded.value();
                let Body::Note(note) = &entry.body else { return Ok(None) };
                let word = if matches!(note, Note::Delete) { "delete" } else { "class" };
                if held != *session || !self.is_device_grant(entry.capability())? {
                    return Ok(None);
                }
                (word, *session, Some(decoded.cid().cid()))
            }
            Change::Entries { .. }
            | Change::Cut { .. }
            | Change::Verdict { .. }
            | Change::Evidence { .. }
            | Change::State { .. }
            | Change::Forgotten { .. }
            | Change::Pin { .. }
            | Change::Block { .. }
            | Change::Job { .. }
            | Change::GuardReset
            | Change::Note { .. } => return Ok(None),
        };
        Ok(Some(Act { device: *by, word, session, cid, at: shape::rfc3339(event.at) }))
    }

    fn of_ref(&self, cid: &Cid) -> Answer<Option<(&'static str, SessionId)>> {
        // Of many Refs of one key only some are kept (R-CO-7).
        let Some(bytes) = self.reader.control(cid)? else { return Ok(None) };
        let decoded = Decoded::<Ref>::decode(bytes)?;
        let value = decoded.value();
        if !self.is_device_grant(value.capability)? {
            return Ok(None);
        }
        let Ok(head) = value.session_head() else { return Ok(None) };
        Ok(Some((if value.private { "anchor" } else { "publish" }, head.session)))
    }

    /// Whether what was cited makes its delegate a device of this node's owner: the same key may also be a server.
    fn is_device_grant(&self, cited: Option<Cid>) -> Answer<bool> {
        let Some(cited) = cited else { return Ok(false) };
        let Some(bytes) = self.reader.control(&cited)? else { return Ok(false) };
        let decoded = Decoded::<Control>::decode(bytes)?;
        let Control::Capability(capability) = decoded.value() else { return Ok(false) };
        let is_device = |grant: throughline_protocol::control::Grant| {
            Some(grant.owner) == self.owner && grant.role == Role::Agent
        };
        Ok(capability.grant().is_ok_and(is_device))
    }

    fn is_owners(&self, session: SessionId) -> Answer<bool> {
        Ok(self.reader.session(session)?.map(|row| row.owner) == self.owner)
    }

    /// What each device did, newest first, as `status` shows it; and whether there is more than is counted.
    pub(crate) fn report(&self, only: Option<SessionId>, aliases: &shape::Aliases) -> Answer<(Value, bool)> {
        let keys = self.keys()?;
        if keys.is_empty() {
            return Ok((json!([]), false));
        }
        let events = self.reader.events_by(keys, ACTS_MAX)?;
        let is_cut = events.len() == ACTS_MAX;
        let mut acts: BTreeMap<Principal, BTreeMap<&'static str, (u64, Act)>> = BTreeMap::new();
        for event in events {
            let Some(act) = self.act(&event)? else { continue };
            if only.is_none_or(|only| only == act.session) {
                let of_device = acts.entry(act.device).or_default();
                of_device.entry(act.word).or_insert((0, act)).0 += 1;
            }
        }
        let devices = acts.into_iter().map(|(device, acts)| {
            let acts = acts.into_values().map(|(count, last)| {
                json!({"act": last.word, "count": count, "lastAt": last.at, "session": last.session.to_string()})
            });
            json!({
                "device": device.to_string(), "alias": aliases.get(&device), "acts": acts.collect::<Vec<_>>(),
            })
        });
        Ok((devices.collect::<Vec<_>>().into(), is_cut))
    }
}
