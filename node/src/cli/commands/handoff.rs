//! `move`: a session goes to another server. The node drives the move; what the owner signs is signed here.
//!
//! Before the handoff is signed any failure rolls back. After it the move only goes forward: a lost reply means wait
//! and `--resume`, never that it did not happen.

use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use throughline_protocol::code::Code;
use throughline_protocol::control::Role;
use throughline_protocol::id::{AgentIri, SessionId};

use super::grant;
use super::handoff_leave::asks_to_leave;
use super::handoff_report::{left_open, report};
use crate::api::client::Call;
use crate::api::error::{Answer, Problem};
use crate::cli::args::OwnerArgs;
use crate::cli::context::Context;
use crate::cli::link::Api;
use crate::cli::names::Names;
use crate::cli::output::Outcome;
use crate::cli::owner::{self, Owner};
use crate::cli::page::{Mark, Page};
use crate::cli::resolve::{self, Peer};
use crate::cli::{format, refusal, sub_sessions, verdict, view};
use crate::keys::PassphraseSource;

/// How long one question to the node waits for a change.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Arguments of `move`.
#[derive(Debug, Args)]
pub(crate) struct MoveArgs {
    /// The session
    #[arg(value_name = "S")]
    pub(crate) session: String,
    /// The server that is to hold it: an alias, a full principal, or self
    #[arg(long, value_name = "P", required_unless_present_any = ["resume", "abort", "status"])]
    pub(crate) to: Option<String>,
    /// `offline` hands over from what is known here, when the old server does not answer; with --abort it gives that
    /// server up. A peer (alias, principal or ticket) is asked for the session first; without one, everybody who is known
    /// is asked for a session that is not held here
    #[arg(long, value_name = "auto|offline|PEER", default_value = "auto")]
    pub(crate) source: String,
    /// Hand over although nobody gives the target some words or files; they can be fetched later, from anyone who has them
    #[arg(long)]
    pub(crate) without_files: bool,
    /// Leave the old server although a known peer told more than is here and nobody gives it: what is not here is cut
    #[arg(long)]
    pub(crate) cut_unfetched: bool,
    /// Say what would happen, and do nothing
    #[arg(long, requires = "to")]
    pub(crate) dry_run: bool,
    /// Go on after a crash or a lost reply
    #[arg(long, conflicts_with_all = ["to", "abort", "status"])]
    pub(crate) resume: bool,
    /// Roll back, while there is a way back
    #[arg(long, conflicts_with_all = ["to", "status"])]
    pub(crate) abort: bool,
    /// Where the move stands
    #[arg(long, conflicts_with = "to")]
    pub(crate) status: bool,
    /// How the owner key is opened
    #[command(flatten)]
    pub(crate) owner: OwnerArgs,
}

/// One move that is under way.
pub(super) struct Drive<'a> {
    pub(super) ctx: &'a Context,
    pub(super) api: &'a Api<'a>,
    pub(super) args: &'a MoveArgs,
    pub(super) session: SessionId,
    owner: Option<Owner>,
}

/// Begins, resumes, aborts or looks.
pub(crate) fn run(ctx: &Context, args: &MoveArgs) -> Answer<Outcome> {
    if args.to.is_none() && !matches!(args.source.as_str(), "auto" | "offline") {
        let detail = format!(
            "expected --source auto or offline with --resume, --abort or --status, got {:?}; a peer is named with --to",
            args.source
        );
        return Err(refusal::usage(detail));
    }
    let api = ctx.api_with_network()?;
    let session = resolve::session(&api, &args.session)?;
    let mut drive = Drive { ctx, api: &api, args, session, owner: None };
    let answer = match &args.to {
        Some(to) => {
            let peer = target(&api, to)?;
            let path = format!("/v1/sessions/{session}/moves");
            if args.dry_run {
                return drive.try_out(&path, &peer);
            }
            drive.expect_signer(Some(&peer))?;
            if args.source == "offline" {
                drive.agree_to_leave(&path, &peer)?;
            }
            let begun = drive.begin(&path, &drive.body(&peer), &peer)?;
            drive.follow(begun)?
        }
        None => {
            let found = drive.find()?;
            if args.status {
                return Ok(report(found, &Names::of(ctx, &api)));
            }
            if args.resume {
                if let Some(finished) = finished(&found)? {
                    let mut outcome = report(finished, &Names::of(ctx, &api));
                    outcome.page.plain("it is finished: there was nothing left to do");
                    return Ok(outcome);
                }
                drive.expect_signer(None)?;
                let answer = drive.resume(found)?;
                drive.follow(answer)?
            } else {
                let body = json!({"source": args.source, "timeoutMs": format::millis(ctx.timeout())});
                let answer = api.ask(Call::post(&drive.path(&found, "/abort"), &body))?;
                drive.follow(answer)?
            }
        }
    };
    Ok(drive.told(answer))
}

