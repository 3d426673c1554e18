//! Cutting a file into blocks.

use super::Layout;
use super::dagpb::{FileData, Link, Node};
use crate::block::Block;
use crate::id::{Cid, Codec};

/// A file that was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltFile {
    /// The CID that names the file.
    pub root: Cid,
    /// The file's size, in bytes.
    pub size: u64,
}

/// Builds a file's blocks from its bytes, as they come.
#[derive(Debug)]
pub struct FileBuilder {
    layout: Layout,
    /// Bytes that are in no block yet.
    pending: Vec<u8>,
    /// Whether the file was found to be larger than one block.
    is_chunked: bool,
    size: u64,
    /// The open node of each level, leaves' parents first.
    levels: Vec<Vec<Part>>,
}

/// A finished part of the file.
#[derive(Clone, Copy, Debug)]
struct Part {
    cid: Cid,
    file_bytes: u64,
    /// Bytes of all its blocks.
    total_bytes: u64,
}

impl FileBuilder {
    /// A builder of an empty file.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        FileBuilder { layout, pending: Vec::new(), is_chunked: false, size: 0, levels: Vec::new() }
    }

    /// Takes the next bytes; returns the blocks that are finished, children before parents.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Block> {
        let mut blocks = Vec::new();
        self.size += bytes.len() as u64;
        let mut rest = bytes;
        // In steps, so that no more than one small file's worth of bytes is pending.
        while !rest.is_empty() {
            let step = rest.len().min(self.layout.chunk_bytes);
            let (now, later) = rest.split_at(step);
            self.pending.extend_from_slice(now);
            rest = later;
            self.is_chunked |= self.pending.len() > self.layout.single_block_bytes_max;
            if self.is_chunked {
                self.cut(&mut blocks);
            }
        }
        blocks
    }

    /// Says that the file ends here; returns the last blocks and what names the file.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Block>, BuiltFile) {
        let mut blocks = Vec::new();
        let size = self.size;
        if !self.is_chunked {
            let block = Block::of(Codec::Raw, std::mem::take(&mut self.pending));
            let root = block.cid();
            return (vec![block], BuiltFile { root, size });
        }
        if !self.pending.is_empty() {
            let last = std::mem::take(&mut self.pending);
            self.leaf(&mut blocks, &last);
        }
        // Each level's last node, however few its links, goes to the level above: all leaves have one depth.
        let mut level = 0;
        let root = loop {
            let parts = std::mem::take(&mut self.levels[level]);
            let node = close(&mut blocks, &parts);
            level += 1;
            match self.levels.get_mut(level) {
                Some(above) if above.len() < self.layout.links_max => above.push(node),
                Some(_) => self.add(&mut blocks, level, node),
                None => break node.cid,
            }
        };
        (blocks, BuiltFile { root, size })
    }

    /// Makes leaves of all pending bytes but the last, which may be the file's shorter end.
    fn cut(&mut self, blocks: &mut Vec<Block>) {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        while rest.len() > self.layout.chunk_bytes {
            let (chunk, later) = rest.split_at(self.layout.chunk_bytes);
            self.leaf(blocks, chunk);
            rest = later;
        }
        self.pending = rest.to_vec();
    }

    fn leaf(&mut self, blocks: &mut Vec<Block>, bytes: &[u8]) {
        let block = Block::of(Codec::Raw, bytes);
        let size = bytes.len() as u64;
        let part = Part { cid: block.cid(), file_bytes: size, total_bytes: size };
        blocks.push(block);
        self.add(blocks, 0, part);
    }

    /// Puts a part on a level. A full node is closed when the next part comes, not before: a file that just fills a node
    /// has no node above it.
    fn add(&mut self, blocks: &mut Vec<Block>, mut level: usize, part: Part) {
        let mut part = part;
        loop {
            if self.levels.len() == level {
                self.levels.push(Vec::new());
            }
            let open = &mut self.levels[level];
            if open.len() < self.layout.links_max {
                open.push(part);
                return;
            }
            let full = std::mem::replace(open, vec![part]);
            part = close(blocks, &full);
            level += 1;
        }
    }
}

/// Makes a node above `parts`.
fn close(blocks: &mut Vec<Block>, parts: &[Part]) -> Part {
    let file_bytes = parts.iter().map(|part| part.file_bytes).sum();
    let block_bytes = parts.iter().map(|part| part.file_bytes).collect();
    let data = FileData { inline: &[], file_bytes, block_bytes }.encode();
    let links = parts.iter().map(|part| Link { cid: part.cid, total_bytes: part.total_bytes }).collect();
    let block = Block::of(Codec::DagPb, Node { links, data: &data }.encode());
    let below: u64 = parts.iter().map(|part| part.total_bytes).sum();
    let part = Part { cid: block.cid(), file_bytes, total_bytes: below + block.bytes().len() as u64 };
    blocks.push(block);
    part
}
