//! What is held: counted as it is, written whole into a file, let go only on purpose, and whose grants are whose.

use std::path::Path;

use serde_json::{Value, json};

use throughline_tests::with_files::{WithFiles, Without};

use crate::support::cli::Cli;

/// A file below `examples`.
fn example(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(path).display().to_string()
}

/// A node with an owner, and an imported session.
fn with_session(home: &Path) -> (Cli, String) {
    let cli = Cli::new(home);
    cli.init_owner();
    let imported = cli.ok(&["import", &example("sessions/claude-code.jsonl")]);
    let session = imported.pointer("/sources/0/session").and_then(Value::as_str).unwrap().to_owned();
    (cli, session)
}

#[test]
fn a_session_in_dispute_is_counted_as_its_file_is() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d"));
    cli.ok(&["init", "--owner", "none"]);
    for (name, rc) in [("forked", 5), ("revoked-tail", 6), ("fenced-tail", 6)] {
        let file = example(&format!("fixtures/{name}.car"));
        let (of_file, filed) = cli.json(&["verify", &file]);
        assert_eq!(cli.json(&["import", &file]).0, rc, "{name}");
        let session = filed["session"].as_str().unwrap();
        for which in ["present", "all"] {
            let (of_held, held) = cli.json(&["verify", session, "--payloads", which]);
            let counted = |of: &Value| (of["payloads"]["linked"].clone(), of["payloads"]["here"].clone());
            assert_eq!((of_held, counted(&held)), (of_file, counted(&filed)), "{name}");
            assert_eq!(held["payloads"]["missing"], 0, "{held}");
        }
    }
}

/// The fixtures are of one owner: what one file tells of a key is held when the next is taken in.
#[test]
fn an_import_gives_the_verdict_of_the_node_and_beside_it_that_of_the_file() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d"));
    cli.ok(&["init", "--owner", "none"]);
    let (revoked, forked) = (example("fixtures/revoked-tail.car"), example("fixtures/forked.car"));
    let (_, alone) = cli.json(&["import", &revoked]);
    assert_eq!((&alone["verdict"], &alone["fileVerdict"]), (&json!("revoked-tail"), &Value::Null), "{alone}");
    let (rc, imported) = cli.json(&["import", &forked]);
    let session = imported["session"].as_str().unwrap();
    let (held, judged) = cli.json(&["verify", session]);
    assert_ne!(judged["verdict"], "forked", "the tombstone of the first file counts: {judged}");
    assert_eq!((rc, &imported["verdict"]), (held, &judged["verdict"]), "{imported}");
    assert_eq!((&imported["fileVerdict"], &imported["adopted"]), (&json!("forked"), &json!(true)));
    assert_eq!((&imported["tail"], &imported["fork"]), (&judged["tail"], &judged["fork"]));
    let text = cli.run(&["import", &forked]).stdout;
    assert!(text.contains("the file by itself is forked"), "{text}");
}

#[test]
fn the_file_of_a_session_that_was_just_published_says_so() {
    let place = tempfile::tempdir().unwrap();
    let (cli, session) = with_session(&place.path().join("d"));
    cli.ok(&["publish", &session, "--yes"]);
    let shown = cli.ok(&["show", &session]);
    assert_eq!((&shown["class"], &shown["pending"]), (&json!("public"), &json!(1)), "{shown}");
    let file = place.path().join("public.car").display().to_string();
    cli.ok(&["export", &session, "-o", &file]);
    let checks = cli.ok(&["verify", &file])["checks"].clone();
    assert_eq!(checks["head"]["result"], "pass", "{checks}");
    let other = Cli::new(place.path().join("o"));
    other.ok(&["init", "--owner", "none"]);
    other.ok(&["import", &file]);
    let copy = other.ok(&["show", &session]);
    assert_eq!((&copy["class"], &copy["tip"]), (&json!("public"), &shown["tip"]), "{copy}");
}

