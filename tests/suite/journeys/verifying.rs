//! Checks 23, 26 and 36: verdicts over files, one answer for what is absent and what is private, and words that stay words.

use std::fs;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::fixtures::{self, Fixture};
use super::{World, append, begin, lab, message, owner_home, plain_home, response};

fn judge(verified: &Value, fixture: &Fixture) {
    assert_eq!(verified["verdict"], fixture.name, "{verified}");
    assert_eq!(verified["session"], fixture.session.as_str(), "{verified}");
    let seq = |pointer: &str| verified.pointer(pointer).and_then(Value::as_u64);
    assert_eq!(seq("/firstProblem/seq"), fixture.first_problem, "{}: {verified}", fixture.name);
    assert_eq!(seq("/validThrough/seq"), fixture.valid_through, "{}: {verified}", fixture.name);
    let parts_at = seq("/tail/from/seq").or(seq("/fork/at/seq"));
    assert_eq!(parts_at, fixture.parts_at, "{}: {verified}", fixture.name);
}

#[test]
fn check_23_every_fixture_has_its_verdict_and_exit_code() -> Result<()> {
    let lab = lab()?;
    for fixture in fixtures::all() {
        let path = fixtures::dir().join(format!("{}.car", fixture.name)).display().to_string();
        let verified = lab.cli(&["verify", &path]).json()?.expect(fixture.rc)?;
        judge(&verified, &fixture);
        // The same bytes on stdin, and no file of the program's own anywhere.
        let piped = lab.cli(&["verify", "-"]).stdin(fixture.car.clone()).json()?.expect(fixture.rc)?;
        judge(&piped, &fixture);
        assert_eq!(fs::read_dir(lab.dir().join("user"))?.count(), 0, "verify leaves nothing behind");
    }
    Ok(())
}

#[test]
fn check_23_no_network_is_needed() -> Result<()> {
    let mut probe = Command::new("unshare");
    if !probe.args(["-rn", "true"]).output().is_ok_and(|output| output.status.success()) {
        println!("this machine makes no network namespaces: not run");
        return Ok(());
    }
    for fixture in fixtures::all() {
        let path = fixtures::dir().join(format!("{}.car", fixture.name));
        let mut command = Command::new("unshare");
        command.args(["-rn", env!("CARGO_BIN_EXE_throughline-under-test"), "verify", "--json"]).arg(path);
        let output = command.output()?;
        assert_eq!(output.status.code(), Some(fixture.rc), "{}", fixture.name);
        judge(&serde_json::from_slice(&output.stdout)?, &fixture);
    }
    Ok(())
}

#[test]
fn check_26_absent_and_private_look_the_same() -> Result<()> {
    let world = World::new()?;
    let private = world.session_on_a()?;
    let stranger = plain_home(&world.lab, "stranger", "none")?;
    let stranger = stranger.serve()?;
    stranger.home().json(&["peer", "add", "server-a", &world.server_a.ticket()?])?;
    let absent = fixtures::all().remove(0).session;
    let mut answers = Vec::new();
    for session in [&private, &absent] {
        let began = Instant::now();
        let audit = ["audit", session, "--from", "server-a"];
        let refused = stranger.home().cli(&audit).json()?.refused(4, "E_NOT_FOUND_YET")?;
        println!("not found after {:?}", began.elapsed());
        answers.push(refused.to_string().replace(session.as_str(), "S").replace(&session[8..16], "S"));
    }
    assert_eq!(answers[0], answers[1], "an answer tells whether a private session exists");
    Ok(())
}

#[test]
fn a_fetch_and_an_audit_say_how_far_they_are_beside_their_one_object() -> Result<()> {
    let world = World::new()?;
    let session = world.session_on_a()?;
    let desktop = world.desktop.home();
    for command in ["audit", "fetch"] {
        let ran = desktop.cli(&[command, &session, "--from", "server-a", "--progress", "json"]).json()?;
        let answer = ran.expect(0)?;
        let lines: Vec<Value> = ran.stderr.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let last = lines.last().context("expected lines of progress")?;
        assert_eq!((&last["kind"], &last["phase"]), (&"progress".into(), &command.into()), "{last}");
        assert_eq!(last["ended"], true, "{last}");
        assert_eq!(last["done"], answer["transfer"]["from"][0]["entries"], "{last}");
        if command == "audit" {
            // Whatever is held already, an audit sees everything.
            assert_eq!(last["total"], answer["checks"]["chain"]["entries"], "{last}");
            assert_eq!(last["done"], last["total"], "{last}");
            assert!(last["bytes"].as_u64() > Some(0), "{last}");
        }
    }
    // Not on a terminal there are lines instead of a bar. Everything is held now.
    let plain = desktop.cli(&["fetch", &session, "--from", "server-a"]).run()?;
    assert!(plain.stderr.starts_with("fetch: begins\nfetch: ended after "), "{}", plain.stderr);
    assert!(plain.stderr.contains(", 0 entries, "), "{}", plain.stderr);
    Ok(())
}

/// Bytes that would act on a terminal: a clipboard write, a cleared screen, text that runs backwards, an overwritten line.
const HOSTILE: &str = "\u{1b}]52;c;aGk=\u{7}\u{1b}[2J\u{202e}desrever\u{9b}31m\rharmless";

#[test]
fn check_36_words_of_others_stay_words_on_a_terminal() -> Result<()> {
    let lab = lab()?;
    let (home, owner) = owner_home(&lab, "a")?;
    let node = home.serve()?;
    let session = begin(&node, &format!("hm://{owner}/scout"), "hello")?;
    append(&node, &session, "ev-1", &message(HOSTILE))?.expect(201)?;
    append(&node, &session, "ev-2", &response(HOSTILE))?.expect(201)?;
    for args in [vec!["log", &session], vec!["show", &session], vec!["status"], vec!["list"]] {
        let terminal =
            home.cli(&args).env("NO_COLOR", "1").env("PAGER", "cat").env("TERM", "xterm").on_terminal()?;
        assert_eq!(terminal.code, Some(0), "{args:?}");
        let shown = String::from_utf8(terminal.bytes)?;
        let acts = |c: char| matches!(c, '\u{1b}' | '\u{7}' | '\u{9b}' | '\u{202e}');
        assert!(!shown.contains(acts), "{args:?} wrote {shown:?}");
        // The terminal itself puts a CR before each LF; no other may stand there.
        assert!(!shown.replace("\r\n", "\n").contains('\r'), "{args:?} wrote {shown:?}");
        if args[0] == "log" {
            assert!(shown.contains("\\u{1b}"), "{shown:?}");
            assert!(shown.contains("harmless"), "{shown:?}");
        }
    }
    Ok(())
}

/// What `docs/PERFORMANCE.md` measures with: a file that anybody can make again.
#[test]
fn the_file_of_the_measurements_is_valid_and_always_the_same() -> Result<()> {
    let lab = lab()?;
    let home = lab.home("m");
    let written = |name: &str| -> Result<std::path::PathBuf> {
        let path = lab.file(name, "")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_session-file"));
        let output = command.args(["--entries", "50", "--output"]).arg(&path).output()?;
        assert!(output.status.success(), "{output:?}");
        Ok(path)
    };
    let (first, second) = (written("first.car")?, written("second.car")?);
    assert_eq!(fs::read(&first)?, fs::read(&second)?);
    let verified = home.json(&["verify", &first.display().to_string()])?;
    assert_eq!(verified["verdict"], "valid", "{verified}");
    assert_eq!(verified["validThrough"]["seq"], 49, "{verified}");
    assert_eq!(verified["payloads"]["here"], 50, "{verified}");
    Ok(())
}
