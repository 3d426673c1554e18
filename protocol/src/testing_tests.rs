use super::*;
use crate::payload::Payload;
use crate::sign::VerifyingKeys;

#[test]
fn a_built_session_is_valid_blob_by_blob_and_the_same_each_time() {
    let build = || {
        let mut session = SessionBuilder::new("T");
        let (owner, server1, server2) =
            (session.owner.clone(), session.server1.clone(), session.server2.clone());
        session.user(&owner, "Run the tests.");
        let response = session.response(&server1, "Running.", &["c1"]);
        session.tool(&server1, response, "c1", "\"ok\"");
        session.reference(&server1, 3, Reach::Anchors);
        session.handoff(Some(&server2));
        session.user(&server2, "Nightly.");
        session.note(&owner, Note::Close { reason: None });
        session.seal(&server2);
        session
    };
    let (session, again) = (build(), build());
    let mut keys = VerifyingKeys::default();
    for (seq, (built, twin)) in session.entries().iter().zip(again.entries()).enumerate() {
        assert_eq!(built.entry.bytes(), twin.entry.bytes());
        let entry = Signed::<Entry>::check(built.entry.bytes().clone(), &mut keys).unwrap();
        assert_eq!(entry.value().seq().get(), seq as u64);
        assert_eq!(entry.value().epoch(), epoch(u64::from(seq >= 4)));
        if let Some(payload) = &built.payload {
            Payload::check(entry.value(), payload.clone()).unwrap();
        }
    }
    for (seq, built) in session.entries().iter().enumerate().skip(1) {
        let target = usize::try_from(crate::skip::target(seq as u64)).unwrap();
        let expected = (target != seq - 1).then(|| session.entries()[target].entry.cid());
        assert_eq!(built.entry.value().place.unwrap().skip, expected, "seq {seq}");
    }
}

#[test]
fn a_branch_shares_its_past_and_not_its_future() {
    let mut session = SessionBuilder::new("T");
    let server1 = session.server1.clone();
    session.user(&server1, "one");
    session.user(&server1, "two");
    let mut other = session.at(1).branch("b");
    other.user(&server1, "two");
    assert_eq!(other.entries()[1].entry.cid(), session.entries()[1].entry.cid());
    assert_ne!(other.head().entry.cid(), session.head().entry.cid());
    assert_eq!(other.head().entry.value().prev(), session.head().entry.value().prev());
}