#[test]
fn the_only_copy_is_let_go_on_purpose_only() {
    let place = tempfile::tempdir().unwrap();
    let (cli, session) = with_session(&place.path().join("d"));
    let is_pinned = || cli.ok(&["show", &session])["pinned"] == true;
    let (rc, refused) = cli.json(&["unpin", &session]);
    assert_eq!((rc, &refused["error"]["code"]), (2, &json!("E_PROMPT")), "{refused}");
    assert!(
        refused["error"]["detail"].as_str().unwrap().contains("no peer has told that it has it"),
        "{refused}"
    );
    assert!(is_pinned());
    let row = |said: &str| cli.run(&["show", &session]).stdout.lines().any(|line| line == said);
    assert!(row("pinned  yes"));
    cli.ok(&["unpin", &session, "--yes"]);
    assert!(!is_pinned() && row("pinned  no, it goes when space is needed"));
    // What is not kept is not asked about.
    cli.ok(&["unpin", &session]);
}

#[test]
fn the_grants_of_other_owners_are_told_apart() {
    let place = tempfile::tempdir().unwrap();
    let (theirs, session) = with_session(&place.path().join("t"));
    let file = place.path().join("theirs.car").display().to_string();
    theirs.ok(&["export", &session, "-o", &file]);
    let cli = Cli::new(place.path().join("d"));
    cli.init_owner();
    cli.ok(&["import", &file]);
    let owner = theirs.ok(&["show", &session])["owner"].as_str().unwrap().to_owned();
    let listed = cli.run(&["grants"]);
    let lines: Vec<&str> = listed.stdout.lines().collect();
    let by: Vec<bool> = lines.iter().map(|line| line.contains(&format!("by {}", &owner[..8]))).collect();
    assert_eq!(by[..2], [false, false], "one's own stand first: {listed:?}");
    assert!(by.len() > 2 && by[2..].iter().all(|by| *by), "{listed:?}");
}

#[test]
fn a_transcript_says_where_others_part_from_it_and_shows_them() {
    let place = tempfile::tempdir().unwrap();
    for (name, status) in [("forked", "forked"), ("revoked-tail", "revoked"), ("fenced-tail", "fenced")] {
        let file = example(&format!("fixtures/{name}.car"));
        // A home each: the fixtures are of one owner, and a tombstone in one of them is for all.
        let cli = Cli::new(place.path().join(name));
        cli.ok(&["init", "--owner", "none"]);
        let session = cli.json(&["import", &file]).1["session"].as_str().unwrap().to_owned();
        let aside = cli.ok(&["show", &session])["aside"].as_array().unwrap().clone();
        let first = aside.iter().map(|entry| entry["seq"].as_u64().unwrap()).min().unwrap();
        let text = cli.run(&["log", &session]).stdout;
        let notice = format!("! beside the chain: {} entr", aside.len());
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| line.starts_with(&notice)).unwrap_or_else(|| panic!("{text}"));
        assert!(lines[at].contains(&format!("[{status}]")), "{text}");
        let seq_of = |line: &&&str| line.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
        assert!(lines[..at].iter().filter_map(|line| seq_of(&line)).all(|seq| seq < first), "{text}");
        assert!(lines[at..].iter().filter_map(|line| seq_of(&line)).all(|seq| seq >= first), "{text}");
        let beside = cli.ok(&["log", &session, "--beside"]);
        let items = beside["items"].as_array().unwrap();
        assert_eq!(items.len(), aside.len(), "{beside}");
        assert!(
            items.iter().all(|item| item["status"] == status && item["payload"] == "present"),
            "{beside}"
        );
        assert!(items.is_sorted_by_key(|item| item["seq"].as_u64()), "{beside}");
        let text = cli.run(&["log", &session, "--beside"]).stdout;
        assert_eq!(text.matches(&format!("[{status}]")).count(), aside.len(), "{text}");
    }
}

