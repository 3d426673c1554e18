use tempfile::TempDir;
use throughline_protocol::testing::{Built, SessionBuilder};
use throughline_store::{MadeAhead, PutNote};

use super::*;
use crate::config::{Config, Key, Overrides, Value};
use crate::core::Arrived;
use crate::dirs::{Dirs, Environment};

/// A node that holds 1 MiB at most and takes in 256 KiB at a time.
fn small_node() -> (Node, TempDir) {
    node_of("1MiB")
}

/// A node that holds as much at most and takes in 256 KiB at a time.
fn node_of(store_max: &str) -> (Node, TempDir) {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(home.path()), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    crate::keys::NodeKeys::load_or_create(&dirs).unwrap();
    let overrides = Overrides::default()
        .with_flag(Key::LimitsStoreMax, Value::text(store_max))
        .with_flag(Key::LimitsStagingMax, Value::text("256KiB"));
    let config = Config::load(&dirs, &overrides).unwrap();
    (Node::open(dirs, config, "test").unwrap(), home)
}

fn checked(built: &Built) -> Prechecked {
    Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap()
}

/// A session of messages that become files, of 100,000 bytes each.
fn large(label: &str, messages: usize) -> SessionBuilder {
    let mut builder = SessionBuilder::new(label);
    let server = builder.server1.clone();
    for _ in 0..messages {
        builder.user(&server, &"x".repeat(100_000));
    }
    builder
}

/// The files below `payloads/`, once the writer has done all that it was told before.
fn files(node: &Node) -> usize {
    node.store().run(PutNote { at: crate::core::now(), topic: "turn".to_owned(), data: Vec::new() }).unwrap();
    let dirs = std::fs::read_dir(node.dirs().payloads()).unwrap();
    dirs.map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap().count()).sum()
}

fn fresh(node: &Node, session: SessionId) -> Answer<Adopting> {
    Adopting::new(node.clone(), session, None, Wanted::Referenced, Told::Nothing)
}

#[test]
fn a_transfer_ends_when_the_store_is_full_and_what_was_adopted_stays() {
    let builder = large("longer than the store", 40);
    let (node, _home) = small_node();
    let mut adopting = fresh(&node, builder.session()).unwrap();
    adopting.controls(builder.controls().to_vec());
    let taken = adopting.entries(builder.entries().iter().map(checked).collect(), None);
    assert_eq!(taken.unwrap_err().code(), Code::Quota);

    let reader = node.reader().unwrap();
    let held = reader.stats().unwrap().bytes();
    assert!((1 << 20..3 << 19).contains(&held), "one batch above the limit at most: {held}");
    let tip = reader.session(builder.session()).unwrap().unwrap().tip;
    let at = usize::try_from(tip.seq.get()).unwrap();
    assert_eq!(tip.cid, builder.entries()[at].entry.cid(), "a verified prefix");
    drop(adopting);
    assert_eq!(files(&node), at, "of what was adopted");
    assert_eq!(fresh(&node, builder.session()).err().map(|refused| refused.code()), Some(Code::Quota));
}

#[test]
fn what_is_stored_counts_where_it_was_judged_otherwise_meanwhile() {
    let mut builder = SessionBuilder::new("judged meanwhile");
    let (server, next) = (builder.server1.clone(), builder.server2.clone());
    builder.user(&server, "a message");
    let mut late = builder.clone().branch("late");
    builder.handoff(Some(&next));
    builder.response(&next, "carrying on", &[]);
    late.response(&server, "after all", &[]);
    for late in [None, late.entries().last()] {
        let (node, _home) = small_node();
        let told = Told::Report(builder.head().entry.cid());
        let mut adopting =
            Adopting::new(node.clone(), builder.session(), None, Wanted::Referenced, told).unwrap();
        adopting.controls(builder.controls().to_vec());
        adopting.entries(builder.entries().iter().map(checked).collect(), None).unwrap();
        adopting.flush().unwrap();
        // It comes another way, and leaves the tip where it is.
        if let Some(late) = late {
            let arrived = Arrived { entries: vec![checked(late)], ..Arrived::default() };
            let evaluated = node.take_in(builder.session(), arrived).unwrap();
            assert_eq!(
                (evaluated.verdict.as_str(), evaluated.tip.map(|tip| tip.cid)),
                ("fenced-tail", Some(builder.head().entry.cid()))
            );
        }
        let (_, _, witness) = adopting.finish().unwrap();
        let report = witness.and_then(|witness| witness.report(&node).unwrap());
        assert_eq!(report.map(|report| report.verdict.word()), late.is_none().then_some("valid"));
    }
}

