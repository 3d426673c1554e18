//! From what was found to a verdict: the five checks and the one word. `docs/PROTOCOL.md` §Verification.

use std::collections::BTreeMap;

use super::inventory::Inventory;
use super::report::{
    Branch, Check, Checks, Counts, Flaw, Fork, Layer, ModelPart, Problem, Rank, Report, SignerPart,
    SignerTally, Tail, TailKind, Verdict,
};
use super::stream::Verifier;
use crate::code::{Code, Reject};
use crate::fork::{AnchoredBy, Evidence, Judged, Mark, Selection, Set, State};
use crate::id::{EntryCid, Seq, SessionId};

/// What was given, and what was refused before it could be judged.
pub(super) struct Given {
    pub(super) told: Option<EntryCid>,
    pub(super) counts: Counts,
    pub(super) problems: Vec<Problem>,
    pub(super) problem_count: u64,
    pub(super) models: Vec<ModelPart>,
    pub(super) inventory: Inventory,
}

/// What the blobs came to, whichever way they were judged.
pub(super) struct Findings {
    session: Option<SessionId>,
    state: State,
    head: Option<Mark>,
    anchored_through: Option<(Mark, AnchoredBy)>,
    told: Told,
    pending: u64,
    tail: Option<Tail>,
    fork: Option<Fork>,
    evidence: Vec<Evidence>,
    problems: Vec<Problem>,
    signers: Vec<SignerPart>,
    /// Seqs of blobs that are not held, as the entries above them say.
    seqs_below: BTreeMap<EntryCid, Seq>,
}

/// Where the told head stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    /// It is the head.
    Head,
    /// It is valid and waits above the head for the holder to put it in order.
    Pending,
    /// It is in, and selection returns another: below it, beside it, or above it by an entry of the holder.
    Elsewhere,
    /// It is not in.
    Out,
}

impl Findings {
    /// Nothing was given that could be judged.
    pub(super) fn nothing(session: Option<SessionId>, told: Option<EntryCid>) -> Self {
        Findings {
            session,
            state: State::Incomplete,
            head: None,
            anchored_through: None,
            told: told.map_or(Told::Nothing, |_| Told::Out),
            pending: 0,
            tail: None,
            fork: None,
            evidence: Vec::new(),
            problems: Vec::new(),
            signers: Vec::new(),
            seqs_below: BTreeMap::new(),
        }
    }
}

/// What a stream came to. `seen` is whether the told head went by.
pub(super) fn of_stream(
    verifier: &Verifier,
    signers: &SignerTally,
    told: Option<EntryCid>,
    seen: Option<Mark>,
) -> Findings {
    let Some(state) = verifier.state() else {
        return Findings::nothing(None, told);
    };
    let nothing = Findings::nothing(Some(state.session()), told);
    let Some(outcome) = state.outcome() else { return nothing };
    let tip = state.tip();
    let tail = outcome.cut.map(|cut| Tail {
        kind: TailKind::Revoked,
        from: cut.from,
        to: tip,
        entries: tip.seq.get() - cut.from.seq.get() + 1,
        signer: cut.signer,
        tombstone: Some(cut.tombstone),
        last_anchor: cut.last_anchor,
    });
    let valid_end = tail.map_or(tip.seq.get(), |tail| tail.from.seq.get().saturating_sub(1));
    let unsettled = verifier.unsettled().first().map(|link| Problem {
        cid: Some(link.from.cid),
        seq: Some(link.from.seq),
        reject: Reject::new(
            Code::Incomplete,
            format!("{} links to far entries were not looked up", verifier.unsettled().len()),
        ),
    });
    Findings {
        state: outcome.state,
        head: outcome.head,
        anchored_through: outcome.anchored_through,
        told: match (told, outcome.head, seen) {
            (None, ..) => Told::Nothing,
            (Some(told), Some(head), _) if told == head.cid => Told::Head,
            (Some(_), Some(head), Some(seen)) if head.seq < seen.seq && seen.seq.get() <= valid_end => {
                Told::Pending
            }
            (Some(_), _, Some(_)) => Told::Elsewhere,
            (Some(_), _, None) => Told::Out,
        },
        pending: outcome.head.map_or(0, |head| valid_end.saturating_sub(head.seq.get())),
        tail,
        problems: unsettled.into_iter().collect(),
        signers: signers.parts(),
        ..nothing
    }
}

