//! Rows that only this node had, damaged and repaired: what verifying and judging tells is as before, and what is lost is told once.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use throughline_protocol::code::Code;
use throughline_protocol::id::EntryCid;
use throughline_protocol::testing::{Built, SessionBuilder};
use throughline_protocol::verify::Prechecked;
use throughline_store::KeptEvidence;

use super::*;
use crate::core::Arrived;
use crate::core::damaged::{damage, open};

/// Two histories by one key, and the node that judged them.
fn forked(home: &Path, label: &str) -> (Node, SessionBuilder) {
    let mut one = SessionBuilder::new(label);
    let server = Arc::clone(&one.server1);
    one.user(&server, "a message");
    let mut other = one.clone().branch("other");
    one.response(&server, "one", &[]);
    other.response(&server, "other", &[]);
    let node = open(home);
    for builder in [&one, &other] {
        take_in(&node, builder);
    }
    (node, one)
}

fn take_in(node: &Node, builder: &SessionBuilder) {
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    let entries = builder.entries().iter().map(checked).collect();
    let controls = builder.controls().to_vec();
    node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
}

/// What became of each row, and that nothing is left to be found or done then. A repair writes the index and counters, too.
fn repaired(node: &Node) -> Vec<(String, String)> {
    let repair = || {
        let found = node.fsck(&Tally::default()).unwrap();
        node.mend(&BTreeSet::new(), &BlobsCame::default()).unwrap();
        node.mend_rows(&found, &Tally::default()).unwrap()
    };
    let told = repair();
    let found = node.fsck(&Tally::default()).unwrap();
    assert!(found.is_clean(), "{:?}", found.problems);
    let event = node.reader().unwrap().newest_event().unwrap();
    assert_eq!(repair(), Vec::<Value>::new(), "a second time");
    assert_eq!(node.reader().unwrap().newest_event().unwrap(), event);
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    told.iter().map(|row| (text(row, "row"), text(row, "outcome"))).collect()
}

fn pair(row: &str, outcome: &str) -> (String, String) {
    (row.to_owned(), outcome.to_owned())
}

/// Bytes of the row of a session that no other row has: the name of its fence.
const FENCE: &[u8] = b"\x65fence";

#[test]
fn a_session_whose_row_was_damaged_is_verified_judged_and_read_as_before() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path());
    let mut builder = SessionBuilder::new("row");
    let server = Arc::clone(&builder.server1);
    builder.user(&server, "a message");
    take_in(&node, &builder);
    let session = builder.session();
    let before = node.reader().unwrap().session(session).unwrap().unwrap();
    assert!(before.summary.title.is_some() && before.summary.verdict == "valid");
    damage(node, FENCE);

    let node = open(home.path());
    assert_eq!(node.reader().unwrap().session(session).unwrap_err().code(), Code::StoreCorrupt);
    assert_eq!(plan(&node.fsck(&Tally::default()).unwrap())["rows"][0]["row"], "session");
    assert_eq!(repaired(&node), [pair("session", "made-again")]);
    let after = node.reader().unwrap().session(session).unwrap().unwrap();
    assert_eq!((after.tip, after.owner, &after.agent), (before.tip, before.owner, &before.agent));
    assert_eq!((after.summary, after.entry_bytes), (before.summary, before.entry_bytes));
    node.stop();
}

#[test]
fn a_forked_session_whose_row_was_damaged_is_forked_again() {
    let home = tempfile::tempdir().unwrap();
    let (node, builder) = forked(home.path(), "forked row");
    let summary = |node: &Node| node.reader().unwrap().session(builder.session()).unwrap().unwrap().summary;
    let before = summary(&node);
    assert_eq!(before.verdict, "forked");
    damage(node, FENCE);
    let node = open(home.path());
    assert_eq!(repaired(&node), [pair("session", "made-again")]);
    assert_eq!(summary(&node), before);
    node.stop();
}

/// Bytes of a file of evidence that name what it shows, so that no other file begins with them.
const HEADER: usize = 100;

