//! Refs that this node signs: anchors as a device, hints as the holder. And what every commit sets off.

use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::build;
use throughline_protocol::clock;
use throughline_protocol::control::{Control, Ref, Role};
use throughline_protocol::entry::Class;
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Cid, EntryCid, Principal, Seq, SessionId, UnixMillis};
use throughline_protocol::verify::ChainState;
use throughline_store::Reader;

use super::base::standing;
use super::controls::{Granted, controls_of, grant_of};
use super::{Node, now, shape};
use crate::api::error::Answer;

/// What a Ref at a session's head says, before it is signed. A clock that was ahead and is right again makes none that is older
/// than its head.
#[must_use]
pub fn ref_facts(session: SessionId, head: Mark, ts: UnixMillis, signer: Principal, private: bool) -> Ref {
    Ref {
        ts: clock::written(now(), ts),
        signer,
        space: None,
        capability: None,
        path: Some(session.path()),
        heads: vec![head.cid.cid()],
        genesis_blob: Some(session.genesis().cid()),
        generation: head.epoch.next().get(),
        private,
        redirect: None,
    }
}

impl Node {
    /// A Ref at the head that this node signs as the session's holder: a hint for peers. Publishes only where the class is
    /// public. None when this node does not hold the session or has no live grant.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn holder_ref(&self, session: SessionId) -> Answer<Option<Signed<Control>>> {
        let reader = self.reader()?;
        let standing = standing(&reader, session)?;
        if standing.state.holder() != Some(self.principal()) {
            return Ok(None);
        }
        let private = standing.state.class() != Class::Public;
        self.sign_ref(&standing.state, standing.row.owner, Role::Writer, private, &reader)
    }

    /// An anchor at the head that this node signs as a device of the owner. None without a live `AGENT` grant.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn device_anchor(&self, session: SessionId) -> Answer<Option<Signed<Control>>> {
        let reader = self.reader()?;
        let standing = standing(&reader, session)?;
        self.sign_ref(&standing.state, standing.row.owner, Role::Agent, true, &reader)
    }

    fn sign_ref(
        &self,
        state: &ChainState,
        owner: Principal,
        role: Role,
        private: bool,
        reader: &Reader,
    ) -> Answer<Option<Signed<Control>>> {
        let controls = controls_of(reader, owner, None)?;
        let covers = (state.session(), state.agent());
        let Granted::Live(capability) = grant_of(&controls, owner, self.principal(), role, Some(covers))
        else {
            return Ok(None);
        };
        let tip = state.tip();
        let ts = state.position().ts;
        let mut value = ref_facts(state.session(), tip, ts, self.principal(), private);
        value.space = Some(owner);
        value.capability = Some(capability);
        Ok(Some(build::sign(Control::Ref(value), self.key())?))
    }

    /// What an owner's Ref at the head would say.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`.
    pub fn anchor_facts(&self, session: SessionId) -> Answer<serde_json::Value> {
        let reader = self.reader()?;
        let standing = standing(&reader, session)?;
        let tip = standing.state.tip();
        let published = published(&reader, session, standing.row.owner, tip.cid)?;
        Ok(serde_json::json!({
            "v": 1, "kind": "anchor", "session": session.to_string(),
            "head": shape::mark(&tip), "epoch": tip.epoch.get(),
            "notBeforeMs": standing.state.position().ts.get(),
            "class": standing.state.class().word(), "owner": standing.row.owner.to_string(),
            "anchoredThrough": standing.row.summary.anchored_through.map(Seq::get),
            "published": published.map(|cid| cid.to_string()),
        }))
    }

    /// What follows a commit that changed a session: the network is told.
    pub fn after_commit(&self, session: SessionId) {
        if let Some(network) = self.network() {
            network.announce(session);
        }
    }
}

/// The owner's Ref that publishes this very head, if one is held.
fn published(reader: &Reader, session: SessionId, owner: Principal, head: EntryCid) -> Answer<Option<Cid>> {
    for bytes in reader.refs_of_session(session)? {
        let decoded = Decoded::<Control>::decode(bytes)?;
        if let Control::Ref(reference) = decoded.value()
            && reference.signer == owner
            && !reference.private
            && reference.session_head().is_ok_and(|said| said.head == head)
        {
            return Ok(Some(decoded.cid().cid()));
        }
    }
    Ok(None)
}
