//! What lists show of a session after entries were put on its chain.

use throughline_protocol::block::Decoded;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::entry::Entry;
use throughline_protocol::fork::State;
use throughline_protocol::id::Seq;
use throughline_protocol::verify::{ChainState, Outcome, VerifiedEntry, VerifiedSegment};
use throughline_store::{Reader, SessionRow, Summary};

use super::change::Run;
use super::controls::controls_of;
use crate::api::error::Answer;

/// Verdicts that an entry on the tip does not change: evidence that is held stays held.
const LASTING: &[&str] = &["fenced-tail", "revoked-tail", "forked", "frozen"];

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
    let verdict = match (before, outcome.state) {
        (Some(before), _) if LASTING.contains(&before.verdict.as_str()) => before.verdict.clone(),
        (_, State::Sealed) => "sealed".to_owned(),
        (_, State::Ok) => "valid".to_owned(),
        _ => return Ok(None),
    };
    let head_seq = outcome.head.map_or(0, |head| head.seq.get());
    let set_here = entries.iter().rev().find_map(|entry| entry.title()).map(str::to_owned);
    Ok(Some(Summary {
        head: outcome.head,
        verdict,
        class: state.class(),
        title: set_here.or_else(|| before.and_then(|before| before.title.clone())),
        holder: state.holder(),
        pending: state.tip().seq.get().saturating_sub(head_seq),
        anchored_through: match row {
            Some(row) => anchored(reader, row, &outcome)?,
            None => outcome.anchored_through.map(|(mark, _)| mark.seq),
        },
    }))
}

/// The deepest anchor on the path to the new head. What the chain's state says of entries up to the old head may be out of
/// date — a Ref that came late, a device that was revoked — so for them what selection found counts. Above it are
/// entries that wait, and Refs to them that the state never saw.
fn anchored(reader: &Reader, row: &SessionRow, outcome: &Outcome) -> Answer<Option<Seq>> {
    let above = row.summary.head.map(|head| head.seq);
    let seen = outcome.anchored_through.map(|(mark, _)| mark.seq).filter(|seq| Some(*seq) > above);
    let waited = row.summary.pending > 0 && outcome.head.map(|head| head.seq) > above;
    let late = if waited { late_anchor(reader, row)?.filter(|seq| Some(*seq) > above) } else { None };
    Ok(seen.max(late).or(row.summary.anchored_through))
}

/// The deepest entry of the stored chain that a Ref of the owner or of a live device names.
fn late_anchor(reader: &Reader, row: &SessionRow) -> Answer<Option<Seq>> {
    let refs = reader.refs_of_session(row.session)?;
    if refs.is_empty() {
        return Ok(None);
    }
    let controls = controls_of(reader, row.owner, None)?;
    let mut deepest = None;
    for bytes in refs {
        let decoded = Decoded::<Control>::decode(bytes)?;
        let Control::Ref(value) = decoded.value() else { continue };
        let Ok(named) = value.session_head() else { continue };
        let by_device = || {
            value.capability.is_some_and(|cited| {
                controls.revoked_by(&cited, row.owner).is_none()
                    && controls
                        .grant(&cited, value.signer, row.owner)
                        .is_ok_and(|grant| grant.role == Role::Agent)
            })
        };
        let anchors = value.owner() == row.owner && (value.signer == row.owner || by_device());
        if !anchors || !reader.is_ancestor(row.session, named.head, row.tip.seq)? {
            continue;
        }
        if let Some((_, stored)) = reader.entry(named.head)?
            && Decoded::<Entry>::decode(stored.bytes)?.value().epoch() == named.epoch
        {
            deepest = deepest.max(Some(stored.seq));
        }
    }
    Ok(deepest)
}
