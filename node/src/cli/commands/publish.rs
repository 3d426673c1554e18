//! `publish`: a session becomes public, after a preview of what would leave. Copies that others hold can't be taken back.
//!
//! Nothing leaves that no preview showed: what the holder has is fetched first, and the class note stands on the tip that was
//! shown. When somebody appended since, whoever orders the note refuses it, and what is new is shown and asked for.

use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::id::{EntryCid, SessionId};

use super::leaving::{Leaving, count};
use crate::api::error::{Answer, Problem};
use crate::cli::args::OwnerArgs;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::output::Outcome;
use crate::cli::owner::{self, Owner, Reach};
use crate::cli::page::{Mark, Page};
use crate::cli::watch::watched;
use crate::cli::{format, resolve, sub_sessions, view};

/// How often the note is signed under `--yes` while others append: each time on what was shown just before.
const SIGN_TRIES: u32 = 5;
/// Holders that are asked one after the other, when one tells that it handed the session over to the next.
const HOLDERS_MAX: u32 = 3;
/// Entries that are listed of those that came since a preview.
const NEWS_SHOWN: usize = 10;

/// Arguments of `publish`.
#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// The session
    #[arg(value_name = "S")]
    pub(crate) session: String,
    /// Show what would leave, and sign nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Publish only while this is the newest entry: `head.cid` of the dry run that was looked at
    #[arg(long, value_name = "CID")]
    pub(crate) base: Option<EntryCid>,
    /// How the owner key is opened
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
}

/// A session as it was shown. Nothing above its tip leaves.
struct Seen {
    /// What a signer of the next entry needs: it stands on the tip that was shown.
    base: Value,
    leaving: Leaving,
    /// Blocks that the holder did not give, so that they are not counted.
    missing: u64,
}

/// What became of signing.
enum Signed {
    /// The head that everybody may read now, as the API shows one, and the class note, if one was needed.
    Done { head: Value, note: Option<EntryCid>, answer: Value },
    /// Somebody appended since the preview.
    Moved(Problem),
}

/// Previews, asks, signs the class note and the Ref.
pub(crate) fn run(ctx: &Context, args: &PublishArgs) -> Answer<Outcome> {
    // The note goes to whoever holds the session.
    let api = ctx.api_with_network()?;
    ctx.expect_initialised()?;
    let session = resolve::session(&api, &args.session)?;
    let publishing = Publishing { ctx, api: &api, session };
    owner::file_for(ctx, &publishing.shown()?, || format!("throughline publish {session}"))?;
    if let Some(outcome) = publishing.unchanged(args.dry_run)? {
        return Ok(outcome);
    }
    let mut seen = publishing.look()?;
    publishing.preview(&seen, None)?;
    if let Some(base) = args.base {
        publishing.expect_base(&seen, base)?;
    }
    if args.dry_run {
        return Ok(publishing.tried(&seen));
    }
    publishing.confirm()?;
    let owner = Owner::unlock(ctx, args.owner)?;
    let mut tries = 1;
    loop {
        let problem = match publishing.sign(&owner, &seen)? {
            Signed::Done { head, note, answer } => return publishing.report(&seen, &head, note, &answer),
            Signed::Moved(problem) => problem,
        };
        let now = publishing.look()?;
        if now.tip() == seen.tip() {
            // Who refused it does not show what it was refused for.
            return Err(problem);
        }
        publishing.preview(&now, Some(&seen))?;
        if let Some(base) = args.base {
            publishing.expect_base(&now, base)?;
        }
        if ctx.is_unattended() && tries == SIGN_TRIES {
            return Err(publishing.too_busy(&now));
        }
        publishing.confirm()?;
        (seen, tries) = (now, tries + 1);
    }
}

impl Seen {
    fn tip(&self) -> &str {
        view::text(&self.base, "/prev")
    }

    fn seq(&self) -> u64 {
        view::number(&self.base, "/seq").saturating_sub(1)
    }

    fn is_public(&self) -> bool {
        view::text(&self.base, "/class") == "public"
    }

    fn head(&self) -> Value {
        json!({"cid": self.tip(), "seq": self.seq(), "epoch": view::number(&self.base, "/epoch")})
    }
}

/// One session on its way out.
struct Publishing<'c> {
    ctx: &'c Context,
    api: &'c Api<'c>,
    session: SessionId,
}