impl Drive<'_> {
    /// The move as it stands. Of one that is done, or would be, also which sessions of sub-agents stay where they are.
    pub(super) fn told(&self, mut answer: Value) -> Outcome {
        let names = Names::of(self.ctx, self.api);
        if !matches!(view::text(&answer, "/state"), "done" | "planned") {
            return report(answer, &names);
        }
        let from = view::text(&answer, "/from/principal").to_owned();
        let stays = |child: &Value| {
            view::text(child, "/holder/principal") == from && view::text(child, "/state") != "sealed"
        };
        let behind = sub_sessions::of(self.api, self.session, stays);
        answer["subSessions"] = json!(behind);
        let how = format!("stay with {}", view::text(&answer, "/from/peer"));
        let to = view::text(&answer, "/to/peer").to_owned();
        let mut outcome = report(answer, &names);
        sub_sessions::tell(&mut outcome.page, &behind, &how, |child| {
            format!("throughline move {child} --to {to}")
        });
        outcome
    }

    fn path(&self, answer: &Value, rest: &str) -> String {
        format!("/v1/sessions/{}/moves/{}{rest}", self.session, view::text(answer, "/move"))
    }

    /// What the node is asked for.
    fn body(&self, peer: &Peer) -> Value {
        let timeout_ms = format::millis(self.ctx.timeout());
        json!({"to": peer.principal.to_string(), "source": self.args.source, "timeoutMs": timeout_ms})
    }

    /// The same, only to be told what it would do.
    pub(super) fn trial(&self, peer: &Peer) -> Value {
        let mut body = self.body(peer);
        body["dryRun"] = true.into();
        body
    }

    /// Makes sure, before anything is frozen, that the handoff can be signed here. A person is asked for the
    /// passphrase only when there is something to sign.
    fn expect_signer(&mut self, peer: Option<&Peer>) -> Answer<()> {
        let file = owner::file_for(self.ctx, &self.shown(), || self.by_the_owner(peer))?;
        let source = self.ctx.passphrase_source(self.args.owner);
        let can_ask_later = source == PassphraseSource::Terminal && self.ctx.can_ask();
        if !file.is_encrypted() || !can_ask_later {
            self.owner = Some(Owner::unlock(self.ctx, self.args.owner)?);
        }
        Ok(())
    }

    fn owner(&mut self) -> Answer<&Owner> {
        let owner = match self.owner.take() {
            Some(owner) => owner,
            None => Owner::unlock(self.ctx, self.args.owner)?,
        };
        Ok(self.owner.insert(owner))
    }

    /// The session as this node knows it; empty for one that it does not hold: the move may still find it elsewhere.
    fn shown(&self) -> Value {
        self.api.get(&format!("/v1/sessions/{}", self.session)).unwrap_or_default()
    }

    fn agent(&self) -> Option<AgentIri> {
        view::text(&self.shown(), "/agent").parse().ok()
    }

    /// What the owner runs, elsewhere, for what was asked here.
    fn by_the_owner(&self, peer: Option<&Peer>) -> String {
        let session = self.session;
        let Some(peer) = peer else { return format!("throughline move --resume {session}") };
        let command = format!("throughline move {session} --to {}", peer.principal);
        match (peer.alias.as_deref(), self.agent()) {
            // Whoever wants a session for itself has to be known there, and to have a grant.
            (Some("self"), Some(agent)) => format!(
                "throughline peer add NAME TICKET (this node's: throughline id --ticket), throughline grant {} --agent \
                 {agent}, {command}",
                peer.principal
            ),
            _ => command,
        }
    }

    /// The refusal of a target without a grant, with what helps: the command where the owner's key is here, else who could run it.
    pub(super) fn grant_missing(&self, peer: &Peer) -> Problem {
        let shown = self.shown();
        let scope = self.agent().map(|agent| format!(" --agent {agent}")).unwrap_or_default();
        let detail =
            format!("{} may not hold this session: it has no live writer grant that covers it", peer.shown());
        let missing = Problem::new(Code::CapMissing, detail).with("session", self.session.to_string());
        match owner::file_for(self.ctx, &shown, || self.by_the_owner(Some(peer))) {
            Ok(_) => missing.hint(format!("throughline grant {}{scope}", peer.word())),
            Err(other) => match other.fact("hint").and_then(Value::as_str) {
                Some(by_the_owner) => missing.hint(by_the_owner),
                // The key file itself is at fault: that comes first.
                None => other,
            },
        }
    }

    /// Begins the move, or goes on with one to the same server. A target without a grant is granted one if the person at the
    /// terminal says so; a script is told the command, for a grant is an act of its own.
    fn begin(&mut self, path: &str, body: &Value, peer: &Peer) -> Answer<Value> {
        let answer = match self.api.ask(Call::post(path, body)) {
            Err(problem) if problem.code() == Code::MoveState => return self.take_up(peer, problem),
            answer => answer?,
        };
        if view::text(&answer, "/state") != "needs-grant" {
            return Ok(answer);
        }
        let agent = self.agent();
        let scope = agent.as_ref().map(|agent| format!(" --agent {agent}")).unwrap_or_default();
        let question = format!("{} has no writer grant. Grant it now{scope}?", peer.shown());
        if !self.ctx.can_ask() || !self.ctx.confirm(&question)? {
            return Err(self.grant_missing(peer));
        }
        let account = owner::file(self.ctx)?.principal();
        let path_of_agent = agent.and_then(|agent| agent.path().map(|path| path.as_str().to_owned()));
        let wanted =
            grant::Wanted { delegate: peer.principal, role: Role::Writer, path: path_of_agent, label: None };
        let owner = self.owner()?.clone();
        grant::give(self.api, account, &wanted, || Ok(owner))?;
        self.api.ask(Call::post(path, body))
    }

    /// A move of this session is open already. Asked for once more, to the same server, it is that one that goes on; one that is
    /// being taken back does not.
    fn take_up(&self, peer: &Peer, refused: Problem) -> Answer<Value> {
        let open = self.find()?;
        let is_same = view::text(&open, "/to/principal") == peer.principal.to_string();
        if !is_same || view::text(&open, "/phase") == "rollback" {
            return Err(refused);
        }
        if self.args.source != "offline" && leaves_its_source(&open) {
            return Err(self.left_behind(&open));
        }
        self.resume(open)
    }

    /// The refusal to go on without a server where that was not asked for: it may be back, and may have written more.
    fn left_behind(&self, open: &Value) -> Problem {
        let (session, from) = (format::short(&self.session.to_string()), view::text(open, "/from/peer"));
        let detail = format!(
            "expected a move that waits for {from}, found one of this session that goes on without it (--source offline)"
        );
        Problem::new(Code::MoveState, detail)
            .with("session", self.session.to_string())
            .with("move", open["move"].clone())
            .hint(format!(
                "throughline move --resume {session} to go on without {from}, or throughline move --abort {session} and \
                 the same command again to wait for it"
            ))
    }

    /// Goes on with a move. A silent server that is left behind anyway is not asked once more.
    fn resume(&self, open: Value) -> Answer<Value> {
        if self.args.source == "offline" && asks_to_leave(&open) {
            return Ok(open);
        }
        let body = json!({"timeoutMs": format::millis(self.ctx.timeout())});
        self.api.ask(Call::post(&self.path(&open, "/resume"), &body))
    }

    /// Follows the move until nothing more can happen here. Waiting for somebody who is not heard ends when that has
    /// lasted as long as a peer may be silent.
    fn follow(&mut self, mut answer: Value) -> Answer<Value> {
        let (mut told, mut waiting_since, mut shown) = (0, None, None);
        loop {
            told = self.tell_phases(&answer, told);
            let state = view::text(&answer, "/state").to_owned();
            if state != "waiting" {
                waiting_since = None;
            }
            if !matches!(state.as_str(), "running" | "waiting") {
                // A question must not stand below a bar that moves.
                shown = None;
            }
            answer = match state.as_str() {
                "running" => {
                    let phase = view::text(&answer, "/phase").to_owned();
                    if shown.as_ref().is_none_or(|(name, _)| *name != phase) {
                        shown = Some((phase.clone(), self.ctx.spinner(phase)));
                    }
                    self.wait(&answer, WAIT_MAX)?
                }
                "waiting" => {
                    let since = *waiting_since.get_or_insert_with(Instant::now);
                    match self.ctx.timeout().checked_sub(since.elapsed()) {
                        Some(left) if !left.is_zero() => self.wait(&answer, left.min(WAIT_MAX))?,
                        _ => return Ok(answer),
                    }
                }
                "needs-confirmation" => self.confirm(&answer)?,
                "needs-handoff" => self.hand_over(&answer)?,
                _ => return Ok(answer),
            };
        }
    }

    /// The move after its next change, or as it is when there was none for so long.
    fn wait(&self, answer: &Value, for_at_most: Duration) -> Answer<Value> {
        let wait_ms = format::millis(for_at_most).max(1).to_string();
        let waited = self.api.get(&view::path(&self.path(answer, ""), &[("waitMs", Some(&wait_ms))]));
        waited.map_err(|problem| {
            if problem.code() != Code::Interrupted {
                return problem;
            }
            left_open(
                answer,
                if self.api.is_in_process() { "stands as it is" } else { "goes on in the node" },
            )
        })
    }

    fn tell_phases(&self, answer: &Value, told: usize) -> usize {
        let phases = view::items(answer, "/phases");
        for phase in phases.iter().skip(told) {
            let took = format::elapsed(view::number(phase, "/ms"));
            let mut page = Page::default();
            page.mark(Mark::Done, format!("{:<10} {took}", view::text(phase, "/phase")));
            if self.ctx.out().is_text() {
                self.ctx.out().aside(&page);
            }
        }
        phases.len().max(told)
    }

    /// Asks whether to go on although something is lacking; No rolls the move back.
    fn confirm(&self, answer: &Value) -> Answer<Value> {
        if asks_to_leave(answer) {
            return self.leave_silent(answer);
        }
        let reason = match view::text(answer, "/reason") {
            "" => lacking(answer),
            reason => reason.to_owned(),
        };
        if verdict::losses(answer).is_some() {
            let mut page = Page::default();
            verdict::links(&mut page, answer);
            for cid in view::items(answer, "/lacking").iter().filter_map(Value::as_str) {
                page.plain(format!("  lacking    {cid}"));
            }
            self.ctx.out().aside(&page);
            if lacks_files_only(answer) {
                if self.args.without_files {
                    return self.decided(answer, true);
                }
                if self.ctx.is_unattended() || !self.ctx.can_ask() {
                    // A general Yes (--yes) leaves no file behind: that is said by its own name.
                    return Err(self.roll_back(answer, without_files(answer)));
                }
            }
        }
        match self.ctx.confirm(&format!("{reason}. Hand over anyway?")) {
            Ok(goes_on) => self.decided(answer, goes_on),
            Err(problem) => Err(self.roll_back(answer, problem)),
        }
    }

    pub(super) fn decided(&self, answer: &Value, goes_on: bool) -> Answer<Value> {
        if !goes_on {
            return self.api.ask(Call::post(&self.path(answer, "/abort"), &json!({})));
        }
        let question = json!({"phase": view::text(answer, "/phase")});
        let told = self.api.ask(Call::post(&self.path(answer, "/confirm"), &question));
        self.unless_it_went_on(answer, told, Code::MoveState)
    }

    /// What the node says to a decision. One that came too late (`late`) decides nothing: the move is read again, and may ask again.
    fn unless_it_went_on(&self, answer: &Value, told: Answer<Value>, late: Code) -> Answer<Value> {
        match told {
            Err(problem) if problem.code() == late => self.api.get(&self.path(answer, "")),
            told => told,
        }
    }

    fn hand_over(&mut self, answer: &Value) -> Answer<Value> {
        let facts = view::at(answer, "/sign").clone();
        let signed = self.owner().and_then(|owner| owner.handoff(&facts));
        match signed {
            Ok(bytes) => {
                let told = self.api.post_blob(&self.path(answer, "/handoff"), &bytes);
                match self.unless_it_went_on(answer, told, Code::HeadMoved) {
                    // Whether it was taken is not known, or it waits for nothing any more: what helps is in the problem.
                    Err(problem) if !self.still_waits(answer) => Err(problem),
                    Err(problem) => Err(self.roll_back(answer, problem)),
                    goes_on => goes_on,
                }
            }
            Err(problem) => Err(self.roll_back(answer, problem)),
        }
    }

    /// Whether the move waits for the handoff as before: what was sent did nothing, and its source stands still for it.
    fn still_waits(&self, answer: &Value) -> bool {
        let now = self.api.get(&self.path(answer, ""));
        now.is_ok_and(|now| view::text(&now, "/state") == "needs-handoff")
    }

    /// Rolls back because of `problem`, which is what the command ends with. When rolling back fails too the source
    /// stays frozen, and that has to be said.
    fn roll_back(&self, answer: &Value, problem: Problem) -> Problem {
        match self.api.ask(Call::post(&self.path(answer, "/abort"), &json!({}))) {
            Ok(_) => problem,
            Err(_) => problem
                .with("move", answer["move"].clone())
                .hint(format!("throughline move --abort {}", self.session)),
        }
    }

    /// The newest move of the session that this node knows of.
    pub(super) fn find(&self) -> Answer<Value> {
        let moves = self.api.get("/v1/moves")?;
        let session = self.session.to_string();
        let mut own =
            view::items(&moves, "/items").iter().filter(|item| view::text(item, "/session") == session);
        own.next_back().cloned().ok_or_else(|| {
            Problem::new(Code::MoveState, "expected a move of this session, found none")
                .with("session", session)
        })
    }
}

