//! Checks 7–9: a transcript comes in whole, once, and what is broken in it is told.

use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::{lab, list, number, owner_home, text};

/// The recorded session that ships with the program.
const RECORDED: &[u8] = throughline_examples::CLAUDE_CODE;

#[test]
fn check_07_a_recorded_session_comes_in_without_loss() -> Result<()> {
    let lab = lab()?;
    let (home, _) = owner_home(&lab, "d")?;
    let file = lab.file("claude-code.jsonl", RECORDED)?.display().to_string();
    let imported = home.json(&["import", &file])?;
    let source = &imported["sources"][0];
    assert_eq!(source["skipped"], json!([]), "{imported}");
    assert_eq!(imported["anchored"], true, "{imported}");
    let expected: Value = serde_json::from_str(throughline_examples::CLAUDE_CODE_EXPECTED)?;
    assert_eq!(source["entries"], with_sub_sessions(&expected), "{imported}");
    assert_eq!(source["lines"], expected["lines"], "{imported}");
    let session = text(source, "/session")?;
    let verified = home.json(&["verify", session])?;
    assert_eq!(verified["verdict"], "valid", "{verified}");
    assert_eq!(verified["anchoredThrough"]["seq"], source["head"]["seq"], "{verified}");
    Ok(())
}

/// The entries of the session and of its sub-sessions, by kind.
fn with_sub_sessions(expected: &Value) -> Value {
    let mut total = serde_json::Map::new();
    let sessions = std::iter::once(expected).chain(expected["subSessions"].as_array().into_iter().flatten());
    for (kind, count) in sessions.filter_map(|session| session["entries"].as_object()).flatten() {
        let sum = total.get(kind).and_then(Value::as_u64).unwrap_or(0) + count.as_u64().unwrap_or(0);
        total.insert(kind.clone(), sum.into());
    }
    total.into()
}

#[test]
fn check_08_a_second_import_adds_only_what_is_new() -> Result<()> {
    let lab = lab()?;
    let (home, _) = owner_home(&lab, "d")?;
    let lines: Vec<&[u8]> = RECORDED.split_inclusive(|byte| *byte == b'\n').collect();
    let (most, last_two) = lines.split_at(lines.len() - 2);
    let path = lab.file("growing.jsonl", most.concat())?;
    let file = path.display().to_string();
    let first = home.json(&["import", &file])?;
    let again = home.json(&["import", &file])?;
    assert_eq!(again["sources"][0]["created"], false, "{again}");
    assert_eq!(again["sources"][0]["head"], first["sources"][0]["head"], "{again}");

    fs::write(&path, [most.concat(), last_two.concat()].concat())?;
    let grown = home.json(&["import", &file])?;
    let session = text(&first, "/sources/0/session")?;
    assert_eq!(text(&grown, "/sources/0/session")?, session);
    let (before, after) = (number(&first, "/sources/0/head/seq")?, number(&grown, "/sources/0/head/seq")?);
    // The two lines are a title and one that is kept raw; the note is of this import.
    assert_eq!(grown["sources"][0]["entries"], json!({"sessionNote": 2}), "{grown}");
    assert_eq!(after - before, 2, "{grown}");
    let added = home.json(&["log", session, "--from", &(before + 1).to_string()])?;
    let kinds: Vec<&str> =
        list(&added, "/items")?.iter().map(|item| text(item, "/body/kind")).collect::<Result<_>>()?;
    assert_eq!(kinds, ["title", "import"], "{added}");
    // What was there stays where it was.
    let head_before = text(&first, "/sources/0/head/cid")?;
    let shown = home.json(&["show", &format!("{session}:{before}")])?;
    assert_eq!(text(&shown, "/cid")?, head_before);
    assert_eq!(home.json(&["verify", session])?["verdict"], "valid");

    // A whole import of the same file elsewhere has the same messages.
    let whole = home.json(&["import", &file])?;
    assert_eq!(whole["sources"][0]["created"], false, "{whole}");
    Ok(())
}

