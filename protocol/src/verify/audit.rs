//! The auditor: takes whatever blobs there are of one session, in any order, and reports.
//!
//! While the entries come as one chain, oldest first, they go through the streaming [`Verifier`]. When they do not — a second entry
//! on one parent, a gap, a control blob after entries, anything refused — everything goes into a [`Set`] instead. For that it keeps
//! skeletons of the first [`RETAINED_MAX`] entries; a longer chain that turns out not to be linear has to be given again to an
//! auditor made with [`Auditor::over_set`], and [`NotLinear`] says so. A linear chain of any length is audited in flat memory.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use super::inventory::{Inventory, Links};
use super::links::UnsettledLink;
use super::report::{Counts, MODELS_MAX, ModelPart, Problem, Report, SignerTally};
use super::stream::{Collect, Prechecked, Pushed, Verifier};
use super::verdict::{self, Findings};
use crate::block::{Decoded, Signed};
use crate::code::{Code, Reject};
use crate::control::Control;
use crate::entry::{Body, Entry};
use crate::fork::{Controls, Holds, Mark, Set, Skeleton, Standing};
use crate::id::{Cid, EntryCid, Seq, SessionId};
use crate::sign::VerifyingKeys;

/// Entries whose skeletons are kept so that a chain that turns out not to be linear can still be judged.
pub const RETAINED_MAX: usize = 65_536;
/// Problems that are kept; the others are counted.
const PROBLEMS_MAX: usize = 1_024;

/// The entries are no single chain in order, and too many went by to judge them together: give all of them to
/// [`Auditor::over_set`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected one chain in order, got: {reason}; audit the blobs as a set")]
pub struct NotLinear {
    /// What was found instead.
    pub reason: Reject,
}

/// Audits the blobs of one session.
#[derive(Clone, Debug)]
pub struct Auditor {
    session: Option<SessionId>,
    told: Option<EntryCid>,
    /// The told head, when it went by in a stream.
    told_seen: Option<Mark>,
    keys: VerifyingKeys,
    controls: Controls,
    path: Path,
    retained_max: usize,
    signers: SignerTally,
    findings: Gathered,
}

#[derive(Clone, Debug)]
enum Path {
    /// Nothing but perhaps the genesis came: a CAR has the control blobs after it.
    Waiting(Option<Box<Prechecked>>),
    /// One chain so far, with what is needed to turn to a set.
    Stream(Box<Verifier>, Option<Vec<Skeleton>>),
    Set(Box<Set>),
}

/// What is counted as blobs arrive, whichever way they are judged.
#[derive(Clone, Debug, Default)]
struct Gathered {
    counts: Counts,
    problems: Vec<Problem>,
    problem_count: u64,
    models: Vec<ModelPart>,
    links: Links,
    /// None until somebody said which config blocks and files are here.
    inventory: Option<Inventory>,
}

impl Default for Auditor {
    fn default() -> Self {
        Auditor::new()
    }
}

impl Auditor {
    /// An auditor that streams while it can.
    #[must_use]
    pub fn new() -> Self {
        Auditor {
            session: None,
            told: None,
            told_seen: None,
            keys: VerifyingKeys::default(),
            controls: Controls::new(),
            path: Path::Waiting(None),
            retained_max: RETAINED_MAX,
            signers: SignerTally::default(),
            findings: Gathered::default(),
        }
    }

    /// An auditor that judges a session's blobs as a set from the beginning. Memory grows with the entries: some hundred bytes
    /// each.
    #[must_use]
    pub fn over_set(session: SessionId) -> Self {
        let path = Path::Set(Box::new(Set::new(session)));
        Auditor { session: Some(session), path, ..Auditor::new() }
    }

    /// The same auditor, for this session; else the first genesis names it.
    #[must_use]
    pub fn of_session(mut self, session: SessionId) -> Self {
        self.session = Some(session);
        self
    }

    /// The same auditor, holding what it finds against a head that somebody told.
    #[must_use]
    pub fn told(mut self, head: EntryCid) -> Self {
        self.told = Some(head);
        self
    }

