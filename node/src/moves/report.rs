//! What a move shows to people and programs: the `move` object of the JSON interface.
//!
//! Figures are told when they are known and are absent before; none is estimated.

use std::time::Duration;

use serde_json::{Value, json};
use throughline_protocol::code::{Code, Reject};
use throughline_protocol::fork::Mark;
use throughline_protocol::handoff::driver::{Confirmation, Origin, Outcome, Phase};
use throughline_protocol::handoff::{Driver, Point, Presence, Readiness, Receipt};
use throughline_protocol::id::{Principal, Seq, SessionId};
use throughline_protocol::verify::Inventory;

use super::facts::Sent;
use crate::api::error::Problem;
use crate::report::links;

/// What a move waits for, or how it ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    /// It goes on by itself.
    Running,
    /// A person has to say whether it goes on; with the reason.
    NeedsConfirmation(String),
    /// The owner has to sign this.
    NeedsHandoff(Value),
    /// Nobody is heard. It is tried on, and may be asked to go on.
    Waiting(Reject),
    /// It ended.
    Ended(Outcome),
}

impl State {
    pub(super) fn word(&self) -> &'static str {
        match self {
            State::Running => "running",
            State::NeedsConfirmation(_) => "needs-confirmation",
            State::NeedsHandoff(_) => "needs-handoff",
            State::Waiting(_) => "waiting",
            State::Ended(outcome) => outcome.word(),
        }
    }
}

/// One part of the way and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    phase: Phase,
    took: Option<Duration>,
}

/// Everything about one move that is not in its journal.
#[derive(Clone, Debug)]
pub(super) struct Progress {
    pub(super) state: State,
    pub(super) readiness: Option<Readiness>,
    pub(super) sent: Option<Sent>,
    pub(super) through: Option<Seq>,
    elapsed: Duration,
    steps: Vec<Step>,
    step_began: Duration,
    /// What was shown before this process went on with the move.
    earlier: Value,
}

impl Progress {
    /// Of a move that begins.
    pub(super) fn new() -> Self {
        Progress::after(Value::Null)
    }

    /// Of a move that goes on; `earlier` is what its journal showed.
    pub(super) fn after(earlier: Value) -> Self {
        Progress {
            state: State::Running,
            readiness: None,
            sent: None,
            through: None,
            elapsed: Duration::ZERO,
            steps: Vec::new(),
            step_began: Duration::ZERO,
            earlier,
        }
    }

    /// Of a move that ended; `earlier` is what its journal showed.
    pub(super) fn ended(earlier: Value, outcome: Outcome) -> Self {
        Progress { state: State::Ended(outcome), ..Progress::after(earlier) }
    }

    /// Time passed, unless the move is over.
    pub(super) fn tick(&mut self, now: Duration) {
        if !matches!(self.state, State::Ended(_)) {
            self.elapsed = now;
        }
    }

    /// The move ended at `now`.
    pub(super) fn end(&mut self, now: Duration, outcome: Outcome) {
        self.elapsed = now;
        self.state = State::Ended(outcome);
    }

    /// A phase began at `now`. Phases that people know by one word are one step.
    pub(super) fn enter(&mut self, now: Duration, phase: Phase) {
        if self.steps.last().is_some_and(|step| step.took.is_none() && step.phase.word() == phase.word()) {
            return;
        }
        self.end_step(now);
        if !matches!(phase, Phase::Grant | Phase::Finished) {
            self.steps.push(Step { phase, took: None });
            self.step_began = now;
        }
    }

    pub(super) fn end_step(&mut self, now: Duration) {
        if let Some(step) = self.steps.last_mut().filter(|step| step.took.is_none()) {
            step.took = Some(now.saturating_sub(self.step_began));
        }
    }

    fn phases(&self) -> Vec<Value> {
        let earlier = self.earlier["phases"].as_array().into_iter().flatten().cloned();
        let ended = self.steps.iter().filter_map(|step| Some((step.phase.word(), step.took?)));
        earlier.chain(ended.map(|(word, took)| json!({"phase": word, "ms": millis(took)}))).collect()
    }

    /// A figure of this process, else the one that an earlier one found.
    fn or_earlier(&self, figure: Option<Value>, name: &str) -> Value {
        figure.unwrap_or_else(|| self.earlier[name].clone())
    }
}

/// The two servers as people call them.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) from: Option<String>,
    pub(super) to: String,
}

