//! Payload files that are durable before the operation that names them is queued: a transfer has them made while the store
//! commits what came before. They are held in flight until then, so the operation finds them there; those that nothing names
//! in the end are removed. Only what was checked becomes a file.

use throughline_protocol::verify::Prechecked;

use crate::Store;
use crate::adopt::large_payload;
use crate::error::StoreError;
use crate::files::InFlight;
use crate::health::Urgency;
use crate::queued::GiveBack;

/// Files of payloads, durable, which rows may name or not. Keep it until what names them is committed. When it is dropped, the
/// writer unlinks those that no row names; one that it cannot be told of is an orphan ([`Store::remove_orphans`]).
#[must_use]
pub struct MadeAhead {
    store: Store,
    files: Vec<InFlight>,
}

impl std::fmt::Debug for MadeAhead {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MadeAhead").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl MadeAhead {
    /// How many files.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files.len()
    }
}

impl Store {
    /// Makes files of those payloads that are to be files, above [`crate::INLINE_BYTES_MAX`], durably and in the caller's
    /// thread. Adopting the entries while the result lives writes their rows only.
    ///
    /// # Errors
    /// `E_STORE_IO` when the disk refuses, `E_STORE_READ_ONLY` when nothing is written any more. What was made until then is
    /// given back.
    pub fn make_ahead<'e>(
        &self,
        entries: impl IntoIterator<Item = &'e Prechecked>,
    ) -> Result<MadeAhead, StoreError> {
        self.inner.health.check(Urgency::Ordinary)?;
        let named = entries.into_iter().filter_map(|entry| large_payload(entry.signed(), entry.payload()));
        let mut made = MadeAhead { store: self.clone(), files: Vec::new() };
        self.inner.files.put_into(&mut made.files, named)?;
        Ok(made)
    }
}

impl Drop for MadeAhead {
    fn drop(&mut self) {
        let files = std::mem::take(&mut self.files);
        if !files.is_empty() {
            // It does not wait: a queue that is full, or closed, leaves them to whoever walks the files.
            let _ = self.store.inner.writer.try_send(Box::new(GiveBack { files }));
        }
    }
}
