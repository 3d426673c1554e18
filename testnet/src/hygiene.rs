//! What no output may hold: escape bytes in a pipe, and secrets anywhere.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};

/// Texts that must never be printed: the seeds and tokens below a home.
///
/// Read anew after each command, because the command may have made them.
pub(crate) fn secrets_below(home: &Path) -> Vec<String> {
    let mut secrets = Vec::new();
    let keys = fs::read_dir(home.join("data").join("keys")).into_iter().flatten().flatten();
    for key in keys {
        let text = fs::read_to_string(key.path()).unwrap_or_default();
        let values =
            text.lines().filter_map(|line| line.strip_prefix("seed: ").or(line.strip_prefix("sealed: ")));
        secrets.extend(values.map(str::to_owned));
    }
    for name in ["token", "token.read"] {
        let token = fs::read_to_string(home.join("run").join(name)).unwrap_or_default();
        secrets.push(token.trim().to_owned());
    }
    secrets.retain(|secret| !secret.is_empty());
    secrets
}

/// Checks a stream that is not a terminal.
///
/// # Errors
/// When it holds an escape byte or one of the secrets. The secret itself is not repeated.
pub(crate) fn check(stream: &str, name: &str, secrets: &[String]) -> Result<()> {
    ensure!(!stream.contains('\u{1b}'), "{name} is a pipe and holds an escape byte: {stream:?}");
    let leaks = secrets.iter().filter(|secret| stream.contains(secret.as_str())).count();
    ensure!(leaks == 0, "{name} holds {leaks} secret(s) of the home");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_home_are_found_and_looked_for() {
        let home = tempfile::tempdir().unwrap();
        let keys = home.path().join("data").join("keys");
        fs::create_dir_all(&keys).unwrap();
        fs::write(keys.join("node.key"), "throughline-key 1\nkind: node\nseed: c2VlZA\n").unwrap();
        fs::create_dir_all(home.path().join("run")).unwrap();
        fs::write(home.path().join("run").join("token"), "t0ken\n").unwrap();
        let secrets = secrets_below(home.path());
        assert_eq!(secrets, ["c2VlZA", "t0ken"]);
        assert!(check("all is well", "stdout", &secrets).is_ok());
        assert!(check("Bearer t0ken", "stderr", &secrets).is_err());
        assert!(check("\u{1b}[1mbold", "stdout", &secrets).is_err());
    }
}
