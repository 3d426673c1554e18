//! Check 38, its second half: what the commands print with `--json` is what `docs/schemas` says.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::schema::Schemas;
use crate::support::tests::root;

/// Holds answers against their schemas and remembers the kinds that it met.
struct Held {
    cli: Cli,
    schemas: Schemas,
    met: RefCell<BTreeSet<String>>,
}

impl Held {
    fn run(&self, args: &[&str]) -> Value {
        self.check(args, self.cli.json(args).1)
    }

    fn run_with_stdin(&self, args: &[&str], stdin: &Value) -> Value {
        let args = [args, &["--json"]].concat();
        let run = self.cli.run_with_stdin(&args, stdin.to_string().as_bytes());
        self.check(&args, run.object())
    }

    fn check(&self, args: &[&str], answer: Value) -> Value {
        let kind = answer["kind"].as_str().expect("a kind").to_owned();
        assert!(self.schemas.kinds().any(|known| known == kind), "{args:?}: no schema for {kind}");
        let faults = self.schemas.faults(&answer);
        assert!(faults.is_empty(), "{args:?}\n{}\n{answer}", faults.join("\n"));
        self.met.borrow_mut().insert(kind);
        answer
    }
}

/// Kinds whose answers another test holds against their schemas, because they take more than a node: and which one.
const ELSEWHERE: &[(&str, &str)] = &[("demo", "check_01_the_demo_moves_verifies_and_refuses")];

/// What another node answers about a session that it gets from this one.
fn hold_transfers(held: &Held, session: &str, place: &Path) {
    let serving = held.cli.serve(&[]);
    let ticket = held.run(&["id"])["ticket"].as_str().map(str::to_owned).unwrap();
    let page = held.cli.run(&["api", "curl", &format!("/v1/sessions/{session}/entries?limit=1")]);
    held.check(&["api", "curl"], serde_json::from_str(&page.stdout).unwrap());
    let reader = Cli::new(place.join("b"));
    reader.ok(&["init", "--owner", "none"]);
    let answers = ["audit", "fetch"].map(|command| reader.json(&[command, session, "--from", &ticket]));
    for (rc, answer) in answers {
        assert_eq!(rc, 0, "{answer}");
        held.check(&["fetch or audit"], answer);
    }
    assert_eq!(serving.stop(), 0);
}

/// Evidence of every kind that the fixtures give, on its way out and in.
fn hold_evidence(held: &Held, place: &Path) {
    for fixture in ["forked", "revoked-tail", "fenced-tail"] {
        let taken = held.cli.json(&["import", &path(&format!("fixtures/{fixture}.car"))]).1;
        let session = taken["session"].as_str().unwrap_or_else(|| panic!("{taken}"));
        held.run(&["fork", session]);
        let file = place.join(format!("{fixture}-evidence.car")).display().to_string();
        let exported = held.run(&["fork", "export", session, "-o", &file]);
        assert_eq!(exported["kind"], "evidence", "{exported}");
        held.run(&["fork", "import", &file]);
    }
}

fn path(below: &str) -> String {
    root().join("examples").join(below).display().to_string()
}

