//! Power cuts between the journal and the database: whatever was answered is there at the next open, and nothing else is half
//! there.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};

use redb::StorageBackend;
use throughline_protocol::block::Block;
use throughline_protocol::code::Code;
use throughline_protocol::id::Codec;
use throughline_protocol::testing::SessionBuilder;

use super::*;
use crate::disk::{Disk, NewFile, RealDisk};
use crate::fixture::*;
use crate::{Adopt, AdoptError, AdoptOptions, Adopted, GuardError, Idempotency, PutBlock, Scope, Store};

/// A file of which a power cut leaves what was synced.
#[derive(Clone, Debug, Default)]
struct Image {
    /// As it is, and as it was synced last.
    bytes: Arc<Mutex<(Vec<u8>, Vec<u8>)>>,
    /// Syncs wait while it is held.
    gate: Arc<Mutex<()>>,
}

impl Image {
    fn of(bytes: Vec<u8>) -> Self {
        Image { bytes: Arc::new(Mutex::new((bytes.clone(), bytes))), gate: Arc::default() }
    }

    fn synced(&self) -> Vec<u8> {
        self.bytes.lock().unwrap().1.clone()
    }
}

impl StorageBackend for Image {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().unwrap().0.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        out.copy_from_slice(&self.bytes.lock().unwrap().0[at..at + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.lock().unwrap().0.resize(usize::try_from(len).unwrap(), 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let _gate = self.gate.lock().unwrap();
        let mut image = self.bytes.lock().unwrap();
        image.1 = image.0.clone();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let at = usize::try_from(offset).unwrap();
        self.bytes.lock().unwrap().0[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }
}

/// What a power cut leaves of both files.
#[derive(Clone, Debug, Default)]
struct Cut {
    database: Vec<u8>,
    journal: Vec<u8>,
    /// The count of opens beside them.
    guard: Option<Vec<u8>>,
}

/// The operating system's disk, but for the two files.
#[derive(Debug)]
struct TwoFiles {
    disk: RealDisk,
    database: Image,
    journal: Image,
}

impl Disk for TwoFiles {
    fn make_dirs(&self, path: &Path) -> io::Result<()> {
        self.disk.make_dirs(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn NewFile>> {
        self.disk.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn io::Read + Send>> {
        self.disk.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.disk.unlink(path)
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.disk.names(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.disk.sync_dir(path)
    }

    fn database(&self, path: &Path) -> io::Result<Box<dyn StorageBackend>> {
        // A file of this name tells the directory from a copy; the bytes are in memory.
        if !path.exists() {
            std::fs::write(path, b"")?;
        }
        Ok(Box::new(if path.ends_with(FILE) { self.journal.clone() } else { self.database.clone() }))
    }

    fn identity(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.disk.identity(path)
    }

    fn reserve(&self, path: &Path, bytes: u64) -> io::Result<()> {
        self.disk.reserve(path, bytes)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.disk.free_bytes(path)
    }
}

/// A store on two such files.
struct Machine {
    guard: PathBuf,
    store: Store,
    database: Image,
    journal: Image,
}

fn try_open(dir: &Path, cut: &Cut) -> Result<Machine, crate::OpenError> {
    let (database, journal) = (Image::of(cut.database.clone()), Image::of(cut.journal.clone()));
    let guard = dir.join("GUARD");
    if let Some(count) = &cut.guard {
        std::fs::write(&guard, count).unwrap();
    }
    let disk = TwoFiles { disk: RealDisk, database: database.clone(), journal: journal.clone() };
    let store = Store::open_on(Arc::new(disk), dir, options())?;
    Ok(Machine { guard, store, database, journal })
}

fn open(dir: &Path, cut: &Cut) -> Machine {
    try_open(dir, cut).unwrap()
}

impl Machine {
    fn cut(&self) -> Cut {
        let guard = Some(std::fs::read(&self.guard).unwrap());
        Cut { database: self.database.synced(), journal: self.journal.synced(), guard }
    }
}

/// A session with `appends` entries after its genesis, and what a power cut after each answer leaves.
fn cuts(home: &Home, label: &str, appends: usize) -> (SessionBuilder, Vec<Cut>) {
    let builder = session(label, appends);
    let machine = open(&home.path(), &Cut::default());
    machine.store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    let mut cuts = vec![machine.cut()];
    for number in 1..=appends {
        machine.store.adopt(segment(&builder, number, number + 1), signed(&builder)).unwrap();
        cuts.push(machine.cut());
    }
    (builder, cuts)
}

fn assert_goes_on(machine: &Machine, builder: &SessionBuilder) {
    let guard = machine.store.reader().unwrap().guard(builder.session()).unwrap().unwrap();
    assert_eq!(guard.cid, builder.head().entry.cid());
    assert_eq!(guard.bytes, builder.head().entry.bytes().to_vec());
    assert_holds(&machine.store, builder);
    let mut builder = builder.clone();
    push(&mut builder, "goes on");
    machine.store.adopt(last(&builder), signed(&builder)).unwrap();
    assert_holds(&machine.store, &builder);
}

/// Bytes of the journal's records, in whole sectors, oldest first.
fn records(cut: &Cut) -> Vec<std::ops::Range<usize>> {
    let run = run_of(&cut.journal).unwrap();
    let (mut at, mut found, mut next) = (SECTOR, Vec::new(), None);
    while let Some(record) = Record::read(&run, &cut.journal[at..]) {
        if next.is_some_and(|next| record.first != next) {
            break;
        }
        next = Some(record.last + 1);
        found.push(at..at + record.length);
        at += record.length;
    }
    found
}

#[test]
fn a_power_cut_after_any_answer_loses_nothing() {
    let home = Home::new();
    let (builder, cuts) = cuts(&home, "cut", 40);
    let mut restarts = 0;
    for (number, cut) in cuts.iter().enumerate() {
        restarts += usize::from(number > 0 && records(cut).len() <= records(&cuts[number - 1]).len());
        let machine = open(&home.path(), cut);
        assert_goes_on(&machine, &builder.at(number));
        // And one after the open, before anything else is written.
        let after = machine.cut();
        drop(machine);
        let mut builder = builder.at(number);
        push(&mut builder, "goes on");
        assert_holds(&open(&home.path(), &after).store, &builder);
    }
    assert!(restarts > 2, "the journal began anew {restarts} times");
}

#[test]
fn a_record_that_was_cut_off_was_not_answered() {
    let home = Home::new();
    let (builder, cuts) = cuts(&home, "torn", 3);
    let whole = cuts.last().unwrap();
    let last = records(whole).last().unwrap().clone();
    for kept in (last.start..last.end - SECTOR).step_by(97) {
        let mut cut = whole.clone();
        cut.journal[kept..last.end].fill(0);
        assert_goes_on(&open(&home.path(), &cut), &builder.at(2));
        let mut cut = whole.clone();
        cut.journal.truncate(kept);
        assert_goes_on(&open(&home.path(), &cut), &builder.at(2));
    }
}

#[test]
fn a_record_that_is_damaged_is_not_passed_over() {
    let home = Home::new();
    let (_, cuts) = cuts(&home, "rot", 4);
    let whole = cuts.last().unwrap();
    let records = records(whole);
    assert!(records.len() > 2);
    for record in &records[..records.len() - 1] {
        for at in [record.start, record.start + 8, record.start + 20, record.start + HEAD_BYTES + 9] {
            let mut cut = whole.clone();
            cut.journal[at] ^= 1;
            let code = try_open(&home.path(), &cut).err().map(|error| error.code());
            assert_eq!(code, Some(Code::StoreCorrupt), "byte {at}");
        }
    }
    open(&home.path(), whole);
}

#[test]
fn a_directory_without_its_journal_signs_nothing() {
    for journal in [Vec::new(), vec![0; FIRST_BYTES]] {
        let home = Home::new();
        let (mut builder, cuts) = cuts(&home, "gone", 2);
        let machine = open(&home.path(), &Cut { journal, ..cuts[2].clone() });
        let reader = machine.store.reader().unwrap();
        assert!(!reader.is_guard_trusted().unwrap());
        // What the database had at its last checkpoint is held; what is missing may have left.
        let held = reader.session(builder.session()).unwrap();
        assert_eq!(held, None, "the first checkpoint was later");
        machine.store.adopt(whole(&builder), at()).unwrap();
        push(&mut builder, "signed anew?");
        let refused = machine.store.adopt(last(&builder), signed(&builder));
        assert!(matches!(refused, Err(AdoptError::SignGuard(GuardError::NoRow))), "{refused:?}");
    }
}

#[test]
fn a_journal_that_begins_after_its_database_makes_it_a_copy() {
    let home = Home::new();
    let (_, cuts) = cuts(&home, "gap", 40);
    let lapped = (1..cuts.len()).rfind(|n| records(&cuts[*n]).len() < records(&cuts[n - 1]).len()).unwrap();
    let cut = Cut { database: cuts[0].database.clone(), ..cuts[lapped + 1].clone() };
    let machine = open(&home.path(), &cut);
    assert!(!machine.store.reader().unwrap().is_guard_trusted().unwrap());
}

#[test]
fn what_an_earlier_run_left_in_the_file_is_no_record() {
    let home = Home::new();
    let (builder, cuts) = cuts(&home, "runs", 5);
    let machine = open(&home.path(), &cuts[5]);
    let cut = machine.cut();
    drop(machine);
    assert_eq!(records(&cut), []);
    let first = run_of(&cuts[5].journal).unwrap();
    assert!(
        Record::read(&first, &cut.journal[SECTOR..]).is_some(),
        "the bytes of the first run are still there"
    );
    assert_goes_on(&open(&home.path(), &cut), &builder);
}

/// Bytes that pass for a record with everything that a peer can know: the layout, the number of the next batch, a change that
/// is well formed. `number` is that of its batch.
fn forged(number: u64) -> Vec<u8> {
    let mut redo = Redo::default();
    redo.note("meta_v1", meta::GUARD_TRUSTED.as_bytes().into(), Some(0_u64.to_le_bytes().into()));
    let mut changes = Vec::new();
    redo.write(&mut changes);
    assert_eq!(changes.len(), redo.len());
    let run = Run { opens: 1, salt: [0; SALT_BYTES] };
    let mut bytes = run.mark().to_vec();
    [number, number, size_of(&changes)].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
    bytes.extend(digest_of(&run, number, number, &changes));
    bytes.extend(changes);
    assert!(Record::read(&run, &bytes).is_some());
    bytes
}

#[test]
fn bytes_of_a_peer_pass_for_no_record() {
    const BYTES: usize = 8 << 10;
    let put = |home: &Home, bytes: Vec<u8>| {
        let machine = open(&home.path(), &Cut::default());
        machine.store.run(PutBlock::bytes(Block::of(Codec::Raw, bytes), now(), now())).unwrap();
        machine.cut()
    };
    // Where a payload comes to lie in its record depends on nothing that a peer does not know.
    let probe = put(&Home::new(), vec![0x5a; BYTES]);
    let lies_at = probe.journal.windows(BYTES).position(|bytes| bytes.iter().all(|b| *b == 0x5a)).unwrap();
    let sector = lies_at.next_multiple_of(SECTOR);
    let at = SECTOR;
    let run = run_of(&probe.journal).unwrap();
    let number = Record::read(&run, &probe.journal[at..]).unwrap().first;

    // One that a crash cut off, with what looks like later batches behind it.
    let mut bytes = vec![0; BYTES];
    let later = forged(number + 1);
    for place in (sector - lies_at..BYTES - SECTOR).step_by(SECTOR) {
        bytes[place..place + later.len()].copy_from_slice(&later);
    }
    let home = Home::new();
    let mut torn = put(&home, bytes);
    torn.journal[at..at + SECTOR].fill(0);
    assert_eq!(torn.journal[sector..sector + later.len()], later);
    let machine = open(&home.path(), &torn);
    assert!(machine.store.fsck().unwrap().is_clean());

    // What an earlier lap left, with what looks like the next batch where the records of this one end.
    let mut bytes = vec![0; BYTES];
    let next = forged(number);
    bytes[sector - lies_at..][..next.len()].copy_from_slice(&next);
    let home = Home::new();
    let mut left = put(&home, bytes);
    let end = left.journal.len();
    left.journal.copy_within(sector..end, at);
    assert_eq!(left.journal[at..at + next.len()], next);
    let machine = open(&home.path(), &left);
    assert!(machine.store.reader().unwrap().is_guard_trusted().unwrap(), "a peer's changes were applied");
}

#[test]
fn a_journal_opens_again_whatever_the_sizes_of_its_records() {
    let redo = |bytes: usize| {
        let mut redo = Redo::default();
        redo.note("meta_v1", [].into(), Some(vec![0x5a; bytes].into()));
        redo
    };
    // The first record decides the lengths that follow; the last one begins just before the lap ends.
    for first in (16..=256).step_by(8).map(|size: usize| size << 10) {
        let file = Image::default();
        let mut journal = Journal::open(Box::new(file.clone())).unwrap();
        journal.begin(1).unwrap();
        let mut number = 1;
        for size in std::iter::once(first).chain(std::iter::repeat(255 << 10)) {
            if journal.used() >= LAP_BYTES_MAX {
                break;
            }
            journal.append(&[(number, redo(size))]).unwrap();
            number += 1;
        }
        let journal =
            Journal::open(Box::new(file.clone())).unwrap_or_else(|error| panic!("{first}: {error}"));
        let bytes = journal.read(journal.length).unwrap();
        let run = run_of(&bytes).unwrap();
        let held: usize = pending(&run, &bytes[SECTOR..], 0).unwrap().len();
        assert_eq!(u64::try_from(held).unwrap(), number - 1);
    }
    let file = Image::of(vec![0; usize::try_from(FILE_BYTES_MAX).unwrap() + 1]);
    let refused = Journal::open(Box::new(file)).unwrap_err().to_string();
    assert!(
        refused.contains("expected store.journal to have at most 8388608 bytes, it has 8388609"),
        "{refused}"
    );
}

#[test]
fn a_large_batch_goes_to_the_database_at_once() {
    let home = Home::new();
    let mut builder = session("large", 0);
    for _ in 0..40 {
        push(&mut builder, &"words ".repeat(2_000));
    }
    let machine = open(&home.path(), &Cut::default());
    machine.store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    machine.store.adopt(segment(&builder, 1, 41), signed(&builder)).unwrap();
    let cut = machine.cut();
    drop(machine);
    assert!(u64::try_from(cut.journal.len()).unwrap() < FILE_BYTES_MAX);
    let mut without = cut.clone();
    without.journal[SECTOR..].fill(0);
    assert_goes_on(&open(&home.path(), &without), &builder);
}

#[test]
fn a_store_that_was_closed_needs_no_journal() {
    let home = Home::new();
    let builder = session("closed", 3);
    let machine = open(&home.path(), &Cut::default());
    machine.store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    machine.store.adopt(segment(&builder, 1, 4), signed(&builder)).unwrap();
    let (database, mut cut) = (machine.database.clone(), machine.cut());
    drop(machine);
    cut.database = database.synced();
    cut.journal[SECTOR..].fill(0);
    assert_goes_on(&open(&home.path(), &cut), &builder);
}

#[test]
fn nothing_is_seen_or_answered_before_it_is_durable() {
    let home = Home::new();
    let builder = session("gate", 1);
    let machine = open(&home.path(), &Cut::default());
    machine.store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    let scope = Scope::Session(builder.session());
    let key = Idempotency {
        scope,
        key: "once".to_owned(),
        request: [1; 32],
        result: b"answer".to_vec(),
        expires: None,
    };
    let tip = || machine.store.reader().unwrap().session(builder.session()).unwrap().unwrap().tip;
    let (sender, answers) = mpsc::channel();
    let gate = machine.journal.gate.lock().unwrap();
    for _ in 0..2 {
        let options = AdoptOptions { idempotency: Some(key.clone()), ..signed(&builder) };
        let (adopt, sender) = (Adopt { segment: segment(&builder, 1, 2), options }, sender.clone());
        machine.store.submit(adopt, move |outcome| sender.send(outcome).unwrap()).unwrap();
    }
    // When the writer is here, it has executed both.
    let release = hold(&machine.store);
    assert_eq!(tip(), mark(&builder.entries()[0]));
    let used = machine.store.reader().unwrap().idempotency(&scope, &key.key, &key.request).unwrap();
    assert_eq!(used, crate::Used::Never);
    assert!(answers.try_recv().is_err(), "answered before the fsync");
    drop((gate, release));
    assert!(matches!(answers.recv().unwrap().unwrap(), Adopted::Now { .. }));
    let replayed = Adopted::Replayed { result: key.result.clone() };
    assert_eq!(answers.recv().unwrap().unwrap(), replayed);
    assert_eq!(tip(), mark(builder.head()));
}