impl Names {
    /// As they were shown before this process began.
    pub(super) fn shown(earlier: &Value) -> Self {
        let name = |end: &str| earlier[end]["peer"].as_str().map(str::to_owned);
        Names { from: name("from"), to: name("to").unwrap_or_else(|| "a peer".to_owned()) }
    }
}

/// The keys of the two servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Servers {
    /// None: nobody holds the session.
    pub(super) from: Option<Principal>,
    pub(super) to: Principal,
}

/// One server as programs read it: `peer` is what people call it, `principal` its key, and `alias` its name if it has one.
fn end(principal: Option<Principal>, called: Option<&str>, epoch: u64, state: &str) -> Value {
    let (alias, own) = alias(called);
    json!({
        "peer": called, "principal": principal.map(|key| key.to_string()), "alias": alias, "self": own,
        "epoch": epoch, "state": state,
    })
}

/// The name that a peer was given, if what it is called is one; and whether it is this node.
fn alias(called: Option<&str>) -> (Option<&str>, bool) {
    let alias = called.filter(|called| *called != "self" && called.parse::<Principal>().is_err());
    (alias, called == Some("self"))
}

/// Who signed the receipt, by the name that it has as one of the two servers.
fn receipt(receipt: &Receipt, driver: &Driver, names: &Names) -> Value {
    let (signer, plan) = (receipt.signer(), driver.plan());
    let called = if signer == plan.target {
        Some(names.to.as_str())
    } else {
        names.from.as_deref().filter(|_| plan.origin.server() == Some(signer))
    };
    let (alias, own) = alias(called);
    json!({"cid": receipt.cid().to_string(), "signer": signer.to_string(), "alias": alias, "self": own})
}

/// The `move` object.
pub(super) fn of(driver: &Driver, progress: &Progress, names: &Names) -> Value {
    let plan = driver.plan();
    let inventory = progress.readiness.as_ref().and_then(|readiness| readiness.inventory.as_ref());
    let mut object = json!({
        "v": 1, "kind": "move",
        "move": plan.move_id.to_string(),
        "session": plan.session.to_string(),
        "state": progress.state.word(),
        "phase": driver.phase().word(),
        "source": source(plan.origin),
        "from": end(plan.origin.server(), names.from.as_deref(), plan.epoch.get(), source_word(driver)),
        "to": end(Some(plan.target), Some(&names.to), plan.epoch.next().get(), target_word(driver)),
        "handoff": driver.opening().map(|opening| {
            json!({"cid": opening.point().cid.to_string(), "seq": opening.point().seq.get()})
        }),
        "base": driver.base().map(|base| json!({"cid": base.cid.to_string(), "seq": base.seq.get()})),
        "sent": progress.or_earlier(progress.sent.map(sent), "sent"),
        "through": progress.or_earlier(progress.through.map(|through| through.get().into()), "through"),
        "receipt": driver.receipt().map(|signed| receipt(signed, driver, names)),
        "cut": driver.cut().iter()
            .map(|cut| json!({"cid": cut.cid.to_string(), "seq": cut.seq.get()}))
            .collect::<Vec<_>>(),
        "prepared": progress.or_earlier(progress.readiness.as_ref().map(prepared), "prepared"),
        "payloads": progress.or_earlier(inventory.map(|found| links(&found.payloads, true)), "payloads"),
        "files": progress.or_earlier(inventory.map(|found| links(&found.files, true)), "files"),
        "lacking": progress.or_earlier(inventory.map(lacking_json), "lacking"),
        "phases": progress.phases(),
        "elapsedMs": progress.earlier["elapsedMs"].as_u64().unwrap_or(0).saturating_add(millis(progress.elapsed)),
    });
    if let Some(later) = driver.overtaken_by() {
        object["supersededBy"] = json!({"epoch": later.epoch().get()});
    }
    match &progress.state {
        State::NeedsConfirmation(reason) => object["reason"] = reason.as_str().into(),
        State::NeedsHandoff(facts) => object["sign"] = facts.clone(),
        State::Waiting(cause) => object["error"] = Problem::from(cause.clone()).to_json(),
        State::Ended(Outcome::RolledBack { cause, .. }) => {
            object["error"] = Problem::from(cause.clone()).to_json()
        }
        State::Ended(Outcome::Superseded { epoch }) => object["supersededBy"] = json!({"epoch": epoch.get()}),
        State::Running | State::Ended(Outcome::Done { .. } | Outcome::Aborted { .. }) => {}
    }
    object
}

