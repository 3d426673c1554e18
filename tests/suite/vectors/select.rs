//! `vectors/select`: every case, in several orders of arrival.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use throughline_protocol::evidence::{self, Exhibit};
use throughline_protocol::fork::{Selection, Set, State};
use throughline_protocol::id::{Cid, EntryCid};
use throughline_protocol::sign::VerifyingKeys;

use super::forge::{Blob, Forge, Id, Kind, Spec, Step, What};
use super::{Files, records};
use throughline_tests::differ::answers::state_word;

const ORDERS: u64 = 4;

pub(super) fn check(files: &Files) {
    let cases = files.json("select/cases.json");
    for (number, case) in records(&cases, 654).iter().enumerate() {
        let forge = forge_of(case);
        let first = forge.set().select();
        check_expected(number, case, &forge, &first);
        check_orders(number, &forge, &first);
        check_reasons(number, &forge, &first);
        check_evidence(number, &forge, &first);
    }
}

/// Every case as a record for the second verifier.
pub(super) fn set_records(files: &Files) -> Vec<throughline_tests::differ::Record> {
    let cases = files.json("select/cases.json");
    records(&cases, 654).iter().map(|case| forge_of(case).set_record()).collect()
}

/// Whatever a set gives evidence of can be shown to a stranger, and is the same file in any order of arrival.
fn check_evidence(number: usize, forge: &Forge, selection: &Selection) {
    let exhibits = exhibits(&forge.set(), forge);
    let blobs: Vec<&Blob> = forge.blobs().map(|(_, blob)| blob).collect();
    for order in 0..ORDERS {
        let mut set = Set::new(forge.session());
        shuffled(blobs.len(), number as u64 * ORDERS + order)
            .into_iter()
            .for_each(|at| blobs[at].insert_into(&mut set));
        assert_eq!(self::exhibits(&set, forge), exhibits, "case {number}: another order, other evidence");
    }
    if matches!(selection.state, State::Frozen | State::Forked) {
        let shows = |exhibit: &Exhibit| {
            matches!(
                exhibit.accusation().kind,
                evidence::Kind::Equivocation | evidence::Kind::OwnerEquivocation
            )
        };
        assert!(exhibits.iter().any(shows), "case {number}: a dispute that cannot be shown");
    }
    // A stranger that holds nothing else finds the same entries in it, each signed and of this session.
    for exhibit in &exhibits {
        let again = Exhibit::check(Arc::clone(exhibit.bytes()), &mut VerifyingKeys::default());
        assert_eq!(again.as_ref(), Ok(exhibit), "case {number}");
    }
}

fn exhibits(set: &Set, forge: &Forge) -> Vec<Exhibit> {
    let judged = set.judge();
    let entry = |cid: EntryCid| {
        forge.blobs().find_map(|(_, blob)| match blob {
            Blob::Entry(entry) if entry.cid() == cid => Some(Arc::clone(entry.bytes())),
            Blob::Entry(_) | Blob::Control(_) => None,
        })
    };
    let control = |cid: &Cid| {
        forge.blobs().find_map(|(_, blob)| match blob {
            Blob::Control(control) if cid.matches(control.bytes()) => Some(Arc::clone(control.bytes())),
            Blob::Entry(_) | Blob::Control(_) => None,
        })
    };
    let charges = evidence::charges(&judged, &judged.selection());
    let made = charges.iter().map(|charge| evidence::build(charge, entry, control));
    made.collect::<Result<_, _>>().expect("what there is evidence of can be shown")
}

/// Any order of arrival, asked on the way or not, gives the same selection.
fn check_orders(number: usize, forge: &Forge, first: &Selection) {
    let blobs: Vec<&Blob> = forge.blobs().map(|(_, blob)| blob).collect();
    for order in 0..ORDERS {
        let mut set = Set::new(forge.session());
        for at in shuffled(blobs.len(), number as u64 * ORDERS + order) {
            blobs[at].insert_into(&mut set);
            if at % 16 == 0 {
                std::hint::black_box(set.select());
            }
        }
        assert_eq!(set.select(), *first, "case {number}: another order, another selection");
    }
}

