//! Transcripts: in whole, once, growing, cut off.

use axum::http::Method;
use serde_json::{Value, json};
use throughline_examples::{CLAUDE_CODE, CLAUDE_CODE_EXPECTED, HALF_LINE};
use throughline_node::api::client::Call;
use throughline_protocol::block::Signed;
use throughline_protocol::control::{Control, Role};
use throughline_protocol::sign::VerifyingKeys;

use super::home::{Home, of};

const PATH: &str = "/v1/import?format=claude-code&path=claude-code.jsonl";

async fn import(home: &Home, bytes: &[u8]) -> Value {
    home.send(PATH, "application/jsonl", bytes.to_vec()).await.unwrap()
}

/// Entries by kind, of the session and its sub-sessions.
fn expected_counts() -> Value {
    let expected: Value = serde_json::from_str(CLAUDE_CODE_EXPECTED).unwrap();
    let mut total = serde_json::Map::new();
    let sessions = std::iter::once(&expected).chain(expected["subSessions"].as_array().unwrap());
    for (kind, count) in sessions.flat_map(|session| session["entries"].as_object().unwrap()) {
        let sum = total.get(kind).and_then(Value::as_u64).unwrap_or(0) + count.as_u64().unwrap();
        total.insert(kind.clone(), sum.into());
    }
    total.into()
}

/// What a store holds that an import may change.
fn held(home: &Home) -> throughline_store::Stats {
    home.node.reader().unwrap().stats().unwrap()
}

