//! Transcripts into signed sessions: what each case must give, that every line is accounted for, and that the result is valid.
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one kind of draft among all")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use throughline_protocol::build::sign;
use throughline_protocol::content::Content;
use throughline_protocol::control::Role;
use throughline_protocol::entry::{Authority, Body, Entry, Note, Origin, Outcome, Place, Usage};
use throughline_protocol::id::{AgentIri, Cid, Codec, EntryCid, Epoch, Seq};
use throughline_protocol::payload::{ImportSalts, Payload, Words};
use throughline_protocol::skip::SkipPath;
use throughline_protocol::testing;
use throughline_protocol::transcript::import::{
    ClaudeCode, Draft, DraftBody, DraftId, Options, Report, SessionKey, Signing,
};
use throughline_protocol::verify::{Auditor, Verdict};

/// An imported source: drafts of all its sessions, and how it went.
struct Imported {
    drafts: Vec<Draft>,
    report: Report,
}

/// A signed session.
struct Signed {
    /// Entries with their bytes and those of their payloads.
    entries: Vec<(Entry, Vec<u8>, Arc<[u8]>)>,
}

impl Imported {
    fn of(bytes: &[u8]) -> Self {
        let mut importer = ClaudeCode::new(Options::default());
        let mut drafts = Vec::new();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            drafts.extend(importer.line(line));
        }
        let (last, report) = importer.end_segment();
        drafts.extend(last);
        let imported = Imported { drafts, report };
        imported.assert_lines_accounted_for(bytes);
        imported
    }

    /// Every line is in an entry, kept raw, skipped or a copy; the segment is the whole source.
    fn assert_lines_accounted_for(&self, bytes: &[u8]) {
        let lines = bytes.split_inclusive(|byte| *byte == b'\n').count() as u64;
        let report = &self.report;
        assert_eq!((report.span.offset, report.span.first_line), (0, 1));
        assert_eq!((report.span.length, report.span.lines), (bytes.len() as u64, lines));
        assert_eq!(report.tally.total(), lines, "{:?}", report.tally);
        assert_eq!(report.reachable, report.messages);
        let held: BTreeSet<u64> = self.drafts.iter().flat_map(|draft| draft.lines.iter().copied()).collect();
        assert_eq!(held.len() as u64, report.tally.carried + report.tally.joined);
        for kept in &report.raw {
            assert!(!held.contains(&kept.line), "line {} is raw and in an entry", kept.line);
        }
    }

    /// Signs all sessions as one node would, under a writer grant.
    fn signed(&self, node: &str) -> BTreeMap<SessionKey, Signed> {
        let owner = testing::key("account");
        let party = testing::Party::granted(node, &owner, Role::Writer);
        let authority = party
            .capability
            .as_ref()
            .map(|capability| Authority { space: owner.principal(), capability: capability.cid().cid() });
        let salts = ImportSalts::new(&testing::seed(node));
        let agent: AgentIri = format!("hm://{}/claude-code", owner.principal()).parse().unwrap();
        let mut known: BTreeMap<DraftId, EntryCid> = BTreeMap::new();
        let mut sessions: BTreeMap<SessionKey, (Signed, Option<SkipPath<EntryCid>>)> = BTreeMap::new();
        for draft in &self.drafts {
            let made = draft
                .assemble(&Signing {
                    agent: &agent,
                    salts: &salts,
                    file: Cid::sha256(Codec::Raw, b"the segment"),
                    entry: &|id| known.get(&id).copied(),
                    agent_session: &|_| None,
                })
                .unwrap();
            let (bytes, named) = made.payload.build(&made.body, made.salt).unwrap();
            let (session, skips) =
                sessions.entry(draft.id.session).or_insert_with(|| (Signed { entries: Vec::new() }, None));
            let place = skips.as_ref().map(|skips| {
                let genesis = known[&DraftId { session: draft.id.session, index: 0 }];
                let prev = known[&DraftId { index: draft.id.index - 1, ..draft.id }];
                let skip = skips.next_skip().1;
                Place {
                    genesis,
                    prev,
                    seq: Seq::new(draft.id.index).unwrap(),
                    epoch: Epoch::ZERO,
                    skip: (skip != prev).then_some(skip),
                }
            });
            let entry = Entry {
                ts: made.ts,
                signer: party.key.principal(),
                authority,
                place,
                body: made.body,
                payload: Some(named),
                ext: None,
            };
            let signed = sign(entry, &party.key).unwrap();
            match skips {
                Some(skips) => skips.push(signed.cid()),
                None => *skips = Some(SkipPath::genesis(signed.cid())),
            }
            known.insert(draft.id, signed.cid());
            session.entries.push((signed.value().clone(), signed.bytes().to_vec(), bytes.into()));
        }
        sessions.into_iter().map(|(key, (session, _))| (key, session)).collect()
    }

    fn bodies(&self, session: SessionKey) -> Vec<&'static str> {
        self.drafts
            .iter()
            .filter(|draft| draft.id.session == session)
            .map(|draft| word(&draft.body))
            .collect()
    }

    fn repairs(&self) -> Vec<(u64, &str)> {
        self.report.repaired.iter().map(|repair| (repair.line, repair.what.as_str())).collect()
    }
}

