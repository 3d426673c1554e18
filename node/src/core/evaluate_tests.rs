use throughline_protocol::id::Seq;
use throughline_protocol::testing::{Built, SessionBuilder};

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
