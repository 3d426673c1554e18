//! Collecting the CAR of another program: any order, any number of roots, blocks that stand twice.

use std::collections::BTreeMap;

use super::{CarEvent, CarReader, CidForms};
use crate::block::{Block, Decoded};
use crate::code::{Code, Reject};
use crate::codec;
use crate::control::Control;
use crate::entry::Entry;
use crate::id::{Cid, Codec};

/// How much a collected CAR may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectLimits {
    /// Distinct blocks.
    pub blocks_max: usize,
    /// Bytes of distinct blocks.
    pub bytes_max: usize,
}

/// All that a CAR holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarContent {
    /// Its roots, as its header lists them.
    pub roots: Vec<Cid>,
    /// Its blocks, each once.
    pub blocks: BTreeMap<Cid, Block>,
}

/// The session blobs of a collected CAR. None was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionBlobs {
    /// Entries, of whatever sessions.
    pub entries: Vec<Decoded<Entry>>,
    /// Capabilities, tombstones and Refs.
    pub control: Vec<Decoded<Control>>,
    /// Payloads, files and all that is neither.
    pub others: BTreeMap<Cid, Block>,
}

impl CarContent {
    /// Sorts the blocks into session blobs and others. What calls itself a session blob and is not one in form counts
    /// among the others: a stranger's file is no reason to refuse the rest.
    #[must_use]
    pub fn session_blobs(self) -> SessionBlobs {
        let mut sorted = SessionBlobs::default();
        for (cid, block) in self.blocks {
            let word = if cid.codec() == Codec::DagCbor {
                codec::type_word(block.bytes()).ok().flatten()
            } else {
                None
            };
            match word.as_deref() {
                Some("Capability" | "CapabilityTombstone" | "Ref") => {
                    if let Ok(control) = Decoded::decode(block.bytes().clone()) {
                        sorted.control.push(control);
                        continue;
                    }
                }
                Some(word) if word.starts_with("Session") => {
                    if let Ok(entry) = Decoded::decode(block.bytes().clone()) {
                        sorted.entries.push(entry);
                        continue;
                    }
                }
                _ => {}
            }
            sorted.others.insert(cid, block);
        }
        sorted
    }
}

/// Reads a whole CAR into memory, whatever the order of its blocks. A block that stands twice counts once.
///
/// # Errors
/// As [`CarReader::next`] and [`CarReader::finish`]; `E_BUDGET` beyond `limits`.
pub fn collect<'a>(
    chunks: impl IntoIterator<Item = &'a [u8]>,
    forms: CidForms,
    limits: CollectLimits,
) -> Result<CarContent, Reject> {
    let mut reader = CarReader::new(forms);
    let mut content = CarContent::default();
    let mut bytes = 0_usize;
    for chunk in chunks {
        reader.push(chunk);
        while let Some(event) = reader.next() {
            let block = match event? {
                CarEvent::Roots(roots) => {
                    content.roots = roots;
                    continue;
                }
                CarEvent::Block(block) => block,
            };
            if content.blocks.contains_key(&block.cid()) {
                continue;
            }
            bytes += block.bytes().len();
            if bytes > limits.bytes_max || content.blocks.len() >= limits.blocks_max {
                return Err(Reject::new(Code::Budget, "the CAR holds more than the limit"));
            }
            content.blocks.insert(block.cid(), block);
        }
    }
    reader.finish()?;
    Ok(content)
}
