//! Reading a file back from its blocks, in order.

use std::ops::Range;
use std::sync::Arc;

use super::dagpb::{FileData, Node};
use crate::block::Block;
use crate::code::{Code, Reject};
use crate::id::{Cid, Codec};
use crate::limits::FILE_DEPTH_MAX;

/// A file being read. Fetch the block that [`FileReader::wanted`] names, give it to [`FileReader::supply`], until nothing
/// is wanted.
#[derive(Debug)]
pub struct FileReader {
    /// What is still to be read, the next part last. Children stand above their parent's siblings.
    pending: Vec<Pending>,
    bytes_max: u64,
    bytes_read: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    cid: Cid,
    /// What the node above says; none for the root.
    file_bytes: Option<u64>,
    depth: usize,
}

/// What a block of a file gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A node: nothing to write yet.
    Node,
    /// The next bytes of the file.
    Bytes(FileBytes),
}

/// Bytes of a file, within their block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileBytes {
    block: Arc<[u8]>,
    range: Range<usize>,
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        &self.block[self.range.clone()]
    }
}

impl FileReader {
    /// A reader of the file that `root` names, which may be at most `bytes_max` long.
    #[must_use]
    pub fn new(root: Cid, bytes_max: u64) -> Self {
        let root = Pending { cid: root, file_bytes: None, depth: 1 };
        FileReader { pending: vec![root], bytes_max, bytes_read: 0 }
    }

    /// The block to supply next; none when the file is complete.
    #[must_use]
    pub fn wanted(&self) -> Option<Cid> {
        self.pending.last().map(|part| part.cid)
    }

    /// How much of the file was read, in bytes.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Takes the wanted block.
    ///
    /// # Errors
    /// `E_CID_MISMATCH` for another block than the wanted one, which is then still wanted; `E_TOO_BIG` for a file above
    /// the limit; `E_TYPE` for what is no file; `E_SCHEMA_TYPE` for a malformed node; `E_SCHEMA_LEN` for sizes that do not
    /// add up; `E_CBOR_DEPTH` for nodes below nodes beyond [`FILE_DEPTH_MAX`]; an `E_CID…` code for a link.
    pub fn supply(&mut self, block: &Block) -> Result<Step, Reject> {
        let Some(part) = self.pending.last().copied().filter(|part| part.cid == block.cid()) else {
            return Err(Reject::new(Code::CidMismatch, format!("{} is not wanted", block.cid().short())));
        };
        match part.cid.codec() {
            Codec::Raw => self.leaf(part, block, 0..block.bytes().len()),
            Codec::DagPb => self.node(part, block),
            Codec::DagCbor => Err(Reject::new(Code::Type, "expected a file, got a dag-cbor block")),
        }
    }

    fn leaf(&mut self, part: Pending, block: &Block, range: Range<usize>) -> Result<Step, Reject> {
        let size = range.len() as u64;
        self.check_size(part, size)?;
        self.bytes_read += size;
        self.pending.pop();
        Ok(Step::Bytes(FileBytes { block: Arc::clone(block.bytes()), range }))
    }

    fn node(&mut self, part: Pending, block: &Block) -> Result<Step, Reject> {
        let node = Node::decode(block.bytes())?;
        let data = FileData::decode(node.data)?;
        if node.links.len() != data.block_bytes.len() {
            let what = format!("{} links but {} block sizes", node.links.len(), data.block_bytes.len());
            return Err(Reject::new(Code::SchemaLen, what));
        }
        if node.links.is_empty() {
            if data.file_bytes != data.inline.len() as u64 {
                return Err(Reject::new(Code::SchemaLen, "a leaf declares another size than it has"));
            }
            let start = data.inline.as_ptr().addr().saturating_sub(block.bytes().as_ptr().addr());
            // Without inline bytes the slice may point anywhere.
            let range = if data.inline.is_empty() { 0..0 } else { start..start + data.inline.len() };
            return self.leaf(part, block, range);
        }
        if !data.inline.is_empty() {
            return Err(Reject::new(Code::SchemaType, "a node with both links and bytes"));
        }
        self.check_size(part, data.file_bytes)?;
        if part.depth >= FILE_DEPTH_MAX {
            return Err(Reject::new(Code::CborDepth, format!("nested deeper than {FILE_DEPTH_MAX} levels")));
        }
        check_sum(&data)?;
        self.pending.pop();
        let children = node.links.iter().zip(&data.block_bytes).rev();
        self.pending.extend(children.map(|(link, bytes)| Pending {
            cid: link.cid,
            file_bytes: Some(*bytes),
            depth: part.depth + 1,
        }));
        Ok(Step::Node)
    }

    /// The size is what the node above says, and the root's is within the limit.
    fn check_size(&self, part: Pending, size: u64) -> Result<(), Reject> {
        match part.file_bytes {
            Some(expected) if expected != size => {
                Err(Reject::new(Code::SchemaLen, format!("expected a part of {expected} bytes, got {size}")))
            }
            None if size > self.bytes_max => {
                let what = format!("expected a file of at most {} bytes, got {size}", self.bytes_max);
                Err(Reject::new(Code::TooBig, what))
            }
            _ => Ok(()),
        }
    }
}

/// The parts are not empty and add up to the whole: what bounds a walk by the file's size.
fn check_sum(data: &FileData<'_>) -> Result<(), Reject> {
    let sum = data.block_bytes.iter().try_fold(0_u64, |sum, bytes| match bytes {
        0 => None,
        bytes => sum.checked_add(*bytes),
    });
    if sum == Some(data.file_bytes) {
        return Ok(());
    }
    Err(Reject::new(Code::SchemaLen, "the parts of a file are empty or do not add up to it"))
}
