//! A session's CAR being read from a file, block by block: audited first, taken in when the verdict allows it.
//!
//! The file is read twice, or three times when links reach far back, so that memory does not grow with it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use throughline_protocol::block::{Block, Decoded};
use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{EntryCid, Seq, SessionId};
use throughline_protocol::payload::ConfigBlock;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::verify::{Auditor, BlocksRead, NotLinear, Report};

use super::following::Following;
use super::verify::PayloadUse;
use crate::api::error::{Answer, Problem};

/// Bytes read at a time.
const PIECE: usize = 256 * 1024;

/// What stands in a CAR. Blocks were hashed and decoded; no signature was checked.
pub(super) enum Item {
    Control(Box<Decoded<Control>>),
    /// An entry with its payload, when that follows it.
    Entry(Box<Decoded<Entry>>, Option<Arc<[u8]>>),
    /// A config, and the entry that names it.
    Config(EntryCid, Block),
    /// A block of a file.
    Block(Block),
}

/// Why reading ended before the end of the file.
pub(super) enum Stop {
    /// The file is not what it should be.
    File(Reject),
    /// Whoever took the items wants no more.
    Taker(Problem),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Stop::Taker(problem)
    }
}

impl From<Stop> for Problem {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::File(reject) => reject.into(),
            Stop::Taker(problem) => problem,
        }
    }
}

/// Takes what a file holds, in its order.
pub(super) trait Taker {
    /// The head that the file tells. Comes before the first item.
    fn root(&mut self, root: EntryCid);

    /// The next item.
    ///
    /// # Errors
    /// Why no more is wanted.
    fn item(&mut self, item: Item) -> Answer<()>;
}

/// Hands every item over.
pub(super) fn for_each(spool: &Path, taker: &mut dyn Taker) -> Result<(), Stop> {
    let io = |error: std::io::Error| Problem::new(Code::StoreIo, format!("reading the CAR: {error}"));
    let mut file = File::open(spool).map_err(io)?;
    let mut reader = SessionReader::new();
    let mut held: Option<Decoded<Entry>> = None;
    let mut piece = vec![0; PIECE];
    loop {
        let read = file.read(&mut piece).map_err(io)?;
        reader.push(&piece[..read]);
        while let Some(item) = reader.next() {
            match item.map_err(Stop::File)? {
                SessionItem::Genesis(genesis) => {
                    reader.root().into_iter().for_each(|root| taker.root(root));
                    held = Some(genesis);
                }
                SessionItem::Entry(entry) => give(held.replace(entry), None, taker)?,
                SessionItem::Payload { of, block } => {
                    let own = held.take_if(|entry| entry.cid() == of);
                    give(own, Some(Arc::clone(block.bytes())), taker)?;
                }
                SessionItem::Control(control) => {
                    give(held.take(), None, taker)?;
                    taker.item(Item::Control(Box::new(control)))?;
                }
                SessionItem::Config { of, block } => {
                    give(held.take(), None, taker)?;
                    taker.item(Item::Config(of, block))?;
                }
                SessionItem::File { block, .. } => {
                    give(held.take(), None, taker)?;
                    taker.item(Item::Block(block))?;
                }
            }
        }
        if read == 0 {
            break;
        }
    }
    give(held, None, taker)?;
    reader.finish().map(|_| ()).map_err(Stop::File)
}

fn give(entry: Option<Decoded<Entry>>, payload: Option<Arc<[u8]>>, taker: &mut dyn Taker) -> Answer<()> {
    entry.map_or(Ok(()), |entry| taker.item(Item::Entry(Box::new(entry), payload)))
}

/// Reads the entries of a file for what selection looks at.
///
/// # Errors
/// What reading refuses.
pub(super) fn read_ahead(spool: &Path) -> Answer<Following> {
    let mut ahead = Ahead::default();
    for_each(spool, &mut ahead)?;
    Ok(ahead.following)
}

#[derive(Default)]
struct Ahead {
    following: Following,
    keys: VerifyingKeys,
}

impl Taker for Ahead {
    fn root(&mut self, _: EntryCid) {}

    fn item(&mut self, item: Item) -> Answer<()> {
        if let Item::Entry(entry, _) = item {
            self.following.note(&entry.verify(&mut self.keys)?);
        }
        Ok(())
    }
}

/// What an audit is to look at.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    /// The head to hold it against; none is the root that the file tells.
    pub(super) head: Option<EntryCid>,
    pub(super) payloads: PayloadUse,
}

