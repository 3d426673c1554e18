//! `publish`: a session becomes public, after a preview of what would leave. Copies that others hold can't be taken back.

use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::code::Code;
use throughline_protocol::id::SessionId;

use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::args::OwnerArgs;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::output::Outcome;
use crate::cli::owner::{self, Owner, Reach};
use crate::cli::page::{Mark, Page};
use crate::cli::{format, resolve, sub_sessions, upload, view};

/// How often the note is signed again when others append meanwhile.
const SIGN_TRIES: u32 = 5;

/// Arguments of `publish`.
#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// The session
    #[arg(value_name = "S")]
    pub(crate) session: String,
    /// How the owner key is opened
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
}

/// What would leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Leaving {
    entries: u64,
    payloads: u64,
    files: u64,
    bytes: u64,
}

impl Leaving {
    fn to_json(self) -> Value {
        json!({"entries": self.entries, "payloads": self.payloads, "fileBlocks": self.files, "bytes": self.bytes})
    }
}

/// Previews, asks, signs the class note and the Ref.
pub(crate) fn run(ctx: &Context, args: &PublishArgs) -> Answer<Outcome> {
    // The note goes to whoever holds the session.
    let api = ctx.api_with_network()?;
    ctx.expect_initialised()?;
    let session = resolve::session(&api, &args.session)?;
    let shown = api.get(&format!("/v1/sessions/{session}"))?;
    owner::file_for(ctx, &shown, || format!("throughline publish {session}"))?;
    if let Some(outcome) = unchanged(&api, session)? {
        return Ok(outcome);
    }
    let leaving = count(&api, session)?;
    let mut preview = Page::default();
    preview.plain(format!(
        "{} {:?}: {}, {}, {}, {} become readable by anyone, for ever",
        session.short(),
        view::text(&shown, "/title"),
        format::count(leaving.entries, "entry", "entries"),
        format::count(leaving.payloads, "payload", "payloads"),
        format::count(leaving.files, "block of files", "blocks of files"),
        format::bytes(leaving.bytes),
    ));
    preview.mark(
        Mark::Warning,
        "no secret scan has run: read the log first, keys and tokens in tool outputs leave too",
    );
    ctx.out().aside(&preview);
    if !ctx.confirm("Publish?")? {
        return Err(Problem::new(Code::Interrupted, "not published: the answer was no; nothing was signed"));
    }
    let owner = Owner::unlock(ctx, args.owner)?;
    let note = note(&api, &owner, session)?;
    let facts = facts(&api, session, note.as_ref())?;
    let answer = api.post_blob("/v1/refs", &owner.anchor(&facts, Reach::Publishes)?)?;
    let mut page = Page::default();
    let pending = view::number(&api.get(&format!("/v1/sessions/{session}"))?, "/pending");
    page.mark(Mark::Done, reach(view::number(&facts, "/head/seq"), pending));
    let private = |child: &Value| view::text(child, "/class") != "public";
    let children = sub_sessions::of(&api, session, private);
    sub_sessions::tell(&mut page, &children, "stay private", |child| format!("throughline publish {child}"));
    page.plain(format!("session {session}"));
    let json = json!({
        "v": 1, "kind": "publish", "session": session.to_string(), "head": facts["head"],
        "note": note.map(|note| note.cid),
        "ref": answer["cid"], "told": answer["told"], "secretScan": "none", "subSessions": children,
        "left": leaving.to_json(), "unchanged": false,
    });
    Ok(Outcome::done(json, page))
}

/// What is said of a session whose owner has published the head that it has: nothing leaves, and there is nothing to sign.
fn unchanged(api: &Api<'_>, session: SessionId) -> Answer<Option<Outcome>> {
    let facts = api.get(&format!("/v1/sessions/{session}/anchor"))?;
    let published = view::at(&facts, "/published");
    if view::text(&facts, "/class") != "public" || published.is_null() {
        return Ok(None);
    }
    let mut page = Page::default();
    page.mark(Mark::Same, format!("already public through seq {}", view::number(&facts, "/head/seq")));
    page.plain(format!("session {session}"));
    let json = json!({
        "v": 1, "kind": "publish", "session": session.to_string(), "head": facts["head"], "note": null,
        "ref": published, "told": {"peers": 0, "pending": 0}, "secretScan": "none",
        "left": Leaving::default().to_json(), "unchanged": true,
    });
    Ok(Some(Outcome::done(json, page)))
}

