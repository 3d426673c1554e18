//! Who may see what. Asked before any content is read from the store. `docs/PROTOCOL.md` R-CL-1, R-CL-2.
//!
//! ```text
//!  class in force at the tip   owner, device   holder, target   writer, contributor, reader   stranger
//!  public                      whole           whole            whole                         published part
//!  internal                    whole           whole            whole                         published part
//!  confidential                whole           whole            published part                published part
//! ```
//!
//! The published part is the head that a Ref publishes and its ancestors, nothing newer. Everybody else gets nothing, and a
//! session that is not for the asker answers exactly as one that is not here. It must never believe who an asker says it
//! is: only a peer proof names a principal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use libp2p::PeerId;
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::clock::Apart;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::entry::{Body, Class, Entry};
use throughline_protocol::fork::{Controls, Mark};
use throughline_protocol::id::{AgentIri, Cid, Principal, Seq, SessionId};
use throughline_protocol::payload::Payload;
use throughline_protocol::verify::ChainState;
use throughline_protocol::wire::WireError;
use throughline_store::{Found, Lane, PayloadState, Reader, SessionRow};

use super::published::{Classes, published};
use crate::api::error::{Answer, Problem};
use crate::core::{Granted, controls_of, grant_of};

/// Who asks.
#[derive(Clone, Debug)]
pub struct Asker {
    /// The connection.
    pub peer: PeerId,
    /// The connection's key in principal form.
    pub peer_key: Principal,
    /// Who stands behind it; none for a stranger.
    pub principal: Option<Principal>,
    /// Capabilities that it brought along. Their signatures were checked; whose they are was not.
    pub grants: Vec<Signed<Control>>,
    /// How its clock stands to this one, when that is all that is wrong with its proof: a stranger that is told so.
    pub apart: Option<Apart>,
}

impl Asker {
    /// What this asker is told instead of *not found*, and at the end of an answer that keeps to what strangers may see.
    pub(super) fn clock_error(&self) -> Option<WireError> {
        self.apart.map(WireError::apart)
    }
}

/// As what an asker stands to an owner's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The account itself.
    Owner,
    /// A live device.
    Device,
    /// A live server.
    Writer,
    /// A live contributor.
    Contributor,
    /// A live reader.
    Reader,
    /// Nobody in particular.
    Stranger,
}

/// What an asker has to do with a session besides its grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tie {
    /// It holds the session under a live grant, or a handoff to it is under way.
    Holds,
    /// Nothing.
    None,
}

/// How much of a session an asker may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All of it.
    Whole,
    /// Entries up to this one.
    Through(Mark),
    /// Nothing: as if it were not here.
    Nothing,
}

impl Reach {
    /// The highest seq that may be seen of a chain that ends in `tip`.
    #[must_use]
    pub fn limit(self, tip: Mark) -> Option<Mark> {
        match self {
            Reach::Whole => Some(tip),
            Reach::Through(mark) => Some(mark),
            Reach::Nothing => None,
        }
    }
}

/// As what `who` stands to the sessions of `owner`, or to one of them.
#[must_use]
pub(super) fn party(
    controls: &Controls,
    owner: Principal,
    who: Option<Principal>,
    covers: Option<(SessionId, &AgentIri)>,
) -> Party {
    let Some(who) = who else { return Party::Stranger };
    if who == owner {
        return Party::Owner;
    }
    let ranks = [
        (Role::Agent, Party::Device),
        (Role::Writer, Party::Writer),
        (Role::Contributor, Party::Contributor),
        (Role::Reader, Party::Reader),
    ];
    let live = |role| matches!(grant_of(controls, owner, who, role, covers), Granted::Live(_));
    ranks.into_iter().find(|(role, _)| live(*role)).map_or(Party::Stranger, |(_, party)| party)
}

/// The table at the top of this module.
#[must_use]
pub(super) fn reach(party: Party, class: Class, tie: Tie, published: Option<Mark>) -> Reach {
    let whole = match (party, class, tie) {
        (Party::Owner | Party::Device, _, _) | (_, _, Tie::Holds) => true,
        (Party::Writer | Party::Contributor | Party::Reader, Class::Public | Class::Internal, Tie::None) => {
            true
        }
        (Party::Writer | Party::Contributor | Party::Reader, Class::Confidential, Tie::None)
        | (Party::Stranger, _, Tie::None) => false,
    };
    match (whole, published) {
        (true, _) => Reach::Whole,
        (false, Some(mark)) => Reach::Through(mark),
        (false, None) => Reach::Nothing,
    }
}

/// Servers to which a handoff is under way: the only others who see a confidential session.
#[derive(Default)]
pub(super) struct Targets(Mutex<VecDeque<(SessionId, Principal)>>);

