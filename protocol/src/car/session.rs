//! The CAR of one session: what stands where. `docs/PROTOCOL.md` §Announcements, tickets, files.
//!
//! ```text
//! root = head   genesis, its payload │ capabilities, tombstones, refs │ entry 1, payload, config, files │ entry 2 …
//! ```
//!
//! [`SessionReader`] says of each block what it is and whether it may stand there; a block that nothing before it names
//! is refused. It does not judge the chain: links, signatures, authority and whether all entries are there are for
//! [`crate::verify`]. A file that ends at a border of two blocks is therefore read without an error.
//!
//! Memory: beside one section, the CIDs of payloads, configs, files and control blobs, up to [`SEEN_MAX`] of them, to
//! find one that stands twice. Entries need no memory: they ascend by seq, and by CID within one.

use std::collections::BTreeSet;

use super::{CarEvent, CarReader, CidForms};
use crate::block::{Block, Decoded};
use crate::code::{Code, Reject};
use crate::codec::{self, Value};
use crate::control::Control;
use crate::entry::{Body, Entry, PayloadRef};
use crate::id::{Cid, Codec, EntryCid, Seq};
use crate::unixfs;

/// Blocks beside entries that are remembered to find one that stands twice. Of more, later ones are not remembered: a
/// repetition then costs its own bytes and nothing else.
pub const SEEN_MAX: usize = 65_536;
/// Blocks that the payload and the files of one entry may name.
pub const NAMED_MAX: usize = 65_536;

/// One block of a session's CAR, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionItem {
    /// The first entry, which stands first.
    Genesis(Decoded<Entry>),
    /// A capability, tombstone or Ref.
    Control(Decoded<Control>),
    /// An entry after the genesis.
    Entry(Decoded<Entry>),
    /// The payload of an entry.
    Payload {
        /// The entry that names it.
        of: EntryCid,
        /// The block.
        block: Block,
    },
    /// The config block of a model response.
    Config {
        /// The first entry that names it.
        of: EntryCid,
        /// The block.
        block: Block,
    },
    /// A block of a file that an entry's payload names.
    File {
        /// The entry.
        of: EntryCid,
        /// The block.
        block: Block,
    },
}

/// What was read, at the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionCar {
    /// The root: the head as the file tells it.
    pub root: EntryCid,
    /// The genesis; none in a file without blocks.
    pub genesis: Option<EntryCid>,
}

/// A session's CAR being read.
#[derive(Debug)]
pub struct SessionReader {
    car: CarReader,
    root: Option<EntryCid>,
    genesis: Option<EntryCid>,
    stage: Stage,
    /// The entry before, with what may still follow it.
    last: Option<Last>,
    seen: BTreeSet<Cid>,
    failed: Option<Reject>,
}

/// How far the file is; only ever rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Genesis,
    Control { kind: ControlKind, last: Option<Cid> },
    Entries,
}

/// The order of control blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ControlKind {
    Capability,
    Tombstone,
    Ref,
}

impl ControlKind {
    pub(super) fn of(control: &Control) -> Self {
        match control {
            Control::Capability(_) => ControlKind::Capability,
            Control::Tombstone(_) => ControlKind::Tombstone,
            Control::Ref(_) => ControlKind::Ref,
        }
    }
}

/// The order of what follows an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Slot {
    Entry,
    Payload,
    Config,
    File,
}

#[derive(Debug)]
struct Last {
    cid: EntryCid,
    seq: Seq,
    payload: Option<Cid>,
    config: Option<Cid>,
    slot: Slot,
    /// Links of the payload and of files that can be files: what a file block may be.
    named: BTreeSet<Cid>,
}

impl Default for SessionReader {
    fn default() -> Self {
        Self::new()
    }
}

impl SessionReader {
    /// A reader at the start of a session's file.
    #[must_use]
    pub fn new() -> Self {
        SessionReader {
            car: CarReader::new(CidForms::V1),
            root: None,
            genesis: None,
            stage: Stage::Genesis,
            last: None,
            seen: BTreeSet::new(),
            failed: None,
        }
    }

    /// Takes the next bytes of the file; as [`CarReader::push`].
    pub fn push(&mut self, bytes: &[u8]) {
        self.car.push(bytes);
    }

    /// The root, once the header was read.
    #[must_use]
    pub fn root(&self) -> Option<EntryCid> {
        self.root
    }

