//! `fsck --repair`: what is damaged comes back from peers, what only repeats other rows is written anew, and rows that say something
//! of their own are made again by verifying and judging, as far as that is safe. `docs/decisions/0024-what-a-repair-may-make-again.md`.
//!
//! It asks for what it lacks by hash, so nothing that comes has to be believed; signatures and chains are checked again by the
//! `fsck` that follows. What cannot be known any more is not guessed: where it may have forbidden a signature, nothing is signed until a
//! later handoff, and the report says what the person is to do.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::sync::Arc;

use serde_json::{Value, json};
use throughline_protocol::evidence::{Accusation, Exhibit};
use throughline_protocol::id::{Cid, Principal, SessionId};
use throughline_protocol::verify::LinkCounts;
use throughline_store::{
    Damage, DropUnreadableEvidence, Fsck, LostRow, Mend, NoteUnknownGuard, Noted, Rebuild, StoreError,
};

use super::evidence::{LIMITS, Source};
use super::owed::Again;
use super::{Node, StoreInventory, now};
use crate::api::error::{Answer, Problem};
use crate::exhibit;
use crate::report::{self, Required};
use crate::sync::{BlobsCame, Tally};

/// Damaged blobs that one act of repair puts back at once; what is beyond stays for the next one.
const BLOBS_MAX: usize = 4_096;

/// Blobs.
impl Node {
    /// Hashes everything that is stored and verifies every chain again. Counts entries on `tally`.
    ///
    /// # Errors
    /// When the database cannot be read at all; damage is listed.
    pub fn fsck(&self, tally: &Tally) -> Answer<Fsck> {
        tally.expect(self.reader()?.stats()?.entries);
        Ok(self.store().fsck_told(&mut || tally.verified(1))?)
    }

    /// Damaged blobs by the owner of the session that they belong to.
    ///
    /// # Errors
    /// When the database cannot be read at all.
    pub fn damaged(&self, found: &Fsck) -> Answer<BTreeMap<Option<Principal>, BTreeSet<Damage>>> {
        let reader = self.reader()?;
        let mut by_owner: BTreeMap<Option<Principal>, BTreeSet<Damage>> = BTreeMap::new();
        for damage in found.damaged.iter().take(BLOBS_MAX) {
            let owner = damage.session().and_then(|session| reader.owner_of(session).ok().flatten());
            by_owner.entry(owner.or(self.owner())).or_default().insert(*damage);
        }
        Ok(by_owner)
    }

    /// Puts blobs back where they were damaged, and writes the index and the counters anew. Returns how many blobs.
    ///
    /// # Errors
    /// When the store refuses.
    pub fn mend(&self, damaged: &BTreeSet<Damage>, came: &BlobsCame) -> Answer<usize> {
        let bytes_of = |damage: &Damage| {
            let block = came.blocks.iter().find(|block| block.cid().digest() == damage.digest())?;
            Some((*damage, Arc::clone(block.bytes())))
        };
        let blobs: Vec<_> = damaged.iter().filter_map(bytes_of).collect();
        let count = blobs.len();
        self.store().run(Mend { blobs, at: now() })?;
        Ok(count)
    }
}

/// The CIDs that damaged blobs may be asked for by.
#[must_use]
pub fn cids_of(damaged: &BTreeSet<Damage>) -> BTreeSet<Cid> {
    damaged.iter().flat_map(Damage::cids).collect()
}

/// Rows.
impl Node {
    /// Makes rows again that were lost, after the blobs that they follow from came back, and judges what was damaged beside a chain.
    /// Says of each row what became of it; one that cannot be made again keeps no other. Counts entries on `tally`.
    ///
    /// # Errors
    /// When the database cannot be read at all.
    pub fn mend_rows(&self, found: &Fsck, tally: &Tally) -> Answer<Vec<Value>> {
        let (mut told, mut verified) = (Vec::new(), BTreeSet::new());
        if !found.rows.is_empty() {
            // At most all of them: how long a chain is whose row is lost is not known.
            tally.expect(self.reader()?.stats()?.entries);
        }
        for row in &found.rows {
            match *row {
                // Both follow from one reading of the chain.
                LostRow::Session(session) | LostRow::State(session) => {
                    if verified.insert(session) {
                        told.extend(self.rebuild(session, *row, tally));
                    }
                }
                LostRow::Guard(session) => told.extend(self.note_unknown_guard(session)),
                LostRow::Evidence(session) => told.extend(self.show_again(session)?),
            }
        }
        let beside = found.damaged.iter().filter_map(|damage| match damage {
            Damage::Side { session, .. } => Some(*session),
            Damage::Entry { .. } | Damage::Block { .. } | Damage::Control { .. } => None,
        });
        for session in beside.collect::<BTreeSet<_>>() {
            if let Err(problem) = self.judge_again(session) {
                tracing::warn!(
                    session = session.short(),
                    "a session is not judged after a repair: {problem}"
                );
            }
        }
        // Sessions that could not be judged for what was damaged.
        self.judge_all_owed(Again::All)?;
        Ok(told)
    }

