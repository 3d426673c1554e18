//! Files: streamed to disk, one raw block up to 1 MiB, UnixFS above.

use sha2::{Digest as _, Sha256};
use throughline_protocol::block::Block;
use throughline_protocol::code::Code;
use throughline_protocol::id::{Cid, Codec, UnixMillis};
use throughline_protocol::limits;
use throughline_protocol::unixfs::{FileBuilder, FileReader, Layout, Step};
use throughline_store::{PutBlock, Reader, Stored};

use super::{Node, now};
use crate::api::error::{Answer, Problem};

/// How long a file stays that no entry links.
pub const LEASE_MS: u64 = 24 * 60 * 60 * 1000;

/// A file that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlob {
    /// Its CID: raw, or the root of its UnixFS tree.
    pub cid: Cid,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Blocks that it consists of.
    pub blocks: u64,
    /// Whether its last block was new.
    pub stored: Stored,
    /// sha-256 of the file's bytes.
    pub sha256: [u8; 32],
}

/// A file on its way in; holds one chunk in memory.
pub struct Incoming {
    node: Node,
    builder: FileBuilder,
    hasher: Sha256,
    size_bytes: u64,
    blocks: u64,
    stored: Stored,
}

impl Node {
    /// Begins a file.
    #[must_use]
    pub fn begin_file(&self) -> Incoming {
        Incoming {
            node: self.clone(),
            builder: FileBuilder::new(Layout::THROUGHLINE),
            hasher: Sha256::new(),
            size_bytes: 0,
            blocks: 0,
            stored: Stored::Held,
        }
    }

    /// Stores a whole file.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn put_file(&self, bytes: &[u8]) -> Answer<StoredBlob> {
        let mut incoming = self.begin_file();
        for chunk in bytes.chunks(limits::FILE_CHUNK_BYTES) {
            incoming.push(chunk)?;
        }
        incoming.finish()
    }
}

impl Incoming {
    /// Takes the next bytes.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn push(&mut self, bytes: &[u8]) -> Answer<()> {
        self.hasher.update(bytes);
        self.size_bytes += bytes.len() as u64;
        let blocks = self.builder.push(bytes);
        self.store(blocks)
    }

    /// Ends the file.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn finish(mut self) -> Answer<StoredBlob> {
        let builder = std::mem::replace(&mut self.builder, FileBuilder::new(Layout::THROUGHLINE));
        let (blocks, built) = builder.finish();
        self.store(blocks)?;
        Ok(StoredBlob {
            cid: built.root,
            size_bytes: self.size_bytes,
            blocks: self.blocks,
            stored: self.stored,
            sha256: self.hasher.finalize().into(),
        })
    }

    fn store(&mut self, blocks: Vec<Block>) -> Answer<()> {
        let at = now();
        let until = UnixMillis::new(at.get() + LEASE_MS).unwrap_or(at);
        for block in blocks {
            self.blocks += 1;
            self.stored = self.node.store().run(PutBlock::bytes(block, at, until))?;
        }
        Ok(())
    }
}

/// Reads a file block by block, each hashed, giving the file's bytes in order.
pub struct Outgoing {
    reader: Reader,
    source: Source,
}

enum Source {
    One(Option<Vec<u8>>),
    Tree(Box<FileReader>),
}

impl Outgoing {
    /// Opens a file or block; none when it is not held.
    ///
    /// # Errors
    /// `E_STORE_CORRUPT` when the held bytes are damaged.
    pub fn open(reader: Reader, cid: Cid) -> Answer<Option<Self>> {
        let Some(bytes) = reader.block(&cid)? else { return Ok(None) };
        let source = match cid.codec() {
            Codec::DagPb => Source::Tree(Box::new(FileReader::new(cid, u64::MAX))),
            Codec::Raw | Codec::DagCbor => Source::One(Some(bytes)),
        };
        Ok(Some(Outgoing { reader, source }))
    }

    /// The next bytes of the file; none at its end.
    ///
    /// # Errors
    /// `E_INCOMPLETE` when a block of it is not held.
    pub fn next(&mut self) -> Answer<Option<Vec<u8>>> {
        let tree = match &mut self.source {
            Source::One(bytes) => return Ok(bytes.take()),
            Source::Tree(tree) => tree,
        };
        while let Some(wanted) = tree.wanted() {
            let bytes = self.reader.block(&wanted)?.ok_or_else(|| {
                Problem::new(Code::Incomplete, format!("block {} of the file is not held", wanted.short()))
            })?;
            match tree.supply(&Block::check(wanted, bytes)?)? {
                Step::Node => {}
                Step::Bytes(bytes) => return Ok(Some(bytes.as_ref().to_vec())),
            }
        }
        Ok(None)
    }
}
