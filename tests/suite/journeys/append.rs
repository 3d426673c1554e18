//! Checks 10–13: an append says its base and its key, and survives a power cut.

use anyhow::Result;
use serde_json::json;
use throughline_testnet::{Node, Request};

use super::{
    append, append_on, append_request, begin, entries_at, head, lab, number, owner_home, response,
    session_at, text,
};

/// A node whose owner key is on the same machine, with one session.
fn one_node() -> Result<(throughline_testnet::Lab, Node, String)> {
    let lab = lab()?;
    let (home, owner) = owner_home(&lab, "a")?;
    let node = home.serve()?;
    let session = begin(&node, &format!("hm://{owner}/scout"), "hello")?;
    Ok((lab, node, session))
}

#[test]
fn check_10_the_same_append_again_is_answered_not_repeated() -> Result<()> {
    let (_lab, node, session) = one_node()?;
    let base = head(&node, &session)?;
    let before = number(&session_at(&node, &session)?, "/head/seq")?;
    let first = append_on(&node, &session, &base, "ev-1", &response("one"))?;
    let made = first.expect(201)?;
    assert_eq!(number(&made, "/head/seq")?, before + 1);
    assert_eq!((&made["durable"], &made["replayed"]), (&json!(true), &json!(false)), "{made}");
    let cid = text(&made, "/head/cid")?;
    assert_eq!(first.header("etag"), Some(format!("\"{cid}\"").as_str()));
    let again = append_on(&node, &session, &base, "ev-1", &response("one"))?.expect(200)?;
    assert_eq!(again["replayed"], true, "{again}");
    assert_eq!((&again["head"], &again["entries"]), (&made["head"], &made["entries"]));
    Ok(())
}

#[test]
fn check_11_a_stale_base_is_told_the_head() -> Result<()> {
    let (_lab, node, session) = one_node()?;
    let stale = head(&node, &session)?;
    append(&node, &session, "ev-1", &response("one"))?.expect(201)?;
    let held = entries_at(&node, &session)?;
    let refused =
        append_on(&node, &session, &stale, "ev-2", &response("two"))?.refused(409, "E_HEAD_MOVED")?;
    assert_eq!(text(&refused, "/head/cid")?, head(&node, &session)?);
    assert_eq!(refused["signingBase"]["prev"], refused["head"]["cid"], "{refused}");
    assert_eq!(entries_at(&node, &session)?, held, "a refused append stores nothing");
    Ok(())
}

#[test]
fn check_12_a_key_names_one_body() -> Result<()> {
    let (_lab, node, session) = one_node()?;
    let base = head(&node, &session)?;
    append_on(&node, &session, &base, "ev-1", &response("one"))?.expect(201)?;
    append_on(&node, &session, &base, "ev-1", &response("two"))?.refused(422, "E_IDEMPOTENCY")?;
    let path = format!("/v1/sessions/{session}/entries");
    let without = Request::post(&path, &json!({"base": head(&node, &session)?, "entry": response("three")}));
    assert_eq!(node.api().send(&without)?.status, 400, "an append without a key is refused");
    Ok(())
}

/// How often check 13 cuts the power; each round starts a process.
const ROUNDS: usize = 100;

#[test]
fn check_13_a_power_cut_between_appends_leaves_no_double() -> Result<()> {
    let (_lab, mut node, session) = one_node()?;
    for round in 0..ROUNDS {
        let (base, key, entry) =
            (head(&node, &session)?, format!("round-{round}"), response(&format!("{round}")));
        let before = entries_at(&node, &session)?.len();
        if round % 2 == 0 {
            append_on(&node, &session, &base, &key, &entry)?.expect(201)?;
            node = node.kill()?.serve()?;
        } else {
            // Nobody waits for this answer: the process dies while it works on the append, or before, or after.
            let (api, request) = (node.api(), append_request(&session, &base, &key, &entry));
            let waiting = std::thread::spawn(move || api.send(&request).ok());
            let home = node.kill()?;
            waiting.join().expect("the client ends");
            node = home.serve()?;
        }
        let again = append_on(&node, &session, &base, &key, &entry)?;
        assert!([200, 201].contains(&again.status), "round {round}: {again}");
        assert_eq!(again.json()?["replayed"], json!(again.status == 200));
        assert_eq!(
            entries_at(&node, &session)?.len(),
            before + 1,
            "round {round}: never two entries, never none"
        );
    }
    let fsck = node.home().json(&["fsck"])?;
    assert_eq!(fsck["problems"], json!([]), "{fsck}");
    assert_eq!(node.home().json(&["verify", &session])?["verdict"], "valid");
    node.stop()?;
    Ok(())
}
