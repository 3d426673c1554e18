//! What lists show of a session after entries were put on its chain.

use throughline_protocol::block::Decoded;
use throughline_protocol::entry::Entry;
use throughline_protocol::fork::{Pins, SessionFacts};
use throughline_protocol::id::Seq;
use throughline_protocol::verify::{ChainState, Outcome, TailKind, Verdict, VerifiedEntry, VerifiedSegment};
use throughline_store::{Reader, SessionRow, Summary};

use super::change::Run;
use super::controls::controls_of;
use crate::api::error::Answer;

/// The summary after a segment that extends the main chain; none when only selection over everything held can tell.
pub(super) fn after_extension(
    reader: &Reader,
    row: Option<&SessionRow>,
    segment: &VerifiedSegment,
) -> Answer<Option<Summary>> {
    after_entries(reader, row, segment.after(), &segment.entries().iter().collect::<Vec<_>>())
}

/// As [`after_extension`], for a run in several parts.
pub(super) fn after_run(reader: &Reader, row: Option<&SessionRow>, run: &Run) -> Answer<Option<Summary>> {
    let Some(last) = run.last() else { return Ok(None) };
    after_entries(reader, row, last.after(), &run.all().collect::<Vec<_>>())
}

fn after_entries(
    reader: &Reader,
    row: Option<&SessionRow>,
    state: &ChainState,
    entries: &[&VerifiedEntry],
) -> Answer<Option<Summary>> {
    let Some(outcome) = state.outcome().filter(|outcome| outcome.cut.is_none()) else { return Ok(None) };
    let before = row.map(|row| &row.summary);
    if before.is_some_and(|before| before.head.is_none()) {
        // Nothing counted so far; whether anything does now is for selection.
        return Ok(None);
    }
    // Evidence that is held stays held. A dispute may end with these entries: that is for selection too.
    let tail = match before.map(|before| before.verdict.as_str()) {
        Some("forked" | "frozen") => return Ok(None),
        Some("revoked-tail") => Some(TailKind::Revoked),
        Some("fenced-tail") => Some(TailKind::Fenced),
        Some(_) | None => None,
    };
    let head_seq = outcome.head.map_or(0, |head| head.seq.get());
    let set_here = entries.iter().rev().find_map(|entry| entry.title()).map(str::to_owned);
    Ok(Some(Summary {
        head: outcome.head,
        verdict: Verdict::of(outcome.state, tail, None).word().to_owned(),
        class: state.class(),
        title: set_here.or_else(|| before.and_then(|before| before.title.clone())),
        holder: state.holder(),
        pending: state.tip().seq.get().saturating_sub(head_seq),
        anchored_through: match row {
            Some(row) => anchored(reader, row, state.facts(), &outcome)?,
            None => outcome.anchored_through.map(|(mark, _)| mark.seq),
        },
    }))
}

/// The deepest anchor on the path to the new head. What the chain's state says of entries up to the old head may be out of
/// date — a Ref that came late, a device that was revoked — so for them what selection found counts. Above it are
/// entries that wait, and Refs to them that the state never saw.
fn anchored(
    reader: &Reader,
    row: &SessionRow,
    facts: &SessionFacts,
    outcome: &Outcome,
) -> Answer<Option<Seq>> {
    let above = row.summary.head.map(|head| head.seq);
    let seen = outcome.anchored_through.map(|(mark, _)| mark.seq).filter(|seq| Some(*seq) > above);
    let waited = row.summary.pending > 0 && outcome.head.map(|head| head.seq) > above;
    let late = if waited { late_anchor(reader, row, facts)?.filter(|seq| Some(*seq) > above) } else { None };
    Ok(seen.max(late).or(row.summary.anchored_through))
}

/// The deepest entry of the stored chain that a Ref or a `keep` item pins.
fn late_anchor(reader: &Reader, row: &SessionRow, facts: &SessionFacts) -> Answer<Option<Seq>> {
    let controls = controls_of(reader, row.owner, Some(row.session))?;
    let mut deepest = None;
    for (cid, epoch) in Pins::of(facts, &controls).iter() {
        if !reader.is_ancestor(row.session, cid, row.tip.seq)? {
            continue;
        }
        if let Some((_, stored)) = reader.entry(cid)?
            && (epoch.is_none() || epoch == Some(Decoded::<Entry>::decode(stored.bytes)?.value().epoch()))
        {
            deepest = deepest.max(Some(stored.seq));
        }
    }
    Ok(deepest)
}
