//! `fork S --bring-back`: the words of a tail that was cut are said again, on the head that counts.
//!
//! Each is a new message, signed by whoever holds the session if that is this node, else by the owner; it names the entry that it says
//! again, so a second run says nothing twice. What is said is shown first.

use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::id::SessionId;
use throughline_protocol::view::EntryDraft;

use super::fork::ForkArgs;
use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::names::Names;
use crate::cli::output::Outcome;
use crate::cli::owner::{self, Owner};
use crate::cli::page::{Mark, Page};
use crate::cli::{format, resolve, view};

/// How often a message is signed anew while others append.
const SIGN_TRIES: u32 = 5;

/// Who signs what is said again.
enum Signer {
    /// This node, which holds the session.
    Node,
    /// The owner, whose message goes to whoever holds it.
    Owner(Box<Owner>),
}

/// Shows the words, asks, says them again.
pub(super) fn run(ctx: &Context, args: &ForkArgs, session: &str) -> Answer<Outcome> {
    // The messages go to whoever holds the session.
    let api = ctx.api_with_network()?;
    let session = resolve::session(&api, session)?;
    let first = tail(&api, session)?;
    let (mut answer, mut page) = told(session, &first);
    if view::items(&first, "/words").is_empty() {
        page.mark(Mark::Same, "nothing is to be brought back");
        answer["unchanged"] = true.into();
        return Ok(Outcome::done(answer, page));
    }
    let names = Names::of(ctx, &api);
    for word in view::items(&first, "/words") {
        page.row([
            format!("  seq {}", view::number(word, "/seq")),
            format!("by {}", names.who(view::text(word, "/signer"))),
            view::text(word, "/text").to_owned(),
        ]);
    }
    if args.dry_run {
        return Ok(Outcome::done(answer, page));
    }
    let shown = api.get(&format!("/v1/sessions/{session}"))?;
    let is_here = view::flag(&shown, "/holder/self");
    if !is_here {
        let there = || {
            format!(
                "throughline import TAIL.car, then throughline fork {0} --bring-back; here first: throughline export {0} -o TAIL.car",
                session.short()
            )
        };
        owner::file_for(ctx, &shown, there)?;
    }
    ctx.out().aside(&page);
    if !ctx.confirm("Say these words again, as new messages?")? {
        return Err(Problem::new(
            Code::Interrupted,
            "not brought back: the answer was no; nothing was signed",
        ));
    }
    let signer = if is_here { Signer::Node } else { Signer::Owner(Owner::unlock(ctx, args.owner)?.into()) };
    let entries = say_all(&api, session, &signer, first)?;
    let mut page = Page::default();
    let count = format::count(entries.len() as u64, "message", "messages");
    page.mark(Mark::Done, format!("{count} brought back to {}", session.short()));
    page.plain(format!("session {session}"));
    answer["entries"] = entries.into();
    Ok(Outcome::done(answer, page))
}

fn tail(api: &Api<'_>, session: SessionId) -> Answer<Value> {
    Ok(api.get(&format!("/v1/sessions/{session}/fork"))?["tail"].clone())
}

fn told(session: SessionId, tail: &Value) -> (Value, Page) {
    let number = |key: &str| view::number(tail, key);
    let mut page = Page::default();
    page.plain(format!(
        "{}  tail of {}: {} said again already, {} no words of a user or a tool, {} without words here",
        session.short(),
        format::count(number("/entries"), "entry", "entries"),
        number("/brought"),
        number("/others"),
        number("/absent"),
    ));
    let answer = json!({
        "v": 1, "kind": "brought-back", "session": session.to_string(), "tail": tail, "entries": [],
        "unchanged": false,
    });
    (answer, page)
}

/// Says all of a tail, one answer's words after the other; what was said.
fn say_all(api: &Api<'_>, session: SessionId, signer: &Signer, mut tail: Value) -> Answer<Vec<Value>> {
    let mut said = Vec::new();
    loop {
        for word in view::items(&tail, "/words") {
            let taken = say(api, session, signer, word)?;
            said.push(json!({"cid": taken["entries"][0]["cid"], "again": word["cid"]}));
        }
        if !view::flag(&tail, "/more") {
            return Ok(said);
        }
        let words = self::tail(api, session)?;
        if words["words"] == tail["words"] {
            // The holder has them, and this node has not heard so yet.
            return Ok(said);
        }
        tail = words;
    }
}

/// Says one of them. A message that was ordered before under this name is answered as it was then.
fn say(api: &Api<'_>, session: SessionId, signer: &Signer, word: &Value) -> Answer<Value> {
    let path = format!("/v1/sessions/{session}/entries");
    let mut base = api.get(&format!("/v1/sessions/{session}/base"))?;
    let mut tries = 0;
    loop {
        tries += 1;
        let taken = match signer {
            Signer::Node => {
                let body = json!({"base": base["prev"], "entry": word["entry"]});
                let key = format!("bring-back-{}-{}", view::text(word, "/cid"), view::text(&base, "/prev"));
                api.ask(Call::post(&path, &body).header("idempotency-key", key))
            }
            Signer::Owner(owner) => {
                let draft = EntryDraft::from_json(&word["entry"]).map_err(Problem::from)?;
                let frame = owner.message(&base, draft)?;
                api.post_blob(&path, &frame)
            }
        };
        match taken {
            Err(problem) if problem.code() == Code::HeadMoved && tries < SIGN_TRIES => {
                base = match problem.fact("signingBase") {
                    Some(next) if next.is_object() => next.clone(),
                    Some(_) | None => api.get(&format!("/v1/sessions/{session}/base"))?,
                };
            }
            taken => return taken,
        }
    }
}
