//! The story, first half: from a transcript on one server to the same sessions carried on by another.

use serde_json::{Value, json};

use super::actor::Actor;
use super::facts::{at, await_grants, hold, list, number, text};
use super::stage::Stage;
use super::{Line, Transcript, aftermath};
use crate::api::client::Call;
use crate::api::error::Answer;
use crate::cli::format;

/// Where the story stands.
pub(super) struct Plot<'a> {
    /// The four nodes.
    pub(super) stage: &'a mut Stage,
    /// The account that owns both sessions.
    pub(super) owner: String,
    /// The imported session, published.
    pub(super) imported: String,
    /// The session that server A worked on when it was killed.
    pub(super) interrupted: String,
    tell: &'a mut dyn FnMut(Line<'_>),
}

impl Plot<'_> {
    /// Tells a line.
    pub(super) fn tell(&mut self, label: &str, text: &str) {
        (self.tell)(Line { label, text });
    }
}

/// Plays the story and answers with its figures.
pub(super) async fn play(
    stage: &mut Stage,
    transcript: &Transcript,
    tell: &mut dyn FnMut(Line<'_>),
) -> Answer<Value> {
    let owner = set_up(stage).await?;
    let mut plot = Plot { stage, owner, imported: String::new(), interrupted: String::new(), tell };
    let dir = plot.stage.dir().display().to_string();
    plot.tell(
        "started",
        &format!("server-a, server-b, desktop and stranger, four processes on loopback in {dir}"),
    );
    let import = import(&mut plot, transcript).await?;
    let publish = publish(&mut plot).await?;
    let moved = move_online(&mut plot).await?;
    let offline = move_offline(&mut plot).await?;
    let continued = carry_on(&mut plot).await?;
    let revoke = aftermath::revoke(&mut plot).await?;
    let refused = aftermath::append_at_a(&mut plot).await?;
    let forged = aftermath::forge(&mut plot).await?;
    let (verify, audit) = aftermath::audit(&mut plot).await?;
    let tamper = aftermath::tamper(&mut plot).await?;
    Ok(json!({
        "v": 1, "kind": "demo", "import": import, "publish": publish, "move": moved, "offlineMove": offline,
        "continued": continued, "revoke": revoke, "refused": refused, "forged": forged, "verify": verify,
        "audit": audit, "tamper": tamper,
    }))
}

/// Keys for all, four processes, peers by their tickets, grants by the owner. Answers with the owner.
async fn set_up(stage: &mut Stage) -> Answer<String> {
    let init =
        stage.desktop.done(&["init", "--role", "desktop", "--owner", "new", "--no-passphrase"]).await?;
    let owner = text(&init, "/owner/principal")?.to_owned();
    for server in [&stage.server_a, &stage.server_b] {
        server.done(&["init", "--role", "server", "--owner", &owner]).await?;
    }
    stage.stranger.done(&["init", "--owner", "none"]).await?;
    for node in [&mut stage.server_a, &mut stage.server_b, &mut stage.desktop, &mut stage.stranger] {
        node.serve().await?;
    }
    introduce(stage).await?;
    let agent = format!("hm://{owner}/claude-code");
    for server in [&stage.server_a, &stage.server_b] {
        stage.desktop.done(&["grant", server.name(), "--agent", &agent, "--role", "writer"]).await?;
        await_grants(&server.api(), &principal_of(server).await?, "active").await?;
    }
    Ok(owner)
}

/// The principal that a node signs as.
pub(super) async fn principal_of(node: &Actor) -> Answer<String> {
    let shown = node.api().ask(Call::get("/v1/node")).await?;
    text(&shown, "/principal").map(str::to_owned)
}

/// Makes the owner's nodes know each other. The stranger knows server B only.
async fn introduce(stage: &Stage) -> Answer<()> {
    let owned = [&stage.server_a, &stage.server_b, &stage.desktop];
    for node in owned {
        let id = node.done(&["id"]).await?;
        let ticket = text(&id, "/ticket")?;
        for other in owned {
            if other.name() != node.name() {
                other.done(&["peer", "add", node.name(), ticket]).await?;
            }
        }
        if node.name() == stage.server_b.name() {
            stage.stranger.done(&["peer", "add", node.name(), ticket]).await?;
        }
    }
    Ok(())
}

/// Server A imports the transcript, so it holds epoch 0; the desktop fetches the session and anchors it.
async fn import(plot: &mut Plot<'_>, transcript: &Transcript) -> Answer<Value> {
    let path = plot.stage.path("transcript.jsonl");
    std::fs::write(&path, &transcript.bytes).map_err(|error| {
        crate::api::error::Problem::new(throughline_protocol::code::Code::StoreIo, error.to_string())
    })?;
    let agent = format!("hm://{}/claude-code", plot.owner);
    let path = path.display().to_string();
    let imported =
        plot.stage.server_a.done(&["import", &path, "--format", "claude-code", "--agent", &agent]).await?;
    let source = at(&imported, "/sources/0")?;
    plot.imported = text(source, "/session")?.to_owned();
    let entries = number(source, "/head/seq")? + 1;
    let lost = list(source, "/skipped")?.len();
    plot.tell(
        "imported",
        &format!(
            "{}   {} -> {}, {}, {} lost",
            transcript.name,
            format::count(number(source, "/lines")?, "line", "lines"),
            format::count(entries, "entry", "entries"),
            format::count(number(source, "/attachments")?, "attachment", "attachments"),
            format::count(lost as u64, "line", "lines"),
        ),
    );
    let fetched = plot.stage.desktop.done(&["fetch", &plot.imported, "--from", "server-a"]).await?;
    // As a device of the owner the desktop may have followed the session and anchored it already; then this signs nothing.
    let anchored = plot.stage.desktop.done(&["anchor", &plot.imported]).await?;
    let through = number(&fetched, "/validThrough/seq")?;
    plot.tell(
        "anchored",
        &format!("on the owner's desktop, which fetched and verified it: seq 0..{through}"),
    );
    Ok(json!({
        "file": transcript.name, "lines": source["lines"], "session": plot.imported, "entries": entries,
        "attachments": source["attachments"], "skipped": source["skipped"], "head": source["head"],
        "fetched": fetched["transfer"], "anchored": anchored,
    }))
}

async fn publish(plot: &mut Plot<'_>) -> Answer<Value> {
    let published = plot.stage.desktop.done(&["publish", &plot.imported, "--yes"]).await?;
    plot.tell("published", "by the owner: anyone may fetch it now");
    Ok(published)
}

/// Both servers are up: freeze, copy, verify, prepare, sign, activate, retire.
async fn move_online(plot: &mut Plot<'_>) -> Answer<Value> {
    let moved = plot.stage.desktop.done(&["move", &plot.imported, "--to", "server-b", "--yes"]).await?;
    tell_move(plot, &moved)?;
    Ok(moved)
}

fn tell_move(plot: &mut Plot<'_>, moved: &Value) -> Answer<()> {
    hold(moved["state"] == "done", "the move to be done", moved)?;
    let line = format!(
        "server-a -> server-b   {}, {}, {}   epoch {} -> {}",
        format::count(number(moved, "/sent/entries")?, "entry", "entries"),
        format::bytes(number(moved, "/sent/bytes")?),
        format::elapsed(number(moved, "/elapsedMs")?),
        number(moved, "/from/epoch")?,
        number(moved, "/to/epoch")?,
    );
    plot.tell("moved", &line);
    Ok(())
}

/// A second session, whose server dies between a response that asks for a tool and the call's result.
async fn move_offline(plot: &mut Plot<'_>) -> Answer<Value> {
    let api = plot.stage.server_a.api();
    let begin = json!({
        "agent": format!("hm://{}/claude-code", plot.owner),
        "title": "Fix the login test",
        "firstEntry": {
            "type": "SessionUserMessage", "origin": "trigger",
            "body": [{"id": "b1", "type": "Paragraph", "text": "make the login test pass", "children": []}],
        },
    });
    let begin = Call::post("/v1/sessions", &begin).header("idempotency-key", "demo-begin");
    plot.interrupted = text(&api.ask(begin).await?, "/session")?.to_owned();
    let session = plot.interrupted.clone();
    let asked =
        append(&api, &session, "demo-ask", &response("I will run the tests first.", Some("c1"))).await?;
    plot.stage.desktop.done(&["fetch", &session, "--from", "server-a"]).await?;
    plot.stage.server_a.kill().await?;
    let seq = number(&asked, "/head/seq")?;
    plot.tell(
        "killed",
        &format!(
            "server-a, with SIGKILL, between two appends of a second session (seq {seq}: a tool call is open)"
        ),
    );
    let args = ["move", &session, "--to", "server-b", "--source", "offline", "--yes"];
    let moved = plot.stage.desktop.done(&args).await?;
    tell_move(plot, &moved)?;
    Ok(moved)
}

/// Server B carries both sessions on: a recorded response, then the result of the call it asked for.
async fn carry_on(plot: &mut Plot<'_>) -> Answer<Value> {
    let api = plot.stage.server_b.api();
    let mut report = Vec::new();
    for session in [plot.imported.clone(), plot.interrupted.clone()] {
        let asked =
            append(&api, &session, "demo-go-on", &response("Carrying on from here.", Some("c2"))).await?;
        let call = json!({
            "type": "SessionToolCall", "callId": "c2", "name": "bash", "response": text(&asked, "/head/cid")?,
            "input": "{\"command\":\"cargo test\"}", "output": "\"test result: ok. 12 passed\"", "durationMs": 2310,
        });
        let done = append(&api, &session, "demo-tool", &call).await?;
        report.push(json!({"session": session, "head": done["head"], "epoch": done["epoch"]}));
    }
    let seqs = [number(&report[0], "/head/seq")?, number(&report[1], "/head/seq")?];
    let line = format!(
        "both on server-b, a model response and a tool call each: now at seq {} and seq {}",
        seqs[0], seqs[1]
    );
    plot.tell("continued", &line);
    Ok(report.into())
}

/// A recorded model response; with `call_id` it asks for a shell command.
pub(super) fn response(words: &str, call_id: Option<&str>) -> Value {
    let mut content = vec![json!({"type": "text", "text": words})];
    content.extend(call_id.map(|id| {
        json!({"type": "toolCall", "callId": id, "name": "bash", "input": "{\"command\":\"cargo test\"}"})
    }));
    let calls: Vec<Value> = call_id.iter().map(|id| json!({"callId": id, "name": "bash"})).collect();
    let mut entry = json!({
        "type": "SessionModelResponse", "model": {"provider": "anthropic", "id": "claude-x", "api": "messages"},
        "content": content, "usage": {"input": 812, "output": 40},
        "stopReason": if call_id.is_some() { "tool_use" } else { "end_turn" },
    });
    if !calls.is_empty() {
        entry["calls"] = calls.into();
    }
    entry
}

/// Appends through a node's API as an agent server does: on the base that the node tells.
pub(super) async fn append(
    api: &crate::api::client::Client,
    session: &str,
    key: &str,
    entry: &Value,
) -> Answer<Value> {
    let base = api.ask(Call::get(&format!("/v1/sessions/{session}/base"))).await?;
    let body = json!({"base": text(&base, "/prev")?, "entry": entry});
    let path = format!("/v1/sessions/{session}/entries");
    api.ask(Call::post(&path, &body).header("idempotency-key", format!("{key}-{session}"))).await
}
