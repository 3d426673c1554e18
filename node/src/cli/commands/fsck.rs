//! `fsck`: everything that is stored is hashed and verified again; with `--repair` what is damaged is fetched again, and rows that nobody
//! else has are made again as far as that is safe.

use clap::Args;
use serde_json::{Value, json};

use super::fetch::Wanted;
use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::watch::watched;
use crate::cli::{format, verdict, view};
use crate::outcome::Exit;

/// Arguments of `fsck`.
#[derive(Debug, Args)]
pub(crate) struct FsckArgs {
    /// Fetch what is damaged again, by hash; write the index anew; make lost rows again from the chains
    #[arg(long)]
    pub(crate) repair: bool,
    /// Say what a repair would do, and change nothing
    #[arg(long, requires = "repair")]
    pub(crate) dry_run: bool,
    /// What of the words and files of all sessions has to be here; what is missing of it is a loss (exit 11)
    #[arg(long, value_name = "WHICH", default_value = "none")]
    pub(crate) payloads: Wanted,
    /// Ask these peers, by alias, principal or ticket; without it all that are known
    #[arg(long, value_name = "P", requires = "repair")]
    pub(crate) from: Vec<String>,
}

/// Checks and lists what is wrong. With `--repair` it says first how much would be done, and asks.
pub(crate) fn run(ctx: &Context, args: &FsckArgs) -> Answer<Outcome> {
    let is_repair = args.repair && !args.dry_run;
    let api = if is_repair { ctx.api_with_network()? } else { ctx.api()? };
    let mut answer = {
        let progress = ctx.progress("fsck");
        let path = view::path("/v1/fsck", &[("dryRun", args.dry_run.then_some("1"))]);
        watched(
            &api,
            &path,
            &json!({"repair": args.dry_run, "payloads": args.payloads.word()}),
            &progress.counter(),
        )?
    };
    let count = view::number(&answer, "/problemCount");
    let question = format!(
        "{}: {} can be asked for again, {} made again. Repair?",
        format::count(count, "problem", "problems"),
        format::count(view::number(&answer, "/repairable"), "damaged blob", "damaged blobs"),
        format::count(view::number(&answer, "/repairableRows"), "row", "rows"),
    );
    if is_repair && count > 0 && ctx.confirm(&question)? {
        let progress = ctx.progress("repair");
        let body = json!({"repair": true, "from": args.from, "payloads": args.payloads.word()});
        answer = watched(&api, "/v1/fsck", &body, &progress.counter())?;
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

/// What became of each row, or would, with what the person is to do.
fn rows(page: &mut Page, answer: &Value) {
    let blobs = view::number(answer, "/plan/blobs");
    if blobs > 0 {
        let blobs = format::count(blobs, "damaged blob", "damaged blobs");
        page.mark(Mark::Note, format!("would ask peers for {blobs}"));
    }
    for row in view::items(answer, "/plan/rows") {
        let session = format::short(view::text(row, "/session"));
        let (kind, act) = (view::text(row, "/row"), view::text(row, "/act"));
        page.mark(Mark::Note, format!("{kind}  session {session}  would {act}"));
    }
    for row in view::items(answer, "/repaired/rows") {
        let session = format::short(view::text(row, "/session"));
        let (kind, detail) = (view::text(row, "/row"), view::text(row, "/detail"));
        let mark = match view::text(row, "/outcome") {
            "made-again" | "void" => Mark::Done,
            "left" => Mark::Failed,
            _ => Mark::Warning,
        };
        page.mark(mark, format!("{kind}  session {session}  {detail}"));
        let fix = view::text(row, "/fix");
        if !fix.is_empty() {
            page.plain(format!("    next: {fix}"));
        }
    }
}

fn shown(answer: Value) -> Outcome {
    let problems = view::items(&answer, "/problems");
    let mut page = Page::default();
    if let Some(line) = repaired(&answer) {
        page.mark(Mark::Done, line);
    }
    rows(&mut page, &answer);
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
    verdict::inventory(&mut page, &answer);
    for lacks in view::items(&answer, "/lacking") {
        let (payloads, files) =
            (view::number(lacks, "/payloads/missing"), view::number(lacks, "/files/missing"));
        let session = view::text(lacks, "/session");
        page.plain(format!("  session {session}  lacks {payloads} payloads, {files} files"));
    }
    let exit = verdict::with_losses(if count == 0 { Exit::Done } else { Exit::Local }, &answer);
    Outcome::done(answer, page).exit(exit)
}
