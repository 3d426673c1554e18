//! Which capabilities and tombstones of an owner are told to whom: the one rule for every comparison. `docs/PROTOCOL.md` R-ST-4.
//!
//! ```text
//!  owner, device          all
//!  writer                 tombstones; its own capabilities; those that reach what its live grants reach
//!  contributor, reader    tombstones; its own capabilities; of those that reach what it may read, those that sign entries
//!  former party           tombstones; its own capabilities
//!  stranger               nothing
//! ```
//!
//! A tombstone says a CID and nothing of a session that is not public, so whoever ever had a grant is told every one: that is how a
//! machine that was off hears of its own revocation, from anybody. Both sides of a comparison compare what each would tell the
//! other. The rule is a function of what is held and of who asks; [`Gate::disclosed`] is that function over a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use throughline_protocol::control::{Grant, Role};
use throughline_protocol::entry::Class;
use throughline_protocol::fork::{BlobHash, Controls};
use throughline_protocol::id::{AgentIri, EntryCid, Principal, ScopePath, SessionId};
use throughline_store::Reader;

use super::policy::Gate;
use crate::api::error::{Answer, Problem};
use crate::core::live_grants;

/// What a scope that names one session begins with.
const SESSION_SCOPE: &str = "/session-";

/// As what an asker stands to the capabilities and tombstones of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The account, or a live device of it.
    OwnSide,
    /// It has these live grants.
    Party(Vec<Grant>),
    /// All that it was granted was revoked.
    Former,
    /// It was never granted anything, or did not prove who it is.
    Stranger,
}

impl Standing {
    /// Of `who` to `owner`.
    #[must_use]
    pub(super) fn of(controls: &Controls, owner: Principal, who: Option<Principal>) -> Self {
        let Some(who) = who else { return Standing::Stranger };
        if who == owner {
            return Standing::OwnSide;
        }
        match live_grants(controls, owner, who) {
            None => Standing::Stranger,
            Some(live) if live.is_empty() => Standing::Former,
            Some(live) if live.iter().any(|grant| grant.role == Role::Agent) => Standing::OwnSide,
            Some(live) => Standing::Party(live),
        }
    }
}

/// A held session, as far as this rule looks at one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    agent: AgentIri,
    class: Class,
    holder: Option<Principal>,
}

/// What the live grants of a party reach.
struct Reached<'a> {
    who: Principal,
    /// Whether it writes: then it may serve and hold what it reaches, and needs to know who reads.
    writes: bool,
    everything: bool,
    agents: BTreeSet<&'a ScopePath>,
    /// Scopes of one session each.
    sessions: BTreeSet<&'a ScopePath>,
    held: &'a BTreeMap<SessionId, Held>,
}

impl<'a> Reached<'a> {
    fn by(who: Principal, live: &'a [Grant], held: &'a BTreeMap<SessionId, Held>) -> Self {
        let scopes = || live.iter().filter_map(|grant| grant.scope.as_ref());
        let names_one = |scope: &&ScopePath| session_of(scope).is_some();
        Reached {
            who,
            writes: live.iter().any(|grant| grant.role == Role::Writer),
            everything: live.iter().any(|grant| grant.scope.is_none()),
            agents: scopes().filter(|scope| !names_one(scope)).collect(),
            sessions: scopes().filter(names_one).collect(),
            held,
        }
    }

    /// Whether a capability is about something that the party reaches.
    fn concerns(&self, grant: &Grant) -> bool {
        if grant.role == Role::Reader && !self.writes {
            // It signs nothing, so it is needed to judge nothing: it would only tell who else reads.
            return false;
        }
        let Some(scope) = &grant.scope else { return true };
        match session_of(scope).map(|session| (session, self.held.get(&session))) {
            Some((_, Some(held))) => self.reads(scope, held),
            // Of a session that is not held nothing is known but its name.
            Some((_, None)) => self.everything || self.sessions.contains(scope),
            None => self.reaches_agent(scope),
        }
    }

    fn reads(&self, scope: &ScopePath, held: &Held) -> bool {
        let reaches = self.everything
            || self.sessions.contains(scope)
            || held.agent.path().is_some_and(|agent| self.agents.iter().any(|mine| mine.covers(agent)));
        reaches && (held.class != Class::Confidential || held.holder == Some(self.who))
    }

