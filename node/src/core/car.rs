//! Sessions as CAR files: in, verified before anything is stored; out, in the order of the format, streamed.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use throughline_protocol::block::{Block, Decoded, Signed};
use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::car::{EntryBlocks, SessionWriter};
use throughline_protocol::code::Code;
use throughline_protocol::content::Content;
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry};
use throughline_protocol::id::{Cid, Codec, EntryCid, Seq, SessionId, UnixMillis};
use throughline_protocol::payload::Payload;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::unixfs;
use throughline_protocol::verify::{Auditor, Prechecked};
use throughline_store::{PayloadState, PutBlock, Reader, StoredEntry};

use super::base::need_session;
use super::evaluate::Arrived;
use super::files::LEASE_MS;
use super::{Node, now};
use crate::api::error::{Answer, Problem};

/// Bytes read at a time.
const PIECE: usize = 256 * 1024;
/// Entries taken in at a time.
const BATCH: usize = 1_000;
/// Bytes of a CAR that are sent at a time, at least.
const SEND_BYTES: usize = 256 * 1024;
/// Blocks of files that go along with one entry.
const FILE_BLOCKS_MAX: usize = 65_536;

impl Node {
    /// Verifies a session CAR and, unless it is a dry run, adopts what it holds.
    ///
    /// # Errors
    /// `E_CAR_…`, `E_CID_MISMATCH` and whatever reading refuses. A verdict that is not valid is an answer, not an error; then nothing is
    /// adopted when the chain is corrupt or incomplete.
    pub fn take_car(&self, spool: &Path, dry_run: bool) -> Answer<Value> {
        let read = read_car(spool)?;
        let session = read.session;
        let mut auditor = Auditor::over_set(session).told(read.root);
        for control in &read.controls {
            auditor.checked_control(control).map_err(|not_linear| Problem::from(not_linear.reason))?;
        }
        for entry in &read.entries {
            auditor.checked_entry(entry.clone()).map_err(|not_linear| Problem::from(not_linear.reason))?;
        }
        let report = auditor.report();
        let mut answer = crate::report::verify(&report, "file");
        let usable = !matches!(report.verdict.word(), "corrupt" | "incomplete");
        answer["adopted"] = (usable && !dry_run).into();
        if dry_run || !usable {
            return Ok(answer);
        }
        let was_held = self.reader()?.session(session)?.is_some();
        self.put_car_blocks(read.blocks)?;
        let mut controls = read.controls;
        let mut adopted = 0;
        let mut entries = read.entries.into_iter().peekable();
        while entries.peek().is_some() {
            let batch = entries.by_ref().take(BATCH).collect();
            let arrived = Arrived { entries: batch, controls: std::mem::take(&mut controls), ..Arrived::default() };
            adopted += self.take_in(session, arrived)?.adopted;
        }
        answer["adoptedEntries"] = adopted.into();
        answer["created"] = (!was_held).into();
        Ok(answer)
    }

    fn put_car_blocks(&self, blocks: Vec<Block>) -> Answer<()> {
        let at = now();
        let until = UnixMillis::new(at.get() + LEASE_MS).unwrap_or(at);
        for block in blocks {
            self.store().run(PutBlock::bytes(block, at, until))?;
        }
        Ok(())
    }

    /// Writes a session as CAR: `send` gets it piece by piece.
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
        let mut controls: Vec<Signed<Control>> = Vec::new();
        for bytes in reader.controls_of_session(session)? {
            controls.push(Decoded::<Control>::decode(bytes)?.assume_signed());
        }
        let genesis = reader
            .entry_at(session, Seq::ZERO)?
            .ok_or_else(|| Problem::new(Code::IndexCorrupt, "the genesis is not stored"))?;
        let payload = payload_of(&reader, &genesis, with_payloads)?;
        let mut out = Vec::with_capacity(SEND_BYTES * 2);
        let mut writer = begin(&mut out, &row, &genesis, payload.as_deref(), &controls);
        for stored in reader.entries(session, Seq::ZERO.next(), row.tip.seq)? {
            let stored = stored?;
            let payload = payload_of(&reader, &stored, with_payloads)?;
            let (config, files) = extras(&reader, &stored, payload.as_deref(), with_payloads)?;
            writer.entry(
                &mut out,
                &EntryBlocks {
                    entry: &stored.bytes,
                    payload: payload.as_deref(),
                    config: config.as_deref(),
                    files: &files,
                },
            );
            if out.len() >= SEND_BYTES {
                send(std::mem::take(&mut out))?;
            }
        }
        send(out)
    }
}

