//! `verify`: the five checks over a session held here, or over a CAR file without a node and without a network.

use std::path::Path;

use clap::{Args, ValueEnum};
use serde_json::json;
use throughline_protocol::id::EntryCid;

use crate::api::client::Call;
use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::names::Names;
use crate::cli::offline;
use crate::cli::output::Outcome;
use crate::cli::{resolve, verdict};
use crate::report::Required;

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// A session, a CAR file, or - for a CAR on stdin
    #[arg(value_name = "S|FILE|-")]
    pub(crate) what: String,
    /// The head that you were told; without it the CAR's root, or what the node was told
    #[arg(long, value_name = "CID")]
    pub(crate) head: Option<EntryCid>,
    /// Whether payloads and files are hashed too
    #[arg(long, value_name = "WHICH", default_value = "present")]
    pub(crate) payloads: Payloads,
}

/// Which payloads are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Payloads {
    /// None
    None,
    /// Those that are there
    Present,
    /// All: one that is missing is a loss (exit 11)
    All,
}

impl Payloads {
    /// What has to be there.
    #[must_use]
    pub(crate) fn required(self) -> Required {
        match self {
            Payloads::None | Payloads::Present => Required::Nothing,
            Payloads::All => Required::All,
        }
    }

    /// The word of the API.
    #[must_use]
    pub(crate) fn word(self) -> &'static str {
        match self {
            Payloads::None => "none",
            Payloads::Present => "present",
            Payloads::All => "all",
        }
    }
}

/// Verifies and reports; the exit code is the verdict's.
pub(crate) fn run(ctx: &Context, args: &VerifyArgs) -> Answer<Outcome> {
    let (answer, names) = if is_file(&args.what) {
        let progress = ctx.progress("verify");
        // Without a node, so without its address book: a file is judged alike on every machine.
        (offline::verify(&args.what, args.head, args.payloads, &progress)?, Names::default())
    } else {
        let api = ctx.api()?;
        let session = resolve::session(&api, &args.what)?;
        let told = args.head.map(|head| head.to_string());
        let body = json!({"payloads": args.payloads.word(), "toldHead": told});
        let _progress = ctx.progress("verify");
        let answer = api.ask(Call::post(&format!("/v1/sessions/{session}/verify"), &body))?;
        let names = Names::of(ctx, &api);
        (answer, names)
    };
    let page = verdict::page(&answer, &names.beside(&answer));
    let exit = verdict::exit(&answer);
    Ok(Outcome::done(answer, page).exit(exit))
}

/// A file goes before a short id: whoever has a file of that name means it.
fn is_file(what: &str) -> bool {
    what == "-"
        || what.contains('/') && !what.contains("://")
        || what.ends_with(".car")
        || Path::new(what).is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_sessions() {
        for file in ["-", "a.car", "./k3f7m2xq", "/tmp/x"] {
            assert!(is_file(file), "{file}");
        }
        for session in ["k3f7m2xq", "hm://z6Mk/session-b", "ipfs://b", "tls1abc"] {
            assert!(!is_file(session), "{session}");
        }
    }
}
