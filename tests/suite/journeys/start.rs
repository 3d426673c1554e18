//! Checks 3–6: keys are made once, unsafe ones refused, one process a home, and a stopped node still answers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use super::{lab, list, owner_home, text};

const PASSPHRASE: &str = "three geese on the late ferry";

/// Every file below `dir` with its mode and hash.
fn files(dir: &Path) -> Result<Vec<(String, u32, [u8; 32])>> {
    let mut found = Vec::new();
    for file in fs::read_dir(dir).with_context(|| format!("{}", dir.display()))? {
        let path = file?.path();
        let mode = fs::metadata(&path)?.permissions().mode() & 0o7777;
        found.push((path.display().to_string(), mode, Sha256::digest(fs::read(&path)?).into()));
    }
    found.sort();
    Ok(found)
}

#[test]
fn check_03_init_twice_makes_keys_once() -> Result<()> {
    let lab = lab()?;
    let home = lab.home("d");
    home.configure()?;
    let init = || home.cli(&["init", "--owner", "new"]).passphrase(PASSPHRASE).json()?.expect(0);
    let first = init()?;
    assert!(list(&first, "/created")?.iter().any(|made| made == "owner-key"), "{first}");
    assert_eq!(first["owner"]["passphrase"], true, "{first}");
    let keys = files(&home.join("data/keys"))?;
    assert_eq!(keys.len(), 3, "{keys:?}");
    assert!(keys.iter().all(|(_, mode, _)| *mode == 0o600), "{keys:?}");
    let second = init()?;
    assert_eq!(list(&second, "/created")?, [] as [serde_json::Value; 0], "{second}");
    assert_eq!(files(&home.join("data/keys"))?, keys);
    assert_eq!(second["owner"], first["owner"]);
    for dir in ["data", "data/keys", "run"] {
        let mode = fs::metadata(home.join(dir))?.permissions().mode() & 0o7777;
        assert_eq!(mode, 0o700, "{dir} has mode {mode:o}");
    }
    Ok(())
}

#[test]
fn check_04_a_key_that_others_may_read_is_refused() -> Result<()> {
    let lab = lab()?;
    let (home, _) = owner_home(&lab, "d")?;
    let key = home.join("data/keys/node.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644))?;
    let refused = home.cli(&["serve"]).json()?.refused(10, "E_KEYFILE_MODE")?;
    let line = format!("chmod 600 {}", key.display());
    assert!(refused.to_string().contains(&line), "expected {line:?} in {refused}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    home.serve()?.stop()?;
    Ok(())
}

#[test]
fn check_05_a_second_process_is_told_about_the_first() -> Result<()> {
    let lab = lab()?;
    let (home, _) = owner_home(&lab, "a")?;
    let node = home.serve()?;
    let refused = home.cli(&["serve"]).json()?.refused(10, "E_LOCKED")?;
    let detail = text(&refused, "/detail")?;
    assert!(detail.contains(&node.pid().to_string()), "expected pid {} in {detail:?}", node.pid());
    assert!(detail.contains("serve"), "expected the command in {detail:?}");
    node.stop()?;
    Ok(())
}

#[test]
fn check_06_status_reads_from_disk_when_the_node_is_stopped() -> Result<()> {
    let lab = lab()?;
    let (home, owner) = owner_home(&lab, "a")?;
    let node = home.serve()?;
    let session = super::begin(&node, &format!("hm://{owner}/scout"), "remember this")?;
    let home = node.stop()?;
    let status = home.json(&["status"])?;
    assert_eq!(status["node"]["state"], "stopped", "{status}");
    assert_eq!(text(&status, "/sessions/0/session")?, session);
    assert!(!home.join("run/api.sock").exists(), "a stopped node leaves no socket");
    Ok(())
}
