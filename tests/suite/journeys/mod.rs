//! The acceptance checks, by number, run against real processes: what a user types, what an agent server posts, and what
//! both must get back.
//!
//! Times are printed and never asserted; a wait ends with an event. A module for each theme, a test for each check.

mod append;
mod authority;
mod bad_inputs;
mod damage;
pub(crate) mod fixtures;
mod forking;
mod import;
mod local_api;
mod moving;
mod start;
mod telling;
mod verifying;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use throughline_testnet::{Home, Lab, Node, Reply, Request};

/// A lab for the binary that was built beside this suite.
pub(crate) fn lab() -> Result<Lab> {
    Lab::new(env!("CARGO_BIN_EXE_throughline-under-test"))
}

/// A home with an owner key in the clear, and the owner.
pub(crate) fn owner_home(lab: &Lab, name: &str) -> Result<(Home, String)> {
    let home = lab.home(name);
    home.configure()?;
    let init = home.json(&["init", "--role", "desktop", "--owner", "new", "--no-passphrase"])?;
    Ok((home, text(&init, "/owner/principal")?.to_owned()))
}

/// The home of a node without an owner key: a server of `owner`, or of nobody yet.
pub(crate) fn plain_home(lab: &Lab, name: &str, owner: &str) -> Result<Home> {
    let home = lab.home(name);
    home.configure()?;
    home.json(&["init", "--role", "server", "--owner", owner])?;
    Ok(home)
}

/// The text at a pointer.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str> {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .with_context(|| format!("expected text at {pointer} in {value}"))
}

/// The number at a pointer.
pub(crate) fn number(value: &Value, pointer: &str) -> Result<u64> {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .with_context(|| format!("expected a number at {pointer} in {value}"))
}

/// The list at a pointer.
pub(crate) fn list<'a>(value: &'a Value, pointer: &str) -> Result<&'a [Value]> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.map(Vec::as_slice).with_context(|| format!("expected a list at {pointer} in {value}"))
}

/// The owner's desktop and two servers, all running, introduced to each other and granted.
pub(crate) struct World {
    pub(crate) lab: Lab,
    pub(crate) owner: String,
    pub(crate) desktop: Node,
    pub(crate) server_a: Node,
    pub(crate) server_b: Node,
}

impl World {
    /// Both servers have a writer grant.
    pub(crate) fn new() -> Result<Self> {
        let world = World::without_grants()?;
        for server in ["server-a", "server-b"] {
            world.desktop.home().json(&["grant", server, "--agent", &world.agent()])?;
        }
        await_grant(&world.server_a)?;
        await_grant(&world.server_b)?;
        Ok(world)
    }

    /// Nobody but the desktop may write yet.
    pub(crate) fn without_grants() -> Result<Self> {
        let lab = lab()?;
        let (desktop, owner) = owner_home(&lab, "desktop")?;
        let server_a = plain_home(&lab, "server-a", &owner)?.serve()?;
        let server_b = plain_home(&lab, "server-b", &owner)?.serve()?;
        let world = World { desktop: desktop.serve()?, lab, owner, server_a, server_b };
        world.introduce()?;
        Ok(world)
    }

    /// The agent of every session here.
    pub(crate) fn agent(&self) -> String {
        format!("hm://{}/scout", self.owner)
    }

    fn introduce(&self) -> Result<()> {
        let nodes = [("desktop", &self.desktop), ("server-a", &self.server_a), ("server-b", &self.server_b)];
        for (name, node) in nodes {
            let ticket = node.ticket()?;
            for (other, at) in nodes {
                if other != name {
                    at.home().json(&["peer", "add", name, &ticket])?;
                }
            }
        }
        Ok(())
    }

    /// A session on server A: a message and a response.
    pub(crate) fn session_on_a(&self) -> Result<String> {
        let session = begin(&self.server_a, &self.agent(), "make the login test pass")?;
        append(&self.server_a, &session, "first", &response("Running the tests."))?.expect(201)?;
        Ok(session)
    }
}

/// Starts a session with one message, as an agent server does. Answers with the session.
pub(crate) fn begin(node: &Node, agent: &str, words: &str) -> Result<String> {
    let body = json!({"agent": agent, "title": "A test", "firstEntry": message(words)});
    let request = Request::post("/v1/sessions", &body).header("idempotency-key", &format!("begin {words}"));
    let reply = node.api().send(&request)?;
    let created = reply.expect(201)?;
    Ok(text(&created, "/session")?.to_owned())
}

