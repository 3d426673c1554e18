//! Files of large payloads, made durable while the groups before theirs are adopted.
//!
//! Only payloads of entries that were checked and stand in their place are made into files, a batch at a time on a thread of its
//! own. The store bounds how many are open at once, over all transfers; the room of the frames bounds how many bytes wait.

use std::thread::{Builder, JoinHandle};

use throughline_protocol::code::Code;
use throughline_protocol::verify::Prechecked;
use throughline_store::{INLINE_BYTES_MAX, MadeAhead, Store, StoreError};

use crate::api::error::{Answer, Problem};

/// Bytes of payloads that become files together: enough that they share the writes of a sync, and two batches to a group, so
/// that one is written while the other is synced.
const BATCH_BYTES: u64 = 2 << 20;

/// Files that are being made, and entries whose payloads are to be.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    noted: Vec<Prechecked>,
    /// Of their payloads.
    bytes: u64,
    making: Vec<JoinHandle<Result<MadeAhead, StoreError>>>,
}

impl Ahead {
    /// Notes an entry if its payload becomes a file.
    pub(super) fn note(&mut self, entry: &Prechecked) {
        let large = entry.payload().map(|payload| payload.len()).filter(|length| *length > INLINE_BYTES_MAX);
        if let Some(length) = large {
            self.bytes += length as u64;
            self.noted.push(entry.clone());
        }
    }

    /// Whether there is enough for a batch, of a group that has `group_bytes` at most.
    pub(super) fn is_batch(&self, group_bytes: u64) -> bool {
        self.bytes >= BATCH_BYTES.min(group_bytes / 2).max(1)
    }

    /// Begins to make files of what was noted.
    pub(super) fn begin(&mut self, store: &Store) {
        let noted = std::mem::take(&mut self.noted);
        self.bytes = 0;
        if noted.is_empty() {
            return;
        }
        let store = store.clone();
        let making = Builder::new().name("payload-files".to_owned()).spawn(move || store.make_ahead(&noted));
        // Without a thread it is left to the adoption, which makes what is not there.
        self.making.extend(making);
    }

    /// Leaves what was noted to the adoption.
    pub(super) fn leave(&mut self) {
        self.noted.clear();
        self.bytes = 0;
    }

    /// Waits for the files; those are kept as long as what comes back.
    ///
    /// # Errors
    /// When the disk refused one.
    pub(super) fn made(mut self) -> Answer<Vec<MadeAhead>> {
        // All are waited for, also after a failure: what the others made is given back then.
        let made: Vec<_> = self.making.drain(..).map(joined).collect();
        made.into_iter().collect()
    }
}

/// A thread panicked or was taken away.
pub(super) fn lost() -> Problem {
    Problem::new(Code::Internal, "a task of the node ended early")
}

fn joined(making: JoinHandle<Result<MadeAhead, StoreError>>) -> Answer<MadeAhead> {
    Ok(making.join().map_err(|_| lost())??)
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // Nothing goes on behind the back of a transfer that ended.
        for making in self.making.drain(..) {
            // What was made is given back; a failure was of what nobody waits for.
            drop(making.join());
        }
    }
}
