//! A device anchors what it adopts: a private Ref at the head, so that no later revocation cuts it. At most one a minute a
//! session. `docs/PROTOCOL.md` §Selection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use throughline_protocol::id::SessionId;

use super::announce::tell_controls;
use super::interest::{Part, part};
use crate::api::error::Answer;
use crate::sync::shared::Shared;

/// Sessions whose last anchor is remembered.
const SESSIONS_MAX: usize = 4_096;

/// When each session was anchored last.
#[derive(Default)]
pub(in crate::sync) struct Anchors(Mutex<BTreeMap<SessionId, Instant>>);

impl Anchors {
    /// Whether it is time; then the next one has to wait.
    fn is_due(&self, session: SessionId, now: Instant, every: std::time::Duration) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.get(&session).is_some_and(|last| now.duration_since(*last) < every) {
            return false;
        }
        if last.len() >= SESSIONS_MAX {
            last.retain(|_, last| now.duration_since(*last) < every);
        }
        last.len() < SESSIONS_MAX && last.insert(session, now).is_none_or(|_| true)
    }
}

/// Anchors a session that just moved, when this node is a device of its owner and its last anchor is old enough.
pub(super) async fn anchor(shared: &Arc<Shared>, session: SessionId) -> Answer<()> {
    let may = shared.on_node(move |node| {
        let reader = node.reader()?;
        let row = reader.session(session)?;
        let own = row.is_some_and(|row| {
            let is_settled = matches!(row.summary.verdict.as_str(), "valid" | "sealed" | "fenced-tail");
            let anchored = row.summary.anchored_through;
            Some(row.owner) == node.owner() && is_settled && anchored.is_none_or(|seq| seq < row.tip.seq)
        });
        Ok(own && part(node, &reader)? == Part::Device)
    });
    if !may.await? || !shared.anchors.is_due(session, Instant::now(), shared.limits.anchor_every) {
        return Ok(());
    }
    let anchored = shared.on_node(move |node| {
        let Some(anchor) = node.device_anchor(session)? else { return Ok(None) };
        let owner = node.need_owner()?;
        let bytes = Arc::clone(anchor.bytes());
        node.take_controls(vec![anchor])?;
        Ok(Some((owner, bytes)))
    });
    if let Some((owner, bytes)) = anchored.await? {
        tell_controls(shared, owner, vec![bytes]).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use throughline_protocol::id::EntryCid;

    use super::*;

    #[test]
    fn a_session_is_anchored_at_most_once_in_a_while() {
        let (anchors, start, every) = (Anchors::default(), Instant::now(), Duration::from_secs(60));
        let session = |byte| SessionId::of_genesis(EntryCid::from_digest([byte; 32]));
        assert!(anchors.is_due(session(1), start, every));
        assert!(!anchors.is_due(session(1), start + Duration::from_secs(59), every));
        assert!(anchors.is_due(session(2), start, every));
        assert!(anchors.is_due(session(1), start + every, every));
    }
}
