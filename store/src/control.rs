//! Capabilities, tombstones and Refs: kept by the sha2-256 of their bytes, found by either CID, by owner and by session.
//!
//! Two nodes compare what they hold of an owner by count and digest (`docs/PROTOCOL.md` §Streams): sha-256 over the ascending
//! hashes of all its capabilities without audience and its tombstones. Refs do not count.

use std::collections::BTreeSet;

use redb::{ReadableTable as _, WriteTransaction};
use sha2::{Digest, Sha256};
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::id::{Cid, Codec, EntryCid, HashKind, Principal, SessionId, UnixMillis};

use crate::control_quota;
use crate::error::StoreError;
use crate::events::{self, Change};
use crate::health::Urgency;
use crate::payloads::Stored;
use crate::rows::ControlRow;
use crate::source::{Source, lookup};
use crate::tables::{self, Spec as _};
use crate::to_judge;
use crate::writer::{Changes, Step, View};

/// What is held of an owner's capabilities and tombstones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerDigest {
    /// How many.
    pub count: u64,
    /// sha-256 over their ascending hashes.
    pub digest: [u8; 32],
}

/// What a control blob is filed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shelf {
    Owner(Principal),
    Session(SessionId, Principal),
}

impl Shelf {
    fn owner(self) -> Principal {
        match self {
            Shelf::Owner(owner) | Shelf::Session(_, owner) => owner,
        }
    }
}

pub(crate) fn shelf(control: &Control) -> Result<Shelf, Reject> {
    match control {
        Control::Capability(capability) if capability.audience.is_some() => {
            Err(Reject::new(Code::CapAudience, "a peer proof is not kept"))
        }
        Control::Capability(capability) => Ok(Shelf::Owner(capability.signer)),
        Control::Tombstone(tombstone) => Ok(Shelf::Owner(tombstone.signer)),
        Control::Ref(value) => Ok(Shelf::Session(value.session_head()?.session, value.owner())),
    }
}

/// Checks that a blob is one that is kept.
pub(crate) fn check(control: &Signed<Control>) -> Result<(), Reject> {
    shelf(control.value()).map(|_| ())
}

/// Files blobs, each once; says which were new.
pub(crate) fn put_all(
    changes: &Changes<'_>,
    controls: &[Signed<Control>],
    at: UnixMillis,
) -> Result<Vec<Stored>, StoreError> {
    let mut stored = Vec::new();
    let (mut owners, mut writers) = (BTreeSet::new(), BTreeSet::new());
    for control in controls {
        let now = put(changes, control, at, &mut owners)?;
        if let (Stored::New, Control::Ref(value), Ok(named)) = (now, control.value(), shelf(control.value()))
            && let Shelf::Session(session, _) = named
        {
            writers.insert((session, value.signer));
        }
        stored.push(now);
    }
    // What a key said of a session and says again with a newer Ref goes.
    for (session, signer) in writers {
        control_quota::prune(changes, session, signer)?;
    }
    // Once an owner, not once a blob: a digest goes over all that is held of it.
    for owner in owners {
        let held = digest_of(changes.txn, owner)?;
        changes.put(tables::OWNERS, owner.key(), (held.count, &held.digest))?;
    }
    Ok(stored)
}

