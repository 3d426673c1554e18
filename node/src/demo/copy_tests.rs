use throughline_protocol::block::Block;
use throughline_protocol::car::{EntryBlocks, SessionWriter};
use throughline_protocol::entry::Entry;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::testing::SessionBuilder;
use throughline_protocol::verify::{Controls, Verifier};
use throughline_protocol::wire::chain::EntryAt;

use super::*;

/// A session of 40 entries, and its file.
fn session() -> (SessionBuilder, Vec<u8>) {
    let mut session = SessionBuilder::new("demo copy");
    let (owner, server) = (Arc::clone(&session.owner), Arc::clone(&session.server1));
    for turn in 0..13 {
        session.user(&owner, &format!("question {turn}"));
        let asked = session.response(&server, "looking", &["c1"]);
        session.tool(&server, asked, "c1", "\"found\"");
    }
    let car = car_of(&session);
    (session, car)
}

fn car_of(session: &SessionBuilder) -> Vec<u8> {
    let blocks: Vec<EntryBlocks<'_>> = session
        .entries()
        .iter()
        .map(|built| EntryBlocks {
            entry: built.entry.bytes(),
            payload: built.payload.as_deref(),
            config: None,
            files: &[],
        })
        .collect();
    let controls = session.controls().iter().map(|control| (control.value(), &control.bytes()[..]));
    let mut car = Vec::new();
    let mut writer = SessionWriter::begin(&mut car, session.head().entry.cid(), &blocks[0], controls);
    blocks[1..].iter().for_each(|entry| writer.entry(&mut car, entry));
    car
}

/// Asks for everything up to the head.
fn ask(session: &SessionBuilder, have: Vec<EntryCid>) -> ChainAsk {
    let head = &session.head().entry;
    ChainAsk::Range(RangeAsk {
        session: session.session(),
        want: EntryAt { cid: head.cid(), seq: head.value().seq() },
        have,
        payloads: Payloads::With,
    })
}

fn items(frames: &[ChainAnswer]) -> Vec<EntryItem> {
    let entries = frames
        .iter()
        .filter_map(|frame| if let ChainAnswer::Entries(items) = frame { Some(items.clone()) } else { None });
    entries.flatten().collect()
}

/// The seqs of the skip path.
fn path(frames: &[ChainAnswer]) -> Vec<u64> {
    let blobs = frames.iter().filter_map(|frame| {
        if let ChainAnswer::Path(entries) = frame { Some(entries.clone()) } else { None }
    });
    let seq =
        |bytes| throughline_protocol::block::Decoded::<Entry>::decode(bytes).unwrap().value().seq().get();
    blobs.flatten().map(seq).collect()
}

/// Verifies an answer as a fetcher does; the code of the first refusal, and how many entries came before it.
fn verify(session: &SessionBuilder, items: Vec<EntryItem>) -> (usize, Option<Code>) {
    let mut keys = VerifyingKeys::default();
    let mut controls = Controls::default();
    for control in session.controls() {
        let blob =
            throughline_protocol::block::Signed::<Control>::check(Arc::clone(control.bytes()), &mut keys);
        controls.insert(&blob.unwrap());
    }
    let mut verifier = Verifier::begin(controls);
    for (index, item) in items.into_iter().enumerate() {
        if let Err(reject) = verifier.push(item.entry, item.payload) {
            return (index, Some(reject.code));
        }
    }
    (usize::try_from(verifier.progress().entries).unwrap(), None)
}

#[test]
fn an_honest_copy_serves_what_verifies() {
    let (session, car) = session();
    let copy = SessionCopy::from_car(&car).unwrap();
    assert_eq!((copy.len(), copy.session()), (40, session.session()));
    let frames = copy.answer(&ask(&session, Vec::new()));
    assert_eq!(frames.last(), Some(&ChainAnswer::End));
    assert_eq!(path(&frames), [39, 38, 31, 0], "39 skips to 38, that to 31, that to the genesis");
    assert_eq!(verify(&session, items(&frames)), (40, None));
}

#[test]
fn a_range_begins_after_the_highest_entry_that_is_held() {
    let (session, car) = session();
    let copy = SessionCopy::from_car(&car).unwrap();
    let cid = |seq: usize| session.entries()[seq].entry.cid();
    let frames = copy.answer(&ask(&session, vec![cid(36), cid(35), cid(0)]));
    assert_eq!(path(&frames), [39, 38, 37, 36]);
    let served: Vec<EntryCid> = items(&frames).iter().map(|item| EntryCid::of(&item.entry)).collect();
    assert_eq!(served, [cid(37), cid(38), cid(39)]);
}

#[test]
fn a_changed_payload_is_refused_where_it_stands() {
    let (session, car) = session();
    for seq in [0, 20, 39] {
        let mut copy = SessionCopy::from_car(&car).unwrap();
        copy.flip_bit(seq, Part::Payload).unwrap();
        let served = items(&copy.answer(&ask(&session, Vec::new())));
        assert_eq!(verify(&session, served), (seq, Some(Code::CidMismatch)));
    }
}

#[test]
fn a_changed_entry_is_refused() {
    let (session, car) = session();
    for seq in 0..40 {
        let mut copy = SessionCopy::from_car(&car).unwrap();
        copy.flip_bit(seq, Part::Entry).unwrap();
        let (before, code) = verify(&session, items(&copy.answer(&ask(&session, Vec::new()))));
        assert_eq!(before, seq, "refused as {code:?}");
        assert!(code.is_some());
    }
}

#[test]
fn what_is_not_there_is_not_served() {
    let (session, car) = session();
    let mut copy = SessionCopy::from_car(&car).unwrap();
    assert_eq!(copy.flip_bit(40, Part::Entry).unwrap_err().code, Code::NotFoundYet);
    let other = SessionBuilder::new("another");
    assert_eq!(
        copy.answer(&ask(&other, Vec::new())),
        [ChainAnswer::Error(WireError::new(Code::NotFoundYet))]
    );
    let cid = session.entries()[0].entry.cid().cid();
    let blobs = copy.answer(&ChainAsk::Blobs { cids: vec![cid] });
    assert_eq!(blobs, [ChainAnswer::Blob { cid, bytes: None }, ChainAnswer::End]);
}

#[test]
fn a_file_with_a_gap_is_no_session_to_serve() {
    let (session, _) = session();
    let mut blocks: Vec<Block> = Vec::new();
    for seq in [0_usize, 1, 3] {
        blocks.push(Block::of(
            throughline_protocol::id::Codec::DagCbor,
            session.entries()[seq].entry.bytes().clone(),
        ));
    }
    let mut car = Vec::new();
    throughline_protocol::car::write_header(&mut car, &[blocks[2].cid()]);
    blocks
        .iter()
        .for_each(|block| throughline_protocol::car::write_block(&mut car, &block.cid(), block.bytes()));
    assert_eq!(SessionCopy::from_car(&car).unwrap_err().code, Code::Incomplete);
}
