//! Writing the CAR of one session; the order is that of [`super::session`].

use std::collections::{BTreeMap, BTreeSet};

use super::session::ControlKind;
use super::{write_block, write_header};
use crate::block::Block;
use crate::control::Control;
use crate::id::{Cid, EntryCid};

/// An entry with what stands after it.
#[derive(Clone, Copy, Debug)]
pub struct EntryBlocks<'a> {
    /// The signed entry.
    pub entry: &'a [u8],
    /// Its payload, when taken along.
    pub payload: Option<&'a [u8]>,
    /// The config block that it names, whether or not one before names it too.
    pub config: Option<&'a [u8]>,
    /// Blocks of the files that its payload names, roots before their children.
    pub files: &'a [Block],
}

/// Writes a session's CAR, in order and without a block that stands twice. Bytes are appended to a buffer that the caller
/// may empty between calls.
///
/// What can be no file is left out (R-FI-4). Payloads and configs come from a caller that read them as such: an entry that is named as
/// one stands in its own place.
///
/// Memory: the hashes of payloads, configs and files, since an exact answer to "was it written" needs them. Hashes and not CIDs: a
/// store has one block for a hash, whichever codecs name it.
#[derive(Debug, Default)]
pub struct SessionWriter {
    written: BTreeSet<[u8; 32]>,
}

impl SessionWriter {
    /// Writes header, genesis and control blobs, and goes on with [`SessionWriter::entry`], oldest first, up to `head`.
    pub fn begin<'a>(
        out: &mut Vec<u8>,
        head: EntryCid,
        genesis: &EntryBlocks<'_>,
        control: impl IntoIterator<Item = (&'a Control, &'a [u8])>,
    ) -> Self {
        let mut writer = SessionWriter::default();
        write_header(out, &[head.cid()]);
        writer.entry(out, genesis);
        writer.control(out, control);
        writer
    }

    /// Writes an entry and what follows it.
    pub fn entry(&mut self, out: &mut Vec<u8>, blocks: &EntryBlocks<'_>) {
        write_block(out, &EntryCid::of(blocks.entry).cid(), blocks.entry);
        for bytes in [blocks.payload, blocks.config].into_iter().flatten() {
            self.payload(out, bytes);
        }
        blocks.files.iter().for_each(|file| self.file(out, file));
    }

    /// Writes a block of a file that the payload of the last entry names, unless it was written before: for callers that
    /// do not hold all of [`EntryBlocks::files`] at a time.
    pub fn file(&mut self, out: &mut Vec<u8>, block: &Block) {
        if block.cid().is_file() {
            self.once(out, block.cid(), block.bytes());
        }
    }

    /// Writes a payload or config block, unless it was written before.
    pub fn payload(&mut self, out: &mut Vec<u8>, bytes: &[u8]) {
        self.once(out, EntryCid::of(bytes).cid(), bytes);
    }

    fn control<'a>(&mut self, out: &mut Vec<u8>, control: impl IntoIterator<Item = (&'a Control, &'a [u8])>) {
        let sorted: BTreeMap<(ControlKind, Cid), &[u8]> = control
            .into_iter()
            .map(|(value, bytes)| ((ControlKind::of(value), EntryCid::of(bytes).cid()), bytes))
            .collect();
        for ((_, cid), bytes) in sorted {
            self.once(out, cid, bytes);
        }
    }

    fn once(&mut self, out: &mut Vec<u8>, cid: Cid, bytes: &[u8]) {
        if self.written.insert(*cid.digest()) {
            write_block(out, &cid, bytes);
        }
    }
}
