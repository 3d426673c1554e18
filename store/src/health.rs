//! Whether the store takes writes. A failed write or fsync ends that for this process: what the disk holds after one is known
//! again only when it is opened anew (a second fsync may say yes to pages that the first one lost).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::StoreError;

/// Whether the store takes writes, and the failure that ended it.
#[derive(Debug, Default)]
pub(crate) struct Health {
    failed: AtomicBool,
    why: Mutex<String>,
}

impl Health {
    /// The refusal, if writes are over.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if self.failed.load(Ordering::Acquire) { Err(self.refusal()) } else { Ok(()) }
    }

    /// The refusal, once writes are over.
    pub(crate) fn refusal(&self) -> StoreError {
        StoreError::ReadOnly { why: self.why.lock().unwrap_or_else(PoisonError::into_inner).clone() }
    }

    /// Ends writing; the first failure is the one that is told.
    pub(crate) fn fail(&self, error: &StoreError) {
        let mut why = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.failed.load(Ordering::Acquire) {
            *why = error.to_string();
            self.failed.store(true, Ordering::Release);
        }
    }
}
