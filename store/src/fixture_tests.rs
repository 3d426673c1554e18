//! What the tests of this crate share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use throughline_protocol::block::Signed;
use throughline_protocol::control::Control;
use throughline_protocol::evidence::{Exhibit, build, charges};
use throughline_protocol::fork::{Controls, Mark, Set};
use throughline_protocol::id::{Seq, SessionId, UnixMillis};
use throughline_protocol::testing::{Built, SessionBuilder, ts};
use throughline_protocol::verify::{ChainState, VerifiedSegment, Verifier};

use crate::writer::{Changes, Step, View};
use crate::{AdoptOptions, Adopted, GuardUse, KeyOrigin, NoteOffer, OpenOptions, PutNote, Store, StoreError};

/// A data directory that goes with the test.
pub(crate) struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Home { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    pub(crate) fn open(&self) -> Store {
        Store::open(&self.path(), options()).unwrap()
    }
}

pub(crate) fn options() -> OpenOptions {
    OpenOptions { key_origin: KeyOrigin::MadeWithStore, ..OpenOptions::new(now(), "test") }
}

/// A time after everything that fixtures make.
pub(crate) fn now() -> UnixMillis {
    ts(1_000_000_000)
}

pub(crate) fn at() -> AdoptOptions {
    AdoptOptions::at(now())
}

/// As the node appends as `server1`.
pub(crate) fn signed(builder: &SessionBuilder) -> AdoptOptions {
    AdoptOptions { guard: GuardUse::Signed(builder.server1.key.principal()), ..at() }
}

/// As the node learns that it holds a session.
pub(crate) fn activated() -> AdoptOptions {
    AdoptOptions { guard: GuardUse::Activated, ..at() }
}

/// Notes, as before an answer, that the newest entry, a handoff, was offered to this node.
pub(crate) fn answer_offer(store: &Store, builder: &SessionBuilder) {
    let place = builder.head().entry.value().place.unwrap();
    let offer = NoteOffer { session: builder.session(), epoch: place.epoch, head: place.prev };
    store.run(offer).unwrap();
}

pub(crate) fn seq(number: u64) -> Seq {
    Seq::new(number).unwrap()
}

pub(crate) fn mark(built: &Built) -> Mark {
    let entry = built.entry.value();
    Mark { seq: entry.seq(), epoch: entry.epoch(), cid: built.entry.cid() }
}

fn controls(blobs: &[Signed<Control>]) -> Controls {
    let mut controls = Controls::new();
    for blob in blobs {
        controls.insert(blob);
    }
    controls
}

fn verify(builder: &SessionBuilder, until: usize, cut: usize) -> (Option<ChainState>, VerifiedSegment) {
    let mut verifier = Verifier::begin(controls(builder.controls()));
    let mut base = None;
    for (number, built) in builder.entries()[..until].iter().enumerate() {
        if number == cut && number > 0 {
            verifier.take_segment().unwrap();
            base = verifier.state().cloned();
        }
        verifier.push(Arc::clone(built.entry.bytes()), built.payload.clone()).unwrap();
    }
    (base, verifier.take_segment().unwrap().unwrap())
}

/// The entries `from..until` as a verified segment.
pub(crate) fn segment(builder: &SessionBuilder, from: usize, until: usize) -> VerifiedSegment {
    verify(builder, until, from).1
}

/// All entries as one verified segment.
pub(crate) fn whole(builder: &SessionBuilder) -> VerifiedSegment {
    segment(builder, 0, builder.entries().len())
}

/// The newest entry as a verified segment.
pub(crate) fn last(builder: &SessionBuilder) -> VerifiedSegment {
    let length = builder.entries().len();
    segment(builder, length - 1, length)
}

/// The verifier's state at an entry.
pub(crate) fn state_at(builder: &SessionBuilder, seq: usize) -> ChainState {
    verify(builder, seq + 1, 0).1.after().clone()
}

/// A session of the owner's genesis and `entries` messages by `server1`.
pub(crate) fn session(label: &str, entries: usize) -> SessionBuilder {
    let mut builder = SessionBuilder::new(label);
    let server = Arc::clone(&builder.server1);
    for number in 0..entries {
        builder.user(&server, &format!("message {number}"));
    }
    builder
}

/// The one more message that `server1` signs.
pub(crate) fn push(builder: &mut SessionBuilder, text: &str) {
    let server = Arc::clone(&builder.server1);
    builder.user(&server, text);
}

pub(crate) fn tip(adopted: &Adopted) -> Mark {
    match adopted {
        Adopted::Now { tip, .. } => *tip,
        Adopted::Replayed { .. } => panic!("it was adopted before"),
    }
}

