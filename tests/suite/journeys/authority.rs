//! Checks 17, 21 and 22: grants name who they are for, and a revocation cuts only what nobody had seen.

use std::fs;

use anyhow::Result;
use serde_json::json;
use throughline_node::demo::forge::forge_entry;

use super::{
    World, append, await_grant, await_grants, await_head, await_retired, await_session, await_verdict,
    entries_at, head, list, number, response, session_at, text,
};

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
    await_retired(&world.server_a, &session)?;
    append(&world.server_a, &session, "late", &response("I never left."))?.refused(409, "E_RETIRED")?;
    for node in [&world.desktop, &world.server_b] {
        // It says nothing that the session is valid where nobody knows of the revocation yet.
        await_grants(node, &world.server_a.principal()?, "revoked")?;
        await_verdict(node, &session, "valid")?;
        let verified = node.home().json(&["verify", &session])?;
        assert_eq!(verified["verdict"], "valid", "{verified}");
    }
    assert_eq!(entries_at(&world.server_b, &session)?, held);
    Ok(())
}

#[test]
fn check_22_what_a_revoked_holder_signs_later_counts_on_no_node() -> Result<()> {
    let world = World::new()?;
    let session = world.session_on_a()?;
    let last = head(&world.server_a, &session)?;
    await_head(&world.desktop, &session, &last)?;
    world.server_b.home().json(&["fetch", &session, "--from", "server-a"])?;
    let held = entries_at(&world.server_a, &session)?;
    let exported = world.lab.dir().join("before.car");
    world.server_a.home().json(&["export", &session, "-o", &exported.display().to_string()])?;
    let revoked = world.desktop.home().json(&["revoke", "server-a", "--yes"])?;
    assert_eq!(number(&revoked, "/sessions/0/cutEntries")?, 0, "{revoked}");

    // The holder still holds the session, and every node says why it may not go on.
    for node in [&world.server_a, &world.desktop] {
        await_grants(node, &world.server_a.principal()?, "revoked")?;
        await_session(node, &session, "a valid session with a problem", |row| {
            row["verdict"] == "valid" && row["problems"].as_array().is_some_and(|told| !told.is_empty())
        })?;
        let status = node.home().json(&["status", "--problems"])?;
        assert_eq!(text(&status, "/sessions/0/session")?, session, "{status}");
        assert_eq!(text(&status, "/sessions/0/verdict")?, "valid", "{status}");
        assert_eq!(text(&status, "/sessions/0/problems/0/code")?, "E_REVOKED", "{status}");
        assert!(text(&status, "/sessions/0/problems/0/fix")?.starts_with("throughline move "), "{status}");
        let plain = node.home().cli(&["status"]).run()?.stdout;
        assert!(plain.contains("E_REVOKED: ") && plain.contains("fix: throughline move "), "{plain}");
    }
    append(&world.server_a, &session, "late", &response("I never left."))?.refused(403, "E_REVOKED")?;
    // Its key signs all the same, on the last entry that it had; every node is given that.
    let forged = forge_entry(world.server_a.home().path(), &fs::read(&exported)?);
    let forged = forged.map_err(|problem| anyhow::anyhow!("{problem}"))?;
    let file = world.lab.file("late.car", &forged.car)?.display().to_string();
    for node in [&world.server_a, &world.server_b, &world.desktop] {
        await_grants(node, &world.server_a.principal()?, "revoked")?;
        node.home().cli(&["import", &file]).json()?;
        await_verdict(node, &session, "revoked-tail")?;
        let verified = node.home().cli(&["verify", &session]).json()?.expect(6)?;
        assert_eq!(verified["verdict"], "revoked-tail", "{verified}");
        assert_eq!(text(&verified, "/validThrough/cid")?, last, "{verified}");
        assert_eq!(text(&verified, "/tail/kind")?, "revoked", "{verified}");
        for end in ["/tail/from/cid", "/tail/to/cid"] {
            assert_eq!(text(&verified, end)?, forged.cid.to_string(), "{verified}");
        }
        // The tail, and that the holder may not go on.
        let row = session_at(node, &session)?;
        let codes: Vec<&str> = list(&row, "/problems")?.iter().filter_map(|p| p["code"].as_str()).collect();
        assert_eq!(codes, ["E_REVOKED", "E_REVOKED"], "{row}");
        // All earlier ones count as before.
        for (_, cid) in &held {
            let entry = node.api().get(&format!("/v1/sessions/{session}/entries/{cid}"))?.expect(200)?;
            assert_eq!(entry["status"], "valid", "{entry}");
        }
        let cid = forged.cid;
        let late = node.api().get(&format!("/v1/sessions/{session}/entries/{cid}"))?.expect(200)?;
        assert_eq!(late["status"], "revoked", "{late}");
    }
    Ok(())
}