/// The class note, in the chain.
struct Noted {
    cid: String,
    seq: u64,
}

/// How far everybody may read, in words: as far as the Ref goes, of which the last entries may be pending, as `status` counts them.
fn reach(seq: u64, pending: u64) -> String {
    let pending = match pending {
        0 => String::new(),
        pending => {
            format!(" (seq {} +{pending} pending, until the holder signs on)", seq.saturating_sub(pending))
        }
    };
    format!("public through seq {seq}{pending}, and what the holder appends from now on")
}

/// What the owner's Ref is to name. A note that the holder put in order is fetched from there first, so that the Ref stands on
/// what the holder serves, note included.
fn facts(api: &Api<'_>, session: SessionId, note: Option<&Noted>) -> Answer<Value> {
    let path = format!("/v1/sessions/{session}/anchor");
    let facts = api.get(&path)?;
    if note.is_none_or(|note| note.seq <= view::number(&facts, "/head/seq")) {
        return Ok(facts);
    }
    let shown = api.get(&format!("/v1/sessions/{session}"))?;
    let body = json!({"session": session.to_string(), "from": [view::text(&shown, "/holder/principal")]});
    api.ask(Call::post("/v1/fetch", &body))?;
    api.get(&path)
}

/// Signs the class note on the head; again on the new head when somebody appended in between. None for a session that is
/// public already: it has its note.
fn note(api: &Api<'_>, owner: &Owner, session: SessionId) -> Answer<Option<Noted>> {
    for _ in 0..SIGN_TRIES {
        let base = api.get(&format!("/v1/sessions/{session}/base"))?;
        if view::text(&base, "/class") == "public" {
            return Ok(None);
        }
        let frame = owner::append_frame(&owner.publish_note(&base)?);
        match api.post_blob(&format!("/v1/sessions/{session}/entries"), &frame) {
            Ok(answer) => {
                let cid = view::text(&answer, "/entries/0/cid").to_owned();
                return Ok(Some(Noted { cid, seq: view::number(&answer, "/entries/0/seq") }));
            }
            Err(problem) if problem.code() == Code::HeadMoved => {}
            Err(problem) if matches!(problem.code(), Code::Unreachable | Code::Timeout) => {
                return Err(without_holder(session, problem));
            }
            Err(problem) => return Err(problem),
        }
    }
    Err(Problem::new(Code::HeadMoved, format!("the head moved {SIGN_TRIES} times while the note was signed")))
}

/// Only the holder puts the note in order. Who does not want to wait for it takes the session over first.
fn without_holder(session: SessionId, problem: Problem) -> Problem {
    problem.hint(format!(
        "start it and run this again, or hand the session over without it: throughline move {session} --to self --source \
         offline"
    ))
}

/// Counts what a peer could ask for from then on, by reading it as a peer would: as the session's CAR.
fn count(api: &Api<'_>, session: SessionId) -> Answer<Leaving> {
    let path = view::path(&format!("/v1/sessions/{session}/entries"), &[("payloads", Some("all"))]);
    let mut reply = api.open(Call::get(&path).header("accept", upload::CAR))?;
    let (mut reader, mut leaving) = (SessionReader::new(), Leaving::default());
    while let Some(piece) = api.chunk(&mut reply)? {
        leaving.bytes = leaving.bytes.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
        reader.push(&piece);
        while let Some(item) = reader.next() {
            match item.map_err(Problem::from)? {
                SessionItem::Genesis(_) | SessionItem::Entry(_) => leaving.entries += 1,
                SessionItem::Payload { .. } => leaving.payloads += 1,
                SessionItem::Config { .. } | SessionItem::File { .. } => leaving.files += 1,
                SessionItem::Control(_) => {}
            }
        }
    }
    Ok(leaving)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_everybody_may_read_agrees_with_status() {
        assert_eq!(reach(4, 0), "public through seq 4, and what the holder appends from now on");
        let pending = reach(4, 1);
        assert!(pending.starts_with("public through seq 4 (seq 3 +1 pending, "), "{pending}");
    }
}
