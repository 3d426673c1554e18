//! `fsck`: everything that is stored is hashed and verified again; with `--repair` what is damaged is fetched again.

use clap::Args;
use serde_json::{Value, json};

use crate::api::client::Call;
use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::{format, view};
use crate::outcome::Exit;

/// Arguments of `fsck`.
#[derive(Debug, Args)]
pub(crate) struct FsckArgs {
    /// Fetch what is damaged again, by hash, and write the index anew
    #[arg(long)]
    pub(crate) repair: bool,
    /// Ask these peers, by alias, principal or ticket; without it all that are known
    #[arg(long, value_name = "P", requires = "repair")]
    pub(crate) from: Vec<String>,
}

/// Checks and lists what is wrong. With `--repair` it says first how much would be fetched, and asks.
pub(crate) fn run(ctx: &Context, args: &FsckArgs) -> Answer<Outcome> {
    let api = if args.repair { ctx.api_with_network()? } else { ctx.api()? };
    let mut answer = {
        let _progress = ctx.progress("fsck");
        api.ask(Call::post("/v1/fsck", &json!({"repair": false})))?
    };
    let count = view::number(&answer, "/problemCount");
    let repairable = view::number(&answer, "/repairable");
    let question = format!(
        "{}, {repairable} of the damaged blobs can be asked for again. Repair?",
        format::count(count, "problem", "problems")
    );
    if args.repair && count > 0 && ctx.confirm(&question)? {
        let _progress = ctx.progress("repair");
        answer = api.ask(Call::post("/v1/fsck", &json!({"repair": true, "from": args.from})))?;
    }
    Ok(shown(answer))
}

/// What was repaired, in one line.
fn repaired(answer: &Value) -> Option<String> {
    let repaired = answer.get("repaired")?;
    let from: Vec<&str> = view::items(repaired, "/from").iter().filter_map(Value::as_str).collect();
    let from = if from.is_empty() { String::new() } else { format!(" from {}", from.join(", ")) };
    let (blobs, missing) = (view::number(repaired, "/blobs"), view::number(repaired, "/notFound"));
    Some(format!("put back {}{from}; nobody gave {missing}", format::count(blobs, "blob", "blobs")))
}

fn shown(answer: Value) -> Outcome {
    let problems = view::items(&answer, "/problems");
    let mut page = Page::default();
    if let Some(line) = repaired(&answer) {
        page.mark(Mark::Done, line);
    }
    for problem in problems {
        let session = format::short(view::text(problem, "/session"));
        let (code, detail) = (view::text(problem, "/code"), view::text(problem, "/detail"));
        page.mark(Mark::Failed, format!("{code}  session {session}  {detail}"));
    }
    let checked = view::at(&answer, "/checked").as_object().into_iter().flatten();
    let checked: Vec<String> = checked.map(|(what, count)| format!("{count} {what}")).collect();
    let count = view::number(&answer, "/problemCount").max(problems.len() as u64);
    page.mark(
        if count == 0 { Mark::Done } else { Mark::Warning },
        format!("checked {}: {}", checked.join(", "), format::count(count, "problem", "problems")),
    );
    let exit = if count == 0 { Exit::Done } else { Exit::Local };
    Outcome::done(answer, page).exit(exit)
}
