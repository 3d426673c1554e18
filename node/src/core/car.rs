//! Sessions as CAR files: in, verified before anything is stored; out, in the order of the format, streamed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use throughline_protocol::block::{Block, Decoded, Signed};
use throughline_protocol::car::{EntryBlocks, SessionWriter};
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::id::{Cid, Codec, EntryCid, Seq, SessionId};
use throughline_protocol::payload::{ConfigBlock, Payload};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::unixfs;
use throughline_protocol::verify::Prechecked;
use throughline_store::{
    LinkBlocks, Naming, PayloadState, Reader, SessionRow, SideEntry, SideStatus, StoredEntry,
};

use super::Node;
use super::base::need_session;
use super::car_read::{Asked, Item, Taker, audit, for_each, read_ahead};
use super::evaluate::{Arrived, Basis, Evaluated, Part};
use super::files::Blocks;
use super::following::Follows;
use super::seal_up::blocks_of;
use super::verify::PayloadUse;
use crate::api::error::{Answer, Problem};
use crate::report;

/// Entries taken in at a time, and bytes of them; the staging quota may be smaller.
const BATCH: usize = 1_000;
const BATCH_BYTES: u64 = 8 << 20;
/// Bytes of a CAR that are sent at a time, at least.
const SEND_BYTES: usize = 256 * 1024;
/// Blocks of the files of one entry.
const FILE_BLOCKS_MAX: usize = 65_536;
/// Entries beside the chain that are read at a time, and that go along at all.
const SIDE_PAGE: usize = 1_000;
const SIDE_MAX: usize = 10_000;

impl Node {
    /// The five checks over a session CAR. Nothing is stored. A file that ends early or holds something else is told in
    /// the report, once a genesis was read.
    ///
    /// # Errors
    /// `E_CAR_…` and what else reading refuses when not even a genesis stands in it.
    pub fn verify_car(
        &self,
        spool: &Path,
        head: Option<EntryCid>,
        (payloads, wanted): (PayloadUse, report::Required),
    ) -> Answer<Value> {
        if let Some(bytes) = evidence_in(spool)? {
            return Ok(crate::exhibit::verified(&crate::exhibit::check(bytes)?));
        }
        let (report, _) = audit(spool, Asked { head, payloads })?;
        Ok(report::verify(&report, "file", wanted))
    }

    /// Verifies a session CAR and, unless it is a dry run, adopts what it holds. The answer is the verdict on all that is held
    /// then, and `fileVerdict` beside it when the file by itself has another one.
    ///
    /// # Errors
    /// `E_CAR_…`, `E_CID_MISMATCH` and whatever reading refuses. A verdict that is not valid is an answer, not an error; then nothing is
    /// adopted when the chain is corrupt or incomplete.
    pub fn take_car(&self, spool: &Path, dry_run: bool) -> Answer<Value> {
        if evidence_in(spool)?.is_some() {
            let what = "expected a session, got evidence about one";
            return Err(Problem::new(Code::CarRoot, what).hint("throughline fork import FILE"));
        }
        let (of_file, refused) = audit(spool, Asked { head: None, payloads: PayloadUse::Present })?;
        if let Some(reject) = refused {
            return Err(reject.into());
        }
        let mut answer = report::verify(&of_file, "file", report::Required::All);
        let usable = !matches!(of_file.verdict.word(), "corrupt" | "incomplete");
        let (Some(session), true) = (of_file.session, usable && !dry_run) else {
            answer["adopted"] = false.into();
            return Ok(answer);
        };
        let held = Some(self.reader()?).filter(|reader| matches!(reader.session(session), Ok(Some(_))));
        let was_held = held.is_some();
        let mut adopting = Adopting::new(self, session, held, spool);
        if let Err(stop) = for_each(spool, &mut adopting) {
            adopting.settle()?;
            return Err(stop.into());
        }
        let adopted = adopting.finish()?;
        let row = need_session(&self.reader()?, session)?;
        if row.summary.verdict != of_file.verdict.word() {
            // More is held than the file tells: what counts is what it comes to here.
            let held = self.review(session, PayloadUse::Present, None)?;
            answer = report::verify(&held, "store", report::Required::All);
            answer["fileVerdict"] = of_file.verdict.word().into();
        } else if of_file.inventory.is_lacking() {
            // Words and files that the file lacks may be here.
            let inventory = self.inventory(session, &mut |_| ())?;
            answer["payloads"] = report::links(&inventory.payloads, true);
            answer["files"] = report::links(&inventory.files, true);
        }
        answer["adoptedEntries"] = adopted.into();
        answer["adopted"] = true.into();
        answer["created"] = (!was_held).into();
        Ok(answer)
    }

