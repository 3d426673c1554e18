//! Evidence: made where something new shows a fault, kept, copied into `evidence/`, taken from others after it was checked.
//! `docs/PROTOCOL.md` §Evidence.
//!
//! It decides nothing about the chain: entries that come with evidence go the way of all others, through selection. It must never
//! stop what the chain does because a file of evidence cannot be made or written.

use std::collections::VecDeque;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use throughline_protocol::block::Signed;
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::evidence::{Accusation, Charge, Exhibit, Kind, build};
use throughline_protocol::fork::Judged;
use throughline_protocol::id::{Cid, Codec, EntryCid, HashKind, SessionId};
use throughline_protocol::verify::Prechecked;
use throughline_store::{
    DropEvidence, EvidenceLimits, KeptEvidence, OnOther, Put, PutControls, PutEvidence, Reader,
};

use super::evaluate::{Arrived, Evaluated, Input};
use super::scene::Scene;
use super::{Node, now, shape};
use crate::api::error::{Answer, Problem};
use crate::exhibit;

/// Room for files of evidence. A session has one for each kind, epoch and signer.
pub(super) const LIMITS: EvidenceLimits = EvidenceLimits { total_bytes_max: 64 << 20, session_files_max: 64 };
/// Files that were judged void and are remembered.
const VOID_MAX: usize = 1_024;

/// Who shows a piece of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A peer, over the network: only about sessions that are held.
    Peer,
    /// The user, from a file: also about sessions that are not held yet.
    User,
}

/// What became of a file of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its accusation was new, and is kept.
    New,
    /// Its accusation was known.
    Known,
    /// What is held says otherwise, such as an anchor that its maker did not know: it is not kept.
    Void,
}

/// What became of evidence that somebody showed.
#[derive(Clone, Debug)]
pub struct EvidenceTaken {
    /// What became of the file.
    pub fate: Fate,
    /// The verdict before; none when the session is not held.
    pub before: Option<String>,
    /// The verdict now.
    pub after: Option<String>,
    /// What its entries wait for, when they could not be put beside the chain.
    pub waits: Option<Reject>,
}

/// Makes and keeps the evidence that a scene gives. What cannot be shown or kept is logged: the verdict stands without.
pub(super) fn keep(node: &Node, scene: &Scene<'_>, controls: &[Signed<Control>], charges: &[Charge]) {
    for charge in charges {
        let made = build(charge, |cid| entry_of(scene, cid), |cid| control_of(scene, controls, cid));
        let kept = made.map_err(Problem::from).and_then(|exhibit| node.put(&exhibit, OnOther::Replace));
        if let Err(problem) = kept {
            let kind = charge.accusation.kind.word();
            tracing::warn!(session = scene.session.short(), kind, %problem, "evidence is not kept");
        }
    }
}

/// Lets files about tails go that are none any more: an anchor came late, or another history counts. What two signatures show
/// stays for good.
pub(super) fn withdraw(node: &Node, scene: &Scene<'_>, judged: &Judged<'_>, charges: &[Charge]) {
    let withdrawn = || -> Answer<()> {
        for kept in node.reader()?.evidence(scene.session)? {
            let accusation = kept.accusation;
            if !is_about_a_tail(&accusation) || charges.iter().any(|charge| charge.accusation == accusation) {
                continue;
            }
            let exhibit = exhibit::check(kept.bytes)?;
            let judged = exhibit.sides().iter().all(|side| judged.mark(side.mark.cid).is_some());
            let known = exhibit.tombstone().is_none_or(|hash| scene.set.controls().holds(&hash));
            if judged && known {
                node.store().run(DropEvidence { session: scene.session, accusation })?;
                node.void().note(*exhibit.id().digest());
                // A copy that stays behind says nothing false of signatures; the store is the truth.
                let _ = std::fs::remove_file(node.evidence_path(scene.session, &accusation));
            }
        }
        Ok(())
    };
    if let Err(problem) = withdrawn() {
        tracing::warn!(session = scene.session.short(), %problem, "evidence is not withdrawn");
    }
}

/// Whether an accusation stands only as long as what is held comes to the same; two signatures on one place stand for good.
fn is_about_a_tail(accusation: &Accusation) -> bool {
    matches!(accusation.kind, Kind::FencedTail | Kind::RevokedTail)
}

/// Files that were judged void, so that they are not taken again from whoever still tells them: the hashes of the newest. That
/// one is forgotten costs one more judgement.
#[derive(Debug, Default)]
pub(super) struct Void(Mutex<VecDeque<[u8; 32]>>);

impl Void {
    fn note(&self, id: [u8; 32]) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.contains(&id) {
            return;
        }
        if noted.len() == VOID_MAX {
            noted.pop_front();
        }
        noted.push_back(id);
    }

    fn holds(&self, id: &[u8; 32]) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }
}

