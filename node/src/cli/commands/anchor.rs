//! `anchor`: the owner signs that it has seen a head. Entries below it stay valid whatever is revoked later.

use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::id::SessionId;

use super::unfetched::Unfetched;
use crate::api::error::Answer;
use crate::cli::args::OwnerArgs;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::output::Outcome;
use crate::cli::owner::{self, Owner, Reach};
use crate::cli::page::{Mark, Page};
use crate::cli::{resolve, view};

/// Arguments of `anchor`.
#[derive(Debug, Args)]
pub(crate) struct AnchorArgs {
    /// The sessions
    #[arg(value_name = "S", required_unless_present = "all")]
    pub(crate) sessions: Vec<String>,
    /// Every session of this owner
    #[arg(long, conflicts_with = "sessions")]
    pub(crate) all: bool,
    /// Anchor sessions also where a known peer told more than is here and nobody gives it: what is not here may be cut
    #[arg(long)]
    pub(crate) cut_unfetched: bool,
    /// How the owner key is opened
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
}

/// Anchors what is not anchored at its head yet; the key stays closed when there is nothing to sign.
pub(crate) fn run(ctx: &Context, args: &AnchorArgs) -> Answer<Outcome> {
    let api = ctx.api_with_network()?;
    let sessions = if args.all { all(ctx, &api)? } else { named(&api, &args.sessions)? };
    let texts: Vec<String> = sessions.iter().map(ToString::to_string).collect();
    let unfetched = Unfetched::of(ctx, &api, &texts)?;
    unfetched.agree(ctx, args.cut_unfetched)?;
    let mut owner = None;
    let (mut page, mut items) = (Page::default(), Vec::new());
    for session in sessions {
        let facts = api.get(&format!("/v1/sessions/{session}/anchor"))?;
        let seq = view::number(&facts, "/head/seq");
        let unchanged = view::at(&facts, "/anchoredThrough").as_u64() == Some(seq);
        let mark = if unchanged { Mark::Same } else { Mark::Done };
        let mut cid = Value::Null;
        if !unchanged {
            let owner = match &mut owner {
                Some(owner) => owner,
                slot @ None => slot.insert(Owner::unlock(ctx, args.owner)?),
            };
            cid = sign(&api, owner, &facts)?["cid"].clone();
        }
        page.mark(mark, format!("{}  seq {seq}", session.short()));
        let head = view::at(&facts, "/head");
        items.push(json!({"session": session.to_string(), "head": head, "ref": cid, "unchanged": unchanged}));
    }
    if items.is_empty() {
        page.plain("no sessions of this owner here");
    }
    let json = json!({"v": 1, "kind": "anchor", "sessions": items, "unfetched": unfetched.json()});
    Ok(Outcome::done(json, page))
}

/// Signs and posts the Ref. In a public session it also publishes what it anchors; elsewhere it publishes nothing.
pub(crate) fn sign(api: &Api<'_>, owner: &Owner, facts: &Value) -> Answer<Value> {
    let reach = if view::text(facts, "/class") == "public" { Reach::Publishes } else { Reach::Private };
    api.post_blob("/v1/refs", &owner.anchor(facts, reach)?)
}

fn named(api: &Api<'_>, texts: &[String]) -> Answer<Vec<SessionId>> {
    texts.iter().map(|text| resolve::session(api, text)).collect()
}

fn all(ctx: &Context, api: &Api<'_>) -> Answer<Vec<SessionId>> {
    let account = owner::file(ctx)?.principal().to_string();
    let (mut sessions, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let answer = api
            .get(&view::path("/v1/sessions", &[("owner", Some(&account)), ("cursor", cursor.as_deref())]))?;
        for item in view::items(&answer, "/items") {
            sessions.push(view::text(item, "/session").parse()?);
        }
        cursor = view::at(&answer, "/next").as_str().map(str::to_owned);
        if cursor.is_none() {
            return Ok(sessions);
        }
    }
}
