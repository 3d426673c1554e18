//! A flipped bit on a disk: found when it is read, never served to a peer, found by `fsck`, and fetched or made again by `fsck --repair`.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use throughline_testnet::Node;

use super::{World, append, await_connection, entries_at, number, response};

/// Words that are stored in the database's file, and words that are too long for it.
const SHORT: &str = "Running the tests.";

/// Flips a bit at every place where the first file under `dir` that holds `needle` does: the database may have it in pages
/// that are free, too.
fn flip(dir: &Path, needle: &[u8]) -> Result<()> {
    let mut open = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                open.push(entry?.path());
            }
            continue;
        }
        let mut bytes = std::fs::read(&path)?;
        let is_needle = |window: (usize, &[u8])| (window.1 == needle).then_some(window.0);
        let places: Vec<usize> = bytes.windows(needle.len()).enumerate().filter_map(is_needle).collect();
        if !places.is_empty() {
            places.into_iter().for_each(|at| bytes[at] ^= 1);
            std::fs::write(&path, bytes)?;
            return Ok(());
        }
    }
    anyhow::bail!("no file under {} holds the words", dir.display())
}

#[test]
fn what_is_damaged_is_found_never_served_and_fetched_again() -> Result<()> {
    let World { lab: _lab, desktop, server_a, server_b, owner } = World::new()?;
    let session = super::begin(&server_a, &format!("hm://{owner}/scout"), "make the login test pass")?;
    append(&server_a, &session, "first", &response(SHORT))?.expect(201)?;
    append(&server_a, &session, "second", &response(&"A long answer. ".repeat(2_000)))?.expect(201)?;
    desktop.home().json(&["fetch", &session, "--from", "server-a", "--payloads", "all"])?;
    let home = desktop.stop()?;
    assert_eq!(home.cli(&["fsck"]).json()?.expect(0)?["problems"], json!([]));
    let data = home.join("data");
    flip(&data.join("payloads"), b"A long answer. A long")?;
    // Not what the journal still has of it: it was closed, so that is not read again.
    flip(&data.join("store.redb"), SHORT.as_bytes())?;

    let desktop = home.serve()?;
    await_connection(&desktop, &server_a)?;
    await_connection(&desktop, &server_b)?;
    let entries = format!("/v1/sessions/{session}/entries");
    desktop.api().get(&entries)?.refused(500, "E_STORE_CORRUPT")?;
    // A peer that asks gets the chain, and nothing for what is damaged.
    let got = server_b.home().cli(&["fetch", &session, "--from", "desktop", "--payloads", "all"]).json()?;
    assert!(
        !format!("{:?}", got.object()).contains("E_CID_MISMATCH"),
        "damage was served: {:?}",
        got.object()
    );
    assert_eq!(server_b.home().json(&["fsck"])?["problems"], json!([]));

    let found = desktop.home().cli(&["fsck"]).json()?.expect(10)?;
    assert_eq!(number(&found, "/repairable")?, 2, "{found}");
    let codes = found["problems"].as_array().context("problems")?;
    assert!(codes.iter().all(|problem| problem["code"] == "E_STORE_CORRUPT"), "{found}");
    let repaired = desktop.home().json(&["fsck", "--repair", "--from", "server-a", "--yes"])?;
    assert_eq!(repaired["problems"], json!([]), "{repaired}");
    assert_eq!((number(&repaired, "/repaired/blobs")?, number(&repaired, "/repaired/notFound")?), (2, 0));
    assert_eq!(entries_at(&desktop, &session)?, entries_at(&server_a, &session)?);
    assert_eq!(desktop.home().json(&["verify", &session])?["verdict"], "valid");
    Ok(())
}

/// Stops a server, flips bits in its database, and starts it again; `desktop` can reach it then.
fn damaged(server: Node, desktop: &Node, needle: &[u8]) -> Result<Node> {
    let home = server.stop()?;
    flip(&home.join("data/store.redb"), needle)?;
    let server = home.serve()?;
    await_connection(&server, desktop)?;
    Ok(server)
}