/// The peer that `to` names; this node, however it is named, is `self`.
fn target(api: &Api<'_>, to: &str) -> Answer<Peer> {
    let named = resolve::peer(api, to)?;
    let own = resolve::peer(api, "self")?;
    Ok(if named.principal == own.principal { own } else { named })
}

/// A move that has nothing left to do; none where there is something to go on with.
///
/// # Errors
/// `E_MOVE_STATE` for one that was taken back: nothing moves, and nothing would go on.
fn finished(found: &Value) -> Answer<Option<Value>> {
    match view::text(found, "/state") {
        "done" => Ok(Some(found.clone())),
        // A later handoff counts: there is nothing to go on with, and nothing to do again.
        "aborted" | "rolled-back" if !view::at(found, "/supersededBy").is_null() => Ok(Some(found.clone())),
        "aborted" | "rolled-back" => {
            let (session, to) = (view::text(found, "/session"), view::text(found, "/to/peer"));
            let detail = format!(
                "expected a move to go on with, the newest one of this session (to {to}) was taken back: nothing moves"
            );
            Err(Problem::new(Code::MoveState, detail)
                .with("session", session)
                .with("move", found["move"].clone())
                .hint(format!("throughline move {session} --to {to}")))
        }
        _ => Ok(None),
    }
}

