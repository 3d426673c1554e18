use std::io::Write as _;

use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::testing::{Built, SessionBuilder};

use super::*;
use crate::config::{Config, Overrides};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;

fn open(home: &Path) -> Node {
    let dirs = Dirs::locate(Some(home), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let config = Config::load(&dirs, &Overrides::default()).unwrap();
    Node::open(dirs, config, "test").unwrap()
}

#[test]
fn in_a_dispute_the_root_is_in_the_file() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path());
    let mut one = SessionBuilder::new("disputed");
    let (owner, server) = (one.owner.clone(), one.server1.clone());
    one.user(&owner, "clean up");
    let mut other = one.clone().branch("other");
    one.response(&server, "one history", &[]);
    // What the holder signed twice is deep, on messages that it did not sign.
    for number in 0..3 {
        other.user(&owner, &format!("message {number}"));
    }
    other.response(&server, "another history", &[]);
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    for builder in [&one, &other] {
        let entries = builder.entries().iter().map(checked).collect();
        let controls = builder.controls().to_vec();
        node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
    }

    let mut file = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = Vec::new();
    node.export_car(one.session(), Through::Head, true, &mut |part| {
        bytes.extend(part);
        Ok(())
    })
    .unwrap();
    file.write_all(&bytes).unwrap();
    let report = node.verify_car(file.path(), None, PayloadUse::Present).unwrap();
    assert_eq!(report["verdict"], "forked", "{report}");

    // More is held beside the chain than is read for a file: what stands on the rest stays here.
    let reader = node.reader().unwrap();
    let row = need_session(&reader, one.session()).unwrap();
    let whole = evidence(&reader, one.session()).unwrap();
    let deepest = extent(&reader, &row, Through::Head, whole.clone()).unwrap();
    assert_eq!(deepest.root, other.head().entry.cid());
    let lacking: Vec<SideEntry> =
        whole.into_iter().filter(|side| side.cid != other.entries()[3].entry.cid()).collect();
    let left = extent(&reader, &row, Through::Head, lacking).unwrap();
    let mut written: Vec<EntryCid> = left.side.iter().map(|side| side.cid).collect();
    for stored in reader.entries(one.session(), Seq::ZERO, left.last).unwrap() {
        written.push(stored.unwrap().cid);
    }
    assert!(written.contains(&left.root), "{} of {written:?}", left.root);
    assert!(!written.contains(&other.head().entry.cid()));
}

/// A file tells a head; who counts what a note on the tip would publish needs all that is below.
#[test]
fn what_is_pending_is_in_a_file_through_the_tip() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path());
    let mut builder = SessionBuilder::new("pending");
    let (owner, server) = (builder.owner.clone(), builder.server1.clone());
    builder.user(&server, "in order");
    builder.user(&owner, "not yet");
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    let entries = builder.entries().iter().map(checked).collect();
    let controls = builder.controls().to_vec();
    node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
    for (through, expected) in [(Through::Head, 2), (Through::Tip, 3)] {
        let (mut reader, mut items) = (SessionReader::new(), Vec::new());
        node.export_car(builder.session(), through, true, &mut |part| {
            reader.push(&part);
            while let Some(item) = reader.next() {
                items.push(item.unwrap());
            }
            Ok(())
        })
        .unwrap();
        let payloads = items.iter().filter(|item| matches!(item, SessionItem::Payload { .. })).count();
        assert_eq!(payloads, expected, "{through:?}");
        assert_eq!(reader.finish().unwrap().root, builder.entries()[expected - 1].entry.cid(), "{through:?}");
    }
}
