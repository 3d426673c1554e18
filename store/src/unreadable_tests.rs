//! A damaged row of a block, and what else happens to that block: nothing that is whole may go along, nothing may stay behind.

use std::io::Write as _;

use throughline_protocol::block::Block;
use throughline_protocol::id::{Codec, EntryCid, UnixMillis};

use crate::corrupt_tests::{filled, flip_rows, large, mend};
use crate::fixture::*;
use crate::sim_tests::*;
use crate::tables;
use crate::testing::Dice;
use crate::*;

fn damage_all(store: &Store) {
    flip_rows(store, tables::BLOCKS, 0..usize::MAX, &mut Dice::new(41));
}

fn has_file(store: &Store, digest: &[u8; 32]) -> bool {
    store.inner.files.list().unwrap().contains(digest)
}

fn end_all_leases(store: &Store) {
    let end = UnixMillis::new(u64::from(u32::MAX) * 1_000).unwrap();
    store.run(Sweep { now: end, events_kept: 99 }).unwrap();
}

fn forget(store: &Store, session: usize) {
    let session = WORLD.sessions[session].session();
    let expected_tip = store.reader().unwrap().session(session).unwrap().unwrap().tip.cid;
    store.run(Forget { session, expected_tip, at: now() }).unwrap();
}

fn stream(store: &Store, bytes: &[u8]) {
    let mut writer = store.file_writer().unwrap();
    writer.write_all(bytes).unwrap();
    store.run(PutBlock::file(writer.finish().unwrap(), now(), now())).unwrap();
}

#[test]
fn a_lease_that_ends_takes_no_payload_along_that_an_entry_links() {
    let home = Home::new();
    let (_disk, store) = filled(&home);
    let (damage, bytes, _) = large();
    let block = Block::of(Codec::DagCbor, bytes.to_vec());
    store.run(PutBlock::bytes(block, now(), now())).unwrap();
    damage_all(&store);
    end_all_leases(&store);
    assert!(has_file(&store, damage.digest()));
    let found = store.fsck().unwrap();
    assert!(found.damaged.contains(&damage), "{found:?}");
    mend(&store, &found);
    assert_clean(&store, &[]);
    let payload = store.reader().unwrap().payload(EntryCid::from_digest(*damage.digest())).unwrap();
    assert_eq!(payload, PayloadState::Present(bytes.to_vec()));
}

#[test]
fn a_session_that_goes_takes_no_file_along_that_another_links() {
    let home = Home::new();
    let (_disk, store) = filled(&home);
    let bytes = vec![9; INLINE_BYTES_MAX + 1];
    let digest = *Block::of(Codec::Raw, bytes.clone()).cid().digest();
    stream(&store, &bytes);
    for session in &WORLD.sessions[..2] {
        let block = Block::of(Codec::Raw, bytes.clone());
        store.run(PutBlock::bytes(block, now(), now()).received_for(session.session())).unwrap();
        store.run(LinkBlocks { session: session.session(), links: vec![(seq(0), digest)] }).unwrap();
    }
    end_all_leases(&store);
    damage_all(&store);
    forget(&store, 1);
    assert!(has_file(&store, &digest));
    let found = store.fsck().unwrap();
    let session = WORLD.sessions[0].session();
    assert!(found.damaged.contains(&Damage::Block { digest, session: Some(session) }), "{found:?}");
    let blobs = vec![(Damage::Block { digest, session: Some(session) }, bytes.into())];
    store.run(Mend { blobs, at: now() }).unwrap();
    assert_eq!(store.reader().unwrap().linkers(&digest).unwrap(), [session]);
    // Its links are what they were: it goes with the last of them.
    forget(&store, 0);
    assert!(!has_file(&store, &digest));
}

#[test]
fn a_lease_that_runs_keeps_a_damaged_block_and_comes_back_with_it() {
    let home = Home::new();
    let (_disk, store) = filled(&home);
    let bytes = vec![9; INLINE_BYTES_MAX + 1];
    let digest = *Block::of(Codec::Raw, bytes.clone()).cid().digest();
    stream(&store, &bytes);
    let session = WORLD.sessions[1].session();
    store.run(LinkBlocks { session, links: vec![(seq(0), digest)] }).unwrap();
    damage_all(&store);
    forget(&store, 1);
    assert!(has_file(&store, &digest));
    let blobs = vec![(Damage::Block { digest, session: None }, bytes.into())];
    store.run(Mend { blobs, at: now() }).unwrap();
    let lease = payloads::row(&store.reader().unwrap().txn, &digest).unwrap().unwrap().lease_ms;
    assert_eq!(lease, now().get());
    end_all_leases(&store);
    assert!(!has_file(&store, &digest));
}

#[test]
fn a_small_file_that_comes_again_without_one_leaves_none_behind() {
    let small = vec![9; 100];
    let block = Block::of(Codec::Raw, small.clone());
    let digest = *block.cid().digest();
    let put = |store: &Store| {
        store.run(PutBlock::bytes(block.clone(), now(), now())).unwrap();
    };
    let mended = |store: &Store| {
        let blobs = vec![(Damage::Block { digest, session: None }, small.clone().into())];
        store.run(Mend { blobs, at: now() }).unwrap();
    };
    for comes_again in [&put as &dyn Fn(&Store), &mended] {
        let home = Home::new();
        let (_disk, store) = filled(&home);
        stream(&store, &small);
        assert!(has_file(&store, &digest));
        damage_all(&store);
        comes_again(&store);
        assert!(!has_file(&store, &digest), "a redaction would not reach it");
        assert_eq!(store.reader().unwrap().block(&block.cid()).unwrap().as_ref(), Some(&small));
    }
}

#[test]
fn a_file_of_what_lies_in_a_table_is_not_kept() {
    let home = Home::new();
    let (_disk, store) = filled(&home);
    let block = Block::of(Codec::Raw, vec![9; 100]);
    store.run(PutBlock::bytes(block.clone(), now(), now())).unwrap();
    stream(&store, block.bytes());
    assert!(!has_file(&store, block.cid().digest()), "a redaction would not reach it");
    assert_eq!(store.reader().unwrap().block(&block.cid()).unwrap().as_deref(), Some(&block.bytes()[..]));
}