    /// Takes a capability, tombstone or Ref. One that is refused becomes a problem of the report.
    ///
    /// # Errors
    /// [`NotLinear`] when entries went by that it may concern and that were not kept.
    pub fn control(&mut self, bytes: impl Into<Arc<[u8]>>) -> Result<(), NotLinear> {
        let bytes = bytes.into();
        match Signed::check(Arc::clone(&bytes), &mut self.keys) {
            Ok(signed) => self.checked_control(&signed),
            Err(reject) => {
                self.refused(Some(EntryCid::of(&bytes)), None, reject);
                Ok(())
            }
        }
    }

    /// As [`Auditor::control`], for a blob whose signature was checked.
    ///
    /// # Errors
    /// As [`Auditor::control`].
    pub fn checked_control(&mut self, signed: &Signed<Control>) -> Result<(), NotLinear> {
        let counts = &mut self.findings.counts;
        counts.blobs += 1;
        match signed.value() {
            Control::Capability(_) => counts.capabilities += 1,
            Control::Tombstone(_) => counts.tombstones += 1,
            Control::Ref(_) => counts.refs += 1,
        }
        if matches!(self.path, Path::Stream(..)) {
            self.turn_to_set(Reject::new(Code::Incomplete, "a control blob after entries"))?;
        }
        match &mut self.path {
            Path::Set(set) => set.insert_control(signed),
            Path::Waiting(_) | Path::Stream(..) => self.controls.insert(signed),
        };
        Ok(())
    }

    /// Takes an entry and its payload, if that came along. One that is refused becomes a problem of the report.
    ///
    /// # Errors
    /// [`NotLinear`] when the entries are no single chain in order and those before were not kept.
    pub fn entry(
        &mut self,
        bytes: impl Into<Arc<[u8]>>,
        payload: Option<Arc<[u8]>>,
    ) -> Result<(), NotLinear> {
        let bytes = bytes.into();
        let decoded = match Decoded::<Entry>::decode(Arc::clone(&bytes)) {
            Ok(decoded) => decoded,
            Err(reject) => {
                self.refused(Some(EntryCid::of(&bytes)), None, reject);
                return Ok(());
            }
        };
        let (cid, seq) = (decoded.cid(), decoded.value().seq());
        let checked =
            decoded.verify(&mut self.keys).map(|signed| (signed.clone(), Prechecked::of(signed, payload)));
        match checked {
            Err(reject) => {
                self.refused(Some(cid), Some(seq), reject);
                Ok(())
            }
            Ok((_, Ok(checked))) => self.checked_entry(checked),
            // The entry stands; what was given as its words does not.
            Ok((signed, Err(reject))) => {
                self.refused(Some(cid), Some(seq), reject);
                match Prechecked::of(signed, None) {
                    Ok(checked) => self.checked_entry(checked),
                    Err(_) => Ok(()),
                }
            }
        }
    }

    /// As [`Auditor::entry`], for an entry that went through [`Prechecked::check`] on any thread.
    ///
    /// # Errors
    /// As [`Auditor::entry`].
    pub fn checked_entry(&mut self, checked: Prechecked) -> Result<(), NotLinear> {
        self.findings.entry(&checked);
        match &mut self.path {
            Path::Set(set) => {
                set.insert_entry(checked.signed());
                Ok(())
            }
            Path::Stream(..) => self.stream(checked),
            Path::Waiting(_) => self.first_entries(checked),
        }
    }

    /// Notes a blob that the caller refused: bytes that do not hash to the CID they were given under, a block that is no
    /// blob of ours.
    pub fn refused(&mut self, cid: Option<EntryCid>, seq: Option<Seq>, reject: Reject) {
        self.findings.counts.blobs += 1;
        self.findings.problem(Problem { cid, seq, reject });
    }

