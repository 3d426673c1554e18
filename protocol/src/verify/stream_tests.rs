//! The streaming verifier: what it takes, puts aside and refuses, and what stays in memory.

use super::*;
use crate::codec::{self, Value};
use crate::testing::{Built, SessionBuilder};
use crate::verify::{ChainState, WINDOW_MAX};

fn held(session: &SessionBuilder) -> Controls {
    let mut controls = Controls::new();
    session.controls().iter().for_each(|control| {
        controls.insert(control);
    });
    controls
}

fn push<A: Ancestry>(verifier: &mut Verifier<A>, built: &Built) -> Result<Pushed, Reject> {
    verifier.push(Arc::clone(built.entry.bytes()), built.payload.clone())
}

fn session(turns: usize) -> SessionBuilder {
    let mut session = SessionBuilder::new("stream");
    let (owner, server) = (session.owner.clone(), session.server1.clone());
    for turn in 0..turns {
        session.user(&owner, &format!("question {turn}"));
        session.response(&server, &format!("answer {turn}"), &["call"]);
    }
    session
}

#[test]
fn every_prefix_is_a_segment() {
    let session = session(2);
    let mut verifier = Verifier::begin(held(&session));
    assert!(verifier.take_segment().unwrap().is_none());
    for built in &session.entries()[..3] {
        assert!(matches!(push(&mut verifier, built), Ok(Pushed::Linked(..))));
    }
    let first = verifier.take_segment().unwrap().unwrap();
    assert_eq!((first.base(), first.entries().len()), (Base::Nothing, 3));
    assert_eq!(first.session(), session.session());
    assert!(verifier.take_segment().unwrap().is_none());
    session.entries()[3..].iter().for_each(|built| {
        push(&mut verifier, built).unwrap();
    });
    let second = verifier.finish().unwrap().unwrap();
    assert_eq!(second.base(), Base::On(first.after().tip()));
    assert_eq!(second.entries().len(), 2);
    assert_eq!(second.after().tip().cid, session.head().entry.cid());
}

#[test]
fn nothing_is_kept_when_only_the_state_is_wanted() {
    let session = session(2);
    let mut verifier = Verifier::begin(held(&session)).collecting(Collect::Nothing);
    session.entries().iter().for_each(|built| {
        push(&mut verifier, built).unwrap();
    });
    let progress = verifier.progress();
    assert_eq!((progress.entries, progress.payloads), (5, 5));
    assert!(verifier.take_segment().unwrap().is_none());
    assert_eq!(verifier.state().unwrap().tip().seq.get(), 4);
}

#[test]
fn a_refusal_changes_nothing() {
    let session = session(1);
    let mut other = session.at(1).branch("bad");
    other.response(&session.server2.clone(), "not mine", &[]);
    let mut verifier = Verifier::begin(held(&session));
    push(&mut verifier, &session.entries()[0]).unwrap();
    push(&mut verifier, &session.entries()[1]).unwrap();
    let before = verifier.state().cloned();
    assert_eq!(push(&mut verifier, other.head()).unwrap_err().code, Code::NotHolder);
    assert_eq!(verifier.state().cloned(), before);
    assert!(matches!(push(&mut verifier, &session.entries()[2]), Ok(Pushed::Linked(..))));
}

#[test]
fn what_is_off_the_tip_is_known_aside_or_not_connected() {
    let session = session(3);
    let mut side = session.at(2).branch("side");
    side.user(&session.contributor.clone(), "beside");
    let mut verifier = Verifier::begin(held(&session));
    assert_eq!(push(&mut verifier, &session.entries()[1]).unwrap_err().code, Code::Incomplete);
    session.entries()[..5].iter().for_each(|built| {
        push(&mut verifier, built).unwrap();
    });
    assert!(matches!(push(&mut verifier, &session.entries()[0]), Ok(Pushed::Known)));
    assert!(matches!(push(&mut verifier, &session.entries()[4]), Ok(Pushed::Known)));
    let Ok(Pushed::Aside(checked)) = push(&mut verifier, side.head()) else { panic!("a second entry on 2") };
    assert_eq!(checked.signed().cid(), side.head().entry.cid());
    assert_eq!(push(&mut verifier, &session.entries()[6]).unwrap_err().code, Code::Incomplete);
    let foreign = SessionBuilder::new("another");
    assert_eq!(push(&mut verifier, foreign.head()).unwrap_err().code, Code::SessionMismatch);
}

