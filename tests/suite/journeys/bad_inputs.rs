//! Check 24: every bad input that is bytes, as a file for `throughline verify`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use throughline_node::outcome::{self, Exit};
use throughline_protocol::code::Code;

use super::lab;
use crate::vectors::bad_input_files;

/// Most resident memory of one `verify`.
const MEMORY_BYTES_MAX: u64 = 64 * 1_024 * 1_024;

/// Files of `bad-inputs.json`, so that none is lost unseen.
const FILES: usize = 166;

/// Inputs that a verifier of a file meets by an earlier rule than that of their row: the code, and why.
const EARLIER: &[(&str, &str, &str)] = &[
    ("SC06.1", "E_CAR_ORDER", "what does not call itself a session's blob has to be named by one"),
    ("SC06.3", "E_CAR_ORDER", "as before"),
];

/// How one `verify` ended.
struct Verified {
    rc: i32,
    answer: Value,
    took: Duration,
    memory_bytes: u64,
}

fn verify(dir: &Path, file: &[u8]) -> Result<Verified> {
    let (car, memory) = (dir.join("input.car"), dir.join("memory"));
    std::fs::write(&car, file)?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_peak-memory"));
    command.env_clear().env("HOME", dir).arg(&memory);
    command.args([env!("CARGO_BIN_EXE_throughline-under-test"), "--no-input", "verify", "--json"]).arg(&car);
    let began = Instant::now();
    let output = command.output()?;
    let took = began.elapsed();
    let text = String::from_utf8(output.stdout)?;
    ensure!(
        text.lines().count() == 1,
        "expected one line, got {text:?}, {:?}",
        String::from_utf8_lossy(&output.stderr)
    );
    let memory_bytes = std::fs::read_to_string(&memory)?.parse().context("a figure")?;
    Ok(Verified {
        rc: output.status.code().context("an exit code")?,
        answer: serde_json::from_str(&text)?,
        took,
        memory_bytes,
    })
}

/// The code or verdict of an answer, in the kind of word that is expected, and the exit code that belongs to it.
fn told(answer: &Value, expected: &str) -> (String, i32) {
    let at = |pointer: &str| answer.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    if answer["kind"] == "error" {
        let code = at("/error/code");
        let exit = code.parse::<Code>().map_or(Exit::Unexpected, |code| outcome::of(code).0);
        return (code, exit.number().into());
    }
    let word = match expected {
        code if code.starts_with("E_") => at("/firstProblem/code"),
        why if why.starts_with("EV_") => at("/fork/branches/0/why"),
        _ => at("/verdict"),
    };
    (word, Exit::of_verdict(&at("/verdict")).number().into())
}

#[test]
fn check_24_every_bad_input_has_its_code_and_exit_code() -> Result<()> {
    let lab = lab()?;
    let (mut slowest, mut largest) = (Duration::ZERO, 0);
    let mut faults = Vec::new();
    let inputs = bad_input_files();
    for input in &inputs {
        let verified = verify(lab.dir(), &input.file).with_context(|| input.name.clone())?;
        let earlier = EARLIER.iter().find(|(name, _, _)| *name == input.name);
        let expected = earlier.map_or(input.expected, |(_, code, _)| *code);
        let (word, rc) = told(&verified.answer, expected);
        // `E_CBOR` stands for any code of the bytes.
        let fits = word == expected || expected == "E_CBOR" && word.starts_with("E_CBOR_");
        if !fits || verified.rc != rc {
            let name = &input.name;
            faults.push(format!(
                "{name}: expected {expected}, got {word}, rc {} for {rc}: {}",
                verified.rc, verified.answer
            ));
        } else if expected.starts_with("E_") && !matches!(rc, 3 | 4) {
            faults.push(format!("{}: {expected} ends with {rc}", input.name));
        }
        ensure!(verified.memory_bytes < MEMORY_BYTES_MAX, "{}: {} bytes", input.name, verified.memory_bytes);
        slowest = slowest.max(verified.took);
        largest = largest.max(verified.memory_bytes);
    }
    println!("{} files; the slowest took {slowest:?}, the largest {largest} bytes of memory", inputs.len());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(inputs.len(), FILES);
    assert!(EARLIER.iter().all(|(name, _, _)| inputs.iter().any(|input| input.name == *name)));
    Ok(())
}
