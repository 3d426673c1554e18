//! What lies beside a transcript of Claude Code and belongs to it.
//!
//! ```text
//!   <session>.jsonl
//!   <session>/subagents/agent-<name>.jsonl     transcripts of its sub-agents: they come along
//!   <session>/tool-results/<id>.txt            long outputs of tools, of which the transcript holds a preview: counted, not taken
//! ```
//!
//! Only these two directories are looked into, by their names; no path that stands in a transcript is ever followed. Links are not
//! followed either, neither to directories nor to files, and only regular files are read.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use super::upload::Part;
use crate::core::{AgentName, SUB_AGENTS_MAX};

/// Names of a directory that are looked at; a directory with more is no directory of one session.
const NAMES_MAX: usize = 16_384;
/// Longest list of sub-agents in a request's address, in bytes.
const LIST_BYTES_MAX: usize = 8_192;

/// What lies beside a transcript.
#[derive(Default)]
pub(crate) struct Beside {
    /// Sub-agents whose files come along, by name.
    pub(crate) agents: Vec<(AgentName, Part)>,
    /// Files that do not, and why.
    pub(crate) left_out: Vec<(PathBuf, String)>,
    /// Long outputs of tools that stay where they are.
    pub(crate) tool_results: usize,
}

impl Beside {
    /// Looks beside the transcript at `path`.
    ///
    /// # Errors
    /// When a directory that is there cannot be read.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let mut beside = Beside::default();
        let own = path.with_extension("");
        if own == path {
            return Ok(beside);
        }
        // The way to the transcript was named by the user and may lead over links; what is below it may not.
        let Some(own_dir) = directory(rustix::fs::CWD, &own)? else { return Ok(beside) };
        let agents = own.join("subagents");
        if let Some(dir) = directory(own_dir.as_fd(), Path::new("subagents"))? {
            beside.look_for_agents(&dir, &agents)?;
        }
        if let Some(dir) = directory(own_dir.as_fd(), Path::new("tool-results"))? {
            beside.tool_results = names(&dir)?.0.len();
        }
        Ok(beside)
    }

    /// The sub-agents as the API takes them: `name:bytes,…`, in the order of their files.
    #[must_use]
    pub(crate) fn list(&self) -> String {
        let parts = self.agents.iter().map(|(name, part)| item(name, part));
        parts.collect::<Vec<_>>().join(",")
    }

    fn look_for_agents(&mut self, dir: &OwnedFd, path: &Path) -> io::Result<()> {
        let (names, is_all) = names(dir)?;
        let mut list_bytes = 0;
        for name in names.iter().filter(|name| name.starts_with("agent-") && name.ends_with(".jsonl")) {
            let opened = match AgentName::of_file(name) {
                Some(agent) => regular(dir.as_fd(), name).map(|part| (agent, part)),
                None => Err("its name is not that of a sub-agent".to_owned()),
            };
            match opened {
                Ok((agent, part)) => {
                    list_bytes += item(&agent, &part).len() + 1;
                    if self.agents.len() == SUB_AGENTS_MAX || list_bytes > LIST_BYTES_MAX {
                        let why = format!("more than {} sub-agents at once", self.agents.len());
                        self.left_out.push((path.join(name), why));
                    } else {
                        self.agents.push((agent, part));
                    }
                }
                Err(why) => self.left_out.push((path.join(name), why)),
            }
        }
        if !is_all {
            self.left_out
                .push((path.to_owned(), format!("more than {NAMES_MAX} names, the rest was not looked at")));
        }
        Ok(())
    }
}

fn item(name: &AgentName, part: &Part) -> String {
    format!("{}:{}", name.as_str(), part.length())
}

/// Opens a directory that is no link. None when there is none.
fn directory(at: BorrowedFd<'_>, path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(at, path, flags, Mode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The names of the files in a directory, ascending, and whether that is all of them.
fn names(dir: &OwnedFd) -> io::Result<(Vec<String>, bool)> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            continue;
        }
        if names.len() == NAMES_MAX {
            return Ok((names, false));
        }
        names.push(name.to_owned());
    }
    names.sort_unstable();
    Ok((names, true))
}

