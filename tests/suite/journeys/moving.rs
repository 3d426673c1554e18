//! Checks 18 and 19: a session moves with its server's help, and without it.

use anyhow::{Context as _, Result, bail};
use throughline_testnet::Node;

use super::{
    World, append, await_head, await_retired, await_verdict, entries_at, head, number, response, session_at,
    text,
};

#[test]
fn check_18_a_move_makes_one_new_holder() -> Result<()> {
    let world = World::new()?;
    let desktop = world.desktop.home();
    let session = world.session_on_a()?;
    // The owner's own node hears of its sessions without being asked.
    await_head(&world.desktop, &session, &head(&world.server_a, &session)?)?;
    let moved = desktop.json(&["move", &session, "--to", "server-b", "--yes"])?;
    assert_eq!((&moved["state"], number(&moved, "/to/epoch")?), (&"done".into(), 1), "{moved}");
    let verified = world.server_b.home().json(&["verify", &session])?;
    assert_eq!(verified["verdict"], "valid", "{verified}");
    await_retired(&world.server_a, &session)?;
    append(&world.server_a, &session, "late", &response("Still here."))?.refused(409, "E_RETIRED")?;
    append(&world.server_b, &session, "next", &response("Carrying on."))?.expect(201)?;

    // Back again: the first server is warm and is sent only what it lacks.
    let back = desktop.json(&["move", &session, "--to", "server-a", "--yes"])?;
    assert_eq!((&back["state"], number(&back, "/to/epoch")?), (&"done".into(), 2), "{back}");
    assert!(number(&back, "/sent/alreadyThere")? > 0, "{back}");
    append(&world.server_a, &session, "again", &response("Here once more."))?.expect(201)?;
    await_retired(&world.server_b, &session)?;
    append(&world.server_b, &session, "late", &response("Not I."))?.refused(409, "E_RETIRED")?;
    Ok(())
}

#[test]
fn check_19_a_dead_server_is_left_behind_and_learns_of_it() -> Result<()> {
    let World { lab, desktop, server_a, server_b, owner } = World::new()?;
    let agent = format!("hm://{owner}/scout");
    let session = super::begin(&server_a, &agent, "work on this")?;
    append(&server_a, &session, "ev-1", &response("On it."))?.expect(201)?;
    desktop.home().json(&["fetch", &session, "--from", "server-a"])?;
    let known = head(&desktop, &session)?;
    // Nobody else sees this one before the server dies.
    append(&server_a, &session, "ev-2", &response("Nobody saw this."))?.expect(201)?;
    let unseen = head(&server_a, &session)?;
    let home = server_a.kill()?;

    let args = ["move", &session, "--to", "server-b", "--source", "offline", "--yes"];
    let moved = desktop.home().json(&args)?;
    assert_eq!((&moved["state"], number(&moved, "/to/epoch")?), (&"done".into(), 1), "{moved}");
    assert_eq!(text(&moved, "/base/cid")?, known, "the handoff stands on what was replicated");
    append(&server_b, &session, "ev-3", &response("I have it now."))?.expect(201)?;

    // The dead server comes back and learns from its peers; its own tail is fenced everywhere.
    let server_a = home.serve()?;
    await_head(&server_a, &session, &head(&server_b, &session)?)?;
    append(&server_a, &session, "ev-4", &response("Still mine?"))?.refused(409, "E_RETIRED")?;
    let held = entries_at(&server_b, &session)?;
    let last = head(&server_b, &session)?;
    for node in [&server_a, &server_b, &desktop] {
        // A node may hear of the handoff and of the tail before it has what was appended after them. What shows a verdict is
        // kept before it is told.
        await_head(node, &session, &last)?;
        await_verdict(node, &session, "fenced-tail")?;
        let verified = node.home().cli(&["verify", &session]).json()?.expect(6)?;
        assert_eq!(verified["verdict"], "fenced-tail", "{verified}");
        assert_eq!(entries_at(node, &session)?, held, "the tail is no part of the session");
        let file = fenced_tail(node, &session, &server_a.principal()?)?;
        let shown = lab.cli(&["verify", &file]).json()?.expect(6)?;
        assert_eq!(
            (&shown["verdict"], &shown["evidence"]["shows"]),
            (&"fenced-tail".into(), &"fenced-tail".into()),
            "{shown}"
        );
    }
    let kept = server_a.api().get(&format!("/v1/sessions/{session}/entries/{unseen}"))?.expect(200)?;
    assert_eq!(kept["status"], "fenced", "{kept} {}", session_at(&server_a, &session)?);
    Ok(())
}

/// The file of evidence that a node keeps of the tail of epoch 0 that `signer` wrote.
fn fenced_tail(node: &Node, session: &str, signer: &str) -> Result<String> {
    let kept = node.home().join("data/evidence").join(session);
    let names = std::fs::read_dir(&kept).with_context(|| kept.display().to_string())?;
    let names = names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names: Vec<String> = names.collect::<Result<_>>()?;
    // One that is being written has another name until it is whole.
    names.retain(|name| !name.starts_with('.'));
    let [name] = names.as_slice() else { bail!("expected one file of evidence, got {names:?}") };
    assert_eq!(*name, format!("fenced-tail-epoch-0-{signer}.car"));
    Ok(kept.join(name).display().to_string())
}

#[test]
fn check_19_a_script_leaves_a_dead_server_only_when_it_says_so() -> Result<()> {
    let World { lab: _lab, desktop, server_a, server_b, owner, .. } = World::new()?;
    let session = super::begin(&server_a, &format!("hm://{owner}/scout"), "work on this")?;
    desktop.home().json(&["fetch", &session, "--from", "server-a"])?;
    let known = head(&desktop, &session)?;
    server_a.kill()?;
    let silent = desktop.home().cli(&["move", &session, "--to", "server-b", "--yes"]).json()?.expect(9)?;
    assert_eq!(silent["error"]["code"], "E_UNREACHABLE", "{silent}");
    assert_eq!(head(&desktop, &session)?, known, "nothing is signed");
    let moved = desktop.home().json(&["move", &session, "--resume", "--source", "offline", "--yes"])?;
    assert_eq!((&moved["state"], number(&moved, "/to/epoch")?), (&"done".into(), 1), "{moved}");
    append(&server_b, &session, "next", &response("Carrying on."))?.expect(201)?;
    Ok(())
}