fn entry_of(scene: &Scene<'_>, cid: EntryCid) -> Option<Arc<[u8]>> {
    if let Some(entry) = scene.new.get(&cid) {
        return Some(Arc::clone(entry.signed().bytes()));
    }
    scene.reader.entry(cid).ok()?.map(|(_, stored)| stored.bytes.into())
}

fn control_of(scene: &Scene<'_>, new: &[Signed<Control>], cid: &Cid) -> Option<Arc<[u8]>> {
    if let Some(control) = new.iter().find(|control| cid.matches(control.bytes())) {
        return Some(Arc::clone(control.bytes()));
    }
    scene.reader.control(cid).ok()?.map(Arc::from)
}

impl Node {
    /// Takes evidence that somebody showed: it is kept, and its entries go where they belong.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET` for a peer's evidence about a session that is not held; `E_QUOTA`; store errors.
    pub fn take_evidence(&self, exhibit: &Exhibit, source: Source) -> Answer<EvidenceTaken> {
        let session = exhibit.session();
        let row = self.reader()?.session(session)?;
        if row.is_none() && source == Source::Peer {
            return Err(Problem::new(Code::NotFoundYet, "the session is not held here"));
        }
        let fate = if self.put(exhibit, OnOther::Keep)? == Put::New { Fate::New } else { Fate::Known };
        let before = row.map(|row| row.summary.verdict);
        let mut taken = EvidenceTaken { fate, before: before.clone(), after: before, waits: None };
        if taken.before.is_some() {
            let evaluated = self.take_in(session, arrived(exhibit)?)?;
            taken.after = Some(evaluated.verdict);
            taken.waits = evaluated.refused.map(|(_, reject)| reject);
            if fate == Fate::New && is_about_a_tail(&exhibit.accusation()) {
                // Where all of it was held nothing was judged, and what it says of what was kept may be wrong.
                taken.after = Some(self.judge_again(session)?.verdict);
                if !self.knows(exhibit)? {
                    taken.fate = Fate::Void;
                }
            }
            if taken.fate == Fate::New {
                // Also where nothing moved: others may not know.
                self.after_commit(session);
            }
        }
        Ok(taken)
    }

    /// Whether a piece of evidence would be news: its accusation is not known, and the file was not found void before.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn is_new_evidence(&self, exhibit: &Exhibit) -> Answer<bool> {
        Ok(!self.void().holds(exhibit.id().digest()) && !self.knows(exhibit)?)
    }

    fn knows(&self, exhibit: &Exhibit) -> Answer<bool> {
        let accusation = exhibit.accusation();
        Ok(self.reader()?.evidence(exhibit.session())?.iter().any(|kept| kept.accusation == accusation))
    }

    /// As [`Node::take_evidence`] for the user, as the object that the API answers with.
    ///
    /// # Errors
    /// As [`Node::take_evidence`], and what a file is refused for.
    pub fn import_evidence(&self, bytes: Vec<u8>, dry_run: bool) -> Answer<Value> {
        let exhibit = exhibit::check(bytes)?;
        let held = self.reader()?.session(exhibit.session())?.map(|row| row.summary.verdict);
        let taken = if dry_run {
            let fate = if self.knows(&exhibit)? { Fate::Known } else { Fate::New };
            EvidenceTaken { fate, before: held.clone(), after: held, waits: None }
        } else {
            self.take_evidence(&exhibit, Source::User)?
        };
        let mut answer = exhibit::json_of(&exhibit);
        answer["unchanged"] = (taken.fate != Fate::New).into();
        answer["stored"] = (!dry_run && taken.fate != Fate::Void).into();
        answer["void"] = (taken.fate == Fate::Void).into();
        answer["from"] = json!(taken.before);
        answer["verdict"] = json!(taken.after);
        answer["waits"] = taken
            .waits
            .map_or(Value::Null, |reject| json!({"code": reject.code.name(), "detail": reject.detail}));
        Ok(answer)
    }

    /// The evidence that is held of a session, held itself or not.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET` when neither is.
    pub fn evidence(&self, session: SessionId) -> Answer<Value> {
        let reader = self.reader()?;
        let items = evidence_of(self, &reader, session)?;
        if items.is_empty() && reader.session(session)?.is_none() {
            let what = format!("nothing is held of {}", session.short());
            return Err(Problem::new(Code::NotFoundYet, what).hint("throughline list"));
        }
        Ok(json!({"v": 1, "kind": "evidence-list", "session": session.to_string(), "items": items}))
    }

    /// One file of evidence.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET`.
    pub fn evidence_file(&self, session: SessionId, id: Cid) -> Answer<Vec<u8>> {
        let found = self.reader()?.evidence(session)?.into_iter().find(|kept| id_of(kept) == id);
        found.map(|kept| kept.bytes).ok_or_else(|| {
            Problem::new(Code::NotFoundYet, format!("no evidence {} of {}", id.short(), session.short()))
        })
    }

    /// Keeps a checked file, and its copy for people.
    fn put(&self, exhibit: &Exhibit, on_other: OnOther) -> Answer<Put> {
        let put = PutEvidence { exhibit: exhibit.clone(), on_other, at: now(), limits: LIMITS };
        let put = self.store().run(put)?;
        if put != Put::Held
            && let Err(error) = copy(&self.evidence_path(exhibit.session(), &exhibit.accusation()), exhibit)
        {
            tracing::warn!(session = exhibit.session().short(), "no copy in the evidence directory: {error}");
        }
        Ok(put)
    }

    /// Where the copy of a file lies.
    pub(super) fn evidence_path(&self, session: SessionId, accusation: &Accusation) -> PathBuf {
        let Accusation { kind, epoch, signer } = accusation;
        self.dirs().evidence().join(session.to_string()).join(format!("{kind}-epoch-{epoch}-{signer}.car"))
    }

    /// Evidence that came before the entries it stands on is put beside the chain now.
    pub(super) fn recall_evidence(&self, session: SessionId, evaluated: &mut Evaluated) -> Answer<()> {
        let reader = self.reader()?;
        for kept in reader.evidence(session)? {
            let exhibit = exhibit::check(kept.bytes)?;
            let mut entries = Vec::new();
            for entry in exhibit.entries() {
                if reader.entry(entry.cid())?.is_none() {
                    entries.push(Prechecked::of(entry.clone(), None)?);
                }
            }
            if !self.is_due(&reader, &exhibit, &entries, evaluated)? {
                continue;
            }
            self.store().run(PutControls { controls: exhibit.controls().to_vec(), at: now() })?;
            let again = self.settle_held(session, &Input { entries: &entries, ..Input::HELD })?;
            self.judge_owed(exhibit.owner())?;
            evaluated.verdict = again.verdict;
            evaluated.tip = again.tip;
            evaluated.left += again.left;
            evaluated.kept_aside += again.kept_aside;
        }
        Ok(())
    }
}