#[test]
fn check_38_answers_are_what_their_schemas_say() {
    let place = tempfile::tempdir().unwrap();
    let cli = Cli::new(place.path().join("a"));
    let held = Held { cli, schemas: Schemas::load(), met: RefCell::default() };
    held.run(&["import", &path("sessions/claude-code.jsonl"), "--dry-run"]);
    held.run(&["init", "--owner", "new", "--no-passphrase"]);
    held.run(&["init", "--owner", "new", "--no-passphrase"]);
    let imported = held.run(&["import", &path("sessions/claude-code.jsonl")]);
    held.run(&["import", &path("sessions/half-line.jsonl")]);
    let session = imported.pointer("/sources/0/session").and_then(Value::as_str).unwrap();
    let file = place.path().join("a.car").display().to_string();
    for args in [
        &["list"][..],
        &["status"],
        &["show", session],
        &["show", &format!("{session}:0")],
        &["show", &format!("{session}:head")],
        &["log", session],
        &["verify", session],
        &["id"],
        &["peer", "list"],
        &["grants"],
        &["fsck"],
        &["fsck", "--repair", "--dry-run"],
        &["explain", "E_SEQ"],
        &["config", "show"],
        &["version"],
        &["export", session, "-o", &file],
        &["verify", &file, "--payloads", "all"],
        &["fork", session],
        &["pin", session],
        &["key", "show"],
        &["config", "check"],
        &["move", session, "--to", "self", "--dry-run"],
        &["publish", session, "--yes"],
        &["anchor", session],
        // Once more: nothing is signed.
        &["anchor", session],
        // Refusals of every fault.
        &["push"],
        &["show", "nosuch"],
        &["verify", "nosuch.car"],
        &["config", "show", "--nosuch"],
    ] {
        held.run(args);
    }
    held.run_with_stdin(&["append", session], &json!({"type": "SessionNote", "kind": "close"}));
    held.run_with_stdin(&["append", session], &json!({"type": "SessionNote", "kind": "nosuch"}));
    let reader = held.run(&["id"])["principal"].as_str().map(str::to_owned).unwrap();
    held.run(&["grant", &reader, "--role", "reader"]);
    held.run(&["revoke", &reader, "--yes"]);
    // Every verdict: what was cut and what forked stands in none other.
    for fixture in ["valid", "sealed", "incomplete", "forked", "revoked-tail", "fenced-tail", "corrupt"] {
        let answer = held.run(&["verify", &path(&format!("fixtures/{fixture}.car"))]);
        assert_eq!(answer["verdict"], fixture);
    }
    hold_transfers(&held, session, place.path());
    hold_evidence(&held, place.path());
    let tests = crate::support::tests::all();
    for (kind, test) in ELSEWHERE {
        assert!(tests.contains_key(*test), "{kind} is held by {test}, which is not there");
        held.met.borrow_mut().insert((*kind).to_owned());
    }
    let unmet: Vec<&str> = held.schemas.kinds().filter(|kind| !held.met.borrow().contains(*kind)).collect();
    assert!(unmet.is_empty(), "schemas that no answer was held against: {unmet:?}");
    assert!(Path::new(&file).exists());
}

#[test]
fn a_schema_refuses_what_it_does_not_say() {
    let schemas = Schemas::load();
    let counts = json!({"linked": 1, "here": 1, "missing": 0, "withdrawn": 0, "asked": true});
    let good = json!({
        "v": 1, "kind": "export", "session": "bafyreigkswecr3oc3", "path": "a.car", "payloads": counts, "files": counts,
        "sha256": "0".repeat(64), "sizeBytes": 7, "more": "may come",
    });
    assert_eq!(schemas.faults(&good), Vec::<String>::new());
    for (key, wrong) in [
        ("v", json!(2)),
        ("session", json!("Qm")),
        ("path", Value::Null),
        ("sha256", json!("0")),
        ("sizeBytes", json!(-1)),
        ("sizeBytes", json!("7")),
    ] {
        let mut bad = good.clone();
        bad[key] = wrong;
        assert_eq!(schemas.faults(&bad).len(), 1, "{key}: {:?}", schemas.faults(&bad));
    }
    let mut bad = good;
    bad.as_object_mut().unwrap().remove("path");
    assert_eq!(schemas.faults(&bad).len(), 1);
    // Within a list, and within what may be null.
    let mut answer = json!({"v": 1, "kind": "sessions", "next": null, "items": []});
    assert!(schemas.faults(&answer).is_empty());
    answer["items"] = json!([{"session": "x"}]);
    assert!(schemas.faults(&answer).iter().any(|fault| fault.starts_with("/items/0/session")));
}