    /// The next block and what it is; none when more bytes are needed. After an error it is the same error for ever.
    ///
    /// # Errors
    /// In a `Some`: as [`CarReader::next`]; `E_CAR_ROOT` unless there is one root, an entry's CID;
    /// `E_CAR_ORDER` for a block in the wrong place or that nothing names; `E_CAR_DUP` for one that stood before; what an
    /// entry or control blob is refused for when it is read.
    #[expect(clippy::should_implement_trait, reason = "an iterator that ends is done; this one may go on")]
    pub fn next(&mut self) -> Option<Result<SessionItem, Reject>> {
        if let Some(reject) = &self.failed {
            return Some(Err(reject.clone()));
        }
        let item = loop {
            match self.car.next()? {
                Err(reject) => break Err(reject),
                Ok(CarEvent::Block(block)) => break self.block(block),
                Ok(CarEvent::Roots(roots)) => match one_root(&roots) {
                    Ok(root) => self.root = Some(root),
                    Err(reject) => break Err(reject),
                },
            }
        };
        self.failed = item.as_ref().err().cloned();
        Some(item)
    }

    /// Says that the file ends here.
    ///
    /// # Errors
    /// As [`CarReader::finish`], or the earlier error when there was one.
    pub fn finish(self) -> Result<SessionCar, Reject> {
        if let Some(reject) = self.failed {
            return Err(reject);
        }
        self.car.finish()?;
        let root = self.root.ok_or_else(|| Reject::new(Code::CarTruncated, "the file has no header"))?;
        Ok(SessionCar { root, genesis: self.genesis })
    }

    fn block(&mut self, block: Block) -> Result<SessionItem, Reject> {
        let cid = block.cid();
        if self.seen.contains(&cid) || self.genesis.is_some_and(|genesis| genesis.cid() == cid) {
            return Err(Reject::new(Code::CarDup, format!("{} stands twice", cid.short())));
        }
        if self.stage == Stage::Genesis {
            return self.genesis(block);
        }
        // By its form first: an entry or a control blob that an entry names as its payload or config is none the less what it is.
        let word = Self::session_type(&block);
        match word.as_ref().map(Option::as_deref) {
            Ok(Some("Capability" | "CapabilityTombstone" | "Ref")) => return self.control(block),
            Ok(Some(word)) if word.starts_with("Session") => return self.entry(block),
            Ok(_) | Err(_) => {}
        }
        match self.attached(&block)? {
            Some(item) => {
                self.remember(cid);
                Ok(item)
            }
            None => {
                word?;
                Err(order(format!("{} is named by nothing before it", cid.short())))
            }
        }
    }

    /// The block's `type`, if it can be a session's own blob by its CID.
    fn session_type(block: &Block) -> Result<Option<String>, Reject> {
        let is_entry_cid = EntryCid::try_from(block.cid()).is_ok();
        if is_entry_cid { codec::type_word(block.bytes()) } else { Ok(None) }
    }

    fn remember(&mut self, cid: Cid) {
        if self.seen.len() < SEEN_MAX {
            self.seen.insert(cid);
        }
    }

    fn genesis(&mut self, block: Block) -> Result<SessionItem, Reject> {
        if Self::session_type(&block)?.as_deref() != Some("SessionGenesis") {
            return Err(order("expected the genesis first".to_owned()));
        }
        let entry = Decoded::<Entry>::decode(block.bytes().clone())?;
        self.genesis = Some(entry.cid());
        self.stage = Stage::Control { kind: ControlKind::Capability, last: None };
        self.last = Some(Last::new(&entry));
        Ok(SessionItem::Genesis(entry))
    }

    fn control(&mut self, block: Block) -> Result<SessionItem, Reject> {
        let cid = block.cid();
        let control = Decoded::<Control>::decode(block.bytes().clone())?;
        let kind = ControlKind::of(control.value());
        let Stage::Control { kind: before, last } = self.stage else {
            return Err(order("a control blob after the first entry".to_owned()));
        };
        if kind < before || (kind == before && last.is_some_and(|last| last >= cid)) {
            let what = "expected capabilities, tombstones, then refs, each ascending by CID";
            return Err(order(what.to_owned()));
        }
        self.stage = Stage::Control { kind, last: Some(cid) };
        // The payload of the genesis stands before the control blobs or not at all.
        self.last = None;
        self.remember(cid);
        Ok(SessionItem::Control(control))
    }

