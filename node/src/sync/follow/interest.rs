//! What this node keeps up with.

use std::collections::BTreeSet;

use libp2p::PeerId;
use throughline_protocol::code::Code;
use throughline_protocol::control::{Ref, Role};
use throughline_protocol::fork::Mark;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::wire::chain::OwnerState;
use throughline_store::{PinDepth, Reader};

use crate::api::error::Answer;
use crate::core::{Granted, Node, controls_of, grant_of, is_held};
use crate::sync::peers;
use crate::sync::policy::{Asker, Gate};
use crate::sync::shared::Shared;

/// Sessions that are followed at most.
const SESSIONS_MAX: usize = 16_384;
/// Sessions read at a time.
const PAGE: usize = 256;

/// Whether this node takes part in everything of its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It is a live device: all of the owner's sessions are its business.
    Device,
    /// It holds and keeps what it was given.
    Server,
}

/// What is compared with a peer.
#[derive(Clone, Debug)]
pub(super) struct Interest {
    pub(super) part: Part,
    pub(super) own: Option<Principal>,
    pub(super) sessions: Vec<SessionId>,
    pub(super) owners: Vec<OwnerState>,
}

impl Interest {
    /// What this node keeps up with now.
    pub(super) fn read(node: &Node) -> Answer<Self> {
        let (reader, own) = (node.reader()?, node.owner());
        let (mut sessions, mut owners) = (BTreeSet::new(), BTreeSet::from_iter(own));
        // Also those whose pin is damaged: that there is one is known.
        let pinned: BTreeSet<SessionId> = reader.pins()?.into_iter().map(|(session, _)| session).collect();
        let mut after = None;
        loop {
            let page = reader.sessions(after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.session);
            for row in &page {
                if Some(row.owner) == own || pinned.contains(&row.session) {
                    sessions.insert(row.session);
                    owners.insert(row.owner);
                }
            }
        }
        sessions.extend(pinned);
        let owners = owners.into_iter().take(throughline_protocol::limits::HEADS_OWNERS_MAX);
        let state = |owner| -> Answer<OwnerState> {
            let held = reader.owner_digest(owner)?;
            Ok(OwnerState { owner, count: held.count, digest: held.digest })
        };
        Ok(Interest {
            part: part(node, &reader)?,
            own,
            sessions: sessions.into_iter().take(SESSIONS_MAX).collect(),
            owners: owners.map(state).collect::<Answer<_>>()?,
        })
    }
}

impl Interest {
    /// What of it a peer may be asked. A question tells that this node keeps a session, so one that is not for the peer is not
    /// asked for. Owners are named to those who take part in something of theirs, who told of them first, or whom the user
    /// knows; the last are asked for pinned sessions, too, of which nothing is known yet.
    pub(super) fn towards(&self, shared: &Shared, node: &Node, peer: PeerId, key: Principal) -> Answer<Self> {
        let reader = node.reader()?;
        let known = peers::list(&reader)?.into_iter().find(|known| known.peer == key);
        let proven = shared.contacts.principal_of(key);
        let principal = proven.or(known.as_ref().map(|known| known.principal));
        let asker = Asker { peer, peer_key: key, principal, grants: Vec::new(), apart: None };
        let mut gate = Gate::new(&reader, &asker, &shared.targets, &shared.classes);
        let mut sessions = Vec::new();
        for session in &self.sessions {
            let may = match reader.session(*session)? {
                Some(_) => gate.session(*session)?.is_some(),
                None => known.is_some(),
            };
            if may {
                sessions.push(*session);
            }
        }
        let mut owners = Vec::new();
        for state in &self.owners {
            let may =
                known.is_some() || shared.contacts.told_of(key, state.owner) || gate.concerns(state.owner)?;
            if may {
                owners.push(*state);
            }
        }
        Ok(Interest { part: self.part, own: self.own, sessions, owners })
    }
}

/// Whether this node is a live device of its owner.
pub(super) fn part(node: &Node, reader: &Reader) -> Answer<Part> {
    let Some(owner) = node.owner() else { return Ok(Part::Server) };
    let controls = controls_of(reader, owner, None)?;
    Ok(match grant_of(&controls, owner, node.principal(), Role::Agent, None) {
        Granted::Live(_) => Part::Device,
        Granted::Revoked(_) | Granted::Never => Part::Server,
    })
}

/// Whether anything of an owner is kept here.
pub(in crate::sync) fn follows_owner(node: &Node, reader: &Reader, owner: Principal) -> Answer<bool> {
    if node.owner() == Some(owner) || reader.owner_digest(owner)?.count > 0 {
        return Ok(true);
    }
    let mut after = None;
    loop {
        let page = reader.sessions(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(false) };
        after = Some(last.session);
        if page.iter().any(|row| row.owner == owner) {
            return Ok(true);
        }
    }
}

/// Whether a Ref that was told is kept: anchors of the owner's side, and what publishes. A server's private Ref is a hint that
/// serves once.
pub(in crate::sync) fn is_kept(
    reader: &Reader,
    owner: Principal,
    session: SessionId,
    value: &Ref,
) -> Answer<bool> {
    if value.signer == owner {
        return Ok(true);
    }
    let Some(cited) = value.capability else { return Ok(false) };
    let controls = controls_of(reader, owner, Some(session))?;
    let Ok(grant) = controls.grant(&cited, value.signer, owner) else { return Ok(false) };
    let live = controls.revoked_by(&cited, owner).is_none();
    Ok(live && (grant.role == Role::Agent || (grant.role == Role::Writer && !value.private)))
}

/// How a told head stands to what is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It is held, or something at least as high is.
    None,
    /// There is something to fetch.
    Fetch {
        /// The session has to be this owner's, when it is not held yet.
        owner: Option<Principal>,
        /// What comes along.
        depth: PinDepth,
    },
}

/// What a told head of a session means to this node.
pub(super) fn news(node: &Node, session: SessionId, told: Mark) -> Answer<News> {
    let reader = node.reader()?;
    let pin = reader.pin(session)?.map(|pin| pin.depth);
    let Some(row) = reader.session(session)? else {
        let own = node.owner().filter(|_| part(node, &reader).is_ok_and(|part| part == Part::Device));
        return Ok(match (pin, own) {
            (Some(depth), _) => News::Fetch { owner: None, depth },
            (None, Some(owner)) => News::Fetch { owner: Some(owner), depth: PinDepth::Files },
            (None, None) => News::None,
        });
    };
    if pin.is_none() && Some(row.owner) != node.owner() {
        return Ok(News::None);
    }
    let depth = pin.unwrap_or(PinDepth::Files);
    let (theirs, ours) = ((told.epoch, told.seq), (row.tip.epoch, row.tip.seq));
    let is_news = theirs > ours || (theirs == ours && told.cid != row.tip.cid);
    Ok(if is_news && !is_held(&reader, told.cid)? { News::Fetch { owner: None, depth } } else { News::None })
}

/// Whether a refusal of a fetch says that the session is none of this node's business. Its teller did nothing wrong.
pub(super) fn is_foreign(code: Code) -> bool {
    code == Code::Refused
}
