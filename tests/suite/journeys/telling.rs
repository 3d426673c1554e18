//! Who was off hears of it when it comes back, from anybody who knows: a revocation, a grant, the end of an epoch.

use anyhow::Result;
use serde_json::Value;
use throughline_testnet::Node;

use super::{
    World, append, await_connection, await_grants, await_head, await_retired, begin, head, list, message,
    number, plain_home, response, text,
};

/// A turn as another tool wrote it.
const TRANSCRIPT: &str = concat!(
    r#"{"type":"user","uuid":"u1","sessionId":"s1","timestamp":"2026-01-01T00:00:00.000Z","#,
    r#""message":{"role":"user","content":"written while nobody listened"}}"#,
    "\n"
);

#[test]
fn a_revocation_reaches_who_was_off_from_whoever_knows_it() -> Result<()> {
    let World { lab, owner, desktop, server_a, server_b } = World::new()?;
    let agent = format!("hm://{owner}/scout");
    let session = begin(&server_a, &agent, "work on this")?;
    await_head(&desktop, &session, &head(&server_a, &session)?)?;
    let lost = server_a.principal()?;
    let (lost_home, off_home) = (server_a.stop()?, server_b.stop()?);

    // Nobody is there to hear it.
    for name in ["server-a", "server-b"] {
        let revoked = desktop.home().json(&["revoke", name, "--yes"])?;
        assert_eq!(number(&revoked, "/revoked/0/told/peers")?, 0, "{revoked}");
    }
    // A server that was off then hears it when it comes back, and a device that is new hears all of it.
    let server_b = off_home.serve()?;
    await_grants(&server_b, &server_b.principal()?, "revoked")?;
    let tablet = plain_home(&lab, "tablet", &owner)?.serve()?;
    desktop.home().json(&["peer", "add", "tablet", &tablet.ticket()?])?;
    tablet.home().json(&["peer", "add", "desktop", &desktop.ticket()?])?;
    desktop.home().json(&["grant", "tablet", "--role", "device"])?;
    await_grants(&tablet, &lost, "revoked")?;
    await_head(&tablet, &session, &head(&desktop, &session)?)?;
    desktop.stop()?;

    // The lost one meets only a server that takes part no more itself, and stops.
    lost_home.json(&["peer", "add", "server-b", &server_b.ticket()?])?;
    let lost_one = lost_home.serve()?;
    await_connection(&lost_one, &server_b)?;
    await_grants(&lost_one, &lost, "revoked")?;
    expect_stopped(&lab, &lost_one, &session, &agent)
}

/// No signature as the holder, no import; and why.
fn expect_stopped(lab: &throughline_testnet::Lab, node: &Node, session: &str, agent: &str) -> Result<()> {
    append(node, session, "late", &response("Still here."))?.refused(403, "E_REVOKED")?;
    let transcript = lab.file("late.jsonl", TRANSCRIPT)?.display().to_string();
    node.home().cli(&["import", &transcript, "--agent", agent]).json()?.refused(6, "E_REVOKED")?;
    let status = node.home().json(&["status"])?;
    assert_eq!(text(&status, "/health/0/code")?, "E_REVOKED", "{status}");
    assert!(has_problem(&status, "E_REVOKED")?, "{status}");
    Ok(())
}

fn has_problem(status: &Value, code: &str) -> Result<bool> {
    Ok(list(status, "/sessions/0/problems")?.iter().any(|problem| problem["code"] == code))
}

#[test]
fn a_server_that_was_left_and_revoked_stops_and_reads_nothing_new() -> Result<()> {
    let World { lab: _lab, owner, desktop, server_a, server_b } = World::new()?;
    let session = begin(&server_a, &format!("hm://{owner}/scout"), "work on this")?;
    await_head(&desktop, &session, &head(&server_a, &session)?)?;
    let home = server_a.stop()?;
    let known = head(&desktop, &session)?;
    desktop.home().json(&["move", &session, "--to", "server-b", "--source", "offline", "--yes"])?;
    desktop.home().json(&["revoke", "server-a", "--yes"])?;
    append(&server_b, &session, "next", &response("I have it now."))?.expect(201)?;
    let off_home = server_b.stop()?;
    desktop.stop()?;

    // The one that was left goes on, alone.
    let server_a = home.serve()?;
    assert_eq!(head(&server_a, &session)?, known);
    append(&server_a, &session, "alone", &message("nobody saw this"))?.expect(201)?;
    append(&server_a, &session, "answer", &response("Nor this."))?.expect(201)?;

    // It may read nothing of the session any more, and still learns that its epoch is over.
    let server_b = off_home.serve()?;
    server_a.home().json(&["peer", "add", "server-b", &server_b.ticket()?])?;
    await_connection(&server_a, &server_b)?;
    await_retired(&server_a, &session)?;
    append(&server_a, &session, "late", &response("Still mine?"))?.refused(409, "E_RETIRED")?;
    let status = server_a.home().json(&["status"])?;
    assert!(has_problem(&status, "E_FENCED")? || has_problem(&status, "E_REVOKED")?, "{status}");
    let entry = format!("/v1/sessions/{session}/entries/3");
    server_a.api().get(&entry)?.refused(404, "E_NOT_FOUND_YET")?;
    Ok(())
}
