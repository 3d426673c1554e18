//! The two verifiers over the same files: `throughline verify` and `verify/`, which was written from `docs/PROTOCOL.md` alone. Their
//! reports are the same, field by field, or one of them is wrong.
//!
//! Where the second verifier cannot run, only the verdicts of the first are tested, and that is said as `differential` says it.

mod cases;
mod documents;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::differential::second_verifier;
use crate::journeys::{fixtures, lab};
use crate::vectors::bad_input_files;
use cases::Case;

/// What the JavaScript verifier answers to records of one kind (`verify/README.md`), a line each; none where it cannot run.
fn javascript(kind: u8, files: &[&[u8]]) -> Result<Option<Vec<String>>> {
    let Some(differ) = second_verifier() else { return Ok(None) };
    let mut differ = Command::new("node").arg(differ).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut records = Vec::new();
    for file in files {
        records.push(kind);
        records.extend(u32::try_from(file.len())?.to_be_bytes());
        records.extend_from_slice(file);
    }
    let mut input = differ.stdin.take().context("a pipe")?;
    let writing = std::thread::spawn(move || input.write_all(&records));
    let output = differ.wait_with_output()?;
    writing.join().ok().context("the writer ends")??;
    ensure!(output.status.success(), "differ: {}", output.status);
    let lines: Vec<String> = String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect();
    ensure!(lines.len() == files.len(), "{} answers of {}", lines.len(), files.len());
    Ok(Some(lines))
}

fn rust(dir: &Path, file: &[u8]) -> Result<Value> {
    let car = dir.join("input.car");
    std::fs::write(&car, file)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_throughline-under-test"));
    command.env_clear().env("HOME", dir).args(["--no-input", "verify", "--json"]).arg(&car);
    Ok(serde_json::from_slice(&command.output()?.stdout)?)
}

/// Runs a command with a home of its own and reads its answer.
fn with_home(home: &Path, args: &[&str]) -> Result<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throughline-under-test"));
    command.env_clear().env("HOME", home).args(["--no-input", "--json", "--home"]).arg(home).args(args);
    Ok(serde_json::from_slice(&command.output()?.stdout)?)
}

/// Sessions that were judged or exported wrongly once, as `tests/cases/README.md` tells.
#[test]
fn what_fell_short_once_is_valid_in_both_and_as_it_is_exported() -> Result<()> {
    let home = tempfile::tempdir()?;
    with_home(home.path(), &["init", "--owner", "none"])?;
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases/found");
    let mut files: Vec<_> = std::fs::read_dir(found)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    ensure!(files.len() == 3, "{files:?}");
    for file in files {
        let name = file.to_str().context("a path of text")?;
        let imported = with_home(home.path(), &["import", name])?;
        let session = imported["session"].as_str().with_context(|| format!("{name}: {imported}"))?;
        let again = home.path().join("again.car");
        let target = again.to_str().context("a path of text")?;
        let exported = with_home(home.path(), &["export", session, "-o", target])?;
        ensure!(exported["kind"] == "export", "{name}: {exported}");
        let files = [std::fs::read(&file)?, std::fs::read(&again)?];
        for bytes in &files {
            let report = rust(home.path(), bytes)?;
            ensure!(report["verdict"] == "valid", "{name}: {report}");
        }
        if let Some(lines) = javascript(b'r', &[&files[0], &files[1]])? {
            for (line, bytes) in lines.iter().zip(&files) {
                let (theirs, ours) = (serde_json::from_str::<Value>(line)?, rust(home.path(), bytes)?);
                ensure!(comparable(&theirs) == comparable(&ours), "{name}: {theirs} and {ours}");
            }
        }
        std::fs::remove_file(again)?;
    }
    Ok(())
}

/// A report without what only one program can say: how long it took, who it is, what its clock shows, its own words for a refusal.
fn comparable(report: &Value) -> BTreeMap<String, Value> {
    let fields = report.as_object().cloned().unwrap_or_default();
    let mut fields: BTreeMap<String, Value> = fields.into_iter().collect();
    fields.remove("elapsedMs");
    fields.remove("verifier");
    fields.remove("ahead");
    if let Some(Value::Object(problem)) = fields.get_mut("firstProblem") {
        problem.remove("detail");
    }
    fields
}

/// How two reports of one file differ, a line for each field.
fn differences(name: &str, rust: &Value, javascript: &Value) -> Vec<String> {
    if rust["kind"] == "error" {
        // No session's file at all: an error of the command, a corrupt file for the library.
        let (one, other) = (&rust["error"]["code"], &javascript["firstProblem"]["code"]);
        let same = one == other && javascript["verdict"] == "corrupt";
        return if same { Vec::new() } else { vec![format!("{name}: {one}, in JavaScript {javascript}")] };
    }
    let (one, other) = (comparable(rust), comparable(javascript));
    let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
    keys.filter(|key| one.get(*key) != other.get(*key))
        .map(|key| format!("{name}: {key}: {:?}, in JavaScript {:?}", one.get(key), other.get(key)))
        .collect()
}

/// Compares the two over named files; the reports of the Rust verifier.
fn agree(files: &[(String, Vec<u8>)]) -> Result<Vec<Value>> {
    let lab = lab()?;
    let ours = files.iter().map(|(_, file)| rust(lab.dir(), file)).collect::<Result<Vec<_>>>()?;
    let bytes: Vec<&[u8]> = files.iter().map(|(_, file)| &file[..]).collect();
    if let Some(theirs) = javascript(b'r', &bytes)? {
        let theirs: Vec<Value> =
            theirs.iter().map(|line| serde_json::from_str(line)).collect::<Result<_, _>>()?;
        println!("{} files, read by both verifiers", files.len());
        let pairs = files.iter().zip(ours.iter().zip(&theirs));
        let faults: Vec<String> =
            pairs.flat_map(|((name, _), (one, other))| differences(name, one, other)).collect();
        ensure!(faults.is_empty(), "{} differences\n{}", faults.len(), faults.join("\n"));
    }
    Ok(ours)
}

#[test]
fn every_case_has_its_verdict_in_both() -> Result<()> {
    let cases = cases::all();
    let files: Vec<(String, Vec<u8>)> =
        cases.iter().map(|case| (case.name.to_owned(), case.car.clone())).collect();
    let reports = agree(&files)?;
    for (Case { name, verdict, code, head, .. }, report) in cases.iter().zip(&reports) {
        let told = (&report["verdict"], &report["firstProblem"]["code"], &report["checks"]["head"]["result"]);
        let expected = (&Value::from(*verdict), &Value::from(*code), &Value::from(*head));
        assert_eq!(told, expected, "{name}: {report:#}");
    }
    Ok(())
}

#[test]
fn every_bad_input_is_reported_alike() -> Result<()> {
    let inputs = bad_input_files();
    let files: Vec<(String, Vec<u8>)> = inputs.into_iter().map(|input| (input.name, input.file)).collect();
    agree(&files).map(|_| ())
}

#[test]
fn fixtures_are_reported_alike_whole_cut_and_changed() -> Result<()> {
    let mut files = Vec::new();
    for fixture in fixtures::all() {
        let car = fixture.car;
        let cuts = (0..car.len())
            .step_by(401)
            .map(|at| (format!("{} cut at {at}", fixture.name), car[..at].to_vec()));
        files.extend(cuts);
        for at in (0..car.len()).step_by(97) {
            let mut changed = car.clone();
            changed[at] ^= 1 << (at % 8);
            files.push((format!("{} changed at {at}", fixture.name), changed));
        }
        files.push((fixture.name.to_owned(), car));
    }
    agree(&files).map(|_| ())
}