#[test]
fn evidence_that_was_damaged_is_made_again_of_what_shows_it() {
    let home = tempfile::tempdir().unwrap();
    let (node, mut one) = forked(home.path(), "judged");
    // A second fork, in the next epoch: where nothing is shown of a fork any more, the node judges when it starts.
    let server = Arc::clone(&one.server1);
    one.handoff(Some(&server));
    let mut other = one.clone().branch("second");
    one.response(&server, "two", &[]);
    other.response(&server, "another", &[]);
    for builder in [&one, &other] {
        take_in(&node, builder);
    }
    let session = one.session();
    let kept = node.reader().unwrap().evidence(session).unwrap();
    let row = node.reader().unwrap().session(session).unwrap().unwrap();
    let accused: Vec<_> = kept.iter().map(|kept| kept.accusation).collect();
    assert_eq!(kept.len(), 3, "{}: {accused:?}", row.summary.verdict);
    damage(node, &kept[0].bytes[..HEADER]);
    let node = open(home.path());
    assert_eq!(node.reader().unwrap().unreadable_evidence(session).unwrap(), [Some(kept[0].accusation)]);
    std::fs::remove_dir_all(node.dirs().evidence()).unwrap();
    assert_eq!(repaired(&node), [pair("evidence", "made-again")]);
    let again = node.reader().unwrap().evidence(session).unwrap();
    let shown = |kept: &[KeptEvidence]| {
        kept.iter().map(|kept| (kept.accusation, kept.bytes.clone())).collect::<Vec<_>>()
    };
    assert_eq!(shown(&again), shown(&kept));
    node.stop();
}

#[test]
fn evidence_of_a_session_that_is_not_held_comes_from_its_copy_or_is_told_as_lost_once() {
    let (home, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (witness, builder) = forked(elsewhere.path(), "copy");
    let kept = witness.reader().unwrap().evidence(builder.session()).unwrap().remove(0);
    witness.stop();
    let node = open(home.path());
    node.import_evidence(kept.bytes.clone(), false).unwrap();
    damage(node, &kept.bytes[..HEADER]);
    let node = open(home.path());
    assert_eq!(repaired(&node), [pair("evidence", "made-again")]);
    assert_eq!(node.reader().unwrap().evidence(builder.session()).unwrap()[0].bytes, kept.bytes);

    damage(node, &kept.bytes[..HEADER]);
    let node = open(home.path());
    let path = node.evidence_path(builder.session(), &kept.accusation);
    std::fs::write(path, b"not what was copied").unwrap();
    assert_eq!(repaired(&node), [pair("evidence", "lost")]);
    assert_eq!(node.reader().unwrap().evidence(builder.session()).unwrap(), []);
    node.stop();
}

#[test]
fn what_cannot_be_made_again_keeps_no_other_row_and_is_told_with_its_code() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path());
    let builders = ["one", "other"].map(|label| {
        let mut builder = SessionBuilder::new(label);
        let server = Arc::clone(&builder.server1);
        builder.user(&server, "a message");
        take_in(&node, &builder);
        builder
    });
    damage(node, FENCE);
    let node = open(home.path());
    damage(node, builders[0].entries()[1].entry.bytes());
    let node = open(home.path());
    let found = node.fsck(&Tally::default()).unwrap();
    let told = node.mend_rows(&found, &Tally::default()).unwrap();
    let of = |builder: &SessionBuilder| {
        told.iter().find(|row| row["session"] == builder.session().to_string()).unwrap()
    };
    assert_eq!(
        (&of(&builders[0])["outcome"], &of(&builders[0])["code"]),
        (&json!("left"), &json!("E_STORE_CORRUPT"))
    );
    assert_eq!(of(&builders[1])["outcome"], "made-again");
    // The entry comes back from somebody, and the row with it.
    let seq = throughline_protocol::id::Seq::new(1).unwrap();
    let cid: EntryCid = builders[0].entries()[1].entry.cid();
    let entry = Damage::Entry { session: builders[0].session(), seq, cid };
    assert!(found.damaged.contains(&entry), "{found:?}");
    assert_eq!(
        node.damaged(&found).unwrap().keys().copied().collect::<Vec<_>>(),
        [Some(builders[0].owner.key.principal())]
    );
    let bytes = Arc::from(&builders[0].entries()[1].entry.bytes()[..]);
    node.store().run(Mend { blobs: vec![(entry, bytes)], at: now() }).unwrap();
    assert_eq!(repaired(&node), [pair("session", "made-again")]);
    node.stop();
}