/// Files a blob; once is enough. Adds an owner whose digest is another one now.
fn put(
    changes: &Changes<'_>,
    control: &Signed<Control>,
    at: UnixMillis,
    owners: &mut BTreeSet<Principal>,
) -> Result<Stored, StoreError> {
    let hash = control.hash();
    if lookup(changes.txn, tables::CONTROLS, &hash, |_| ())?.is_some() {
        return Ok(Stored::Held);
    }
    let shelf = shelf(control.value())?;
    let row = ControlRow { since: at, bytes: control.bytes().to_vec() };
    changes.put(tables::CONTROLS, &hash, row.to_bytes().as_slice())?;
    let alias = Cid::blake2b(Codec::DagCbor, control.bytes());
    changes.put(tables::CONTROL_ALIASES, alias.digest(), &hash)?;
    match shelf {
        Shelf::Owner(owner) => {
            changes.put(tables::CONTROLS_OF_OWNER, (owner.key(), &hash), ())?;
            owners.insert(owner);
            if let Control::Capability(capability) = control.value() {
                changes.put(tables::DELEGATES, (owner.key(), capability.delegate.key()), ())?;
            }
            if matches!(control.value(), Control::Tombstone(_)) {
                to_judge::mark(changes, owner, &hash)?;
            }
        }
        Shelf::Session(session, _) => {
            changes.put(tables::REFS_OF_SESSION, (session.genesis().digest(), &hash), ())?;
        }
    }
    let by = match control.value() {
        Control::Ref(value) => value.capability.map(|_| value.signer),
        Control::Capability(_) | Control::Tombstone(_) => None,
    };
    events::write(changes, at, &Change::Control { owner: shelf.owner(), hash, by })?;
    Ok(Stored::New)
}

fn digest_of(source: &impl Source, owner: Principal) -> Result<OwnerDigest, StoreError> {
    let table = source.table(tables::CONTROLS_OF_OWNER)?;
    let mut hasher = Sha256::new();
    let mut count = 0;
    for row in table.range((owner.key(), &[0; 32])..=(owner.key(), &[0xff; 32]))? {
        hasher.update(row?.0.value().1);
        count += 1;
    }
    Ok(OwnerDigest { count, digest: hasher.finalize().into() })
}

/// Count and digest of an owner; those of nothing when nothing is held.
pub(crate) fn owner_digest(source: &impl Source, owner: Principal) -> Result<OwnerDigest, StoreError> {
    let held = lookup(source, tables::OWNERS, owner.key(), |(count, digest)| OwnerDigest {
        count,
        digest: *digest,
    })?;
    Ok(held.unwrap_or_else(|| OwnerDigest { count: 0, digest: Sha256::digest([]).into() }))
}

/// The hash of a blob that a CID of either kind names, if it is held.
pub(crate) fn resolve(source: &impl Source, cid: &Cid) -> Result<Option<[u8; 32]>, StoreError> {
    if cid.codec() != Codec::DagCbor {
        return Ok(None);
    }
    match cid.hash_kind() {
        HashKind::Sha256 => {
            Ok(lookup(source, tables::CONTROLS, cid.digest(), |_| ())?.map(|()| *cid.digest()))
        }
        HashKind::Blake2b256 => lookup(source, tables::CONTROL_ALIASES, cid.digest(), |hash| *hash),
    }
}

/// Lists who was granted something, in a database that was written before there was that list.
pub(crate) fn list_delegates(txn: &WriteTransaction) -> Result<(), StoreError> {
    let mut delegates = BTreeSet::new();
    let controls = txn.open_table(tables::CONTROLS::DEFINITION)?;
    for row in txn.open_table(tables::CONTROLS_OF_OWNER::DEFINITION)?.iter()? {
        let (key, _) = row?;
        let (owner, hash) = key.value();
        let Some(row) = controls.get(hash)? else { continue };
        // A row that cannot be read is told by fsck; it stops no other.
        let Ok(row) = ControlRow::from_bytes(EntryCid::from_digest(*hash), row.value()) else { continue };
        let control = Decoded::<Control>::decode(row.bytes).map_err(StoreError::Refused)?;
        if let Control::Capability(capability) = control.value() {
            delegates.insert((*owner, *capability.delegate.key()));
        }
    }
    let mut listed = txn.open_table(tables::DELEGATES::DEFINITION)?;
    for (owner, delegate) in &delegates {
        listed.insert((owner, delegate), ())?;
    }
    Ok(())
}

