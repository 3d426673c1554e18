//! Control blobs that arrive: owner-signed grants, revocations and Refs. They are stored, then every session that they
//! concern is judged again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::fork::check_ref;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::sign::VerifyingKeys;
use throughline_store::{PutControls, Reader, Stored};

use super::base::standing;
use super::controls::{controls_of, live_grants};
use super::owed::{Again, Applied};
use super::scene::Scene;
use super::{Node, now, shape};
use crate::api::error::{Answer, Problem};

/// Sessions read at a time.
const PAGE: usize = 256;

/// Which kind a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// Capabilities.
    Capability,
    /// Tombstones.
    Tombstone,
    /// Refs.
    Ref,
}

/// Whether what is checked is also kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// It is.
    Store,
    /// It is only checked.
    DryRun,
}

impl Node {
    /// Takes a control blob from a program on this machine.
    ///
    /// # Errors
    /// What decoding refuses, `E_TYPE` for another kind, `E_CAP_ROLE` for a capability that grants nothing, `E_REF_MISMATCH`, `E_CLASS` and the
    /// other codes of a Ref's check. What a session fails of that is to be judged: the blob is kept then, and so is the mark that it was
    /// not applied there.
    pub fn take_control(&self, kind: ControlKind, bytes: &[u8], use_of: Keeping) -> Answer<Value> {
        let signed = Signed::<Control>::check(bytes, &mut VerifyingKeys::default())?;
        match (kind, signed.value()) {
            (ControlKind::Capability, Control::Capability(capability)) => {
                capability.grant()?;
            }
            (ControlKind::Tombstone, Control::Tombstone(_)) => {}
            (ControlKind::Ref, Control::Ref(value)) => {
                self.expect_not_revoked(value.owner())?;
                self.check_session_ref(&signed)?;
            }
            _ => return Err(Problem::new(Code::Type, "this route takes another kind of blob")),
        }
        let (cid, revoking) = (signed.cid(), revoked_by(&signed));
        let mut outcome = match use_of {
            Keeping::Store => self.take_controls(vec![signed])?,
            Keeping::DryRun => {
                let held = self.reader()?.control(&cid.cid())?.is_some();
                ControlsTaken { new: usize::from(!held), changed: Vec::new(), failed: None }
            }
        };
        if let (Some(owner), Keeping::Store, None) = (revoking, use_of, &outcome.failed) {
            // Who sends it again wants to know what became of it.
            let applied = self.judge_waiting(owner, Again::All)?;
            outcome.changed.extend(applied.changed);
            outcome.failed = applied.failed;
        }
        if let Some(failed) = outcome.failed {
            let what = format!("it is kept, and a session could not be judged: {}", failed.detail());
            let session = failed.fact("session").cloned().unwrap_or_default();
            return Err(Problem::new(failed.code(), what)
                .with("session", session)
                .hint("throughline fsck --repair, then send it again"));
        }
        Ok(json!({
            "v": 1, "kind": "control", "cid": cid.to_string(),
            "unchanged": outcome.new == 0 && outcome.changed.is_empty(), "sessions": outcome.changed,
        }))
    }

    /// Stores control blobs whose signatures were checked, and judges the sessions that they concern again. One that cannot be judged is
    /// told in the result; it stops no other, and stays marked.
    ///
    /// # Errors
    /// When the store refuses; `E_CAP_AUDIENCE` and `E_REF_MISMATCH` for blobs that are not kept.
    pub fn take_controls(&self, controls: Vec<Signed<Control>>) -> Answer<ControlsTaken> {
        let revoking: BTreeSet<Principal> = controls.iter().filter_map(revoked_by).collect();
        let anchors = anchors_of(&controls);
        let stored = self.store().run(PutControls { controls, at: now() })?;
        let new = stored.iter().filter(|stored| **stored == Stored::New).count();
        let mut applied = Applied::default();
        for owner in revoking {
            // Also when nothing is new: what is marked was not applied yet.
            applied.join(self.judge_owed(owner)?);
        }
        for (session, anchor) in anchors {
            let held = self.reader()?.session(session)?.is_some();
            if new > 0 && held && !applied.judged.contains(&session) {
                applied.take(session, self.judge_and_tell(session, anchor.as_ref()));
            }
        }
        Ok(ControlsTaken { new, changed: applied.changed, failed: applied.failed })
    }

