//! What a program states of things that are at hand is held to them before it is signed; what the node cannot see is taken.

use axum::http::Method;
use serde_json::{Value, json};
use throughline_node::api::client::Call;

use super::home::{Home, asking, code, of, response, trigger};

/// A session that goes on entry by entry.
struct Chain<'h> {
    home: &'h Home,
    session: String,
    head: String,
}

impl<'h> Chain<'h> {
    async fn begun(home: &'h Home) -> Self {
        let (session, head) = home.session("hello").await;
        Chain { home, session, head }
    }

    async fn post(&self, body: Value) -> (u16, Value) {
        let key = body.to_string().len().to_string() + &self.head;
        self.home.post_as(&format!("/v1/sessions/{}/entries", self.session), &key, &body).await
    }

    /// Appends; the CID of the new head.
    async fn goes_on(&mut self, entry: Value) -> String {
        let (status, answer) = self.post(json!({"base": self.head, "entry": entry})).await;
        assert_eq!(status, 201, "{entry}\n{answer}");
        self.head = of(&answer["head"], "cid");
        self.head.clone()
    }

    /// Is refused with this code and words that name what came, dry or not, and leaves nothing.
    async fn refuses(&self, entry: Value, expected: &str, words: &str) {
        let stats = self.home.node.reader().unwrap().stats().unwrap();
        for query in ["", "?dryRun=1"] {
            let path = format!("/v1/sessions/{}/entries{query}", self.session);
            let body = json!({"base": self.head, "entry": entry});
            let (status, refused) = self.home.post_as(&path, &format!("refused{query}"), &body).await;
            assert_eq!((status, code(&refused)), (422, expected), "{entry}\n{refused}");
            let detail = refused["detail"].as_str().unwrap();
            assert!(detail.contains(words), "{detail}");
            assert_eq!(refused["entry"], 0);
        }
        assert_eq!(self.home.node.reader().unwrap().stats().unwrap(), stats);
    }
}

