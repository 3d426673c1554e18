//! Control blobs that arrive: owner-signed grants, revocations and Refs. They are stored, then every session that they
//! concern is judged again.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::fork::check_ref;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::sign::VerifyingKeys;
use throughline_store::{PutControls, Reader, Stored};

use super::base::standing;
use super::controls::controls_of;
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

impl Node {
    /// Takes a control blob from a program on this machine.
    ///
    /// # Errors
    /// What decoding refuses, `E_TYPE` for another kind, `E_CAP_ROLE` for a capability that grants nothing, `E_REF_MISMATCH`, `E_CLASS` and the
    /// other codes of a Ref's check.
    pub fn take_control(&self, kind: ControlKind, bytes: &[u8]) -> Answer<Value> {
        let signed = Signed::<Control>::check(bytes, &mut VerifyingKeys::default())?;
        match (kind, signed.value()) {
            (ControlKind::Capability, Control::Capability(capability)) => {
                capability.grant()?;
            }
            (ControlKind::Tombstone, Control::Tombstone(_)) => {}
            (ControlKind::Ref, Control::Ref(_)) => self.check_session_ref(&signed)?,
            _ => return Err(Problem::new(Code::Type, "this route takes another kind of blob")),
        }
        let cid = signed.cid();
        let outcome = self.take_controls(vec![signed])?;
        Ok(json!({
            "v": 1, "kind": "control", "cid": cid.to_string(),
            "unchanged": outcome.new == 0, "sessions": outcome.changed,
        }))
    }

    /// Stores control blobs whose signatures were checked, and judges the sessions that they concern again.
    ///
    /// # Errors
    /// When the store refuses; `E_CAP_AUDIENCE` and `E_REF_MISMATCH` for blobs that are not kept.
    pub fn take_controls(&self, controls: Vec<Signed<Control>>) -> Answer<ControlsTaken> {
        let concerned: Vec<Concern> = controls.iter().filter_map(Concern::of).collect();
        let stored = self.store().run(PutControls { controls, at: now() })?;
        let new = stored.iter().filter(|stored| **stored == Stored::New).count();
        let mut changed = Vec::new();
        if new > 0 {
            for session in self.sessions_of(&concerned)? {
                changed.extend(self.judge_and_tell(session)?);
            }
        }
        Ok(ControlsTaken { new, changed })
    }

    fn judge_and_tell(&self, session: SessionId) -> Answer<Option<Value>> {
        let before = self.reader()?.session(session)?;
        let evaluated = self.judge_again(session)?;
        let from = before.map(|row| row.summary.verdict);
        self.after_commit(session);
        Ok((from.as_deref() != Some(evaluated.verdict.as_str())).then(|| {
            json!({"session": session.to_string(), "from": from, "to": evaluated.verdict})
        }))
    }

    fn sessions_of(&self, concerned: &[Concern]) -> Answer<BTreeSet<SessionId>> {
        let reader = self.reader()?;
        let mut found = BTreeSet::new();
        for concern in concerned {
            match concern {
                Concern::Session(session) => {
                    if reader.session(*session)?.is_some() {
                        found.insert(*session);
                    }
                }
                Concern::Owner(owner) => found.extend(sessions_of_owner(&reader, *owner)?),
            }
        }
        Ok(found)
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
            position_at(&reader, &standing.row, &controls, named.head)?
        };
        check_ref(value, standing.state.facts(), &position, &controls)?;
        Ok(())
    }
}

/// Where the main chain stood after an earlier entry.
fn position_at(
    reader: &Reader,
    row: &throughline_store::SessionRow,
    controls: &throughline_protocol::fork::Controls,
    head: throughline_protocol::id::EntryCid,
) -> Answer<throughline_protocol::fork::Position> {
    use std::sync::Arc;
    use throughline_protocol::block::Decoded;
    use throughline_protocol::entry::Entry;
    use throughline_protocol::id::Seq;
    use throughline_protocol::verify::{Collect, Prechecked, Verifier};

    let missing = || {
        Problem::new(Code::Incomplete, format!("head {} is not on the chain that is held", head.short()))
            .with("head", shape::mark(&row.tip))
    };
    let (session, stored) = reader.entry(head)?.ok_or_else(missing)?;
    if session != row.session {
        return Err(missing());
    }
    let mut verifier = Verifier::begin(controls.clone())
        .with_ancestry(super::append::Held { reader, session })
        .collecting(Collect::Nothing);
    for entry in reader.entries(session, Seq::ZERO, stored.seq)? {
        let signed = Decoded::<Entry>::decode(Arc::<[u8]>::from(entry?.bytes))?.assume_signed();
        verifier.link(Prechecked::of(signed, None)?)?;
    }
    verifier.state().map(|state| *state.position()).ok_or_else(missing)
}

/// What became of control blobs.
#[derive(Clone, Debug)]
pub struct ControlsTaken {
    /// How many were new.
    pub new: usize,
    /// Sessions whose verdict changed: `{"session", "from", "to"}`.
    pub changed: Vec<Value>,
}

/// Which sessions a blob may change.
enum Concern {
    Session(SessionId),
    Owner(Principal),
}

impl Concern {
    fn of(signed: &Signed<Control>) -> Option<Self> {
        match signed.value() {
            // A grant can complete sessions that waited for it; revocation can cut any of the owner's.
            Control::Tombstone(tombstone) => Some(Concern::Owner(tombstone.signer)),
            Control::Ref(value) => value.session_head().ok().map(|head| Concern::Session(head.session)),
            Control::Capability(_) => None,
        }
    }
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