    /// Writes a session as CAR: `send` gets it piece by piece. Its root is the head, since that is what the file tells; what is
    /// pending stands above it, so that whoever takes the file in has the owner's last word too. In dispute, and where a tail was
    /// cut, the evidence goes along; but nothing whose own past stays here, since a file with a gap in it verifies as incomplete.
    /// `docs/decisions/0036`.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`; `E_STORE_CORRUPT`; and what `send` gives.
    pub fn export_car(
        &self,
        session: SessionId,
        with_payloads: bool,
        send: &mut dyn FnMut(Vec<u8>) -> Answer<()>,
    ) -> Answer<()> {
        let reader = self.reader()?;
        let row = need_session(&reader, session)?;
        let Extent { root, side } = extent(&reader, &row, evidence(&reader, session)?)?;
        let mut export = Export {
            reader: &reader,
            session,
            words: if with_payloads { Words::Included } else { Words::LeftOut },
            out: Vec::with_capacity(SEND_BYTES * 2),
            send,
        };
        let mut writer = export.begin(root)?;
        let mut side = side.into_iter().peekable();
        for stored in reader.entries(session, Seq::ZERO.next(), row.tip.seq)? {
            let stored = stored?;
            // Ascending by seq, then by CID.
            while let Some(side) = side.next_if(|side| (side.seq, side.cid) < (stored.seq, stored.cid)) {
                export.side(&mut writer, &side)?;
            }
            export.entry(&mut writer, &stored)?;
        }
        for side in side {
            export.side(&mut writer, &side)?;
        }
        let out = std::mem::take(&mut export.out);
        (export.send)(out)
    }
}

/// The file's bytes, if it is evidence and no session.
fn evidence_in(spool: &Path) -> Answer<Option<Vec<u8>>> {
    let read = std::fs::File::open(spool).and_then(|mut file| crate::exhibit::read_if_evidence(&mut file));
    read.map_err(|error| Problem::new(Code::StoreIo, format!("reading the CAR: {error}")))
}

/// Takes a verified file in, a batch at a time. From the first one that does not stand by itself on, each is judged together with the
/// rest of the file.
struct Adopting<'n> {
    node: &'n Node,
    session: SessionId,
    spool: &'n Path,
    follows: Follows,
    last: Option<Evaluated>,
    keys: VerifyingKeys,
    arrived: Arrived,
    bytes: u64,
    bytes_max: u64,
    blocks: Blocks,
    /// Files in many blocks, and the seqs of the entries that name them.
    files: BTreeSet<(Seq, Cid)>,
    adopted: u64,
    /// What was held of the session before, if it was.
    held: Option<Reader>,
}

impl<'n> Adopting<'n> {
    fn new(node: &'n Node, session: SessionId, held: Option<Reader>, spool: &'n Path) -> Self {
        Adopting {
            node,
            session,
            spool,
            follows: Follows::Unread,
            last: None,
            keys: VerifyingKeys::default(),
            arrived: Arrived::default(),
            bytes: 0,
            bytes_max: node.config().limits.staging_bytes_max.min(BATCH_BYTES),
            blocks: Blocks::new(node, Some(session)),
            files: BTreeSet::new(),
            adopted: 0,
            held,
        }
    }

