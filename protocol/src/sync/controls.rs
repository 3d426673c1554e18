//! Which control blobs go with a range. `docs/PROTOCOL.md` R-ST-5.
//!
//! *Needed* is what decides how the entries are judged: the capabilities that they may cite, the lowest tombstone of each, the
//! tombstones that keep an entry of the session, the Refs that anchor or publish it, and the capabilities of their signers. What is
//! needed goes with the range, all of it, or the range is refused. Everything else that is held of the owner is *spare*: no verdict on
//! this session depends on it, and it fills the room that is left.
//!
//! A pure function of what is held. It never looks at how much fits: that is for whoever sends.

use std::collections::{BTreeMap, BTreeSet};

use crate::control::{Ref, Role};
use crate::fork::{BlobHash, Controls};
use crate::id::{AgentIri, Cid, Codec, EntryCid, HashKind, Principal, Seq, SessionId};

/// Refs of one key and one visibility that go in any case: the highest of all, and the highest at or below the head. One anchors as
/// much as all below it; the others stand in where it names another epoch than its head has.
const REFS_OF_ONE: usize = 4;
/// Refs that go in any case.
const REFS_MAX: usize = 128;

/// A range, as far as it matters which control blobs belong to it.
#[derive(Clone, Debug)]
pub struct Range<'a> {
    /// The session.
    pub session: SessionId,
    /// Its owner.
    pub owner: Principal,
    /// Its agent.
    pub agent: &'a AgentIri,
    /// Everybody who signed an entry up to the last one of the range, or holds the session there.
    pub signers: BTreeSet<Principal>,
    /// Where selection's head stands: what is above it is pending.
    pub head: Seq,
    /// Where the heads of its Refs stand on the chain that is sent. Those that stand elsewhere are left out.
    pub places: BTreeMap<EntryCid, Seq>,
}

/// The control blobs that belong to a range, by hash, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Without these the entries would be judged in another way.
    pub needed: Vec<BlobHash>,
    /// The others, those first that concern the session.
    pub spare: Vec<BlobHash>,
}

impl Range<'_> {
    /// Chooses among what is held: the owner's capabilities and tombstones, and the Refs of the session that the asker may see.
    #[must_use]
    pub fn choose(&self, held: &Controls) -> Chosen {
        let (refs, spare_refs) = self.refs(held);
        let anchoring = refs.iter().map(|(_, signer)| *signer);
        let signers: BTreeSet<Principal> = self.signers.iter().copied().chain(anchoring).collect();
        let capabilities = self.capabilities(held, &signers);
        let tombstones = self.tombstones(held, &capabilities);
        let is_needed = |hash: &BlobHash| tombstones.contains(hash);
        let others = held.tombstones().filter(|(hash, other)| other.signer == self.owner && !is_needed(hash));
        let spare = spare_refs.into_iter().chain(others.map(|(hash, _)| *hash)).collect();
        let refs = refs.iter().map(|(hash, _)| hash);
        let needed = tombstones.iter().chain(&capabilities).chain(refs).copied().collect();
        Chosen { needed, spare }
    }

    /// Those under which one of `signers` may act in the session. One for another session would only tell that there is one.
    fn capabilities(&self, held: &Controls, signers: &BTreeSet<Principal>) -> BTreeSet<BlobHash> {
        let may_be_cited = held.capabilities().filter(|(_, capability)| {
            let covers = || capability.grant().is_ok_and(|grant| grant.covers(self.session, self.agent));
            capability.signer == self.owner && signers.contains(&capability.delegate) && covers()
        });
        may_be_cited.map(|(hash, _)| *hash).collect()
    }

    fn tombstones(&self, held: &Controls, capabilities: &BTreeSet<BlobHash>) -> BTreeSet<BlobHash> {
        let named = |hash: &BlobHash| Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash);
        let of_these = capabilities.iter().filter_map(|hash| held.revoked_by(&named(hash), self.owner));
        let genesis = self.session.genesis();
        let keeping = held.tombstones().filter(|(_, tombstone)| {
            tombstone.signer == self.owner && tombstone.keep.iter().any(|keep| keep.genesis == genesis)
        });
        of_these.chain(keeping.map(|(hash, _)| *hash)).collect()
    }

    /// The Refs that are needed, with their signers, and the others.
    fn refs(&self, held: &Controls) -> (Vec<(BlobHash, Principal)>, Vec<BlobHash>) {
        let place = |value: &Ref| {
            let head = value.session_head().ok().filter(|named| named.session == self.session)?;
            self.places.get(&head.head).copied()
        };
        let all = held.refs().filter(|(_, value)| value.owner() == self.owner);
        let mut refs: Vec<_> = all.filter_map(|(hash, value)| Some((place(value)?, *hash, value))).collect();
        // The owner's first, then by how much of the chain they speak of.
        refs.sort_by_key(|(seq, hash, value)| {
            (value.signer != self.owner, std::cmp::Reverse((*seq, value.ts)), *hash)
        });
        let mut of_one: BTreeMap<(Principal, bool, bool), usize> = BTreeMap::new();
        let (mut needed, mut spare) = (Vec::new(), Vec::new());
        for (seq, hash, value) in refs {
            let before = of_one.entry((value.signer, value.private, seq > self.head)).or_default();
            if self.counts(value, held) && *before < REFS_OF_ONE && needed.len() < REFS_MAX {
                *before += 1;
                needed.push((hash, value.signer));
            } else {
                spare.push(hash);
            }
        }
        (needed, spare)
    }

    /// Whether a Ref can anchor or publish: the owner's, or one under a grant that nobody revoked.
    fn counts(&self, value: &Ref, held: &Controls) -> bool {
        let Some(cited) = value.capability else { return value.signer == self.owner };
        let role = held.grant(&cited, value.signer, self.owner).map(|grant| grant.role);
        matches!(role, Ok(Role::Agent | Role::Writer)) && held.revoked_by(&cited, self.owner).is_none()
    }
}

#[cfg(test)]
#[path = "controls_tests.rs"]
mod tests;
