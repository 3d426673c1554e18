//! Idempotency keys: the same key with the same request gives the stored answer, with another request a refusal.
//!
//! A row is written in the transaction of the change it answers for. Rows of entries stay with the session for ever, the
//! rest expire.

use throughline_protocol::id::{SessionId, UnixMillis};

use crate::error::StoreError;
use crate::rows::IdempotencyRow;
use crate::source::{Source, lookup};
use crate::tables;
use crate::writer::{Changes, Step, View};

/// What a key belongs to: the same text under two scopes is two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The node itself.
    Node,
    /// One session.
    Session(SessionId),
}

impl Scope {
    pub(crate) fn bytes(&self) -> [u8; 32] {
        match self {
            Scope::Node => [0; 32],
            Scope::Session(session) => *session.genesis().digest(),
        }
    }
}

/// A key with the request it stands for and the answer that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// What it belongs to.
    pub scope: Scope,
    /// The key.
    pub key: String,
    /// sha2-256 of the request.
    pub request: [u8; 32],
    /// The answer, opaque here.
    pub result: Vec<u8>,
    /// When it may be forgotten; none is never.
    pub expires: Option<UnixMillis>,
}

/// What a key was used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Used {
    /// Nothing.
    Never,
    /// This very request: here is its answer.
    Same(Vec<u8>),
    /// Another request.
    Other,
}

/// What a key was used for.
pub(crate) fn look(
    source: &impl Source,
    scope: &Scope,
    key: &str,
    request: &[u8; 32],
) -> Result<Used, StoreError> {
    let scope = scope.bytes();
    let row = lookup(source, tables::IDEMPOTENCY, (&scope, key), IdempotencyRow::from_bytes)?.transpose()?;
    Ok(match row {
        None => Used::Never,
        Some(row) if row.request == *request => Used::Same(row.result),
        Some(_) => Used::Other,
    })
}

/// Writes a key that was never used.
pub(crate) fn put(changes: &Changes<'_>, idempotency: &Idempotency) -> Result<(), StoreError> {
    let scope = idempotency.scope.bytes();
    let key = idempotency.key.as_str();
    let expires_ms = idempotency.expires.map_or(0, UnixMillis::get);
    let row = IdempotencyRow { request: idempotency.request, result: idempotency.result.clone(), expires_ms };
    changes.put(tables::IDEMPOTENCY, (&scope, key), row.to_bytes().as_slice())?;
    if expires_ms != 0 {
        changes.put(tables::IDEMPOTENCY_EXPIRY, (expires_ms, &scope, key), ())?;
    }
    Ok(())
}

/// Forgets keys that expired, at most `limit`; returns how many.
pub(crate) fn expire(changes: &Changes<'_>, now: UnixMillis, limit: usize) -> Result<usize, StoreError> {
    let mut over = Vec::new();
    {
        let table = changes.txn.table(tables::IDEMPOTENCY_EXPIRY)?;
        for row in table.iter()?.take(limit) {
            let row = row?.0;
            let (expires, scope, key) = row.value();
            if expires > now.get() {
                break;
            }
            over.push((expires, *scope, key.to_owned()));
        }
    }
    for (expires, scope, key) in &over {
        changes.remove(tables::IDEMPOTENCY_EXPIRY, (*expires, scope, key.as_str()))?;
        changes.remove(tables::IDEMPOTENCY, (scope, key.as_str()))?;
    }
    Ok(over.len())
}

/// Keeps the answer of a request that changed no session.
#[derive(Clone, Debug)]
pub struct PutAnswer(pub Idempotency);

impl Step for PutAnswer {
    /// The answer that stands: the stored one when the request was answered before.
    type Output = Vec<u8>;
    type Error = StoreError;
    type Plan = Option<Vec<u8>>;

    fn check(&self, view: &View<'_>) -> Result<Option<Vec<u8>>, StoreError> {
        match look(view.txn, &self.0.scope, &self.0.key, &self.0.request)? {
            Used::Never => Ok(None),
            Used::Same(result) => Ok(Some(result)),
            Used::Other => Err(StoreError::Idempotency),
        }
    }

    fn write(self, replayed: Option<Vec<u8>>, changes: &Changes<'_>) -> Result<Vec<u8>, StoreError> {
        if let Some(result) = replayed {
            return Ok(result);
        }
        put(changes, &self.0)?;
        Ok(self.0.result)
    }
}