/// Every entry is in, or it has a reason.
fn check_reasons(number: usize, forge: &Forge, selection: &Selection) {
    let set = forge.set();
    let judged = set.judge();
    for (id, blob) in forge.blobs() {
        let Blob::Entry(entry) = blob else { continue };
        let is_in = judged.position(entry.cid()).is_some();
        let reason = judged.explain(entry.cid());
        assert_eq!(reason.is_none(), is_in, "case {number}, entry {id}: {reason:?}");
        let counts = selection.valid.contains(&entry.cid()) || selection.revoked_tail.contains(&entry.cid());
        assert_eq!(counts, is_in, "case {number}, entry {id}");
    }
}

fn check_expected(number: usize, case: &Value, forge: &Forge, selection: &Selection) {
    let what = case["what"].as_str().unwrap_or_default();
    let expect = &case["expect"];
    let place = format!("case {number} ({what})");
    assert_eq!(state_word(selection.state), expect["state"].as_str().expect("a state"), "{place}: state");
    let head = selection.head.map(|head| forge.id_of(head.cid));
    assert_eq!(head, expect["head"].as_u64(), "{place}: head");
    let epoch = selection.head.map(|head| head.epoch.get());
    assert_eq!(epoch, expect["epoch"].as_u64(), "{place}: epoch");
    let ids =
        |cids: &BTreeSet<EntryCid>| -> BTreeSet<Id> { cids.iter().map(|cid| forge.id_of(*cid)).collect() };
    assert_eq!(ids(&selection.valid), id_set(&expect["valid"]), "{place}: valid");
    assert_eq!(ids(&selection.pending), id_set(&expect["pending"]), "{place}: pending");
    let groups = [&selection.pending, &selection.passed, &selection.fenced];
    assert!(groups.iter().all(|group| group.is_subset(&selection.valid)), "{place}: groups are valid");
    assert!(selection.revoked_tail.is_disjoint(&selection.valid), "{place}: revoked is not valid");
    let disputed = matches!(selection.state, State::Frozen | State::Forked);
    assert_eq!(selection.disputed.len() > 1, disputed, "{place}: disputed tips");
    assert!(!disputed || !selection.evidence.is_empty(), "{place}: a dispute has evidence");
}

fn id_set(value: &Value) -> BTreeSet<Id> {
    value.as_array().expect("a list of ids").iter().map(|id| id.as_u64().expect("an id")).collect()
}

fn forge_of(case: &Value) -> Forge {
    let specs: Vec<Spec> = case["blobs"].as_array().expect("blobs").iter().map(spec_of).collect();
    // Without a genesis in the set, what the entries of seq 1 stand on names the session.
    let genesis = specs.iter().find_map(|spec| {
        let What::Entry(step) = &spec.what else { return None };
        match step.prev {
            None => Some(spec.id),
            Some(prev) => (step.seq == 1).then_some(prev),
        }
    });
    Forge::of(genesis.unwrap_or(6), &specs)
}

fn spec_of(blob: &Value) -> Spec {
    let text = |key: &str| blob[key].as_str().map(str::to_owned);
    let number = |key: &str| blob[key].as_u64();
    let step = |kind| {
        What::Entry(Step {
            kind,
            prev: number("prev"),
            seq: number("seq").expect("a seq"),
            epoch: number("epoch").unwrap_or(0),
            capability: number("capability"),
        })
    };
    let what = match blob["type"].as_str().expect("a type") {
        "Capability" => What::Capability {
            delegate: text("delegate").expect("a delegate"),
            role: text("role").expect("a role"),
        },
        "CapabilityTombstone" => What::Tombstone {
            capability: number("capability").expect("a capability"),
            keep: blob["keep"]
                .as_array()
                .map_or_else(Vec::new, |keep| keep.iter().map(|id| id.as_u64().expect("an id")).collect()),
        },
        "Ref" => What::Ref { head: number("head").expect("a head"), capability: number("capability") },
        "SessionGenesis" => step(Kind::Genesis { holder: text("holder") }),
        "SessionUserMessage" => step(Kind::UserMessage),
        "SessionModelResponse" => step(Kind::ModelResponse),
        "SessionHandoff" => step(Kind::Handoff { holder: text("holder") }),
        "SessionSeal" => step(Kind::Seal),
        other => panic!("a case with a {other}"),
    };
    Spec { id: number("id").expect("an id"), signer: text("signer").expect("a signer"), what }
}

/// Numbers below `count` in an order that depends on `seed` only.
pub(super) fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for at in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = usize::try_from(state >> 33).expect("31 bits") % (at + 1);
        order.swap(at, pick);
    }
    order
}
