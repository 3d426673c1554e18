//! `list`: the sessions held here.

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use throughline_protocol::id::{AgentIri, Principal};

use super::status;
use crate::api::error::Answer;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::names::Names;
use crate::cli::output::{Outcome, Shape};
use crate::cli::page::Page;
use crate::cli::{format, refusal, view};
use crate::core::shape::State;

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only sessions of this agent (hm://…)
    #[arg(long, value_name = "IRI")]
    pub(crate) agent: Option<AgentIri>,
    /// Only sessions of this owner
    #[arg(long, value_name = "PRINCIPAL")]
    pub(crate) owner: Option<Principal>,
    /// Only sessions in this state
    #[arg(long, value_name = "STATE")]
    pub(crate) state: Option<State>,
    /// At most so many
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<u64>,
}

impl ValueEnum for State {
    fn value_variants<'a>() -> &'a [Self] {
        &State::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            State::Active => "Its holder may append",
            State::Frozen => "It stands still for a move",
            State::Retired => "This node handed it over",
            State::Sealed => "It has ended",
            State::Suspended => "Nobody holds it",
        };
        Some(PossibleValue::new(self.word()).help(help))
    }
}

/// Lists them, page by page of the API.
pub(crate) fn run(ctx: &Context, args: &ListArgs) -> Answer<Outcome> {
    let api = ctx.api()?;
    let limit = args.limit.unwrap_or(u64::MAX);
    let (mut items, mut count, mut cursor) = (Vec::new(), 0_u64, None::<String>);
    while count < limit {
        let answer = page_after(&api, args, cursor.as_deref())?;
        for item in view::items(&answer, "/items") {
            if count == limit {
                break;
            }
            count += 1;
            match ctx.out().shape() {
                Shape::Lines => ctx.out().object(&line(item)).map_err(refusal::stdout)?,
                Shape::Json | Shape::Text => items.push(item.clone()),
            }
        }
        cursor = view::at(&answer, "/next").as_str().map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    let next = json!(cursor);
    if ctx.out().shape() == Shape::Lines {
        ctx.out().end(count, &next).map_err(refusal::stdout)?;
        return Ok(Outcome::written());
    }
    let mut page = Page::default();
    let names = items.iter().fold(Names::of(ctx, &api), Names::beside);
    for item in &items {
        page.row(status::row(item, &names));
    }
    if items.is_empty() {
        page.plain("no sessions here");
    } else {
        page.plain(format::count(count, "session", "sessions"));
    }
    Ok(Outcome::done(json!({"v": 1, "kind": "sessions", "items": items, "next": next}), page))
}

fn page_after(api: &Api<'_>, args: &ListArgs, cursor: Option<&str>) -> Answer<Value> {
    let (agent, owner) =
        (args.agent.as_ref().map(ToString::to_string), args.owner.map(|owner| owner.to_string()));
    let query = [
        ("agent", agent.as_deref()),
        ("owner", owner.as_deref()),
        ("state", args.state.map(State::word)),
        ("cursor", cursor),
    ];
    api.get(&view::path("/v1/sessions", &query))
}

fn line(item: &Value) -> Value {
    let mut item = item.clone();
    if let Some(object) = item.as_object_mut() {
        object.entry("v").or_insert(json!(1));
        object.entry("kind").or_insert(json!("session"));
    }
    item
}
