//! What a device does is seen at the owner's other nodes.

use std::sync::Arc;

use serde_json::{Value, json};
use throughline_protocol::block::{Decoded, Signed};
use throughline_protocol::build;
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Authority, Body, Class, Entry, Note, Place};
use throughline_protocol::id::{Epoch, SessionId};
use throughline_protocol::testing::Reach;
use throughline_store::EventPage;

use super::Leave;
use super::testbench::Bench;
use crate::core::{Devices, Node, SignedAppend, now, shape};

/// What D cites as a device.
fn device_grant(bench: &Bench, session: SessionId) -> Authority {
    let anchor = bench.d.device_anchor(session).unwrap().unwrap();
    let Control::Ref(anchor) = anchor.value() else { panic!("a Ref") };
    Authority { space: bench.owner.principal(), capability: anchor.capability.unwrap() }
}

/// A note of D, put in order by A.
fn says(bench: &Bench, session: SessionId, note: Note) {
    let base = bench.a.signing_base(session).unwrap();
    let text = |key: &str| base[key].as_str();
    let prev = text("prev").unwrap().parse().unwrap();
    let (_, stored) = bench.a.reader().unwrap().entry(prev).unwrap().unwrap();
    let before = Decoded::<Entry>::decode(Arc::<[u8]>::from(stored.bytes)).unwrap();
    let skip = text("skip").map(|skip| skip.parse().unwrap());
    let place = Place { genesis: session.genesis(), prev, seq: stored.seq.next(), epoch: Epoch::ZERO, skip };
    let entry = Entry {
        ts: now().max(before.value().ts),
        signer: bench.d.principal(),
        authority: Some(device_grant(bench, session)),
        place: Some(place),
        body: Body::Note(note),
        payload: None,
        ext: None,
    };
    let entry = build::sign(entry, bench.d.key()).unwrap();
    let request = SignedAppend {
        session,
        entry: Arc::clone(entry.bytes()),
        payload: None,
        grants: Vec::new(),
        dry_run: false,
    };
    bench.a.append_signed(&request).unwrap();
}

/// A Ref of D to the head that A holds.
fn points(bench: &Bench, session: SessionId, reach: Reach) {
    let anchor = bench.d.device_anchor(session).unwrap().unwrap();
    let Control::Ref(mut value) = anchor.value().clone() else { panic!("a Ref") };
    value.private = reach == Reach::Anchors;
    let signed: Signed<Control> = build::sign(Control::Ref(value), bench.d.key()).unwrap();
    bench.a.take_controls(vec![signed]).unwrap();
}

/// What `status` shows of devices: their acts with how often, by word.
fn shown(node: &Node) -> Value {
    let reader = node.reader().unwrap();
    let (devices, is_cut) =
        Devices::of(node, &reader).report(None, &shape::aliases(&reader).unwrap()).unwrap();
    assert!(!is_cut);
    devices
}

fn acts(device: &Value) -> Vec<(&str, u64)> {
    let acts = device["acts"].as_array().unwrap();
    acts.iter().map(|act| (act["act"].as_str().unwrap(), act["count"].as_u64().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_act_of_a_device_is_shown_with_the_device_that_did_it() {
    let bench = Bench::new();
    let session = bench.session(1);
    assert_eq!(shown(&bench.a), json!([]));
    points(&bench, session, Reach::Anchors);
    says(&bench, session, Note::Class(Class::Public));
    points(&bench, session, Reach::Publishes);
    says(&bench, session, Note::Delete);
    let begun = bench.begin(session, &bench.b, Leave::Auto).await;
    bench.until(&begun, &["needs-handoff"]).await;

    let devices = shown(&bench.a);
    let [device] = devices.as_array().unwrap().as_slice() else { panic!("one device: {devices:#}") };
    assert_eq!(device["device"], bench.d.principal().to_string());
    let all = [("anchor", 1), ("class", 1), ("delete", 1), ("freeze", 1), ("publish", 1)];
    assert_eq!(acts(device), all);
    assert!(device["acts"].as_array().unwrap().iter().all(|act| act["session"] == session.to_string()));
    // It does not tell itself of what it does, nor of what the holder signs as such.
    assert_eq!(shown(&bench.d), json!([]));

    // One message of the event stream each.
    let reader = bench.a.reader().unwrap();
    let EventPage::Events(events) = reader.events_since(0, 10_000).unwrap() else { panic!("a gap") };
    let devices = Devices::of(&bench.a, &reader);
    let told = events.iter().filter_map(|event| devices.act(event).unwrap());
    let words: Vec<Value> = told.map(|act| act.to_json(Some("desktop"))["act"].clone()).collect();
    assert_eq!(words, ["anchor", "class", "publish", "delete", "freeze"]);
}
