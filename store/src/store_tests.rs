use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use redb::ReadableTable;
use throughline_protocol::block::{Block, Signed};
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::id::{Cid, Codec, EntryCid, SessionId, UnixMillis};
use throughline_protocol::testing::{Reach, raw_block, ts};

use crate::fixture::*;
use crate::side::tests::{SIDE_LIMITS, beside};
use crate::tables::Spec as _;
use crate::*;

fn bytes_of(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect()
}

fn put(store: &Store, bytes: &[u8], lease: UnixMillis) -> (Cid, Stored) {
    let block = Block::of(Codec::Raw, bytes);
    let cid = block.cid();
    (cid, store.run(PutBlock::bytes(block, now(), lease)).unwrap())
}

#[test]
fn small_blocks_lie_in_a_table_and_large_ones_in_files() {
    let home = Home::new();
    let store = home.open();
    for length in [1, INLINE_BYTES_MAX, INLINE_BYTES_MAX + 1, 300_000] {
        let bytes = bytes_of(length);
        let (cid, stored) = put(&store, &bytes, now());
        assert_eq!(stored, Stored::New);
        assert_eq!(put(&store, &bytes, now()).1, Stored::Held);
        let reader = store.reader().unwrap();
        assert_eq!(reader.block(&cid).unwrap(), Some(bytes.clone()));
        let file = reader.open_file(cid.digest()).unwrap();
        assert_eq!(file.is_some(), length > INLINE_BYTES_MAX);
        if let Some((mut file, size)) = file {
            let mut streamed = Vec::new();
            file.read_to_end(&mut streamed).unwrap();
            assert_eq!((streamed, size), (bytes, u64::try_from(length).unwrap()));
        }
    }
    assert_eq!(store.reader().unwrap().stats().unwrap().blocks, 4);
    assert_clean(&store, &[]);
}

#[test]
fn a_file_is_streamed_in_and_found_by_its_digest() {
    let home = Home::new();
    let store = home.open();
    let bytes = bytes_of(200_000);
    let mut writer = store.file_writer().unwrap();
    for chunk in bytes.chunks(7_919) {
        writer.write_all(chunk).unwrap();
    }
    let file = writer.finish().unwrap();
    let cid = file.cid(Codec::Raw);
    assert_eq!(cid, Cid::sha256(Codec::Raw, &bytes));
    assert_eq!(store.run(PutBlock::file(file, now(), ts(0))).unwrap(), Stored::New);
    assert_eq!(store.reader().unwrap().block(&cid).unwrap(), Some(bytes));
    drop(store.file_writer().unwrap());
    assert_eq!(std::fs::read_dir(home.path().join("staging")).unwrap().count(), 0);
}