/// Whether a move that may still be taken back goes on without the server that holds the session.
fn leaves_its_source(open: &Value) -> bool {
    view::text(open, "/source") == "offline" && view::at(open, "/handoff").is_null()
}

/// Whether words and files are all that the target lacks.
fn lacks_files_only(answer: &Value) -> bool {
    verdict::losses(answer).is_some()
        && view::items(answer, "/prepared/tools").iter().all(|tool| view::flag(tool, "/available"))
}

/// The refusal to leave words or files behind where nobody said that they may be.
fn without_files(answer: &Value) -> Problem {
    let (session, to) = (view::text(answer, "/session"), view::text(answer, "/to/peer"));
    let losses = verdict::losses(answer).unwrap_or_default();
    let detail =
        format!("not moved, and nothing was signed: nobody who was asked gives {to} what it lacks, {losses}");
    Problem::new(Code::Prompt, detail)
        .with("session", session)
        .with("move", answer["move"].clone())
        .with("payloads", answer["payloads"].clone())
        .with("files", answer["files"].clone())
        .with("lacking", answer["lacking"].clone())
        .hint(format!(
            "throughline move {session} --to {to} --without-files, or throughline fetch {session} --payloads all --from PEER \
             and the same command again"
        ))
}

fn lacking(answer: &Value) -> String {
    let missing: Vec<&str> = view::items(answer, "/prepared/tools")
        .iter()
        .filter(|tool| !view::flag(tool, "/available"))
        .map(|tool| view::text(tool, "/name"))
        .collect();
    let peer = view::text(answer, "/to/peer");
    match missing.as_slice() {
        [] => format!("{peer} is not sure that it can go on"),
        missing => format!("{peer} cannot run {}", missing.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_that_leaves_its_source_does_so_until_it_is_signed() {
        let mut open = json!({"source": "offline", "handoff": null});
        assert!(leaves_its_source(&open));
        open["handoff"] = json!({"cid": "bafy", "seq": 5});
        assert!(!leaves_its_source(&open), "there is no way back");
        assert!(!leaves_its_source(&json!({"source": "auto", "handoff": null})));
    }

    #[test]
    fn a_move_that_was_taken_back_is_none_to_go_on_with() {
        let mut found = json!({"state": "done", "session": "S", "move": "M", "to": {"peer": "server-b"}});
        assert_eq!(finished(&found).unwrap(), Some(found.clone()));
        for state in ["aborted", "rolled-back"] {
            found["state"] = state.into();
            let refused = finished(&found).unwrap_err();
            assert_eq!((refused.code(), refused.fact("move")), (Code::MoveState, Some(&"M".into())));
            assert_eq!(refused.fact("hint"), Some(&"throughline move S --to server-b".into()));
            let mut overtaken = found.clone();
            overtaken["supersededBy"] = json!({"epoch": 2});
            assert_eq!(finished(&overtaken).unwrap(), Some(overtaken.clone()));
        }
        for state in ["running", "waiting", "needs-handoff", "needs-confirmation"] {
            found["state"] = state.into();
            assert_eq!(finished(&found).unwrap(), None, "{state}");
        }
    }

    #[test]
    fn a_yes_to_missing_files_is_none_to_missing_tools() {
        let counts = |missing: u64| json!({"linked": 2, "here": 2 - missing, "missing": missing, "withdrawn": 0, "asked": true});
        let mut answer = json!({
            "session": "S", "to": {"peer": "server-b"}, "payloads": counts(0), "files": counts(1), "prepared": {"tools": []},
        });
        assert!(lacks_files_only(&answer));
        let refused = without_files(&answer);
        assert_eq!((refused.code(), refused.fact("files")), (Code::Prompt, Some(&counts(1))));
        let hint = refused.fact("hint").and_then(Value::as_str).unwrap();
        assert!(hint.starts_with("throughline move S --to server-b --without-files"), "{hint}");
        answer["prepared"]["tools"] = json!([{"name": "browser", "available": false}]);
        assert!(!lacks_files_only(&answer));
        answer["files"] = counts(0);
        assert!(!lacks_files_only(&answer));
    }

    #[test]
    fn what_the_target_lacks_is_named() {
        let answer = json!({"to": {"peer": "server-b"}, "prepared": {"tools": [
            {"name": "bash", "available": true}, {"name": "browser", "available": false}]}});
        assert_eq!(lacking(&answer), "server-b cannot run browser");
    }
}