    /// The words of an entry that was held without them: adopting it again would not bring them.
    fn late_words(&mut self, checked: &Prechecked) -> Answer<()> {
        let (signed, Some(bytes)) = (checked.signed(), checked.payload()) else { return Ok(()) };
        let (Some(held), Some(named)) = (&self.held, signed.value().payload) else { return Ok(()) };
        let seq = signed.value().seq();
        let is_held = held.entry_at(self.session, seq)?.is_some_and(|stored| stored.cid == signed.cid());
        if is_held && held.payload(named.cid)? == PayloadState::Absent {
            self.blocks.put(Block::check(named.cid.cid(), Arc::clone(bytes))?)?;
            self.files.insert((seq, named.cid.cid()));
            self.files.extend(checked.files().iter().map(|cid| (seq, *cid)));
        }
        Ok(())
    }

    fn flush(&mut self) -> Answer<()> {
        self.bytes = 0;
        if self.last.as_ref().is_some_and(|last| last.basis == Basis::Following && last.dropped > 0) {
            // There is no room for what this stands on.
            self.arrived = Arrived::default();
            return Ok(());
        }
        let arrived = Arrived { follows: self.follows.clone(), ..std::mem::take(&mut self.arrived) };
        let evaluated = match self.node.take_part(self.session, arrived.clone())? {
            Part::Taken(evaluated) => evaluated,
            Part::Waits => {
                self.follows = Follows::Known(Arc::new(read_ahead(self.spool)?));
                let arrived = Arrived { follows: self.follows.clone(), ..arrived };
                match self.node.take_part(self.session, arrived)? {
                    Part::Taken(evaluated) => evaluated,
                    Part::Waits => return Err(Code::Internal.into()),
                }
            }
        };
        self.adopted += evaluated.adopted;
        let refused = evaluated.refused.clone();
        self.last = Some(evaluated);
        match refused {
            None => Ok(()),
            Some((_, reject)) => Err(reject.into()),
        }
    }

    /// The last batch, and the verdict where it was made on more than what is held then.
    fn flush_last(&mut self) -> Answer<()> {
        if matches!(self.follows, Follows::Unread) {
            self.follows = Follows::Nothing;
        }
        if !self.arrived.entries.is_empty() || !self.arrived.controls.is_empty() {
            self.flush()?;
        }
        self.settle()
    }

    /// Makes the verdict on what came, where it was made on more.
    fn settle(&mut self) -> Answer<()> {
        if self.last.take_if(|last| last.basis == Basis::Following).is_some() {
            self.adopted += self.node.take_rest(self.session)?.adopted;
        }
        Ok(())
    }

    fn finish(mut self) -> Answer<u64> {
        self.flush_last()?;
        self.blocks.finish()?;
        // Now that the blocks of files are here, the entries that name them keep them.
        let reader = self.node.reader()?;
        for (seq, root) in self.files {
            let blocks = blocks_of(&reader, self.session, root, Naming::Nothing)?;
            let links = blocks.digests.into_iter().map(|digest| (seq, digest)).collect();
            self.node.store().run(LinkBlocks { session: self.session, links })?;
        }
        Ok(self.adopted)
    }
}

impl Taker for Adopting<'_> {
    fn root(&mut self, _: EntryCid) {}

    fn item(&mut self, item: Item) -> Answer<()> {
        match item {
            Item::Control(control) => self.arrived.controls.push(control.verify(&mut self.keys)?),
            Item::Config(_, block) | Item::Block(block) => self.blocks.put(block)?,
            Item::Entry(entry, payload) => {
                self.bytes +=
                    (entry.bytes().len() + payload.as_ref().map_or(0, |payload| payload.len())) as u64;
                let checked = Prechecked::of(entry.verify(&mut self.keys)?, payload)?;
                let trees = checked.files().iter().filter(|cid| cid.codec() == Codec::DagPb);
                self.files.extend(trees.map(|cid| (checked.signed().value().seq(), *cid)));
                self.late_words(&checked)?;
                self.arrived.entries.push(checked);
                if self.arrived.entries.len() >= BATCH || self.bytes >= self.bytes_max {
                    self.flush()?;
                }
            }
        }
        Ok(())
    }
}

