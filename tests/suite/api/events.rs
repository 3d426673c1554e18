//! Server-sent events: after the commit, in order, each once, whatever happens to the connection.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use throughline_node::api::client::{Call, Reply};
use throughline_protocol::id::UnixMillis;
use throughline_store::{Expect, PutJob};

use super::home::{Home, response};

/// One message of a stream, as `EventSource` sees it.
#[derive(Clone, Debug)]
struct Message {
    /// `lastEventId` when it is dispatched.
    id: String,
    event: String,
    data: Value,
}

/// A reader by the rules of the HTML standard: an id without data moves `lastEventId` and is no message.
struct EventSource {
    reply: Reply,
    pending: String,
    last_id: String,
}

impl EventSource {
    async fn open(home: &Home, path: &str, last_id: Option<&str>) -> Self {
        let mut call = Call::get(path);
        if let Some(id) = last_id {
            call = call.header("last-event-id", id);
        }
        let reply = home.client.open(call).await.unwrap();
        assert_eq!(reply.headers["content-type"], "text/event-stream");
        EventSource { reply, pending: String::new(), last_id: last_id.unwrap_or_default().to_owned() }
    }

    /// Reads until an id is known, so that a reader that is cut off before the first message misses nothing.
    async fn begun(mut self) -> Self {
        while self.last_id.is_empty() {
            let block = self.block().await;
            assert!(self.dispatch(&block).is_none());
        }
        self
    }

    async fn next(&mut self) -> Message {
        loop {
            let block = self.block().await;
            if let Some(message) = self.dispatch(&block) {
                return message;
            }
        }
    }