/// What a set came to.
pub(super) fn of_set(set: &Set, told: Option<EntryCid>) -> Findings {
    let judged = set.judge();
    let selection = judged.selection();
    let told = told.map_or(Told::Nothing, |told| told_place(&judged, &selection, told));
    let mut findings = Findings {
        state: selection.state,
        head: selection.head,
        anchored_through: selection.anchored_through,
        told,
        pending: selection.pending.len() as u64,
        tail: tail(&judged, &selection),
        fork: fork(&judged, &selection),
        signers: signers(&judged),
        ..Findings::nothing(Some(set.session()), None)
    };
    for (cid, reject) in judged.problems() {
        let skeleton = judged.skeleton(cid);
        let seq = skeleton.map(crate::fork::Skeleton::seq);
        if let Some((prev, seq)) = skeleton.and_then(|s| s.prev()).zip(seq)
            && let Ok(below) = Seq::new(seq.get().saturating_sub(1))
        {
            findings.seqs_below.insert(prev, below);
        }
        findings.problems.push(Problem { cid: Some(cid), seq, reject: reject.clone() });
    }
    let foreign = judged.foreign();
    findings.problems.extend(foreign.map(|(cid, seq, reject)| Problem {
        cid: Some(cid),
        seq: Some(seq),
        reject,
    }));
    findings.evidence = selection.evidence;
    findings
}

fn told_place(judged: &Judged<'_>, selection: &Selection, told: EntryCid) -> Told {
    match selection.head {
        _ if judged.position(told).is_none() => Told::Out,
        Some(head) if head.cid == told => Told::Head,
        Some(_) if selection.pending.contains(&told) => Told::Pending,
        Some(_) | None => Told::Elsewhere,
    }
}

fn signers(judged: &Judged<'_>) -> Vec<SignerPart> {
    let mut tally = SignerTally::default();
    for (skeleton, position, standing) in judged.entries() {
        tally.count(skeleton.signer(), standing, skeleton.capability(), position.epoch);
    }
    tally.parts()
}

/// The verdict on entries and control blobs of which none is wrong or missing: what a node says of what it keeps.
#[must_use]
pub fn verdict_of(judged: &Judged<'_>, selection: &Selection) -> Verdict {
    Verdict::of(selection.state, tail_kind(judged, selection), None)
}

fn tail_kind(judged: &Judged<'_>, selection: &Selection) -> Option<TailKind> {
    if !selection.revoked_tail.is_empty() {
        Some(TailKind::Revoked)
    } else if selection.fenced.iter().any(|cid| judged.is_holder_entry(*cid)) {
        Some(TailKind::Fenced)
    } else {
        None
    }
}

/// Entries that were cut off, or that a holder signed after its epoch had ended.
fn tail(judged: &Judged<'_>, selection: &Selection) -> Option<Tail> {
    let marks = |cids: &mut dyn Iterator<Item = EntryCid>| -> Vec<Mark> {
        let mut marks: Vec<Mark> = cids.filter_map(|cid| judged.mark(cid)).collect();
        marks.sort_unstable();
        marks
    };
    let kind = tail_kind(judged, selection)?;
    let marks = match kind {
        TailKind::Revoked => marks(&mut selection.revoked_tail.iter().copied()),
        TailKind::Fenced => {
            marks(&mut selection.fenced.iter().copied().filter(|cid| judged.is_holder_entry(*cid)))
        }
    };
    let cut = judged.cut(selection).filter(|_| kind == TailKind::Revoked);
    let (lowest, to) = (*marks.first()?, *marks.last()?);
    Some(Tail {
        kind,
        from: cut.map_or(lowest, |cut| cut.from),
        to,
        entries: marks.len() as u64,
        signer: judged.skeleton(cut.map_or(lowest, |cut| cut.from).cid)?.signer(),
        tombstone: cut.map(|cut| cut.tombstone),
        last_anchor: cut.and_then(|cut| cut.last_anchor),
    })
}