#[test]
fn damage_is_told_and_never_handed_out() {
    let home = Home::new();
    let store = home.open();
    let bytes = bytes_of(100_000);
    let (cid, _) = put(&store, &bytes, now());
    flip(&store.inner.files.path(cid.digest()));
    let reader = store.reader().unwrap();
    assert_eq!(reader.block(&cid).unwrap_err().code(), Code::StoreCorrupt);
    let (mut file, _) = reader.open_file(cid.digest()).unwrap().unwrap();
    assert_eq!(file.read_to_end(&mut Vec::new()).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    let found = store.fsck().unwrap();
    assert_eq!(found.problems.iter().map(|problem| problem.code).collect::<Vec<_>>(), [Code::StoreCorrupt]);
    std::fs::remove_file(store.inner.files.path(cid.digest())).unwrap();
    assert_eq!(reader.block(&cid).unwrap_err().code(), Code::StoreCorrupt);
    assert_eq!(store.fsck().unwrap().problem_count, 1);
    // A damaged block does not close the store: it can be fetched and written again.
    assert_eq!(store.read_only_reason(), None);
    put(&store, &bytes, now());
    assert_eq!(store.reader().unwrap().block(&cid).unwrap(), Some(bytes));
    assert!(store.fsck().unwrap().is_clean());
}

#[test]
fn damaged_rows_are_told_by_reads_and_by_fsck() {
    let (home, builder) = (Home::new(), session("rows", 3));
    let store = home.open();
    store.adopt(whole(&builder), AdoptOptions { controls: builder.controls().to_vec(), ..at() }).unwrap();
    let number = store.reader().unwrap().session(builder.session()).unwrap().unwrap().number;
    write_behind(&store, |txn| {
        let mut table = txn.open_table(crate::tables::ENTRIES::DEFINITION).unwrap();
        let mut row = table.get((number, 2)).unwrap().unwrap().value().to_vec();
        let end = row.len() - 1;
        row[end] ^= 1;
        table.insert((number, 2), row.as_slice()).unwrap();
        let mut index = txn.open_table(crate::tables::INDEX::DEFINITION).unwrap();
        index.insert(builder.entries()[3].entry.cid().digest(), (number, 1, 0)).unwrap();
        let mut controls = txn.open_table(crate::tables::CONTROLS::DEFINITION).unwrap();
        controls.insert(&builder.controls()[0].hash(), &b"junk"[..]).unwrap();
    });
    let reader = store.reader().unwrap();
    let id = builder.session();
    assert_eq!(reader.entry_at(id, seq(2)).unwrap_err().code(), Code::StoreCorrupt);
    assert_eq!(reader.entry(builder.entries()[3].entry.cid()).unwrap_err().code(), Code::IndexCorrupt);
    assert_eq!(
        reader.controls_of_owner(builder.owner.key.principal()).unwrap_err().code(),
        Code::StoreCorrupt
    );
    assert!(reader.entries(id, seq(0), seq(3)).unwrap().any(|entry| entry.is_err()));
    let codes: Vec<Code> = store.fsck().unwrap().problems.iter().map(|problem| problem.code).collect();
    assert!(codes.contains(&Code::StoreCorrupt) && codes.contains(&Code::IndexCorrupt), "{codes:?}");
}

/// The bytes come for a session; they are held already, with a longer lease or without one.
fn receive(store: &Store, bytes: &[u8], session: SessionId) {
    let block = Block::of(Codec::Raw, bytes.to_vec());
    store.run(PutBlock::bytes(block, now(), ts(0)).received_for(session)).unwrap();
}

#[test]
fn a_lease_keeps_what_nothing_links_and_a_link_keeps_what_has_no_lease() {
    let (home, builder) = (Home::new(), session("lease", 1));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let (linked, _) = put(&store, &bytes_of(20_000), ts(10));
    receive(&store, &bytes_of(20_000), builder.session());
    let (loose, _) = put(&store, &bytes_of(30_000), ts(10));
    let (longer, _) = put(&store, &bytes_of(40_000), ts(10));
    put(&store, &bytes_of(40_000), ts(90));
    store.run(LinkBlocks { session: builder.session(), links: vec![(seq(1), *linked.digest())] }).unwrap();
    let sweep = |now| store.run(Sweep { now, events_kept: 1_000 }).unwrap();
    assert_eq!(sweep(ts(9)), Swept::default());
    assert_eq!(sweep(ts(10)).leases, 2);
    let held = |cid: &Cid| store.reader().unwrap().block(cid).unwrap().is_some();
    assert!(held(&linked) && !held(&loose) && held(&longer));
    assert!(!store.inner.files.path(loose.digest()).exists());
    assert!(store.inner.files.path(linked.digest()).exists());
    assert_eq!(sweep(ts(90)).leases, 1);
    assert!(!held(&longer));
    assert_clean(&store, builder.controls());
}

#[test]
fn a_file_that_an_operation_in_flight_relies_on_is_not_unlinked() {
    let home = Home::new();
    let store = home.open();
    let bytes = bytes_of(50_000);
    let (cid, _) = put(&store, &bytes, ts(1));
    // Prepared, and not queued yet: the row goes meanwhile.
    let mut writer = store.file_writer().unwrap();
    writer.write_all(&bytes).unwrap();
    let file = writer.finish().unwrap();
    store.run(Sweep { now: ts(2), events_kept: 10 }).unwrap();
    store.run(Sweep { now: ts(2), events_kept: 10 }).unwrap();
    assert_eq!(store.reader().unwrap().block(&cid).unwrap(), None);
    assert_eq!(store.run(PutBlock::file(file, now(), ts(9))).unwrap(), Stored::New);
    store.run(Sweep { now: ts(3), events_kept: 10 }).unwrap();
    assert_eq!(store.reader().unwrap().block(&cid).unwrap(), Some(bytes));
}

#[test]
fn files_that_no_row_names_are_removed_and_others_stay() {
    let home = Home::new();
    let store = home.open();
    let (kept, _) = put(&store, &bytes_of(20_000), ts(1));
    let write = |length| {
        let mut writer = store.file_writer().unwrap();
        writer.write_all(&bytes_of(length)).unwrap();
        writer.finish().unwrap()
    };
    let (in_flight, abandoned) = (write(30_000), write(40_000));
    let orphan = store.inner.files.path(&abandoned.digest);
    assert_eq!(store.remove_orphans().unwrap(), 0);
    drop(abandoned);
    std::fs::write(home.path().join("payloads/README"), b"not ours").unwrap();
    assert_eq!(store.remove_orphans().unwrap(), 1);
    assert!(!orphan.exists() && home.path().join("payloads/README").exists());
    store.run(PutBlock::file(in_flight, now(), ts(1))).unwrap();
    assert_eq!(store.remove_orphans().unwrap(), 0);
    assert!(store.reader().unwrap().block(&kept).unwrap().is_some());
    assert_clean(&store, &[]);
}

#[test]
fn redacted_payloads_go_and_do_not_come_back() {
    let (home, mut builder) = (Home::new(), session("redact", 1));
    push(&mut builder, &"large ".repeat(5_000));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let redacted = builder.head().entry.value().payload.unwrap().cid;
    let which = Which::Entries(vec![builder.head().entry.cid()]);
    let session = builder.session();
    assert_eq!(store.run(DropPayloads { session, which, later: Later::Refuse, at: now() }).unwrap(), 1);
    assert_eq!(store.reader().unwrap().payload(redacted).unwrap(), PayloadState::Dropped);
    let bytes = builder.head().payload.clone().unwrap();
    let again = PutBlock::bytes(Block::of(Codec::DagCbor, bytes), now(), now());
    assert_eq!(store.run(again).unwrap_err().code(), Code::Refused);
    assert_eq!(
        store.run(DropPayloads { session, which: Which::All, later: Later::Accept, at: now() }).unwrap(),
        2
    );
    assert_eq!(store.reader().unwrap().stats().unwrap().blocks, 0);
    let roomy = builder.entries()[1].entry.value().payload.unwrap().cid;
    assert_eq!(store.reader().unwrap().payload(roomy).unwrap(), PayloadState::Absent);
    assert!(!store.inner.files.path(redacted.digest()).exists());
    assert_clean(&store, builder.controls());
}

#[test]
fn a_redacted_payload_that_is_given_again_leaves_no_file() {
    let (home, mut builder) = (Home::new(), session("refuse", 1));
    push(&mut builder, &"large ".repeat(5_000));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let payload = builder.head().entry.value().payload.unwrap().cid;
    let path = store.inner.files.path(payload.digest());
    assert!(path.exists());
    let which = Which::Entries(vec![builder.head().entry.cid()]);
    let (id, tip) = (builder.session(), builder.head().entry.cid());
    store.run(DropPayloads { session: id, which, later: Later::Refuse, at: now() }).unwrap();
    // With its entry, when the session comes back, and streamed in by itself.
    store.run(Forget { session: id, expected_tip: tip, at: now() }).unwrap();
    store.adopt(whole(&builder), at()).unwrap();
    assert_eq!(store.reader().unwrap().payload(payload).unwrap(), PayloadState::Dropped);
    assert!(!path.exists(), "the words are on the disk again");
    let mut writer = store.file_writer().unwrap();
    writer.write_all(builder.head().payload.as_ref().unwrap()).unwrap();
    let streamed = PutBlock::file(writer.finish().unwrap(), now(), now());
    assert_eq!(store.run(streamed).unwrap_err().code(), Code::Refused);
    assert!(!path.exists(), "the words are on the disk again");
    assert_clean(&store, builder.controls());
}

#[test]
fn a_replayed_request_leaves_no_file() {
    let (home, builder) = (Home::new(), session("replay", 1));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    // The same request once more: the words are the same, their salt, and so the file, is another.
    let adopt = |name: &str| {
        let mut signed = builder.clone().branch(name);
        push(&mut signed, &"large ".repeat(5_000));
        let scope = Scope::Session(builder.session());
        let key =
            Idempotency { scope, key: "k".to_owned(), request: [1; 32], result: vec![7], expires: None };
        store.adopt(last(&signed), AdoptOptions { idempotency: Some(key), ..at() }).unwrap()
    };
    assert!(matches!(adopt("first"), Adopted::Now { .. }));
    assert_eq!(adopt("second"), Adopted::Replayed { result: vec![7] });
    assert_eq!(store.inner.files.list().unwrap().len(), 1);
}

#[test]
fn a_forgotten_session_leaves_its_guard_row_and_nothing_else() {
    let (home, builder) = (Home::new(), session("forget", 2));
    let mut other = session("stays", 1);
    push(&mut other, &"large ".repeat(5_000));
    let store = home.open();
    store.adopt(segment(&builder, 0, 1), activated()).unwrap();
    store.adopt(segment(&builder, 1, 3), signed(&builder)).unwrap();
    store.adopt(whole(&other), at()).unwrap();
    let shared = put(&store, &bytes_of(30_000), ts(0)).0;
    for builder in [&builder, &other] {
        receive(&store, &bytes_of(30_000), builder.session());
        let links = vec![(seq(1), *shared.digest())];
        store.run(LinkBlocks { session: builder.session(), links }).unwrap();
    }
    let mut branch = builder.at(1).branch("b");
    push(&mut branch, "beside");
    store.run(beside(&builder, &[&branch], SIDE_LIMITS)).unwrap();
    let forget = |tip| Forget { session: builder.session(), expected_tip: tip, at: now() };
    assert_eq!(store.run(forget(builder.entries()[0].entry.cid())).unwrap_err().code(), Code::HeadMoved);
    store.run(forget(builder.head().entry.cid())).unwrap();

    let reader = store.reader().unwrap();
    assert_eq!(reader.session(builder.session()).unwrap(), None);
    assert_eq!(reader.entry(builder.head().entry.cid()).unwrap(), None);
    assert_eq!(reader.entry(branch.head().entry.cid()).unwrap(), None);
    let stats = reader.stats().unwrap();
    assert_eq!((stats.sessions, stats.entries, stats.side_entries, stats.side_bytes), (1, 3, 0, 0));
    assert_eq!(reader.linkers(shared.digest()).unwrap(), [other.session()]);
    assert_holds(&store, &other);

    // It comes back as anybody's; this node does not sign in it, and does not take it over by its genesis again.
    assert!(matches!(store.adopt(segment(&builder, 0, 1), activated()), Err(AdoptError::SignGuard(_))));
    store.adopt(segment(&builder, 0, 2), at()).unwrap();
    let mut second = builder.at(1).branch("second");
    push(&mut second, "another history");
    assert!(matches!(store.adopt(last(&second), signed(&second)), Err(AdoptError::SignGuard(_))));
    store.adopt(segment(&builder, 2, 3), at()).unwrap();
    let mut builder = builder;
    push(&mut builder, "after what was signed");
    store.adopt(last(&builder), signed(&builder)).unwrap();
    assert_holds(&store, &builder);
}

#[test]
fn a_late_payload_belongs_to_its_session_from_the_start() {
    let (home, builder) = (Home::new(), session("late", 1));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let config = Block::of(Codec::DagCbor, b"config".to_vec());
    store
        .run(LinkBlocks { session: builder.session(), links: vec![(seq(1), *config.cid().digest())] })
        .unwrap();
    assert_eq!(store.reader().unwrap().find(&config.cid()).unwrap(), None);
    store.run(PutBlock::bytes(config.clone(), now(), ts(0))).unwrap();
    let expected = Found::Block { size_bytes: 6 };
    assert_eq!(store.reader().unwrap().find(&config.cid()).unwrap(), Some(expected));
}

#[test]
fn control_blobs_are_found_by_both_cids_by_owner_and_by_session() {
    let (home, mut builder) = (Home::new(), session("controls", 1));
    let device = Arc::clone(&builder.device);
    let reference = builder.reference(&device, 1, Reach::Anchors);
    let capability = builder.device.capability.clone().unwrap();
    builder.tombstone(&capability, Vec::new());
    let store = home.open();
    let run = |controls: Vec<Signed<Control>>| store.run(PutControls { controls, at: now() });
    let owner = builder.owner.key.principal();
    let mut expected = throughline_protocol::fork::Controls::new();
    let digest = |controls: &throughline_protocol::fork::Controls| {
        let (count, digest) = controls.digest(owner);
        OwnerDigest { count, digest }
    };
    assert_eq!(store.reader().unwrap().owner_digest(owner).unwrap(), digest(&expected));
    for control in builder.controls() {
        assert_eq!(run(vec![control.clone()]).unwrap(), [Stored::New]);
        assert_eq!(run(vec![control.clone()]).unwrap(), [Stored::Held]);
        expected.insert(control);
        let reader = store.reader().unwrap();
        assert_eq!(reader.owner_digest(owner).unwrap(), digest(&expected));
        let blake = Cid::blake2b(Codec::DagCbor, control.bytes());
        for cid in [control.cid().cid(), blake] {
            assert_eq!(reader.control(&cid).unwrap(), Some(control.bytes().to_vec()));
            assert_eq!(reader.block(&cid).unwrap(), Some(control.bytes().to_vec()));
            assert_eq!(reader.find(&cid).unwrap(), Some(Found::Control { hash: control.hash() }));
        }
    }
    let reader = store.reader().unwrap();
    let hashes = reader.control_hashes(owner).unwrap();
    assert!(hashes.is_sorted() && hashes.len() == builder.controls().len() - 1);
    assert_eq!(reader.refs_of_session(builder.session()).unwrap(), [reference.bytes().to_vec()]);
    assert_eq!(reader.owners().unwrap(), [(owner, digest(&expected))]);
    let raw = Cid::from_parts(Codec::Raw, throughline_protocol::id::HashKind::Sha256, hashes[0]);
    assert_eq!(reader.control(&raw).unwrap(), None);
}

#[test]
fn staging_has_quotas_and_an_end() {
    let home = Home::new();
    let store = home.open();
    let (one, two) = (session("one", 0).session(), session("two", 0).session());
    let quota = StagingQuota { session_bytes_max: 250, total_bytes_max: 400 };
    let block = |fill: u8| Block::of(Codec::Raw, vec![fill; 100]);
    let stage = |session, blocks: Vec<Block>, expires| store.run(Stage { session, blocks, expires, quota });
    assert_eq!(stage(one, vec![block(1), block(2), block(2)], ts(10)).unwrap(), 200);
    assert_eq!(stage(one, vec![block(1)], ts(20)).unwrap(), 200);
    assert_eq!(stage(one, vec![block(3)], ts(20)).unwrap_err().code(), Code::Quota);
    assert_eq!(stage(two, vec![block(1), block(2)], ts(30)).unwrap(), 200);
    assert_eq!(stage(two, vec![block(3)], ts(30)).unwrap_err().code(), Code::Quota);
    let reader = store.reader().unwrap();
    let mut listed = vec![*block(1).cid().digest(), *block(2).cid().digest()];
    listed.sort_unstable();
    assert_eq!(reader.staged_list(one, None, 10).unwrap(), listed);
    assert_eq!(reader.staged_list(one, Some(listed[0]), 10).unwrap(), listed[1..]);
    assert_eq!(reader.staged(one, &listed[0]).unwrap().map(|bytes| bytes.len()), Some(100));
    assert_eq!(reader.block(&block(1).cid()).unwrap(), None, "staged blocks are not served");
    assert_eq!(store.run(Sweep { now: ts(20), events_kept: 10 }).unwrap().staging, 1);
    assert_eq!(store.reader().unwrap().stats().unwrap().staging_bytes, 200);
    assert_eq!(store.run(Unstage { session: two }).unwrap(), 200);
    assert_eq!(store.reader().unwrap().stats().unwrap().staging_bytes, 0);
    assert_eq!(store.reader().unwrap().staged_list(two, None, 10).unwrap(), Vec::<[u8; 32]>::new());
}

#[test]
fn events_tell_a_gap() {
    let home = Home::new();
    let store = home.open();
    let note =
        |topic: &str| store.run(PutNote { at: now(), topic: topic.to_owned(), data: vec![1] }).unwrap();
    let ids: Vec<u64> = (0..5).map(|number| note(&format!("n{number}"))).collect();
    assert_eq!(ids, [1, 2, 3, 4, 5]);
    let since = |id, limit| store.reader().unwrap().events_since(id, limit).unwrap();
    let ids_of = |page| match page {
        EventPage::Events(events) => Some(events.iter().map(|event| event.id).collect::<Vec<_>>()),
        EventPage::Reset { .. } => None,
    };
    assert_eq!(ids_of(since(0, 3)), Some(vec![1, 2, 3]));
    assert_eq!(ids_of(since(3, 9)), Some(vec![4, 5]));
    assert_eq!(ids_of(since(5, 9)), Some(vec![]));
    assert_eq!(since(6, 9), EventPage::Reset { newest: 5 });
    assert_eq!(store.run(Sweep { now: now(), events_kept: 2 }).unwrap().events, 3);
    assert_eq!(since(2, 9), EventPage::Reset { newest: 5 });
    assert_eq!(ids_of(since(3, 9)), Some(vec![4, 5]));
    store.run(Sweep { now: now(), events_kept: 0 }).unwrap();
    assert_eq!(since(4, 9), EventPage::Reset { newest: 5 });
    assert_eq!(ids_of(since(5, 9)), Some(vec![]));
    assert_eq!(note("n6"), 6);
}

#[test]
fn jobs_and_facts_are_compared_before_they_are_replaced() {
    let home = Home::new();
    let store = home.open();
    let put = |id: &[u8], expect, journal: Option<&[u8]>| {
        let journal = journal.map(<[u8]>::to_vec);
        store.run(PutJob { kind: "move".to_owned(), id: id.to_vec(), expect, journal, at: now() })
    };
    put(b"1", Expect::Absent, Some(b"a")).unwrap();
    assert_eq!(put(b"1", Expect::Absent, Some(b"b")).unwrap_err().code(), Code::HeadMoved);
    assert_eq!(put(b"1", Expect::Bytes(b"x".to_vec()), Some(b"b")).unwrap_err().code(), Code::HeadMoved);
    put(b"1", Expect::Bytes(b"a".to_vec()), Some(b"b")).unwrap();
    put(b"2", Expect::Anything, Some(b"c")).unwrap();
    let fact =
        PutFact { space: "movex".to_owned(), key: vec![1], expect: Expect::Anything, value: Some(vec![2]) };
    store.run(fact).unwrap();
    let reader = store.reader().unwrap();
    assert_eq!(reader.job("move", b"1").unwrap(), Some(b"b".to_vec()));
    assert_eq!(reader.jobs("move").unwrap().len(), 2);
    assert!(reader.jobs("mov").unwrap().is_empty());
    let facts: Vec<_> = reader.facts("movex").unwrap().into_iter().map(Result::unwrap).collect();
    assert_eq!(facts, [NamedRow { key: vec![1], value: vec![2] }]);
    put(b"1", Expect::Anything, None).unwrap();
    assert_eq!(store.reader().unwrap().job("move", b"1").unwrap(), None);
}

#[test]
fn sessions_are_listed_in_pages_and_found_by_prefix() {
    let home = Home::new();
    let store = home.open();
    let builders: Vec<_> = (0..7).map(|number| session(&format!("list {number}"), 0)).collect();
    for builder in &builders {
        store.adopt(whole(builder), at()).unwrap();
    }
    let reader = store.reader().unwrap();
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = reader.sessions(after, 3).unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.session);
        listed.extend(page.iter().map(|row| row.session));
    }
    assert_eq!(listed, builders.iter().map(|builder| builder.session()).collect::<Vec<_>>());
    for id in &listed {
        for prefix in [id.short(), id.to_string(), id.short()[..5].to_owned()] {
            assert!(reader.sessions_by_prefix(&prefix, 9).unwrap().contains(id), "{prefix}");
        }
        assert_eq!(reader.sessions_by_prefix(&id.to_string(), 9).unwrap(), [*id]);
        assert_eq!(reader.digests_by_prefix(&id.short(), 9).unwrap(), [*id.genesis().digest()]);
    }
    let mut all = reader.sessions_by_prefix("", 9).unwrap();
    assert_eq!(all.len(), 7);
    all.sort_unstable();
    assert_eq!(all, reader.sessions_by_prefix("bafyrei", 9).unwrap());
    assert_eq!(reader.digests_by_prefix("", 3).unwrap().len(), 3, "no more than asked for");
    for absent in ["0", "BAF", "ä", &"a".repeat(80)] {
        assert_eq!(reader.sessions_by_prefix(absent, 9).unwrap(), [], "{absent}");
        assert_eq!(reader.digests_by_prefix(absent, 9).unwrap(), [[0; 32]; 0], "{absent}");
    }
}