    fn entry(&mut self, block: Block) -> Result<SessionItem, Reject> {
        let entry = Decoded::<Entry>::decode(block.bytes().clone())?;
        let seq = entry.value().seq();
        if entry.value().place.is_none() {
            return Err(order("a second genesis".to_owned()));
        }
        let before = match self.stage {
            Stage::Entries => self.last.as_ref().map(|last| (last.cid, last.seq)),
            Stage::Genesis | Stage::Control { .. } => None,
        };
        match before {
            None => {}
            Some((cid, _)) if cid == entry.cid() => {
                return Err(Reject::new(Code::CarDup, format!("{} stands twice", cid.short())));
            }
            Some(last) => check_order(last, (entry.cid(), seq))?,
        }
        self.stage = Stage::Entries;
        self.last = Some(Last::new(&entry));
        Ok(SessionItem::Entry(entry))
    }

    /// A payload, config or file, if the block is one that the entry before names.
    fn attached(&mut self, block: &Block) -> Result<Option<SessionItem>, Reject> {
        let cid = block.cid();
        let Some(last) = &mut self.last else { return Ok(None) };
        let slot = if last.payload == Some(cid) {
            Slot::Payload
        } else if last.config == Some(cid) {
            Slot::Config
        } else if last.named.contains(&cid) {
            Slot::File
        } else {
            return Ok(None);
        };
        if slot < last.slot {
            return Err(order(format!("{}: expected payload, config, then files", cid.short())));
        }
        last.slot = slot;
        if slot != Slot::Config {
            last.name(block)?;
        }
        let (of, block) = (last.cid, block.clone());
        Ok(Some(match slot {
            Slot::Entry | Slot::Payload => SessionItem::Payload { of, block },
            Slot::Config => SessionItem::Config { of, block },
            Slot::File => SessionItem::File { of, block },
        }))
    }
}

impl Last {
    fn new(entry: &Decoded<Entry>) -> Self {
        Last {
            cid: entry.cid(),
            seq: entry.value().seq(),
            payload: entry.value().payload.map(|PayloadRef { cid, .. }| cid.cid()),
            config: config_of(entry.value()).map(|cid| cid.cid()),
            slot: Slot::Entry,
            named: BTreeSet::new(),
        }
    }

    /// Adds what a payload or file links. What cannot be read links nothing; its reader will say why.
    fn name(&mut self, block: &Block) -> Result<(), Reject> {
        match block.cid().codec() {
            Codec::Raw => {}
            Codec::DagCbor => {
                if let Ok((value, _)) = codec::decode_payload(block.bytes()) {
                    links(&value, &mut self.named);
                }
            }
            Codec::DagPb => self.named.extend(unixfs::parts(&block.cid(), block.bytes())),
        }
        if self.named.len() > NAMED_MAX {
            let what = format!("{} names more than {NAMED_MAX} blocks", self.cid.short());
            return Err(Reject::new(Code::Budget, what));
        }
        Ok(())
    }
}

fn config_of(entry: &Entry) -> Option<EntryCid> {
    match &entry.body {
        Body::ModelResponse(response) => response.config,
        Body::Genesis(_)
        | Body::UserMessage(_)
        | Body::ToolCall(_)
        | Body::Note(_)
        | Body::Handoff(_)
        | Body::Seal(_) => None,
    }
}

fn links(value: &Value<'_>, out: &mut BTreeSet<Cid>) {
    match value {
        Value::Link(cid) if cid.is_file() => {
            out.insert(*cid);
        }
        Value::List(items) => items.iter().for_each(|item| links(item, out)),
        Value::Map(map) => map.iter().for_each(|(_, value)| links(value, out)),
        Value::Link(_) | Value::Null | Value::Bool(_) | Value::Int(_) | Value::Bytes(_) | Value::Text(_) => {}
    }
}

/// Entries of one seq are branches of a history that forked or was cut; they ascend by CID, so none stands twice.
fn check_order(last: (EntryCid, Seq), next: (EntryCid, Seq)) -> Result<(), Reject> {
    let ((last_cid, last), (cid, seq)) = (last, next);
    if (seq, cid) <= (last, last_cid) {
        return Err(order(format!("entry {seq} ({}) stands after entry {last}", cid.short())));
    }
    Ok(())
}

fn order(what: String) -> Reject {
    Reject::new(Code::CarOrder, what)
}

fn one_root(roots: &[Cid]) -> Result<EntryCid, Reject> {
    let [root] = roots else {
        return Err(Reject::new(Code::CarRoot, format!("expected one root, got {}", roots.len())));
    };
    EntryCid::try_from(*root).map_err(|reject| Reject::new(Code::CarRoot, reject.detail))
}
