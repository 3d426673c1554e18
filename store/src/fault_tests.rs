//! A disk that fails, fills up or writes short, at every call in turn. Nothing acknowledged may be lost, nothing may be half
//! there, reading goes on, and what cannot be known to be on the disk is neither read nor built on.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc;

use throughline_protocol::block::Block;
use throughline_protocol::code::Code;
use throughline_protocol::id::Codec;
use throughline_protocol::testing::ts;

use crate::fixture::*;
use crate::sim_tests::*;
use crate::testing::{Dice, Fault, ModelDisk};
use crate::*;

/// Acts that touch everything: rows, payload files, a removal; and enough for the journal to begin anew, so that the
/// database fails as well as the journal.
const ACTS: [Act; 19] = [
    Act::Append(0),
    Act::Append(0),
    Act::Append(1),
    Act::Job(1),
    Act::Job(2),
    Act::Job(3),
    Act::Job(4),
    Act::Job(5),
    Act::Stream(1),
    Act::Job(6),
    Act::Job(7),
    Act::Job(8),
    Act::Job(9),
    Act::Job(10),
    Act::Job(11),
    Act::Put(1),
    Act::Append(0),
    Act::Redact(0),
    Act::Append(0),
];

/// Codes of an act that the disk failed, at once or before.
const DISK_CODES: [Code; 2] = [Code::StoreIo, Code::StoreReadOnly];

/// Runs the acts on a disk that fails at a call; returns after how many they ended, and the disk healed.
struct Broken {
    disk: ModelDisk,
    store: Store,
    /// The act that the fault hit, if it was told.
    told: Option<usize>,
    /// Whether the fault came at all.
    came: bool,
}

fn broken(dir: &Path, plan: impl FnOnce(&ModelDisk)) -> Broken {
    let disk = ModelDisk::new();
    let store = open(&disk, dir).unwrap();
    plan(&disk);
    let mut told = None;
    for (number, act) in ACTS.iter().enumerate() {
        match apply(&store, *act) {
            Err(code) if DISK_CODES.contains(&code) => {
                told = Some(number);
                break;
            }
            Ok(()) | Err(_) => {}
        }
    }
    let came = disk.heal();
    Broken { disk, store, told, came }
}