/// Opens a regular file of a directory.
fn regular(dir: BorrowedFd<'_>, name: &str) -> Result<Part, String> {
    // NONBLOCK: opening a pipe must come to the check of its kind instead of waiting for a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty()).map_err(|errno| match errno {
        rustix::io::Errno::LOOP => "it is a link".to_owned(),
        errno => io::Error::from(errno).to_string(),
    })?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| io::Error::from(errno).to_string())?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err("it is no regular file".to_owned());
    }
    Part::of(File::from(fd)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn place() -> (TempDir, PathBuf, PathBuf) {
        let place = TempDir::new().unwrap();
        let transcript = place.path().join("5e55.jsonl");
        fs::write(&transcript, "{}\n").unwrap();
        let agents = place.path().join("5e55/subagents");
        (place, transcript, agents)
    }

    fn left_out(beside: &Beside) -> Vec<&str> {
        beside.left_out.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap()).collect()
    }

    #[test]
    fn only_regular_files_with_the_name_of_a_sub_agent_come_along() {
        let (place, transcript, agents) = place();
        assert!(Beside::of(&transcript).unwrap().agents.is_empty());
        fs::create_dir_all(agents.join("agent-dir.jsonl")).unwrap();
        fs::write(agents.join("agent-b2.jsonl"), "12345").unwrap();
        fs::write(agents.join("agent-a1.jsonl"), "123").unwrap();
        for other in ["agent-a1.meta.json", "notes.jsonl", "agent-a b.jsonl"] {
            fs::write(agents.join(other), "x").unwrap();
        }
        fs::write(place.path().join("secret"), "secret").unwrap();
        symlink(place.path().join("secret"), agents.join("agent-link.jsonl")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, agents.join("agent-pipe.jsonl"), FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        fs::create_dir_all(place.path().join("5e55/tool-results")).unwrap();
        fs::write(place.path().join("5e55/tool-results/t1.txt"), "long").unwrap();
        let beside = Beside::of(&transcript).unwrap();
        assert_eq!(beside.list(), "a1:3,b2:5");
        assert_eq!(left_out(&beside), ["agent-a b.jsonl", "agent-link.jsonl", "agent-pipe.jsonl"]);
        assert_eq!(beside.tool_results, 1);
    }

    #[test]
    fn a_directory_that_is_a_link_is_not_looked_into() {
        let (place, transcript, agents) = place();
        let elsewhere = TempDir::new().unwrap();
        fs::write(elsewhere.path().join("agent-a1.jsonl"), "123").unwrap();
        fs::create_dir_all(place.path().join("5e55")).unwrap();
        symlink(elsewhere.path(), &agents).unwrap();
        assert!(Beside::of(&transcript).unwrap().agents.is_empty());
        fs::remove_file(&agents).unwrap();
        fs::remove_dir(place.path().join("5e55")).unwrap();
        fs::create_dir_all(elsewhere.path().join("subagents")).unwrap();
        fs::write(elsewhere.path().join("subagents/agent-a1.jsonl"), "123").unwrap();
        symlink(elsewhere.path(), place.path().join("5e55")).unwrap();
        assert!(Beside::of(&transcript).unwrap().agents.is_empty());
    }

    #[test]
    fn there_are_not_more_than_fit_and_the_rest_is_told() {
        let (_place, transcript, agents) = place();
        fs::create_dir_all(&agents).unwrap();
        for at in 0..SUB_AGENTS_MAX + 2 {
            fs::write(agents.join(format!("agent-{at:04}.jsonl")), "x").unwrap();
        }
        let beside = Beside::of(&transcript).unwrap();
        assert_eq!((beside.agents.len(), beside.left_out.len()), (SUB_AGENTS_MAX, 2));
        assert!(beside.list().len() <= LIST_BYTES_MAX);
    }
}
