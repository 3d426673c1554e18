//! `throughline demo`: the whole story on one machine, with real processes and real refusals.
//!
//! Four nodes on loopback, each a process of this very program with a home of its own: two servers, the owner's desktop
//! and a stranger. They are driven as a user drives them, by command line and local API. A transcript is imported, anchored,
//! published and moved; a server is killed and its session moved without it; a key is revoked and forges an entry anyway; a
//! liar serves one bit less than the truth. Every figure that is shown was measured or answered by a node in this run; a step
//! that did not come out as told is an error, never a line of text.
//!
//! Nothing outside the temporary directory is written, and no file of the user is read but the one that was named.
//!
//! ```text
//! demo ─┬─ Stage: directory, processes, Ctrl-C           stage.rs, actor.rs
//!       ├─ the story, step by step                        story.rs, aftermath.rs
//!       └─ forge, HostilePeer ── SessionCopy              forge.rs, hostile.rs, copy.rs
//! ```

mod actor;
mod aftermath;
mod facts;
mod stage;
mod story;

pub mod copy;
pub mod forge;
pub mod hostile;

use std::path::PathBuf;

use serde_json::Value;
use throughline_protocol::code::Code;

use crate::api::error::{Answer, Problem};

/// What the demo is to do.
#[derive(Clone, Debug, Default)]
pub struct DemoArgs {
    /// A Claude Code transcript; none takes the recorded one that is compiled in.
    pub file: Option<PathBuf>,
    /// What becomes of the directory.
    pub afterwards: Afterwards,
}

/// What becomes of the demo's directory at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Afterwards {
    /// It goes, however the demo ends.
    #[default]
    Remove,
    /// It stays, with keys that are not encrypted; its path is told.
    Keep,
}

/// One line of the story, told when it has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// One word for what was done.
    pub label: &'a str,
    /// What came out. It may quote titles of the transcript: escape it before it reaches a terminal.
    pub text: &'a str,
}

/// Runs the demo to its end and answers with all of its figures, as the object that `--json` prints.
///
/// It builds its own runtime: call it from outside of one.
///
/// # Errors
/// `E_INPUT_NOT_FOUND` when the file is not there, `E_INTERRUPTED` after Ctrl-C or a termination signal, and whatever a step was
/// refused for. The directory is gone by then, unless it is to be kept.
pub fn run(args: &DemoArgs, tell: &mut dyn FnMut(Line<'_>)) -> Answer<Value> {
    let transcript = transcript(args)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Problem::new(Code::Internal, format!("no runtime: {error}")))?;
    runtime.block_on(stage::perform(&transcript, args.afterwards, tell))
}

/// The transcript's name and bytes.
struct Transcript {
    name: String,
    bytes: Vec<u8>,
}

fn transcript(args: &DemoArgs) -> Answer<Transcript> {
    let Some(path) = &args.file else {
        let bytes = throughline_examples::CLAUDE_CODE.to_vec();
        return Ok(Transcript { name: "claude-code.jsonl".to_owned(), bytes });
    };
    let bytes = std::fs::read(path).map_err(|error| {
        crate::cli::refusal::input(path, error)
            .hint("throughline demo   (without a file it takes a recorded session)")
    })?;
    let name = path.file_name().map_or_else(|| "transcript.jsonl".into(), |name| name.to_string_lossy());
    Ok(Transcript { name: name.into_owned(), bytes })
}