#[test]
fn a_write_that_fails_at_any_call_loses_nothing_and_reading_goes_on() {
    let home = Home::new();
    let good = run(&home.path(), &ACTS);
    for fault in [Fault::Failed, Fault::ShortFailed, Fault::Full, Fault::ShortFull] {
        let mut hits = 0;
        // Every call for those that do nothing; a write that is cut short differs at writes only.
        let step = if fault.is_short() { 3 } else { 1 };
        for calls in (0..).step_by(step) {
            let broken = broken(&home.path(), |disk| disk.fail_write_after(calls, fault));
            if !broken.came {
                break;
            }
            hits += 1;
            let what = format!("{fault:?} after {calls} calls");
            let may_be_done = matches!(fault, Fault::Full | Fault::ShortFull);
            assert_reads(&broken, &good, may_be_done, &what);
            let mut held = match broken.told {
                // What was hit was housekeeping that nobody waits for, or removes a file that was written for nothing.
                None => ACTS.len(),
                Some(act) => act,
            };
            let is_over = broken.store.read_only_reason().is_some();
            if broken.told.is_some() && matches!(fault, Fault::Full | Fault::ShortFull) && !is_over {
                // There is room: it goes on by itself, from the act that was refused.
                finish(&broken.store, held);
                held = ACTS.len();
            } else if broken.told.is_some() && is_over {
                let pin = SetPin { session: WORLD.sessions[0].session(), pin: None, at: now() };
                assert_eq!(broken.store.run(pin).unwrap_err().code(), Code::StoreReadOnly, "{what}");
            }
            let Broken { disk, store, .. } = broken;
            drop(store);
            let store = open(&disk, &home.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(store.fsck().unwrap().is_clean(), "{what}");
            finish(&store, held);
            // Events number what came before; all else is the same whichever way it came about.
            let differing = difference(&dump(&store).unwrap(), &good.dumps[ACTS.len()]);
            assert!(
                differing.iter().all(|table| table == "EVENTS" || table == "META"),
                "{what}: {differing:?}"
            );
        }
        assert!(hits > 20, "{fault:?}: only {hits} calls could fail");
    }
}

/// What is read is what was acknowledged. When the disk was full, it may also be the act that was under way: the database was
/// opened again as after a restart, which makes durable what it finds.
fn assert_reads(broken: &Broken, good: &Run, may_be_done: bool, what: &str) {
    let Some(act) = broken.told else { return };
    let now = dump(&broken.store).unwrap_or_else(|error| panic!("{what}: {error}"));
    let is_done = may_be_done && now == good.dumps[act + 1];
    let before = &good.dumps[act];
    assert!(is_done || now == *before, "{what}: act {act}: {:?} differ", difference(&now, before));
}

/// The acts from one on, done again by a caller that does not know how far it came.
fn finish(store: &Store, from: usize) {
    for (number, act) in ACTS.iter().enumerate().skip(from) {
        if let Act::Append(session) = act {
            // Its key tells whether it was done: as long as it should be, it is.
            let wanted = ACTS[..=number].iter().filter(|other| *other == act).count();
            if length(store, *session).unwrap() >= wanted {
                continue;
            }
        }
        apply(store, *act).unwrap();
    }
}

#[test]
fn a_read_that_fails_is_told_and_nothing_is_lost() {
    let home = Home::new();
    let good = run(&home.path(), &ACTS);
    let disk = good.disk.clone();
    let mut hits = 0;
    for calls in 0.. {
        disk.fail_read_after(calls);
        let outcome = open(&disk, &home.path()).map_err(|error| error.code());
        let read = outcome.and_then(|store| dump(&store).map_err(|error| error.code()));
        if !disk.heal() {
            break;
        }
        hits += 1;
        match read {
            Ok(dump) => assert_eq!(dump, good.dumps[ACTS.len()], "after {calls} reads"),
            Err(code) => assert!([Code::StoreIo, Code::StoreReadOnly].contains(&code), "{calls}: {code:?}"),
        }
        assert_eq!(dump(&open(&disk, &home.path()).unwrap()).unwrap(), good.dumps[ACTS.len()]);
    }
    assert!(hits > 5, "only {hits} reads could fail");
}

#[test]
fn a_full_disk_reads_takes_a_revocation_and_goes_on_when_there_is_room() {
    let home = Home::new();
    let disk = ModelDisk::new();
    let store = open(&disk, &home.path()).unwrap();
    for act in ACTS {
        apply(&store, act).unwrap();
    }
    disk.leave_room(Some(0));
    let mut refused = None;
    for number in 0_u8..=255 {
        if let Err(code) = apply(&store, Act::Job(number)) {
            refused = Some(code);
            break;
        }
    }
    assert_eq!(refused, Some(Code::StoreReadOnly), "a full disk refuses");
    let ReadOnly { why, ended } = store.read_only_reason().unwrap();
    assert_eq!(ended, Ended::UntilRoom);
    assert!(why.contains("the disk is full"), "{why}");
    let held = dump(&store).unwrap();
    assert!(store.fsck().unwrap().is_clean());
    assert_eq!(apply(&store, Act::Append(0)), Err(Code::StoreReadOnly));
    assert_eq!(dump(&store).unwrap(), held, "a refusal changes nothing");
    // What cannot wait is written, durably.
    apply(&store, Act::Revoke).unwrap();
    apply(&store, Act::Forget).unwrap_err();
    let with_tombstone = dump(&store).unwrap();
    assert_ne!(with_tombstone["CONTROLS"], held["CONTROLS"]);
    assert_eq!(apply(&store, Act::Append(0)), Err(Code::StoreReadOnly), "the reserve is for nothing else");
    drop(store);
    // It also opens, without room.
    let store = open(&disk, &home.path()).unwrap();
    assert_eq!(dump(&store).unwrap(), with_tombstone);
    drop(store);
    let store = open(&disk, &home.path()).unwrap();
    let _ = apply(&store, Act::Job(1));
    disk.leave_room(Some(64 << 20));
    assert_eq!(store.read_only_reason(), None, "there is room");
    apply(&store, Act::Append(0)).unwrap();
    assert!(store.fsck().unwrap().is_clean());
}

#[test]
fn a_quota_that_is_used_up_takes_a_revocation() {
    let home = Home::new();
    let disk = ModelDisk::new();
    let store = open(&disk, &home.path()).unwrap();
    for act in ACTS {
        apply(&store, act).unwrap();
    }
    disk.leave_quota(0);
    let refused = (0_u8..=255).find_map(|number| apply(&store, Act::Job(number)).err());
    assert_eq!(refused, Some(Code::StoreReadOnly), "a quota that is used up refuses");
    let held = dump(&store).unwrap();
    // The disk says that it has room, so each is tried.
    assert_eq!(apply(&store, Act::Append(0)), Err(Code::StoreReadOnly));
    apply(&store, Act::Revoke).unwrap();
    let with_tombstone = dump(&store).unwrap();
    assert_ne!(with_tombstone["CONTROLS"], held["CONTROLS"]);
    drop(store);
    let store = open(&disk, &home.path()).unwrap();
    assert_eq!(dump(&store).unwrap(), with_tombstone);
    disk.leave_room(None);
    apply(&store, Act::Append(0)).unwrap();
    assert!(store.fsck().unwrap().is_clean());
}

#[test]
fn what_has_the_reserve_is_durable_before_that_is_taken_again() {
    let home = Home::new();
    let disk = ModelDisk::new();
    let store = open(&disk, &home.path()).unwrap();
    apply(&store, Act::Job(1)).unwrap();
    // The disk says that it has room, so the batch goes as on any other, but for the reserve.
    disk.leave_quota(0);
    store.inner.health.fail(&StoreError::io("a write", std::io::ErrorKind::QuotaExceeded.into()));
    let journal = || disk.bytes(&home.path().join("store.journal")).unwrap();
    let before = journal();
    apply(&store, Act::Revoke).unwrap();
    assert_eq!(journal(), before, "the journal is written behind the writer, which takes the room back");
    drop(store);
    let store = open(&disk.after_crash(&mut Dice::new(3)), &home.path()).unwrap();
    let hash = WORLD.tombstone.hash();
    assert!(store.reader().unwrap().control_by_hash(&hash).unwrap().is_some());
}

#[test]
fn a_file_that_cannot_be_removed_ends_nothing_and_stays_listed() {
    let home = Home::new();
    let store = home.open();
    let block = |byte: u8| Block::of(Codec::Raw, vec![byte; INLINE_BYTES_MAX + 1]);
    let put = |store: &Store, byte| store.run(PutBlock::bytes(block(byte), now(), now())).unwrap();
    let sweep = |store: &Store| store.run(Sweep { now: now(), events_kept: 9 }).unwrap();
    let listed = |store: &Store| payloads::condemned(&store.reader().unwrap().txn).unwrap();
    let digest = *block(1).cid().digest();
    put(&store, 1);
    // No unlink removes a directory.
    let path = store.inner.files.path(&digest);
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    sweep(&store);
    assert_eq!((store.read_only_reason(), listed(&store)), (None, vec![digest]));
    // Others go all the same, and so does writing, also after the next start.
    put(&store, 2);
    sweep(&store);
    assert_eq!((store.read_only_reason(), listed(&store)), (None, vec![digest]));
    assert!(!store.inner.files.path(block(2).cid().digest()).exists());
    drop(store);
    let store = home.open();
    apply(&store, Act::Job(1)).unwrap();
    apply(&store, Act::Job(2)).unwrap();
    assert_eq!((store.read_only_reason(), listed(&store)), (None, vec![digest]));
    std::fs::remove_dir(&path).unwrap();
    put(&store, 3);
    sweep(&store);
    assert_eq!(listed(&store), Vec::<[u8; 32]>::new());
    assert!(store.fsck().unwrap().is_clean());
}

#[test]
fn a_disk_without_room_to_open_the_database_again_has_the_reserve() {
    let home = Home::new();
    let disk = ModelDisk::new();
    let store = open(&disk, &home.path()).unwrap();
    apply(&store, Act::Job(1)).unwrap();
    let held = dump(&store).unwrap();
    // So large that it goes to the database itself, which then has to be mended as it is opened again.
    let large = PutJob {
        kind: "large".to_owned(),
        id: vec![1],
        expect: Expect::Anything,
        journal: Some(vec![1; 300_000]),
        at: now(),
    };
    // The first write of the commit, and the first one of the database that is opened again.
    disk.fail_writes_after(0, 2, Fault::Full);
    assert_eq!(store.run(large.clone()).unwrap_err().code(), Code::StoreReadOnly);
    assert!(disk.heal(), "both came");
    assert_eq!((store.read_only_reason(), dump(&store).unwrap()), (None, held));
    store.run(large).unwrap();
    assert!(store.fsck().unwrap().is_clean());
}

#[test]
fn a_file_whose_row_is_gone_is_not_brought_back_by_a_power_cut() {
    let home = Home::new();
    let disk = ModelDisk::new();
    let store = open(&disk, &home.path()).unwrap();
    for act in [Act::Append(0), Act::Append(0), Act::Append(0), Act::Redact(0), Act::Pin(0)] {
        apply(&store, act).unwrap();
    }
    let mut cuts: Vec<ModelDisk> = (0..60).map(|seed| disk.after_crash(&mut Dice::new(seed))).collect();
    // Brought again with its entry, and removed.
    apply(&store, Act::Again(0)).unwrap();
    cuts.extend((0..60).map(|seed| disk.after_crash(&mut Dice::new(seed))));
    drop(store);
    for (seed, cut) in cuts.iter().enumerate() {
        let store = open(cut, &home.path()).unwrap();
        let condemned = payloads::condemned(&store.reader().unwrap().txn).unwrap();
        let files = store.inner.files.list().unwrap();
        assert!(files.iter().all(|file| condemned.contains(file)), "{seed}: a redacted file is back");
    }
}

#[test]
fn a_payload_file_that_cannot_be_written_refuses_the_entry_alone() {
    let home = Home::new();
    let disk = ModelDisk::new();
    let store = open(&disk, &home.path()).unwrap();
    apply(&store, Act::Append(0)).unwrap();
    apply(&store, Act::Append(0)).unwrap();
    disk.fail_write_after(0, Fault::Full);
    // The third entry's payload is a file: making it is the first call.
    assert_eq!(apply(&store, Act::Append(0)), Err(Code::StoreIo));
    assert_eq!(store.read_only_reason(), None);
    apply(&store, Act::Append(0)).unwrap();
    assert!(store.fsck().unwrap().is_clean());
}

#[test]
fn a_directory_that_a_killed_process_left_is_made_durable_again() {
    let home = Home::new();
    let disk = ModelDisk::new();
    let store = open(&disk, &home.path()).unwrap();
    let block = Block::of(Codec::Raw, vec![7; INLINE_BYTES_MAX + 1]);
    let path = store.inner.files.path(block.cid().digest());
    // Made, and its name not yet durable in the directory above.
    disk.make_dirs(path.parent().unwrap()).unwrap();
    store.run(PutBlock::bytes(block.clone(), now(), now())).unwrap();
    drop(store);
    for seed in 0..20 {
        let after = disk.after_crash(&mut crate::testing::Dice::new(seed));
        let store = open(&after, &home.path()).unwrap();
        assert_eq!(
            store.reader().unwrap().block(&block.cid()).unwrap(),
            Some(block.bytes().to_vec()),
            "{seed}"
        );
    }
}

/// Queues jobs without waiting for any, so that batches stand on batches that are not durable yet; returns those that were
/// acknowledged.
fn queued(store: &Store, jobs: std::ops::Range<u8>) -> BTreeSet<u8> {
    let (sender, answers) = mpsc::channel();
    for id in jobs {
        let sender = sender.clone();
        let job = PutJob {
            kind: "queued".to_owned(),
            id: vec![id],
            expect: Expect::Anything,
            journal: Some(vec![id; 2_000]),
            at: now(),
        };
        let reply =
            move |outcome: Result<(), StoreError>| sender.send(outcome.is_ok().then_some(id)).unwrap();
        if let Err(error) = store.submit(job, reply) {
            assert!(DISK_CODES.contains(&error.code()), "{error}");
        }
    }
    drop(sender);
    answers.iter().flatten().collect()
}

fn jobs(store: &Store) -> BTreeSet<u8> {
    store.reader().unwrap().jobs("queued").unwrap().into_iter().map(|row| row.unwrap().key[0]).collect()
}

#[test]
fn what_stands_on_a_batch_that_failed_is_refused_and_gone() {
    const JOBS: u8 = 40;
    for fault in [Fault::Failed, Fault::Full, Fault::ShortFull] {
        let (mut told, mut went_on) = (0, 0);
        for calls in 0.. {
            let home = Home::new();
            let disk = ModelDisk::new();
            let store = open(&disk, &home.path()).unwrap();
            let mut acknowledged = queued(&store, 0..4);
            disk.fail_write_after(calls, fault);
            acknowledged.extend(queued(&store, 4..JOBS));
            let came = disk.heal();
            let what = format!("{fault:?} after {calls} calls");
            if acknowledged.len() < usize::from(JOBS) {
                told += 1;
                if store.read_only_reason().is_some() {
                    // Also when it was an fsync that found no room.
                    assert_eq!(jobs(&store), acknowledged, "{what}");
                } else {
                    went_on += 1;
                    assert!(acknowledged.is_subset(&jobs(&store)), "{what}");
                    // There is room again, so all of them are taken.
                    assert_eq!(queued(&store, 0..JOBS).len(), usize::from(JOBS), "{what}");
                    acknowledged = (0..JOBS).collect();
                }
            }
            let found = store.fsck().unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(found.is_clean(), "{what}: {:?}", found.problems);
            let cut = disk.after_crash(&mut Dice::new(calls));
            drop(store);
            for disk in [disk, cut] {
                let store = open(&disk, &home.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(acknowledged.is_subset(&jobs(&store)), "{what}");
                assert!(store.fsck().unwrap().is_clean(), "{what}");
            }
            if !came {
                break;
            }
        }
        assert!(told > 3, "{fault:?}: {told} of the calls were in the way of a job");
        assert_eq!(went_on == 0, fault == Fault::Failed, "{fault:?}");
    }
}

#[test]
fn a_file_whose_batch_is_in_doubt_is_no_orphan() {
    // The journal's record: written whole, and its fsync says no.
    let home = Home::new();
    let disk = ModelDisk::new();
    let store = open(&disk, &home.path()).unwrap();
    let block = Block::of(Codec::Raw, vec![7; INLINE_BYTES_MAX + 1]);
    let digest = *block.cid().digest();
    let mut writer = store.file_writer().unwrap();
    writer.write_all(block.bytes()).unwrap();
    let put = PutBlock::file(writer.finish().unwrap(), now(), ts(5));
    disk.fail_write_after(1, Fault::Failed);
    assert_eq!(store.run(put).unwrap_err().code(), Code::StoreReadOnly);
    assert!(disk.heal());
    // Whoever walked the files since before that comes to this one now: the operation has given it up.
    let (newest, durable) = (|| store.inner.snapshots.newest.get(), || store.inner.snapshots.durable.get());
    let unlinked = store.inner.files.unlink_orphan(&digest, newest, durable).unwrap();
    assert!(matches!(unlinked, crate::files::Unlinked::Held), "{unlinked:?}");
    drop(store);
    // As the disk has it, the batch is there.
    let store = open(&disk, &home.path()).unwrap();
    assert!(store.reader().unwrap().block(&block.cid()).unwrap().is_some());
    assert!(store.fsck().unwrap().is_clean());
}

#[test]
fn a_disk_that_fails_while_the_store_closes_loses_nothing() {
    let home = Home::new();
    for fault in [Fault::Failed, Fault::ShortFull] {
        let mut hits = 0;
        for calls in 0.. {
            let disk = ModelDisk::new();
            let store = open(&disk, &home.path()).unwrap();
            for act in ACTS {
                apply(&store, act).unwrap();
            }
            let held = dump(&store).unwrap();
            disk.fail_write_after(calls, fault);
            drop(store);
            let came = disk.heal();
            let what = format!("{fault:?} after {calls} calls");
            for disk in [disk.after_crash(&mut Dice::new(calls)), disk] {
                let store = open(&disk, &home.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
                let now = dump(&store).unwrap();
                assert!(now == held, "{what}: {:?} differ", difference(&now, &held));
                assert!(store.fsck().unwrap().is_clean(), "{what}");
            }
            if !came {
                break;
            }
            hits += 1;
        }
        assert!(hits > 5, "{fault:?}: only {hits} calls could fail");
    }
}
