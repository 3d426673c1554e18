//! Files of evidence: one for each accusation of a session, whether or not that is held.
//!
//! Here is the truth; the files under `evidence/` are copies for people. What peers may add is bounded for a session and
//! for the store, and an accusation that is held is not added twice, however it is shown.

use throughline_protocol::codec::{self, Map};
use throughline_protocol::evidence::{Accusation, Exhibit, Kind};
use throughline_protocol::id::{EntryCid, Epoch, Principal, SessionId, UnixMillis};

use crate::error::StoreError;
use crate::events::{self, Change};
use crate::payloads::size_of;
use crate::read::Reader;
use crate::rows::{Fields, bytes_value, check_hash};
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::writer::{Changes, Step, View};

/// A file of evidence that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptEvidence {
    /// What it shows.
    pub accusation: Accusation,
    /// sha2-256 of the file.
    pub id: [u8; 32],
    /// Since when the accusation is known.
    pub since: UnixMillis,
    /// When others were told; once, whatever file shows it later.
    pub told: Option<UnixMillis>,
    /// The file, as it was when it was checked.
    pub bytes: Vec<u8>,
}

/// Bytes of a principal.
const PRINCIPAL_BYTES: usize = 34;

/// Kind, epoch, signer: what there is one file of.
fn key_of(accusation: &Accusation) -> Vec<u8> {
    let kind = Kind::ALL.iter().position(|kind| *kind == accusation.kind).unwrap_or_default();
    let mut key = Vec::with_capacity(1 + 8 + PRINCIPAL_BYTES);
    key.push(u8::try_from(kind).unwrap_or(u8::MAX));
    key.extend(accusation.epoch.get().to_be_bytes());
    key.extend(accusation.signer.to_bytes());
    key
}

fn accusation_of(key: &[u8]) -> Result<Accusation, StoreError> {
    let damaged = || StoreError::corrupt("the key of an evidence row is not readable");
    let (kind, rest) = key.split_first().ok_or_else(damaged)?;
    let (epoch, signer) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    Ok(Accusation {
        kind: *Kind::ALL.get(usize::from(*kind)).ok_or_else(damaged)?,
        epoch: Epoch::new(u64::from_be_bytes(*epoch)).map_err(|_| damaged())?,
        signer: Principal::from_bytes(signer).map_err(|_| damaged())?,
    })
}

impl KeptEvidence {
    fn to_bytes(&self) -> Vec<u8> {
        let map = Map::new()
            .with("id", bytes_value(&self.id))
            .with("since", self.since)
            .with_some("told", self.told)
            .with("bytes", bytes_value(&self.bytes));
        codec::encode_map(&map)
    }

    fn from_row(key: &[u8], row: &[u8]) -> Result<Self, StoreError> {
        let fields = Fields::read(row, "evidence")?;
        let kept = KeptEvidence {
            accusation: accusation_of(key)?,
            id: fields.fixed("id")?,
            since: fields.millis("since")?,
            told: fields.maybe("told", |fields| fields.millis("told"))?,
            bytes: fields.bytes("bytes")?.to_vec(),
        };
        check_hash(EntryCid::from_digest(kept.id), &kept.bytes, "evidence")?;
        Ok(kept)
    }
}

/// What is held of one accusation, if it can be read.
type Held = Option<Result<KeptEvidence, StoreError>>;

/// What is held of one accusation. An error is one of the database, not of the row.
fn held(source: &impl Source, session: SessionId, accusation: &Accusation) -> Result<Held, StoreError> {
    let key = key_of(accusation);
    let genesis = session.genesis();
    let place = (genesis.digest(), key.as_slice());
    lookup(source, tables::EVIDENCE, place, |row| KeptEvidence::from_row(&key, row))
}

/// What is held of one accusation.
fn get(
    source: &impl Source,
    session: SessionId,
    accusation: &Accusation,
) -> Result<Option<KeptEvidence>, StoreError> {
    held(source, session, accusation)?.transpose()
}

/// All that is held of one session, ascending by accusation; each by itself, so that a damaged one hides no other.
fn list(
    source: &impl Source,
    session: SessionId,
) -> Result<Vec<Result<KeptEvidence, StoreError>>, StoreError> {
    let table = source.table(tables::EVIDENCE)?;
    let genesis = *session.genesis().digest();
    let mut found = Vec::new();
    for row in table.range((&genesis, &[][..])..)? {
        let (key, row) = row?;
        let (of, key) = key.value();
        if *of != genesis {
            break;
        }
        found.push(KeptEvidence::from_row(key, row.value()));
    }
    Ok(found)
}

/// Keys of the rows of a session that cannot be read.
fn unreadable(source: &impl Source, session: SessionId) -> Result<Vec<Vec<u8>>, StoreError> {
    let genesis = *session.genesis().digest();
    let mut found = Vec::new();
    for row in source.table(tables::EVIDENCE)?.range((&genesis, &[][..])..)? {
        let (key, row) = row?;
        let (of, key) = key.value();
        if *of != genesis {
            break;
        }
        if KeptEvidence::from_row(key, row.value()).is_err() {
            found.push(key.to_vec());
        }
    }
    Ok(found)
}

