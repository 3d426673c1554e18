//! The control blobs of an owner and session, and which grant a key may act under.

use std::sync::Arc;

use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::code::Code;
use throughline_protocol::control::{Control, Grant, Role};
use throughline_protocol::entry::Authority;
use throughline_protocol::fork::Controls;
use throughline_protocol::id::{AgentIri, Cid, Codec, HashKind, Principal, SessionId};
use throughline_store::Reader;

use crate::api::error::{Answer, Problem};

/// All capabilities and tombstones of an owner, and the Refs of a session. They were verified when they were stored.
///
/// # Errors
/// When the store cannot be read.
pub fn controls_of(reader: &Reader, owner: Principal, session: Option<SessionId>) -> Answer<Controls> {
    let mut controls = Controls::new();
    for control in held_controls(reader, owner, session)? {
        controls.insert(&control);
    }
    Ok(controls)
}

/// The same, one by one: those of the owner first, each list ascending by hash.
///
/// # Errors
/// When the store cannot be read.
pub(crate) fn held_controls(
    reader: &Reader,
    owner: Principal,
    session: Option<SessionId>,
) -> Answer<Vec<Signed<Control>>> {
    let mut held = reader.controls_of_owner(owner)?;
    if let Some(session) = session {
        held.extend(reader.refs_of_session(session)?);
    }
    held.into_iter()
        .map(|bytes| Ok(Decoded::<Control>::decode(Arc::<[u8]>::from(bytes))?.assume_signed()))
        .collect()
}

/// Whether a key has a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// It has a live one.
    Live(Cid),
    /// It had one; it was revoked.
    Revoked(Cid),
    /// It never had one.
    Never,
}

/// The live grants of a key by an owner; none at all when it never had one.
#[must_use]
pub(crate) fn live_grants(controls: &Controls, owner: Principal, who: Principal) -> Option<Vec<Grant>> {
    let mut live = None;
    for (hash, capability) in controls.capabilities() {
        if capability.signer != owner || capability.delegate != who {
            continue;
        }
        let Ok(grant) = capability.grant() else { continue };
        let live = live.get_or_insert_with(Vec::new);
        let cid = Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash);
        if controls.revoked_by(&cid, owner).is_none() {
            live.push(grant);
        }
    }
    live
}

/// The grant under which `delegate` may act as `role` for `owner` in a session of `agent`: a live one if there is one.
#[must_use]
pub fn grant_of(
    controls: &Controls,
    owner: Principal,
    delegate: Principal,
    role: Role,
    covers: Option<(SessionId, &AgentIri)>,
) -> Granted {
    let mut found = Granted::Never;
    for (hash, capability) in controls.capabilities() {
        let Ok(grant) = capability.grant() else { continue };
        let fits = grant.owner == owner
            && grant.delegate == delegate
            && grant.role == role
            && covers.is_none_or(|(session, agent)| grant.covers(session, agent));
        if !fits {
            continue;
        }
        let cid = Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash);
        if controls.revoked_by(&cid, owner).is_none() {
            return Granted::Live(cid);
        }
        found = Granted::Revoked(cid);
    }
    found
}

impl Granted {
    /// The header fields of an entry signed under it.
    ///
    /// # Errors
    /// `E_REVOKED` or `E_CAP_MISSING`, with the command that the owner runs.
    pub fn authority(self, owner: Principal, delegate: Principal, agent: &AgentIri) -> Answer<Authority> {
        let by_the_owner =
            || format!("where the key of {owner} is: throughline grant {delegate} --agent {agent}");
        match self {
            Granted::Live(capability) => Ok(Authority { space: owner, capability }),
            Granted::Revoked(capability) => Err(Problem::new(
                Code::Revoked,
                format!("the grant {} of {} was revoked", capability.short(), delegate.short()),
            )
            .hint(by_the_owner())),
            Granted::Never => Err(Problem::new(
                Code::CapMissing,
                format!("{} may not write sessions of {agent}", delegate.short()),
            )
            .hint(by_the_owner())),
        }
    }
}