#[test]
fn check_09_a_line_that_was_cut_is_kept_and_told() -> Result<()> {
    let lab = lab()?;
    let (home, _) = owner_home(&lab, "d")?;
    let file = lab.file("half-line.jsonl", throughline_examples::HALF_LINE)?.display().to_string();
    let imported = home.cli(&["import", &file]).json()?.expect(11)?;
    let skipped = list(&imported, "/sources/0/skipped")?;
    assert_eq!(skipped.len(), 1, "{imported}");
    assert_eq!(skipped[0]["line"], 3, "{imported}");
    assert_eq!(skipped[0]["reason"], "E_JSON", "{imported}");
    let session = text(&imported, "/sources/0/session")?;
    let log = home.json(&["log", session])?;
    let after = list(&log, "/items")?
        .iter()
        .filter(|item| item["source"]["line"].as_u64().is_some_and(|line| line > 3));
    assert!(after.count() > 0, "later lines are there: {log}");
    Ok(())
}

/// Every transcript that other tools broke on: its lines, those of them that are turns (the first, where one message has
/// several), lines joined to another's entry, and lines kept raw.
const CASES: &[(&str, u64, &[u64], u64, u64)] = &[
    ("c01_dangling_parallel_tool_use.claude.jsonl", 5, &[1, 2, 4, 5], 1, 0),
    ("c04_one_message_many_lines.claude.jsonl", 6, &[1, 2, 5, 6], 2, 0),
    ("c05_broken_parent_chain.claude.jsonl", 8, &[1, 3, 4, 6, 8], 0, 3),
    ("public/claude_edge_cases.jsonl", 19, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 18], 0, 6),
    ("public/claude_representative_messages.jsonl", 12, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 0, 0),
    ("public/claude_todowrite_examples.jsonl", 12, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 0, 0),
];

#[test]
fn what_other_tools_broke_on_comes_into_a_store_whole_and_once() -> Result<()> {
    let lab = lab()?;
    let (home, _) = owner_home(&lab, "d")?;
    for &(name, lines, turns, joined, raw) in CASES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(name).display().to_string();
        // 11 is for lines that are no JSON and payloads that are missing: a turn that is kept raw is neither.
        let imported = home.cli(&["import", &path]).json()?.expect(0)?;
        let source = &imported["sources"][0];
        assert_eq!((&source["lines"], &source["skipped"]), (&json!(lines), &json!([])), "{name}: {imported}");
        let carried = lines - joined - raw;
        let tally = json!({"carried": carried, "joined": joined, "raw": raw, "skipped": 0, "duplicate": 0});
        assert_eq!(source["tally"], tally, "{name}");
        let not_carried: u64 =
            list(source, "/notCarried")?.iter().filter_map(|what| what["count"].as_u64()).sum();
        assert_eq!(not_carried, raw, "{name}: {source}");
        assert_eq!(source["messages"], source["reachable"], "{name}");

        let session = text(source, "/session")?;
        let log = home.json(&["log", session])?;
        assert_eq!(turns_of(&log)?, turns, "{name}: {log}");
        assert_eq!(home.json(&["verify", session])?["verdict"], "valid", "{name}");

        let again = home.cli(&["import", &path]).json()?.expect(0)?;
        let second = &again["sources"][0];
        assert_eq!((&second["created"], &second["entries"]), (&json!(false), &json!({})), "{name}: {again}");
        assert_eq!((&second["session"], &second["head"]), (&source["session"], &source["head"]), "{name}");
        assert_eq!(home.json(&["log", session])?, log, "{name}: a second import changes nothing");
    }
    assert_eq!(list(&home.json(&["list"])?, "/items")?.len(), CASES.len(), "a session each");
    Ok(())
}

/// The lines of a transcript that a log shows as turns, each with its words.
fn turns_of(log: &Value) -> Result<Vec<u64>> {
    let mut lines = Vec::new();
    for item in list(log, "/items")? {
        if ["SessionUserMessage", "SessionModelResponse", "SessionToolCall"].contains(&text(item, "/type")?) {
            assert!(item["body"].as_object().is_some_and(|words| !words.is_empty()), "no words: {item}");
            lines.push(number(item, "/source/line")?);
        }
    }
    Ok(lines)
}