/// Handoffs that are under way at a time; the one that began longest ago is forgotten first.
const TARGETS_MAX: usize = 1_024;

impl Targets {
    pub(super) fn open(&self, session: SessionId, target: Principal) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|open| *open != (session, target));
        if held.len() >= TARGETS_MAX {
            held.pop_front();
        }
        held.push_back((session, target));
    }

    pub(super) fn close(&self, session: SessionId, target: Principal) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|open| *open != (session, target));
    }

    fn holds(&self, session: SessionId, target: Principal) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&(session, target))
    }
}

/// A session as the policy sees it.
pub(super) struct View {
    pub(super) row: SessionRow,
    pub(super) state: ChainState,
}

impl View {
    pub(super) fn read(reader: &Reader, session: SessionId) -> Answer<Option<Self>> {
        let Some(row) = reader.session(session)? else { return Ok(None) };
        let Some(bytes) = reader.chain_state(session)? else { return Ok(None) };
        let state = ChainState::from_bytes(&bytes).map_err(Problem::from)?;
        Ok(Some(View { row, state }))
    }
}

/// What was decided about one session, once per request.
pub(super) struct Seen {
    pub(super) view: View,
    pub(super) reach: Reach,
}

/// The policy over one snapshot, for one asker.
pub(super) struct Gate<'a> {
    pub(super) reader: &'a Reader,
    pub(super) asker: &'a Asker,
    pub(super) targets: &'a Targets,
    pub(super) classes: &'a Classes,
    pub(super) owners: BTreeMap<Principal, Controls>,
    /// What may be seen of a session, as far as that was asked for blocks that it brought.
    reaches: BTreeMap<SessionId, Reach>,
}

/// What a gate remembers of sessions: beyond that it is found out again. A block may be brought by all of them.
const REMEMBERED_MAX: usize = 16_384;

impl<'a> Gate<'a> {
    pub(super) fn new(
        reader: &'a Reader,
        asker: &'a Asker,
        targets: &'a Targets,
        classes: &'a Classes,
    ) -> Self {
        Gate { reader, asker, targets, classes, owners: BTreeMap::new(), reaches: BTreeMap::new() }
    }

    /// The owner's capabilities and tombstones that are held, and the grants of this owner that the asker brought.
    pub(super) fn controls(&mut self, owner: Principal) -> Answer<&Controls> {
        use std::collections::btree_map::Entry;
        match self.owners.entry(owner) {
            Entry::Occupied(held) => Ok(held.into_mut()),
            Entry::Vacant(free) => {
                let mut controls = controls_of(self.reader, owner, None)?;
                let own = |grant: &&Signed<Control>| matches!(grant.value(), Control::Capability(grant) if grant.signer == owner);
                for grant in self.asker.grants.iter().filter(own) {
                    controls.insert(grant);
                }
                Ok(free.insert(controls))
            }
        }
    }

    /// As what the asker stands to an owner under any live grant, whichever session or agent that covers: who has one takes
    /// part in something of the owner's, and needs to know what else was granted and revoked.
    pub(super) fn party_to(&mut self, owner: Principal) -> Answer<Party> {
        if !self.may_be_party(owner)? {
            return Ok(Party::Stranger);
        }
        let who = self.asker.principal;
        Ok(party(self.controls(owner)?, owner, who, None))
    }

    /// Whether the asker is the owner or was ever granted something by it. Asked before the owner's controls are loaded: nobody else
    /// learns by the time it takes whether there are any.
    pub(super) fn may_be_party(&self, owner: Principal) -> Answer<bool> {
        let Some(who) = self.asker.principal else { return Ok(false) };
        let names_it = |grant: &Signed<Control>| matches!(grant.value(), Control::Capability(grant) if grant.signer == owner && grant.delegate == who);
        let listed = self.reader.is_delegate(owner, who)?;
        Ok(listed || who == owner || self.asker.grants.iter().any(names_it))
    }

    /// What anybody may see of a session. One that publishes nothing is as one that is not here: the same is looked up for both.
    fn seen_by_anybody(&mut self, session: SessionId) -> Answer<Option<Seen>> {
        let publishes = |bytes: Vec<u8>| -> Answer<bool> {
            let blob = Decoded::<Control>::decode(bytes)?;
            Ok(matches!(blob.value(), Control::Ref(value) if !value.private))
        };
        let shown = self.reader.refs_of_session(session)?.into_iter().map(publishes);
        if !shown.collect::<Answer<Vec<bool>>>()?.contains(&true) {
            return Ok(None);
        }
        let Some(view) = View::read(self.reader, session)? else { return Ok(None) };
        let (reader, classes, owner) = (self.reader, self.classes, view.row.owner);
        let part = published(reader, classes, &view, self.controls(owner)?)?;
        Ok(part.map(|mark| Seen { view, reach: Reach::Through(mark) }))
    }

