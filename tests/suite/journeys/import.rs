//! Checks 7–9: a transcript comes in whole, once, and what is broken in it is told.

use std::fs;

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
    assert!(after > before, "{grown}");
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
