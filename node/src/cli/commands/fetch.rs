//! `fetch` and `audit`: bring a session here and verify it; `audit` keeps nothing unless asked.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::names::Names;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::watch::watched;
use crate::cli::{format, resolve, verdict, view};

/// Arguments of `fetch`.
#[derive(Debug, Args)]
pub(crate) struct FetchArgs {
    /// The session: a CID, a ticket or a link
    #[arg(value_name = "S")]
    pub(crate) session: String,
    /// Ask these peers, by alias, principal or ticket; without it all that are known
    #[arg(long, value_name = "P")]
    pub(crate) from: Vec<String>,
    /// What comes along besides the entries
    #[arg(long, value_name = "WHICH", default_value = "referenced")]
    pub(crate) payloads: Wanted,
}

/// Arguments of `audit`.
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    /// The session: a CID, a ticket or a link
    #[arg(value_name = "S")]
    pub(crate) session: String,
    /// Ask these peers, by alias, principal or ticket; without it all that are known
    #[arg(long, value_name = "P")]
    pub(crate) from: Vec<String>,
    /// How many named peers and parties of the owner must have answered; strangers do not count
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) peers_min: u32,
    /// What is fetched and hashed besides the entries
    #[arg(long, value_name = "WHICH", default_value = "none")]
    pub(crate) payloads: Wanted,
    /// Keep what was fetched, if it verifies
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Which payloads are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wanted {
    /// None
    None,
    /// The words of the entries
    Referenced,
    /// Files too
    All,
}

impl Wanted {
    /// The word of the API.
    #[must_use]
    pub(crate) fn word(self) -> &'static str {
        match self {
            Wanted::None => "none",
            Wanted::Referenced => "referenced",
            Wanted::All => "all",
        }
    }
}

/// Fetches and adopts.
pub(crate) fn fetch(ctx: &Context, args: &FetchArgs) -> Answer<Outcome> {
    bring(ctx, "fetch", &args.session, &args.from, args.payloads, json!({"adopt": true}))
}

/// Fetches, verifies and reports.
pub(crate) fn audit(ctx: &Context, args: &AuditArgs) -> Answer<Outcome> {
    let more = json!({"adopt": args.keep, "peersMin": args.peers_min});
    bring(ctx, "audit", &args.session, &args.from, args.payloads, more)
}

fn bring(
    ctx: &Context,
    kind: &'static str,
    session: &str,
    from: &[String],
    payloads: Wanted,
    more: Value,
) -> Answer<Outcome> {
    let api = ctx.api_with_network()?;
    let mut from: Vec<String> = from.to_vec();
    if session.starts_with("tls1") {
        // The ticket also says who has it.
        from.push(session.to_owned());
    }
    let id = resolve::session(&api, session)?;
    let mut body = json!({
        "session": id.to_string(), "from": from, "payloads": payloads.word(), "timeoutMs": format::millis(ctx.timeout()),
    });
    if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
        body.extend(more.clone());
    }
    let mut answer = {
        let progress = ctx.progress(kind);
        watched(&api, "/v1/fetch", &body, &progress.counter())?
    };
    answer["kind"] = kind.into();
    let mut page = Page::default();
    let names = Names::of(ctx, &api).beside(&answer);
    transfer(&mut page, &answer, &names);
    page.append(verdict::page(&answer, &names));
    let exit = verdict::exit(&answer);
    Ok(Outcome::done(answer, page).exit(exit))
}

fn transfer(page: &mut Page, answer: &Value, names: &Names) {
    let transfer = view::at(answer, "/transfer");
    for peer in view::items(transfer, "/from") {
        page.row([
            format!("  from {}", names.peer(peer)),
            format::count(view::number(peer, "/entries"), "entry", "entries"),
            format::bytes(view::number(peer, "/bytes")),
            view::text(peer, "/road").to_owned(),
        ]);
    }
    let adopted = view::flag(answer, "/adopted");
    let trips = format::count(view::number(transfer, "/roundTrips"), "round trip", "round trips");
    let took = format::elapsed(view::number(transfer, "/elapsedMs"));
    let bytes = format::bytes(view::number(transfer, "/bytes"));
    let kept = if adopted { "adopted" } else { "not kept" };
    page.mark(
        if adopted { Mark::Done } else { Mark::Note },
        format!("fetched  {bytes}, {trips}, {took}, {kept}"),
    );
}