    async fn block(&mut self) -> String {
        loop {
            if let Some(end) = self.pending.find("\n\n") {
                return self.pending.drain(..end + 2).collect();
            }
            let chunk = self.reply.chunk().await.unwrap().expect("the stream ended");
            self.pending.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    fn dispatch(&mut self, block: &str) -> Option<Message> {
        let (mut event, mut data) = (String::from("message"), None);
        for line in block.lines() {
            match line.split_once(": ") {
                Some(("id", id)) => self.last_id = id.to_owned(),
                Some(("event", name)) => event = name.to_owned(),
                Some(("data", text)) => data = Some(serde_json::from_str(text).unwrap()),
                _ => assert!(line.is_empty() || line.starts_with(':'), "{line}"),
            }
        }
        data.map(|data| Message { id: self.last_id.clone(), event, data })
    }
}

fn seqs(messages: &[Message]) -> Vec<u64> {
    messages.iter().filter(|m| m.event == "entry").map(|m| m.data["seq"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_are_told_once_in_order() {
    let home = Home::new().await;
    let (session, mut head) = home.session("hello").await;
    let mut source = EventSource::open(&home, "/v1/events?types=entry", None).await.begun().await;
    for text in ["one", "two", "three"] {
        head = home.append(&session, &head, text).await;
    }
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(source.next().await);
    }
    assert_eq!(seqs(&told), [2, 3, 4]);
    assert_eq!(told[2].data["cid"], json!(head));
    assert_eq!(told[0].data["session"], json!(session));
    // Keys that have a name here come with it.
    assert_eq!(told[0].data["signerAlias"], "self", "{}", told[0].data);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_cut_off_anywhere_gets_every_message_once() {
    let home = Home::new().await;
    let (session, mut head) = home.session("hello").await;
    let began = EventSource::open(&home, "/v1/events", None).await.begun().await.last_id;
    // Batches: one event is several messages.
    for size in [3, 1, 4] {
        let entries: Vec<Value> = (0..size).map(|n| response(&format!("{size} {n}"))).collect();
        let path = format!("/v1/sessions/{session}/entries");
        let (_, answer) =
            home.post_as(&path, &size.to_string(), &json!({"base": head, "entries": entries})).await;
        head = answer["head"]["cid"].as_str().unwrap().to_owned();
    }
    let mut whole = EventSource::open(&home, "/v1/events?types=entry", Some(&began)).await;
    let mut expected = Vec::new();
    while expected.len() < 8 {
        expected.push(whole.next().await);
    }
    assert_eq!(seqs(&expected), (2..=9).collect::<Vec<u64>>());
    let ids: BTreeSet<&str> = expected.iter().map(|message| message.id.as_str()).collect();
    assert_eq!(ids.len(), expected.len(), "every message has its own id");
    // Cut off after every possible number of messages.
    for cut in 0..=8 {
        let mut first = EventSource::open(&home, "/v1/events?types=entry", Some(&began)).await;
        let mut seen = Vec::new();
        while seen.len() < cut {
            seen.push(first.next().await);
        }
        let resume = first.last_id.clone();
        drop(first);
        let mut second = EventSource::open(&home, "/v1/events?types=entry", Some(&resume)).await;
        while seen.len() < 8 {
            seen.push(second.next().await);
        }
        assert_eq!(seqs(&seen), seqs(&expected), "cut off after {cut}, resumed from {resume}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_survive_a_restart_and_a_gap_is_told() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    let began = EventSource::open(&home, "/v1/events", None).await.begun().await.last_id;
    home.append(&session, &head, "before the restart").await;
    let home = home.reopened();
    let mut source = EventSource::open(&home, "/v1/events?types=entry", Some(&began)).await;
    assert_eq!(source.next().await.data["seq"], 2);
    // An id that this log never gave: begin anew, and say where everything stands.
    for (round, id) in ["999999", "no id", "18446744073709551615.3", "0.0.0"].into_iter().enumerate() {
        let mut lost = EventSource::open(&home, "/v1/events", Some(id)).await;
        let reset = lost.next().await;
        assert_eq!(reset.event, "reset", "{id}");
        let seq = 2 + round as u64;
        assert_eq!(reset.data["heads"][0]["seq"], seq, "{id}");
        let mut next = EventSource::open(&home, "/v1/events?types=entry", Some(&reset.id)).await;
        home.append(&session, reset.data["heads"][0]["head"].as_str().unwrap(), id).await;
        assert_eq!(next.next().await.data["seq"], seq + 1, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_hides_other_sessions() {
    let home = Home::new().await;
    let (wanted, head) = home.session("wanted").await;
    let (other, other_head) = home.session("other").await;
    let path = format!("/v1/events?session={wanted}&types=entry");
    let mut source = EventSource::open(&home, &path, None).await.begun().await;
    home.append(&other, &other_head, "not for you").await;
    home.append(&wanted, &head, "for you").await;
    let told = source.next().await;
    assert_eq!((&told.data["session"], &told.data["seq"]), (&json!(wanted), &json!(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_that_goes_on_is_told_by_its_id() {
    let home = Home::new().await;
    let mut source = EventSource::open(&home, "/v1/events?types=move", None).await.begun().await;
    let job = PutJob {
        kind: "move".to_owned(),
        id: vec![0xab; 16],
        expect: Expect::Absent,
        journal: Some(vec![1]),
        at: UnixMillis::new(1).unwrap(),
    };
    home.node.store().run(job).unwrap();
    let told = source.next().await;
    assert_eq!((told.event.as_str(), &told.data["move"]), ("move", &json!("ab".repeat(16))), "{}", told.data);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_that_changes_is_an_event() {
    let home = Home::new().await;
    let (session, _) = home.session("hello").await;
    let mut source = EventSource::open(&home, "/v1/events?types=verdict", None).await.begun().await;
    for server in ["server1", "server2"] {
        let to = throughline_protocol::testing::key(server).principal();
        let base = home.get(&format!("/v1/sessions/{session}/entries/1")).await.unwrap();
        assert_eq!(base["seq"], 1);
        let handoff = handoff_on_first(&home, &session, to).await;
        home.post_signed(&session, &handoff, None, &[]).await;
    }
    let told = source.next().await;
    assert_eq!((&told.data["from"], &told.data["to"]), (&json!("valid"), &json!("frozen")));
}

/// A handoff that stands on entry 1, whatever the tip is.
async fn handoff_on_first(
    home: &Home,
    session: &str,
    to: throughline_protocol::id::Principal,
) -> throughline_protocol::block::Signed<throughline_protocol::entry::Entry> {
    let entry = home.get(&format!("/v1/sessions/{session}/entries/1")).await.unwrap();
    let place = throughline_protocol::entry::Place {
        genesis: session.parse().unwrap(),
        prev: entry["cid"].as_str().unwrap().parse().unwrap(),
        seq: throughline_protocol::id::Seq::new(2).unwrap(),
        epoch: throughline_protocol::testing::epoch(1),
        skip: None,
    };
    let handoff = throughline_protocol::entry::Handoff { holder: Some(to), ..Default::default() };
    let entry = throughline_protocol::entry::Entry {
        ts: throughline_node::core::now(),
        signer: home.owner.principal(),
        authority: None,
        place: Some(place),
        body: throughline_protocol::entry::Body::Handoff(handoff),
        payload: None,
        ext: None,
    };
    throughline_protocol::build::sign(entry, &home.owner).unwrap()
}
