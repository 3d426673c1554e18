use throughline_protocol::id::Seq;
use throughline_protocol::testing::{Built, SessionBuilder};
use throughline_store::{OnOther, PutEvidence};

use super::*;
use crate::core::Arrived;
use crate::core::damaged::{damage, open};

#[test]
fn a_session_that_is_damaged_keeps_no_other_from_being_judged_at_the_start() {
    let home = tempfile::tempdir().unwrap();
    let node = open(home.path());
    let sessions = ["damaged", "whole"].map(|label| {
        let mut builder = SessionBuilder::new(label);
        let server = builder.server1.clone();
        builder.user(&server, "a message");
        let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
        let entries = builder.entries().iter().map(checked).collect();
        let controls = builder.controls().to_vec();
        node.take_in(builder.session(), Arrived { entries, controls, ..Arrived::default() }).unwrap();
        builder.session()
    });
    let verdict =
        |node: &Node, session| node.reader().unwrap().session(session).unwrap().unwrap().summary.verdict;
    assert_eq!(sessions.map(|session| verdict(&node, session)), ["valid"; 2]);
    // As when the process ended before they were judged.
    for session in sessions {
        let row = node.reader().unwrap().session(session).unwrap().unwrap();
        let summary = Summary { verdict: "incomplete".to_owned(), ..row.summary };
        node.store().run(SetSelection { session, summary, at: now() }).unwrap();
    }
    let entry = node.reader().unwrap().entry_at(sessions[0], Seq::new(1).unwrap()).unwrap().unwrap();
    damage(node, &entry.bytes);

    let node = open(home.path());
    assert_eq!(sessions.map(|session| verdict(&node, session)), ["incomplete", "valid"]);
    assert_eq!(node.judge_again(sessions[0]).unwrap_err().code(), Code::StoreCorrupt);
    node.stop();
}

#[test]
fn a_verdict_that_was_shown_and_not_yet_told_is_told_at_the_start() {
    let mut builder = SessionBuilder::new("shown before told");
    let contributor = builder.contributor.clone();
    builder.user(&contributor, "not anchored");
    let checked = |built: &Built| Prechecked::of(built.entry.clone(), built.payload.clone()).unwrap();
    let entries: Vec<Prechecked> = builder.entries().iter().map(checked).collect();
    let before = builder.controls().to_vec();
    let tombstone = builder.tombstone(&contributor.capability.clone().unwrap(), Vec::new());
    let session = builder.session();
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [witness, node] = [&homes[0], &homes[1]].map(|home| open(home.path()));
    for (node, controls) in [(&witness, builder.controls().to_vec()), (&node, before)] {
        node.take_in(session, Arrived { entries: entries.clone(), controls, ..Arrived::default() }).unwrap();
    }
    // As when the process ended after the tombstone and the evidence were stored, and before the session was judged.
    let kept = witness.reader().unwrap().evidence(session).unwrap().remove(0);
    let put = PutEvidence {
        exhibit: crate::exhibit::check(kept.bytes).unwrap(),
        on_other: OnOther::Replace,
        at: now(),
        limits: crate::core::evidence::LIMITS,
    };
    node.store().run(PutControls { controls: vec![tombstone], at: now() }).unwrap();
    node.store().run(put).unwrap();
    let verdict = |node: &Node| node.reader().unwrap().session(session).unwrap().unwrap().summary.verdict;
    assert_eq!(verdict(&node), "valid");
    node.stop();
    drop(node);
    let node = open(homes[1].path());
    assert_eq!(verdict(&node), "revoked-tail");
    witness.stop();
    node.stop();
}
