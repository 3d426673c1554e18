//! `demo`: the whole story on one machine.

use std::path::{Path, PathBuf};

use clap::Args;
use throughline_protocol::code::Code;

use super::import::Format;
use crate::api::error::{Answer, Problem};
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::Page;
use crate::demo::{self, Afterwards};

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// A Claude Code transcript; without it a recorded one that is compiled in
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Leave the directory of the demo, with keys that are not encrypted
    #[arg(long)]
    pub(crate) keep: bool,
    /// Open no page at the end. There is none yet, so nothing is opened with or without it
    #[arg(long)]
    pub(crate) no_open: bool,
}

/// Plays it; each line is told when it has happened.
pub(crate) fn run(ctx: &Context, args: &DemoArgs) -> Answer<Outcome> {
    let afterwards = if args.keep { Afterwards::Keep } else { Afterwards::Remove };
    if let Some(file) = &args.file {
        expect_transcript(file).map_err(|problem| {
            problem.hint("throughline demo   (without a file it takes a recorded session)")
        })?;
    }
    let out = ctx.out();
    let answer = demo::run(&demo::DemoArgs { file: args.file.clone(), afterwards }, &mut |line| {
        let told = Page::of(format!("{:<10} {}", line.label, line.text));
        // The story goes on when nobody reads it: its end cleans up.
        let _ = if out.is_text() { out.page(&told) } else { Ok(()) };
    })?;
    Ok(Outcome::done(answer, Page::default()))
}

fn expect_transcript(file: &Path) -> Answer<()> {
    match super::import::detect(file)? {
        Format::ClaudeCode | Format::Auto => Ok(()),
        Format::Car => {
            let what = format!("expected a transcript (JSON lines), got a session CAR in {}", file.display());
            Err(Problem::new(Code::InputFormat, what))
        }
    }
}
