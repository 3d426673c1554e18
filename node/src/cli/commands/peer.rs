//! `peer`: the peers that this node knows by name.

use axum::http::Method;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::api::client::Call;
use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::{Mark, Page};
use crate::cli::{format, resolve, view};

/// Commands of `peer`.
#[derive(Debug, Subcommand)]
pub(crate) enum PeerCommand {
    /// Add a peer by the ticket that its `id --ticket` printed
    Add(AddArgs),
    /// The known peers
    List,
    /// Forget a peer; grants stay until revoked
    Remove(RemoveArgs),
}

/// Arguments of `peer add`.
#[derive(Debug, Args)]
pub(crate) struct AddArgs {
    /// What it is called here
    #[arg(value_name = "ALIAS")]
    pub(crate) alias: String,
    /// Its ticket, tlp1…
    #[arg(value_name = "TICKET")]
    pub(crate) ticket: String,
}

/// Arguments of `peer remove`.
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// What it is called here
    #[arg(value_name = "ALIAS")]
    pub(crate) alias: String,
}

/// Runs one.
pub(crate) fn run(ctx: &Context, command: &PeerCommand) -> Answer<Outcome> {
    let api = ctx.api()?;
    match command {
        PeerCommand::Add(args) => {
            let body = json!({"alias": args.alias, "ticket": args.ticket});
            let answer = api.ask(Call::post("/v1/peers", &body))?;
            let mark = if view::flag(&answer, "/unchanged") { Mark::Same } else { Mark::Done };
            let mut page = Page::default();
            let addrs = format::count(view::items(&answer, "/addrs").len() as u64, "address", "addresses");
            page.mark(mark, format!("{}  {addrs}", args.alias));
            page.hint(format!("it may do nothing yet: throughline grant {} --role writer", args.alias));
            page.plain(view::text(&answer, "/principal"));
            Ok(Outcome::done(headed(answer, "peer-add"), page))
        }
        PeerCommand::List => {
            let answer = api.get("/v1/peers")?;
            let mut page = Page::default();
            for item in view::items(&answer, "/items") {
                page.row(row(item));
            }
            if view::items(&answer, "/items").is_empty() {
                page.plain("no peers: throughline peer add ALIAS TICKET");
            }
            Ok(Outcome::done(answer, page))
        }
        PeerCommand::Remove(args) => {
            let peer = resolve::peer(&api, &args.alias)?;
            let word = peer.alias.unwrap_or_else(|| peer.principal.to_string());
            let path = format!("/v1/peers/{}", view::encode(&word));
            api.ask(Call::json(Method::DELETE, &path, &json!({})))?;
            let mut page = Page::default();
            page.mark(
                Mark::Done,
                format!("{}  forgotten; what it was granted stays until: throughline revoke", args.alias),
            );
            Ok(Outcome::done(json!({"v": 1, "kind": "peer-remove", "alias": args.alias}), page))
        }
    }
}

fn row(item: &Value) -> [String; 5] {
    let charged = view::number(item, "/charges/count");
    let charges = match (charged, view::number(item, "/charges/blockedForMs")) {
        (0, _) => String::new(),
        (_, 0) => {
            format!("{} ({})", format::count(charged, "charge", "charges"), view::text(item, "/charges/code"))
        }
        (_, ms) => format!("blocked for {} ({})", format::elapsed(ms), view::text(item, "/charges/code")),
    };
    let alias = match view::text(item, "/alias") {
        "" => view::text(item, "/peer"),
        alias => alias,
    };
    let seen = match (view::flag(item, "/connected"), view::at(item, "/seenAgeMs").as_u64()) {
        (true, _) => format!("connected {}", view::text(item, "/transport")).trim_end().to_owned(),
        (false, Some(ms)) => format!("seen {}", format::ago(ms)),
        (false, None) => "never seen".to_owned(),
    };
    [
        alias.to_owned(),
        format::short(view::text(item, "/principal")),
        seen,
        format::count(view::items(item, "/addrs").len() as u64, "address", "addresses"),
        charges,
    ]
}

fn headed(mut answer: Value, kind: &str) -> Value {
    answer["v"] = 1.into();
    answer["kind"] = kind.into();
    answer
}