/// Whether an owner ever granted something to a key: a look at one row, however many grants there are.
pub(crate) fn is_delegate(
    source: &impl Source,
    owner: Principal,
    who: Principal,
) -> Result<bool, StoreError> {
    Ok(lookup(source, tables::DELEGATES, (owner.key(), who.key()), |()| ())?.is_some())
}

/// The bytes of a blob, hashed.
pub(crate) fn bytes(source: &impl Source, hash: &[u8; 32]) -> Result<Option<Vec<u8>>, StoreError> {
    let read = |row: &[u8]| ControlRow::from_bytes(EntryCid::from_digest(*hash), row);
    Ok(lookup(source, tables::CONTROLS, hash, read)?.transpose()?.map(|row| row.bytes))
}

fn all(source: &impl Source, hashes: impl IntoIterator<Item = [u8; 32]>) -> Result<Vec<Vec<u8>>, StoreError> {
    let missing = |hash: &[u8; 32]| StoreError::Index {
        what: format!("control blob {} is listed and not held", EntryCid::from_digest(*hash).short()),
    };
    hashes.into_iter().map(|hash| bytes(source, &hash)?.ok_or_else(|| missing(&hash))).collect()
}

/// Hashes of an owner's capabilities and tombstones, ascending.
pub(crate) fn hashes_of_owner(source: &impl Source, owner: Principal) -> Result<Vec<[u8; 32]>, StoreError> {
    let table = source.table(tables::CONTROLS_OF_OWNER)?;
    let rows = table.range((owner.key(), &[0; 32])..=(owner.key(), &[0xff; 32]))?;
    rows.map(|row| Ok(*row?.0.value().1)).collect()
}

/// Bytes of an owner's capabilities and tombstones, ascending by hash.
pub(crate) fn of_owner(source: &impl Source, owner: Principal) -> Result<Vec<Vec<u8>>, StoreError> {
    all(source, hashes_of_owner(source, owner)?)
}

/// Bytes of a session's Refs, ascending by hash.
pub(crate) fn refs_of(source: &impl Source, session: SessionId) -> Result<Vec<Vec<u8>>, StoreError> {
    let genesis = session.genesis();
    let hashes: Vec<[u8; 32]> = {
        let table = source.table(tables::REFS_OF_SESSION)?;
        let rows = table.range((genesis.digest(), &[0; 32])..=(genesis.digest(), &[0xff; 32]))?;
        rows.map(|row| Ok(*row?.0.value().1)).collect::<Result<_, StoreError>>()?
    };
    all(source, hashes)
}

/// All owners that something is held of.
pub(crate) fn owners(source: &impl Source) -> Result<Vec<(Principal, OwnerDigest)>, StoreError> {
    let table = source.table(tables::OWNERS)?;
    let rows = table.iter()?;
    rows.map(|row| {
        let (owner, held) = row?;
        let (count, digest) = held.value();
        Ok((Principal::from_key(*owner.value()), OwnerDigest { count, digest: *digest }))
    })
    .collect()
}

/// Stores control blobs.
#[derive(Clone, Debug)]
pub struct PutControls {
    /// The blobs; all or none.
    pub controls: Vec<Signed<Control>>,
    /// When.
    pub at: UnixMillis,
}

impl Step for PutControls {
    /// For each blob whether it was new.
    type Output = Vec<Stored>;
    type Error = StoreError;
    type Plan = ();

    fn urgency(&self) -> Urgency {
        let revokes = self.controls.iter().any(|control| matches!(control.value(), Control::Tombstone(_)));
        if revokes { Urgency::Urgent } else { Urgency::Ordinary }
    }

    fn check(&self, view: &View<'_>) -> Result<(), StoreError> {
        self.controls.iter().try_for_each(check).map_err(StoreError::Refused)?;
        control_quota::check(view.txn, &self.controls)
    }

    fn write(self, (): (), changes: &Changes<'_>) -> Result<Vec<Stored>, StoreError> {
        put_all(changes, &self.controls, self.at)
    }
}
