//! `id`: who this node is.

use clap::Args;

use crate::api::error::{Answer, Problem};
use crate::cli::context::Context;
use crate::cli::output::Outcome;
use crate::cli::page::Page;
use crate::cli::view;
use throughline_protocol::code::Code;

/// Arguments of `id`.
#[derive(Debug, Args)]
pub(crate) struct IdArgs {
    /// Print only the ticket that others add this node with
    #[arg(long)]
    pub(crate) ticket: bool,
}

/// Prints the keys, addresses and ticket.
pub(crate) fn run(ctx: &Context, args: &IdArgs) -> Answer<Outcome> {
    let mut node = ctx.api()?.get("/v1/node")?;
    node["kind"] = "id".into();
    let ticket = view::text(&node, "/ticket").to_owned();
    if args.ticket {
        if ticket.is_empty() {
            let detail = "a ticket names the addresses of a running node, and none is running";
            return Err(Problem::new(Code::Unreachable, detail).hint("throughline serve"));
        }
        return Ok(Outcome::done(node, Page::of(ticket)));
    }
    let mut page = Page::default();
    let mut row = |name: &str, value: &str| {
        if !value.is_empty() {
            page.row([name.to_owned(), value.to_owned()]);
        }
    };
    row("node", view::text(&node, "/principal"));
    row("owner", view::text(&node, "/owner"));
    row("peer id", view::text(&node, "/peerId"));
    row("role", view::text(&node, "/role"));
    for addr in view::items(&node, "/listen") {
        row("listen", addr.as_str().unwrap_or_default());
    }
    row("ticket", &ticket);
    Ok(Outcome::done(node, page))
}
