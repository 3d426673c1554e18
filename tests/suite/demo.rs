//! Checks 1 and 2: the first command of the README does what it says, and leaves nothing behind.

use std::fs;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use throughline_testnet::Lab;

use crate::journeys::{lab, text};
use crate::support::schema::Schemas;

/// The demo's directories below the lab's own temporary directory.
fn left_behind(lab: &Lab) -> Result<Vec<String>> {
    let names =
        fs::read_dir(lab.dir())?.flatten().map(|file| file.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.starts_with("tl-demo-")).collect())
}

fn demo(lab: &Lab, args: &[&str]) -> throughline_testnet::Invocation {
    lab.cli(&[&["demo"], args].concat()).env("TMPDIR", lab.dir())
}

#[test]
fn check_01_the_demo_moves_verifies_and_refuses() -> Result<()> {
    let lab = lab()?;
    let report = demo(&lab, &[]).json()?.expect(0)?;
    assert_eq!(report["move"]["to"]["epoch"], 1, "{report}");
    assert_eq!(report["offlineMove"]["to"]["epoch"], 1, "{report}");
    assert_eq!(report["verify"]["verdict"], "valid", "{report}");
    assert_eq!(report["audit"]["verdict"], "valid", "{report}");
    assert_eq!(report["tamper"]["code"], "E_CID_MISMATCH", "{report}");
    assert_eq!(report["tamper"]["stored"], 0, "{report}");
    assert!(["revoked-tail", "fenced-tail"].contains(&text(&report, "/forged/verdict")?), "{report}");
    let faults = Schemas::load().faults(&report);
    assert!(faults.is_empty(), "{}\n{report}", faults.join("\n"));
    println!("the demo took {} ms", report["elapsedMs"]);
    assert_eq!(left_behind(&lab)?, [] as [String; 0]);
    Ok(())
}

#[test]
fn check_01_the_demo_tells_its_story_to_a_reader() -> Result<()> {
    let lab = lab()?;
    let ran = demo(&lab, &[]).run()?;
    assert_eq!(ran.code, Some(0), "{ran}");
    let labels: Vec<&str> = ran.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
    // The README shows one run: its figures differ, its story does not.
    let readme = include_str!("../../README.md");
    let shown = readme.split("```\n").find(|block| block.starts_with("started"));
    let shown = shown.context("the demo in the README")?.lines();
    let told: Vec<&str> = shown.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(labels, told, "{ran}");
    Ok(())
}

#[test]
fn check_02_a_file_that_is_not_there_is_named() -> Result<()> {
    let lab = lab()?;
    let refused = demo(&lab, &["nosuch.jsonl"]).json()?.refused(2, "E_INPUT_NOT_FOUND")?;
    assert!(text(&refused, "/hint")?.starts_with("throughline demo"), "{refused}");
    assert!(!text(&refused, "/hint")?.contains("nosuch"), "{refused}");
    assert_eq!(left_behind(&lab)?, [] as [String; 0]);
    Ok(())
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() -> Result<()> {
    use std::io::{BufRead as _, BufReader};
    let lab = lab()?;
    let mut child = demo(&lab, &[]).spawn()?;
    let mut stdout = BufReader::new(child.stdout.take().context("stdout")?);
    // The first line is told when the four nodes run.
    let mut line = String::new();
    stdout.read_line(&mut line)?;
    assert!(line.starts_with("started"), "{line:?}");
    assert_eq!(left_behind(&lab)?.len(), 1);
    kill_process(Pid::from_child(&child), Signal::INT)?;
    let output = child.wait_with_output()?;
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert_eq!(left_behind(&lab)?, [] as [String; 0]);
    Ok(())
}

#[test]
fn a_kept_demo_says_where_it_is() -> Result<()> {
    let lab = lab()?;
    // A script may ask for no page already; there is none yet.
    let report = demo(&lab, &["--keep", "--no-open"]).json()?.expect(0)?;
    let kept = std::path::PathBuf::from(text(&report, "/kept")?);
    for name in ["server-a", "server-b", "desktop", "stranger"] {
        assert!(kept.join(name).join("config.toml").is_file(), "{name} in {}", kept.display());
    }
    Ok(())
}