/// Checks that the store holds exactly these entries on the main chain, with their payloads, and nothing is wrong anywhere.
pub(crate) fn assert_holds(store: &Store, builder: &SessionBuilder) {
    let reader = store.reader().unwrap();
    let id: SessionId = builder.session();
    let row = reader.session(id).unwrap().unwrap();
    assert_eq!(row.tip, mark(builder.head()));
    let stored: Vec<_> = reader.entries(id, Seq::ZERO, row.tip.seq).unwrap().map(Result::unwrap).collect();
    assert_eq!(stored.len(), builder.entries().len());
    for (stored, built) in stored.iter().zip(builder.entries()) {
        assert_eq!(stored.bytes, built.entry.bytes().to_vec());
        if let (Some(cid), Some(payload)) = (stored.payload, &built.payload) {
            assert_eq!(reader.payload(cid).unwrap(), crate::PayloadState::Present(payload.to_vec()));
        }
    }
    let state = reader.chain_state(id).unwrap().unwrap();
    assert_eq!(ChainState::from_bytes(&state).unwrap().tip(), row.tip);
    assert_clean(store, builder.controls());
}

/// Nothing is wrong, whether the control blobs were stored or not.
pub(crate) fn assert_clean(store: &Store, controls: &[Signed<Control>]) {
    store.run(crate::PutControls { controls: controls.to_vec(), at: now() }).unwrap();
    let found = store.fsck().unwrap();
    assert!(found.is_clean(), "{:?}", found.problems);
}

/// Flips one bit in the middle of a file.
pub(crate) fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// What two histories of one session give evidence of.
fn exhibits(one: &SessionBuilder, other: &SessionBuilder) -> Vec<Exhibit> {
    let mut set = Set::new(one.session());
    let (controls, built) = (one.controls(), one.entries().iter().chain(other.entries()));
    controls.iter().for_each(|control| {
        set.insert_control(control);
    });
    built.clone().for_each(|built| {
        set.insert_entry(&built.entry);
    });
    let judged = set.judge();
    let entry = |cid| built.clone().find(|b| b.entry.cid() == cid).map(|b| Arc::clone(b.entry.bytes()));
    let control = |cid: &throughline_protocol::id::Cid| {
        controls.iter().map(|control| control.bytes()).find(|bytes| cid.matches(bytes)).map(Arc::clone)
    };
    charges(&judged, &judged.selection())
        .iter()
        .map(|charge| build(charge, entry, control).unwrap())
        .collect()
}

/// A fork of a session at its genesis, shown by an entry that says `words`.
pub(crate) fn fork(label: &str, words: &str) -> (SessionBuilder, Exhibit) {
    let session = session(label, 1);
    let exhibit = fork_of(&session, words);
    (session, exhibit)
}

/// Evidence of a fork of this session at its genesis, shown by an entry that says `words`.
pub(crate) fn fork_of(session: &SessionBuilder, words: &str) -> Exhibit {
    let server = Arc::clone(&session.server1);
    let (mut one, mut other) = (session.at(0).branch("one"), session.at(0).branch("other"));
    one.response(&server, "one", &[]);
    other.response(&server, words, &[]);
    let mut found = exhibits(&one, &other);
    assert_eq!(found.len(), 1);
    found.remove(0)
}

/// A note whose check blocks the writer.
struct Hold {
    note: PutNote,
    entered: mpsc::Sender<()>,
    wait: mpsc::Receiver<()>,
}

impl Step for Hold {
    type Output = u64;
    type Error = StoreError;
    type Plan = ();

    fn check(&self, _: &View<'_>) -> Result<(), StoreError> {
        self.entered.send(()).unwrap();
        // It ends when the sender is used or dropped.
        let _ = self.wait.recv();
        Ok(())
    }

    fn write(self, (): (), changes: &Changes<'_>) -> Result<u64, StoreError> {
        self.note.write((), changes)
    }
}

/// A note on its way that blocks the writer.
pub(crate) struct Queued {
    /// It blocks until this is used or dropped.
    pub(crate) release: mpsc::Sender<()>,
    /// Told when it blocks.
    pub(crate) entered: mpsc::Receiver<()>,
    /// Closed when it was answered, or will not be.
    pub(crate) answered: mpsc::Receiver<()>,
}

/// Queues a note that blocks the writer when its turn comes.
pub(crate) fn queue_hold(store: &Store) -> Queued {
    let (release, wait) = mpsc::channel::<()>();
    let ((sender, entered), (answer, answered)) = (mpsc::channel(), mpsc::channel::<()>());
    let note = PutNote { at: now(), topic: "hold".to_owned(), data: Vec::new() };
    store.submit(Hold { note, entered: sender, wait }, move |_| drop(answer)).unwrap();
    Queued { release, entered, answered }
}

/// Blocks the writer until the returned sender is used or dropped, so that what is queued meanwhile is one batch.
pub(crate) fn hold(store: &Store) -> mpsc::Sender<()> {
    let held = queue_hold(store);
    held.entered.recv().unwrap();
    held.release
}

/// Overwrites stored rows behind the store's back, as a failing disk would.
pub(crate) fn write_behind(store: &Store, change: impl FnOnce(&redb::WriteTransaction)) {
    // After a checkpoint: nothing lies over the rows.
    let _ = store.pages_are_whole();
    let txn = store.inner.database.begin_write().unwrap();
    change(&txn);
    crate::database::commit_durably(txn).unwrap();
    let commit = crate::Snapshot::of_commit(store.inner.database.begin_read().unwrap()).unwrap();
    assert!(store.inner.snapshots.newest.get().changed().is_empty());
    let commit = Arc::new(commit);
    store.inner.snapshots.newest.set(Arc::clone(&commit));
    store.inner.snapshots.durable.set(commit);
}
