//! The story, second half: a revoked key, a forged entry, an auditor and a liar.

use serde_json::{Value, json};
use throughline_protocol::code::Code;

use super::copy::{Part, SessionCopy};
use super::facts::{at, await_grants, hold, list, number, text, until};
use super::forge::forge_entry;
use super::hostile::HostilePeer;
use super::story::{Plot, append, principal_of, response};
use crate::api::client::{Call, Client};
use crate::api::error::{Answer, Problem};
use crate::outcome::Exit;

/// The content type of a CAR.
const CAR: &str = "application/vnd.ipld.car";

/// The owner takes server A's grants back: anchors first, then the tombstone.
pub(super) async fn revoke(plot: &mut Plot<'_>) -> Answer<Value> {
    let revoked = plot.stage.desktop.done(&["revoke", "server-a", "--reason", "demo", "--yes"]).await?;
    let sessions = list(&revoked, "/sessions")?;
    let mut cut = 0;
    for session in sessions {
        cut += number(session, "/cutEntries")?;
    }
    let line =
        format!("server-a: what it wrote in {} sessions stays valid, {cut} entries cut", sessions.len());
    plot.tell("revoked", &line);
    Ok(revoked)
}

/// Server A comes back, hears that it was revoked, and is asked to go on with both sessions.
pub(super) async fn append_at_a(plot: &mut Plot<'_>) -> Answer<Value> {
    plot.stage.server_a.serve().await?;
    let api = plot.stage.server_a.api();
    await_grants(&api, &principal_of(&plot.stage.server_a).await?, "revoked").await?;
    let words = response("I never left.", None);
    let mut refusals = Vec::new();
    for session in [&plot.imported, &plot.interrupted] {
        match append(&api, session, "demo-late", &words).await {
            Err(problem) if matches!(problem.code(), Code::Retired | Code::Revoked) => refusals.push(json!({
                "session": session, "code": problem.code().name(), "detail": problem.detail(),
            })),
            Err(problem) => return Err(problem),
            Ok(answer) => return Err(Problem::new(Code::Internal, format!("server-a appended: {answer}"))),
        }
    }
    let line = format!(
        "server-a is back and may append to neither: {} for the session that it handed over, {} for the one it was cut from",
        text(&refusals[0], "/code")?,
        text(&refusals[1], "/code")?,
    );
    plot.tell("refused", &line);
    Ok(refusals.into())
}

/// Server A's key signs an entry all the same, on the head that A had. The owner's nodes are given it.
pub(super) async fn forge(plot: &mut Plot<'_>) -> Answer<Value> {
    let session = plot.interrupted.clone();
    let honest = car_of(&plot.stage.server_b.api(), &session).await?;
    let forged = forge_entry(plot.stage.server_a.home(), &honest)?;
    let last = head_of(&plot.stage.server_b.api(), &session).await?;
    let mut verdicts = Vec::new();
    for node in [&plot.stage.server_b, &plot.stage.desktop] {
        // The desktop may still be on its way to what server B appended; then its head would move by itself.
        let path = format!("/v1/sessions/{session}");
        let what = format!("the head {last} on {}", node.name());
        until(&node.api(), &path, &what, |row| row["head"] == last).await?;
        let before = head_of(&node.api(), &session).await?;
        let given = Call::body(axum::http::Method::POST, "/v1/car", CAR, forged.car.clone());
        node.api().ask(given).await?;
        let verified = node.run(&["verify", &session]).await?.expect(Exit::CutTail)?;
        let after = head_of(&node.api(), &session).await?;
        hold(before == after, "the forged entry to move no head", &after)?;
        verdicts.push(json!({
            "node": node.name(), "exit": Exit::CutTail.number(), "verdict": verified["verdict"],
            "tail": verified["tail"], "validThrough": verified["validThrough"],
        }));
    }
    let verdict = text(&verdicts[0], "/verdict")?.to_owned();
    let line = format!(
        "server-a's key signed seq {} on its old head anyway -> {verdict} on server-b and desktop (exit {}), kept as evidence",
        forged.seq,
        Exit::CutTail.number(),
    );
    plot.tell("forged", &line);
    Ok(json!({"seq": forged.seq.get(), "cid": forged.cid.to_string(), "verdict": verdict, "nodes": verdicts}))
}