#[test]
fn files_of_a_transfer_that_ends_early_go() {
    let (node, _home) = node_of("16MiB");
    let builder = large("given up", 8);
    let mut adopting = fresh(&node, builder.session()).unwrap();
    adopting.controls(builder.controls().to_vec());
    // The genesis, a group of three, and two more that came when it ends.
    adopting.entries(vec![checked(&builder.entries()[0])], None).unwrap();
    adopting.flush().unwrap();
    adopting.entries(builder.entries()[1..6].iter().map(checked).collect(), None).unwrap();
    let ahead = std::mem::take(&mut adopting.group.files).made().unwrap();
    assert_eq!(ahead.iter().map(MadeAhead::count).collect::<Vec<_>>(), [2], "before their group is whole");
    drop((adopting, ahead));
    let tip = node.reader().unwrap().session(builder.session()).unwrap().unwrap().tip;
    assert_eq!((tip.seq.get(), files(&node)), (3, 3), "those of the group that was handed over");
}

#[test]
fn files_of_entries_that_are_refused_go_and_those_that_come_after_are_not_kept() {
    let (node, _home) = node_of("16MiB");
    let mut builder = large("refused", 4);
    let good = builder.entries().len();
    // It may read.
    let reader = builder.reader.clone();
    for _ in 0..8 {
        builder.user(&reader, &"y".repeat(100_000));
    }
    let mut adopting = fresh(&node, builder.session()).unwrap();
    adopting.controls(builder.controls()[..].to_vec());
    let came = adopting.entries(builder.entries().iter().map(checked).collect(), None);
    let refused = came.and_then(|()| adopting.flush()).unwrap_err();
    assert!(refused.code().name().starts_with("E_"), "{refused}");
    let tip = node.reader().unwrap().session(builder.session()).unwrap().unwrap().tip;
    assert!(tip.seq.get() < good as u64);
    assert_eq!(files(&node) as u64, tip.seq.get(), "one for each message that was adopted");

    // The next provider goes on with it where the good ones end.
    let honest = builder.at(good - 1);
    let rest = honest.entries().iter().skip(usize::try_from(tip.seq.get()).unwrap() + 1);
    adopting.entries(rest.map(checked).collect(), None).unwrap();
    adopting.flush().unwrap();
    let (_, last, _) = adopting.finish().unwrap();
    assert_eq!(last.unwrap().tip.map(|tip| tip.cid), Some(honest.head().entry.cid()));
    assert_eq!(files(&node), 4);
}

#[test]
fn no_file_is_made_ahead_without_its_session_or_room_in_the_store() {
    let (node, _home) = node_of("300KiB");
    let builder = large("no room", 3);
    let mut adopting = fresh(&node, builder.session()).unwrap();
    let made = |adopting: &mut Adopting, seq: usize| {
        adopting.group.push(checked(&builder.entries()[seq]));
        adopting.make_files().unwrap();
        let ahead = std::mem::take(&mut adopting.group.files).made().unwrap();
        (ahead.iter().map(MadeAhead::count).sum::<usize>(), files(&node))
    };
    adopting.controls(builder.controls().to_vec());
    assert_eq!(made(&mut adopting, 1), (0, 0), "nothing of a session that may not be allowed");
    adopting.group.entries = vec![checked(&builder.entries()[0])];
    adopting.flush().unwrap();
    assert_eq!(made(&mut adopting, 1), (1, 1));
    adopting.group.bytes = 300 << 10;
    assert_eq!(made(&mut adopting, 2), (0, 0), "nothing that there is no room for");
}
