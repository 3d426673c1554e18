//! Reading what a hash names: payloads, files, staged blocks, control blobs.

use std::collections::BTreeSet;

use throughline_protocol::id::{Cid, Codec, EntryCid, HashKind, Principal, Seq, SessionId};

use crate::brought;
use crate::control::{self, OwnerDigest};
use crate::error::StoreError;
use crate::files::FileReader;
use crate::index::{self, Lane};
use crate::payloads::{self, PayloadState};
use crate::read::{Reader, lowest_digest};
use crate::rows::BlockPlace;
use crate::source::Source as _;
use crate::staging;
use crate::tables::{self, Digest32, Spec};
use crate::to_judge::{self, ToJudge};

/// What a CID names here, for a policy that decides before any bytes are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// An entry of a session.
    Entry {
        /// The session.
        session: SessionId,
        /// Its seq.
        seq: Seq,
        /// On the main chain or beside it.
        lane: Lane,
    },
    /// A capability, tombstone or Ref.
    Control {
        /// sha2-256 of its bytes.
        hash: [u8; 32],
    },
    /// A payload or file.
    Block {
        /// Its size in bytes.
        size_bytes: u64,
    },
}

/// Blocks.
impl Reader {
    /// What a CID names here.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn find(&self, cid: &Cid) -> Result<Option<Found>, StoreError> {
        if let Ok(entry) = EntryCid::try_from(*cid)
            && let Some(place) = index::find(&self.txn, entry)?
        {
            let session = index::session_by_number(&self.txn, place.session)?.session;
            return Ok(Some(Found::Entry { session, seq: place.seq, lane: place.lane }));
        }
        if let Some(hash) = control::resolve(&self.txn, cid)? {
            return Ok(Some(Found::Control { hash }));
        }
        if cid.hash_kind() != HashKind::Sha256 {
            return Ok(None);
        }
        let Some(row) = payloads::row(&self.txn, cid.digest())? else { return Ok(None) };
        Ok(Some(Found::Block { size_bytes: row.size }))
    }

    /// Digests of entries, blocks and control blobs whose CIDs go on with `tail` after the seven characters that their kind
    /// decides; at most `limit`. None for text that no CID goes on with.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn digests_by_prefix(&self, tail: &str, limit: usize) -> Result<Vec<[u8; 32]>, StoreError> {
        let full = format!("bafyrei{tail}");
        let Some(from) = lowest_digest(&full) else { return Ok(Vec::new()) };
        let mut found = BTreeSet::new();
        self.digests_from(tables::INDEX, &from, &full, limit, &mut found)?;
        self.digests_from(tables::BLOCKS, &from, &full, limit, &mut found)?;
        self.digests_from(tables::CONTROLS, &from, &full, limit, &mut found)?;
        Ok(found.into_iter().take(limit).collect())
    }

    /// The first `limit` digests of one table that fit.
    fn digests_from<S: Spec<K = Digest32>>(
        &self,
        table: S,
        from: &[u8; 32],
        full: &str,
        limit: usize,
        found: &mut BTreeSet<[u8; 32]>,
    ) -> Result<(), StoreError> {
        for row in self.txn.table(table)?.range::<&[u8; 32]>(from..)?.take(limit) {
            let digest = *row?.0.value();
            // The characters of a digest are the same whatever the kind of its block is.
            if !EntryCid::from_digest(digest).to_string().starts_with(full) {
                break;
            }
            found.insert(digest);
        }
        Ok(())
    }

    /// Whether a block is here for a session: its bytes are, and were received for this session (R-FI-7). That they are here for another
    /// one says nothing.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn is_here(&self, session: SessionId, cid: &Cid) -> Result<bool, StoreError> {
        Ok(cid.hash_kind() == HashKind::Sha256
            && payloads::row(&self.txn, cid.digest())?.is_some()
            && brought::is_brought(&self.txn, cid.digest(), session)?)
    }

    /// The sessions that brought a block, each once: under these it leaves.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn bringing(&self, digest: &[u8; 32]) -> Result<Vec<SessionId>, StoreError> {
        brought::sessions(&self.txn, digest)
    }

    /// Seqs of a session's entries that link a block, ascending.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn linking_seqs(&self, session: SessionId, digest: &[u8; 32]) -> Result<BTreeSet<u64>, StoreError> {
        match index::session_number(&self.txn, session)? {
            Some(number) => payloads::links_in(&self.txn, digest, number),
            None => Ok(BTreeSet::new()),
        }
    }

    /// The sessions whose entries link a block, held or not, each once.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn linkers(&self, digest: &[u8; 32]) -> Result<Vec<SessionId>, StoreError> {
        let numbers = payloads::linking(&self.txn, digest)?;
        numbers.into_iter().map(|number| Ok(index::session_by_number(&self.txn, number)?.session)).collect()
    }

    /// The bytes that a CID names: entry, control blob, payload or block of a file. Blocks are at most 2 MiB; a larger file is
    /// streamed with [`Reader::open_file`].
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when they do not hash to it.
    pub fn block(&self, cid: &Cid) -> Result<Option<Vec<u8>>, StoreError> {
        match self.find(cid)? {
            None => Ok(None),
            Some(Found::Entry { .. }) => {
                let entry = self.entry(EntryCid::from_digest(*cid.digest()))?;
                Ok(entry.map(|(_, entry)| entry.bytes))
            }
            Some(Found::Control { hash }) => control::bytes(&self.txn, &hash),
            Some(Found::Block { .. }) => payloads::read(&self.txn, &self.files, cid.digest()),
        }
    }

    /// A payload: its bytes, or why they are not here.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when they do not hash to its CID.
    pub fn payload(&self, cid: EntryCid) -> Result<PayloadState, StoreError> {
        if let Some(bytes) = payloads::read(&self.txn, &self.files, cid.digest())? {
            return Ok(PayloadState::Present(bytes));
        }
        let is_dropped = payloads::is_refused(&self.txn, cid.digest())?;
        Ok(if is_dropped { PayloadState::Dropped } else { PayloadState::Absent })
    }

    /// Streams a file that lies under `payloads/`, with its size in bytes; see [`FileReader`] for when its bytes may be
    /// trusted. None for what is not held or lies in a table.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn open_file(&self, digest: &[u8; 32]) -> Result<Option<(FileReader, u64)>, StoreError> {
        match payloads::row(&self.txn, digest)? {
            Some(row) if row.place == BlockPlace::File => {
                let missing =
                    || StoreError::corrupt(format!("the file of {} is missing", crate::files::short(digest)));
                let reader = self.files.open_file(digest, row.size)?.ok_or_else(missing)?;
                Ok(Some((reader, row.size)))
            }
            Some(_) | None => Ok(None),
        }
    }

    /// A block that is staged for a session.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when it does not hash to its CID.
    pub fn staged(&self, session: SessionId, digest: &[u8; 32]) -> Result<Option<Vec<u8>>, StoreError> {
        staging::read(&self.txn, session, digest)
    }

    /// Digests of a session's staged blocks after `after`, at most `limit`, ascending.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn staged_list(
        &self,
        session: SessionId,
        after: Option<[u8; 32]>,
        limit: usize,
    ) -> Result<Vec<[u8; 32]>, StoreError> {
        staging::list(&self.txn, session, after, limit)
    }
}

