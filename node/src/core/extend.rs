//! The short way: a run of entries on the tip of a chain that has nothing beside it, or the beginning of a session.
//!
//! One verifier goes on from the state that is stored; the chain is not read. Whatever does not fit — an entry that stands
//! elsewhere, one that breaks a rule, one that revocation cuts — is left to the judgement over everything. So is a run that was read
//! ahead, but for what that judgement chose already.

use throughline_protocol::fork::State;
use throughline_protocol::id::SessionId;
use throughline_protocol::verify::{ChainState, Prechecked, VerifiedEntry, Verifier, WINDOW_MAX};
use throughline_store::{Reader, SessionRow, Summary};

use super::append::Held;
use super::base::standing;
use super::change::{Move, Run};
use super::controls::controls_of;
use super::evaluate::{Basis, Evaluated, Input, owner_of};
use super::following::{ControlDigest, Follows};
use super::{Node, summary};
use crate::api::error::Answer;

/// What became of the short way.
pub(super) enum Short {
    /// It was gone.
    Taken(Evaluated),
    /// The whole has to be judged.
    Whole,
    /// So it has, and what follows decides nothing: it stands on an entry that breaks a rule.
    Refused,
}

impl Node {
    /// Adopts what arrived when it is a run on the tip.
    pub(super) fn extend(&self, reader: &Reader, session: SessionId, input: &Input<'_>) -> Answer<Short> {
        if input.entries.len() > WINDOW_MAX || !reader.side_entries(session, None, 1)?.is_empty() {
            return Ok(Short::Whole);
        }
        let (row, state, owner) = match reader.session(session)? {
            Some(_) => {
                let standing = standing(reader, session)?;
                let owner = standing.row.owner;
                (Some(standing.row), Some(standing.state), owner)
            }
            None => (None, None, owner_of(session, input.entries)?),
        };
        let Some(entries) = run_on_tip(reader, session, row.as_ref(), input.entries)? else {
            return Ok(Short::Whole);
        };
        let Some(basis) = basis_of(reader, row.as_ref(), &entries, input)? else { return Ok(Short::Whole) };
        if let (true, Some(row)) = (entries.is_empty(), &row) {
            return Ok(Short::Taken(Evaluated::unchanged(&row.summary, Some(row.tip))));
        }
        // With the Refs: one may have come before the entry that it anchors.
        let mut controls = controls_of(reader, owner, Some(session))?;
        for control in input.controls {
            controls.insert(control);
        }
        let verifier = match &state {
            Some(state) => Verifier::resume(state.clone(), controls),
            None => Verifier::begin(controls),
        };
        let verifier = verifier.with_ancestry(Held { reader, session });
        // What is refused here is told by the judgement, which also says of which entry.
        let run = match Run::verify(self.principal(), verifier, entries) {
            Ok(Some(run)) => run,
            Ok(None) => return Ok(Short::Whole),
            Err(_) => return Ok(Short::Refused),
        };
        let Some(last) = run.last() else { return Ok(Short::Whole) };
        let summary = match (basis, &row) {
            (Basis::Following, Some(row)) => {
                let title = run.all().filter_map(VerifiedEntry::title).last().map(str::to_owned);
                let title = title.or_else(|| row.summary.title.clone());
                Some(Summary { head: Some(last.after().tip()), title, ..row.summary.clone() })
            }
            _ if is_settled(last.after()) => summary::after_run(reader, row.as_ref(), &run)?,
            _ => None,
        };
        let Some(summary) = summary else { return Ok(Short::Whole) };
        let verdict = summary.verdict.clone();
        let (controls, staging) = (input.controls, input.staging);
        let step = Move { node: self, reader, session, row: row.as_ref(), staging, controls, summary };
        let landed = step.extend(run)?;
        Ok(Short::Taken(Evaluated {
            verdict,
            tip: landed.tip,
            adopted: landed.adopted,
            left: 0,
            kept_aside: 0,
            dropped: 0,
            basis,
            refused: None,
            takeover: landed.takeover,
        }))
    }
}

/// On what a run on the tip may be taken in without judging everything; none when it may not.
fn basis_of(
    reader: &Reader,
    row: Option<&SessionRow>,
    entries: &[Prechecked],
    input: &Input<'_>,
) -> Answer<Option<Basis>> {
    let Follows::Known(following) = input.follows else {
        return Ok(row.is_none_or(|row| row.summary.verdict == "valid").then_some(Basis::Held));
    };
    let Some(row) = row.filter(|row| row.summary.verdict == "incomplete") else { return Ok(None) };
    let digest = ControlDigest::of(reader, row.owner, row.session)?;
    let cids = entries.iter().map(|entry| entry.signed().cid());
    Ok(following.chose(digest, cids).then_some(Basis::Following))
}

/// Whether selection over this chain alone has one answer, and cuts nothing.
fn is_settled(state: &ChainState) -> bool {
    state
        .outcome()
        .is_some_and(|outcome| outcome.cut.is_none() && matches!(outcome.state, State::Ok | State::Sealed))
}

/// The entries that are not on the chain yet, oldest first; none when they do not follow the tip one by one.
fn run_on_tip(
    reader: &Reader,
    session: SessionId,
    row: Option<&SessionRow>,
    entries: &[Prechecked],
) -> Answer<Option<Vec<Prechecked>>> {
    let mut new = Vec::with_capacity(entries.len());
    for entry in entries {
        let cid = entry.signed().cid();
        let held = match row {
            Some(row) => reader.is_ancestor(session, cid, row.tip.seq)?,
            None => false,
        };
        if !held {
            new.push(entry.clone());
        }
    }
    new.sort_by_key(|entry| (entry.signed().value().seq(), entry.signed().cid()));
    new.dedup_by_key(|entry| entry.signed().cid());
    let mut prev = row.map(|row| row.tip.cid);
    for entry in &new {
        if entry.signed().value().prev() != prev {
            return Ok(None);
        }
        prev = Some(entry.signed().cid());
    }
    Ok(Some(new))
}
