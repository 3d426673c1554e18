//! Selection over sets: what it says depends on the set only, and fits what it says about each entry.

use throughline_protocol::fork::{Controls, Judged, Selection, Set, State};
use throughline_protocol::id::EntryCid;
use throughline_protocol::verify::{ChainState, Prechecked, Pushed, Verifier};

use super::super::sets::{Bag, Made, Signatures};
use crate::mutate::Rng;

pub(in crate::fuzz) fn select(data: &[u8]) {
    let bag = Bag::of_script(data, Signatures::Zero);
    let set = set_of(&bag, &bag.held.iter().collect::<Vec<_>>());
    let selection = set.select();
    check_orders(&bag, &selection);
    let judged = set.judge();
    assert_eq!(judged.selection(), selection);
    check_groups(&bag, &selection, &judged);
    check_states(&bag, &judged, set.controls());
    check_stream(&bag, &selection, &judged, set.controls());
}

fn set_of(bag: &Bag, order: &[&Made]) -> Set {
    let mut set = Set::new(bag.session);
    order.iter().for_each(|made| made.insert_into(&mut set));
    set
}

/// Backwards, shuffled, twice: the same.
fn check_orders(bag: &Bag, selection: &Selection) {
    let mut order: Vec<&Made> = bag.held.iter().rev().collect();
    assert_eq!(set_of(bag, &order).select(), *selection, "backwards");
    let mut rng = Rng::seeded(bag.held.len() as u64);
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at + 1));
    }
    let mut set = set_of(bag, &order);
    assert_eq!(set.select(), *selection, "shuffled");
    let held = set.len();
    order.iter().for_each(|made| made.insert_into(&mut set));
    assert_eq!((set.len(), set.select()), (held, selection.clone()), "twice");
}

fn check_groups(bag: &Bag, selection: &Selection, judged: &Judged<'_>) {
    for entry in bag.entries() {
        let cid = entry.cid();
        let is_in = judged.position(cid).is_some();
        assert_eq!(judged.explain(cid).is_none(), is_in, "in, or with a reason");
        let counts = selection.valid.contains(&cid) || selection.revoked_tail.contains(&cid);
        assert_eq!(counts, is_in);
        if let Some(prev) = entry.value().prev().filter(|_| is_in) {
            assert!(judged.precedes(prev, cid), "what is in stands on what is in");
            assert!(!selection.valid.contains(&cid) || selection.valid.contains(&prev));
        }
    }
    let groups = [&selection.pending, &selection.passed, &selection.fenced];
    for (at, group) in groups.iter().enumerate() {
        assert!(group.is_subset(&selection.valid));
        assert!(groups[..at].iter().all(|other| other.is_disjoint(group)));
    }
    assert!(selection.revoked_tail.is_disjoint(&selection.valid));
    let disputed = matches!(selection.state, State::Frozen | State::Forked);
    assert_eq!(selection.disputed.len() > 1, disputed);
    assert!(!disputed || !selection.evidence.is_empty(), "a dispute has evidence");
    let stands = matches!(selection.state, State::Ok | State::Sealed | State::Frozen | State::Forked);
    assert_eq!(selection.head.is_some(), stands);
    if let Some(head) = selection.head {
        assert!(selection.valid.contains(&head.cid));
        assert_eq!(judged.mark(head.cid), Some(head));
        assert!(selection.disputed.iter().all(|tip| judged.precedes(head.cid, tip.cid)));
        if let Some((anchor, _)) = selection.anchored_through {
            assert!(judged.precedes(anchor.cid, head.cid));
        }
    }
}

/// The state at every entry that is in is kept and read again.
fn check_states(bag: &Bag, judged: &Judged<'_>, controls: &Controls) {
    for entry in bag.entries() {
        let state = ChainState::at(judged, controls, entry.cid());
        assert_eq!(state.is_some(), judged.position(entry.cid()).is_some());
        if let Some(state) = state {
            assert_eq!(ChainState::from_bytes(&state.to_bytes()).as_ref(), Ok(&state));
            assert_eq!(state.tip().cid, entry.cid());
        }
    }
}

/// Where the entries are one chain, the stream takes what the set takes and comes to the same.
fn check_stream(bag: &Bag, selection: &Selection, judged: &Judged<'_>, controls: &Controls) {
    let Some(chain) = linear(bag) else { return };
    let mut verifier = Verifier::begin(controls.clone());
    for made in chain {
        let checked = Prechecked::of(made.clone(), None).expect("no payload to check");
        let pushed = verifier.link(checked);
        let linked = matches!(pushed, Ok(Pushed::Linked(..)));
        assert_eq!(linked, judged.position(made.cid()).is_some(), "{pushed:?}");
        if !linked {
            return;
        }
    }
    let Some(outcome) = verifier.state().and_then(ChainState::outcome) else { return };
    assert_eq!(outcome.state, selection.state);
    assert_eq!(outcome.head, selection.head);
    assert_eq!(outcome.anchored_through, selection.anchored_through);
    assert_eq!(outcome.cut, judged.cut(selection));
}

/// The entries oldest first, when they are one chain from the genesis.
fn linear(
    bag: &Bag,
) -> Option<Vec<&throughline_protocol::block::Signed<throughline_protocol::entry::Entry>>> {
    let mut chain: Vec<_> = bag.entries().collect();
    chain.sort_by_key(|entry| entry.value().seq());
    let mut before: Option<EntryCid> = None;
    for entry in &chain {
        if entry.value().prev() != before {
            return None;
        }
        before = Some(entry.cid());
    }
    (!chain.is_empty()).then_some(chain)
}