/// Lets the evidence of a session go, be it readable or not.
pub(crate) fn forget(changes: &Changes<'_>, session: SessionId) -> Result<(), StoreError> {
    let genesis = *session.genesis().digest();
    let (mut gone, mut unreadable) = (Vec::new(), 0_u64);
    for row in changes.txn.table(tables::EVIDENCE)?.range((&genesis, &[][..])..)? {
        let (key, row) = row?;
        let (of, key) = key.value();
        if *of != genesis {
            break;
        }
        let size = KeptEvidence::from_row(key, row.value()).map(|kept| size_of(&kept.bytes));
        unreadable += u64::from(size.is_err());
        gone.push((key.to_vec(), size.unwrap_or(0)));
    }
    for (key, size) in &gone {
        changes.remove(tables::EVIDENCE, (&genesis, key.as_slice()))?;
        changes.count(meta::EVIDENCE_BYTES, 0, *size)?;
    }
    if unreadable > 0 {
        // How long those were is not known.
        changes.set(meta::EVIDENCE_BYTES, count(changes.txn)?.bytes);
    }
    Ok(())
}

/// What a look at all files of evidence found.
pub(crate) struct Counted {
    /// Bytes of those that can be read.
    pub(crate) bytes: u64,
    /// Why others cannot be.
    pub(crate) damaged: Vec<(SessionId, StoreError)>,
}

/// Reads all files of evidence.
pub(crate) fn count(source: &impl Source) -> Result<Counted, StoreError> {
    let mut counted = Counted { bytes: 0, damaged: Vec::new() };
    for row in source.table(tables::EVIDENCE)?.iter()? {
        let (key, row) = row?;
        let (genesis, key) = key.value();
        match KeptEvidence::from_row(key, row.value()) {
            Ok(kept) => counted.bytes = counted.bytes.saturating_add(size_of(&kept.bytes)),
            Err(error) => {
                let session = SessionId::of_genesis(EntryCid::from_digest(*genesis));
                counted.damaged.push((session, error));
            }
        }
    }
    Ok(counted)
}

impl Reader {
    /// The evidence that is held of a session, ascending by accusation. What cannot be read is passed over, so that it hides
    /// nothing else: it is for `fsck` to tell, and evidence of the same accusation takes its place.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn evidence(&self, session: SessionId) -> Result<Vec<KeptEvidence>, StoreError> {
        Ok(list(&self.txn, session)?.into_iter().flatten().collect())
    }

    /// Accusations of a session whose file cannot be read; none for one whose key cannot be read either.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn unreadable_evidence(&self, session: SessionId) -> Result<Vec<Option<Accusation>>, StoreError> {
        Ok(unreadable(&self.txn, session)?.iter().map(|key| accusation_of(key).ok()).collect())
    }

    /// Sessions with evidence of which others were not told yet, ascending, at most `limit`. What cannot be read is passed over:
    /// it is for `fsck` to tell.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub fn sessions_with_untold_evidence(&self, limit: usize) -> Result<Vec<SessionId>, StoreError> {
        let table = self.txn.table(tables::EVIDENCE)?;
        let mut found: Vec<SessionId> = Vec::new();
        for row in table.iter()? {
            let (key, row) = row?;
            let (genesis, key) = key.value();
            let session = SessionId::of_genesis(EntryCid::from_digest(*genesis));
            let is_untold = || KeptEvidence::from_row(key, row.value()).is_ok_and(|kept| kept.told.is_none());
            if found.last() == Some(&session) || !is_untold() {
                continue;
            }
            if found.len() == limit {
                break;
            }
            found.push(session);
        }
        Ok(found)
    }
}

/// What may be kept of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvidenceLimits {
    /// Files of the whole store, in bytes.
    pub total_bytes_max: u64,
    /// Files of one session.
    pub session_files_max: usize,
}

/// What happens when another file shows the same accusation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOther {
    /// It takes its place: it is what everything held comes to.
    Replace,
    /// It stays.
    Keep,
}

/// Keeps a file of evidence.
#[derive(Clone, Debug)]
pub struct PutEvidence {
    /// The file, checked.
    pub exhibit: Exhibit,
    /// What happens to another one of the same accusation.
    pub on_other: OnOther,
    /// When.
    pub at: UnixMillis,
    /// What there is room for.
    pub limits: EvidenceLimits,
}

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The accusation is new.
    New,
    /// It was known, by another file, which this one replaced.
    Replaced,
    /// It was known; nothing changed.
    Held,
}

impl Step for PutEvidence {
    type Output = Put;
    type Error = StoreError;
    /// What it takes the place of: a file, or a row that cannot be read.
    type Plan = Held;