#[test]
fn a_reader_sees_one_commit() {
    let (home, builder) = (Home::new(), session("snapshot", 3));
    let store = home.open();
    store.adopt(segment(&builder, 0, 2), at()).unwrap();
    let before = store.reader().unwrap();
    store.adopt(segment(&builder, 2, 4), at()).unwrap();
    assert_eq!(before.session(builder.session()).unwrap().unwrap().tip, mark(&builder.entries()[1]));
    assert_eq!(before.entry(builder.head().entry.cid()).unwrap(), None);
    let entries = before.entries(builder.session(), seq(0), seq(9)).unwrap();
    drop(before);
    for number in 0..50 {
        store.run(PutNote { at: now(), topic: "n".to_owned(), data: vec![number; 4_000] }).unwrap();
    }
    assert_eq!(entries.map(|entry| entry.unwrap().cid).last(), Some(builder.entries()[1].entry.cid()));
    assert_holds(&store, &builder);
    let reader = store.reader().unwrap();
    drop(store);
    assert!(reader.entry(builder.head().entry.cid()).unwrap().is_some());
    assert!(Store::open(&home.path(), options()).is_err(), "the directory is held while a reader lives");
    drop(reader);
    home.open();
}

#[test]
fn an_expired_key_is_forgotten_and_an_entry_s_never() {
    let home = Home::new();
    let store = home.open();
    let answer = |key: &str, expires| {
        PutAnswer(Idempotency {
            scope: Scope::Node,
            key: key.to_owned(),
            request: [1; 32],
            result: key.as_bytes().to_vec(),
            expires,
        })
    };
    store.run(answer("short", Some(ts(5)))).unwrap();
    store.run(answer("long", None)).unwrap();
    assert_eq!(store.run(Sweep { now: ts(5), events_kept: 9 }).unwrap().keys, 1);
    let look = |key| store.reader().unwrap().idempotency(&Scope::Node, key, &[1; 32]).unwrap();
    assert_eq!(look("short"), Used::Never);
    assert_eq!(look("long"), Used::Same(b"long".to_vec()));
}