    /// The rows of a session that its chain tells.
    fn rebuild(&self, session: SessionId, row: LostRow, tally: &Tally) -> Vec<Value> {
        let rebuilt = || -> Result<Vec<LostRow>, StoreError> {
            let chain = self.store().reader()?.read_again(session, &mut |_| tally.verified(1))?;
            self.store().run(Rebuild { chain, at: now() })
        };
        let rows = match rebuilt() {
            Ok(rows) => rows,
            Err(error) => return vec![left(row, &error.into())],
        };
        if rows.contains(&LostRow::Session(session)) {
            match self.judge_again(session) {
                Ok(_) => self.after_commit(session),
                // Its row says so: it is `incomplete`, and judged when the node starts again.
                Err(problem) => {
                    tracing::warn!(session = session.short(), "a session is not judged yet: {problem}");
                }
            }
        }
        rows.iter().map(|row| entry(*row, Outcome::MadeAgain, made_of(*row), None)).collect()
    }

    fn note_unknown_guard(&self, session: SessionId) -> Option<Value> {
        let row = LostRow::Guard(session);
        match self.store().run(NoteUnknownGuard { session }) {
            Ok(Noted::Now) => {
                let detail = "what was signed here is not known any more: nothing is signed until a handoff";
                Some(entry(row, Outcome::Noted, detail, None))
            }
            // The row of its session was lost too, and made again with the same note.
            Ok(Noted::Needless) => None,
            Err(error) => Some(left(row, &error.into())),
        }
    }

    /// Evidence that cannot be read: made again by judging what is held, or taken from the copy for people. What neither gives is told
    /// this once, and dropped.
    fn show_again(&self, session: SessionId) -> Answer<Vec<Value>> {
        let row = LostRow::Evidence(session);
        let damaged = self.reader()?.unreadable_evidence(session)?;
        if let Err(problem) = self.judge_if_held(session) {
            return Ok(vec![left(row, &problem)]);
        }
        for accusation in self.reader()?.unreadable_evidence(session)?.into_iter().flatten() {
            let Some(copy) = self.copy_of(session, &accusation) else { continue };
            if let Err(problem) = self.take_evidence(&copy, Source::User) {
                tracing::warn!(session = session.short(), "a copy of evidence is not taken: {problem}");
            }
        }
        let lost = self.store().run(DropUnreadableEvidence { session })?;
        let shown: Vec<Accusation> =
            self.reader()?.evidence(session)?.iter().map(|kept| kept.accusation).collect();
        let fate = |accusation: &Option<Accusation>| match accusation {
            Some(accusation) if shown.contains(accusation) => (Outcome::MadeAgain, "it is shown again"),
            _ if lost.contains(accusation) => (Outcome::Lost, "nothing that is held shows it any more"),
            _ => (Outcome::Void, "what is held says otherwise by now"),
        };
        Ok(damaged
            .iter()
            .map(|accusation| {
                let (outcome, detail) = fate(accusation);
                entry(row, outcome, detail, accusation.as_ref())
            })
            .collect())
    }

    fn judge_if_held(&self, session: SessionId) -> Answer<()> {
        if self.reader()?.session(session)?.is_some() {
            self.judge_again(session)?;
        }
        Ok(())
    }

    /// The copy for people of a file of evidence, if it is there and shows the same.
    fn copy_of(&self, session: SessionId, accusation: &Accusation) -> Option<Exhibit> {
        let file = std::fs::File::open(self.evidence_path(session, accusation)).ok()?;
        let mut bytes = Vec::new();
        file.take(LIMITS.total_bytes_max).read_to_end(&mut bytes).ok()?;
        let exhibit = exhibit::check(bytes).ok()?;
        (exhibit.session() == session && exhibit.accusation() == *accusation).then_some(exhibit)
    }
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It says what it said, as far as that can be known.
    MadeAgain,
    /// In its place stands that what it said is not known.
    Noted,
    /// It is gone.
    Lost,
    /// It would say nothing true by now, and is gone.
    Void,
    /// It is as it was.
    Left,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Outcome::MadeAgain => "made-again",
            Outcome::Noted => "noted",
            Outcome::Lost => "lost",
            Outcome::Void => "void",
            Outcome::Left => "left",
        }
    }
}