impl Publishing<'_> {
    fn shown(&self) -> Answer<Value> {
        self.api.get(&format!("/v1/sessions/{}", self.session))
    }

    fn base(&self) -> Answer<Value> {
        self.api.get(&format!("/v1/sessions/{}/base", self.session))
    }

    /// The session as it is, with all that its holder has. One that is public already needs no note: what is held here is what its
    /// Ref will say.
    fn look(&self) -> Answer<Seen> {
        let mut missing = 0;
        let mut asked = String::new();
        for _ in 0..HOLDERS_MAX {
            let shown = self.shown()?;
            let holder = view::text(&shown, "/holder/principal");
            let is_here = holder.is_empty() || view::flag(&shown, "/holder/self");
            if is_here || holder == asked || view::text(&shown, "/class") == "public" {
                break;
            }
            let fetched = self.fetch(holder, "all");
            let fetched = fetched.map_err(|why| self.without_holder(why).with("holder", holder))?;
            missing = view::number(&fetched, "/payloads/missing") + view::number(&fetched, "/files/missing");
            holder.clone_into(&mut asked);
        }
        // Before it is counted: what comes in between is shown too much, never too little.
        let base = self.base()?;
        Ok(Seen { base, leaving: count(self.api, self.session)?, missing })
    }

    fn fetch(&self, holder: &str, payloads: &str) -> Answer<Value> {
        let body = json!({
            "session": self.session.to_string(), "from": [holder], "payloads": payloads,
            "timeoutMs": format::millis(self.ctx.timeout()),
        });
        let progress = self.ctx.progress("fetch");
        watched(self.api, "/v1/fetch", &body, &progress.counter())
    }

    /// Shows what would leave, and what of it is new since the last time.
    fn preview(&self, seen: &Seen, before: Option<&Seen>) -> Answer<()> {
        let leaving = seen.leaving;
        let mut page = Page::default();
        if let Some(before) = before {
            self.news(&mut page, before.seq(), seen.seq())?;
        }
        page.plain(format!(
            "{} {:?}: {}, {}, {}, {} become readable by anyone, for ever",
            self.session.short(),
            view::text(&self.shown()?, "/title"),
            format::count(leaving.entries, "entry", "entries"),
            format::count(leaving.payloads, "payload", "payloads"),
            format::count(leaving.files, "block of files", "blocks of files"),
            format::bytes(leaving.bytes),
        ));
        if seen.missing > 0 {
            let missing = format::count(seen.missing, "payload or file", "payloads and files");
            page.mark(Mark::Warning, format!("{missing} did not come from the holder and are not counted"));
        }
        page.mark(
            Mark::Warning,
            "no secret scan has run: read the log first, keys and tokens in tool outputs leave too",
        );
        self.ctx.out().aside(&page);
        Ok(())
    }

    /// The entries above `before`, of which the last is `last`.
    fn news(&self, page: &mut Page, before: u64, last: u64) -> Answer<()> {
        let count = last.saturating_sub(before);
        let entries = format::count(count, "entry", "entries");
        page.mark(
            Mark::Warning,
            format!("not shown before: {entries} above seq {before}; the head is seq {last}"),
        );
        for item in self.above(before, NEWS_SHOWN)? {
            let cell = |pointer: &str| view::text(&item, pointer).to_owned();
            page.row([format!("  seq {}", view::number(&item, "/seq")), cell("/type"), cell("/summary")]);
        }
        if count > NEWS_SHOWN as u64 {
            let from = before.saturating_add(1);
            page.plain(format!("  all of them: throughline log {} --from {from}", self.session));
        }
        Ok(())
    }

    fn above(&self, seq: u64, limit: usize) -> Answer<Vec<Value>> {
        let (seq, limit) = (seq.to_string(), limit.to_string());
        let query = [("after", Some(seq.as_str())), ("limit", Some(limit.as_str()))];
        let page = self.api.get(&view::path(&format!("/v1/sessions/{}/entries", self.session), &query))?;
        Ok(view::items(&page, "/items").to_vec())
    }

    /// Whoever names a base has looked at the session as it was there.
    fn expect_base(&self, seen: &Seen, base: EntryCid) -> Answer<()> {
        if seen.tip() == base.to_string() {
            return Ok(());
        }
        let named = self.api.get(&format!("/v1/sessions/{}/entries/{base}", self.session))?;
        let seq = view::number(&named, "/seq");
        let between: Vec<Value> = self.above(seq, NEWS_SHOWN)?.iter().map(mark).collect();
        let what =
            format!("expected seq {seq} to be the newest entry, got seq {}: nothing was signed", seen.seq());
        Err(Problem::new(Code::HeadMoved, what)
            .with("session", self.session.to_string())
            .with("base", json!({"cid": base.to_string(), "seq": seq}))
            .with("head", seen.head())
            .with("between", between)
            .hint(format!("throughline publish {} --dry-run", self.session)))
    }

    fn confirm(&self) -> Answer<()> {
        if self.ctx.confirm("Publish?")? {
            return Ok(());
        }
        Err(Problem::new(Code::Interrupted, "not published: the answer was no"))
    }

    fn too_busy(&self, seen: &Seen) -> Problem {
        let what = format!(
            "the head moved {SIGN_TRIES} times while the note was signed, and is seq {} now: nothing was published",
            seen.seq()
        );
        Problem::new(Code::HeadMoved, what)
            .with("session", self.session.to_string())
            .with("head", seen.head())
            .hint(format!("throughline publish {}, once the holder is less busy", self.session))
    }

    /// The note on what was shown, then the Ref on the note. A session that is public already has its note.
    fn sign(&self, owner: &Owner, seen: &Seen) -> Answer<Signed> {
        let (note, head) = if seen.is_public() {
            (None, seen.head())
        } else {
            let entry = owner.publish_note(&seen.base)?;
            let (cid, seq) = (EntryCid::of(&entry), view::number(&seen.base, "/seq"));
            let path = format!("/v1/sessions/{}/entries", self.session);
            match self.api.post_blob(&path, &owner::append_frame(&entry)) {
                Ok(_) => self.expect_note(cid, seq)?,
                Err(problem) if problem.code() == Code::HeadMoved => return Ok(Signed::Moved(problem)),
                Err(problem) => return Err(self.without_holder(problem)),
            }
            let epoch = view::number(&seen.base, "/epoch");
            (Some(cid), json!({"cid": cid.to_string(), "seq": seq, "epoch": epoch}))
        };
        let facts = json!({"session": self.session.to_string(), "head": head, "epoch": head["epoch"]});
        let answer = self.api.post_blob("/v1/refs", &owner.anchor(&facts, Reach::Publishes)?)?;
        Ok(Signed::Done { head, note, answer })
    }

    /// Whoever put the note in order says so. What counts is that it shows it: the Ref stands on what is served.
    fn expect_note(&self, note: EntryCid, seq: u64) -> Answer<()> {
        if self.holds(note, seq)? {
            return Ok(());
        }
        let shown = self.shown()?;
        let holder = view::text(&shown, "/holder/principal");
        let again = format!("throughline publish {}", self.session);
        let said = format!("{} took the note that makes the session public", format::short(holder));
        if let Err(problem) = self.fetch(holder, "none") {
            let what = format!("{said}, and was not heard of again: {}; no Ref was signed", problem.detail());
            return Err(Problem::new(problem.code(), what).with("note", note.to_string()).hint(again));
        }
        if self.holds(note, seq)? {
            return Ok(());
        }
        let what = format!(
            "{said}, and does not show it at seq {seq}: no Ref was signed. It may show it at any time: count on what is below to \
             be public"
        );
        Err(Problem::new(Code::SyncUnsolicited, what)
            .with("session", self.session.to_string())
            .with("holder", holder)
            .with("note", note.to_string())
            .hint(again))
    }

    /// Whether an entry is in the chain here.
    fn holds(&self, cid: EntryCid, seq: u64) -> Answer<bool> {
        match self.api.get(&format!("/v1/sessions/{}/entries/{seq}", self.session)) {
            Ok(entry) => Ok(view::text(&entry, "/cid") == cid.to_string()),
            Err(problem) if problem.code() == Code::NotFoundYet => Ok(false),
            Err(problem) => Err(problem),
        }
    }

    /// Only the holder knows what leaves and puts the note in order. Who does not want to wait for it takes the session over first.
    fn without_holder(&self, problem: Problem) -> Problem {
        if !matches!(problem.code(), Code::Unreachable | Code::Timeout) {
            return problem;
        }
        problem.hint(format!(
            "start the holder and run this again, or hand the session over without it: throughline move {} --to self --source \
             offline{}",
            self.session,
            if self.ctx.is_unattended() { " --yes" } else { "" }
        ))
    }

    /// What is said of a session whose owner has published the head that it has: nothing leaves, and there is nothing to sign.
    fn unchanged(&self, dry_run: bool) -> Answer<Option<Outcome>> {
        let facts = self.api.get(&format!("/v1/sessions/{}/anchor", self.session))?;
        let published = view::at(&facts, "/published");
        if view::text(&facts, "/class") != "public" || published.is_null() {
            return Ok(None);
        }
        let mut page = Page::default();
        page.mark(Mark::Same, format!("already public through seq {}", view::number(&facts, "/head/seq")));
        let children = self.sub_sessions(&mut page);
        page.plain(format!("session {}", self.session));
        let json = json!({
            "v": 1, "kind": "publish", "session": self.session.to_string(), "dryRun": dry_run, "head": facts["head"],
            "note": null, "ref": published, "told": {"peers": 0, "pending": 0}, "secretScan": "none",
            "left": Leaving::default().to_json(), "missing": 0, "unchanged": true, "subSessions": children,
        });
        Ok(Some(Outcome::done(json, page)))
    }

    /// Names the sessions of sub-agents that do not become public with this one.
    fn sub_sessions(&self, page: &mut Page) -> Vec<String> {
        let private = |child: &Value| view::text(child, "/class") != "public";
        let children = sub_sessions::of(self.api, self.session, private);
        sub_sessions::tell(page, &children, "stay private", |child| format!("throughline publish {child}"));
        children
    }

    fn tried(&self, seen: &Seen) -> Outcome {
        let mut page = Page::default();
        page.mark(Mark::Note, "nothing was signed; to publish this and nothing else:");
        page.plain(format!("  throughline publish {} --base {}", self.session, seen.tip()));
        let children = self.sub_sessions(&mut page);
        Outcome::done(self.json(seen, &seen.head(), &children, None, None), page)
    }

    fn report(&self, seen: &Seen, head: &Value, note: Option<EntryCid>, answer: &Value) -> Answer<Outcome> {
        let mut page = Page::default();
        page.mark(Mark::Done, reach(view::number(head, "/seq"), &self.shown()?));
        let children = self.sub_sessions(&mut page);
        page.plain(format!("session {}", self.session));
        Ok(Outcome::done(self.json(seen, head, &children, note, Some(answer)), page))
    }

    fn json(
        &self,
        seen: &Seen,
        head: &Value,
        children: &[String],
        note: Option<EntryCid>,
        answer: Option<&Value>,
    ) -> Value {
        let told = answer.map_or_else(|| json!({"peers": 0, "pending": 0}), |answer| answer["told"].clone());
        json!({
            "v": 1, "kind": "publish", "session": self.session.to_string(), "dryRun": answer.is_none(),
            "head": head, "note": note.map(|note| note.to_string()), "ref": answer.map(|answer| answer["cid"].clone()),
            "told": told, "secretScan": "none", "left": seen.leaving.to_json(), "missing": seen.missing,
            "unchanged": false, "subSessions": children,
        })
    }
}