/// The dispute that stops the session; without one the first equivocation among what is held.
fn fork(judged: &Judged<'_>, selection: &Selection) -> Option<Fork> {
    let branch = |head: Mark, rank: Rank, why: Code| {
        judged.skeleton(head.cid).map(|skeleton| Branch { head, signer: skeleton.signer(), rank, why })
    };
    if let (false, Some(at)) = (selection.disputed.is_empty(), selection.head) {
        // Several openings of one epoch, or several histories of one holder.
        let opened = selection.disputed.iter().all(|tip| judged.opens(tip.cid));
        let why = if opened { Code::OwnerEquivocation } else { Code::Equivocation };
        let branches = selection.disputed.iter().filter_map(|tip| branch(*tip, Rank::Undecided, why));
        return Some(Fork { at, branches: branches.collect() });
    }
    let head = selection.head?;
    let (entries, at, why) = match selection.evidence.first()? {
        Evidence::Holder { entries, meet, .. } => (entries, meet, Code::Equivocation),
        Evidence::Owner { entries, meet, .. } => (entries, meet, Code::OwnerEquivocation),
    };
    let rank = |mark: &Mark| {
        if judged.precedes(mark.cid, head.cid) { Rank::Kept } else { Rank::Rejected }
    };
    Some(Fork {
        at: *at,
        branches: entries.iter().filter_map(|mark| branch(*mark, rank(mark), why)).collect(),
    })
}

/// Puts what was found and what was given together.
pub(super) fn report(mut findings: Findings, given: Given) -> Report {
    let mut problems = std::mem::take(&mut findings.problems);
    let mut count = given.problem_count + problems.len() as u64;
    problems.extend(given.problems);
    for problem in &mut problems {
        let below = problem.cid.and_then(|cid| findings.seqs_below.get(&cid));
        problem.seq = problem.seq.or(below.copied());
    }
    if let Some(problem) = told_problem(&findings, given.told, &problems) {
        problems.push(problem);
        count += 1;
    }
    // What is wrong comes before what is missing: the gap is often its consequence.
    problems.sort_by_key(|problem| (problem.is_gap(), problem.seq, problem.cid));
    let gap = findings.state == State::Incomplete || problems.iter().any(Problem::is_gap);
    let flaw = if problems.iter().any(|problem| !problem.is_gap()) {
        Some(Flaw::Fault)
    } else {
        problems.first().map(|_| Flaw::Gap)
    };
    Report {
        session: findings.session,
        verdict: Verdict::of(findings.state, findings.tail.map(|tail| tail.kind), flaw),
        checks: checks(&findings, &given.counts, &problems, gap),
        counts: given.counts,
        told: given.told,
        valid_through: findings.head,
        anchored_through: findings.anchored_through,
        pending: findings.pending,
        tail: findings.tail,
        fork: findings.fork,
        evidence: findings.evidence,
        first_problem: problems.into_iter().next(),
        problems: count,
        inventory: given.inventory,
        signers: findings.signers,
        models: given.models,
    }
}

/// What the told head adds, when nothing else explains why it is not the head.
fn told_problem(findings: &Findings, told: Option<EntryCid>, problems: &[Problem]) -> Option<Problem> {
    let undisputed = matches!(findings.state, State::Ok | State::Sealed);
    let (code, what) = match findings.told {
        Told::Out if problems.is_empty() => (Code::Incomplete, "the told head is not held"),
        Told::Elsewhere if undisputed && findings.tail.is_none() => {
            (Code::RefInconsistent, "selection returns another head than the one told")
        }
        Told::Nothing | Told::Head | Told::Pending | Told::Elsewhere | Told::Out => return None,
    };
    Some(Problem { cid: told, seq: None, reject: Reject::new(code, what) })
}

fn checks(findings: &Findings, counts: &Counts, problems: &[Problem], gap: bool) -> Checks {
    let fails = |layer: Layer| {
        problems.iter().any(|problem| !problem.is_gap() && Layer::of(problem.reject.code) == layer)
    };
    let check = |layer: Layer, unchecked: bool| match (fails(layer), unchecked) {
        (true, _) => Check::Fail,
        (false, true) => Check::Unchecked,
        (false, false) => Check::Pass,
    };
    let revoked = findings.state == State::RevokedUnanchored;
    let inconsistent = problems.iter().any(|problem| problem.reject.code == Code::RefInconsistent);
    Checks {
        hash: check(Layer::Hash, counts.blobs == 0),
        chain: check(Layer::Chain, gap),
        signature: check(Layer::Signature, counts.entries == 0),
        authority: if revoked { Check::Fail } else { check(Layer::Authority, gap) },
        head: match findings.told {
            Told::Nothing => Check::Unchecked,
            // That selection returns another head is the only gap that is about the head itself.
            _ if inconsistent => Check::Fail,
            // What is missing may decide.
            _ if gap => Check::Unchecked,
            Told::Head | Told::Pending if matches!(findings.state, State::Ok | State::Sealed) => Check::Pass,
            Told::Head | Told::Pending | Told::Elsewhere | Told::Out => Check::Fail,
        },
    }
}