/// How the server that is left is treated, in the words of the request: `offline` does not wait for it. Where nobody holds the
/// session nobody is left.
fn source(origin: Origin) -> &'static str {
    match origin {
        Origin::Online(_) | Origin::Offline(None) => "auto",
        Origin::Offline(Some(_)) => "offline",
    }
}

fn sent(sent: Sent) -> Value {
    json!({
        "entries": sent.entries, "blobs": sent.blobs, "bytes": sent.bytes, "alreadyThere": sent.already_there,
    })
}

fn prepared(readiness: &Readiness) -> Value {
    let tools = readiness
        .tools
        .iter()
        .map(|tool| json!({"name": tool.name, "available": tool.presence == Presence::Available}));
    json!({"model": readiness.model, "tools": tools.collect::<Vec<_>>()})
}

/// Why a person should say whether to go on: what the target lacks; none when it lacks nothing that was asked for.
pub(super) fn lacking(readiness: &Readiness) -> Option<String> {
    let missing = readiness.tools.iter().filter(|tool| tool.presence == Presence::Missing);
    let missing: Vec<&str> = missing.map(|tool| tool.name.as_str()).collect();
    let tools = (!missing.is_empty()).then(|| format!("the target cannot run {}", missing.join(", ")));
    let lacks = readiness.inventory.as_ref().filter(|inventory| inventory.is_lacking());
    let lacks = lacks.map(|inventory| {
        let (payloads, files) = (inventory.payloads.missing, inventory.files.missing);
        format!("nobody gave the target {payloads} of the payloads and {files} of the files")
    });
    let reasons: Vec<String> = tools.into_iter().chain(lacks).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Blocks that the target lacks, the first of them.
fn lacking_json(inventory: &Inventory) -> Value {
    inventory.lacking.iter().map(ToString::to_string).collect::<Vec<_>>().into()
}

fn source_word(driver: &Driver) -> &'static str {
    let origin = driver.plan().origin;
    match (driver.outcome(), origin) {
        (Some(Outcome::Done { source: Confirmation::Confirmed }), _) => "retired",
        (Some(Outcome::Done { source: Confirmation::Unconfirmed }), _) | (None, Origin::Offline(_)) => {
            "unheard"
        }
        (
            Some(
                Outcome::RolledBack { source: Confirmation::Unconfirmed, .. }
                | Outcome::Aborted { source: Confirmation::Unconfirmed },
            ),
            _,
        ) => "unheard",
        // It was left from the beginning: nobody asked it.
        (Some(Outcome::RolledBack { .. } | Outcome::Aborted { .. }), Origin::Offline(_))
            if !driver.drew_in_source() =>
        {
            "unheard"
        }
        // It never stood still for this move: it does for another one.
        (Some(Outcome::RolledBack { cause, .. }), _) if cause.code == Code::Frozen => "frozen",
        (Some(Outcome::RolledBack { .. } | Outcome::Aborted { .. }), _) => thawed_word(driver),
        (Some(Outcome::Superseded { .. }), _) => "superseded",
        (None, Origin::Online(_)) if driver.base().is_some() => "frozen",
        (None, Origin::Online(_)) => "active",
    }
}

/// A source that said that the move is over: it goes on, unless somebody else opened the next epoch.
fn thawed_word(driver: &Driver) -> &'static str {
    match driver.overtaken_by() {
        Some(later) if later.holder() != driver.plan().origin.server() => "retired",
        Some(_) | None => "active",
    }
}

fn target_word(driver: &Driver) -> &'static str {
    match (driver.outcome(), driver.phase()) {
        (Some(Outcome::Done { .. }), _) | (None, Phase::Retire) => "active",
        (Some(_), _)
        | (None, Phase::Grant | Phase::Freeze | Phase::Survey | Phase::RollBack | Phase::Finished) => "idle",
        (None, Phase::Copy) => "fetching",
        (None, Phase::Prepare) => "offered",
        (None, Phase::Ask | Phase::Sign | Phase::Activate) => "prepared",
    }
}

