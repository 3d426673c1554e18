//! What lists show of a session after entries were put on its chain.

use throughline_protocol::entry::Body;
use throughline_protocol::fork::State;
use throughline_protocol::payload::Payload;
use throughline_protocol::verify::{ChainState, VerifiedEntry, VerifiedSegment};
use throughline_store::{SessionRow, Summary};

use crate::api::error::Answer;

/// Verdicts that an append does not change: evidence that is held stays held.
const LASTING: &[&str] = &["fenced-tail", "revoked-tail", "forked", "frozen"];

/// The summary after a segment that extends the main chain; none when only selection over everything held can tell.
pub(super) fn after_extension(
    row: Option<&SessionRow>,
    segment: &VerifiedSegment,
) -> Answer<Option<Summary>> {
    let state = segment.after();
    let Some(outcome) = state.outcome() else { return Ok(None) };
    let before = row.map(|row| &row.summary);
    let verdict = match (before, outcome.state) {
        (Some(before), _) if LASTING.contains(&before.verdict.as_str()) => before.verdict.clone(),
        _ if outcome.cut.is_some() => return Ok(None),
        (_, State::Sealed) => "sealed".to_owned(),
        (_, State::Ok) => "valid".to_owned(),
        _ => return Ok(None),
    };
    let head_seq = outcome.head.map_or(0, |head| head.seq.get());
    Ok(Some(Summary {
        head: outcome.head,
        verdict,
        class: state.class(),
        title: title_of(segment.entries())?.or_else(|| before.and_then(|before| before.title.clone())),
        holder: state.holder(),
        pending: state.tip().seq.get().saturating_sub(head_seq),
        anchored_through: outcome.anchored_through.map(|(mark, _)| mark.seq),
    }))
}

/// The last title that the entries set, if their payloads are here.
pub(super) fn title_of(entries: &[VerifiedEntry]) -> Answer<Option<String>> {
    for entry in entries.iter().rev() {
        let body = &entry.signed().value().body;
        let may_title = matches!(body, Body::Genesis(_))
            || matches!(body, Body::Note(throughline_protocol::entry::Note::Title));
        if let (true, Some(bytes)) = (may_title, entry.payload()) {
            let payload = Payload::check(entry.signed().value(), bytes.clone())?;
            if let Some(title) = payload.title() {
                return Ok(Some(title.to_owned()));
            }
        }
    }
    Ok(None)
}

/// The class and holder that a chain state shows, for summaries made elsewhere.
pub(super) fn holder_and_class(
    state: &ChainState,
) -> (Option<throughline_protocol::id::Principal>, throughline_protocol::entry::Class) {
    (state.holder(), state.class())
}
