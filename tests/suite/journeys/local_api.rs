//! Checks 14–16: who may talk to the local API, events that resume, and an upload that is not held in memory.

use std::fs;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::json;
use throughline_testnet::{Node, Request};

use super::{append, begin, lab, owner_home, response, text};

#[test]
fn check_14_strangers_at_the_local_door_are_refused() -> Result<()> {
    let lab = lab()?;
    let (home, _) = owner_home(&lab, "a")?;
    let node = home.serve()?;
    let api = node.tcp()?;
    api.get("/v1/node")?.expect(200)?;
    let with = |name: &str, value: &str| api.send(&Request::new("GET", "/v1/node").header(name, value));
    with("host", "evil.example")?.refused(403, "E_API_HOST")?;
    with("origin", "null")?.refused(403, "E_API_ORIGIN")?;
    with("origin", "http://evil.example")?.refused(403, "E_API_ORIGIN")?;
    with("sec-fetch-site", "cross-site")?.refused(403, "E_API_FETCHSITE")?;
    let plain = Request::new("POST", "/v1/fsck").body("text/plain", "{}");
    api.send(&plain)?.refused(415, "E_API_CTYPE")?;
    let nobody = node.tcp_without_token()?;
    nobody.get("/v1/node")?.refused(401, "E_API_TOKEN")?;
    let token = home.token()?;
    nobody.get(&format!("/v1/node?token={token}"))?.refused(401, "E_API_TOKEN")?;
    nobody.get("/v1/health")?.expect(200)?;
    Ok(())
}

#[test]
fn check_15_events_resume_after_a_cut() -> Result<()> {
    let lab = lab()?;
    let (home, owner) = owner_home(&lab, "a")?;
    let node = home.serve()?;
    let session = begin(&node, &format!("hm://{owner}/scout"), "hello")?;
    let query = format!("?session={session}&types=entry");
    let mut events = node.api().events(&query, None)?;
    append(&node, &session, "ev-0", &response("zero"))?.expect(201)?;
    let seen = events.next_of(&["entry"])?;
    drop(events);

    let mut made = Vec::new();
    for round in 1..=3 {
        let reply = append(&node, &session, &format!("ev-{round}"), &response("more"))?;
        made.push(text(&reply.expect(201)?, "/head/cid")?.to_owned());
    }
    let mut events = node.api().events(&query, Some(&seen.id))?;
    for cid in &made {
        let event = events.next_of(&["entry"])?;
        assert_eq!(text(&event.data, "/cid")?, cid, "each once, in order");
        // Told only after the commit: what an event names can be read.
        node.api().get(&format!("/v1/sessions/{session}/entries/{cid}"))?.expect(200)?;
    }
    // The one after them is the next append: nothing was told twice.
    append(&node, &session, "ev-4", &response("last"))?.expect(201)?;
    let last = events.next_of(&["entry"])?;
    assert!(!made.contains(&text(&last.data, "/cid")?.to_owned()), "{last:?}");
    Ok(())
}

const UPLOAD_BYTES: usize = 64 * 1024 * 1024;
/// What the node may grow by while it takes in the upload.
const GROWTH_KIB_MAX: u64 = 32 * 1024;

/// Peak and present resident memory of a process, in KiB.
fn memory_kib(node: &Node) -> Result<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{}/status", node.pid()))?;
    let field = |name: &str| {
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).with_context(|| name.to_owned())?;
        Ok::<u64, anyhow::Error>(line.trim().trim_end_matches(" kB").parse()?)
    };
    Ok((field("VmHWM:")?, field("VmRSS:")?))
}

#[test]
fn check_16_a_large_upload_streams_and_is_stored_once() -> Result<()> {
    let lab = lab()?;
    let (home, _) = owner_home(&lab, "a")?;
    let node = home.serve()?;
    // No two chunks are alike, so every one of them is stored.
    let mut bytes = vec![0_u8; UPLOAD_BYTES];
    for (index, chunk) in bytes.chunks_mut(4_096).enumerate() {
        chunk[..8].copy_from_slice(&(index as u64).to_le_bytes());
    }
    let (_, before) = memory_kib(&node)?;
    let upload = Request::new("POST", "/v1/blobs").body("application/octet-stream", bytes.clone());
    let began = Instant::now();
    let first = node.api().send(&upload)?.expect(201)?;
    println!("64 MiB taken in within {:?}", began.elapsed());
    let (peak, _) = memory_kib(&node)?;
    let growth = peak.saturating_sub(before);
    println!("resident memory grew by {growth} KiB");
    assert!(growth < GROWTH_KIB_MAX, "the upload was held in memory: {growth} KiB");
    let second = node.api().send(&upload)?.expect(200)?;
    assert_eq!(second["cid"], first["cid"]);
    let file = lab.file("large.bin", &bytes)?;
    let attached = home.json(&["attach", &file.display().to_string()])?;
    assert_eq!(attached["cid"], first["cid"]);
    let back = node.api().get(&format!("/v1/blobs/{}", text(&first, "/cid")?))?;
    assert_eq!(back.status, 200);
    assert!(back.body == bytes, "the bytes come back as they went in");
    assert_eq!(first["sizeBytes"], json!(UPLOAD_BYTES));
    Ok(())
}