    /// How much was looked at.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.findings.counts
    }

    /// Links that are too far back to be looked up here. They keep the verdict `incomplete` until [`Auditor::settle`]d.
    #[must_use]
    pub fn unsettled(&self) -> &[UnsettledLink] {
        match &self.path {
            Path::Stream(verifier, _) => verifier.unsettled(),
            Path::Waiting(_) | Path::Set(_) => &[],
        }
    }

    /// Tells that the chain holds `cid` at `seq`, as a second reading of the input found.
    pub fn settle(&mut self, cid: EntryCid, seq: Seq) {
        if let Path::Stream(verifier, _) = &mut self.path {
            let holds = |link: &UnsettledLink| if seq < link.from.seq { Holds::Yes } else { Holds::No };
            if let Err(reject) = verifier.settle(cid, holds) {
                self.findings.problem(Problem { cid: Some(cid), seq: Some(seq), reject });
            }
        }
    }

    /// Takes stock of the config blocks and files that the entries name: `links_of` gives what a block links, if it is here. Without
    /// this all of them count as missing.
    ///
    /// # Errors
    /// What `links_of` gives.
    pub fn take_stock<E>(
        &mut self,
        links_of: impl FnMut(&Cid) -> Result<Option<Vec<Cid>>, E>,
    ) -> Result<(), E> {
        self.findings.inventory = Some(self.findings.links.inventory(links_of)?);
        Ok(())
    }

    /// What was found.
    #[must_use]
    pub fn report(mut self) -> Report {
        self.begin_stream_or_set();
        if let Path::Stream(_, Some(_)) = &self.path {
            self.settle_from_retained();
        }
        let findings = match &self.path {
            Path::Stream(verifier, _) => {
                verdict::of_stream(verifier, &self.signers, self.told, self.told_seen)
            }
            Path::Set(set) => verdict::of_set(set, self.told),
            Path::Waiting(_) => Findings::nothing(self.session, self.told),
        };
        verdict::report(findings, self.findings.into_given(self.told))
    }

    /// Keeps the genesis until something else than a control blob comes.
    fn first_entries(&mut self, checked: Prechecked) -> Result<(), NotLinear> {
        let own = checked.signed().value().session(checked.signed().cid());
        let session = *self.session.get_or_insert(own);
        let is_genesis = checked.signed().cid() == session.genesis();
        if is_genesis && matches!(self.path, Path::Waiting(None)) {
            self.path = Path::Waiting(Some(Box::new(checked)));
            return Ok(());
        }
        self.begin_stream_or_set();
        match &mut self.path {
            Path::Stream(..) => self.stream(checked),
            Path::Set(set) => {
                set.insert_entry(checked.signed());
                Ok(())
            }
            Path::Waiting(_) => Ok(()),
        }
    }

    /// Ends the wait: a usable genesis begins a stream, anything else a set.
    fn begin_stream_or_set(&mut self) {
        let Path::Waiting(genesis) = &mut self.path else { return };
        let (genesis, Some(session)) = (genesis.take(), self.session) else { return };
        let mut set = Set::with_controls(session, self.controls.clone());
        let Some(genesis) = genesis else {
            self.path = Path::Set(Box::new(set));
            return;
        };
        set.insert_entry(genesis.signed());
        let mut verifier = Verifier::begin(std::mem::take(&mut self.controls)).collecting(Collect::Nothing);
        let skeleton = Skeleton::of(genesis.signed());
        self.path = match verifier.link(*genesis) {
            Ok(Pushed::Linked(mark, standing)) => {
                self.note_linked(&skeleton, mark, standing);
                Path::Stream(Box::new(verifier), Some(vec![skeleton]))
            }
            Ok(Pushed::Known | Pushed::Aside(_)) | Err(_) => Path::Set(Box::new(set)),
        };
    }

    fn stream(&mut self, checked: Prechecked) -> Result<(), NotLinear> {
        let Path::Stream(verifier, _) = &mut self.path else { return Ok(()) };
        let skeleton = Skeleton::of(checked.signed());
        let reason = match verifier.link(checked) {
            Ok(Pushed::Known) => return Ok(()),
            Ok(Pushed::Linked(mark, standing)) => {
                self.note_linked(&skeleton, mark, standing);
                self.retain(skeleton);
                return Ok(());
            }
            Ok(Pushed::Aside(_)) => Reject::new(Code::Incomplete, "a second entry on an earlier one"),
            Err(reject) => reject,
        };
        let problem =
            Problem { cid: Some(skeleton.cid()), seq: Some(skeleton.seq()), reject: reason.clone() };
        match self.turn_to_set(reason) {
            Ok(()) => {
                if let Path::Set(set) = &mut self.path {
                    set.insert_skeleton(skeleton);
                }
                Ok(())
            }
            Err(not_linear) => {
                self.findings.problem(problem);
                Err(not_linear)
            }
        }
    }

    /// Goes on with a set of all that went by.
    fn turn_to_set(&mut self, reason: Reject) -> Result<(), NotLinear> {
        let Path::Stream(verifier, retained) = &mut self.path else { return Ok(()) };
        let (Some(retained), Some(session)) = (retained.take(), self.session) else {
            return Err(NotLinear { reason });
        };
        let mut set = Set::with_controls(session, verifier.controls().clone());
        for skeleton in retained {
            set.insert_skeleton(skeleton);
        }
        self.path = Path::Set(Box::new(set));
        Ok(())
    }

    fn note_linked(&mut self, skeleton: &Skeleton, mark: Mark, standing: Standing) {
        self.signers.count(skeleton.signer(), standing, skeleton.capability(), mark.epoch);
        if self.told == Some(mark.cid) {
            self.told_seen = Some(mark);
        }
    }

    /// Keeps a skeleton while there are few; then lets go of all of them, and memory stays flat.
    fn retain(&mut self, skeleton: Skeleton) {
        let Path::Stream(_, Some(retained)) = &mut self.path else { return };
        retained.push(skeleton);
        if retained.len() >= self.retained_max {
            self.settle_from_retained();
            if let Path::Stream(_, retained) = &mut self.path {
                *retained = None;
            }
        }
    }

    /// Looks far links up among the entries that were kept.
    fn settle_from_retained(&mut self) {
        let Path::Stream(verifier, Some(retained)) = &mut self.path else { return };
        let wanted: BTreeSet<EntryCid> = verifier.unsettled().iter().map(|link| link.target).collect();
        let held = retained.iter().filter(|skeleton| wanted.contains(&skeleton.cid()));
        let found: BTreeMap<EntryCid, Seq> = held.map(|skeleton| (skeleton.cid(), skeleton.seq())).collect();
        for cid in wanted {
            let seq = found.get(&cid).copied();
            let holds = |link: &UnsettledLink| match seq {
                Some(seq) if seq < link.from.seq => Holds::Yes,
                _ => Holds::No,
            };
            if let Err(reject) = verifier.settle(cid, holds) {
                self.findings.problem(Problem { cid: Some(cid), seq, reject });
            }
        }
    }
}

