//! `peak-memory FILE COMMAND [ARGUMENT…]`: runs a command, writes the largest resident set that it had into the file, in bytes, and
//! ends as the command did.
//!
//! A process of its own, since the system tells of all children of a process together, and counts what a large parent held
//! before the command began.

use std::ffi::OsString;
use std::process::{Command, ExitCode};

use nix::sys::resource::{UsageWho, getrusage};

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let usage = "expected a file for the figure, then a command";
    let file: OsString = args.next().ok_or(usage)?;
    let status = Command::new(args.next().ok_or(usage)?).args(args).status()?;
    let kib = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    std::fs::write(file, (kib * 1_024).to_string())?;
    // A signal is no exit code of the command.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).ok_or("the command was killed")?;
    Ok(ExitCode::from(code))
}
