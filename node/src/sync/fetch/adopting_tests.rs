use tempfile::TempDir;
use throughline_protocol::testing::{Built, SessionBuilder};

use super::*;
use crate::config::{Config, Key, Overrides, Value};
use crate::dirs::{Dirs, Environment};

/// A node that holds 1 MiB at most and takes in 256 KiB at a time.
fn small_node() -> (Node, TempDir) {
    let home = tempfile::tempdir().unwrap();
    let dirs = Dirs::locate(Some(home.path()), &Environment::pick(|_| None)).unwrap();
    dirs.create().unwrap();
    crate::keys::NodeKeys::load_or_create(&dirs).unwrap();
    let overrides = Overrides::default()
        .with_flag(Key::LimitsStoreMax, Value::text("1MiB"))
        .with_flag(Key::LimitsStagingMax, Value::text("256KiB"));
    let config = Config::load(&dirs, &overrides).unwrap();
    (Node::open(dirs, config, "test").unwrap(), home)
}

fn fresh(node: &Node, session: SessionId) -> Answer<Adopting> {
    Adopting::new(node.clone(), session, None, Wanted::Referenced, Told::Nothing)
}

#[test]
fn a_transfer_ends_when_the_store_is_full_and_what_was_adopted_stays() {
    let mut builder = SessionBuilder::new("longer than the store");
    let server = builder.server1.clone();
    for _ in 0..40 {
        builder.user(&server, &"x".repeat(100_000));
    }
    let (node, _home) = small_node();
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    let mut adopting = fresh(&node, builder.session()).unwrap();
    adopting.controls = builder.controls().to_vec();
    let taken = adopting.entries(builder.entries().iter().map(checked).collect(), None);
    assert_eq!(taken.unwrap_err().code(), Code::Quota);

    let reader = node.reader().unwrap();
    let held = reader.stats().unwrap().bytes();
    assert!((1 << 20..3 << 19).contains(&held), "one batch above the limit at most: {held}");
    let tip = reader.session(builder.session()).unwrap().unwrap().tip;
    let at = usize::try_from(tip.seq.get()).unwrap();
    assert_eq!(tip.cid, builder.entries()[at].entry.cid(), "a verified prefix");
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
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    for late in [None, late.entries().last()] {
        let (node, _home) = small_node();
        let told = Told::Report(builder.head().entry.cid());
        let mut adopting =
            Adopting::new(node.clone(), builder.session(), None, Wanted::Referenced, told).unwrap();
        adopting.controls = builder.controls().to_vec();
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
        let (_, _, report) = adopting.finish().unwrap();
        assert_eq!(report.map(|report| report.verdict.word()), late.is_none().then_some("valid"));
    }
}