/// What a file holds beside the main chain, which goes along through its tip.
struct Extent {
    root: EntryCid,
    /// The evidence, ascending by seq, then by CID.
    side: Vec<SideEntry>,
}

/// The evidence that stands on what is written, and the root among what is left of it: the root has to be in the file.
fn extent(reader: &Reader, row: &SessionRow, mut side: Vec<SideEntry>) -> Answer<Extent> {
    keep_connected(reader, row, &mut side)?;
    Ok(Extent { root: root_of(row, &side), side })
}

/// What the file names as its root: the head. In dispute there is none: then the deepest entry of all that is disputed.
fn root_of(row: &SessionRow, side: &[SideEntry]) -> EntryCid {
    let tip = (row.tip.seq, row.tip.cid);
    if is_disputed(row) {
        return side.iter().map(|side| (side.seq, side.cid)).fold(tip, std::cmp::Ord::max).1;
    }
    row.summary.head.map_or(row.tip.cid, |head| head.cid)
}

fn is_disputed(row: &SessionRow) -> bool {
    matches!(row.summary.verdict.as_str(), "forked" | "frozen")
}

/// Entries beside the chain that tell why it ends as it does, ascending by seq, then by CID. What waits there beside a pending
/// entry of the chain stays here, as in a fetch: whoever is given both at once puts neither on the chain.
fn evidence(reader: &Reader, session: SessionId) -> Answer<Vec<SideEntry>> {
    let mut found = Vec::new();
    let mut after = None;
    while found.len() < SIDE_MAX {
        let page = reader.side_entries(session, after, SIDE_PAGE)?;
        let Some(last) = page.last() else { break };
        after = Some(last.cid);
        found.extend(page.into_iter().filter(|side| side.status != SideStatus::Branch));
    }
    found.sort_by_key(|side| (side.seq, side.cid));
    Ok(found)
}

/// Leaves out evidence that does not stand on what is written. Ascending by seq, so a parent comes before its children.
fn keep_connected(reader: &Reader, row: &SessionRow, side: &mut Vec<SideEntry>) -> Answer<()> {
    let mut kept: BTreeSet<EntryCid> = BTreeSet::new();
    for entry in std::mem::take(side) {
        let prev = Decoded::<Entry>::decode(entry.bytes.as_slice())?.value().prev();
        let Some(prev) = prev else { continue };
        let below = Seq::new(entry.seq.get().saturating_sub(1)).ok().filter(|below| *below <= row.tip.seq);
        let on_chain = match below {
            Some(below) => reader.entry_at(row.session, below)?.is_some_and(|stored| stored.cid == prev),
            None => false,
        };
        if on_chain || kept.contains(&prev) {
            kept.insert(entry.cid);
            side.push(entry);
        }
    }
    Ok(())
}

/// Whether payloads, configs and files go along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Included,
    LeftOut,
}

/// A file on its way out.
struct Export<'a> {
    reader: &'a Reader,
    session: SessionId,
    words: Words,
    out: Vec<u8>,
    send: &'a mut dyn FnMut(Vec<u8>) -> Answer<()>,
}

