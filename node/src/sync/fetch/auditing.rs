//! Judging a session as it comes, without keeping it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use throughline_protocol::block::Signed;
use throughline_protocol::code::Reject;
use throughline_protocol::control::Control;
use throughline_protocol::id::{Cid, Codec, EntryCid, Principal, Seq};
use throughline_protocol::skip::SkipPath;
use throughline_protocol::verify::{Auditor, NotLinear, Prechecked, Report};

use super::Wanted;
use crate::api::error::{Answer, Problem};

/// Files that one audit asks for.
const FILES_MAX: usize = 65_536;

/// Judges what comes and keeps nothing.
pub(super) struct Auditing {
    auditor: Auditor,
    owner: Option<Principal>,
    waiting: Vec<Signed<Control>>,
    seen: BTreeSet<[u8; 32]>,
    path: Option<SkipPath<EntryCid>>,
    /// Heads that peers told, and whether they went by.
    told: BTreeMap<EntryCid, Met>,
    /// Config blocks and files that entries named which went by, as far as they are wanted.
    pub(super) files: BTreeSet<Cid>,
    wanted: Wanted,
    /// Set when the entries are no single chain and too many went by to judge them together.
    not_linear: Arc<AtomicBool>,
}

/// Whether a told head is an entry that was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    Yes,
    NotYet,
}

impl Auditing {
    pub(super) fn new(
        auditor: Auditor,
        told: impl IntoIterator<Item = EntryCid>,
        wanted: Wanted,
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
            wanted,
            not_linear,
        }
    }

    /// Control blobs wait until the genesis tells whose they have to be. One that came before is not given again: it would
    /// make the auditor think that the chain is not linear.
    pub(super) fn controls(&mut self, controls: Vec<Signed<Control>>) -> Answer<()> {
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
            if control.value().is_of(owner) {
                let taken = self.auditor.checked_control(&control);
                taken.map_err(|error| self.not_linear(error))?;
            }
        }
        Ok(())
    }

    pub(super) fn entries(&mut self, entries: Vec<Prechecked>) -> Answer<()> {
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
        let is_wanted = |cid: &Cid| match self.wanted {
            Wanted::None => false,
            Wanted::Referenced => cid.codec() == Codec::DagCbor,
            Wanted::All => cid.codec() == Codec::DagCbor || cid.is_file(),
        };
        // Those that are not asked for count as missing.
        let room = FILES_MAX.saturating_sub(self.files.len());
        self.files.extend(checked.files().iter().copied().filter(|cid| is_wanted(cid)).take(room));
    }

    pub(super) fn locator(&self) -> Vec<EntryCid> {
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

    /// The report; `lacking` are those of [`Auditing::files`] of which not every block came.
    pub(super) fn report(mut self, lacking: &BTreeSet<Cid>) -> Answer<Report> {
        let files = &self.files;
        // Their blocks were dropped again: each stands for all of its own.
        let came = |cid: &Cid| files.contains(cid) && !lacking.contains(cid);
        self.auditor.take_stock(|cid| Answer::Ok(came(cid).then(Vec::new)))?;
        Ok(self.auditor.report())
    }
}