impl Gathered {
    fn entry(&mut self, checked: &Prechecked) {
        let (signed, entry) = (checked.signed(), checked.signed().value());
        let payload_bytes = checked.payload().map_or(0, |payload| payload.len());
        self.counts.blobs += 1 + u64::from(checked.payload().is_some());
        self.counts.entries += 1;
        self.counts.bytes += (signed.bytes().len() + payload_bytes) as u64;
        self.links.entry(signed.cid(), entry, checked.payload().map(|_| checked.files()));
        if let Body::ModelResponse(response) = &entry.body {
            self.model(&response.model.provider, &response.model.id);
        }
    }

    fn model(&mut self, provider: &str, id: &str) {
        if let Some(part) = self.models.iter_mut().find(|part| part.provider == provider && part.id == id) {
            part.responses += 1;
        } else if self.models.len() < MODELS_MAX {
            self.models.push(ModelPart { provider: provider.to_owned(), id: id.to_owned(), responses: 1 });
        }
    }

    fn problem(&mut self, problem: Problem) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    fn into_given(self, told: Option<EntryCid>) -> verdict::Given {
        let inventory = self.inventory.unwrap_or_else(|| {
            let Ok(inventory) = self.links.inventory(|_| Ok::<_, Infallible>(None));
            inventory
        });
        let mut models = self.models;
        models.sort_by_key(|part| std::cmp::Reverse(part.responses));
        verdict::Given {
            told,
            counts: self.counts,
            problems: self.problems,
            problem_count: self.problem_count,
            models,
            inventory,
        }
    }
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
