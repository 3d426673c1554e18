//! `pin` and `unpin`.

use axum::http::Method;
use clap::Args;
use serde_json::{Value, json};

use crate::api::client::Call;
use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::resolve;

/// Arguments of `pin` and `unpin`.
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// The sessions
    #[arg(value_name = "S", required = true)]
    pub(crate) sessions: Vec<String>,
}

/// Keeps sessions.
pub(crate) fn pin(ctx: &Context, args: &PinArgs) -> Answer<Outcome> {
    each(ctx, args, Method::PUT, "pin", "pinned")
}

/// Lets sessions go.
pub(crate) fn unpin(ctx: &Context, args: &PinArgs) -> Answer<Outcome> {
    each(ctx, args, Method::DELETE, "unpin", "let go; it stays until space is needed")
}

fn each(ctx: &Context, args: &PinArgs, method: Method, kind: &str, said: &str) -> Answer<Outcome> {
    let api = ctx.api()?;
    let (mut page, mut items) = (Page::default(), Vec::new());
    for text in &args.sessions {
        let session = resolve::session(&api, text)?;
        api.ask(Call::json(method.clone(), &format!("/v1/pins/{session}"), &json!({})))?;
        page.mark(Mark::Done, format!("{}  {said}", session.short()));
        items.push(Value::from(session.to_string()));
    }
    Ok(Outcome::done(json!({"v": 1, "kind": kind, "sessions": items}), page))
}