fn call(id: &str, tool: &str, response: &str) -> Value {
    json!({"type": "SessionToolCall", "callId": id, "name": tool, "response": response})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_is_one_that_its_response_asked_for() {
    let home = Home::new().await;
    let mut chain = Chain::begun(&home).await;
    let message = chain.head.clone();
    let asked = chain.goes_on(asking(&[("c1", "bash")])).await;
    let nothing = throughline_protocol::id::EntryCid::of(b"nothing").to_string();
    for (response, words) in [
        (chain.session.as_str(), "entry 0, a SessionGenesis"),
        (message.as_str(), "entry 1, a SessionUserMessage"),
        (nothing.as_str(), "no entry of this session"),
    ] {
        chain.refuses(call("c1", "bash", response), "E_ANCESTOR", words).await;
    }
    chain.refuses(call("c2", "bash", &asked), "E_SCHEMA_TYPE", "got `c2`: response 2 asked for c1").await;
    chain.refuses(call("c1", "python", &asked), "E_SCHEMA_TYPE", "got `python`").await;
    // The response of another session is none of this one.
    let (other, head) = home.session("other").await;
    let body = json!({"base": head, "entry": asking(&[("c1", "bash")])});
    let (_, elsewhere) = home.post_as(&format!("/v1/sessions/{other}/entries"), "k", &body).await;
    let elsewhere = of(&elsewhere["head"], "cid");
    chain.refuses(call("c1", "bash", &elsewhere), "E_ANCESTOR", "no entry of this session").await;
    // What a response says in its words alone, it asked for.
    let mut unlisted = asking(&[("c3", "bash")]);
    unlisted.as_object_mut().unwrap().remove("calls");
    let unlisted = chain.goes_on(unlisted).await;
    chain.refuses(call("c4", "bash", &unlisted), "E_SCHEMA_TYPE", "asked for c3").await;
    chain.goes_on(call("c3", "bash", &unlisted)).await;
    let plain = chain.goes_on(response("no tools")).await;
    chain.refuses(call("c3", "bash", &plain), "E_SCHEMA_TYPE", "asked for no tool").await;
    chain.goes_on(call("c1", "bash", &asked)).await;
    assert_eq!(home.verdict(&chain.session).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_call_ends_once() {
    let home = Home::new().await;
    let mut chain = Chain::begun(&home).await;
    let asked = chain.goes_on(asking(&[("c1", "bash")])).await;
    let again = chain.goes_on(asking(&[("c1", "bash")])).await;
    let done = call("c1", "bash", &asked);
    // Both in one request: nothing is kept of either.
    let (status, refused) = chain.post(json!({"base": chain.head, "entries": [done, done]})).await;
    assert_eq!((status, code(&refused)), (422, "E_SCHEMA_EXCLUSIVE"), "{refused}");
    assert_eq!(refused["entry"], 1);
    let mut unknown = done.clone();
    unknown["outcome"] = "unknown".into();
    chain.goes_on(unknown.clone()).await;
    chain.refuses(unknown.clone(), "E_SCHEMA_EXCLUSIVE", "ended in entry 4 (unknown)").await;
    // What nobody knew may become known, once.
    chain.goes_on(done.clone()).await;
    chain.refuses(done, "E_SCHEMA_EXCLUSIVE", "ended in entry 5 (ok)").await;
    chain.refuses(unknown, "E_SCHEMA_EXCLUSIVE", "ended in entry 5 (ok)").await;
    // Providers' ids repeat: that of another response is another call.
    chain.goes_on(call("c1", "bash", &again)).await;
    assert_eq!(home.verdict(&chain.session).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_span_of_a_compaction_goes_forwards_and_holds_what_it_preserves() {
    let home = Home::new().await;
    let mut chain = Chain::begun(&home).await;
    let first = chain.head.clone();
    let second = chain.goes_on(response("one")).await;
    let third = chain.goes_on(response("two")).await;
    let span = |from: &str, to: &str, preserved: &[&str]| {
        let mut note =
            json!({"type": "SessionNote", "kind": "compaction", "from": from, "to": to, "summary": "s"});
        if !preserved.is_empty() {
            note["preserved"] = json!(preserved);
        }
        note
    };
    chain.refuses(span(&second, &first, &[]), "E_ANCESTOR", "got entry 2 and entry 1").await;
    chain.refuses(span(&second, &chain.session, &[]), "E_ANCESTOR", "got entry 2 and entry 0").await;
    chain.refuses(span(&first, &second, &[&second, &third]), "E_ANCESTOR", "entry 3").await;
    let nothing = throughline_protocol::id::EntryCid::of(b"nothing").to_string();
    chain.refuses(span(&first, &second, &[&nothing]), "E_ANCESTOR", "no entry of this session").await;
    chain.refuses(span(&first, &nothing, &[]), "E_ANCESTOR", "is no entry before this one").await;
    let session = chain.session.clone();
    chain.goes_on(span(&session, &third, &[&session, &second, &third])).await;
    chain.goes_on(span(&third, &third, &[])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_has_the_size_that_is_stated_and_a_name_that_is_no_path() {
    let home = Home::new().await;
    let mut chain = Chain::begun(&home).await;
    let small = b"hello world".to_vec();
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    for bytes in [small, large] {
        let length = bytes.len();
        let (_, stored) = home.told(Call::body(Method::POST, "/v1/blobs", "text/plain", bytes)).await;
        let cid = of(&stored, "cid");
        let file = |size: usize, name: &str| json!({"cid": cid, "size": size, "mediaType": "text/plain", "name": name});
        let media = |size: usize, name: &str| {
            let mut part = file(size, name);
            part["type"] = "media".into();
            part
        };
        let attached = |file: Value| {
            let mut message = trigger("see");
            message["attachments"] = json!([file]);
            message
        };
        let answered = |part: Value| {
            let mut answer = response("see");
            answer["content"] = json!([part]);
            answer
        };
        let words = format!("has {length} bytes, got 999");
        chain.refuses(attached(file(999, "a.txt")), "E_SCHEMA_LEN", &words).await;
        chain.refuses(answered(media(999, "a.txt")), "E_SCHEMA_LEN", &words).await;
        for name in ["../../etc/passwd", "/etc/passwd", "a/b", "..\\b", "..", "."] {
            chain.refuses(attached(file(length, name)), "E_SCHEMA_TEXT", name).await;
            chain.refuses(answered(media(length, name)), "E_SCHEMA_TEXT", name).await;
        }
        chain.goes_on(attached(file(length, "a..b.txt"))).await;
        chain.goes_on(answered(media(length, "a.txt"))).await;
    }
    let attached = |cid: throughline_protocol::id::Cid| {
        let mut message = trigger("see");
        message["attachments"] = json!([{"cid": cid.to_string(), "size": 5, "mediaType": "text/plain"}]);
        message
    };
    let absent = throughline_protocol::id::EntryCid::of(b"nothing").cid();
    let raw = throughline_protocol::id::Codec::Raw;
    let file = throughline_protocol::id::Cid::sha256(raw, b"nothing");
    let path = format!("/v1/sessions/{}/entries", chain.session);
    let body = json!({"base": chain.head, "entry": attached(file)});
    let (status, refused) = home.post_as(&path, "absent", &body).await;
    assert_eq!((status, code(&refused)), (400, "E_INPUT_NOT_FOUND"), "{refused}");
    chain.refuses(attached(absent), "E_CID_CODEC", &absent.to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_id_stands_once_in_a_message_also_in_the_first() {
    let home = Home::new().await;
    let chain = Chain::begun(&home).await;
    let block =
        |id: &str, children: Value| json!({"id": id, "type": "Paragraph", "text": "t", "children": children});
    let twice = json!({
        "type": "SessionUserMessage", "origin": "trigger",
        "body": [block("b1", json!([block("b2", json!([]))])), block("b2", json!([]))],
    });
    chain.refuses(twice.clone(), "E_SCHEMA_EXCLUSIVE", "`b2` twice").await;
    // The first entry of a session and of a draft pass the same line.
    let (status, refused) = home.post_as("/v1/sessions", "first", &json!({"firstEntry": twice})).await;
    assert_eq!((status, code(&refused)), (422, "E_SCHEMA_EXCLUSIVE"), "{refused}");
    let (_, draft) = home.post_as("/v1/sessions", "draft", &json!({"title": "Draft"})).await;
    let session = of(&draft, "session");
    let orphan = call("c1", "bash", &session);
    for (key, entry, expected) in [("a", twice, "E_SCHEMA_EXCLUSIVE"), ("b", orphan, "E_ANCESTOR")] {
        let path = format!("/v1/sessions/{session}/entries");
        let (status, refused) = home.post_as(&path, key, &json!({"entry": entry})).await;
        assert_eq!((status, code(&refused)), (422, expected), "{refused}");
    }
}
