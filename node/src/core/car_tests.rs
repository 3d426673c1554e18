use std::io::Write as _;

use throughline_protocol::testing::{Built, SessionBuilder};

use super::*;
use crate::config::{Config, Overrides};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;

#[test]
fn in_a_dispute_the_root_is_in_the_file() {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(home.path()), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let config = Config::load(&dirs, &Overrides::default()).unwrap();
    let node = Node::open(dirs, config, "test").unwrap();

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
    node.export_car(one.session(), true, &mut |part| {
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
    let deepest = extent(&reader, &row, whole.clone()).unwrap();
    assert_eq!(deepest.root, other.head().entry.cid());
    let lacking: Vec<SideEntry> =
        whole.into_iter().filter(|side| side.cid != other.entries()[3].entry.cid()).collect();
    let left = extent(&reader, &row, lacking).unwrap();
    let mut written: Vec<EntryCid> = left.side.iter().map(|side| side.cid).collect();
    for stored in reader.entries(one.session(), Seq::ZERO, left.last).unwrap() {
        written.push(stored.unwrap().cid);
    }
    assert!(written.contains(&left.root), "{} of {written:?}", left.root);
    assert!(!written.contains(&other.head().entry.cid()));
}