fn begin(
    out: &mut Vec<u8>,
    row: &throughline_store::SessionRow,
    genesis: &StoredEntry,
    payload: Option<&[u8]>,
    controls: &[Signed<Control>],
) -> SessionWriter {
    let blocks = EntryBlocks { entry: &genesis.bytes, payload, config: None, files: &[] };
    SessionWriter::begin(out, row.tip.cid, &blocks, controls.iter().map(|control| (control.value(), &control.bytes()[..])))
}

fn payload_of(reader: &Reader, stored: &StoredEntry, wanted: bool) -> Answer<Option<Vec<u8>>> {
    match (stored.payload, wanted) {
        (Some(cid), true) => Ok(match reader.payload(cid)? {
            PayloadState::Present(bytes) => Some(bytes),
            PayloadState::Absent | PayloadState::Dropped => None,
        }),
        _ => Ok(None),
    }
}

/// The config block and files that an entry names, as far as they are held.
fn extras(
    reader: &Reader,
    stored: &StoredEntry,
    payload: Option<&[u8]>,
    wanted: bool,
) -> Answer<(Option<Vec<u8>>, Vec<Block>)> {
    if !wanted {
        return Ok((None, Vec::new()));
    }
    let decoded = Decoded::<Entry>::decode(stored.bytes.as_slice())?;
    let config = match &decoded.value().body {
        Body::ModelResponse(response) => response.config,
        _ => None,
    };
    let config = config.map(|cid| reader.block(&cid.cid())).transpose()?.flatten();
    let mut files = Vec::new();
    if let Some(bytes) = payload {
        let payload = Payload::check(decoded.value(), bytes)?;
        let attached = payload.attachments().iter().map(|file| file.cid);
        let media = payload.content().iter().filter_map(|content| match content {
            Content::Media(media) => Some(media.cid),
            _ => None,
        });
        for root in attached.chain(media) {
            collect_file(reader, root, &mut files)?;
        }
    }
    Ok((config, files))
}

/// A file's blocks, root before children.
fn collect_file(reader: &Reader, root: Cid, files: &mut Vec<Block>) -> Answer<()> {
    let mut waiting = vec![root];
    while let Some(cid) = waiting.pop() {
        if files.len() >= FILE_BLOCKS_MAX || files.iter().any(|block| block.cid() == cid) {
            continue;
        }
        let Some(bytes) = reader.block(&cid)? else { continue };
        let block = Block::check(cid, bytes)?;
        if cid.codec() == Codec::DagPb {
            waiting.extend(unixfs::links(block.bytes())?.into_iter().rev());
        }
        files.push(block);
    }
    Ok(())
}

/// What a CAR holds, each block hashed, each signature checked.
struct ReadCar {
    session: SessionId,
    root: EntryCid,
    controls: Vec<Signed<Control>>,
    entries: Vec<Prechecked>,
    blocks: Vec<Block>,
}

fn read_car(spool: &Path) -> Answer<ReadCar> {
    let io = |error: std::io::Error| Problem::new(Code::StoreIo, format!("reading the CAR: {error}"));
    let mut file = File::open(spool).map_err(io)?;
    let mut reader = SessionReader::new();
    let mut keys = VerifyingKeys::default();
    let mut held: Option<Decoded<Entry>> = None;
    let (mut controls, mut entries, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    let mut session = None;
    let mut piece = vec![0; PIECE];
    loop {
        let read = file.read(&mut piece).map_err(io)?;
        reader.push(&piece[..read]);
        while let Some(item) = reader.next() {
            match item? {
                SessionItem::Genesis(genesis) => {
                    session = Some(SessionId::of_genesis(genesis.cid()));
                    put(&mut entries, held.replace(genesis), None, &mut keys)?;
                }
                SessionItem::Entry(entry) => put(&mut entries, held.replace(entry), None, &mut keys)?,
                SessionItem::Payload { of, block } => {
                    let own = held.take_if(|entry| entry.cid() == of);
                    put(&mut entries, own, Some(Arc::clone(block.bytes())), &mut keys)?;
                }
                SessionItem::Control(control) => controls.push(Signed::check(Arc::clone(control.bytes()), &mut keys)?),
                SessionItem::Config { block, .. } | SessionItem::File { block, .. } => blocks.push(block),
            }
        }
        if read == 0 {
            break;
        }
    }
    put(&mut entries, held, None, &mut keys)?;
    let car = reader.finish()?;
    let session = session.ok_or_else(|| Problem::new(Code::CarRoot, "the CAR holds no genesis"))?;
    Ok(ReadCar { session, root: car.root, controls, entries, blocks })
}

fn put(
    entries: &mut Vec<Prechecked>,
    entry: Option<Decoded<Entry>>,
    payload: Option<Arc<[u8]>>,
    keys: &mut VerifyingKeys,
) -> Answer<()> {
    if let Some(entry) = entry {
        entries.push(Prechecked::of(entry.verify(keys)?, payload)?);
    }
    Ok(())
}