/// What a trigger says.
pub(crate) fn message(words: &str) -> Value {
    json!({
        "type": "SessionUserMessage", "origin": "trigger",
        "body": [{"id": "b1", "type": "Paragraph", "text": words, "children": []}],
    })
}

/// What a model answers.
pub(crate) fn response(words: &str) -> Value {
    json!({
        "type": "SessionModelResponse", "model": {"provider": "anthropic", "id": "claude-x", "api": "messages"},
        "content": [{"type": "text", "text": words}], "usage": {"input": 812, "output": 40}, "stopReason": "end_turn",
    })
}

/// Appends on the head that the node tells.
pub(crate) fn append(node: &Node, session: &str, key: &str, entry: &Value) -> Result<Reply> {
    append_on(node, session, &head(node, session)?, key, entry)
}

/// Appends on a base.
pub(crate) fn append_on(node: &Node, session: &str, base: &str, key: &str, entry: &Value) -> Result<Reply> {
    node.api().send(&append_request(session, base, key, entry))
}

/// The request of an append, for a caller that sends it in its own way.
pub(crate) fn append_request(session: &str, base: &str, key: &str, entry: &Value) -> Request {
    let body = json!({"base": base, "entry": entry});
    Request::post(&format!("/v1/sessions/{session}/entries"), &body).header("idempotency-key", key)
}

/// The CID of the head that a node has.
pub(crate) fn head(node: &Node, session: &str) -> Result<String> {
    let state = session_at(node, session)?;
    Ok(text(&state, "/head/cid")?.to_owned())
}

/// What a node says of a session.
pub(crate) fn session_at(node: &Node, session: &str) -> Result<Value> {
    node.api().get(&format!("/v1/sessions/{session}"))?.expect(200)
}

/// Waits until what a node says of a session is so, however it hears of what decides it; returns the session's row.
pub(crate) fn await_session(
    node: &Node,
    session: &str,
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Result<Value> {
    node.until(what, &format!("/v1/sessions/{session}"), is_so)
}

/// Waits until a node has this entry as its head.
pub(crate) fn await_head(node: &Node, session: &str, cid: &str) -> Result<()> {
    await_session(node, session, &format!("the head {cid}"), |row| row["head"]["cid"] == cid)?;
    Ok(())
}

/// Waits until a node judges a session so.
pub(crate) fn await_verdict(node: &Node, session: &str, verdict: &str) -> Result<()> {
    await_session(node, session, &format!("the verdict {verdict}"), |row| row["verdict"] == verdict)?;
    Ok(())
}

/// Waits until a node knows that it handed a session over: until then it says that it stands still.
pub(crate) fn await_retired(node: &Node, session: &str) -> Result<()> {
    await_session(node, session, "the state retired", |row| row["state"] == "retired")?;
    Ok(())
}

/// Waits until a node holds a grant for its own key.
pub(crate) fn await_grant(node: &Node) -> Result<()> {
    await_grants(node, &node.principal()?, "active")
}

/// Waits until a node knows grants of `delegate` to be in this state.
pub(crate) fn await_grants(node: &Node, delegate: &str, state: &str) -> Result<()> {
    let path = format!("/v1/capabilities?delegate={delegate}&state={state}");
    let is_known = |grants: &Value| grants["items"].as_array().is_some_and(|items| !items.is_empty());
    node.until(&format!("a grant of {delegate} that is {state}"), &path, is_known)?;
    Ok(())
}

/// Waits until two nodes are connected, as both of them see it. One that was started again has other ports than before: it has to dial.
pub(crate) fn await_connection(again: &Node, other: &Node) -> Result<()> {
    again.until_connected(other)?;
    other.until_connected(again)
}

/// The seqs and CIDs that a node holds of a session, oldest first.
pub(crate) fn entries_at(node: &Node, session: &str) -> Result<Vec<(u64, String)>> {
    let page = node.api().get(&format!("/v1/sessions/{session}/entries?limit=500"))?.expect(200)?;
    list(&page, "/items")?
        .iter()
        .map(|item| Ok((number(item, "/seq")?, text(item, "/cid")?.to_owned())))
        .collect()
}