/// The new holder verifies the published session; then a stranger fetches and judges it alone.
pub(super) async fn audit(plot: &mut Plot<'_>) -> Answer<(Value, Value)> {
    let verified = plot.stage.server_b.done(&["verify", &plot.imported]).await?;
    let path = format!("/v1/sessions/{}", plot.imported);
    let anchored = number(&plot.stage.desktop.api().ask(Call::get(&path)).await?, "/anchoredThrough")?;
    let what = format!("the owner's anchor of seq {anchored} on server-b");
    let is_there = |row: &Value| row["anchoredThrough"].as_u64() >= Some(anchored);
    until(&plot.stage.server_b.api(), &path, &what, is_there).await?;
    let audited = plot.stage.stranger.done(&["audit", &plot.imported, "--from", "server-b"]).await?;
    let mut checks = Vec::new();
    for name in ["hash", "chain", "signature", "authority", "head"] {
        let result = text(&audited, &format!("/checks/{name}/result"))?;
        checks.push(format!("{name} {result}"));
    }
    let line = format!(
        "by a stranger: {}   valid through seq {}, anchored through seq {}",
        checks.join("  "),
        number(&audited, "/validThrough/seq")?,
        number(&audited, "/anchoredThrough/seq")?,
    );
    plot.tell("audited", &line);
    Ok((verified, audited))
}

/// A liar serves the published session to the stranger with one bit of one payload changed.
pub(super) async fn tamper(plot: &mut Plot<'_>) -> Answer<Value> {
    let session = plot.imported.clone();
    let car = car_of(&plot.stage.server_b.api(), &session).await?;
    let mut copy = SessionCopy::from_car(&car)?;
    let seq = copy.middle_payload().ok_or_else(|| Problem::new(Code::Internal, "no entry has a payload"))?;
    copy.flip_bit(seq, Part::Payload)?;
    let (liar, ticket) = HostilePeer::start(copy).await?;
    let ran = plot
        .stage
        .stranger
        .run(&["fetch", &session, "--from", &ticket.to_string(), "--payloads", "referenced"])
        .await;
    liar.stop().await;
    let refused = ran?.refused()?;
    let kept = entries_of(&plot.stage.stranger.api(), &session).await?;
    let stored = kept.iter().filter(|held| **held >= seq as u64).count();
    hold(stored == 0, "nothing to be stored from the changed entry on", &refused)?;
    let line = format!(
        "seq {seq}, one bit of its words -> {} ({}'s fault); nothing was stored from there on",
        text(&refused, "/code")?,
        text(&refused, "/fault")?,
    );
    plot.tell("tampered", &line);
    Ok(json!({
        "seq": seq, "code": at(&refused, "/code")?, "fault": at(&refused, "/fault")?, "stored": stored,
        "verifiedBefore": kept.len(),
    }))
}

async fn car_of(api: &Client, session: &str) -> Answer<bytes::Bytes> {
    let path = format!("/v1/sessions/{session}/entries?payloads=all");
    api.fetch(Call::get(&path).header("accept", CAR)).await
}

async fn head_of(api: &Client, session: &str) -> Answer<Value> {
    let session = api.ask(Call::get(&format!("/v1/sessions/{session}"))).await?;
    at(&session, "/head").cloned()
}

/// The seqs that a node holds of a session; none when it knows nothing of it.
async fn entries_of(api: &Client, session: &str) -> Answer<Vec<u64>> {
    let path = format!("/v1/sessions/{session}/entries?limit=500");
    match api.ask(Call::get(&path)).await {
        Ok(page) => list(&page, "/items")?.iter().map(|item| number(item, "/seq")).collect(),
        Err(problem) if problem.code() == Code::NotFoundYet => Ok(Vec::new()),
        Err(problem) => Err(problem),
    }
}
