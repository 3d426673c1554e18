//! Files as blocks: UnixFS v1 over dag-pb, in the balanced layout of Kubo and Seed. `docs/PROTOCOL.md`
//! §Announcements, tickets, files;
//! <https://specs.ipfs.tech/unixfs/>, <https://ipld.io/specs/codecs/dag-pb/spec/>.
//!
//! Writing: a small file is one raw block; a larger one is cut into raw leaves, and nodes of up to 174 links stand above
//! them, level by level, all leaves at one depth. [`FileBuilder`] holds one chunk and one open node a level.
//!
//! Reading: [`FileReader`] asks for one block after the other and gives back the file's bytes in order. Every size that a
//! node declares must fit the one above it, and no part may be empty, so a hostile graph costs at most the declared size
//! of the file, which the caller limits. It follows files only: no directories, links, shards or metadata.

mod build;
mod dagpb;
mod read;

use crate::code::Reject;
use crate::id::{Cid, Codec};
use crate::limits;

pub use build::{BuiltFile, FileBuilder};
pub use read::{FileReader, Step};

/// How files become blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    single_block_bytes_max: usize,
    chunk_bytes: usize,
    links_max: usize,
}

impl Layout {
    /// Ours: up to 1 MiB one raw block, above that chunks of 256 KiB.
    pub const THROUGHLINE: Layout = Layout {
        single_block_bytes_max: limits::FILE_SINGLE_BLOCK_BYTES_MAX,
        chunk_bytes: limits::FILE_CHUNK_BYTES,
        links_max: limits::FILE_LINKS_MAX,
    };

    /// That of Kubo (`ipfs add --cid-version 1`) and of Seed: chunks of 256 KiB, one chunk is one raw block.
    pub const KUBO: Layout = Layout {
        single_block_bytes_max: limits::FILE_CHUNK_BYTES,
        chunk_bytes: limits::FILE_CHUNK_BYTES,
        links_max: limits::FILE_LINKS_MAX,
    };
}

/// The links of a dag-pb node, in order.
///
/// # Errors
/// `E_SCHEMA_TYPE` for bytes that are no dag-pb node; an `E_CID…` code for a link of a form not taken.
pub fn links(node: &[u8]) -> Result<Vec<Cid>, Reject> {
    Ok(dagpb::Node::decode(node)?.links.into_iter().map(|link| link.cid).collect())
}

/// The parts of a file's block: what a dag-pb node links, as far as that can be a file. A raw block and what cannot be read as a
/// node have none.
#[must_use]
pub fn parts(cid: &Cid, block: &[u8]) -> Vec<Cid> {
    let is_node = cid.codec() == Codec::DagPb;
    let linked = if is_node { links(block).unwrap_or_default() } else { Vec::new() };
    linked.into_iter().filter(Cid::is_file).collect()
}

/// The length in bytes of the file whose root this dag-pb node is, as the node says it. Only a whole read shows that it is so.
///
/// # Errors
/// `E_SCHEMA_TYPE` for bytes that are no dag-pb node of a file; an `E_CID…` code for a link of a form not taken.
pub fn file_bytes(node: &[u8]) -> Result<u64, Reject> {
    Ok(dagpb::FileData::decode(dagpb::Node::decode(node)?.data)?.file_bytes)
}

#[cfg(test)]
#[path = "unixfs/unixfs_tests.rs"]
mod tests;
