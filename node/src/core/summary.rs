//! What lists show of a session after entries were put on its chain.

use throughline_protocol::entry::{Body, Note};
use throughline_protocol::fork::State;
use throughline_protocol::id::Seq;
use throughline_protocol::payload::Payload;
use throughline_protocol::verify::{ChainState, Outcome, Prechecked, VerifiedEntry, VerifiedSegment};
use throughline_store::{SessionRow, Summary};

use super::change::Run;
use crate::api::error::Answer;

/// Verdicts that an entry on the tip does not change: evidence that is held stays held.
const LASTING: &[&str] = &["fenced-tail", "revoked-tail", "forked", "frozen"];

/// The summary after a segment that extends the main chain; none when only selection over everything held can tell.
pub(super) fn after_extension(
    row: Option<&SessionRow>,
    segment: &VerifiedSegment,
) -> Answer<Option<Summary>> {
    after_entries(row, segment.after(), &segment.entries().iter().collect::<Vec<_>>())
}

/// As [`after_extension`], for a run in several parts.
pub(super) fn after_run(row: Option<&SessionRow>, run: &Run) -> Answer<Option<Summary>> {
    let Some(last) = run.last() else { return Ok(None) };
    after_entries(row, last.after(), &run.all().collect::<Vec<_>>())
}

fn after_entries(
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
    let verdict = match (before, outcome.state) {
        (Some(before), _) if LASTING.contains(&before.verdict.as_str()) => before.verdict.clone(),
        (_, State::Sealed) => "sealed".to_owned(),
        (_, State::Ok) => "valid".to_owned(),
        _ => return Ok(None),
    };
    let head_seq = outcome.head.map_or(0, |head| head.seq.get());
    let newest_first = entries.iter().rev();
    let set_here = title_of(newest_first.map(|entry| (entry.signed().value(), entry.payload())))?;
    Ok(Some(Summary {
        head: outcome.head,
        verdict,
        class: state.class(),
        title: set_here.or_else(|| before.and_then(|before| before.title.clone())),
        holder: state.holder(),
        pending: state.tip().seq.get().saturating_sub(head_seq),
        anchored_through: anchored(row, entries, &outcome),
    }))
}

/// The deepest anchor on the path. What the chain's state says of earlier entries may be out of date — a Ref that came
/// late, a device that was revoked — so for them what selection found counts.
fn anchored(row: Option<&SessionRow>, entries: &[&VerifiedEntry], outcome: &Outcome) -> Option<Seq> {
    let first = entries.first().map_or(Seq::ZERO, |entry| entry.signed().value().seq());
    let here = outcome.anchored_through.map(|(mark, _)| mark.seq).filter(|seq| *seq >= first);
    here.or_else(|| row.and_then(|row| row.summary.anchored_through))
}

/// The title that an entry sets, of the first one that does and whose payload is here. Give them newest first.
pub(super) fn title_of<'e>(
    entries: impl Iterator<Item = (&'e throughline_protocol::entry::Entry, Option<&'e std::sync::Arc<[u8]>>)>,
) -> Answer<Option<String>> {
    for (entry, payload) in entries {
        let may_title = matches!(&entry.body, Body::Genesis(_) | Body::Note(Note::Title));
        if let (true, Some(bytes)) = (may_title, payload) {
            let payload = Payload::check(entry, std::sync::Arc::clone(bytes))?;
            if let Some(title) = payload.title() {
                return Ok(Some(title.to_owned()));
            }
        }
    }
    Ok(None)
}

/// As [`title_of`], for entries that are not on a chain yet.
pub(super) fn title_of_checked<'e>(entries: impl Iterator<Item = &'e Prechecked>) -> Answer<Option<String>> {
    title_of(entries.map(|entry| (entry.signed().value(), entry.payload())))
}