fn word(row: LostRow) -> &'static str {
    match row {
        LostRow::Session(_) => "session",
        LostRow::State(_) => "state",
        LostRow::Guard(_) => "sign-guard",
        LostRow::Evidence(_) => "evidence",
    }
}

fn made_of(row: LostRow) -> &'static str {
    match row {
        LostRow::Session(_) => {
            "made again from its chain; what else it said is not known, so nothing is signed until a handoff"
        }
        LostRow::State(_) => "made again by verifying the chain from its genesis",
        LostRow::Guard(_) | LostRow::Evidence(_) => "made again",
    }
}

/// What a repair would try.
fn plan_of(row: LostRow) -> &'static str {
    match row {
        LostRow::Session(_) => {
            "verify the chain and make the row again; this node signs nothing there until a handoff"
        }
        LostRow::State(_) => "verify the chain and make the verifier's state again",
        LostRow::Guard(_) => "note that what was signed is not known; nothing is signed until a handoff",
        LostRow::Evidence(_) => "judge the session and keep what shows it again, else drop it",
    }
}

/// What a person does who wants to write in the session from here.
fn fix_of(row: LostRow) -> Option<String> {
    match row {
        LostRow::Session(session) | LostRow::Guard(session) => {
            Some(format!("throughline move {} --to self", session.short()))
        }
        LostRow::State(_) | LostRow::Evidence(_) => None,
    }
}

fn entry(row: LostRow, outcome: Outcome, detail: &str, accusation: Option<&Accusation>) -> Value {
    let mut told = json!({
        "row": word(row), "session": row.session().to_string(), "outcome": outcome.word(), "detail": detail,
    });
    if let Some(fix) = fix_of(row) {
        told["fix"] = fix.into();
    }
    if let Some(Accusation { kind, epoch, signer }) = accusation {
        told["accusation"] = json!({"kind": kind.word(), "epoch": epoch.get(), "signer": signer.to_string()});
    }
    told
}

fn left(row: LostRow, why: &Problem) -> Value {
    let mut told = entry(row, Outcome::Left, why.detail(), None);
    told["code"] = why.code().name().into();
    // What a chain follows from has to come back first.
    told["fix"] = "throughline fsck --repair --from PEER".into();
    told
}

/// What a repair would do, row by row, in its order.
#[must_use]
pub fn plan(found: &Fsck) -> Value {
    let rows = found.rows.iter().map(|row| {
        let mut told = json!({"row": word(*row), "session": row.session().to_string(), "act": plan_of(*row)});
        if let Some(fix) = fix_of(*row) {
            told["fix"] = fix.into();
        }
        told
    });
    json!({"blobs": found.damaged.len().min(BLOBS_MAX), "rows": rows.collect::<Vec<_>>()})
}

/// What `fsck` answers.
#[must_use]
pub fn fsck_json(found: &Fsck) -> Value {
    let problems: Vec<Value> = found
        .problems
        .iter()
        .map(|problem| {
            json!({
                "code": problem.code.name(),
                "session": problem.session.map(|session| session.to_string()),
                "detail": problem.what,
            })
        })
        .collect();
    json!({
        "v": 1, "kind": "fsck",
        "checked": {
            "sessions": found.sessions, "entries": found.entries, "blocks": found.blocks,
            "controls": found.controls,
        },
        "problemCount": found.problem_count,
        "problems": problems,
        "repairable": found.damaged.len(),
        "repairableRows": found.rows.len(),
    })
}

/// What is here of the words and files of all sessions, beside what a check found.
pub fn fsck_inventory(answer: &mut Value, found: &StoreInventory, asked: Required) {
    let counts = |payloads: &LinkCounts, files: &LinkCounts| {
        (report::links(payloads, asked != Required::Nothing), report::links(files, asked == Required::All))
    };
    (answer["payloads"], answer["files"]) = counts(&found.payloads, &found.files);
    let lacking = found.lacking.iter().map(|(session, lacks)| {
        let (payloads, files) = counts(&lacks.payloads, &lacks.files);
        json!({"session": session.to_string(), "payloads": payloads, "files": files})
    });
    answer["lacking"] = lacking.collect::<Vec<_>>().into();
}

#[cfg(test)]
#[path = "repair_tests.rs"]
mod tests;
