//! Checks 18 and 19: a session moves with its server's help, and without it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use throughline_testnet::{Node, Request};

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
fn a_move_that_left_its_source_is_not_taken_up_as_one_that_waits_and_cuts_nothing_that_is_held() -> Result<()>
{
    let World { lab: _lab, desktop, server_a, server_b: _server_b, owner } = World::new()?;
    let session = super::begin(&server_a, &format!("hm://{owner}/scout"), "work on this")?;
    desktop.home().json(&["fetch", &session, "--from", "server-a"])?;
    let down = server_a.kill()?;
    let body = json!({"to": "server-b", "source": "offline"});
    desktop.api().send(&Request::post(&format!("/v1/sessions/{session}/moves"), &body))?.expect(201)?;
    let asks = |seq: u64| {
        move |moves: &Value| {
            let open = &moves["items"][0];
            open["state"] == "needs-handoff" && open["sign"]["seq"] == seq
        }
    };
    desktop.until_asked("a move that waits for the owner", "/v1/moves", asks(2))?;

    // The server was not dead. What it writes now arrives at the node that drives the move.
    let server_a = down.serve()?;
    for at in 0..3 {
        append(&server_a, &session, &format!("ev-{at}"), &response("Still here."))?.expect(201)?;
    }
    let newest = head(&server_a, &session)?;
    await_head(&desktop, &session, &newest)?;
    let open = desktop.until_asked("a handoff on the newest entry", "/v1/moves", asks(5))?;
    assert_eq!(open["items"][0]["source"], "offline", "{open}");

    // Nobody said this time that it is left.
    let again = desktop.home().cli(&["move", &session, "--to", "server-b", "--yes"]).json()?;
    let error = again.refused(7, "E_MOVE_STATE")?;
    for said in ["move --resume", "move --abort"] {
        assert!(text(&error, "/hint")?.contains(said), "{error}");
    }
    assert_eq!(head(&desktop, &session)?, newest, "nothing is signed");
    let moved = desktop.home().json(&["move", &session, "--resume", "--yes"])?;
    assert_eq!((&moved["state"], text(&moved, "/base/cid")?), (&"done".into(), newest.as_str()), "{moved}");
    let verified = desktop.home().json(&["verify", &session])?;
    assert_eq!(verified["verdict"], "valid", "{verified}");
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

    // A third time there is nothing to sign: nobody is asked, and no key is opened.
    let third = desktop.json(&["publish", &session, "--no-input"])?;
    assert_eq!((&third["unchanged"], &third["note"]), (&true.into(), &serde_json::Value::Null), "{third}");
    assert_eq!((&third["ref"], &third["head"]), (&again["ref"], &again["head"]), "{third}");
    assert_eq!((&again["unchanged"], &third["dryRun"]), (&false.into(), &false.into()), "{again} {third}");
    let tried = desktop.json(&["publish", &session, "--dry-run"])?;
    assert_eq!((&tried["unchanged"], &tried["dryRun"]), (&true.into(), &true.into()), "{tried}");
    let told = desktop.cli(&["publish", &session, "--no-input"]).run()?;
    assert!(told.stdout.contains(&format!("= already public through seq {}", seq + 1)), "{}", told.stdout);

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

/// Whoever holds the session may have written more than anybody told the owner: that is fetched before it is shown.
#[test]
fn publish_shows_what_the_holder_has_and_publishes_nothing_else() -> Result<()> {
    let World { lab: _lab, desktop, server_a, server_b: _server_b, owner } = World::new()?;
    let session = super::begin(&server_a, &format!("hm://{owner}/scout"), "work on this")?;
    desktop.home().json(&["fetch", &session, "--from", "server-a"])?;
    let (peer, home) = (desktop.peer_id()?, desktop.stop()?);
    let is_gone = |peers: &Value| {
        let rows = peers["items"].as_array();
        rows.is_some_and(|rows| {
            rows.iter().all(|row| row["peer"] != peer.as_str() || row["connected"] == false)
        })
    };
    server_a.until_asked("the desktop to be gone", "/v1/peers", is_gone)?;
    for key in ["ev-1", "ev-2", "ev-3"] {
        append(&server_a, &session, key, &response("a token: 1234"))?.expect(201)?;
    }
    let looked_at = head(&server_a, &session)?;
    let tried = home.json(&["publish", &session, "--dry-run"])?;
    assert_eq!(
        (&tried["head"]["cid"], number(&tried, "/head/seq")?),
        (&looked_at.clone().into(), 4),
        "{tried}"
    );
    assert_eq!((number(&tried, "/left/entries")?, number(&tried, "/left/payloads")?), (5, 5), "{tried}");
    assert_eq!((&tried["dryRun"], &tried["note"], &tried["ref"]), (&true.into(), &json!(null), &json!(null)));
    // Whoever names what was looked at publishes that or nothing.
    append(&server_a, &session, "ev-4", &response("another token"))?.expect(201)?;
    let newest = head(&server_a, &session)?;
    let refused = home.cli(&["publish", &session, "--base", &looked_at, "--yes"]).json()?.expect(7)?;
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["base"]["seq"]),
        (&"E_HEAD_MOVED".into(), &4.into())
    );
    assert_eq!(refused["error"]["between"][0]["cid"], newest, "{refused}");
    let kept = session_at(&server_a, &session)?;
    assert_eq!((&kept["class"], &kept["tip"]["cid"]), (&"internal".into(), &newest.clone().into()), "{kept}");

    let ran = home.cli(&["publish", &session, "--base", &newest, "--yes"]).json()?;
    assert!(ran.stderr.contains("6 entries, 6 payloads"), "{ran}");
    let published = ran.expect(0)?;
    assert_eq!(
        (number(&published, "/left/entries")?, number(&published, "/head/seq")?),
        (6, 6),
        "{published}"
    );
    let chain = entries_at(&server_a, &session)?;
    assert_eq!(chain[5..], [(5, newest), (6, text(&published, "/note")?.to_owned())]);
    Ok(())
}

