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
    let left = server_a.principal()?;
    server_a.kill()?;
    let silent = desktop
        .home()
        .cli(&["move", &session, "--to", "server-b", "--yes", "--timeout", "2s"])
        .json()?
        .expect(9)?;
    assert_eq!(silent["error"]["code"], "E_UNREACHABLE", "{silent}");
    assert_eq!(head(&desktop, &session)?, known, "nothing is signed");
    let moved = desktop.home().json(&["move", &session, "--resume", "--source", "offline", "--yes"])?;
    assert_eq!((&moved["state"], number(&moved, "/to/epoch")?), (&"done".into(), 1), "{moved}");
    // Each server by its name and its whole key.
    for (at, key, principal) in [
        ("/from", "/from/principal", left),
        ("/to", "/to/principal", server_b.principal()?),
        ("/receipt", "/receipt/signer", server_b.principal()?),
    ] {
        assert_eq!(text(&moved, key)?, principal, "{moved}");
        let alias = if at == "/from" { "server-a" } else { "server-b" };
        assert_eq!(text(&moved, &format!("{at}/alias"))?, alias, "{moved}");
    }
    append(&server_b, &session, "next", &response("Carrying on."))?.expect(201)?;
    Ok(())
}

#[test]
fn a_silent_server_is_left_with_the_command_that_the_first_refusal_names() -> Result<()> {
    let World { lab: _lab, desktop, server_a, server_b: _server_b, owner } = World::new()?;
    let session = super::begin(&server_a, &format!("hm://{owner}/scout"), "work on this")?;
    desktop.home().json(&["fetch", &session, "--from", "server-a"])?;
    server_a.kill()?;
    let silent =
        desktop.home().cli(&["move", &session, "--to", "server-b", "--timeout", "2s"]).json()?.expect(9)?;
    let error = &silent["error"];
    assert_eq!((&error["code"], number(error, "/held/seq")?), (&"E_UNREACHABLE".into(), 1), "{silent}");
    let detail = text(error, "/detail")?;
    for said in ["server-a", "no answer in", "nothing is signed", "seq 1", "cut off"] {
        assert!(detail.contains(said), "{said}: {detail}");
    }
    // What it names is run as it stands.
    let command = text(error, "/hint")?.split("   ").next().unwrap_or_default();
    let words: Vec<&str> = command.split(' ').collect();
    let [program, args @ ..] = words.as_slice() else { bail!("no command in {silent}") };
    assert_eq!((*program, args[1]), ("throughline", session.as_str()), "{command}");
    let moved = desktop.home().json(args)?;
    assert_eq!((&moved["state"], number(&moved, "/to/epoch")?), (&"done".into(), 1), "{moved}");
    Ok(())
}

#[test]
fn a_holder_is_left_without_being_asked_only_where_somebody_agrees() -> Result<()> {
    let World { lab: _lab, desktop, server_a, server_b, owner } = World::new()?;
    let session = super::begin(&server_a, &format!("hm://{owner}/scout"), "work on this")?;
    let desk = desktop.home();
    desk.json(&["fetch", &session, "--from", "server-a"])?;
    let known = head(&desktop, &session)?;
    server_a.kill()?;
    let line = ["move", &session, "--to", "server-b", "--source", "offline"];
    let planned = desk.json(&[&line[..], &["--dry-run"]].concat())?;
    assert_eq!(
        (&planned["state"], number(&planned, "/without/held/seq")?),
        (&"planned".into(), 1),
        "{planned}"
    );
    // Nobody is there to be asked: nothing begins, and what it names is run as it stands.
    let refused = desk.cli(&line).json()?.refused(2, "E_PROMPT")?;
    for said in ["server-a is left without being asked", "seq 1", "cut off", "nothing is signed"] {
        assert!(text(&refused, "/detail")?.contains(said), "{said}: {refused}");
    }
    assert_eq!(head(&desktop, &session)?, known, "nothing is signed");
    assert_eq!(desktop.api().get("/v1/moves")?.expect(200)?["items"], serde_json::json!([]));
    let command = text(&refused, "/hint")?;
    assert_eq!(command, format!("throughline {} --yes", line.join(" ")));
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    let moved = desk.json(&words)?;
    assert_eq!((&moved["state"], &moved["from"]["state"]), (&"done".into(), &"unheard".into()), "{moved}");

    // Once more: the holder holds it. And there is nothing left to go on with.
    let tip = head(&desktop, &session)?;
    for again in [&words[..], &["move", &session, "--to", "server-b"]] {
        let told = desk.json(again)?;
        assert_eq!((&told["state"], number(&told, "/to/epoch")?), (&"held".into(), 1), "{told}");
    }
    assert_eq!(head(&desktop, &session)?, tip, "nothing is signed");
    assert_eq!(desk.json(&["move", "--resume", &session])?["state"], "done");
    append(&server_b, &session, "next", &response("Carrying on."))?.expect(201)?;
    Ok(())
}

