use std::io::Write as _;

use throughline_protocol::testing::{Built, SessionBuilder};

use super::*;
use crate::config::{Config, Overrides};
use crate::dirs::{Dirs, Environment};
use crate::keys::NodeKeys;
use crate::report::Required;

/// A node of its own, in a directory that stays as long as the value.
fn node() -> (tempfile::TempDir, Node) {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(home.path()), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    NodeKeys::load_or_create(&dirs).unwrap();
    let config = Config::load(&dirs, &Overrides::default()).unwrap();
    let node = Node::open(dirs, config, "test").unwrap();
    (home, node)
}

/// Takes in all that a builder made.
fn take(node: &Node, builder: &SessionBuilder) {
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    let entries = builder.entries().iter().map(checked).collect();
    let controls = builder.controls().to_vec();
    node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
}

/// What `export` writes, as a file.
fn exported(node: &Node, session: SessionId) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    node.export_car(session, true, &mut |part| {
        file.write_all(&part).unwrap();
        Ok(())
    })
    .unwrap();
    file
}

#[test]
fn what_waits_for_the_holder_goes_along_and_the_root_stays_the_head() {
    let (_home, node) = node();
    let mut session = SessionBuilder::new("waiting");
    let (owner, server) = (session.owner.clone(), session.server1.clone());
    session.user(&owner, "clean up");
    session.response(&server, "done", &[]);
    let head = session.head().entry.cid();
    let settled = session.clone();
    take(&node, &settled);
    let before = std::fs::read(exported(&node, session.session()).path()).unwrap();
    // Two on one head: the chain goes on with the first, the other waits beside it.
    let mut other = session.clone().branch("other");
    session.user(&owner, "and now the tests");
    session.user(&owner, "all of them");
    other.user(&owner, "or rather not");
    take(&node, &session);
    take(&node, &other);
    let file = exported(&node, session.session());
    let report = node.verify_car(file.path(), None, (PayloadUse::Present, Required::Nothing)).unwrap();
    assert_eq!((&report["verdict"], &report["checks"]["head"]["result"]), (&"valid".into(), &"pass".into()));
    let counts = (&report["checks"]["chain"]["entries"], &report["payloads"]["missing"]);
    assert_eq!(counts, (&session.entries().len().into(), &0.into()), "{report}");

    let (_away, importer) = self::node();
    importer.take_car(file.path(), false).unwrap();
    let row = |node: &Node| need_session(&node.reader().unwrap(), session.session()).unwrap();
    let (there, here) = (row(&importer), row(&node));
    assert_eq!((there.tip.cid, there.summary.pending), (here.tip.cid, 2));
    assert_eq!(there.summary.head.unwrap().cid, head);
    // The file is what it was, with the new entries behind it.
    let after = std::fs::read(file.path()).unwrap();
    assert!(after.starts_with(&before) && after.len() > before.len());
}

#[test]
fn words_beside_the_chain_are_counted_as_held() {
    let (_home, node) = node();
    let mut one = SessionBuilder::new("both");
    let (owner, server) = (one.owner.clone(), one.server1.clone());
    one.user(&owner, "clean up");
    let mut other = one.clone().branch("other");
    one.response(&server, "one history", &[]);
    other.response(&server, "another history", &[]);
    take(&node, &one);
    take(&node, &other);
    let counts = |report: &Value| {
        let count = |what: &str| report["payloads"][what].as_u64().unwrap();
        (count("linked"), count("here"), count("missing"))
    };
    let held = node.verify(one.session(), PayloadUse::Present, None).unwrap();
    let held = crate::report::verify(&held, "store", Required::Nothing);
    let file = exported(&node, one.session());
    let filed = node.verify_car(file.path(), None, (PayloadUse::Present, Required::Nothing)).unwrap();
    assert_eq!((held["verdict"].as_str(), counts(&held).2), (Some("forked"), 0), "{held}");
    assert_eq!(counts(&held), counts(&filed));
}

#[test]
fn in_a_dispute_the_root_is_in_the_file() {
    let (_home, node) = node();
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
    take(&node, &one);
    take(&node, &other);
    let file = exported(&node, one.session());
    let report = node.verify_car(file.path(), None, (PayloadUse::Present, Required::Nothing)).unwrap();
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
    for stored in reader.entries(one.session(), Seq::ZERO, row.tip.seq).unwrap() {
        written.push(stored.unwrap().cid);
    }
    assert!(written.contains(&left.root), "{} of {written:?}", left.root);
    assert!(!written.contains(&other.head().entry.cid()));
}
