use std::collections::BTreeMap;

use throughline_protocol::blob::SignedAny;
use throughline_protocol::code::Code;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::testing::{SessionBuilder, key};

use super::*;

fn maker() -> Maker {
    let mut session = SessionBuilder::new("mutants");
    let (contributor, server, owner) =
        (session.contributor.clone(), session.server1.clone(), session.owner.clone());
    session.user(&contributor, "hello");
    let response = session.response(&server, "asking", &["c1", "c2"]);
    session.tool(&server, response, "c1", "done");
    session.handoff(Some(&server));
    session.seal(&owner);
    let blobs = session.entries().iter().map(|built| built.entry.bytes().to_vec());
    let controls = session.controls().iter().map(|control| control.bytes().to_vec());
    let blobs: Vec<Vec<u8>> = blobs.chain(controls).collect();
    let keys = ["account", "device", "server1", "server2", "contributor", "reader"].map(key);
    Maker::new(blobs.iter().map(Vec::as_slice), keys.into())
}

#[test]
fn trees_read_what_they_write() {
    let maker = maker();
    assert_eq!(maker.len(), 11);
    for tree in &maker.pool {
        assert_eq!(Node::read(&tree.to_bytes()).as_ref(), Some(tree));
        let signed = maker.signed(tree, None);
        assert_eq!(signed, tree.to_bytes(), "Ed25519 is deterministic: signing again changes nothing");
    }
}

/// Mutants are no good when all are refused for the same thing, or all before their signature.
#[test]
fn mutants_are_refused_for_many_reasons() {
    let maker = maker();
    let mut keys = VerifyingKeys::default();
    let mut codes: BTreeMap<Option<Code>, usize> = BTreeMap::new();
    for seed in 0..3_000 {
        let mutant = maker.mutant(&mut Rng::seeded(seed));
        assert_eq!(mutant, maker.mutant(&mut Rng::seeded(seed)), "one seed, one mutant");
        let code = SignedAny::check(mutant, &mut keys).err().map(|reject| reject.code);
        *codes.entry(code).or_default() += 1;
    }
    assert!(codes.len() > 35, "{} outcomes: {codes:?}", codes.len());
    assert!(codes[&None] > 100, "{codes:?}");
    assert!(codes[&Some(Code::Sig)] < 600, "{codes:?}");
}
