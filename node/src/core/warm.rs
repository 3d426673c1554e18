//! What an act read is kept for the next one: a session's chain state and its owner's control blobs, decoded.
//!
//! A copy decides nothing by itself. It stands for bytes of the store, and is used only when the snapshot of the act holds those
//! very bytes: a chain state is compared whole, control blobs by the count and digest that the store keeps of an owner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throughline_protocol::fork::Controls;
use throughline_protocol::id::{Principal, SessionId};
use throughline_protocol::verify::{ChainState, VerifiedSegment};
use throughline_store::{OwnerDigest, Reader};

use super::controls::controls_of;
use crate::api::error::Answer;

/// Sessions and owners that are kept, each; all go when there are more. A chain state has a few kilobytes.
const KEPT_MAX: usize = 256;

/// The copies of a node.
#[derive(Debug, Default)]
pub(super) struct Warm {
    states: Mutex<BTreeMap<SessionId, State>>,
    controls: Mutex<BTreeMap<Principal, (OwnerDigest, Arc<Controls>)>>,
}

#[derive(Debug)]
struct State {
    bytes: Vec<u8>,
    state: ChainState,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep<K: Ord, V>(kept: &mut BTreeMap<K, V>, key: K, value: V) {
    if kept.len() >= KEPT_MAX && !kept.contains_key(&key) {
        kept.clear();
    }
    kept.insert(key, value);
}

impl Warm {
    /// The chain state whose bytes these are, if it is kept. It is kept no longer: whoever takes it goes on from there, and one
    /// has some thousand bytes.
    pub(super) fn take_state(&self, session: SessionId, bytes: &[u8]) -> Option<ChainState> {
        let mut kept = locked(&self.states);
        kept.get(&session).filter(|kept| kept.bytes == bytes)?;
        kept.remove(&session).map(|kept| kept.state)
    }

    /// Keeps the state that an act is about to write; if it is not written, nothing will equal it.
    pub(super) fn keep_after(&self, segment: &VerifiedSegment) {
        let kept = State { bytes: segment.after_bytes().to_vec(), state: segment.after().clone() };
        keep(&mut locked(&self.states), segment.session(), kept);
    }

    /// All capabilities and tombstones of an owner that a snapshot holds.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn controls(&self, reader: &Reader, owner: Principal) -> Answer<Arc<Controls>> {
        let held = reader.owner_digest(owner)?;
        let kept = locked(&self.controls).get(&owner).filter(|(digest, _)| *digest == held).cloned();
        if let Some((_, controls)) = kept {
            return Ok(controls);
        }
        let controls = Arc::new(controls_of(reader, owner, None)?);
        keep(&mut locked(&self.controls), owner, (held, Arc::clone(&controls)));
        Ok(controls)
    }
}

#[cfg(test)]
mod tests {
    use throughline_protocol::testing::SessionBuilder;
    use throughline_protocol::verify::Verifier;

    use super::*;

    fn segment(name: &str, entries: usize) -> VerifiedSegment {
        let mut builder = SessionBuilder::new(name);
        let server = builder.server1.clone();
        for _ in 0..entries {
            builder.user(&server, "text");
        }
        let mut controls = Controls::new();
        for control in builder.controls() {
            controls.insert(control);
        }
        let mut verifier = Verifier::begin(controls);
        for built in builder.entries() {
            verifier.push(Arc::clone(built.entry.bytes()), built.payload.clone()).unwrap();
        }
        verifier.finish().unwrap().unwrap()
    }

    #[test]
    fn a_state_is_used_for_its_own_bytes_only() {
        let warm = Warm::default();
        let (before, after) = (segment("warm", 1), segment("warm", 2));
        let session = before.session();
        assert_eq!(session, after.session());
        let kept = |of: &VerifiedSegment| warm.take_state(session, &of.after().to_bytes());
        assert_eq!(kept(&before), None);
        warm.keep_after(&before);
        assert_eq!(kept(&after), None);
        assert_eq!(kept(&before).as_ref(), Some(before.after()));
        assert_eq!(kept(&before), None);
        warm.keep_after(&before);
        warm.keep_after(&after);
        assert_eq!(kept(&before), None);
        assert_eq!(kept(&after).as_ref(), Some(after.after()));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut kept = BTreeMap::new();
        for key in 0..=KEPT_MAX {
            keep(&mut kept, key, ());
        }
        assert_eq!(kept.len(), 1);
        keep(&mut kept, KEPT_MAX, ());
        assert_eq!(kept.len(), 1);
    }
}