/// An entry of a page as refusals list it.
fn mark(item: &Value) -> Value {
    json!({"cid": item["cid"], "seq": item["seq"], "type": item["type"], "signer": item["signer"]})
}

/// How far everybody may read, in words: as far as the Ref goes, of which the last entries may be pending, as `status` counts them
/// through the tip; and whether that is still so of what comes.
fn reach(seq: u64, shown: &Value) -> String {
    let above = view::number(shown, "/tip/seq").saturating_sub(seq);
    let pending = match view::number(shown, "/pending").saturating_sub(above) {
        0 => String::new(),
        pending => {
            format!(" (seq {} +{pending} pending, until the holder signs on)", seq.saturating_sub(pending))
        }
    };
    let onward = match view::text(shown, "/class") {
        "public" => "and what the holder appends from now on".to_owned(),
        class => format!("and no further: the holder made it {class} again"),
    };
    format!("public through seq {seq}{pending}, {onward}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_everybody_may_read_agrees_with_status() {
        let shown = |tip: u64, pending: u64, class: &str| {
            reach(4, &json!({"tip": {"seq": tip}, "pending": pending, "class": class}))
        };
        assert_eq!(shown(4, 0, "public"), "public through seq 4, and what the holder appends from now on");
        assert!(shown(4, 1, "public").starts_with("public through seq 4 (seq 3 +1 pending, "));
        // The holder has gone on, and what is pending is not ours.
        assert_eq!(shown(6, 1, "public"), shown(4, 0, "public"));
        assert!(shown(7, 4, "public").starts_with("public through seq 4 (seq 3 +1 pending, "));
        let closed = shown(6, 0, "internal");
        assert!(closed.contains("no further") && !closed.contains("from now on"), "{closed}");
    }
}
