//! Checks 17, 21 and 22: grants name who they are for, and a revocation cuts only what nobody had seen.

use anyhow::Result;
use serde_json::json;

use super::{World, append, await_grant, entries_at, list, number, response, session_at, text};

#[test]
fn check_17_a_grant_is_given_once_and_never_to_a_short_id() -> Result<()> {
    let world = World::without_grants()?;
    let home = world.desktop.home();
    let grant = |peer: &str| home.cli(&["grant", peer, "--agent", &world.agent()]).json();
    assert_eq!(grant("server-b")?.expect(0)?["unchanged"], false);
    assert_eq!(grant("server-b")?.expect(0)?["unchanged"], true);
    let principal = world.server_b.principal()?;
    let short: String = principal.chars().take(8).collect();
    grant(&short)?.refused(2, "E_PEER_UNKNOWN")?;
    grant("k3f7m2xq")?.refused(2, "E_PEER_UNKNOWN")?;
    assert_eq!(grant(&principal)?.expect(0)?["unchanged"], true, "a full principal is the same peer");
    Ok(())
}

#[test]
fn check_21_a_move_to_a_peer_without_a_grant_changes_nothing() -> Result<()> {
    let world = World::without_grants()?;
    let desktop = world.desktop.home();
    desktop.json(&["grant", "server-a", "--agent", &world.agent()])?;
    await_grant(&world.server_a)?;
    let session = world.session_on_a()?;
    desktop.json(&["fetch", &session, "--from", "server-a"])?;
    let refused = desktop.cli(&["move", &session, "--to", "server-b"]).json()?.refused(8, "E_CAP_MISSING")?;
    let hint = text(&refused, "/hint")?;
    assert!(hint.starts_with("throughline grant server-b"), "{refused}");
    // The source goes on in its epoch, the target holds nothing.
    append(&world.server_a, &session, "after", &response("Going on."))?.expect(201)?;
    assert_eq!(number(&session_at(&world.server_a, &session)?, "/epoch")?, 0);
    world.server_b.api().get(&format!("/v1/sessions/{session}"))?.refused(404, "E_NOT_FOUND_YET")?;
    Ok(())
}

#[test]
fn check_22_a_revocation_keeps_what_was_acknowledged() -> Result<()> {
    let world = World::new()?;
    let desktop = world.desktop.home();
    let session = world.session_on_a()?;
    desktop.json(&["fetch", &session, "--from", "server-a"])?;
    desktop.json(&["move", &session, "--to", "server-b", "--yes"])?;
    let held = entries_at(&world.server_b, &session)?;
    let revoked = desktop.json(&["revoke", "server-a", "--yes"])?;
    let sessions = list(&revoked, "/sessions")?;
    assert!(!sessions.is_empty(), "{revoked}");
    assert!(sessions.iter().all(|kept| kept["cutEntries"] == json!(0)), "{revoked}");
    let late = append(&world.server_a, &session, "late", &response("I never left."))?;
    assert!([403, 409].contains(&late.status), "{late}");
    for node in [&world.desktop, &world.server_b] {
        let verified = node.home().json(&["verify", &session])?;
        assert_eq!(verified["verdict"], "valid", "{verified}");
    }
    assert_eq!(entries_at(&world.server_b, &session)?, held);
    Ok(())
}
