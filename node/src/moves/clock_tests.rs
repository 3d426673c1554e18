//! Clocks that are ahead: they hold up nobody else.

use std::sync::Arc;

use throughline_protocol::block::Decoded;
use throughline_protocol::build;
use throughline_protocol::code::Code;
use throughline_protocol::entry::{Body, Entry, Note, Place};
use throughline_protocol::id::{SessionId, UnixMillis};
use throughline_protocol::verify::Prechecked;

use super::Leave;
use super::testbench::{Bench, append, named};
use super::tests::{holders, row};
use super::wires::copy;
use crate::core::{Arrived, Lookout, Node, SignedAppend, now};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

fn later(ms: u64) -> UnixMillis {
    UnixMillis::new(now().get() + ms).unwrap()
}

/// A note that the holder signs on its head, at a time of its own.
fn note_at(node: &Node, session: SessionId, ts: UnixMillis) -> Entry {
    let base = node.signing_base(session).unwrap();
    let text = |key: &str| base[key].as_str();
    let prev = text("prev").unwrap().parse().unwrap();
    let (_, stored) = node.reader().unwrap().entry(prev).unwrap().unwrap();
    let before = Decoded::<Entry>::decode(Arc::<[u8]>::from(stored.bytes)).unwrap();
    let skip = text("skip").map(|skip| skip.parse().unwrap());
    let place = Place {
        genesis: session.genesis(),
        prev,
        seq: stored.seq.next(),
        epoch: before.value().epoch(),
        skip,
    };
    Entry {
        ts,
        signer: node.principal(),
        authority: before.value().authority,
        place: Some(place),
        body: Body::Note(Note::Resume),
        payload: None,
        ext: None,
    }
}

/// What the holder signs while its clock is ahead, as it comes to whoever fetches it.
fn goes_on_ahead(bench: &Bench, session: SessionId, ahead_ms: u64) {
    let entry = build::sign(note_at(&bench.a, session, later(ahead_ms)), bench.a.key()).unwrap();
    let entries = vec![Prechecked::of(entry, None).unwrap()];
    bench.a.take_in(session, Arrived { entries, ..Arrived::default() }).unwrap();
    assert!(copy(&bench.a, &bench.d, session));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_was_a_day_ahead_keeps_no_session_where_it_is() {
    let bench = Bench::new();
    let session = bench.session(1);
    goes_on_ahead(&bench, session, DAY_MS);
    let tip = row(&bench.d, session).tip;
    let told = bench.move_to(session, &bench.b, Leave::Auto).await;
    assert_eq!(told["state"], "done", "{told:#}");
    assert_eq!(holders(&bench, session), [bench.b.principal()]);
    // A clock that is right goes on there: with the time that stands there, and in its order.
    append(&bench.b, session, "by a clock that is right").unwrap();
    assert!(row(&bench.b, session).tip.seq > tip.seq);
    // And back, with nothing of it left behind.
    assert!(copy(&bench.b, &bench.d, session));
    let back = bench.a.clone();
    assert_eq!(bench.move_to(session, &back, Leave::Auto).await["state"], "done");
    append(&bench.a, session, "at home").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_sign_may_repeat_the_time_that_stands_there_and_not_go_beyond_it() {
    let bench = Bench::new();
    let session = bench.session(1);
    goes_on_ahead(&bench, session, DAY_MS);
    let sent = |ts: UnixMillis| {
        let entry = build::sign(note_at(&bench.a, session, ts), bench.a.key()).unwrap();
        let request = SignedAppend {
            session,
            entry: Arc::clone(entry.bytes()),
            payload: None,
            grants: Vec::new(),
            dry_run: true,
        };
        bench.a.append_signed(&request).map(|_| ()).map_err(|problem| problem.code())
    };
    let stands =
        UnixMillis::new(bench.a.signing_base(session).unwrap()["notBeforeMs"].as_u64().unwrap()).unwrap();
    assert_eq!(sent(stands), Ok(()));
    assert_eq!(sent(UnixMillis::new(stands.get() + 1).unwrap()), Err(Code::Future));
    assert_eq!(sent(now()), Err(Code::TsOrder));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handoff_from_a_clock_that_is_ahead_is_refused_and_the_move_can_be_taken_back() {
    let bench = Bench::new();
    let session = bench.session(1);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    let mut asked = bench.until(&begun, &["needs-handoff"]).await;
    let right = asked["sign"].clone();
    asked["sign"]["notBeforeMs"] = later(DAY_MS).get().into();
    let ahead = bench.handoff(&asked["sign"]).bytes().to_vec();
    let (_, id) = named(&begun);
    let refused = bench.desk().give_handoff(session, id, ahead).await.unwrap_err();
    assert_eq!(refused.code(), Code::Future, "{refused}");
    assert_eq!(append(&bench.a, session, "stands still"), Err(Code::Frozen));
    let told = bench.desk().abort(session, id, Leave::Auto).await.unwrap();
    assert_eq!(told["from"]["state"], "active", "{told:#}");
    append(&bench.a, session, "goes on").unwrap();
    assert!(right["notBeforeMs"].as_u64().unwrap() <= now().get());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_ahead_is_told_until_its_time_has_come() {
    let bench = Bench::new();
    let session = bench.session(1);
    let codes_at = |node: &Node, at: UnixMillis| {
        let reader = node.reader().unwrap();
        let found = Lookout::at(node, &reader, at).of(&reader.session(session).unwrap().unwrap());
        found.iter().map(|problem| problem["code"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(codes_at(&bench.d, now()), [""; 0]);
    goes_on_ahead(&bench, session, DAY_MS);
    let ahead = row(&bench.d, session).ahead.unwrap();
    assert_eq!(ahead.seq, row(&bench.d, session).tip.seq);
    assert!((DAY_MS - 120_000..=DAY_MS).contains(&ahead.by_ms), "{ahead:?}");
    assert_eq!(codes_at(&bench.d, now()), ["W_FUTURE"]);
    assert_eq!(codes_at(&bench.d, later(2 * DAY_MS)), [""; 0]);
    // Who goes on by a right clock is not the one that is ahead.
    append(&bench.a, session, "later, by a clock that was set").unwrap();
    assert!(copy(&bench.a, &bench.d, session));
    assert_eq!(row(&bench.d, session).ahead, Some(ahead));
    assert_eq!(codes_at(&bench.d, now()), ["W_FUTURE"]);
}
