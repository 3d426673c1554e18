//! Verification of a CAR without a node, without a network and without anything on this machine: bytes in, report out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use throughline_protocol::block::Decoded;
use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::clock;
use throughline_protocol::code::Reject;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{EntryCid, Seq, SessionId, UnixMillis};
use throughline_protocol::payload::ConfigBlock;
use throughline_protocol::verify::{Auditor, BlocksRead, NotLinear};
use throughline_store::Ahead;

use super::commands::verify::Payloads;
use super::progress::Progress;
use super::refusal;
use crate::api::error::Answer;
use crate::core::{now, shape};
use crate::exhibit;

/// Bytes read at a time.
const PIECE: usize = 64 * 1024;

/// Verifies the CAR at `what`, or on stdin when that is `-`.
///
/// # Errors
/// `E_INPUT_NOT_FOUND`, and an `E_CAR_…` code for a file that is no session CAR from its first block on. Anything else that
/// is wrong is in the answer.
pub(crate) fn verify(
    what: &str,
    head: Option<EntryCid>,
    payloads: Payloads,
    progress: &Progress,
) -> Answer<Value> {
    let began = Instant::now();
    let path = Path::new(what);
    let mut input = if what == "-" { spooled(io::stdin().lock()) } else { File::open(path) }
        .map_err(|error| refusal::input(path, error))?;
    let length = input.metadata().map_err(|error| refusal::input(path, error))?.len();
    progress.total(length);
    let asked = Asked { head, payloads };
    let failed = |error: io::Error| refusal::input(path, error);
    if let Some(bytes) = exhibit::read_if_evidence(&mut input).map_err(failed)? {
        let mut answer = exhibit::verified(&exhibit::check(bytes)?);
        answer["elapsedMs"] = super::format::millis(began.elapsed()).into();
        return Ok(answer);
    }
    let read = Pass::over(&mut input, Auditor::new(), asked, Some(progress)).map_err(failed)?;
    let mut pass = match read {
        Pass { not_linear: Some(_), session: Some(session), .. } => {
            input.seek(SeekFrom::Start(0)).map_err(failed)?;
            Pass::over(&mut input, Auditor::over_set(session), asked, None).map_err(failed)?
        }
        pass => pass,
    };
    settle(&mut pass.auditor, &mut input).map_err(failed)?;
    pass.auditor.take_stock(|cid| Answer::Ok(pass.blocks.links_of(cid)))?;
    if let (None, Some(reject)) = (pass.session, pass.refused)
        && is_no_car(&reject)
    {
        return Err(reject.into());
    }
    let report = pass.auditor.report();
    let mut answer = crate::report::verify(&report, "file", payloads.required());
    answer["ahead"] = pass.ahead.as_ref().map(shape::ahead).into();
    answer["elapsedMs"] = super::format::millis(began.elapsed()).into();
    Ok(answer)
}

/// Whether a file is no session CAR at all. A first block that is none for another reason is a corrupt session.
fn is_no_car(reject: &Reject) -> bool {
    reject.code.name().starts_with("E_CAR_")
}

/// stdin as a file, since it is read twice.
///
/// # Errors
/// When stdin cannot be read, or there is no room for it.
pub(super) fn spooled(mut input: impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut input, &mut file)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// What the caller asked for.
#[derive(Clone, Copy)]
struct Asked {
    head: Option<EntryCid>,
    payloads: Payloads,
}

/// One reading of the file.
struct Pass {
    auditor: Auditor,
    session: Option<SessionId>,
    blocks: BlocksRead,
    /// The seq of the entry before, and the latest time up to there.
    last: Seq,
    time: UnixMillis,
    /// The newest entry whose time this machine's clock has not come near, and none before it had.
    ahead: Option<Ahead>,
    /// Why reading stopped before the end.
    refused: Option<Reject>,
    not_linear: Option<NotLinear>,
}

