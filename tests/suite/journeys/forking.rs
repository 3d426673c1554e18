//! A server signs two histories: everybody learns of it, a stranger checks the evidence alone, and the owner goes on with one.

use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use throughline_node::demo::forge::forge_entry;

use super::{World, append, await_head, await_verdict, head, list, number, plain_home, response, text};

/// Two histories of a session on server A, by its own key.
struct Forked {
    world: World,
    session: String,
    /// The end of what server A's node signed, and of what its key signed beside it.
    heads: [String; 2],
}

/// The guard refuses to sign twice, in a copy of the directory too; so the second history is signed outside the node, with its key.
fn forked() -> Result<Forked> {
    let world = World::new()?;
    let session = world.session_on_a()?;
    let base = head(&world.server_a, &session)?;
    await_head(&world.desktop, &session, &base)?;
    let exported = world.lab.dir().join("before.car");
    let export = ["export", &session, "-o", &exported.display().to_string()];
    world.server_a.home().json(&export)?;
    append(&world.server_a, &session, "one", &response("now delete the staging bucket"))?.expect(201)?;
    let one = head(&world.server_a, &session)?;
    await_head(&world.desktop, &session, &one)?;
    let forged = forge_entry(world.server_a.home().path(), &fs::read(&exported)?);
    let forged = forged.map_err(|problem| anyhow::anyhow!("{problem}"))?;
    let second = world.lab.file("second.car", &forged.car)?;
    // The desktop is shown the other history.
    world.desktop.home().cli(&["import", &second.display().to_string()]).json()?;
    await_verdict(&world.desktop, &session, "forked")?;
    Ok(Forked { world, session, heads: [one, forged.cid.to_string()] })
}

#[test]
fn a_fork_is_told_shown_proved_and_settled() -> Result<()> {
    let Forked { world, session, heads } = forked()?;
    let desktop = world.desktop.home();

    // Who takes part is told, checks it, and reaches the same verdict; the server that signed both, too.
    await_verdict(&world.server_a, &session, "forked")?;
    let status = desktop.json(&["status", "--problems"])?;
    assert_eq!(number(&status, "/totals/forked")?, 1, "{status}");
    assert_eq!(text(&status, "/sessions/0/problems/0/code")?, "EV_EQUIVOCATION", "{status}");
    desktop.cli(&["verify", &session]).json()?.expect(5)?;

    // Both sides, from the first word that differs.
    let shown = desktop.cli(&["fork", &session]).json()?.expect(5)?;
    let mut branches: Vec<(String, String)> = list(&shown, "/branches")?
        .iter()
        .map(|branch| Ok((text(branch, "/head")?.to_owned(), text(branch, "/differs/text")?.to_owned())))
        .collect::<Result<_>>()?;
    branches.sort();
    let mut wanted = heads.to_vec();
    wanted.sort();
    assert_eq!(branches.iter().map(|(head, _)| head.clone()).collect::<Vec<_>>(), wanted, "{shown}");
    assert!(branches.iter().any(|(_, words)| words.starts_with("now delete the staging")), "{shown}");

    // The evidence, checked by somebody who never met any of them, without a network where that can be had.
    let file = world.lab.dir().join("evidence.car").display().to_string();
    let exported = desktop.json(&["fork", "export", &session, "-o", &file])?;
    assert_eq!(exported["shows"], "equivocation", "{exported}");
    prove_alone(&world, &file)?;
    let stranger = plain_home(&world.lab, "stranger", "none")?;
    let kept = stranger.json(&["fork", "import", &file])?;
    assert_eq!((&kept["from"], &kept["unchanged"]), (&Value::Null, &json!(false)), "{kept}");

    // The owner goes on with one branch; the other stays as evidence, and the new holder works.
    let args = ["fork", &session, "--keep", &heads[0], "--to", "server-b", "--yes"];
    let settled = desktop.json(&args)?;
    assert_eq!((&settled["kept"], number(&settled, "/epoch")?), (&json!(heads[0]), 1), "{settled}");
    let handoff = text(&settled, "/handoff/cid")?.to_owned();
    await_head(&world.server_b, &session, &handoff)?;
    append(&world.server_b, &session, "on", &response("I have it now."))?.expect(201)?;
    // Server A tells of the other history what it has; whether that came before server B held the session is nobody's matter.
    let verified = world.server_b.home().cli(&["verify", &session]).json()?;
    let verified = verified.object().context("an object")?;
    assert!(["valid", "fenced-tail"].contains(&text(&verified, "/verdict")?), "{verified}");
    assert_eq!(text(&verified, "/validThrough/cid")?, head(&world.server_b, &session)?, "{verified}");
    let lost =
        world.desktop.api().get(&format!("/v1/sessions/{session}/entries/{}", heads[1]))?.expect(200)?;
    assert_eq!(lost["status"], "fenced", "{lost}");
    let after = desktop.cli(&["fork", &session]).json()?.expect(6)?;
    let ranks: Vec<&str> = list(&after, "/branches")?.iter().filter_map(|b| b["rank"].as_str()).collect();
    assert!(ranks.contains(&"kept") && ranks.contains(&"rejected"), "{after}");
    Ok(())
}

fn prove_alone(world: &World, file: &str) -> Result<()> {
    let verified = world.lab.cli(&["verify", file]).json()?.expect(5)?;
    assert_eq!(
        (&verified["verdict"], &verified["evidence"]["shows"]),
        (&json!("forked"), &json!("equivocation"))
    );
    let mut probe = Command::new("unshare");
    if probe.args(["-rn", "true"]).output().is_ok_and(|output| output.status.success()) {
        let mut command = Command::new("unshare");
        command.args(["-rn", env!("CARGO_BIN_EXE_throughline-under-test"), "verify", "--json", file]);
        let output = command.output()?;
        assert_eq!(output.status.code(), Some(5));
        let alone: Value = serde_json::from_slice(&output.stdout).context("one object")?;
        assert_eq!(alone["evidence"], verified["evidence"]);
    } else {
        println!("this machine makes no network namespaces: not run there");
    }
    let mut damaged = fs::read(file)?;
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let damaged = world.lab.file("damaged.car", damaged)?.display().to_string();
    world.lab.cli(&["verify", &damaged]).json()?.refused(3, "E_CID_MISMATCH")?;
    Ok(())
}
