//! The command line. `docs/cli-reference.md` lists it; the documents under `docs/` are made from this code.
//!
//! Every command is `run(&Context, &Args) -> Result<Outcome, Problem>`: it speaks to the node through the local API
//! only (`docs/decisions/0002`), wherever that is, and says at its end what came out. Owner acts are signed here, with
//! the owner key; the node never sees it. Nothing is opened, and no runtime is built, before the line is parsed.

mod args;
mod beside;
mod commands;
mod context;
mod dag_json;
mod engine;
mod escape;
mod events;
pub(crate) mod format;
mod link;
mod logging;
mod names;
mod offline;
mod output;
mod owner;
mod page;
mod progress;
mod reference;
pub(crate) mod refusal;
mod resolve;
mod silence;
mod style;
mod sub_sessions;
mod throwaway;
mod upload;
mod usage;
mod verdict;
mod view;
mod watch;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::Parser as _;

pub use reference::{cli_reference, errors_page};

use args::{Cli, Command};
use context::Context;
use output::{Outcome, Output};

use crate::api::error::Problem;
use crate::config::LogFormat;
use crate::outcome::{self, Exit};

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => return number(usage::refuse(&error, &words)),
    };
    let out = style::output(&cli.global);
    if cli.global.verbose > 0 && !matches!(cli.command, Command::Serve(_)) {
        logging::start("", cli.global.verbose, LogFormat::Text);
    }
    let ended = Context::new(cli.global.clone(), out).and_then(|ctx| commands::run(&ctx, &cli.command));
    number(finish(out, ended.map_err(|problem| usage::with_help(problem, &words))))
}

/// Writes what came out, and says how the process ends.
fn finish(out: Output, ended: Result<Outcome, Problem>) -> Exit {
    let (exit, written) = match ended {
        Ok(outcome) => (outcome.exit, out.outcome(&outcome)),
        // Somebody closed stdout, as `head` does: that ends a command, it does not fail it.
        Err(problem) if refusal::is_closed_pipe(&problem) => return Exit::Done,
        Err(problem) => (outcome::of(problem.code()).0, out.problem(&problem)),
    };
    match written {
        Ok(()) => exit,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Exit::Done,
        Err(_) => Exit::Unexpected,
    }
}

fn number(exit: Exit) -> ExitCode {
    ExitCode::from(exit.number())
}
