//! A whole session in memory, as another peer would serve it.
//!
//! It is read from a CAR that a node exported and answers chain sync requests from it. One bit of it can be flipped: the
//! answers then carry that bit under the names of the true bytes, as a liar's would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::control::Control;
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{Cid, EntryCid, Epoch, Principal, Seq, SessionId};
use throughline_protocol::skip;
use throughline_protocol::wire::chain::{
    ChainAnswer, ChainAsk, EntryItem, HeadState, OwnerState, Payloads, RangeAsk,
};
use throughline_protocol::wire::{WireError, pack};

/// A session and all that belongs to it.
#[derive(Clone, Debug)]
pub struct SessionCopy {
    session: SessionId,
    owner: Principal,
    entries: Vec<Copied>,
    controls: Vec<CopiedControl>,
    files: BTreeMap<Cid, Arc<[u8]>>,
}

#[derive(Clone, Debug)]
struct Copied {
    cid: EntryCid,
    epoch: Epoch,
    bytes: Arc<[u8]>,
    payload: Option<Arc<[u8]>>,
}

#[derive(Clone, Debug)]
struct CopiedControl {
    hash: [u8; 32],
    is_ref: bool,
    bytes: Arc<[u8]>,
}

/// Which bytes of an entry are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The signed entry.
    Entry,
    /// The block that holds its words.
    Payload,
}

impl SessionCopy {
    /// Reads a session's CAR.
    ///
    /// # Errors
    /// What [`SessionReader`] refuses; `E_INCOMPLETE` unless the entries are one chain from the genesis on.
    pub fn from_car(car: &[u8]) -> Result<Self, Reject> {
        let mut reader = SessionReader::new();
        reader.push(car);
        let mut copy: Option<SessionCopy> = None;
        while let Some(item) = reader.next() {
            match (item?, &mut copy) {
                (SessionItem::Genesis(entry), slot) => {
                    *slot = Some(SessionCopy::begin(entry.cid(), entry.value(), entry.bytes()))
                }
                (item, Some(copy)) => copy.take(item)?,
                (_, None) => return Err(Reject::new(Code::CarOrder, "expected the genesis first")),
            }
        }
        reader.finish()?;
        copy.ok_or_else(|| Reject::new(Code::Incomplete, "expected a session, got no block"))
    }

