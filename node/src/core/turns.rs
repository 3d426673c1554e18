//! One act at a time in a session: what reads a session, decides and writes it again takes its turn.
//!
//! The store checks again what must never go wrong — the tip, the fence, the guard — but what lists show is written as the
//! act decided it. Without turns an append could put a verdict back that a judgement has just found to be another.
//! A turn is for the shortest act; nobody who has one waits for another.

use std::sync::{Mutex, MutexGuard, PoisonError};

use throughline_protocol::id::SessionId;

/// Turns that can be had at the same time. Sessions share them by their digest.
const STRIPES: usize = 64;

/// Whose turn it is, by session.
#[derive(Debug)]
pub(super) struct Turns {
    stripes: Vec<Mutex<()>>,
    importing: Mutex<()>,
}

impl Default for Turns {
    fn default() -> Self {
        Turns { stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(), importing: Mutex::new(()) }
    }
}

impl Turns {
    /// Waits for the session's turn; it is over when the guard goes.
    pub(super) fn wait(&self, session: SessionId) -> MutexGuard<'_, ()> {
        let at = usize::from(session.genesis().digest()[0]) % STRIPES;
        self.stripes[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no import runs.
    pub(super) fn wait_for_imports(&self) -> MutexGuard<'_, ()> {
        self.importing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
