use throughline_protocol::build::sign;
use throughline_protocol::control::{Capability, Tombstone};
use throughline_protocol::id::EntryCid;
use throughline_protocol::sign::SigningKey;
use throughline_protocol::testing::{Party, key, ts};

use super::*;
use crate::fixture::*;
use crate::*;

fn put(store: &Store, controls: Vec<Signed<Control>>) -> Result<Vec<Stored>, Code> {
    store.run(PutControls { controls, at: now() }).map_err(|error| error.code())
}

/// The `n`th capability of an owner.
fn capability(owner: &SigningKey, n: usize) -> Signed<Control> {
    let capability = Capability {
        ts: ts(u64::try_from(n).unwrap()),
        signer: owner.principal(),
        delegate: key("server1").principal(),
        role: Some("agent-session-reader".to_owned()),
        path: None,
        label: None,
        audience: None,
    };
    sign(Control::Capability(capability), owner).unwrap()
}

fn tombstone(owner: &SigningKey, capability: Cid, n: usize) -> Signed<Control> {
    let tombstone = Tombstone {
        ts: ts(u64::try_from(n).unwrap()),
        signer: owner.principal(),
        capability,
        keep: Vec::new(),
        reason: None,
        ext: None,
    };
    sign(Control::Tombstone(tombstone), owner).unwrap()
}

fn unknown(owner: &SigningKey, n: usize) -> Signed<Control> {
    tombstone(owner, Cid::sha256(Codec::DagCbor, &n.to_be_bytes()), n)
}

#[test]
fn tombstones_of_unknown_capabilities_have_a_quota_and_those_that_revoke_something_have_room() {
    let home = Home::new();
    let (store, owner) = (home.open(), key("stranger"));
    let part = UNKNOWN_TOMBSTONES_MAX / STRANGERS_PART;
    let all: Vec<_> = (0..=part).map(|n| unknown(&owner, n)).collect();
    assert_eq!(put(&store, all.clone()), Err(Code::Quota), "at once or one by one");
    assert_eq!(store.reader().unwrap().owner_digest(owner.principal()).unwrap().count, 0, "all or none");
    put(&store, all[..part].to_vec()).unwrap();
    assert_eq!(put(&store, all[part..].to_vec()), Err(Code::Quota));
    // What is held already takes no room; what revokes a held grant is no unknown one, by either CID, and also when both come at once.
    assert_eq!(put(&store, all[..1].to_vec()), Ok(vec![Stored::Held]));
    let grant = capability(&owner, 1);
    let revoked = tombstone(&owner, grant.cid().cid(), 1);
    let by_blake = tombstone(&owner, Cid::blake2b(Codec::DagCbor, grant.bytes()), 2);
    put(&store, vec![revoked, grant]).unwrap();
    put(&store, vec![by_blake]).unwrap();
    // Another owner has a quota of its own.
    put(&store, vec![unknown(&key("other"), 0)]).unwrap();
}

#[test]
fn an_owner_of_a_held_session_has_more_room() {
    let home = Home::new();
    let (store, builder) = (home.open(), session("held", 1));
    let owner = &builder.owner.key;
    let few = CAPABILITIES_MAX / STRANGERS_PART + 1;
    let all: Vec<_> = (0..few).map(|n| capability(owner, 1_000 + n)).collect();
    assert_eq!(put(&store, all.clone()), Err(Code::Quota));
    store.adopt(whole(&builder), at()).unwrap();
    put(&store, all).unwrap();
}

/// The `n`th Ref of a party to an entry of a session.
fn reference(
    builder: &throughline_protocol::testing::SessionBuilder,
    party: &Party,
    seq: usize,
    n: usize,
    private: bool,
) -> Signed<Control> {
    let head = &builder.entries()[seq].entry;
    let is_owner = party.capability.is_none();
    let value = Ref {
        ts: ts(u64::try_from(n).unwrap()),
        signer: party.key.principal(),
        space: (!is_owner).then(|| builder.owner.key.principal()),
        capability: party.capability.as_ref().map(|capability| capability.cid().cid()),
        path: Some(builder.session().path()),
        heads: vec![head.cid().cid()],
        genesis_blob: Some(builder.session().genesis().cid()),
        generation: head.value().epoch().get() + 1,
        private,
        redirect: None,
    };
    sign(Control::Ref(value), &party.key).unwrap()
}

