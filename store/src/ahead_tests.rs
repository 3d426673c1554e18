//! Files that are made before the rows that name them.

use throughline_protocol::code::Code;
use throughline_protocol::testing::{Built, SessionBuilder};
use throughline_protocol::verify::Prechecked;

use crate::fixture::*;
use crate::sim_tests::open;
use crate::testing::{Dice, Fault, ModelDisk};
use crate::*;

/// A session of three messages that become files, after its genesis.
fn large(label: &str) -> SessionBuilder {
    let mut builder = SessionBuilder::new(label);
    for number in 0..3 {
        push(&mut builder, &format!("{number} {}", "x".repeat(INLINE_BYTES_MAX)));
    }
    builder
}

fn checked(builder: &SessionBuilder) -> Vec<Prechecked> {
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    builder.entries().iter().map(checked).collect()
}

/// The files that are there once the writer has done all that it was told before.
fn files(store: &Store) -> usize {
    store.run(PutNote { at: now(), topic: "turn".to_owned(), data: Vec::new() }).unwrap();
    store.inner.files.list().unwrap().len()
}

#[test]
fn files_that_are_there_are_not_written_again_and_stay_with_their_rows() {
    let (home, disk, builder) = (Home::new(), ModelDisk::new(), large("ahead"));
    let store = open(&disk, &home.path()).unwrap();
    let made = store.make_ahead(&checked(&builder)).unwrap();
    assert_eq!((made.count(), files(&store)), (3, 3), "the genesis has no payload");
    // No other file can be made: the adoption has to do with those.
    let staging = home.path().join("staging");
    disk.rename(&staging, &home.path().join("elsewhere")).unwrap();
    store.adopt(whole(&builder), at()).unwrap();
    disk.rename(&home.path().join("elsewhere"), &staging).unwrap();
    drop(made);
    assert_eq!(files(&store), 3);
    assert_holds(&store, &builder);
    drop(store);
    let store = open(&disk.after_crash(&mut Dice::new(1)), &home.path()).unwrap();
    assert_holds(&store, &builder);
}

#[test]
fn files_that_nothing_names_in_the_end_go_and_others_stay() {
    let (home, builder) = (Home::new(), large("given back"));
    let store = home.open();
    let (first, second) = (checked(&builder), checked(&large("another")));
    let (one, both) =
        (store.make_ahead(&first).unwrap(), store.make_ahead(first.iter().chain(&second)).unwrap());
    assert_eq!((both.count(), files(&store)), (6, 6));
    drop(both);
    assert_eq!(files(&store), 3, "those that another transfer relies on stay");
    assert_eq!(store.remove_orphans().unwrap(), 0);
    store.adopt(segment(&builder, 0, 2), at()).unwrap();
    drop(one);
    assert_eq!(files(&store), 1, "the one that was adopted");
    // Made anew: what was durable while it was held is forgotten with it.
    store.adopt(segment(&builder, 2, 4), at()).unwrap();
    assert_holds(&store, &builder);
}

#[test]
fn a_disk_that_fails_at_any_call_leaves_no_file_that_nothing_names() {
    let builder = large("failing");
    for fault in [Fault::Failed, Fault::Full, Fault::ShortFailed, Fault::ShortFull] {
        for calls in 0.. {
            let (home, disk) = (Home::new(), ModelDisk::new());
            let store = open(&disk, &home.path()).unwrap();
            store.adopt(segment(&builder, 0, 1), at()).unwrap();
            disk.fail_write_after(calls, fault);
            let made = store.make_ahead(&checked(&builder));
            let came = disk.heal();
            let what = format!("{fault:?} after {calls} calls");
            assert_eq!(made.as_ref().err().map(StoreError::code), came.then_some(Code::StoreIo), "{what}");
            drop(made);
            let cut = disk.after_crash(&mut Dice::new(calls));
            let store = if store.read_only_reason().is_some() {
                // A sync failed: nothing is written any more, until the next start.
                drop(store);
                let store = open(&disk, &home.path()).unwrap();
                store.remove_orphans().unwrap();
                store
            } else {
                store
            };
            assert_eq!(files(&store), 0, "{what}");
            store.adopt(segment(&builder, 1, 4), at()).unwrap();
            assert_holds(&store, &builder);
            drop(store);
            let store = open(&cut, &home.path()).unwrap();
            store.remove_orphans().unwrap();
            assert_eq!(files(&store), 0, "{what}, and a power cut");
            if !came {
                break;
            }
        }
    }
}

#[test]
fn a_full_disk_has_the_room_back_of_what_was_made_and_is_not_adopted() {
    let (home, disk, mut builder) = (Home::new(), ModelDisk::new(), large("full"));
    let store = open(&disk, &home.path()).unwrap();
    let made = store.make_ahead(&checked(&builder)).unwrap();
    disk.leave_room(Some(0));
    let job = PutJob {
        kind: "large".to_owned(),
        id: vec![1],
        expect: Expect::Anything,
        journal: Some(vec![1; 300_000]),
        at: now(),
    };
    assert_eq!(store.run(job).unwrap_err().code(), Code::StoreReadOnly);
    assert!(store.read_only_reason().is_some());
    drop(made);
    // Urgent as well, so that it has its turn on a full disk, after the files.
    let grant = builder.server2.capability.clone().unwrap();
    let revoked = builder.tombstone(&grant, Vec::new());
    store.run(PutControls { controls: vec![revoked], at: now() }).unwrap();
    assert_eq!(store.inner.files.list().unwrap(), Vec::<[u8; 32]>::new());
    disk.leave_room(None);
    store.adopt(whole(&builder), at()).unwrap();
    assert_holds(&store, &builder);
}

#[test]
fn a_store_that_was_closed_meanwhile_leaves_orphans_for_the_next_start() {
    let (home, builder) = (Home::new(), large("closed"));
    let store = home.open();
    let made = store.make_ahead(&checked(&builder)).unwrap();
    store.inner.writer.stop();
    drop((made, store));
    let store = home.open();
    assert_eq!(store.remove_orphans().unwrap(), 3);
    assert_clean(&store, &[]);
}