#[test]
fn a_refusal_spoils_nothing_of_its_batch() {
    let home = Home::new();
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&commits);
    let hook: CommitHook = Box::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let store = Store::open(&home.path(), OpenOptions { on_commit: Some(hook), ..options() }).unwrap();
    let (one, two) = (session("batch one", 3), session("batch two", 2));
    let release = hold(&store);
    let (sender, answers) = mpsc::channel();
    let submit = |name: &'static str, segment| {
        let sender = sender.clone();
        let adopt = Adopt { segment, options: at() };
        store
            .submit(adopt, move |outcome| sender.send((name, outcome.map_err(|e| e.code()))).unwrap())
            .unwrap();
    };
    submit("one", segment(&one, 0, 2));
    submit("refused: no such session", segment(&two, 1, 3));
    submit("two", segment(&two, 0, 1));
    submit("refused: the head moved in this batch", segment(&one, 0, 1));
    submit("one goes on in this batch", segment(&one, 2, 4));
    let before = commits.load(Ordering::SeqCst);
    drop(release);
    let outcomes: Vec<_> = (0..5).map(|_| answers.recv().unwrap()).collect();
    for (name, outcome) in &outcomes {
        let expected = if name.starts_with("refused") { Some(Code::HeadMoved) } else { None };
        assert_eq!(outcome.as_ref().err().copied(), expected, "{name}");
    }
    assert_holds(&store, &one);
    assert_holds(&store, &two.at(0));
    // The held note and the batch, which may become durable together, and the two that the checks above made.
    assert_eq!(before, 0);
    drop(store);
    let commits = commits.load(Ordering::SeqCst);
    assert!((3..=4).contains(&commits), "{commits}");
}