impl Node {
    /// Whether what just came is what a piece of evidence waited for: the entry that its lowest one stands on, or all of its
    /// entries while its tombstone is not known. Anything else was tried when it came.
    fn is_due(
        &self,
        reader: &Reader,
        exhibit: &Exhibit,
        lacking: &[Prechecked],
        evaluated: &Evaluated,
    ) -> Answer<bool> {
        let Some(lowest) = lacking.first() else {
            for control in exhibit.controls() {
                if reader.control(&control.cid().cid())?.is_none() {
                    return Ok(true);
                }
            }
            return Ok(false);
        };
        let Some(prev) = lowest.signed().value().prev() else { return Ok(false) };
        let Some((_, below)) = reader.entry(prev)? else { return Ok(false) };
        let tip = evaluated.tip.map_or(0, |tip| tip.seq.get());
        Ok(below.seq.get() + evaluated.adopted > tip)
    }
}

fn arrived(exhibit: &Exhibit) -> Answer<Arrived> {
    let entries = exhibit.entries().iter().map(|entry| Prechecked::of(entry.clone(), None));
    let entries = entries.collect::<Result<Vec<_>, _>>()?;
    Ok(Arrived { entries, controls: exhibit.controls().to_vec(), ..Arrived::default() })
}

/// Writes the copy in one step: it is whole or not there.
fn copy(path: &std::path::Path, exhibit: &Exhibit) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(path);
    std::fs::create_dir_all(dir)?;
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(exhibit.bytes())?;
    file.as_file().sync_all()?;
    file.persist(path).map(|_| ()).map_err(|error| error.error)
}

fn id_of(kept: &KeptEvidence) -> Cid {
    Cid::from_parts(Codec::Raw, HashKind::Sha256, kept.id)
}

/// The files of a session as lists show them, those first that concern its verdict most.
pub(super) fn evidence_of(node: &Node, reader: &Reader, session: SessionId) -> Answer<Vec<Value>> {
    let mut items = Vec::new();
    for kept in reader.evidence(session)? {
        let path = node.evidence_path(session, &kept.accusation);
        let (since, told) = (shape::rfc3339(kept.since), kept.told.map(shape::rfc3339));
        let mut item = exhibit::json_of(&exhibit::check(kept.bytes)?);
        item["since"] = since.into();
        item["told"] = json!(told);
        item["path"] = if path.is_file() { path.display().to_string().into() } else { Value::Null };
        items.push(item);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_void_are_bounded_and_the_oldest_is_forgotten_first() {
        let void = Void::default();
        let id = |number: usize| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.to_be_bytes());
            id
        };
        for number in 0..=VOID_MAX {
            void.note(id(number));
            void.note(id(number));
        }
        assert!(!void.holds(&id(0)) && void.holds(&id(1)) && void.holds(&id(VOID_MAX)));
    }
}
