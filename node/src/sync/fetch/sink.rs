//! Where fetched entries go: onto the chain that is held, or through an auditor that keeps nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::content::Content;
use throughline_protocol::control::Control;
use throughline_protocol::entry::Body;
use throughline_protocol::id::{Cid, EntryCid, Principal, Seq, SessionId};
use throughline_protocol::payload::Payload;
use throughline_protocol::skip::SkipPath;
use throughline_protocol::verify::{Auditor, NotLinear, Prechecked, Report};

use super::super::ask::is_of_owner;
use crate::api::error::{Answer, Problem};
use crate::core::{Arrived, Evaluated, Node};

/// Entries that are adopted in one commit.
const BATCH_ENTRIES: usize = 4_096;
/// Bytes that are adopted in one commit; the staging quota may be smaller.
const BATCH_BYTES: u64 = 16 << 20;
/// Files that one audit asks for.
const FILES_MAX: usize = 65_536;

/// The receiving end of a transfer.
pub(super) enum Sink {
    /// Entries are adopted as verified prefixes.
    Adopt(Box<Adopting>),
    /// Entries are judged and dropped.
    Audit(Box<Auditing>),
}

impl Sink {
    /// Takes control blobs whose signatures were checked.
    pub(super) fn controls(&mut self, controls: Vec<Signed<Control>>) -> Answer<()> {
        match self {
            Sink::Adopt(adopting) => {
                adopting.controls.extend(controls);
                Ok(())
            }
            Sink::Audit(auditing) => auditing.controls(controls),
        }
    }

    /// Takes entries in order.
    pub(super) fn entries(&mut self, entries: Vec<Prechecked>) -> Answer<()> {
        match self {
            Sink::Adopt(adopting) => adopting.entries(entries),
            Sink::Audit(auditing) => auditing.entries(entries),
        }
    }

    /// Brings everything that is good so far to where it belongs.
    pub(super) fn flush(&mut self) -> Answer<()> {
        match self {
            Sink::Adopt(adopting) => adopting.flush(),
            Sink::Audit(_) => Ok(()),
        }
    }

    /// Tip, skip of the tip, … of what is held: where the next range begins.
    pub(super) fn locator(&self) -> Answer<Vec<EntryCid>> {
        match self {
            Sink::Adopt(adopting) => adopting.locator(),
            Sink::Audit(auditing) => Ok(auditing.locator()),
        }
    }
}

/// Adopts what comes, a batch at a time.
pub(super) struct Adopting {
    node: Node,
    session: SessionId,
    /// Only a session of this owner is taken.
    owner: Option<Principal>,
    controls: Vec<Signed<Control>>,
    entries: Vec<Prechecked>,
    bytes: u64,
    bytes_max: u64,
    pub(super) adopted: u64,
    pub(super) last: Option<Evaluated>,
}

impl Adopting {
    pub(super) fn new(node: Node, session: SessionId, owner: Option<Principal>) -> Answer<Self> {
        expect_room(&node)?;
        let bytes_max = node.config().limits.staging_bytes_max.min(BATCH_BYTES);
        Ok(Adopting {
            node,
            session,
            owner,
            controls: Vec::new(),
            entries: Vec::new(),
            bytes: 0,
            bytes_max,
            adopted: 0,
            last: None,
        })
    }