/// What a move waits for in which nothing was heard for too long. `held` is the head that this node holds.
pub(super) fn silence(phase: Phase, held: Option<Point>, code: Code) -> State {
    match (phase, held) {
        (Phase::Freeze, Some(held)) => State::NeedsConfirmation(format!(
            "the server that holds the session does not answer; the newest entry held here is seq {}, and what was written \
             after it will be cut off",
            held.seq
        )),
        (Phase::Activate, _) => State::Waiting(Reject::new(
            code,
            "the handoff was sent, and the target has not said that it has it",
        )),
        (Phase::RollBack, _) => State::Waiting(Reject::new(
            code,
            "the server that is left has not said that it heard of the abort: it may stand still for this move",
        )),
        _ => State::Waiting(Reject::new(code, format!("nobody answers in phase {}", phase.word()))),
    }
}

/// Why a move is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unbegun {
    /// It was only asked what it would do.
    Planned,
    /// The target may not hold the session.
    NeedsGrant,
    /// The target holds it already.
    Held,
}

/// What a move would be that is not begun; `tip` is the newest entry that is held here.
pub(super) fn unbegun(
    session: SessionId,
    why: Unbegun,
    (servers, names): (Servers, &Names),
    tip: &Mark,
) -> Value {
    let (epoch, next) = (tip.epoch.get(), tip.epoch.next().get());
    let (state, to_epoch, to_state) = match why {
        Unbegun::Planned => ("planned", next, "idle"),
        Unbegun::NeedsGrant => ("needs-grant", next, "idle"),
        Unbegun::Held => ("held", epoch, "active"),
    };
    json!({
        "v": 1, "kind": "move", "move": null, "session": session.to_string(), "state": state,
        "from": end(servers.from, names.from.as_deref(), epoch, "active"),
        "to": end(Some(servers.to), Some(&names.to), to_epoch, to_state),
        "handoff": null, "base": json!({"cid": tip.cid.to_string(), "seq": tip.seq.get()}), "sent": null, "receipt": null, "cut": [], "prepared": null,
        "payloads": null, "files": null, "lacking": null, "phases": [],
        "elapsedMs": 0,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_one_word_are_one_step_and_only_ended_ones_are_told() {
        let ms = Duration::from_millis;
        let mut progress = Progress::new();
        for (at, phase) in [(0, Phase::Grant), (1, Phase::Freeze), (5, Phase::Survey), (9, Phase::Copy)] {
            progress.enter(ms(at), phase);
        }
        assert_eq!(progress.phases(), [json!({"phase": "freeze", "ms": 8})]);
        progress.enter(ms(20), Phase::Finished);
        assert_eq!(progress.phases()[1], json!({"phase": "copy", "ms": 11}));
        progress.end_step(ms(50));
        assert_eq!(progress.phases().len(), 2);
    }

    #[test]
    fn a_server_has_its_key_beside_its_name() {
        let key = Principal::from_key([7; 32]);
        let named = end(Some(key), Some("server-b"), 1, "idle");
        assert_eq!((&named["peer"], &named["alias"]), (&"server-b".into(), &"server-b".into()));
        assert_eq!((&named["principal"], &named["self"]), (&key.to_string().into(), &false.into()));
        let unnamed = end(Some(key), Some(&key.to_string()), 1, "idle");
        assert_eq!((&unnamed["peer"], &unnamed["alias"]), (&key.to_string().into(), &Value::Null));
        let own = end(Some(key), Some("self"), 1, "idle");
        assert_eq!((&own["alias"], &own["self"]), (&Value::Null, &true.into()));
        let nobody = end(None, None, 0, "active");
        assert_eq!((&nobody["peer"], &nobody["principal"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn what_a_target_lacks_has_to_be_confirmed() {
        use throughline_protocol::handoff::Tool;
        let tool = |name: &str, presence| Tool { name: name.to_owned(), presence };
        let ready = Readiness { tools: vec![tool("bash", Presence::Available)], ..Readiness::default() };
        assert_eq!(lacking(&ready), None);
        let tools = vec![tool("bash", Presence::Available), tool("browser", Presence::Missing)];
        assert_eq!(
            lacking(&Readiness { tools, ..Readiness::default() }).unwrap(),
            "the target cannot run browser"
        );
        let mut inventory = Inventory::default();
        inventory.files.here = 2;
        let ready = |inventory| Readiness { inventory: Some(inventory), ..Readiness::default() };
        assert_eq!(lacking(&ready(inventory.clone())), None);
        inventory.files.withdrawn = 1;
        assert_eq!(lacking(&ready(inventory.clone())), None, "nobody has to bring what its owner withdrew");
        inventory.files.missing = 1;
        let lacks = "nobody gave the target 0 of the payloads and 1 of the files";
        assert_eq!(lacking(&ready(inventory)).unwrap(), lacks);
    }
}