impl Pass {
    /// Reads the file once, handing each entry over together with its payload.
    fn over(
        file: &mut File,
        auditor: Auditor,
        asked: Asked,
        progress: Option<&Progress>,
    ) -> io::Result<Self> {
        let mut pass = Pass {
            auditor,
            session: None,
            blocks: BlocksRead::default(),
            last: Seq::ZERO,
            time: UnixMillis::default(),
            ahead: None,
            refused: None,
            not_linear: None,
        };
        let mut reader = SessionReader::new();
        let mut entry: Option<Decoded<Entry>> = None;
        let mut piece = vec![0; PIECE];
        loop {
            let length = read(file, &mut piece)?;
            if let Some(progress) = progress {
                progress.counter().add(u64::try_from(length).unwrap_or(u64::MAX));
            }
            reader.push(&piece[..length]);
            while let Some(item) = reader.next() {
                match item {
                    Ok(item) => pass.item(item, &mut entry, &reader, asked),
                    Err(reject) => pass.refused = Some(reject),
                }
                if pass.refused.is_some() || pass.not_linear.is_some() {
                    break;
                }
            }
            if length == 0 || pass.refused.is_some() || pass.not_linear.is_some() {
                break;
            }
        }
        pass.hand_over(entry.take(), None);
        if let (None, Some(head)) = (pass.session, asked.head.or(reader.root())) {
            pass.auditor = pass.auditor.told(head);
        }
        let ended = reader.finish().err();
        if let Some(reject) = pass.refused.take().or(ended) {
            pass.auditor.refused(None, None, reject.clone());
            pass.refused = Some(reject);
        }
        Ok(pass)
    }

    fn item(
        &mut self,
        item: SessionItem,
        entry: &mut Option<Decoded<Entry>>,
        reader: &SessionReader,
        asked: Asked,
    ) {
        match item {
            SessionItem::Genesis(genesis) => {
                let session = SessionId::of_genesis(genesis.cid());
                self.session = Some(session);
                self.auditor = std::mem::take(&mut self.auditor).of_session(session);
                if let Some(head) = asked.head.or(reader.root()) {
                    self.auditor = std::mem::take(&mut self.auditor).told(head);
                }
                self.look_at_time(genesis.value());
                *entry = Some(genesis);
            }
            SessionItem::Entry(next) => {
                self.last = next.value().seq();
                self.look_at_time(next.value());
                let before = entry.replace(next);
                self.hand_over(before, None);
            }
            SessionItem::Payload { of, block } if asked.payloads != Payloads::None => {
                let own = entry.take_if(|entry| entry.cid() == of);
                self.hand_over(own, Some(Arc::clone(block.bytes())));
            }
            SessionItem::Control(control) => {
                self.hand_over(entry.take(), None);
                let taken = self.auditor.control(Arc::clone(control.bytes()));
                self.note(taken);
            }
            SessionItem::Config { of, block } => {
                self.hand_over(entry.take(), None);
                self.blocks.note(&block);
                let named = EntryCid::of(block.bytes());
                if let (Err(reject), None) = (ConfigBlock::check(named, block.bytes()), &self.not_linear) {
                    self.auditor.refused(Some(of), Some(self.last), reject);
                }
            }
            // Files were hashed by the reader.
            SessionItem::File { block, .. } => self.blocks.note(&block),
            SessionItem::Payload { .. } => {}
        }
    }

    fn look_at_time(&mut self, entry: &Entry) {
        let (seq, ts) = (entry.seq(), entry.ts);
        if let Some(by_ms) = clock::ahead_ms(ts, self.time, now()) {
            self.ahead = Some(Ahead { seq, ts, by_ms });
        }
        self.time = self.time.max(ts);
    }

    fn hand_over(&mut self, entry: Option<Decoded<Entry>>, payload: Option<Arc<[u8]>>) {
        if let (Some(entry), None) = (entry, &self.not_linear) {
            let taken = self.auditor.entry(Arc::clone(entry.bytes()), payload);
            self.note(taken);
        }
    }

    fn note(&mut self, taken: Result<(), NotLinear>) {
        if let Err(not_linear) = taken {
            self.not_linear = Some(not_linear);
        }
    }
}

/// Looks up links that reach further back than the auditor remembers, in one more reading. The chain was whole and in
/// order, so what is not among its entries is no ancestor.
fn settle(auditor: &mut Auditor, file: &mut File) -> io::Result<()> {
    let mut waiting: BTreeMap<EntryCid, Seq> = BTreeMap::new();
    for link in auditor.unsettled() {
        waiting.entry(link.target).or_insert(link.from.seq);
    }
    if waiting.is_empty() {
        return Ok(());
    }
    file.seek(SeekFrom::Start(0))?;
    let mut reader = SessionReader::new();
    let mut piece = vec![0; PIECE];
    loop {
        let length = read(file, &mut piece)?;
        reader.push(&piece[..length]);
        while let Some(Ok(item)) = reader.next() {
            if let SessionItem::Genesis(entry) | SessionItem::Entry(entry) = item
                && waiting.remove(&entry.cid()).is_some()
            {
                auditor.settle(entry.cid(), entry.value().seq());
            }
        }
        if length == 0 {
            break;
        }
    }
    // Told at its own place, a target does not stand before the entry that links it: refused as no ancestor.
    for (target, from) in waiting {
        auditor.settle(target, from);
    }
    Ok(())
}

fn read(file: &mut File, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        match file.read(piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