    fn check(&self, view: &View<'_>) -> Result<Self::Plan, StoreError> {
        let (session, accusation) = (self.exhibit.session(), self.exhibit.accusation());
        let held = held(view.txn, session, &accusation)?;
        if held.is_some() {
            return Ok(held);
        }
        let asked_bytes =
            counter(view.txn, meta::EVIDENCE_BYTES)?.saturating_add(size_of(self.exhibit.bytes()));
        let max_bytes = self.limits.total_bytes_max;
        let files = list(view.txn, session)?.len();
        if asked_bytes > max_bytes || files >= self.limits.session_files_max {
            return Err(StoreError::Quota { what: "files of evidence", asked_bytes, max_bytes });
        }
        Ok(None)
    }

    fn write(self, held: Self::Plan, changes: &Changes<'_>) -> Result<Put, StoreError> {
        let id = *self.exhibit.id().digest();
        let session = self.exhibit.session();
        let is_damaged = matches!(held, Some(Err(_)));
        let held = held.and_then(Result::ok);
        let put = match &held {
            Some(held) if held.id == id || self.on_other == OnOther::Keep => return Ok(Put::Held),
            Some(_) => Put::Replaced,
            None => Put::New,
        };
        let kept = KeptEvidence {
            accusation: self.exhibit.accusation(),
            id,
            since: held.as_ref().map_or(self.at, |held| held.since),
            told: held.as_ref().and_then(|held| held.told),
            bytes: self.exhibit.bytes().to_vec(),
        };
        let key = key_of(&kept.accusation);
        let row = kept.to_bytes();
        changes.put(tables::EVIDENCE, (session.genesis().digest(), key.as_slice()), row.as_slice())?;
        let gone = held.map_or(0, |held| size_of(&held.bytes));
        if is_damaged {
            // How long that was is not known.
            changes.set(meta::EVIDENCE_BYTES, count(changes.txn)?.bytes);
        } else {
            changes.count(meta::EVIDENCE_BYTES, size_of(&kept.bytes), gone)?;
        }
        if put == Put::New {
            let kind = kept.accusation.kind.word().to_owned();
            events::write(changes, self.at, &Change::Evidence { session, kind, id })?;
        }
        Ok(put)
    }
}

/// Notes that others were told of an accusation: it is not told again.
#[derive(Clone, Debug)]
pub struct MarkTold {
    /// The session.
    pub session: SessionId,
    /// What was told.
    pub accusation: Accusation,
    /// When.
    pub at: UnixMillis,
}

impl Step for MarkTold {
    type Output = ();
    type Error = StoreError;
    type Plan = Option<KeptEvidence>;

    fn check(&self, view: &View<'_>) -> Result<Self::Plan, StoreError> {
        Ok(get(view.txn, self.session, &self.accusation)?.filter(|kept| kept.told.is_none()))
    }

    fn write(self, held: Self::Plan, changes: &Changes<'_>) -> Result<(), StoreError> {
        let Some(held) = held else { return Ok(()) };
        let key = key_of(&held.accusation);
        let row = KeptEvidence { told: Some(self.at), ..held }.to_bytes();
        changes.put(tables::EVIDENCE, (self.session.genesis().digest(), key.as_slice()), row.as_slice())
    }
}

/// Lets evidence go that turned out to show nothing: an anchor that came late keeps what was cut.
#[derive(Clone, Debug)]
pub struct DropEvidence {
    /// The session.
    pub session: SessionId,
    /// What nobody is accused of any more.
    pub accusation: Accusation,
}

impl Step for DropEvidence {
    type Output = ();
    type Error = StoreError;
    type Plan = Option<KeptEvidence>;

    fn check(&self, view: &View<'_>) -> Result<Self::Plan, StoreError> {
        get(view.txn, self.session, &self.accusation)
    }

    fn write(self, held: Self::Plan, changes: &Changes<'_>) -> Result<(), StoreError> {
        let Some(held) = held else { return Ok(()) };
        let key = key_of(&held.accusation);
        changes.remove(tables::EVIDENCE, (self.session.genesis().digest(), key.as_slice()))?;
        changes.count(meta::EVIDENCE_BYTES, 0, size_of(&held.bytes))?;
        Ok(())
    }
}

/// Lets the rows of a session go that cannot be read: what could be made again of them was.
#[derive(Clone, Copy, Debug)]
pub struct DropUnreadableEvidence {
    /// The session.
    pub session: SessionId,
}

impl Step for DropUnreadableEvidence {
    /// What nothing shows any more; none for a row whose key cannot be read either.
    type Output = Vec<Option<Accusation>>;
    type Error = StoreError;
    /// Their keys.
    type Plan = Vec<Vec<u8>>;

    fn check(&self, view: &View<'_>) -> Result<Self::Plan, StoreError> {
        unreadable(view.txn, self.session)
    }

    fn write(self, keys: Self::Plan, changes: &Changes<'_>) -> Result<Self::Output, StoreError> {
        for key in &keys {
            changes.remove(tables::EVIDENCE, (self.session.genesis().digest(), key.as_slice()))?;
        }
        if !keys.is_empty() {
            // How long those were is not known.
            changes.set(meta::EVIDENCE_BYTES, count(changes.txn)?.bytes);
        }
        Ok(keys.iter().map(|key| accusation_of(key).ok()).collect())
    }
}

#[cfg(test)]
#[path = "evidence_tests.rs"]
mod tests;
