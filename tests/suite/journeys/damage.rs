//! A flipped bit on a disk: found when it is read, never served to a peer, found by `fsck`, and fetched again by `fsck --repair`.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::{World, append, entries_at, number, response};

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
