//! How many control blobs are kept. `docs/PROTOCOL.md` R-CO-6, R-CO-7.
//!
//! Anybody can sign any number of grants, revocations and Refs of sessions of their own, and all of them are valid. So an owner has a
//! quota of capabilities and tombstones, a small one while no session of its is held, and of one key's Refs of one session only those
//! are kept that say something: the newest, and anchors that no newer one of the same key and grant stands above.
//!
//! What is refused is refused whole and changes nothing (`E_QUOTA`). It must never drop a Ref that a verdict may need: an anchor of the
//! account, of a device, or under a grant that is not held, goes only when a newer one of its kind names a descendant.

use std::collections::{BTreeMap, BTreeSet};

use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::{Control, Ref, Role};
use throughline_protocol::id::{Cid, Codec, Principal, Seq, SessionId};

use crate::control::{Shelf, bytes, of_owner, owner_digest, refs_of, resolve, shelf};
use crate::error::StoreError;
use crate::index::{self, Lane};
use crate::source::{Source, lookup};
use crate::tables;
use crate::writer::Changes;

/// Capabilities of one owner.
pub(crate) const CAPABILITIES_MAX: usize = 8_192;
/// Tombstones of one owner whose capability is not held.
pub(crate) const UNKNOWN_TOMBSTONES_MAX: usize = 1_024;
/// Tombstones of one capability: they differ in what they keep.
const TOMBSTONES_OF_ONE_MAX: usize = 64;
/// An owner of whom no session is held has one part in so many of these.
pub(crate) const STRANGERS_PART: usize = 32;
/// Refs of one session, of all keys.
const REFS_MAX: usize = 8_192;
/// Refs of one session that are kept without a look at what they say.
pub(crate) const REFS_FREE: usize = 64;
/// Refs of one key, grant and visibility that stay, the newest.
pub(crate) const REFS_KEPT: usize = 4;

/// Refuses blobs that have no room.
///
/// # Errors
/// `Refused` with `E_QUOTA`; when the database cannot be read.
pub(crate) fn check(source: &impl Source, controls: &[Signed<Control>]) -> Result<(), StoreError> {
    let mut owners: BTreeMap<Principal, Vec<&Signed<Control>>> = BTreeMap::new();
    let mut sessions: BTreeMap<SessionId, usize> = BTreeMap::new();
    for control in controls {
        if lookup(source, tables::CONTROLS, &control.hash(), |_| ())?.is_some() {
            continue;
        }
        match shelf(control.value()).map_err(StoreError::Refused)? {
            Shelf::Owner(owner) => owners.entry(owner).or_default().push(control),
            Shelf::Session(session, _) => *sessions.entry(session).or_default() += 1,
        }
    }
    for (session, more) in sessions {
        let held = ref_count(source, session)?;
        if held + more > REFS_MAX {
            return Err(refuse(format!("{held} Refs of {} are held, {REFS_MAX} are kept", session.short())));
        }
    }
    owners.into_iter().try_for_each(|(owner, more)| check_owner(source, owner, &more))
}

fn check_owner(source: &impl Source, owner: Principal, more: &[&Signed<Control>]) -> Result<(), StoreError> {
    // What fits in any case is not counted one by one.
    let held = usize::try_from(owner_digest(source, owner)?.count).unwrap_or(usize::MAX);
    if held.saturating_add(more.len()) <= UNKNOWN_TOMBSTONES_MAX / STRANGERS_PART {
        return Ok(());
    }
    let tally = Tally::of(source, owner, more)?;
    if tally.fits(STRANGERS_PART) || (tally.fits(1) && has_session(source, owner)?) {
        return Ok(());
    }
    let Tally { capabilities, unknown, most } = tally;
    Err(refuse(format!(
        "{capabilities} capabilities, {unknown} tombstones of unknown ones and {most} of one are more than is kept of {}",
        owner.short()
    )))
}

/// What there would be of one owner.
struct Tally {
    capabilities: usize,
    /// Tombstones whose capability is not held.
    unknown: usize,
    /// The most tombstones of one capability.
    most: usize,
}

impl Tally {
    fn of(source: &impl Source, owner: Principal, more: &[&Signed<Control>]) -> Result<Self, StoreError> {
        let (mut capabilities, mut cited) = (0, Vec::new());
        let mut coming: BTreeSet<[u8; 32]> = BTreeSet::new();
        let mut count = |control: &Control| match control {
            Control::Capability(_) => capabilities += 1,
            Control::Tombstone(tombstone) => cited.push(tombstone.capability),
            Control::Ref(_) => {}
        };
        for held in of_owner(source, owner)? {
            count(Decoded::<Control>::decode(held).map_err(StoreError::Refused)?.value());
        }
        for control in more {
            count(control.value());
            coming.extend([control.hash(), *Cid::blake2b(Codec::DagCbor, control.bytes()).digest()]);
        }
        let (mut unknown, mut of_one) = (0, BTreeMap::<[u8; 32], usize>::new());
        for cid in cited {
            match resolve(source, &cid)? {
                Some(hash) => *of_one.entry(hash).or_default() += 1,
                None if coming.contains(cid.digest()) => *of_one.entry(*cid.digest()).or_default() += 1,
                None => unknown += 1,
            }
        }
        Ok(Tally { capabilities, unknown, most: of_one.into_values().max().unwrap_or(0) })
    }

