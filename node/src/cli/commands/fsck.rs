//! `fsck`: everything that is stored is hashed and verified again.

use serde_json::json;

use crate::api::client::Call;
use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::{format, view};
use crate::outcome::Exit;

/// Checks and lists what is wrong; it repairs nothing.
pub(crate) fn run(ctx: &Context) -> Answer<Outcome> {
    let api = ctx.api()?;
    let answer = {
        let _progress = ctx.progress("fsck");
        api.ask(Call::post("/v1/fsck", &json!({"repair": false})))?
    };
    let problems = view::items(&answer, "/problems");
    let mut page = Page::default();
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
    Ok(Outcome::done(answer, page).exit(exit))
}
