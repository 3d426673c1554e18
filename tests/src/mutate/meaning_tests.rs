//! Stories that are told again without a change are the same blobs, and changed ones mean something.

use std::collections::BTreeMap;

use throughline_protocol::blob::SignedAny;
use throughline_protocol::fork::{Set, State};
use throughline_protocol::id::SessionId;
use throughline_protocol::sign::VerifyingKeys;

use super::*;
use crate::differ::plan;
use crate::fuzz::sets::{Bag, Signatures, random_script};

fn stories() -> (Vec<Story>, Maker) {
    let maker = Maker::new([], plan::known_keys());
    let mut rng = Rng::seeded(3);
    let stories = (0..24).filter_map(|_| {
        let bag = Bag::of_script(&random_script(&mut rng, 10), Signatures::Real);
        let blobs: Vec<&[u8]> = bag.held.iter().map(|made| made.bytes()).collect();
        Story::of(blobs, None)
    });
    (stories.collect(), maker)
}

#[test]
fn an_honest_story_that_is_signed_again_is_the_same_bytes() {
    let mut session = throughline_protocol::testing::SessionBuilder::new("meaning");
    let (owner, server, other) = (session.owner.clone(), session.server1.clone(), session.server2.clone());
    session.user(&owner, "a question");
    session.response(&server, "an answer", &[]);
    session.handoff(Some(&other));
    session.reference(&owner, 2, throughline_protocol::testing::Reach::Anchors);
    session.tombstone(&server.capability.clone().unwrap(), Vec::new());
    session.seal(&other);
    let entries = session.entries().iter().map(|built| &built.entry.bytes()[..]);
    let mut blobs: Vec<&[u8]> =
        entries.chain(session.controls().iter().map(|control| &control.bytes()[..])).collect();
    let story = Story::of(blobs.iter().copied(), None).unwrap();
    let signed = sign(&story, &Maker::new([], plan::known_keys()));
    let mut again: Vec<&[u8]> = signed.blobs.iter().map(Vec::as_slice).collect();
    blobs.sort_unstable();
    again.sort_unstable();
    assert_eq!(again, blobs);
    assert_eq!(signed.root, session.head().entry.cid().cid());
}

#[test]
fn most_blobs_of_changed_stories_pass_by_themselves_and_every_state_is_met() {
    let (stories, maker) = stories();
    let (mut passed, mut all) = (0, 0);
    let mut states: BTreeMap<State, usize> = BTreeMap::new();
    let mut keys = VerifyingKeys::default();
    for seed in 0..400 {
        let mut rng = Rng::seeded(seed);
        let story = rng.pick(&stories).clone();
        let signed = sign(&mutant(&mut rng, &story, &maker), &maker);
        let mut set = Set::new(SessionId::of_genesis(signed.genesis));
        for blob in &signed.blobs {
            all += 1;
            match SignedAny::check(&blob[..], &mut keys) {
                Ok(SignedAny::Entry(entry)) => drop(set.insert_entry(&entry)),
                Ok(SignedAny::Control(control)) => drop(set.insert_control(&control)),
                Ok(SignedAny::Seed(_)) | Err(_) => continue,
            }
            passed += 1;
        }
        *states.entry(set.select().state).or_default() += 1;
    }
    assert!(passed * 10 > all * 9, "{passed} of {all} pass");
    assert!(states.len() >= 6, "{states:?}");
}