    fn reaches_agent(&self, scope: &ScopePath) -> bool {
        let overlaps = |mine: &&ScopePath| mine.covers(scope) || scope.covers(mine);
        let holds_one_of = |mine: &&ScopePath| {
            let held = session_of(mine).and_then(|session| self.held.get(&session));
            held.is_some_and(|held| {
                self.reads(mine, held) && held.agent.path().is_some_and(|agent| scope.covers(agent))
            })
        };
        self.everything || self.agents.iter().any(overlaps) || self.sessions.iter().any(holds_one_of)
    }
}

/// The session that a scope names, if it names one.
fn session_of(scope: &ScopePath) -> Option<SessionId> {
    let genesis = scope.as_str().strip_prefix(SESSION_SCOPE)?;
    genesis.parse::<EntryCid>().ok().map(SessionId::of_genesis)
}

/// The sessions that grants of an owner name.
fn named(controls: &Controls) -> BTreeSet<SessionId> {
    let scopes = controls.capabilities().filter_map(|(_, capability)| capability.path.as_deref());
    scopes.filter_map(|path| ScopePath::parse(path).ok()).filter_map(|scope| session_of(&scope)).collect()
}

/// The rule: what of an owner's capabilities and tombstones is told to somebody of this standing. `held` are those of the sessions
/// that grants name which are held.
#[must_use]
pub(super) fn disclosed(
    controls: &Controls,
    owner: Principal,
    (who, standing): (Principal, &Standing),
    held: &BTreeMap<SessionId, Held>,
) -> BTreeSet<BlobHash> {
    let live: &[Grant] = match standing {
        Standing::Stranger => return BTreeSet::new(),
        Standing::Party(live) => live,
        Standing::OwnSide | Standing::Former => &[],
    };
    let reached = Reached::by(who, live, held);
    let capabilities = controls.capabilities().filter(|(_, capability)| {
        let is_told = match standing {
            Standing::OwnSide => true,
            Standing::Party(_) => {
                capability.delegate == who || capability.grant().is_ok_and(|grant| reached.concerns(&grant))
            }
            Standing::Former => capability.delegate == who,
            Standing::Stranger => false,
        };
        is_told && capability.signer == owner && capability.audience.is_none()
    });
    let tombstones = controls.tombstones().filter(|(_, tombstone)| tombstone.signer == owner);
    capabilities.map(|(hash, _)| *hash).chain(tombstones.map(|(hash, _)| *hash)).collect()
}

impl Gate<'_> {
    /// As what the asker stands to an owner's control blobs.
    pub(super) fn standing(&mut self, owner: Principal) -> Answer<Standing> {
        if !self.may_be_party(owner)? {
            return Ok(Standing::Stranger);
        }
        let who = self.asker.principal;
        Ok(Standing::of(self.controls(owner)?, owner, who))
    }

    /// Whether an owner's control blobs concern the asker, also one that takes part no more.
    pub(super) fn concerns(&mut self, owner: Principal) -> Answer<bool> {
        Ok(self.standing(owner)? != Standing::Stranger)
    }

    /// The sha2-256 of all capabilities and tombstones of an owner that are held and told to the asker.
    pub(super) fn disclosed(&mut self, owner: Principal) -> Answer<BTreeSet<BlobHash>> {
        let standing = self.standing(owner)?;
        let (Some(who), reader) = (self.asker.principal, self.reader) else { return Ok(BTreeSet::new()) };
        if standing == Standing::Stranger {
            return Ok(BTreeSet::new());
        }
        let kept: BTreeSet<BlobHash> = reader.control_hashes(owner)?.into_iter().collect();
        if standing == Standing::OwnSide {
            return Ok(kept);
        }
        let controls = self.controls(owner)?;
        let held = match standing {
            Standing::Party(_) => held_of(reader, named(controls))?,
            Standing::OwnSide | Standing::Former | Standing::Stranger => BTreeMap::new(),
        };
        let told = disclosed(controls, owner, (who, &standing), &held);
        // What the asker brought along says who it is; it is nothing to tell.
        Ok(told.intersection(&kept).copied().collect())
    }
}

fn held_of(reader: &Reader, named: BTreeSet<SessionId>) -> Answer<BTreeMap<SessionId, Held>> {
    let mut held = BTreeMap::new();
    for session in named {
        let Some(row) = reader.session(session)? else { continue };
        let agent = row.agent.parse().map_err(Problem::from)?;
        held.insert(session, Held { agent, class: row.summary.class, holder: row.summary.holder });
    }
    Ok(held)
}

#[cfg(test)]
#[path = "disclosure_tests.rs"]
mod tests;
