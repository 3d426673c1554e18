//! `revoke`: anchors first, then the tombstone. Before anything is signed it shows what would be kept and what cut.

use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::control::Keep;
use throughline_protocol::id::{Cid, EntryCid, Seq};
use throughline_protocol::limits;

use super::anchor;
use super::unfetched::Unfetched;
use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::args::OwnerArgs;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::output::Outcome;
use crate::cli::owner::{self, Owner};
use crate::cli::page::{Mark, Page};
use crate::cli::{format, resolve, view};

/// Arguments of `revoke`.
#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// A peer, all of whose grants go, or the CID of one grant
    #[arg(value_name = "P|CAP")]
    pub(crate) what: String,
    /// Do not anchor these sessions: what you never acknowledged there is cut
    #[arg(long, value_name = "S")]
    pub(crate) no_anchor: Vec<String>,
    /// Anchor sessions also where a known peer told more than is here and nobody gives it: what is not here is cut
    #[arg(long)]
    pub(crate) cut_unfetched: bool,
    /// Why; it stands in the tombstone, which everybody may read
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// How the owner key is opened
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
}

/// Previews, asks, anchors, revokes.
pub(crate) fn run(ctx: &Context, args: &RevokeArgs) -> Answer<Outcome> {
    // Whoever can be reached is to hear of it now.
    let api = ctx.api_with_network()?;
    owner::file(ctx)?;
    let (what, shown) = match args.what.parse::<Cid>() {
        Ok(cid) => (json!({"capability": cid.to_string()}), cid.short()),
        Err(_) => {
            let peer = resolve::peer(&api, &args.what)?;
            (json!({"delegate": peer.principal.to_string()}), peer.shown())
        }
    };
    let skip =
        args.no_anchor.iter().map(|text| resolve::session(&api, text).map(|session| session.to_string()));
    let skip: Vec<String> = skip.collect::<Answer<_>>()?;
    let look = || api.ask(Call::post("/v1/tombstones/preview", &what));
    let mut preview = look()?;
    let capabilities = in_force(&preview)?;
    if capabilities.is_empty() {
        let json = json!({
            "v": 1, "kind": "revoke", "revoked": [], "sessions": [], "stillHolder": [], "unchanged": true,
            "delegate": preview.get("delegate"),
        });
        let mut page = Page::default();
        page.mark(Mark::Same, format!("{shown} has no grant that is in force"));
        return Ok(Outcome::done(json, page));
    }
    // What others hold of these sessions is fetched before an anchor says where they end.
    let listed = view::items(&preview, "/sessions").iter().map(|it| view::text(it, "/session").to_owned());
    let anchored: Vec<String> = listed.filter(|session| !skip.contains(session)).collect();
    let unfetched = Unfetched::of(ctx, &api, &anchored)?;
    if unfetched.fetched > 0 {
        preview = look()?;
    }
    let sessions = view::items(&preview, "/sessions");
    ctx.out().aside(&preview_page(&shown, sessions, &skip));
    unfetched.agree(ctx, args.cut_unfetched)?;
    if !ctx.confirm("Sign the revocation?")? {
        return Err(Problem::new(Code::Interrupted, "not revoked: the answer was no; nothing was signed"));
    }
    let owner = Owner::unlock(ctx, args.owner)?;
    let keep = anchor_first(&api, &owner, sessions, &skip)?;
    let revoked = bury(&api, &owner, &capabilities, &keep, args.reason.as_deref())?;
    let mut outcome = report(args, &what, &preview, &revoked, &skip);
    if let Some(json) = &mut outcome.json {
        json["unfetched"] = unfetched.json();
    }
    Ok(outcome)
}

/// The capabilities that are not revoked yet.
fn in_force(preview: &Value) -> Answer<Vec<Cid>> {
    let capabilities = view::items(preview, "/capabilities").iter();
    let live = capabilities.filter(|capability| !view::flag(capability, "/revoked"));
    live.map(|capability| view::text(capability, "/cid").parse().map_err(Problem::from)).collect()
}

/// What becomes of each session. An anchor at the head keeps all of it.
fn preview_page(shown: &str, sessions: &[Value], skip: &[String]) -> Page {
    let mut page = Page::default();
    let count = format::count(sessions.len() as u64, "session", "sessions");
    page.plain(format!("{shown} wrote {count}.  After this:"));
    for session in sessions {
        let is_anchored = will_anchor(session, skip);
        let (seq, cut) = kept(session, is_anchored);
        let title = view::text(session, "/title");
        let id = format::short(view::text(session, "/session"));
        let note = if view::flag(session, "/holder") {
            "it is the HOLDER: nobody can append until you move it".to_owned()
        } else if cut > 0 {
            format!(
                "<- {cut} never acknowledged (throughline log {id} --from {})",
                seq.map_or(0, |seq| seq + 1)
            )
        } else {
            String::new()
        };
        page.row([
            format!("  {id}"),
            title.to_owned(),
            seq.map_or("nothing kept".to_owned(), |seq| format!("kept through seq {seq}")),
            format!("cut {cut}"),
            note,
        ]);
    }
    page
}

fn will_anchor(session: &Value, skip: &[String]) -> bool {
    view::at(session, "/anchor").is_object()
        && !skip.iter().any(|skipped| skipped == view::text(session, "/session"))
}