/// What is appended while the passphrase is asked for was not shown: it is, before it leaves.
#[test]
fn what_comes_after_the_preview_is_shown_before_it_is_published() -> Result<()> {
    const PASSPHRASE: &str = "correct horse battery";
    let lab = super::lab()?;
    let home = lab.home("desktop");
    home.configure()?;
    let init = home.cli(&["init", "--role", "desktop", "--owner", "new"]).passphrase(PASSPHRASE);
    let owner = text(&init.json()?.expect(0)?, "/owner/principal")?.to_owned();
    let desktop = home.serve()?;
    let session = super::begin(&desktop, &format!("hm://{owner}/scout"), "work on this")?;

    let args = ["publish", &session, "--yes", "--json", "--passphrase-fd", "0"];
    let mut publishing = desktop.home().cli(&args).spawn()?;
    let mut stderr = BufReader::new(publishing.stderr.take().context("no stderr")?);
    let mut shown = String::new();
    while !shown.contains("no secret scan has run") {
        ensure!(stderr.read_line(&mut shown)? > 0, "no preview: {shown}");
    }
    ensure!(shown.contains("2 entries, 2 payloads"), "{shown}");
    append(&desktop, &session, "meanwhile", &response("a token: 1234"))?.expect(201)?;
    let newest = head(&desktop, &session)?;
    publishing.stdin.take().context("no stdin")?.write_all(format!("{PASSPHRASE}\n").as_bytes())?;
    let mut shown = String::new();
    stderr.read_to_string(&mut shown)?;
    let output = publishing.wait_with_output()?;
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(
        shown.contains("not shown before: 1 entry above seq 1") && shown.contains("a token: 1234"),
        "{shown}"
    );
    assert!(shown.contains("3 entries, 3 payloads"), "{shown}");
    let published: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(
        (number(&published, "/left/entries")?, number(&published, "/head/seq")?),
        (3, 3),
        "{published}"
    );
    let note = text(&published, "/note")?.to_owned();
    assert_eq!(entries_at(&desktop, &session)?[2..], [(2, newest), (3, note)]);
    Ok(())
}

/// A file that its server lost: the owner is told what the target lacks, and the session moves when the owner says so by name.
#[test]
fn a_file_that_nobody_has_is_left_behind_only_by_its_own_yes() -> Result<()> {
    let world = World::new()?;
    let (desktop, server_a, server_b) = (world.desktop.home(), &world.server_a, &world.server_b);
    let session = world.session_on_a()?;
    let (bytes, file) = (vec![7; 50_000], server_a.home().join("file.bin"));
    std::fs::write(&file, &bytes)?;
    let attached = server_a.home().json(&["attach", &file.display().to_string()])?;
    // Before anybody else can hear of it.
    lose(&server_a.home().join("data/payloads"), &bytes)?;
    let mut message = super::message("see the file");
    message["attachments"] =
        json!([{"cid": attached["cid"], "size": 50_000, "mediaType": "application/octet-stream"}]);
    append(server_a, &session, "with a file", &message)?.expect(201)?;

    let args = ["move", &session, "--to", "server-b", "--yes"];
    let refused = desktop.cli(&args).json()?.expect(2)?["error"].clone();
    assert_eq!(
        (&refused["code"], &refused["lacking"]),
        (&"E_PROMPT".into(), &json!([attached["cid"]])),
        "{refused}"
    );
    let hint = text(&refused, "/hint")?;
    assert!(hint.contains(&format!("throughline move {session} --to server-b --without-files")), "{hint}");
    append(server_a, &session, "as before", &response("It goes on here."))?.expect(201)?;

    let moved = desktop.cli(&[&args[..], &["--without-files"]].concat()).json()?.expect(11)?;
    assert_eq!((&moved["state"], number(&moved, "/files/missing")?), (&"done".into(), 1), "{moved}");
    append(server_b, &session, "next", &response("Carrying on."))?.expect(201)?;

    // Somebody finds it again: whoever asks for it later has it.
    let args = ["fetch", &session, "--from", "desktop", "--payloads", "all"];
    let fetched = server_b.home().cli(&args).json()?.expect(11)?;
    assert_eq!(number(&fetched, "/files/missing")?, 1, "{fetched}");
    desktop.json(&["attach", &file.display().to_string(), "--session", &session])?;
    let fetched = server_b.home().cli(&args).json()?.expect(0)?;
    assert_eq!((number(&fetched, "/files/here")?, number(&fetched, "/files/missing")?), (1, 0), "{fetched}");
    Ok(())
}

/// Removes the one file below `dir` that holds these bytes.
fn lose(dir: &std::path::Path, bytes: &[u8]) -> Result<()> {
    let mut open = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            for entry in std::fs::read_dir(&path)? {
                open.push(entry?.path());
            }
        } else if std::fs::read(&path)? == bytes {
            return Ok(std::fs::remove_file(path)?);
        }
    }
    bail!("no file under {} holds the bytes", dir.display())
}