    /// Judges a session again; `anchor` is the Ref that came, when nothing else did.
    pub(super) fn judge_and_tell(
        &self,
        session: SessionId,
        anchor: Option<&Signed<Control>>,
    ) -> Answer<Option<Value>> {
        let before = self.reader()?.session(session)?.map(|row| row.summary);
        let evaluated = match anchor {
            Some(anchor) => self.judge_anchor(session, anchor)?,
            None => self.judge_again(session)?,
        };
        let after = self.reader()?.session(session)?.map(|row| row.summary);
        if anchor.is_some() || after != before {
            self.after_commit(session);
        }
        let from = before.map(|summary| summary.verdict);
        Ok((from.as_deref() != Some(evaluated.verdict.as_str()))
            .then(|| json!({"session": session.to_string(), "from": from, "to": evaluated.verdict})))
    }

    /// Whether every grant of this node by an owner was revoked.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) fn is_revoked_by(&self, owner: Principal) -> Answer<bool> {
        let controls = controls_of(&self.reader()?, owner, None)?;
        Ok(live_grants(&controls, owner, self.principal()).is_some_and(|live| live.is_empty()))
    }

    /// What a machine acknowledges that its owner gave up, with the owner's key even, would keep what the revocation was to cut.
    fn expect_not_revoked(&self, owner: Principal) -> Answer<()> {
        if !self.is_revoked_by(owner)? {
            return Ok(());
        }
        let what =
            format!("every grant of this machine by {} was revoked: it anchors nothing", owner.short());
        Err(Problem::new(Code::Revoked, what)
            .hint(format!("if it is to take part again: throughline grant {}", self.principal())))
    }

    /// A Ref must fit the session that is held; one of a session that is not held is refused.
    fn check_session_ref(&self, signed: &Signed<Control>) -> Answer<()> {
        let Control::Ref(value) = signed.value() else { return Err(Code::Type.into()) };
        let named = value.session_head()?;
        let reader = self.reader()?;
        let standing = standing(&reader, named.session)?;
        let controls = controls_of(&reader, standing.row.owner, None)?;
        let position = if standing.state.tip().cid == named.head {
            *standing.state.position()
        } else {
            // An earlier head, or one beside the chain: an anchor may bring a tail back that was cut.
            let row = Some(standing.row.clone());
            Scene::held(&reader, named.session, row, controls.clone())?.position(named.head).ok_or_else(
                || {
                    Problem::new(Code::Incomplete, format!("head {} is not held", named.head.short()))
                        .with("head", shape::mark(&standing.row.tip))
                },
            )?
        };
        check_ref(value, standing.state.facts(), &position, &controls)?;
        Ok(())
    }
}

/// What became of control blobs.
#[derive(Clone, Debug)]
pub struct ControlsTaken {
    /// How many were new.
    pub new: usize,
    /// Sessions whose verdict changed: `{"session", "from", "to"}`.
    pub changed: Vec<Value>,
    /// Why the first session that was to be judged could not be. The blobs are kept, and it is judged when that can be done.
    pub failed: Option<Problem>,
}

/// Whose sessions a blob may cut. Nothing is held that waits for a grant.
fn revoked_by(control: &Signed<Control>) -> Option<Principal> {
    match control.value() {
        Control::Tombstone(tombstone) => Some(tombstone.signer),
        Control::Capability(_) | Control::Ref(_) => None,
    }
}

/// The sessions that Refs are about, each with the Ref if it is but one.
fn anchors_of(controls: &[Signed<Control>]) -> BTreeMap<SessionId, Option<Signed<Control>>> {
    let mut found = BTreeMap::new();
    for control in controls {
        if let Control::Ref(value) = control.value()
            && let Ok(head) = value.session_head()
        {
            let twice = found.contains_key(&head.session);
            found.insert(head.session, (!twice).then(|| control.clone()));
        }
    }
    found
}

/// All sessions of an owner.
pub(super) fn sessions_of_owner(reader: &Reader, owner: Principal) -> Answer<Vec<SessionId>> {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = reader.sessions(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(found) };
        after = Some(last.session);
        found.extend(page.iter().filter(|row| row.owner == owner).map(|row| row.session));
    }
}