/// Through which seq a session stays, if any of it does, and how many entries go.
fn kept(session: &Value, is_anchored: bool) -> (Option<u64>, u64) {
    let head = view::number(session, "/head/seq");
    if is_anchored {
        return (Some(head), 0);
    }
    let through = view::at(session, "/anchoredBefore").as_u64().map(|seq| seq.min(head));
    (through, view::number(session, "/cutWithoutAnchor"))
}

/// Signs a Ref at every head that is to stay. Tombstones are told to everybody, so they name public sessions only.
fn anchor_first(api: &Api<'_>, owner: &Owner, sessions: &[Value], skip: &[String]) -> Answer<Vec<Keep>> {
    let mut keep = Vec::new();
    for session in sessions.iter().filter(|session| will_anchor(session, skip)) {
        let facts = view::at(session, "/anchor");
        let mut facts = facts.clone();
        for key in ["session", "head"] {
            if facts[key].is_null() {
                facts[key] = session[key].clone();
            }
        }
        anchor::sign(api, owner, &facts)?;
        if view::text(&facts, "/class") == "public" && keep.len() < limits::TOMBSTONE_KEEP_MAX {
            keep.push(Keep {
                genesis: view::text(&facts, "/session").parse::<EntryCid>()?,
                head: view::text(&facts, "/head/cid").parse::<EntryCid>()?,
                seq: Seq::new(view::number(session, "/head/seq"))?,
            });
        }
    }
    Ok(keep)
}

/// Signs one tombstone a capability.
fn bury(
    api: &Api<'_>,
    owner: &Owner,
    capabilities: &[Cid],
    keep: &[Keep],
    reason: Option<&str>,
) -> Answer<Vec<Value>> {
    let mut revoked = Vec::new();
    for capability in capabilities {
        let bytes = owner.tombstone(*capability, keep.to_vec(), reason.map(str::to_owned))?;
        let answer = api.post_blob("/v1/tombstones", &bytes)?;
        revoked.push(json!({
            "capability": capability.to_string(), "tombstone": answer["cid"], "told": answer["told"],
        }));
    }
    Ok(revoked)
}

fn report(args: &RevokeArgs, what: &Value, preview: &Value, revoked: &[Value], skip: &[String]) -> Outcome {
    let sessions: Vec<Value> = view::items(preview, "/sessions")
        .iter()
        .map(|session| {
            let is_anchored = will_anchor(session, skip);
            let (seq, cut) = kept(session, is_anchored);
            let through = match seq {
                Some(_) if is_anchored => session["head"].clone(),
                Some(seq) => json!({"seq": seq}),
                None => Value::Null,
            };
            json!({
                "session": session["session"], "keptThrough": through, "cutEntries": cut,
                "anchoredBefore": session["anchoredBefore"], "holder": session["holder"],
            })
        })
        .collect();
    let last = revoked.last().cloned().unwrap_or_default();
    let anchored = sessions.iter().filter(|session| session["cutEntries"] == 0).count();
    let mut page = Page::default();
    for item in revoked {
        let told = view::number(item, "/told/peers");
        let pending = view::number(item, "/told/pending");
        page.mark(
            Mark::Done,
            format!(
                "tombstone  {}  {} anchored first.  told {}, pending {pending}",
                format::short(view::text(item, "/tombstone")),
                format::count(anchored as u64, "session", "sessions"),
                format::count(told, "peer", "peers"),
            ),
        );
    }
    page.plain("  Entries that it signs from now on are cut by every verifier that has the tombstone.");
    for session in view::items(preview, "/stillHolder") {
        let id = format::short(session.as_str().unwrap_or(view::text(session, "/session")));
        page.mark(Mark::Warning, format!("it still holds {id}: throughline move {id} --to P"));
    }
    let json = json!({
        "v": 1, "kind": "revoke", "capability": last["capability"], "tombstone": last["tombstone"],
        "delegate": preview.get("delegate").or(what.get("delegate")), "reason": args.reason, "revoked": revoked,
        "sessions": sessions, "stillHolder": preview["stillHolder"], "told": last["told"], "unchanged": false,
    });
    Outcome::done(json, page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::page::Styles;

    #[test]
    fn the_preview_tells_what_is_kept_and_what_is_cut() {
        let session = |id: &str, holder: bool| {
            json!({
                "session": id, "title": "Scratch", "head": {"seq": 12, "cid": "h"}, "anchoredBefore": 9,
                "cutWithoutAnchor": 3, "holder": holder, "anchor": {"epoch": 0, "class": "internal"},
            })
        };
        let sessions = [session("a", false), session("b", false), session("c", true)];
        let text = preview_page("server-a", &sessions, &["b".to_owned()]).render(Styles::plain());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "server-a wrote 3 sessions.  After this:");
        assert!(lines[1].ends_with("kept through seq 12  cut 0"), "{text}");
        assert!(lines[2].contains("kept through seq 9 "), "{text}");
        assert!(lines[2].ends_with("cut 3  <- 3 never acknowledged (throughline log b --from 10)"), "{text}");
        assert!(lines[3].contains("HOLDER"), "{text}");
    }
}
