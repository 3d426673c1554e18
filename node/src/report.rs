//! A verification report as the object that `verify` answers with.

use serde_json::{Value, json};
use throughline_protocol::fork::Mark;
use throughline_protocol::id::EntryCid;
use throughline_protocol::verify::{Fork, LinkCounts, Problem, Report, Tail};

/// What of the words and files of a session somebody wants to be here. What is missing of that is a loss, on every road alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// Nothing: what is here is counted, and that is all.
    Nothing,
    /// The words.
    Payloads,
    /// Files too.
    All,
}

/// What became of links, for one that was asked for or not.
pub(crate) fn links(counts: &LinkCounts, asked: bool) -> Value {
    json!({
        "linked": counts.linked(), "here": counts.here, "missing": counts.missing, "withdrawn": counts.withdrawn,
        "asked": asked,
    })
}

/// The object.
#[must_use]
pub(crate) fn verify(report: &Report, source: &str, asked: Required) -> Value {
    let (counts, checks) = (report.counts, report.checks);
    let signers: Vec<Value> = report
        .signers
        .iter()
        .map(|part| {
            json!({
                "principal": part.principal.to_string(), "role": part.standing.word(), "entries": part.entries,
                "epochs": part.epochs.iter().map(|epoch| epoch.get()).collect::<Vec<_>>(),
                "capability": part.capability.map(|cid| cid.to_string()),
            })
        })
        .collect();
    let models: Vec<Value> = report
        .models
        .iter()
        .map(|model| json!({"provider": model.provider, "id": model.id, "responses": model.responses}))
        .collect();
    json!({
        "v": 1, "kind": "verify",
        "session": report.session.map(|session| session.to_string()),
        "verdict": report.verdict.word(),
        "checks": {
            "hash": {"result": checks.hash.word(), "blobs": counts.blobs},
            "chain": {"result": checks.chain.word(), "entries": counts.entries},
            "signature": {"result": checks.signature.word(), "signers": report.signers.len()},
            "authority": {
                "result": checks.authority.word(), "capabilities": counts.capabilities, "tombstones": counts.tombstones,
            },
            "head": {"result": checks.head.word(), "told": report.told.map(|cid| cid.to_string())},
        },
        "validThrough": report.valid_through.as_ref().map(mark),
        "anchoredThrough": report.anchored_through.as_ref().map(|(at, by)| {
            let mut at = mark(at);
            at["by"] = by.word().into();
            at
        }),
        "pending": report.pending,
        "ahead": null,
        "tail": report.tail.as_ref().map(tail),
        "fork": report.fork.as_ref().map(fork),
        "firstProblem": report.first_problem.as_ref().map(problem),
        "problems": report.problems,
        "payloads": links(&report.inventory.payloads, asked != Required::Nothing),
        "files": links(&report.inventory.files, asked == Required::All),
        "freshness": {"source": source, "headSeenAgeMs": null, "peersAsked": 0, "peersAgree": 0},
        "signers": signers, "models": models,
        "verifier": {"name": "throughline", "version": env!("CARGO_PKG_VERSION"), "rules": "protocol-1"},
    })
}

fn mark(mark: &Mark) -> Value {
    json!({"seq": mark.seq.get(), "cid": mark.cid.to_string()})
}

fn tail(tail: &Tail) -> Value {
    json!({
        "kind": tail.kind.word(), "from": mark(&tail.from), "to": mark(&tail.to), "entries": tail.entries,
        "signer": tail.signer.to_string(),
        "tombstone": tail.tombstone.map(|hash| EntryCid::from_digest(hash).to_string()),
        "lastAnchor": tail.last_anchor.as_ref().map(mark),
    })
}

fn fork(fork: &Fork) -> Value {
    let branches: Vec<Value> = fork
        .branches
        .iter()
        .map(|branch| {
            json!({
                "head": branch.head.cid.to_string(), "seq": branch.head.seq.get(), "signer": branch.signer.to_string(),
                "rank": branch.rank.word(), "why": branch.why.name(),
            })
        })
        .collect();
    json!({"at": mark(&fork.at), "branches": branches})
}

fn problem(problem: &Problem) -> Value {
    let code = problem.reject.code;
    json!({
        "code": code.name(), "detail": problem.reject.detail, "fault": code.fault().word(),
        "cid": problem.cid.map(|cid| cid.to_string()), "seq": problem.seq.map(|seq| seq.get()),
    })
}