/// The five checks over a file, and why it could not be read to its end.
///
/// # Errors
/// `E_CAR_…` and what else reading refuses when not even a genesis stands in it.
pub(super) fn audit(spool: &Path, asked: Asked) -> Answer<(Report, Option<Reject>)> {
    let mut pass = Pass::over(spool, Auditor::new(), asked)?;
    if let (Some(_), Some(session)) = (&pass.not_linear, pass.session) {
        pass = Pass::over(spool, Auditor::over_set(session), asked)?;
    }
    if let (None, Some(reject)) = (pass.session, &pass.refused) {
        return Err(reject.clone().into());
    }
    settle_links(spool, &mut pass.auditor)?;
    pass.auditor.take_stock(|cid| Answer::Ok(pass.blocks.links_of(cid)))?;
    Ok((pass.auditor.report(), pass.refused))
}

/// One reading of the file into an auditor.
struct Pass {
    auditor: Auditor,
    asked: Asked,
    session: Option<SessionId>,
    blocks: BlocksRead,
    /// The seq of the entry before.
    last: Seq,
    refused: Option<Reject>,
    not_linear: Option<NotLinear>,
}

impl Pass {
    fn over(spool: &Path, auditor: Auditor, asked: Asked) -> Answer<Self> {
        let mut pass = Pass {
            auditor,
            asked,
            session: None,
            blocks: BlocksRead::default(),
            last: Seq::ZERO,
            refused: None,
            not_linear: None,
        };
        match for_each(spool, &mut pass) {
            Ok(()) => Ok(pass),
            Err(Stop::File(reject)) => {
                pass.auditor.refused(None, None, reject.clone());
                pass.refused = Some(reject);
                Ok(pass)
            }
            // It ended the reading; the file is read again.
            Err(Stop::Taker(_)) if pass.not_linear.is_some() => Ok(pass),
            Err(Stop::Taker(problem)) => Err(problem),
        }
    }
}

impl Taker for Pass {
    fn root(&mut self, root: EntryCid) {
        let head = self.asked.head.unwrap_or(root);
        self.auditor = std::mem::take(&mut self.auditor).told(head);
    }

    fn item(&mut self, item: Item) -> Answer<()> {
        let taken = match item {
            Item::Control(control) => self.auditor.control(Arc::clone(control.bytes())),
            Item::Entry(entry, payload) => {
                self.session.get_or_insert(entry.value().session(entry.cid()));
                self.last = entry.value().seq();
                let payload = payload.filter(|_| self.asked.payloads == PayloadUse::Present);
                self.auditor.entry(Arc::clone(entry.bytes()), payload)
            }
            Item::Config(of, block) => {
                self.blocks.note(&block);
                let named = EntryCid::of(block.bytes());
                if let Err(reject) = ConfigBlock::check(named, block.bytes()) {
                    self.auditor.refused(Some(of), Some(self.last), reject);
                }
                Ok(())
            }
            Item::Block(block) => {
                self.blocks.note(&block);
                Ok(())
            }
        };
        taken.map_err(|not_linear| {
            let problem = Problem::from(not_linear.reason.clone());
            self.not_linear = Some(not_linear);
            problem
        })
    }
}

/// Looks up links that reach further back than the auditor remembers, in one more reading. The chain was whole and in
/// order, so what is not among its entries is no ancestor.
fn settle_links(spool: &Path, auditor: &mut Auditor) -> Answer<()> {
    let mut waiting: BTreeMap<EntryCid, Seq> = BTreeMap::new();
    for link in auditor.unsettled() {
        waiting.entry(link.target).or_insert(link.from.seq);
    }
    if waiting.is_empty() {
        return Ok(());
    }
    let mut seqs = Seqs { waiting, found: Vec::new() };
    match for_each(spool, &mut seqs) {
        Ok(()) | Err(Stop::File(_)) => {}
        Err(Stop::Taker(problem)) => return Err(problem),
    }
    for (cid, seq) in seqs.found {
        auditor.settle(cid, seq);
    }
    // Told at its own place, a target does not stand before the entry that links it: refused as no ancestor.
    for (target, from) in seqs.waiting {
        auditor.settle(target, from);
    }
    Ok(())
}

/// Finds the seqs of some entries.
struct Seqs {
    waiting: BTreeMap<EntryCid, Seq>,
    found: Vec<(EntryCid, Seq)>,
}

impl Taker for Seqs {
    fn root(&mut self, _: EntryCid) {}

    fn item(&mut self, item: Item) -> Answer<()> {
        if let Item::Entry(entry, _) = item
            && self.waiting.remove(&entry.cid()).is_some()
        {
            self.found.push((entry.cid(), entry.value().seq()));
        }
        Ok(())
    }
}