    fn entries(&mut self, entries: Vec<Prechecked>) -> Answer<()> {
        for entry in entries {
            let value = entry.signed().value();
            if let Some(owner) = self.owner
                && value.owner() != owner
            {
                let what =
                    format!("expected a session of {}, got one of {}", owner.short(), value.owner().short());
                return Err(Problem::new(Code::Refused, what));
            }
            self.bytes += entry.signed().bytes().len() as u64;
            self.bytes += entry.payload().map_or(0, |payload| payload.len() as u64);
            self.entries.push(entry);
            if self.entries.len() >= BATCH_ENTRIES || self.bytes >= self.bytes_max {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Answer<()> {
        if self.entries.is_empty() && self.controls.is_empty() {
            return Ok(());
        }
        let entries = std::mem::take(&mut self.entries);
        self.bytes = 0;
        if !entries.is_empty() {
            // A transfer has no end that is known before: what was adopted stays, the rest is not taken.
            expect_room(&self.node)?;
        }
        let controls = self.owned_controls(&entries)?;
        if entries.is_empty() {
            if !controls.is_empty() {
                self.node.take_controls(controls)?;
            }
            return Ok(());
        }
        let arrived = Arrived { entries, controls, ..Arrived::default() };
        let evaluated = self.node.take_in(self.session, arrived)?;
        self.adopted += evaluated.adopted;
        let refused = evaluated.refused.clone();
        self.last = Some(evaluated);
        match refused {
            Some((_, reject)) => Err(reject.into()),
            None => Ok(()),
        }
    }

    /// The blobs that belong to this session's owner; nothing else is stored.
    fn owned_controls(&mut self, entries: &[Prechecked]) -> Answer<Vec<Signed<Control>>> {
        let held = self.node.reader()?.session(self.session)?.map(|row| row.owner);
        let genesis = entries.iter().find(|entry| entry.signed().cid() == self.session.genesis());
        let owner = held.or(genesis.map(|genesis| genesis.signed().value().owner()));
        let controls = std::mem::take(&mut self.controls);
        let Some(owner) = owner else { return Ok(Vec::new()) };
        let session = self.session;
        let fits = |control: &Signed<Control>| {
            is_of_owner(control.value(), owner)
                && match control.value() {
                    Control::Ref(value) => value.session_head().is_ok_and(|head| head.session == session),
                    Control::Capability(_) | Control::Tombstone(_) => true,
                }
        };
        Ok(controls.into_iter().filter(fits).collect())
    }

    fn locator(&self) -> Answer<Vec<EntryCid>> {
        let reader = self.node.reader()?;
        match reader.session(self.session)? {
            Some(_) => Ok(reader.locator(self.session)?),
            None => Ok(Vec::new()),
        }
    }
}

/// Refuses to take more once the store holds what it may.
pub(super) fn expect_room(node: &Node) -> Answer<()> {
    let (held, most) = (node.reader()?.stats()?.bytes(), node.config().limits.store_bytes_max);
    if held < most {
        return Ok(());
    }
    let what = format!("the store holds {held} bytes, at most {most} may be held");
    Err(Problem::new(Code::Quota, what).hint("throughline config show limits.store_max"))
}

/// Judges what comes and keeps nothing.
pub(super) struct Auditing {
    auditor: Auditor,
    owner: Option<Principal>,
    waiting: Vec<Signed<Control>>,
    seen: BTreeSet<[u8; 32]>,
    path: Option<SkipPath<EntryCid>>,
    /// Heads that peers told, and whether they went by.
    told: BTreeMap<EntryCid, Met>,
    /// Files that went by, when they are wanted.
    pub(super) files: BTreeSet<Cid>,
    keep_files: KeepFiles,
    /// Set when the entries are no single chain and too many went by to judge them together.
    not_linear: Arc<AtomicBool>,
}

/// Whether a told head is an entry that was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Yes,
    NotYet,
}

/// Whether an audit notes the files that payloads name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepFiles {
    Yes,
    No,
}

impl Auditing {
    pub(super) fn new(
        auditor: Auditor,
        told: impl IntoIterator<Item = EntryCid>,
        files: KeepFiles,
        not_linear: Arc<AtomicBool>,
    ) -> Self {
        Auditing {
            auditor,
            owner: None,
            waiting: Vec::new(),
            seen: BTreeSet::new(),
            path: None,
            told: told.into_iter().map(|cid| (cid, Met::NotYet)).collect(),
            files: BTreeSet::new(),
            keep_files: files,
            not_linear,
        }
    }