#[test]
fn a_car_comes_in_on_stdin_and_a_transcript_says_why_it_does_not() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d"));
    cli.init_owner();
    let car = std::fs::read(example("fixtures/valid.car")).unwrap();
    let imported = cli.run_with_stdin(&["import", "-", "--json"], &car);
    assert_eq!(imported.rc, 0, "{imported:?}");
    let answer = imported.object();
    assert_eq!(answer["adopted"], true, "{answer}");
    cli.ok(&["show", answer["session"].as_str().unwrap()]);
    let mut transcript = b"\xef\xbb\xbf".to_vec();
    transcript.extend(std::fs::read(example("sessions/claude-code.jsonl")).unwrap());
    let refused = cli.run_with_stdin(&["import", "-", "--json"], &transcript);
    assert_eq!((refused.rc, refused.error_code().as_str()), (2, "E_USAGE"), "{refused:?}");
    assert!(refused.stdout.contains("known again by the name of its file"), "{refused:?}");
    let file = place.path().join("marked.jsonl");
    std::fs::write(&file, transcript).unwrap();
    assert_eq!(cli.ok(&["import", file.to_str().unwrap()])["created"], true);
}

/// Words and files that a session names and that are nowhere: each road counts them alike, and each ends alike when they were asked for.
#[test]
fn what_was_asked_for_and_is_missing_ends_alike_on_every_road() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("d"));
    cli.ok(&["init", "--owner", "none"]);
    let files = WithFiles::new();
    let session = files.session.session().to_string();
    let path = |name: &str| place.path().join(name).display().to_string();
    let counts = |here: u64, missing: u64, withdrawn: u64| {
        json!({
            "linked": here + missing + withdrawn, "here": here, "missing": missing, "withdrawn": withdrawn, "asked": true,
        })
    };
    // From the one that lacks most to the one that lacks nothing: what came once stays.
    for (without, payloads, named, held) in [
        (Without::Words, counts(0, 5, 1), counts(0, 0, 0), counts(0, 0, 0)),
        (Without::FileAndConfig, counts(4, 1, 1), counts(1, 1, 0), counts(1, 1, 0)),
        (Without::APart, counts(5, 0, 1), counts(1, 1, 0), counts(2, 0, 0)),
        (Without::Nothing, counts(5, 0, 1), counts(2, 0, 0), counts(2, 0, 0)),
    ] {
        let (file, copy) = (path("in.car"), path("out.car"));
        std::fs::write(&file, files.car(without)).unwrap();
        let lacks = |of: &Value| of["payloads"]["missing"] != 0 || of["files"]["missing"] != 0;
        let expect = |args: &[&str], of_files: &Value| -> Value {
            let (rc, answer) = cli.json(args);
            assert_eq!(
                (&answer["payloads"], &answer["files"]),
                (&payloads, of_files),
                "{without:?} {args:?}"
            );
            assert_eq!(rc, if lacks(&answer) { 11 } else { 0 }, "{without:?} {args:?}: {answer}");
            answer
        };
        expect(&["verify", &file, "--payloads", "all"], &named);
        assert_eq!(cli.json(&["verify", &file]).0, 0, "{without:?}: nobody asked for more than is there");
        expect(&["import", &file], &held);
        expect(&["verify", &session, "--payloads", "all"], &held);
        assert_eq!(cli.json(&["verify", &session]).0, 0, "{without:?}");
        expect(&["export", &session, "-o", &copy], &held);
        let checked = expect(&["fsck", "--payloads", "all"], &held);
        assert_eq!(checked["lacking"].as_array().unwrap().len(), usize::from(lacks(&checked)), "{checked}");
        assert_eq!(cli.json(&["fsck"]).0, 0, "{without:?}: what is not here is not damaged");
        expect(&["verify", &copy, "--payloads", "all"], &held);
        // The same words, with what to do.
        for args in [&["verify", &session, "--payloads", "all"][..], &["export", &session, "-o", &copy]] {
            let text = cli.run(args).stdout;
            let fix = format!("throughline fetch {session} --payloads all --from PEER");
            let said = text.contains("done, with losses (exit 11)") && text.contains(&fix);
            assert_eq!(said, lacks(&checked), "{without:?} {args:?}: {text}");
        }
    }
}