    fn begin(cid: EntryCid, genesis: &Entry, bytes: &Arc<[u8]>) -> Self {
        let first = Copied { cid, epoch: Epoch::ZERO, bytes: Arc::clone(bytes), payload: None };
        SessionCopy {
            session: SessionId::of_genesis(cid),
            owner: genesis.owner(),
            entries: vec![first],
            controls: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    fn take(&mut self, item: SessionItem) -> Result<(), Reject> {
        match item {
            SessionItem::Genesis(_) => return Err(Reject::new(Code::CarOrder, "a second genesis")),
            SessionItem::Control(control) => {
                let is_ref = matches!(control.value(), Control::Ref(_));
                let hash = *control.cid().digest();
                self.controls.push(CopiedControl { hash, is_ref, bytes: Arc::clone(control.bytes()) });
            }
            SessionItem::Entry(entry) => {
                let (value, head) = (entry.value(), self.head());
                if value.prev() != Some(head.cid) {
                    let what = format!("entry {} does not stand on {}", value.seq(), head.cid.short());
                    return Err(Reject::new(Code::Incomplete, what));
                }
                let bytes = Arc::clone(entry.bytes());
                self.entries.push(Copied { cid: entry.cid(), epoch: value.epoch(), bytes, payload: None });
            }
            SessionItem::Payload { of, block } => {
                if let Some(entry) = self.entries.iter_mut().rfind(|entry| entry.cid == of) {
                    entry.payload = Some(Arc::clone(block.bytes()));
                }
            }
            SessionItem::Config { block, .. } | SessionItem::File { block, .. } => {
                self.files.insert(block.cid(), Arc::clone(block.bytes()));
            }
        }
        Ok(())
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// How many entries it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Never: a session has its genesis.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The seq of the entry with a payload that stands nearest the middle.
    #[must_use]
    pub fn middle_payload(&self) -> Option<usize> {
        let middle = self.entries.len() / 2;
        let with_payload = self.entries.iter().enumerate().filter(|(_, entry)| entry.payload.is_some());
        with_payload.map(|(seq, _)| seq).min_by_key(|seq| seq.abs_diff(middle))
    }

    /// Flips the lowest bit of the last byte of a part of the entry at `seq`. The names stay those of the true bytes.
    ///
    /// # Errors
    /// `E_NOT_FOUND_YET` when there is no such entry or it has no payload here.
    pub fn flip_bit(&mut self, seq: usize, part: Part) -> Result<(), Reject> {
        let entry = self.entries.get_mut(seq);
        let bytes = entry.and_then(|entry| match part {
            Part::Entry => Some(&mut entry.bytes),
            Part::Payload => entry.payload.as_mut(),
        });
        let Some(bytes) = bytes else {
            return Err(Reject::new(Code::NotFoundYet, format!("there is no such part of entry {seq}")));
        };
        let mut changed = bytes.to_vec();
        if let Some(last) = changed.last_mut() {
            *last ^= 1;
        }
        *bytes = changed.into();
        Ok(())
    }

    /// The frames of the answer to a request. Nobody is asked for a proof: a liar serves everyone.
    #[must_use]
    pub fn answer(&self, ask: &ChainAsk) -> Vec<ChainAnswer> {
        let mut frames = match ask {
            ChainAsk::Heads { sessions, .. } => {
                let wanted = sessions.is_empty() || sessions.contains(&self.session);
                let sessions = if wanted { vec![self.head_state()] } else { Vec::new() };
                vec![ChainAnswer::Heads { owners: vec![self.owner_state()], sessions }]
            }
            ChainAsk::Control { owner, have } => {
                let missing = |control: &&CopiedControl| !control.is_ref && !have.contains(&control.hash);
                let of_owner = self.controls.iter().filter(|_| *owner == self.owner);
                let blobs = of_owner.filter(missing).map(|control| Arc::clone(&control.bytes));
                pack(ChainAnswer::Control, blobs.collect::<Vec<_>>()).collect()
            }
            ChainAsk::Range(range) => match self.range(range) {
                Ok(frames) => frames,
                Err(error) => return vec![ChainAnswer::Error(error)],
            },
            ChainAsk::Blobs { cids } => {
                let blob = |cid: &Cid| ChainAnswer::Blob { cid: *cid, bytes: self.block(cid) };
                cids.iter().map(blob).collect()
            }
            ChainAsk::Announce { .. } => Vec::new(),
        };
        frames.push(ChainAnswer::End);
        frames
    }

    fn head(&self) -> &Copied {
        // There is always a genesis.
        &self.entries[self.entries.len() - 1]
    }

    fn seq_of(index: usize) -> Result<Seq, Reject> {
        Seq::new(index as u64)
    }

    fn head_state(&self) -> HeadState {
        let head = self.head();
        HeadState {
            session: self.session,
            head: head.cid,
            seq: SessionCopy::seq_of(self.entries.len() - 1).unwrap_or(Seq::ZERO),
            epoch: head.epoch,
            reference: None,
        }
    }

    fn owner_state(&self) -> OwnerState {
        let held: BTreeSet<[u8; 32]> =
            self.controls.iter().filter(|control| !control.is_ref).map(|control| control.hash).collect();
        OwnerState::of(self.owner, &held)
    }

    fn block(&self, cid: &Cid) -> Option<Arc<[u8]>> {
        self.files.get(cid).cloned()
    }

    fn range(&self, range: &RangeAsk) -> Result<Vec<ChainAnswer>, WireError> {
        let want = usize::try_from(range.want.seq.get()).unwrap_or(usize::MAX);
        let held = self.entries.get(want).is_some_and(|entry| entry.cid == range.want.cid);
        if range.session != self.session || !held {
            return Err(WireError::new(Code::NotFoundYet));
        }
        let base = (0..=want).rev().find(|index| range.have.contains(&self.entries[*index].cid));
        let mut frames: Vec<ChainAnswer> =
            pack(ChainAnswer::Path, self.path(want, base.unwrap_or(0))).collect();
        frames.extend(pack(
            ChainAnswer::Control,
            self.controls.iter().map(|control| Arc::clone(&control.bytes)),
        ));
        let first = base.map_or(0, |base| base + 1);
        let items = self.entries[first..=want].iter().map(|entry| EntryItem {
            entry: Arc::clone(&entry.bytes),
            payload: entry.payload.clone().filter(|_| range.payloads == Payloads::With),
        });
        frames.extend(pack(ChainAnswer::Entries, items));
        Ok(frames)
    }

    /// The entries from `want` down to `base`, by skip pointer where it does not pass the base, else by link.
    fn path(&self, want: usize, base: usize) -> Vec<Arc<[u8]>> {
        let mut path = vec![Arc::clone(&self.entries[want].bytes)];
        let mut at = want;
        while at > base {
            let skipped = usize::try_from(skip::target(at as u64)).unwrap_or(at);
            at = if skipped >= base { skipped } else { at - 1 };
            path.push(Arc::clone(&self.entries[at].bytes));
        }
        path
    }
}

#[cfg(test)]
#[path = "copy_tests.rs"]
mod tests;