    fn fits(&self, part: usize) -> bool {
        self.capabilities <= CAPABILITIES_MAX / part
            && self.unknown <= UNKNOWN_TOMBSTONES_MAX / part
            && self.most <= TOMBSTONES_OF_ONE_MAX
    }
}

fn has_session(source: &impl Source, owner: Principal) -> Result<bool, StoreError> {
    for row in source.table(tables::SESSIONS)?.iter()? {
        if index::session_by_number(source, row?.0.value())?.owner == owner {
            return Ok(true);
        }
    }
    Ok(false)
}

fn ref_count(source: &impl Source, session: SessionId) -> Result<usize, StoreError> {
    let genesis = session.genesis();
    let table = source.table(tables::REFS_OF_SESSION)?;
    Ok(table.range((genesis.digest(), &[0; 32])..=(genesis.digest(), &[0xff; 32]))?.count())
}

fn refuse(what: String) -> StoreError {
    StoreError::Refused(Reject::new(Code::Quota, what))
}

/// One Ref that is held.
struct Held {
    hash: [u8; 32],
    bytes: Vec<u8>,
    value: Ref,
}

/// Refs that may stand for each other: of one key, under one grant, of one visibility.
type Kind = (Option<Cid>, bool);

/// Drops the Refs of a key that say nothing any more, once there are many of the session.
pub(crate) fn prune(changes: &Changes<'_>, session: SessionId, signer: Principal) -> Result<(), StoreError> {
    let source = changes.txn;
    if ref_count(source, session)? <= REFS_FREE {
        return Ok(());
    }
    let number = index::session_number(source, session)?;
    let mut kinds: BTreeMap<Kind, Vec<Held>> = BTreeMap::new();
    for bytes in refs_of(source, session)? {
        let decoded = Decoded::<Control>::decode(bytes).map_err(StoreError::Refused)?;
        let (hash, bytes) = (*decoded.cid().digest(), decoded.bytes().to_vec());
        if let Control::Ref(value) = decoded.value()
            && value.signer == signer
        {
            let kind = (value.capability, value.private);
            kinds.entry(kind).or_default().push(Held { hash, bytes, value: value.clone() });
        }
    }
    for ((capability, _), held) in kinds {
        let anchors = may_anchor(source, capability)?;
        // Those of one time by their place: a clock that was ahead gives all that follow the time of its last entry.
        let placed = held.into_iter().map(|held| Ok((place_of(source, number, &held.value)?, held)));
        let mut held = placed.collect::<Result<Vec<_>, StoreError>>()?;
        held.sort_by_key(|(place, held)| std::cmp::Reverse((held.value.ts, *place, held.hash)));
        // The highest place on the main chain that a newer one names: what is at or below it is said again there.
        let mut above: Option<Seq> = None;
        for (nth, (place, held)) in held.into_iter().enumerate() {
            let is_said_again = place.is_some_and(|place| above.is_some_and(|above| place <= above));
            if nth >= REFS_KEPT && (!anchors || is_said_again) {
                remove(changes, session, &held)?;
            } else {
                above = above.max(place);
            }
        }
    }
    Ok(())
}

/// Whether Refs under a grant may be anchors: those of the account, of a device, and of whoever is not known yet.
fn may_anchor(source: &impl Source, capability: Option<Cid>) -> Result<bool, StoreError> {
    let Some(cited) = capability else { return Ok(true) };
    let Some(hash) = resolve(source, &cited)? else { return Ok(true) };
    let Some(held) = bytes(source, &hash)? else { return Ok(true) };
    let decoded = Decoded::<Control>::decode(held).map_err(StoreError::Refused)?;
    let Control::Capability(capability) = decoded.value() else { return Ok(false) };
    Ok(capability.grant().is_ok_and(|grant| grant.role == Role::Agent))
}

/// Where the head of a Ref stands on the main chain of its session.
fn place_of(source: &impl Source, number: Option<u64>, value: &Ref) -> Result<Option<Seq>, StoreError> {
    let (Some(number), Ok(named)) = (number, value.session_head()) else { return Ok(None) };
    let place = index::find(source, named.head)?;
    let on_main = place.filter(|place| place.session == number && place.lane == Lane::Main);
    Ok(on_main.map(|place| place.seq))
}

fn remove(changes: &Changes<'_>, session: SessionId, held: &Held) -> Result<(), StoreError> {
    changes.remove(tables::CONTROLS, &held.hash)?;
    let alias = Cid::blake2b(Codec::DagCbor, &held.bytes);
    changes.remove(tables::CONTROL_ALIASES, alias.digest())?;
    changes.remove(tables::REFS_OF_SESSION, (session.genesis().digest(), &held.hash))?;
    Ok(())
}

#[cfg(test)]
#[path = "control_quota_tests.rs"]
mod tests;