    /// Control blobs wait until the genesis tells whose they have to be. One that came before is not given again: it would
    /// make the auditor think that the chain is not linear.
    fn controls(&mut self, controls: Vec<Signed<Control>>) -> Answer<()> {
        for control in controls {
            if self.seen.insert(control.hash()) {
                self.waiting.push(control);
            }
        }
        if self.owner.is_some() { self.give_controls() } else { Ok(()) }
    }

    fn give_controls(&mut self) -> Answer<()> {
        let Some(owner) = self.owner else { return Ok(()) };
        for control in std::mem::take(&mut self.waiting) {
            if is_of_owner(control.value(), owner) {
                let taken = self.auditor.checked_control(&control);
                taken.map_err(|error| self.not_linear(error))?;
            }
        }
        Ok(())
    }

    fn entries(&mut self, entries: Vec<Prechecked>) -> Answer<()> {
        for checked in entries {
            let (cid, first) = (checked.signed().cid(), self.owner.is_none());
            if first {
                self.owner = Some(checked.signed().value().owner());
            }
            self.note(&checked);
            let taken = self.auditor.checked_entry(checked);
            taken.map_err(|error| self.not_linear(error))?;
            if first {
                self.give_controls()?;
            }
            if let Some(met) = self.told.get_mut(&cid) {
                *met = Met::Yes;
            }
        }
        Ok(())
    }

    fn note(&mut self, checked: &Prechecked) {
        let (cid, entry) = (checked.signed().cid(), checked.signed().value());
        match &mut self.path {
            None => self.path = Some(SkipPath::genesis(cid)),
            Some(path) if entry.prev() == Some(path.tip().1) => path.push(cid),
            // Another branch: the path stays on the first one.
            Some(_) => {}
        }
        if self.keep_files == KeepFiles::Yes {
            let room = FILES_MAX.saturating_sub(self.files.len());
            self.files.extend(files_of(checked).into_iter().take(room));
        }
    }

    fn locator(&self) -> Vec<EntryCid> {
        let Some(path) = &self.path else { return Vec::new() };
        path.iter().map(|(_, cid)| cid).collect()
    }

    /// Told heads that did not go by: other histories, if their tellers are right.
    pub(super) fn unmet(&self) -> Vec<EntryCid> {
        self.told.iter().filter(|(_, met)| **met == Met::NotYet).map(|(cid, _)| *cid).collect()
    }

    /// Notes a block that was refused.
    pub(super) fn refused(&mut self, seq: Option<Seq>, reject: Reject) {
        self.auditor.refused(None, seq, reject);
    }

    fn not_linear(&self, error: NotLinear) -> Problem {
        self.not_linear.store(true, Ordering::Relaxed);
        error.reason.into()
    }

    pub(super) fn report(self) -> Report {
        self.auditor.report()
    }
}

/// The config and the files that an entry names.
pub(super) fn files_of(checked: &Prechecked) -> Vec<Cid> {
    let entry = checked.signed().value();
    let mut files = Vec::new();
    if let Body::ModelResponse(response) = &entry.body {
        files.extend(response.config.map(|config| config.cid()));
    }
    let Some(bytes) = checked.payload() else { return files };
    let Ok(payload) = Payload::check(entry, Arc::clone(bytes)) else { return files };
    files.extend(payload.attachments().iter().map(|attachment| attachment.cid));
    files.extend(payload.content().iter().filter_map(|content| match content {
        Content::Media(media) => Some(media.cid),
        Content::Text(_)
        | Content::Reasoning(_)
        | Content::ToolCall(_)
        | Content::Refusal(_)
        | Content::Opaque(_)
        | Content::Unknown(_) => None,
    }));
    if let Some(report) = payload.import_report() {
        files.extend(report.segments.iter().map(|segment| segment.cid));
    }
    files
}

#[cfg(test)]
#[path = "sink_tests.rs"]
mod tests;