fn held_of(store: &Store, session: SessionId, who: &Party) -> Vec<(u64, EntryCid)> {
    let mut found = Vec::new();
    for bytes in store.reader().unwrap().refs_of_session(session).unwrap() {
        let decoded = Decoded::<Control>::decode(bytes).unwrap();
        let Control::Ref(value) = decoded.value() else { panic!("a Ref") };
        if value.signer == who.key.principal() {
            found.push((value.ts.get() - ts(0).get(), value.session_head().unwrap().head));
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn of_a_writer_the_newest_refs_stay_whatever_order_they_come_in() {
    let (home, builder) = (Home::new(), session("writer", 3));
    let store = home.open();
    store.adopt(whole(&builder), AdoptOptions { controls: builder.controls().to_vec(), ..at() }).unwrap();
    let server = builder.server1.clone();
    for n in (0..300).rev() {
        put(&store, vec![reference(&builder, &server, n % 4, n, n % 2 == 0)]).unwrap();
    }
    let left = held_of(&store, builder.session(), &server);
    assert!(left.len() <= REFS_FREE, "{}", left.len());
    let newest: Vec<u64> = left.iter().rev().take(2 * REFS_KEPT).map(|(n, _)| *n).collect();
    assert_eq!(newest, (292..300).rev().collect::<Vec<_>>(), "the newest of both kinds");
    // Nothing of them is left behind.
    assert_clean(&store, builder.controls());
}

#[test]
fn of_refs_of_one_time_those_of_the_highest_places_stay() {
    let (home, builder) = (Home::new(), session("one time", 99));
    let store = home.open();
    store.adopt(whole(&builder), AdoptOptions { controls: builder.controls().to_vec(), ..at() }).unwrap();
    let server = builder.server1.clone();
    // As a clock that was ahead leaves them: each repeats the time of the last entry.
    for seq in 0..100 {
        put(&store, vec![reference(&builder, &server, seq, 7, true)]).unwrap();
    }
    let left = held_of(&store, builder.session(), &server);
    for seq in 100 - REFS_KEPT..100 {
        let head = builder.entries()[seq].entry.cid();
        assert!(left.contains(&(7, head)), "seq {seq}");
    }
}

#[test]
fn an_anchor_goes_only_when_a_newer_one_stands_above_it() {
    let (home, mut builder) = (Home::new(), session("anchors", 3));
    let server1 = builder.server1.clone();
    for at in 0..200 {
        builder.user(&server1, &format!("more {at}"));
    }
    let store = home.open();
    store.adopt(whole(&builder), AdoptOptions { controls: builder.controls().to_vec(), ..at() }).unwrap();
    let device = builder.device.clone();
    // An anchor of an entry that nobody here has: a tail that was cut may come back by it.
    let mut branch = builder.at(10).branch("lost");
    branch.user(&server1, "elsewhere");
    let lost = reference(&branch, &device, 11, 1, true);
    // One that is public is not said again by private ones, and a newer one below stands for nothing above.
    let public = reference(&builder, &device, 5, 2, false);
    put(&store, vec![lost, public]).unwrap();
    for n in 0..150 {
        put(&store, vec![reference(&builder, &device, n + 1, 10 + n, true)]).unwrap();
    }
    for n in 0..6 {
        put(&store, vec![reference(&builder, &device, 1, 1_000 + n, true)]).unwrap();
    }
    let left = held_of(&store, builder.session(), &device);
    let head = |seq: usize| builder.entries()[seq].entry.cid();
    assert!(left.len() <= REFS_FREE + 2, "{}", left.len());
    for (what, cid) in [
        ("the lost one", branch.entries()[11].entry.cid()),
        ("the public one", head(5)),
        ("the highest", head(150)),
    ] {
        assert!(left.iter().any(|(_, held)| *held == cid), "{what}");
    }
}
