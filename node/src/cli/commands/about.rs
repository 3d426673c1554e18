//! `completions` and `version`.

use clap::{Args, CommandFactory as _};
use serde_json::{Value, json};

use crate::api::error::Answer;
use crate::cli::args::Cli;
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::Page;
use crate::cli::refusal;

/// The version of the protocol that this program speaks.
pub(super) const PROTOCOL: u32 = 1;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

/// Prints a completion script.
pub(crate) fn completions(ctx: &Context, args: &CompletionsArgs) -> Answer<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "throughline", &mut script);
    if ctx.out().is_text() {
        ctx.out().raw(&script).map_err(refusal::stdout)?;
        return Ok(Outcome::written());
    }
    let script = String::from_utf8_lossy(&script);
    let shell = args.shell.to_string();
    Ok(Outcome::done(
        json!({"v": 1, "kind": "completions", "shell": shell, "script": script}),
        Page::default(),
    ))
}

/// The versions, as an object.
#[must_use]
pub(crate) fn version_json() -> Value {
    json!({"v": 1, "kind": "version", "version": env!("CARGO_PKG_VERSION"), "protocol": PROTOCOL})
}

/// Prints the versions.
pub(crate) fn version() -> Answer<Outcome> {
    let version = env!("CARGO_PKG_VERSION");
    Ok(Outcome::done(version_json(), Page::of(format!("throughline {version}  protocol {PROTOCOL}"))))
}