    /// What the asker may see of a session; none when that is nothing, whatever the reason.
    pub(super) fn session(&mut self, session: SessionId) -> Answer<Option<Seen>> {
        let who = self.asker.principal;
        let is_target = who.is_some_and(|who| self.targets.holds(session, who));
        let row = self.reader.session(session)?;
        // Of a session that is not here the owner is nobody: the same is looked up as for one that is not for the asker.
        let owner = row.map_or(self.asker.peer_key, |row| row.owner);
        if !self.may_be_party(owner)? && !is_target {
            return self.seen_by_anybody(session);
        }
        let Some(view) = View::read(self.reader, session)? else { return Ok(None) };
        let covers = (session, view.state.agent());
        let party = party(self.controls(owner)?, owner, who, Some(covers));
        // The chain goes on naming a holder whose grant was revoked, until the owner hands over.
        let holds = |who| view.state.holder() == Some(who) && party <= Party::Writer;
        let tie = match who {
            Some(who) if holds(who) || is_target => Tie::Holds,
            Some(_) | None => Tie::None,
        };
        let class = view.state.class();
        let allowed = match reach(party, class, tie, None) {
            Reach::Whole => Reach::Whole,
            Reach::Through(_) | Reach::Nothing => {
                let (reader, classes) = (self.reader, self.classes);
                let part = published(reader, classes, &view, self.controls(owner)?)?;
                reach(party, class, tie, part)
            }
        };
        Ok((allowed != Reach::Nothing).then_some(Seen { view, reach: allowed }))
    }

    /// What the asker may see of a session that brought a block.
    fn reach_of(&mut self, session: SessionId) -> Answer<Reach> {
        if let Some(known) = self.reaches.get(&session) {
            return Ok(*known);
        }
        let reach = match self.session(session)? {
            Some(seen) if within(&seen, seen.view.row.tip.seq) => Reach::Whole,
            Some(seen) => seen.reach,
            None => Reach::Nothing,
        };
        if self.reaches.len() >= REMEMBERED_MAX {
            self.reaches.clear();
        }
        self.reaches.insert(session, reach);
        Ok(reach)
    }

    /// Whether the asker may have a block: under one of the sessions that brought it, by what it may see of that one (R-FI-7). `parts` are
    /// those of the files that it was given before.
    pub(super) fn block(&mut self, cid: &Cid, parts: &BTreeSet<Cid>) -> Answer<bool> {
        match self.reader.find(cid)? {
            Some(Found::Entry { session, seq, lane }) => {
                let seen = self.session(session)?;
                let is_shown = lane == Lane::Main && seen.is_some_and(|seen| within(&seen, seq));
                Ok(is_shown || self.ended(session)?.is_some_and(|opening| opening.cid.cid() == *cid))
            }
            None | Some(Found::Control { .. }) => Ok(false),
            Some(Found::Block { .. }) => {
                for session in self.reader.bringing(cid.digest())? {
                    let allowed = match self.reach_of(session)? {
                        Reach::Whole => true,
                        Reach::Through(limit) => {
                            parts.contains(cid) || is_named_through(self.reader, session, cid, limit)?
                        }
                        Reach::Nothing => false,
                    };
                    if allowed {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

/// Whether an entry of the published part itself names a block: what lies beside the chain, or was cut, has a seq too.
fn is_named_through(reader: &Reader, session: SessionId, cid: &Cid, limit: Mark) -> Answer<bool> {
    for seq in reader.linking_seqs(session, cid.digest())?.range(..=limit.seq.get()) {
        let Some(stored) = reader.entry_at(session, Seq::new(*seq)?)? else { continue };
        let payload = match stored.payload {
            Some(named) if named.digest() == cid.digest() => return Ok(true),
            Some(named) if reader.is_here(session, &named.cid())? => reader.payload(named)?,
            Some(_) | None => PayloadState::Absent,
        };
        let entry = Decoded::<Entry>::decode(stored.bytes)?;
        let config = if let Body::ModelResponse(said) = &entry.value().body { said.config } else { None };
        let mut named: Vec<Cid> = config.map(|config| config.cid()).into_iter().collect();
        if let PayloadState::Present(bytes) = payload {
            // Words that do not fit the entry name nothing.
            named.extend(Payload::check(entry.value(), bytes).map(|words| words.files()).unwrap_or_default());
        }
        if named.iter().any(|file| file.digest() == cid.digest()) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn within(seen: &Seen, seq: Seq) -> bool {
    seen.reach.limit(seen.view.row.tip).is_some_and(|limit| seq <= limit.seq)
}

#[cfg(test)]
#[path = "policy_tests.rs"]
mod tests;