impl Signed {
    fn verdict(&self, node: &str) -> Verdict {
        let party = testing::Party::granted(node, &testing::key("account"), Role::Writer);
        let mut auditor = Auditor::new();
        auditor.checked_control(party.capability.as_ref().unwrap()).unwrap();
        for (entry, bytes, payload) in &self.entries {
            Payload::check(entry, Arc::clone(payload)).unwrap();
            auditor.entry(bytes.clone(), Some(Arc::clone(payload))).unwrap();
        }
        let report = auditor.report();
        assert!(report.first_problem.is_none(), "{:?}", report.first_problem);
        report.verdict
    }

    fn usage(&self) -> Usage {
        let mut total = Usage::default();
        for (entry, ..) in &self.entries {
            if let Body::ModelResponse(response) = &entry.body {
                total.input += response.usage.input;
                total.output += response.usage.output;
                total.cache_read += response.usage.cache_read;
                total.cache_write += response.usage.cache_write;
                total.cache_write_1h += response.usage.cache_write_1h;
            }
        }
        total
    }
}

fn word(body: &DraftBody) -> &'static str {
    match body {
        DraftBody::Genesis { .. } => "genesis",
        DraftBody::UserMessage { origin } if *origin == Origin::Hook => "hook",
        DraftBody::UserMessage { .. } => "user",
        DraftBody::ModelResponse(_) => "model",
        DraftBody::ToolCall { .. } => "tool",
        DraftBody::Title => "title",
        DraftBody::Error => "error",
        DraftBody::Compaction { .. } => "compaction",
        DraftBody::Rewind { .. } => "rewind",
        DraftBody::Import => "import",
    }
}