/// A holder's server after a repair: it serves what it served, signs nothing and says so, until the owner hands the session over.
fn signs_again_after_a_handoff(desktop: &Node, server: &Node, session: &str, key: &str) -> Result<()> {
    assert_eq!(entries_at(server, session)?, entries_at(desktop, session)?);
    assert_eq!(server.home().json(&["verify", session])?["verdict"], "valid");
    let words = response("Nobody may see this.");
    append(server, session, &format!("{key}, too early"), &words)?.refused(403, "E_SIGN_GUARD")?;
    let row = super::session_at(server, session)?;
    assert_eq!(row["problems"][0]["code"], "E_SIGN_GUARD", "{row}");
    assert!(super::text(&row, "/problems/0/fix")?.ends_with("--to self"), "{row}");
    desktop.home().json(&["move", session, "--to", "server-a", "--yes"])?;
    append(server, session, key, &response("Going on."))?.expect(201)?;
    assert_eq!(server.home().json(&["fsck"])?["problems"], json!([]));
    Ok(())
}

#[test]
fn a_row_that_only_the_holder_had_is_repaired_and_signs_nothing_until_a_handoff() -> Result<()> {
    let world = World::new()?;
    let session = world.session_on_a()?;
    let World { lab: _lab, desktop, server_a, .. } = world;
    desktop.home().json(&["fetch", &session, "--from", "server-a"])?;

    // The row of the session: what this node may do there, and what lists show.
    let server_a = damaged(server_a, &desktop, b"\x65fence")?;
    append(&server_a, &session, "damaged", &response("Nobody may see this."))
        .err()
        .context("an append on a damaged row was answered as if nothing were wrong")?;
    let plan = server_a.home().cli(&["fsck", "--repair", "--dry-run"]).json()?.expect(10)?;
    assert_eq!(
        (&plan["dryRun"], &plan["plan"]["rows"][0]["row"]),
        (&json!(true), &json!("session")),
        "{plan}"
    );
    let again = server_a.home().cli(&["fsck", "--repair", "--dry-run"]).json()?.expect(10)?;
    assert_eq!(again["problems"], plan["problems"], "a dry run changed something");
    let repaired = server_a.home().json(&["fsck", "--repair", "--yes"])?;
    assert_eq!(repaired["problems"], json!([]), "{repaired}");
    let row = &repaired["repaired"]["rows"][0];
    assert_eq!((&row["row"], &row["outcome"]), (&json!("session"), &json!("made-again")), "{repaired}");
    let once_more = server_a.home().json(&["fsck", "--repair", "--yes"])?;
    assert_eq!((&once_more["problems"], &once_more["repaired"]), (&json!([]), &Value::Null), "{once_more}");
    signs_again_after_a_handoff(&desktop, &server_a, &session, "a session's row")?;

    // The sign guard: the row is the epoch, the seq and the CID of what was signed last.
    desktop.home().json(&["fetch", &session, "--from", "server-a"])?;
    let server_a = damaged(server_a, &desktop, b"\xa3\x63cid\x58\x20")?;
    append(&server_a, &session, "damaged", &response("Nobody may see this."))?
        .refused(403, "E_SIGN_GUARD")?;
    let row = super::session_at(&server_a, &session)?;
    assert_eq!(row["problems"][0]["fix"], "throughline fsck --repair", "{row}");
    let repaired = server_a.home().json(&["fsck", "--repair", "--yes"])?;
    let row = &repaired["repaired"]["rows"][0];
    assert_eq!((&row["row"], &row["outcome"]), (&json!("sign-guard"), &json!("noted")), "{repaired}");
    assert!(super::text(row, "/fix")?.ends_with("--to self"), "{repaired}");
    signs_again_after_a_handoff(&desktop, &server_a, &session, "a sign guard's row")
}
