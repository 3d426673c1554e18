//! Staging: blocks that passed their hash and are not adopted yet, with a quota and an expiry. Never served.

use throughline_protocol::block::Block;
use throughline_protocol::id::{EntryCid, HashKind, SessionId, UnixMillis};

use crate::error::StoreError;
use crate::payloads::size_of;
use crate::source::{Source, counter, lookup};
use crate::tables::{self, meta};
use crate::writer::{Changes, Step, View};

/// How much staging may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingQuota {
    /// Of one session, in bytes.
    pub session_bytes_max: u64,
    /// In all, in bytes.
    pub total_bytes_max: u64,
}

/// Stages blocks of a session that is being fetched; all or none.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The session.
    pub session: SessionId,
    /// sha2-256 blocks.
    pub blocks: Vec<Block>,
    /// All of the session's staged blocks go then, unless more are staged.
    pub expires: UnixMillis,
    /// The limits.
    pub quota: StagingQuota,
}

/// What is to be written: blocks that are new, and the session's bytes after it.
#[doc(hidden)]
#[derive(Debug)]
pub struct StagePlan {
    new: Vec<Block>,
    added_bytes: u64,
    session_bytes: u64,
}

impl Step for Stage {
    /// Bytes that the session has staged now.
    type Output = u64;
    type Error = StoreError;
    type Plan = StagePlan;

    fn check(&self, view: &View<'_>) -> Result<StagePlan, StoreError> {
        let scope = self.session.genesis();
        let (mut new, mut added_bytes) = (Vec::<Block>::new(), 0_u64);
        for block in &self.blocks {
            if block.cid().hash_kind() != HashKind::Sha256 {
                return Err(StoreError::Refused(throughline_protocol::code::Code::CidHash.into()));
            }
            let digest = *block.cid().digest();
            let held = lookup(view.txn, tables::STAGED, (scope.digest(), &digest), |_| ())?.is_some();
            if !held && !new.iter().any(|other| *other.cid().digest() == digest) {
                added_bytes = added_bytes.saturating_add(size_of(block.bytes()));
                new.push(block.clone());
            }
        }
        let held = lookup(view.txn, tables::STAGING_SCOPES, scope.digest(), |(bytes, _)| bytes)?.unwrap_or(0);
        let session_bytes = held.saturating_add(added_bytes);
        let total_bytes = counter(view.txn, meta::STAGING_BYTES)?.saturating_add(added_bytes);
        for (what, asked_bytes, max_bytes) in [
            ("the session's staging area", session_bytes, self.quota.session_bytes_max),
            ("the staging area", total_bytes, self.quota.total_bytes_max),
        ] {
            if asked_bytes > max_bytes {
                return Err(StoreError::Quota { what, asked_bytes, max_bytes });
            }
        }
        Ok(StagePlan { new, added_bytes, session_bytes })
    }

    fn write(self, plan: StagePlan, changes: &Changes<'_>) -> Result<u64, StoreError> {
        let scope = self.session.genesis();
        for block in &plan.new {
            changes.put(tables::STAGED, (scope.digest(), block.cid().digest()), &block.bytes()[..])?;
        }
        let row = (plan.session_bytes, self.expires.get());
        changes.put(tables::STAGING_SCOPES, scope.digest(), row)?;
        changes.count(meta::STAGING_BYTES, plan.added_bytes, 0)?;
        Ok(plan.session_bytes)
    }
}

/// Drops what a session has staged: it was adopted, or given up.
#[derive(Clone, Copy, Debug)]
pub struct Unstage {
    /// The session.
    pub session: SessionId,
}

impl Step for Unstage {
    /// How many bytes were freed.
    type Output = u64;
    type Error = StoreError;
    type Plan = ();

    fn check(&self, _view: &View<'_>) -> Result<(), StoreError> {
        Ok(())
    }

    fn write(self, (): (), changes: &Changes<'_>) -> Result<u64, StoreError> {
        clear(changes, self.session.genesis().digest())
    }
}

/// Removes one scope; returns the bytes it freed.
pub(crate) fn clear(changes: &Changes<'_>, scope: &[u8; 32]) -> Result<u64, StoreError> {
    let Some(bytes) = lookup(changes.txn, tables::STAGING_SCOPES, scope, |(bytes, _)| bytes)? else {
        return Ok(0);
    };
    changes.remove(tables::STAGING_SCOPES, scope)?;
    let staged: Vec<[u8; 32]> = {
        let table = changes.txn.table(tables::STAGED)?;
        let rows = table.range((scope, &[0; 32])..=(scope, &[0xff; 32]))?;
        rows.map(|row| Ok(*row?.0.value().1)).collect::<Result<_, StoreError>>()?
    };
    for digest in &staged {
        changes.remove(tables::STAGED, (scope, digest))?;
    }
    changes.count(meta::STAGING_BYTES, 0, bytes)?;
    Ok(bytes)
}

/// Removes scopes that expired, at most `limit`; returns how many.
pub(crate) fn expire(changes: &Changes<'_>, now: UnixMillis, limit: usize) -> Result<usize, StoreError> {
    let mut over = Vec::new();
    {
        let table = changes.txn.table(tables::STAGING_SCOPES)?;
        for row in table.iter()? {
            let (scope, row) = row?;
            if row.value().1 <= now.get() && over.len() < limit {
                over.push(*scope.value());
            }
        }
    }
    for scope in &over {
        clear(changes, scope)?;
    }
    Ok(over.len())
}

/// A staged block, hashed.
pub(crate) fn read(
    source: &impl Source,
    session: SessionId,
    digest: &[u8; 32],
) -> Result<Option<Vec<u8>>, StoreError> {
    let scope = session.genesis();
    let bytes = lookup(source, tables::STAGED, (scope.digest(), digest), <[u8]>::to_vec)?;
    if let Some(bytes) = &bytes {
        crate::rows::check_hash(EntryCid::from_digest(*digest), bytes, "staged block")?;
    }
    Ok(bytes)
}

/// Digests of a session's staged blocks after `after`, at most `limit`, ascending.
pub(crate) fn list(
    source: &impl Source,
    session: SessionId,
    after: Option<[u8; 32]>,
    limit: usize,
) -> Result<Vec<[u8; 32]>, StoreError> {
    let scope = session.genesis();
    let table = source.table(tables::STAGED)?;
    let from = after.unwrap_or([0; 32]);
    let rows = table.range((scope.digest(), &from)..=(scope.digest(), &[0xff; 32]))?;
    rows.map(|row| Ok(*row?.0.value().1))
        .filter(|digest| !digest.as_ref().is_ok_and(|digest: &[u8; 32]| Some(*digest) == after))
        .take(limit)
        .collect()
}