fn case(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn main_session(imported: &Imported) -> Signed {
    imported.signed("server1").remove(&SessionKey::MAIN).unwrap()
}

#[test]
fn one_result_of_two_parallel_calls_is_missing() {
    let imported = Imported::of(&case("c01_dangling_parallel_tool_use.claude.jsonl"));
    assert_eq!(imported.bodies(SessionKey::MAIN), ["genesis", "user", "model", "tool", "user", "import"]);
    let session = main_session(&imported);
    let Body::ModelResponse(response) = &session.entries[2].0.body else { panic!() };
    let ids: Vec<&str> = response.calls.iter().map(|call| call.call_id.as_str()).collect();
    assert_eq!(ids, ["toolu_A", "toolu_B"]);
    assert_eq!((session.usage().input, session.usage().output), (10, 5));
    let Body::ToolCall(call) = &session.entries[3].0.body else { panic!() };
    assert_eq!((call.call_id.as_str(), call.outcome), ("toolu_A", Outcome::Ok));
    let Words::ToolCall(words) = &imported.drafts[3].words else { panic!() };
    let output = r#"{"type": "text", "file": {"filePath": "a.toml", "numLines": 1}}"#;
    assert_eq!(words.output.as_deref(), Some(output), "kept to the byte");
    // The call without a result is no repair of an import: nothing is invented for it, and it stays open in the log. The
    // result that its note speaks of is made up when the session is rendered for a model, which is where it is told.
    assert_eq!(imported.repairs(), []);
    let results = session.entries.iter().filter_map(|(entry, ..)| match &entry.body {
        Body::ToolCall(call) => Some(call.call_id.as_str()),
        _ => None,
    });
    assert_eq!(results.collect::<Vec<_>>(), ["toolu_A"], "toolu_B stays open");
    assert_eq!(session.verdict("server1"), Verdict::Valid);
}

#[test]
fn a_result_stands_behind_the_compaction_that_took_its_call() {
    let imported = Imported::of(&case("c02_orphan_result_after_compaction.claude.jsonl"));
    assert_eq!(
        imported.bodies(SessionKey::MAIN),
        ["genesis", "user", "model", "compaction", "tool", "model", "import"]
    );
    let session = main_session(&imported);
    let cid = |at: usize| EntryCid::of(&session.entries[at].1);
    let Body::Note(Note::Compaction { from, to }) = &session.entries[3].0.body else { panic!() };
    assert_eq!((*from, *to), (cid(1), cid(2)));
    let Body::ToolCall(call) = &session.entries[4].0.body else { panic!() };
    assert_eq!(call.response, Some(cid(2)));
    let Words::Compaction(words) = &imported.drafts[3].words else { panic!() };
    assert_eq!((words.trigger.as_deref(), words.pre_tokens), (Some("auto"), Some(180_000)));
    assert!(words.summary.as_deref().unwrap().starts_with("Summary: "));
    assert_eq!(session.verdict("server1"), Verdict::Valid);
}

#[test]
fn three_lines_are_one_message_counted_once() {
    let imported = Imported::of(&case("c04_one_message_many_lines.claude.jsonl"));
    assert_eq!(imported.bodies(SessionKey::MAIN), ["genesis", "user", "model", "tool", "model", "import"]);
    let session = main_session(&imported);
    let total = Usage {
        input: 6,
        output: 103,
        cache_read: 30_900,
        cache_write: 800,
        cache_write_1h: 800,
        reasoning: 0,
    };
    assert_eq!(session.usage(), total);
    let Words::ModelResponse(words) = &imported.drafts[2].words else { panic!() };
    let [Content::Reasoning(reasoning), Content::Text(_), Content::ToolCall(_)] = &words.content[..] else {
        panic!("{:?}", words.content)
    };
    assert_eq!(reasoning.signature.as_deref(), Some("c2lnLWE="));
    assert_eq!(
        (reasoning.binding.provider.as_str(), reasoning.binding.model.as_str()),
        ("anthropic", "model-a")
    );
    assert_eq!(words.source.as_ref().unwrap().lines, [2, 3, 4]);
    let Words::ToolCall(words) = &imported.drafts[3].words else { panic!() };
    let [Content::Text(text), Content::Media(media)] = &words.content[..] else { panic!() };
    assert_eq!((text.text.as_str(), media.media_type.as_str()), ("milk", "image/png"));
    let blob = &imported.drafts[3].blobs[0];
    assert_eq!((media.cid, media.size), (Cid::sha256(Codec::Raw, &blob.bytes), blob.bytes.len() as u64));
    assert!(blob.bytes.starts_with(b"\x89PNG"));
    assert_eq!(session.verdict("server1"), Verdict::Valid);
}

#[test]
fn a_broken_parent_chain_loses_no_message() {
    let imported = Imported::of(&case("c05_broken_parent_chain.claude.jsonl"));
    assert_eq!(
        imported.bodies(SessionKey::MAIN),
        ["genesis", "user", "model", "user", "model", "user", "import"]
    );
    assert_eq!((imported.report.messages, imported.report.reachable), (5, 5));
    assert_eq!(
        imported.repairs(),
        [
            (4, "parent missing, relinked to line 3"),
            (8, "parent is a side branch without words, relinked to line 6"),
        ]
    );
    let raw: Vec<&str> = imported.report.raw.iter().map(|kept| kept.kind.as_str()).collect();
    assert_eq!(raw, ["progress", "system/api_error", "system/stop_hook_summary"]);
    assert_eq!(main_session(&imported).verdict("server1"), Verdict::Valid);
}

#[test]
fn reasoning_keeps_its_signature_and_whom_it_is_bound_to() {
    let imported = Imported::of(&case("c07_reasoning_model_switch.claude.jsonl"));
    let reasoning: Vec<(Option<&str>, Option<&str>, &str)> = imported
        .drafts
        .iter()
        .filter_map(|draft| match &draft.words {
            Words::ModelResponse(words) => Some(&words.content),
            _ => None,
        })
        .flatten()
        .filter_map(|part| match part {
            Content::Reasoning(part) => {
                Some((part.signature.as_deref(), part.redacted.as_deref(), part.binding.model.as_str()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        reasoning,
        [
            (Some("U0lHLU1PREVMLUE="), None, "model-a"),
            (None, Some("T1BBUVVF"), "model-a"),
            (None, None, "model-b"),
        ]
    );
    assert_eq!(imported.repairs(), [(6, "reasoning without a signature: no model takes it back")]);
    assert_eq!(main_session(&imported).verdict("server1"), Verdict::Valid);
}

#[test]
fn every_turn_of_public_transcripts_is_reachable() {
    let cases = [
        ("public/claude_edge_cases.jsonl", 12, 19),
        ("public/claude_representative_messages.jsonl", 11, 12),
        ("public/claude_todowrite_examples.jsonl", 11, 12),
    ];
    for (name, messages, lines) in cases {
        let imported = Imported::of(&case(name));
        assert_eq!(imported.report.messages, messages, "{name}");
        assert_eq!(imported.report.reachable, messages, "{name}");
        assert_eq!(imported.report.tally.total(), lines, "{name}");
        assert_eq!(imported.report.tally.skipped, 0, "{name}: all lines are JSON");
        assert_eq!(main_session(&imported).verdict("server1"), Verdict::Valid, "{name}");
    }
    let edges = Imported::of(&case("public/claude_edge_cases.jsonl"));
    let words: Vec<String> = edges
        .drafts
        .iter()
        .filter_map(|draft| match &draft.words {
            Words::UserMessage(words) => words.body.first().and_then(|block| block.text.clone()),
            _ => None,
        })
        .collect();
    let has = |needle: &str| words.iter().any(|text| text.contains(needle));
    assert!(has("Testing special characters"), "a malformed line of the same uuid does not hide it");
    assert!(has("wow error"));
}

#[test]
fn importing_twice_gives_the_same_bytes_and_another_node_gives_others() {
    for name in ["c04_one_message_many_lines.claude.jsonl", "public/claude_edge_cases.jsonl"] {
        let bytes = case(name);
        let entries = |node: &str| -> Vec<Vec<u8>> {
            let session = Imported::of(&bytes).signed(node).remove(&SessionKey::MAIN).unwrap();
            session.entries.into_iter().map(|(_, bytes, _)| bytes).collect()
        };
        assert_eq!(entries("server1"), entries("server1"), "{name}");
        assert!(entries("server1").iter().zip(entries("server2")).all(|(a, b)| *a != b), "{name}");
    }
}

#[test]
fn every_case_is_read_by_a_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("cases");
    let own = include_str!("import.rs");
    let (mut directories, mut found) = (vec![root], 0);
    while let Some(directory) = directories.pop() {
        for item in std::fs::read_dir(directory).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "jsonl") {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                assert!(own.contains(&name), "no test reads {name}");
                found += 1;
            }
        }
    }
    assert_eq!(found, 8);
}

/// What the example says an import gives, computed from an import.
fn summary(imported: &Imported) -> Json {
    let session = |key: SessionKey| {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for draft in imported.drafts.iter().filter(|draft| draft.id.session == key) {
            let name = match &draft.body {
                DraftBody::Genesis { .. } => "sessionGenesis",
                DraftBody::UserMessage { .. } => "userMessage",
                DraftBody::ModelResponse(_) => "modelResponse",
                DraftBody::ToolCall { .. } => "toolCall",
                DraftBody::Title
                | DraftBody::Error
                | DraftBody::Compaction { .. }
                | DraftBody::Rewind { .. }
                | DraftBody::Import => "sessionNote",
            };
            *counts.entry(name).or_default() += 1;
        }
        counts
    };
    let keys: BTreeSet<SessionKey> = imported.drafts.iter().map(|draft| draft.id.session).collect();
    let stored: BTreeSet<String> = imported
        .drafts
        .iter()
        .flat_map(|draft| draft.blobs.iter().map(|blob| blob.cid.to_string()))
        .collect();
    let tally = imported.report.tally;
    json!({
        "lines": tally.total(),
        "tally": {
            "carried": tally.carried, "joined": tally.joined, "raw": tally.raw,
            "skipped": tally.skipped, "duplicate": tally.duplicate,
        },
        "entries": session(SessionKey::MAIN),
        "subSessions": keys.iter().filter(|key| **key != SessionKey::MAIN).map(|key| json!({"entries": session(*key)})).collect::<Vec<_>>(),
        "attachments": stored.len(),
        "skipped": imported.report.skipped.iter().map(|loss| loss.line).collect::<Vec<_>>(),
        "repaired": imported.report.repaired.iter().map(|r| json!({"line": r.line, "what": r.what})).collect::<Vec<_>>(),
        "notCarried": imported.report.not_carried,
    })
}

#[test]
fn the_example_session_gives_what_its_expected_file_says() {
    let imported = Imported::of(throughline_examples::CLAUDE_CODE);
    let expected: Json = serde_json::from_str(throughline_examples::CLAUDE_CODE_EXPECTED).unwrap();
    assert_eq!(summary(&imported), expected);
    let sessions = imported.signed("server1");
    assert_eq!(sessions.len(), 2, "the session and its sub-agent's");
    for session in sessions.values() {
        assert_eq!(session.verdict("server1"), Verdict::Valid);
    }
    let child = &sessions.values().nth(1).unwrap().entries[0];
    let main = &sessions[&SessionKey::MAIN].entries;
    let started = main.iter().find_map(|(entry, ..)| match &entry.body {
        Body::ToolCall(call) => call.child.map(|genesis| (genesis, call.response)),
        _ => None,
    });
    let (genesis, response) = started.expect("a call that started the sub-agent");
    assert_eq!(genesis, EntryCid::of(&child.1));
    let Body::Genesis(born) = &child.0.body else { panic!() };
    assert_eq!(born.parent.map(|parent| parent.entry), response);
}

#[test]
fn the_cut_line_of_the_example_is_told_and_the_rest_is_there() {
    let imported = Imported::of(throughline_examples::HALF_LINE);
    let skipped: Vec<(u64, &str)> =
        imported.report.skipped.iter().map(|loss| (loss.line, loss.code.name())).collect();
    assert_eq!(skipped, [(3, "E_JSON")]);
    let loss = imported.report.skipped[0];
    let start = usize::try_from(loss.offset).unwrap();
    let end = start + usize::try_from(loss.length).unwrap();
    let third = throughline_examples::HALF_LINE.split(|byte| *byte == b'\n').nth(2).unwrap();
    assert_eq!(&throughline_examples::HALF_LINE[start..end], third);
    assert_eq!(imported.bodies(SessionKey::MAIN), ["genesis", "user", "model", "tool", "tool", "import"]);
}