/// A session with lines like a long recording's.
fn long_recording(lines: usize) -> Vec<u8> {
    let mut out = String::new();
    let mut parent = Value::Null;
    for at in 0..lines {
        let uuid = format!("00000000-0000-4000-8000-{at:012}");
        let line = json!({
            "parentUuid": parent, "isSidechain": false, "userType": "external", "cwd": "/w", "sessionId": "5e55",
            "version": "2.0.0", "type": "user", "message": {"role": "user", "content": format!("line {at}")},
            "uuid": uuid, "timestamp": format!("2026-01-01T00:{:02}:{:02}.000Z", at / 60 % 60, at % 60),
        });
        out.push_str(&format!("{line}\n"));
        parent = uuid.into();
    }
    out.into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_comes_in_whole_and_once() {
    let home = Home::new().await;
    let before = held(&home);
    let dry =
        home.send(&format!("{PATH}&dryRun=1"), "application/jsonl", CLAUDE_CODE.to_vec()).await.unwrap();
    assert_eq!(held(&home), before, "a dry run stores nothing");
    let made = import(&home, CLAUDE_CODE).await;
    let (dry, source) = (&dry["sources"][0], &made["sources"][0]);
    assert_eq!(
        (&dry["session"], &dry["head"], &dry["entries"]),
        (&source["session"], &source["head"], &source["entries"])
    );
    let expected: Value = serde_json::from_str(CLAUDE_CODE_EXPECTED).unwrap();
    for field in ["lines", "tally", "attachments", "skipped", "repaired"] {
        assert_eq!(source[field], expected[field], "{field}");
    }
    assert_eq!(source["entries"], expected_counts());
    assert_eq!((&made["anchored"], &source["created"]), (&json!(true), &json!(true)));
    let session = of(source, "session");
    assert_eq!(home.verdict(&session).await, "valid");
    let shown = home.get(&format!("/v1/sessions/{session}")).await.unwrap();
    assert_eq!(
        (&shown["anchoredThrough"], &shown["tip"]["cid"]),
        (&shown["tip"]["seq"], &source["head"]["cid"])
    );
    for sub in source["subSessions"].as_array().unwrap() {
        assert_eq!(home.verdict(sub.as_str().unwrap()).await, "valid");
    }
    // Every byte of the source is somewhere.
    let kept = home.client.fetch(Call::get(&format!("/v1/blobs/{}", of(source, "fileCid")))).await.unwrap();
    assert!(kept == CLAUDE_CODE);

    let after = held(&home);
    let again = import(&home, CLAUDE_CODE).await;
    assert_eq!(
        (&again["sources"][0]["created"], &again["sources"][0]["entries"]),
        (&json!(false), &json!({}))
    );
    assert_eq!(again["sources"][0]["head"], source["head"]);
    assert_eq!(again["anchored"], true);
    assert_eq!(held(&home), after, "a second import changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_grew_adds_only_what_is_new() {
    let home = Home::new().await;
    let lines: Vec<&[u8]> = CLAUDE_CODE.split_inclusive(|byte| *byte == b'\n').collect();
    let mut last: Option<Value> = None;
    for until in [10, 11, 40, lines.len()] {
        let made = import(&home, &lines[..until].concat()).await;
        let source = made["sources"][0].clone();
        if let Some(last) = &last {
            assert_eq!(source["session"], last["session"]);
            assert!(source["head"]["seq"].as_u64() >= last["head"]["seq"].as_u64());
            let old = home
                .get(&format!("/v1/sessions/{}/entries/{}", of(last, "session"), of(&last["head"], "cid")))
                .await
                .unwrap();
            assert_eq!(old["status"], "valid", "what was imported stays");
        }
        last = Some(source);
    }
    let session = of(&last.unwrap(), "session");
    assert_eq!(home.verdict(&session).await, "valid");
    assert_eq!(home.node.reader().unwrap().side_entries(session.parse().unwrap(), None, 10).unwrap(), []);
    let events = held(&home).newest_event;
    import(&home, CLAUDE_CODE).await;
    assert_eq!(held(&home).newest_event, events);
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_others_between_two_imports_do_not_disturb() {
    let home = Home::new().await;
    let lines: Vec<&[u8]> = CLAUDE_CODE.split_inclusive(|byte| *byte == b'\n').collect();
    let made = import(&home, &lines[..40].concat()).await;
    let session = of(&made["sources"][0], "session");
    let (entry, payload) = home.message(&session, &home.owner, None, super::home::says("in between")).await;
    assert_eq!(home.post_signed(&session, &entry, Some(&payload), &[]).await.0, 201);
    let grown = import(&home, CLAUDE_CODE).await;
    assert_eq!(of(&grown["sources"][0], "session"), session);
    assert_eq!(home.verdict(&session).await, "valid");
    // An edited copy is another source, and never mixes with the first.
    let edited = String::from_utf8(CLAUDE_CODE.to_vec()).unwrap().replacen("login", "logout", 1);
    let other = import(&home, edited.as_bytes()).await;
    assert_ne!(of(&other["sources"][0], "session"), session);
    assert_eq!(home.verdict(&of(&other["sources"][0], "session")).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_in_several_batches_is_remembered() {
    // 499 messages make the genesis, the messages and the note at the end 501 entries; 498 make exactly one batch.
    for lines in [497, 498, 499, 1_200] {
        let home = Home::new().await;
        let recording = long_recording(lines);
        let made = import(&home, &recording).await;
        let session = of(&made["sources"][0], "session");
        let after = held(&home);
        let again = import(&home, &recording).await;
        assert_eq!(
            (&again["sources"][0]["head"], held(&home)),
            (&made["sources"][0]["head"], after),
            "{lines}"
        );
        let grown = import(&home, &long_recording(lines + 3)).await;
        assert_eq!(of(&grown["sources"][0], "session"), session, "{lines}: the run was remembered");
        assert_eq!(grown["sources"][0]["entries"]["userMessage"], 3, "{lines}");
        assert_eq!(home.verdict(&session).await, "valid");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_cut_off_goes_on() {
    let recording = long_recording(1_200);
    // What a crash leaves: the first batches and no record of the run.
    let whole = Home::new().await;
    let made = import(&whole, &recording).await;
    let session = of(&made["sources"][0], "session");
    let whole_entries: Vec<_> = {
        let reader = whole.node.reader().unwrap();
        let tip = reader.session(session.parse().unwrap()).unwrap().unwrap().tip.seq;
        let entries =
            reader.entries(session.parse().unwrap(), throughline_protocol::id::Seq::ZERO, tip).unwrap();
        entries.map(|entry| entry.unwrap().cid).collect()
    };
    let home = whole.cut_off_after(&session, 700);
    assert_eq!(home.get(&format!("/v1/sessions/{session}")).await.unwrap()["tip"]["seq"], 700);
    let again = import(&home, &recording).await;
    assert_eq!(of(&again["sources"][0], "session"), session);
    let reader = home.node.reader().unwrap();
    let tip = reader.session(session.parse().unwrap()).unwrap().unwrap().tip.seq;
    let entries = reader.entries(session.parse().unwrap(), throughline_protocol::id::Seq::ZERO, tip).unwrap();
    let now: Vec<_> = entries.map(|entry| entry.unwrap().cid).collect();
    assert_eq!(now, whole_entries, "the same entries as if nothing had happened");
    assert_eq!(home.verdict(&session).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_cut_in_half_is_told_and_kept() {
    let home = Home::new().await;
    let made =
        home.send("/v1/import?path=half-line.jsonl", "application/jsonl", HALF_LINE.to_vec()).await.unwrap();
    let source = &made["sources"][0];
    assert_eq!(source["skipped"][0]["line"], 3);
    assert_eq!(source["skipped"][0]["reason"], "E_JSON");
    assert_eq!(home.verdict(&of(source, "session")).await, "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_transcript_is_refused() {
    let home = Home::new().await;
    let before = held(&home);
    for bytes in [&b""[..], b"\n\n", b"{}\n", b"not json at all", &[0xff; 100]] {
        let refused = home.send(PATH, "application/jsonl", bytes.to_vec()).await.unwrap_err();
        assert_eq!(refused.code().name(), "E_INPUT_FORMAT", "{bytes:?}");
    }
    let refused =
        home.send("/v1/import?format=nothing", "application/jsonl", CLAUDE_CODE.to_vec()).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_API_QUERY");
    assert_eq!(held(&home), before);
    // Without the device grant the answer says what the owner has to anchor.
    let server = Home::bare().await;
    server.grant(server.node.principal(), Role::Writer).await;
    let made = import(&server, CLAUDE_CODE).await;
    assert_eq!(made["anchored"], false);
    let session = of(&made["sources"][0], "session");
    server.anchor(&session, &made["anchor"]).await.unwrap();
    let shown = server.get(&format!("/v1/sessions/{session}")).await.unwrap();
    assert_eq!(shown["anchoredThrough"], shown["tip"]["seq"]);
    let call = Call::body(Method::POST, PATH, "application/jsonl", CLAUDE_CODE.to_vec());
    assert_eq!(server.told(call).await.1["anchored"], true);
}

/// A home whose store is gone, with the very grants that it had.
fn lost_and_granted_again(home: Home) -> Home {
    let mut keys = VerifyingKeys::default();
    let held = home.node.reader().unwrap().controls_of_owner(home.owner.principal()).unwrap();
    let controls =
        held.into_iter().map(|bytes| Signed::<Control>::check(bytes, &mut keys).unwrap()).collect();
    let home = home.without_store();
    home.node.take_controls(controls).unwrap();
    home
}

#[tokio::test(flavor = "multi_thread")]
async fn what_may_have_been_signed_in_another_life_is_not_signed_again() {
    let lines: Vec<&[u8]> = CLAUDE_CODE.split_inclusive(|byte| *byte == b'\n').collect();
    let home = Home::new().await;
    let made = import(&home, CLAUDE_CODE).await;
    assert_eq!(made["sources"][0]["elsewhere"], json!([]));
    let session = of(&made["sources"][0], "session");

    // The disk is lost, the keys are kept and the grants are fetched again: under the first salts every byte would be the
    // same. Whatever this key signed after the import, nobody here knows.
    let home = lost_and_granted_again(home);
    let dry =
        home.send(&format!("{PATH}&dryRun=1"), "application/jsonl", CLAUDE_CODE.to_vec()).await.unwrap();
    let again = import(&home, CLAUDE_CODE).await;
    let other = of(&again["sources"][0], "session");
    assert_ne!(other, session, "another session, so no entry stands beside one that was signed before");
    assert_eq!(of(&dry["sources"][0], "session"), other);
    let elsewhere: Vec<&str> =
        again["sources"][0]["elsewhere"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    assert!(elsewhere.contains(&session.as_str()), "{elsewhere:?}");
    let subs = |made: &Value| made["sources"][0]["subSessions"].as_array().unwrap().clone();
    assert!(!subs(&again).is_empty());
    assert!(subs(&again).iter().all(|sub| !subs(&made).contains(sub)));
    assert_eq!(home.verdict(&other).await, "valid");
    // Here it is remembered as any import is, and goes on as the file grows.
    let after = held(&home);
    let third = import(&home, CLAUDE_CODE).await;
    assert_eq!((of(&third["sources"][0], "session"), held(&home)), (other.clone(), after));

    // A file that grew since is no fork either.
    let home = Home::new().await;
    let made = import(&home, &lines[..40].concat()).await;
    let home = lost_and_granted_again(home);
    let grown = import(&home, &lines[..60].concat()).await;
    assert_ne!(of(&grown["sources"][0], "session"), of(&made["sources"][0], "session"));
    let whole = import(&home, CLAUDE_CODE).await;
    assert_eq!(of(&whole["sources"][0], "session"), of(&grown["sources"][0], "session"));
    assert_eq!(home.verdict(&of(&whole["sources"][0], "session")).await, "valid");
}

/// One line of a transcript.
fn line(uuid: &str, parent: &str, agent: Option<&str>, kind: &str, message: &Value, more: &Value) -> String {
    let parent = if parent.is_empty() { Value::Null } else { parent.into() };
    let mut line = json!({
        "parentUuid": parent, "isSidechain": agent.is_some(), "userType": "external", "cwd": "/w", "sessionId": "5e55",
        "version": "2.1.0", "type": kind, "message": message, "uuid": uuid, "timestamp": "2026-01-01T00:00:00.000Z",
    });
    if let Some(agent) = agent {
        line["agentId"] = agent.into();
    }
    for (key, value) in more.as_object().into_iter().flatten() {
        line[key] = value.clone();
    }
    format!("{line}\n")
}

/// A person's words.
fn says(uuid: &str, parent: &str, agent: Option<&str>, words: &str) -> String {
    line(uuid, parent, agent, "user", &json!({"role": "user", "content": words}), &json!({}))
}

/// A response that starts a sub-agent.
fn starts(uuid: &str, parent: &str, agent: Option<&str>, call: &str) -> String {
    let call = json!({"type": "tool_use", "id": call, "name": "Task", "input": {"prompt": "look"}});
    let message = json!({
        "id": format!("msg_{uuid}"), "type": "message", "role": "assistant", "model": "claude-x", "content": [call],
        "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1},
    });
    line(uuid, parent, agent, "assistant", &message, &json!({}))
}

/// What a sub-agent gave back.
fn gives(uuid: &str, parent: &str, agent: Option<&str>, call: &str, sub: &str) -> String {
    let result = json!([{"type": "tool_result", "tool_use_id": call, "content": "seen"}]);
    let message = json!({"role": "user", "content": result});
    line(
        uuid,
        parent,
        agent,
        "user",
        &message,
        &json!({"toolUseResult": {"agentId": sub, "status": "completed"}}),
    )
}

/// A transcript with three sub-agents in files of their own: one that it shows, one that the first one started, and one that nobody
/// has heard of yet.
fn with_agents() -> (String, Vec<(&'static str, String)>) {
    let main = says("u1", "", None, "begin")
        + &starts("a1", "u1", None, "T1")
        + &gives("r1", "a1", None, "T1", "one");
    let one = says("s1", "", Some("one"), "look")
        + &starts("s2", "s1", Some("one"), "T2")
        + &gives("s3", "s2", Some("one"), "T2", "two");
    let two = says("t1", "", Some("two"), "look deeper");
    let new = says("n1", "", Some("new"), "not there yet");
    (main, vec![("new", new), ("one", one), ("two", two)])
}

async fn import_all(home: &Home, main: &str, agents: &[(&str, String)], more: &str) -> Value {
    let list: Vec<String> = agents.iter().map(|(name, file)| format!("{name}:{}", file.len())).collect();
    let path = format!("{PATH}&subAgents={}{more}", list.join(","));
    let body: String = agents.iter().map(|(_, file)| file.as_str()).chain([main]).collect();
    home.send(&path, "application/jsonl", body.into_bytes()).await.unwrap()
}

/// The entries of a session as the API shows them.
async fn entries(home: &Home, session: &str) -> Vec<Value> {
    let log = home.get(&format!("/v1/sessions/{session}/entries?limit=100")).await.unwrap();
    log["items"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_in_files_of_their_own_come_along_once() {
    let home = Home::new().await;
    let (main, agents) = with_agents();
    let before = held(&home);
    let dry = import_all(&home, &main, &agents, "&dryRun=1").await;
    assert_eq!(held(&home), before, "a dry run stores nothing");
    let made = import_all(&home, &main, &agents, "").await;
    let source = |made: &Value, name: Value| {
        let mut sources = made["sources"].as_array().unwrap().iter();
        sources.find(|source| source["agent"] == name).unwrap().clone()
    };
    let [top, one, two, new] =
        [json!(null), json!("one"), json!("two"), json!("new")].map(|name| source(&made, name));
    for (told, name) in
        [(&top, json!(null)), (&one, json!("one")), (&two, json!("two")), (&new, json!("new"))]
    {
        assert_eq!(source(&dry, name)["session"], told["session"], "a dry run tells what comes");
        assert_eq!(home.verdict(&of(told, "session")).await, "valid");
    }
    assert_eq!(one["path"], "claude-code/subagents/agent-one.jsonl");
    assert_eq!((&one["lines"], &top["lines"], &made["lost"]), (&json!(3), &json!(3), &json!([])));
    assert_eq!(one["parent"]["session"], top["session"]);
    assert_eq!(two["parent"]["session"], one["session"], "a sub-agent of a sub-agent");
    assert_eq!(new["parent"], json!(null), "nobody started it as far as the transcript goes");
    assert_eq!(top["subSessions"].as_array().unwrap().len(), 3);

    // The links stand in the log: the call names the session, the session the response.
    let top_log = entries(&home, &of(&top, "session")).await;
    let call = top_log.iter().find(|entry| entry["type"] == "SessionToolCall").unwrap();
    assert_eq!(
        call["body"]["child"].as_str().or(call["child"].as_str()),
        one["session"].as_str(),
        "{call:#}"
    );

    // Again: nothing. The one that was new is shown meanwhile, and one grew.
    let after = held(&home);
    let again = import_all(&home, &main, &agents, "").await;
    assert_eq!(held(&home), after);
    assert!(
        again["sources"].as_array().unwrap().iter().all(|source| source["entries"] == json!({})),
        "{again:#}"
    );
    let main = main + &starts("a2", "r1", None, "T3") + &gives("r2", "a2", None, "T3", "new");
    let mut agents = agents;
    agents[1].1 += &says("s4", "s3", Some("one"), "and more");
    let grown = import_all(&home, &main, &agents, "").await;
    for (told, name) in
        [(&top, json!(null)), (&one, json!("one")), (&two, json!("two")), (&new, json!("new"))]
    {
        assert_eq!(source(&grown, name)["session"], told["session"]);
    }
    assert_eq!(source(&grown, json!("one"))["entries"]["userMessage"], 1);
    assert_eq!(source(&grown, json!("two"))["entries"], json!({}));
    let top_log = entries(&home, &of(&top, "session")).await;
    let call = top_log.iter().rfind(|entry| entry["type"] == "SessionToolCall").unwrap();
    assert_eq!(
        call["body"]["child"].as_str().or(call["child"].as_str()),
        new["session"].as_str(),
        "{call:#}"
    );
    for told in [&top, &one] {
        assert_eq!(home.verdict(&of(told, "session")).await, "valid");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_sub_agent_is_told_and_the_rest_comes_in() {
    let home = Home::new().await;
    let (main, mut agents) = with_agents();
    agents[2].1 = "no transcript\n".to_owned();
    // Two that name each other are no endless loop.
    agents[0].1 += &(starts("n2", "n1", Some("new"), "T9") + &gives("n3", "n2", Some("new"), "T9", "one"));
    let made = import_all(&home, &main, &agents, "").await;
    assert_eq!(made["sources"].as_array().unwrap().len(), 3);
    assert_eq!(made["lost"][0]["code"], "E_INPUT_FORMAT");
    assert_eq!(made["lost"][0]["path"], "claude-code/subagents/agent-two.jsonl");
    for (list, code) in [
        ("one", "E_API_QUERY"),
        ("../one:3", "E_API_QUERY"),
        ("one:x", "E_API_QUERY"),
        ("one:3,one:3", "E_API_BODY"),
        ("one:99999999", "E_API_BODY"),
    ] {
        let path = format!("{PATH}&subAgents={list}");
        let refused = home.send(&path, "application/jsonl", b"abcdef{}".to_vec()).await.unwrap_err();
        assert_eq!(refused.code().name(), code, "{list}");
    }
}