impl Export<'_> {
    /// Header, genesis and control blobs.
    fn begin(&mut self, root: EntryCid) -> Answer<SessionWriter> {
        let session = self.session;
        let mut controls: Vec<Signed<Control>> = Vec::new();
        for bytes in self.reader.controls_of_session(session)? {
            controls.push(Decoded::<Control>::decode(bytes)?.assume_signed());
        }
        let genesis = self
            .reader
            .entry_at(session, Seq::ZERO)?
            .ok_or_else(|| Problem::new(Code::IndexCorrupt, "the genesis is not stored"))?;
        let decoded = Decoded::<Entry>::decode(genesis.bytes.as_slice())?;
        let payload = self.payload_of(decoded.value())?;
        let payload = payload.as_ref().map(|payload| &payload.bytes()[..]);
        let blocks = EntryBlocks { entry: &genesis.bytes, payload, config: None, files: &[] };
        let controls = controls.iter().map(|control| (control.value(), &control.bytes()[..]));
        Ok(SessionWriter::begin(&mut self.out, root, &blocks, controls))
    }

    fn side(&mut self, writer: &mut SessionWriter, side: &SideEntry) -> Answer<()> {
        let SideEntry { cid, seq, payload, .. } = *side;
        self.entry(writer, &StoredEntry { seq, cid, payload, bytes: side.bytes.clone() })
    }

    /// An entry and what follows it.
    fn entry(&mut self, writer: &mut SessionWriter, stored: &StoredEntry) -> Answer<()> {
        let decoded = Decoded::<Entry>::decode(stored.bytes.as_slice())?;
        let payload = self.payload_of(decoded.value())?;
        let config = self.config_of(decoded.value())?;
        let blocks = EntryBlocks {
            entry: &stored.bytes,
            payload: payload.as_ref().map(|payload| &payload.bytes()[..]),
            config: config.as_deref(),
            files: &[],
        };
        writer.entry(&mut self.out, &blocks);
        self.send_if_full()?;
        payload.map_or(Ok(()), |payload| self.files(writer, &payload))
    }

    /// The files that a payload names, as far as they are here for the session, root before children; a block at a time.
    fn files(&mut self, writer: &mut SessionWriter, payload: &Payload) -> Answer<()> {
        let mut waiting = payload.files();
        waiting.reverse();
        let mut seen = BTreeSet::new();
        while let Some(cid) = waiting.pop() {
            if seen.len() >= FILE_BLOCKS_MAX || !seen.insert(cid) {
                continue;
            }
            if !self.reader.is_here(self.session, &cid)? {
                continue;
            }
            let Some(bytes) = self.reader.block(&cid)? else { continue };
            let block = Block::check(cid, Arc::<[u8]>::from(bytes))?;
            waiting.extend(unixfs::parts(&cid, block.bytes()).into_iter().rev());
            writer.file(&mut self.out, &block);
            self.send_if_full()?;
        }
        Ok(())
    }

    fn send_if_full(&mut self) -> Answer<()> {
        if self.out.len() < SEND_BYTES {
            return Ok(());
        }
        (self.send)(std::mem::take(&mut self.out))
    }

    /// The payload of an entry. A block that is none by its form, though an entry names it as one, is not written as one.
    fn payload_of(&self, entry: &Entry) -> Answer<Option<Payload>> {
        let named = entry.payload.map(|payload| payload.cid);
        Ok(self.words_of(named)?.and_then(|bytes| Payload::check(entry, bytes).ok()))
    }

    /// The config block of a response, as its payload.
    fn config_of(&self, entry: &Entry) -> Answer<Option<Vec<u8>>> {
        let named = if let Body::ModelResponse(response) = &entry.body { response.config } else { None };
        let is_config = |bytes: &Vec<u8>| named.is_some_and(|cid| ConfigBlock::check(cid, bytes).is_ok());
        Ok(self.words_of(named)?.filter(is_config))
    }

    fn words_of(&self, named: Option<EntryCid>) -> Answer<Option<Vec<u8>>> {
        match (named, self.words) {
            (Some(cid), Words::Included) if self.reader.is_here(self.session, &cid.cid())? => {
                Ok(match self.reader.payload(cid)? {
                    PayloadState::Present(bytes) => Some(bytes),
                    PayloadState::Absent | PayloadState::Dropped => None,
                })
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
#[path = "car_tests.rs"]
mod tests;