#[test]
fn a_refused_move_says_who_could_do_it_and_how() -> Result<()> {
    let world = World::new()?;
    let session = world.session_on_a()?;
    let desktop = world.desktop.home();
    await_head(&world.desktop, &session, &head(&world.server_a, &session)?)?;
    // A server has no owner key: it is told what the owner runs, and that works there.
    world.server_b.home().json(&["fetch", &session, "--from", "server-a"])?;
    let refused = world.server_b.home().cli(&["move", &session, "--to", "self"]).json()?.expect(8)?;
    assert_eq!(refused["error"]["code"], "E_OWNER_KEY", "{refused}");
    assert!(text(&refused, "/error/detail")?.contains("who owns the session"), "{refused}");
    let principal = world.server_b.principal()?;
    let command = format!("throughline move {session} --to {principal}");
    assert!(text(&refused, "/error/hint")?.contains(&command), "{refused}");
    let moved = desktop.json(&["move", &session, "--to", &principal, "--yes"])?;
    assert_eq!(moved["state"], "done", "{moved}");

    // After a revocation a dry run names the grant that helps.
    desktop.json(&["revoke", "server-a", "--yes"])?;
    let told = desktop.cli(&["move", &session, "--to", "server-a", "--dry-run"]).json()?.expect(8)?;
    assert_eq!(told["state"], "needs-grant", "{told}");
    let hint = text(&told, "/error/hint")?.to_owned();
    assert_eq!(hint, format!("throughline grant server-a --agent {}", world.agent()));
    let words: Vec<&str> = hint.split(' ').skip(1).collect();
    desktop.json(&words)?;
    let planned = desktop.json(&["move", &session, "--to", "server-a", "--dry-run"])?;
    assert_eq!(planned["state"], "planned", "{planned}");

    // Somebody else's owner key signs nothing here, and is told whose would.
    let (other, _) = super::owner_home(&world.lab, "other")?;
    let file = world.lab.dir().join("session.car").display().to_string();
    desktop.json(&["export", &session, "-o", &file])?;
    other.json(&["import", &file])?;
    for args in [&["move", &session, "--to", "self"][..], &["publish", &session, "--yes"]] {
        let refused = other.cli(args).json()?.expect(8)?;
        assert_eq!(refused["error"]["code"], "E_OWNER_KEY", "{refused}");
        let hint = text(&refused, "/error/hint")?;
        assert!(hint.starts_with(&format!("where the key of {} is: throughline ", world.owner)), "{hint}");
    }
    Ok(())
}

#[test]
fn publishing_works_through_the_holder_and_names_the_head_that_everybody_sees() -> Result<()> {
    let world = World::new()?;
    let desktop = world.desktop.home();
    // Begun here and handed over: this node may append to it no more.
    let session = super::begin(&world.desktop, &world.agent(), "work on this")?;
    desktop.json(&["move", &session, "--to", "server-b", "--yes"])?;
    let published = desktop.json(&["publish", &session, "--yes"])?;
    let seq = number(&published, "/head/seq")?;
    assert_eq!((published["head"]["cid"].clone(), seq), (published["note"].clone(), 3), "{published}");
    let shown = desktop.json(&["show", &session])?;
    // The owner's note stands on the holder's last entry, and is pending until the holder's next one.
    assert_eq!(
        (&shown["tip"]["cid"], number(&shown, "/head/seq")?, number(&shown, "/pending")?, &shown["class"]),
        (&published["note"], seq - 1, 1, &"public".into()),
        "{shown}"
    );
    let status = desktop.cli(&["status", &session]).run()?;
    assert!(status.stdout.contains(&format!("seq {} +1 pending", seq - 1)), "{}", status.stdout);
    let note = text(&published, "/note")?;
    super::append_on(&world.server_b, &session, note, "on", &response("Now in public."))?.expect(201)?;
    await_head(&world.desktop, &session, &head(&world.server_b, &session)?)?;
    // A second time there is nothing to note.
    let again = desktop.json(&["publish", &session, "--yes"])?;
    assert_eq!(
        (&again["note"], number(&again, "/head/seq")?),
        (&serde_json::Value::Null, seq + 1),
        "{again}"
    );

    // Without the holder nothing is changed, and it is said how to go on.
    let other = super::begin(&world.server_a, &world.agent(), "and on that")?;
    desktop.json(&["fetch", &other, "--from", "server-a"])?;
    let World { desktop: node, server_a, .. } = world;
    server_a.kill()?;
    // Whether the connection is known to be gone yet or not.
    let refused = node.home().cli(&["publish", &other, "--yes"]).json()?.expect(9)?;
    assert!(["E_UNREACHABLE", "E_TIMEOUT"].contains(&text(&refused, "/error/code")?), "{refused}");
    let hint = text(&refused, "/error/hint")?;
    assert!(hint.contains(&format!("throughline move {other} --to self --source offline")), "{hint}");
    Ok(())
}