#[test]
fn far_links_wait_until_somebody_answers() {
    let mut session = session(2);
    let (server, asked) = (session.server1.clone(), session.entries()[2].entry.cid());
    let base = session.head().entry.cid();
    session.tool(&server, asked, "call", "done");
    let mut first = Verifier::begin(held(&session));
    session.entries()[..5].iter().for_each(|built| {
        push(&mut first, built).unwrap();
    });
    let state = first.state().unwrap().clone();
    assert_eq!(state.tip().cid, base);
    let resumed = || {
        let mut verifier = Verifier::resume(state.clone(), held(&session));
        push(&mut verifier, session.head()).unwrap();
        verifier
    };
    let mut verifier = resumed();
    assert_eq!(verifier.unsettled().iter().map(|link| link.target).collect::<Vec<_>>(), [asked]);
    assert_eq!(verifier.take_segment().unwrap_err().code, Code::Incomplete);
    verifier.settle(asked, |_| Holds::Unknown).unwrap();
    assert_eq!(verifier.unsettled().len(), 1);
    verifier.settle(asked, |_| Holds::Yes).unwrap();
    assert_eq!(verifier.take_segment().unwrap().unwrap().entries().len(), 1);

    let mut verifier = resumed();
    assert_eq!(verifier.settle(asked, |_| Holds::No).unwrap_err().code, Code::Ancestor);
    assert_eq!(verifier.take_segment().unwrap_err().code, Code::Ancestor);
    assert_eq!(push(&mut verifier, session.head()).unwrap_err().code, Code::Ancestor);

    // From the genesis on the window is the whole chain: nothing waits.
    let mut whole = first.clone();
    push(&mut whole, session.head()).unwrap();
    assert!(whole.unsettled().is_empty());
}

#[test]
fn the_window_ends_and_a_link_beyond_it_waits() {
    let session = session(1);
    let mut verifier = Verifier::begin(held(&session));
    session.entries().iter().for_each(|built| {
        push(&mut verifier, built).unwrap();
    });
    let mut window = verifier.chain.as_ref().unwrap().window.clone();
    let (old, never) = (session.entries()[1].entry.cid(), EntryCid::of(b"never"));
    let asks = |window: &Window, cid| {
        let state = verifier.state().unwrap();
        crate::fork::Lineage::holds(&Streamed { state, window, ancestry: &NoIndex }, cid)
    };
    assert_eq!((asks(&window, old), asks(&window, never)), (Holds::Yes, Holds::No));
    (0..WINDOW_MAX).for_each(|at| window.push(EntryCid::of(&at.to_be_bytes())));
    // What the skip path names is still known.
    assert_eq!(asks(&window, never), Holds::Unknown);
    assert_eq!(asks(&window, session.session().genesis()), Holds::Yes);
}

#[test]
fn late_tombstones_make_the_outcome_unknown_until_an_anchor() {
    let mut session = session(2);
    let mut verifier = Verifier::begin(held(&session));
    session.entries().iter().for_each(|built| {
        push(&mut verifier, built).unwrap();
    });
    let state = verifier.state().unwrap().clone();
    assert!(state.outcome().is_some());
    let grant = session.contributor.capability.clone().unwrap();
    session.tombstone(&grant, Vec::new());
    let mut resumed = Verifier::resume(state.clone(), held(&session));
    assert_eq!(resumed.state().unwrap().outcome(), None);
    session.user(&session.owner.clone(), "go on");
    push(&mut resumed, session.head()).unwrap();
    let outcome = resumed.state().unwrap().outcome().unwrap();
    assert_eq!((outcome.head, outcome.cut), (Some(state.tip()), None));
}

#[test]
fn bytes_that_no_state_has_are_refused() {
    let session = session(1);
    let mut verifier = Verifier::begin(held(&session));
    session.entries().iter().for_each(|built| {
        push(&mut verifier, built).unwrap();
    });
    let bytes = verifier.state().unwrap().to_bytes();
    assert_eq!(ChainState::from_bytes(&bytes).as_ref(), Ok(verifier.state().unwrap()));
    for cut in 0..bytes.len() {
        assert_eq!(ChainState::from_bytes(&bytes[..cut]).unwrap_err().code, Code::IndexCorrupt);
    }
    let changed = |key: &'static str, change: &dyn Fn(Value<'static>) -> Value<'static>| {
        let (value, _) = codec::decode(&bytes, 16).unwrap();
        let Value::Map(mut map) = value.into_owned() else { panic!("a state is a map") };
        let before = map.remove(key).unwrap_or(Value::Null);
        map.insert(key, change(before));
        ChainState::from_bytes(&codec::encode_map(&map))
    };
    // One state has one spelling: no signer twice, none out of order, no head before a cut that there is not.
    let list = |value: Value<'static>| value.as_list().unwrap().to_vec();
    let twice = changed("signers", &|signers| Value::List([list(signers.clone()), list(signers)].concat()));
    let reversed = changed("signers", &|signers| Value::List(list(signers).into_iter().rev().collect()));
    let (value, _) = codec::decode(&bytes, 16).unwrap();
    let head = value.as_map().and_then(|map| map.get("head")).unwrap().clone().into_owned();
    let before = changed("headBefore", &|_| head.clone());
    for refused in [twice, reversed, before] {
        assert_eq!(refused.unwrap_err().code, Code::IndexCorrupt);
    }
}
