//! `import` as a person meets it: before there is a node, a second time, and with other words than the first time.

use serde_json::{Value, json};
use throughline_examples::{CLAUDE_CODE, HALF_LINE};

use crate::support::cli::Cli;

/// A home, and a transcript beside it.
fn place(bytes: &[u8]) -> (tempfile::TempDir, Cli, String) {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("4f1c.jsonl");
    std::fs::write(&file, bytes).unwrap();
    let cli = Cli::new(place.path().join("home"));
    (place, cli, file.display().to_string())
}

fn source(answer: &Value) -> &Value {
    &answer["sources"][0]
}

#[test]
fn a_dry_run_needs_no_keys_and_leaves_nothing() {
    let (_place, cli, file) = place(CLAUDE_CODE);
    let dry = cli.ok(&["import", &file, "--dry-run"]);
    assert!(!cli.home().exists(), "nothing was made");
    for id in [&dry["signedBy"], &source(&dry)["session"], &source(&dry)["head"]] {
        assert_eq!(*id, Value::Null, "ids follow from keys, and there are none: {dry}");
    }
    let text = cli.run(&["import", &file, "--dry-run"]);
    assert!(
        text.stdout.contains("a dry run: nothing was stored") && !text.stdout.contains("throughline log"),
        "{text:?}"
    );
    assert!(text.stdout.contains("throughline init"), "{text:?}");
    cli.init_owner();
    let made = cli.ok(&["import", &file]);
    for key in ["lines", "entries", "attachments", "tally", "skipped", "repaired", "notCarried", "fileCid"] {
        assert_eq!(source(&dry)[key], source(&made)[key], "{key}");
    }
}

#[test]
fn a_dry_run_without_keys_tells_losses_and_reads_files_of_sessions() {
    let (_place, cli, file) = place(HALF_LINE);
    let (rc, dry) = cli.json(&["import", &file, "--dry-run"]);
    assert_eq!((rc, source(&dry)["skipped"].as_array().map(Vec::len)), (11, Some(1)), "{dry}");
    let fixtures = throughline_examples_dir();
    let valid = cli.ok(&["import", &format!("{fixtures}/valid.car"), "--dry-run"]);
    assert_eq!((&valid["verdict"], &valid["adopted"]), (&json!("valid"), &json!(false)), "{valid}");
    assert_eq!(cli.run(&["import", &format!("{fixtures}/corrupt.car"), "--dry-run"]).rc, 3);
    assert!(!cli.home().exists(), "nothing was made");
}

fn throughline_examples_dir() -> String {
    crate::support::tests::root().join("examples/fixtures").display().to_string()
}

#[test]
fn a_session_keeps_its_agent_and_nobody_is_left_to_think_otherwise() {
    let (_place, cli, file) = place(CLAUDE_CODE);
    let owner = cli.init_owner()["owner"]["principal"].as_str().unwrap().to_owned();
    let (scout, other) = (format!("hm://{owner}/scout"), format!("hm://{owner}/other"));
    let made = cli.ok(&["import", &file, "--agent", &scout]);
    let session = source(&made)["session"].as_str().unwrap();
    let listed = || cli.ok(&["list"])["items"].clone();
    let held = listed();
    let (rc, refused) = cli.json(&["import", &file, "--agent", &other]);
    assert_eq!((rc, &refused["error"]["code"]), (2, &json!("E_USAGE")), "{refused}");
    let detail = refused["error"]["detail"].as_str().unwrap();
    assert!(detail.contains(&scout) && detail.contains(&other), "{detail}");
    assert_eq!(refused["error"]["session"], session);
    // The same words again, and fewer words, change nothing and fail at nothing.
    for words in [&["import", file.as_str(), "--agent", scout.as_str()][..], &["import", &file]] {
        let again = cli.ok(words);
        assert_eq!(
            (&source(&again)["session"], &source(&again)["created"]),
            (&json!(session), &json!(false))
        );
        assert_eq!(source(&again)["entries"], json!({}));
    }
    assert_eq!(listed(), held);
    // What grew goes on as that agent's session, whether or not it is named.
    let grown = [CLAUDE_CODE, grown_line().as_bytes()].concat();
    std::fs::write(&file, grown).unwrap();
    let more = cli.ok(&["import", &file]);
    assert_eq!((&source(&more)["session"], &more["created"]), (&json!(session), &json!(false)), "{more}");
    assert_eq!(cli.ok(&["show", session])["agent"], scout);
}

