//! The control blobs that are held: capabilities, tombstones and Refs, each by the sha2-256 of its bytes.
//!
//! Holding one says nothing about whether it counts: that depends on the session's owner and is asked for with
//! [`Controls::grant`] and [`Controls::revoked_by`]. A capability is its bytes: whichever of its two CIDs an entry or a tombstone
//! cites, it is the same one.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::block::Signed;
use crate::code::{Code, Reject};
use crate::control::{Capability, Control, Grant, Ref, Tombstone};
use crate::id::{Cid, Codec, HashKind, Principal};

/// sha2-256 of a blob's bytes.
pub type BlobHash = [u8; 32];

/// Capabilities, tombstones and Refs whose signatures were checked. The caller bounds how many it puts in.
#[derive(Clone, Debug, Default)]
pub struct Controls {
    capabilities: BTreeMap<BlobHash, Held>,
    /// blake2b-256 to sha2-256 of the same capability.
    by_blake2b: BTreeMap<BlobHash, BlobHash>,
    tombstones: BTreeMap<BlobHash, Tombstone>,
    /// Who tombstoned which capability, as cited; to the lowest such tombstone.
    revoked: BTreeMap<(Principal, Cid), BlobHash>,
    refs: BTreeMap<BlobHash, Ref>,
}

#[derive(Clone, Debug)]
struct Held {
    capability: Capability,
    blake2b: BlobHash,
}

/// Whether a blob was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// It is new.
    New,
    /// It was held already.
    Known,
}

impl Controls {
    /// None held.
    #[must_use]
    pub fn new() -> Self {
        Controls::default()
    }

    /// Takes a control blob in.
    pub fn insert(&mut self, signed: &Signed<Control>) -> Inserted {
        let hash = signed.hash();
        let known = match signed.value() {
            Control::Capability(capability) => {
                let blake2b = *Cid::blake2b(Codec::DagCbor, signed.bytes()).digest();
                self.by_blake2b.insert(blake2b, hash);
                self.capabilities.insert(hash, Held { capability: capability.clone(), blake2b }).is_some()
            }
            Control::Tombstone(tombstone) => {
                let named = (tombstone.signer, tombstone.capability);
                let first = self.revoked.entry(named).or_insert(hash);
                *first = hash.min(*first);
                self.tombstones.insert(hash, tombstone.clone()).is_some()
            }
            Control::Ref(value) => self.refs.insert(hash, value.clone()).is_some(),
        };
        if known { Inserted::Known } else { Inserted::New }
    }

    /// What `signer` may do for `owner` under the capability that it cites.
    ///
    /// # Errors
    /// `E_INCOMPLETE` when no capability of that CID is held: whether another blob has it is not looked at, so that no verdict hangs on
    /// which other blobs came along. `E_CAP_ISSUER` when somebody else signed it, `E_CAP_AUDIENCE`, `E_CAP_MISSING` for another
    /// delegate, else as [`Capability::grant`].
    pub fn grant(&self, cited: &Cid, signer: Principal, owner: Principal) -> Result<Grant, Reject> {
        let Some((_, held)) = self.held(cited) else {
            let what = format!("cites a capability that is not held: {}", cited.short());
            return Err(Reject::new(Code::Incomplete, what));
        };
        let capability = &held.capability;
        if capability.signer != owner {
            let signed_by = capability.signer.short();
            return Err(Reject::new(
                Code::CapIssuer,
                format!("expected a capability of {}, got one of {signed_by}", owner.short()),
            ));
        }
        if capability.audience.is_some() {
            return Err(Code::CapAudience.into());
        }
        if capability.delegate != signer {
            let delegate = capability.delegate.short();
            return Err(Reject::new(
                Code::CapMissing,
                format!("{} cites the capability of {delegate}", signer.short()),
            ));
        }
        capability.grant()
    }

    /// The tombstone by which `owner` revoked the capability, if there is one; of several the one of the lowest hash.
    #[must_use]
    pub fn revoked_by(&self, cited: &Cid, owner: Principal) -> Option<BlobHash> {
        let (sha256, held) = self.held(cited)?;
        let names = [
            Cid::from_parts(Codec::DagCbor, HashKind::Sha256, sha256),
            Cid::from_parts(Codec::DagCbor, HashKind::Blake2b256, held.blake2b),
        ];
        names.iter().filter_map(|name| self.revoked.get(&(owner, *name)).copied()).min()
    }

    /// sha2-256 of the capability that a CID of either kind names, if it is held.
    #[must_use]
    pub fn capability_hash(&self, cited: &Cid) -> Option<BlobHash> {
        self.held(cited).map(|(hash, _)| hash)
    }

    /// The capabilities, ascending by hash.
    pub fn capabilities(&self) -> impl Iterator<Item = (&BlobHash, &Capability)> {
        self.capabilities.iter().map(|(hash, held)| (hash, &held.capability))
    }

    /// The tombstones, ascending by hash.
    pub fn tombstones(&self) -> impl Iterator<Item = (&BlobHash, &Tombstone)> {
        self.tombstones.iter()
    }

    /// The tombstone with this sha2-256, if it is held.
    pub(crate) fn tombstone(&self, hash: &BlobHash) -> Option<&Tombstone> {
        self.tombstones.get(hash)
    }

    /// The Refs, ascending by hash.
    pub fn refs(&self) -> impl Iterator<Item = (&BlobHash, &Ref)> {
        self.refs.iter()
    }

    /// Whether a blob with this sha2-256 is held.
    #[must_use]
    pub fn holds(&self, hash: &BlobHash) -> bool {
        self.capabilities.contains_key(hash)
            || self.tombstones.contains_key(hash)
            || self.refs.contains_key(hash)
    }

    /// Count and digest by which two nodes compare what they hold of an owner: sha-256 over the ascending hashes of its
    /// capabilities without audience and its tombstones. Refs do not count.
    #[must_use]
    pub fn digest(&self, owner: Principal) -> (u64, BlobHash) {
        let grants = self.capabilities().filter(|(_, c)| c.signer == owner && c.audience.is_none());
        let tombstones = self.tombstones().filter(|(_, tombstone)| tombstone.signer == owner);
        let mut hashes: Vec<&BlobHash> =
            grants.map(|(hash, _)| hash).chain(tombstones.map(|(hash, _)| hash)).collect();
        hashes.sort_unstable();
        let digest = hashes.iter().fold(Sha256::new(), |digest, hash| digest.chain_update(hash)).finalize();
        (hashes.len() as u64, digest.into())
    }

    fn held(&self, cited: &Cid) -> Option<(BlobHash, &Held)> {
        if cited.codec() != Codec::DagCbor {
            return None;
        }
        let sha256 = match cited.hash_kind() {
            HashKind::Sha256 => *cited.digest(),
            HashKind::Blake2b256 => *self.by_blake2b.get(cited.digest())?,
        };
        self.capabilities.get(&sha256).map(|held| (sha256, held))
    }
}