#[test]
fn a_full_queue_is_told_and_everything_queued_is_answered_at_the_end() {
    let home = Home::new();
    let store = home.open();
    let release = hold(&store);
    let answered = Arc::new(AtomicUsize::new(0));
    let mut queued = 0;
    loop {
        let counted = Arc::clone(&answered);
        let note = PutNote { at: now(), topic: "n".to_owned(), data: Vec::new() };
        let reply = move |outcome: Result<u64, StoreError>| {
            outcome.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
        };
        match store.try_submit(note, reply).unwrap() {
            Ok(()) => queued += 1,
            Err(full) => {
                assert_eq!(full, TrySend::Full);
                break;
            }
        }
    }
    assert_eq!(queued, QUEUE_MAX);
    drop(release);
    drop(store);
    assert_eq!(answered.load(Ordering::SeqCst), queued);
}

#[test]
fn many_threads_share_commits_and_keep_their_order() {
    let home = Home::new();
    let store = home.open();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let store = &store;
            scope.spawn(move || {
                let builder = session(&format!("thread {number}"), 12);
                for at_seq in 0..=12 {
                    store.adopt(segment(&builder, at_seq, at_seq + 1), at()).unwrap();
                }
            });
        }
    });
    for number in 0..8 {
        assert_holds(&store, &session(&format!("thread {number}"), 12));
    }
}

#[test]
fn an_entry_is_found_by_its_cid_and_a_foreign_one_is_not() {
    let (home, builder) = (Home::new(), session("find", 1));
    let store = home.open();
    store.adopt(whole(&builder), at()).unwrap();
    let reader = store.reader().unwrap();
    let cid = builder.head().entry.cid();
    let expected = Found::Entry { session: builder.session(), seq: seq(1), lane: Lane::Main };
    assert_eq!(reader.find(&cid.cid()).unwrap(), Some(expected));
    assert_eq!(reader.block(&cid.cid()).unwrap(), Some(builder.head().entry.bytes().to_vec()));
    let (raw, _) = raw_block("nowhere");
    assert_eq!(reader.find(&raw).unwrap(), None);
    assert_eq!(reader.payload(EntryCid::of(b"nowhere")).unwrap(), PayloadState::Absent);
}