/// Control blobs.
impl Reader {
    /// Bytes of an owner's capabilities and tombstones, ascending by hash.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when one does not hash to its hash.
    pub fn controls_of_owner(&self, owner: Principal) -> Result<Vec<Vec<u8>>, StoreError> {
        control::of_owner(&self.txn, owner)
    }

    /// Hashes of an owner's capabilities and tombstones, ascending.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn control_hashes(&self, owner: Principal) -> Result<Vec<[u8; 32]>, StoreError> {
        control::hashes_of_owner(&self.txn, owner)
    }

    /// Whether an owner ever granted something to a key, revoked or not.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn is_delegate(&self, owner: Principal, who: Principal) -> Result<bool, StoreError> {
        control::is_delegate(&self.txn, owner, who)
    }

    /// Bytes of a session's Refs, ascending by hash.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when one does not hash to its hash.
    pub fn refs_of_session(&self, session: SessionId) -> Result<Vec<Vec<u8>>, StoreError> {
        control::refs_of(&self.txn, session)
    }

    /// All that a session is judged by: its owner's capabilities and tombstones, then its Refs. Empty for one that is not
    /// held, but for its Refs.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when one does not hash to its hash.
    pub fn controls_of_session(&self, session: SessionId) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut blobs = match index::session(&self.txn, session)? {
            Some(row) => control::of_owner(&self.txn, row.owner)?,
            None => Vec::new(),
        };
        blobs.extend(control::refs_of(&self.txn, session)?);
        Ok(blobs)
    }

    /// A control blob by either of its CIDs.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when it does not hash to it.
    pub fn control(&self, cid: &Cid) -> Result<Option<Vec<u8>>, StoreError> {
        match control::resolve(&self.txn, cid)? {
            Some(hash) => control::bytes(&self.txn, &hash),
            None => Ok(None),
        }
    }

    /// A control blob by the sha2-256 of its bytes.
    ///
    /// # Errors
    /// As [`Reader::control`].
    pub fn control_by_hash(&self, hash: &[u8; 32]) -> Result<Option<Vec<u8>>, StoreError> {
        self.control(&Cid::from_parts(Codec::DagCbor, HashKind::Sha256, *hash))
    }

    /// Count and digest of what is held of an owner.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn owner_digest(&self, owner: Principal) -> Result<OwnerDigest, StoreError> {
        control::owner_digest(&self.txn, owner)
    }

    /// What is still to be judged of an owner.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn to_judge(&self, owner: Principal) -> Result<ToJudge, StoreError> {
        to_judge::of_owner(&self.txn, owner)
    }

    /// Owners of whom something is still to be judged, ascending.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn owners_to_judge(&self) -> Result<Vec<Principal>, StoreError> {
        to_judge::owners(&self.txn)
    }

    /// Whether a session has to be judged before anything is built on what its row says: a tombstone of its owner was not applied yet, or
    /// it could not be judged.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn is_to_judge(&self, session: SessionId) -> Result<bool, StoreError> {
        to_judge::may_concern(&self.txn, session)
    }

    /// All owners that a capability or tombstone is held of.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn owners(&self) -> Result<Vec<(Principal, OwnerDigest)>, StoreError> {
        control::owners(&self.txn)
    }
}
