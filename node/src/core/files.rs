//! Files: streamed to disk, one raw block up to 1 MiB, UnixFS above.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, sync_channel};

use sha2::{Digest as _, Sha256};
use throughline_protocol::block::Block;
use throughline_protocol::code::Code;
use throughline_protocol::id::{Cid, Codec, EntryCid, SessionId, UnixMillis};
use throughline_protocol::limits;
use throughline_protocol::unixfs::{FileBuilder, FileReader, Layout, Step};
use throughline_store::{Naming, PutBlock, Reader, StoreError, Stored};

use super::seal_up::blocks_of;
use super::{Node, now};
use crate::api::error::{Answer, Problem};

/// How long a file stays that no entry links.
pub const LEASE_MS: u64 = 24 * 60 * 60 * 1000;

/// Blocks that wait for their commit.
const IN_FLIGHT_MAX: usize = 16;

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

/// A file on its way in; holds a few chunks in memory.
pub struct Incoming {
    builder: FileBuilder,
    hasher: Sha256,
    size_bytes: u64,
    blocks: Blocks,
}

/// Blocks on their way into the store: some share a commit, and only so many are in memory at a time.
pub(super) struct Blocks {
    node: Node,
    /// The session that they come for, if it is known.
    session: Option<SessionId>,
    in_flight: VecDeque<Receiver<Result<Stored, StoreError>>>,
    count: u64,
    last: Stored,
}

impl Blocks {
    pub(super) fn new(node: &Node, session: Option<SessionId>) -> Self {
        Blocks { node: node.clone(), session, in_flight: VecDeque::new(), count: 0, last: Stored::Held }
    }

    /// Stores a block, leased until an entry links it.
    ///
    /// # Errors
    /// When the disk refuses this block or one before it.
    pub(super) fn put(&mut self, block: Block) -> Answer<()> {
        if self.in_flight.len() >= IN_FLIGHT_MAX {
            self.wait()?;
        }
        let at = now();
        let until = UnixMillis::new(at.get() + LEASE_MS).unwrap_or(at);
        let (reply, stored) = sync_channel(1);
        let put = self.session.into_iter().fold(PutBlock::bytes(block, at, until), PutBlock::received_for);
        self.node.store().submit(put, move |outcome| {
            // Nobody waits any more when an earlier block was refused.
            let _ = reply.send(outcome);
        })?;
        self.in_flight.push_back(stored);
        self.count += 1;
        Ok(())
    }

    /// Waits until all are stored; whether the last one was new.
    ///
    /// # Errors
    /// When the disk refused one.
    pub(super) fn finish(mut self) -> Answer<(u64, Stored)> {
        while !self.in_flight.is_empty() {
            self.wait()?;
        }
        Ok((self.count, self.last))
    }

    fn wait(&mut self) -> Answer<()> {
        if let Some(first) = self.in_flight.pop_front() {
            self.last = first.recv().unwrap_or(Err(StoreError::Closed))?;
        }
        Ok(())
    }
}

impl Node {
    /// Begins a file that comes for a session, if one is named: it is here for that one then, before any entry of it names the file.
    #[must_use]
    pub fn begin_file(&self, session: Option<SessionId>) -> Incoming {
        Incoming {
            builder: FileBuilder::new(Layout::THROUGHLINE),
            hasher: Sha256::new(),
            size_bytes: 0,
            blocks: Blocks::new(self, session),
        }
    }

    /// Whether all blocks of a file are here: for a session, or for anybody on this machine.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn has_file(&self, session: Option<SessionId>, cid: Cid) -> Answer<bool> {
        let reader = self.reader()?;
        let (of, naming) = match session {
            Some(session) => (session, Naming::Nothing),
            // Under this naming no session is asked.
            None => (SessionId::of_genesis(EntryCid::from_digest([0; 32])), Naming::Brings),
        };
        Ok(blocks_of(&reader, of, cid, naming)?.lacking.is_empty())
    }

    /// Stores a whole file.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn put_file(&self, bytes: &[u8], session: Option<SessionId>) -> Answer<StoredBlob> {
        let mut incoming = self.begin_file(session);
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
        self.builder.push(bytes).into_iter().try_for_each(|block| self.blocks.put(block))
    }

    /// Ends the file.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn finish(mut self) -> Answer<StoredBlob> {
        let (last, built) = self.builder.finish();
        last.into_iter().try_for_each(|block| self.blocks.put(block))?;
        let (blocks, stored) = self.blocks.finish()?;
        Ok(StoredBlob {
            cid: built.root,
            size_bytes: self.size_bytes,
            blocks,
            stored,
            sha256: self.hasher.finalize().into(),
        })
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
    pub fn piece(&mut self) -> Answer<Option<Vec<u8>>> {
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
