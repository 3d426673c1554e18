//! `pin` and `unpin`.

use axum::http::Method;
use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::code::Code;

use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::{format, resolve, view};

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

/// Lets sessions go; one of which this may be the only copy only on purpose.
pub(crate) fn unpin(ctx: &Context, args: &PinArgs) -> Answer<Outcome> {
    let api = ctx.api()?;
    let mut alone = Vec::new();
    for text in &args.sessions {
        let session = resolve::session(&api, text)?;
        if view::flag(&api.get(&format!("/v1/pins/{session}"))?, "/pinned") {
            let path = view::path("/v1/status", &[("session", Some(&session.to_string()))]);
            alone.extend(view::items(&api.get(&path)?, "/sessions").iter().filter_map(only_copy));
        }
    }
    drop(api);
    if !alone.is_empty() {
        let question = format!("{}: let go of what may be the only copy?", alone.join("; "));
        if !ctx.confirm(&question)? {
            return Err(Problem::new(
                Code::Interrupted,
                "not let go: the answer was no; nothing was changed",
            )
            .hint("throughline export S -o FILE.car, or throughline move S --to PEER"));
        }
    }
    each(ctx, args, Method::DELETE, "unpin", "let go; it stays until space is needed")
}

/// Why nobody else may have all of a session, as far as this node knows; none when it knows of somebody.
fn only_copy(session: &Value) -> Option<String> {
    let held_elsewhere = view::at(session, "/holder/self").as_bool() == Some(false);
    let tip = view::number(session, "/tip/seq");
    let told =
        view::items(session, "/replicas").iter().map(|replica| view::number(replica, "/head/seq")).max();
    if held_elsewhere || told.is_some_and(|told| told >= tip) {
        return None;
    }
    let short = format::short(view::text(session, "/session"));
    Some(match told {
        Some(told) => {
            format!("{short}: of its {tip} entries after the first no peer has told more than {told}")
        }
        None => format!("{short}: no peer has told that it has it"),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_elsewhere_is_a_holder_or_a_head_that_reaches_the_tip() {
        let session = |of_self: bool, told: &[u64]| {
            let replicas: Vec<Value> = told.iter().map(|seq| json!({"head": {"seq": seq}})).collect();
            json!({"session": "S", "tip": {"seq": 7}, "holder": {"self": of_self}, "replicas": replicas})
        };
        assert_eq!(only_copy(&session(false, &[])), None);
        assert_eq!(only_copy(&session(true, &[3, 7])), None);
        assert!(only_copy(&session(true, &[])).unwrap().contains("no peer has told"));
        assert!(only_copy(&session(true, &[5, 6])).unwrap().ends_with("no peer has told more than 6"));
        assert!(only_copy(&json!({"session": "S", "tip": {"seq": 7}, "holder": null})).is_some());
    }
}