/// A line that Claude Code might have added.
fn grown_line() -> String {
    let text = String::from_utf8(CLAUDE_CODE.to_vec()).unwrap();
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let last = lines.rfind(|line| line["type"] == "user" && line["uuid"].is_string()).unwrap();
    let mut line = last.clone();
    line["parentUuid"] = last["uuid"].clone();
    line["uuid"] = json!("00000000-0000-4000-8000-00000000aaaa");
    line["message"] = json!({"role": "user", "content": "and one more thing"});
    format!("{line}\n")
}

#[test]
fn a_class_that_does_not_count_any_more_is_told() {
    let (_place, cli, file) = place(CLAUDE_CODE);
    cli.init_owner();
    cli.ok(&["import", &file]);
    let again = cli.run(&["import", &file, "--class", "confidential"]);
    assert!(again.rc == 0 && again.stdout.contains("it stays internal, not confidential"), "{again:?}");
    let same = cli.run(&["import", &file, "--class", "internal"]);
    assert!(same.rc == 0 && !same.stdout.contains("it stays"), "{same:?}");
    let car = format!("{}/valid.car", throughline_examples_dir());
    for words in
        [["--class", "internal"], ["--agent", "hm://z6MkgtMBWPJuCgRbMDc3qK63wXVMtHLHoGmx3zyub1Q1fHdz/x"]]
    {
        let (rc, refused) = cli.json(&["import", &car, words[0], words[1]]);
        assert_eq!((rc, &refused["error"]["code"]), (2, &json!("E_USAGE")), "a CAR has both: {refused}");
    }
}

#[test]
fn who_cannot_sign_as_owner_is_told_who_can() {
    let place = tempfile::tempdir().unwrap();
    let (desktop, server) = (Cli::new(place.path().join("d")), Cli::new(place.path().join("s")));
    let owner = desktop.init_owner()["owner"]["principal"].as_str().unwrap().to_owned();
    server.ok(&["init", "--role", "server", "--owner", &owner]);
    for args in [&["anchor", "--all"][..], &["grant", "self"], &["revoke", "self"]] {
        let (rc, refused) = server.json(args);
        assert_eq!((rc, &refused["error"]["code"]), (8, &json!("E_OWNER_KEY")), "{args:?} {refused}");
        let detail = refused["error"]["detail"].as_str().unwrap();
        assert!(detail.contains(&owner) && detail.contains("only the machine that has it"), "{detail}");
    }
    let reader = Cli::new(place.path().join("r"));
    reader.ok(&["init", "--owner", "none"]);
    let (_, refused) = reader.json(&["anchor", "--all"]);
    assert!(refused["error"]["hint"].as_str().unwrap().contains("init --owner new"), "{refused}");
    // Nobody to ask is another thing than nobody who has it.
    let stranger = "bafyreifvvi5bg4mviejvzqrzxvhyddq3t3miussavkkndabs5q43jjtuhe";
    for command in ["fetch", "audit"] {
        let (rc, refused) = reader.json(&[command, stranger]);
        assert_eq!(rc, 4, "{refused}");
        let text = |key: &str| refused["error"][key].as_str().unwrap().to_owned();
        assert!(text("detail").contains("no peer is known here"), "{refused}");
        assert!(text("hint").contains("--from TICKET") && text("hint").contains("peer add"), "{refused}");
    }
}
