//! What each rule of the importer gives. Every import here is also checked as a whole by [`import`].
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one kind of draft among all")]

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::build::sign;
use crate::codec::Value;
use crate::entry::{Authority, Body, Entry, Origin, Outcome, Place as EntryPlace};
use crate::id::{AgentIri, Cid, Codec, EntryCid, Epoch, Seq};
use crate::payload::{ImportSalts, Words};
use crate::testing;
use crate::transcript::import::{Child, ChildOf, DraftBody, DraftId, RecordKey, Signing};

fn line(kind: &str, uuid: &str, parent: &str, rest: &str) -> String {
    let parent = if parent.is_empty() { "null".to_owned() } else { format!("\"{parent}\"") };
    format!(
        r#"{{"type":"{kind}","uuid":"{uuid}","parentUuid":{parent},"sessionId":"s","timestamp":"2026-01-05T10:00:00.000Z"{rest}}}"#
    )
}

fn user(uuid: &str, parent: &str, words: &str) -> String {
    line("user", uuid, parent, &format!(r#","message":{{"role":"user","content":"{words}"}}"#))
}

fn assistant(uuid: &str, parent: &str, id: &str, content: &str, stop: &str) -> String {
    let stop = if stop.is_empty() { "null".to_owned() } else { format!("\"{stop}\"") };
    let usage = r#"{"input_tokens":10,"cache_read_input_tokens":3,"output_tokens":5}"#;
    let message = format!(
        r#"{{"id":"{id}","role":"assistant","model":"m-1","content":[{content}],"stop_reason":{stop},"usage":{usage}}}"#
    );
    line("assistant", uuid, parent, &format!(r#","message":{message}"#))
}

fn call(id: &str) -> String {
    format!(r#"{{"type":"tool_use","id":"{id}","name":"Read","input":{{"n":1.0e4}}}}"#)
}

fn words(text: &str) -> String {
    format!(r#"{{"type":"text","text":"{text}"}}"#)
}

fn result(uuid: &str, parent: &str, id: &str) -> String {
    let content = format!(r#"[{{"type":"tool_result","tool_use_id":"{id}","content":"out {id}"}}]"#);
    let message =
        format!(r#","message":{{"role":"user","content":{content}}},"toolUseResult":{{"b":1.50,"a":2}}"#);
    line("user", uuid, parent, &message)
}

/// Imports lines as one segment and checks what holds for every import.
fn import(lines: &[String]) -> (Vec<Draft>, Report) {
    let (drafts, mut reports) = import_segments(&[lines]);
    (drafts, reports.remove(0))
}

fn import_segments(segments: &[&[String]]) -> (Vec<Draft>, Vec<Report>) {
    let mut importer = ClaudeCode::new(Options::default());
    let (mut drafts, mut reports) = (Vec::new(), Vec::new());
    for lines in segments {
        let mut own = Vec::new();
        for line in *lines {
            own.extend(importer.line(format!("{line}\n").as_bytes()));
        }
        let (last, report) = importer.end_segment();
        own.extend(last);
        assert_lines_accounted_for(lines.len() as u64, &own, &report);
        drafts.extend(own);
        reports.push(report);
    }
    assert_signable(&drafts);
    (drafts, reports)
}

fn assert_lines_accounted_for(lines: u64, drafts: &[Draft], report: &Report) {
    assert_eq!(report.span.lines, lines);
    assert_eq!(report.tally.total(), lines, "every line is counted once: {:?}", report.tally);
    assert_eq!(report.reachable, report.messages, "every message stands in the log");
    let firsts: BTreeSet<u64> = drafts.iter().filter_map(|draft| draft.lines.first().copied()).collect();
    let all: BTreeSet<u64> = drafts.iter().flat_map(|draft| draft.lines.iter().copied()).collect();
    assert_eq!(report.tally.carried, firsts.len() as u64, "{firsts:?}");
    assert_eq!(report.tally.joined, (all.len() - firsts.len()) as u64);
    assert_eq!(report.tally.raw, report.not_carried.values().sum::<u64>());
}

/// Signs all drafts as one node would: links name entries before them, salts differ, bytes fit their limits.
fn assert_signable(drafts: &[Draft]) {
    let party = testing::Party::granted("server1", &testing::key("account"), crate::control::Role::Writer);
    let owner = testing::key("account").principal();
    let salts = ImportSalts::new(&[7; 32]);
    let agent = AgentIri::new(owner, None);
    let mut entries: BTreeMap<DraftId, EntryCid> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for draft in drafts {
        let count = entries.keys().filter(|id| id.session == draft.id.session).count() as u64;
        assert_eq!(draft.id.index, count, "drafts of a session are numbered without gaps");
        let signing = Signing {
            agent: &agent,
            salts: &salts,
            file: Cid::sha256(Codec::Raw, b"segment"),
            entry: &|id| entries.get(&id).copied(),
            agent_session: &|_| None,
        };
        let made = draft.assemble(&signing).expect("links name drafts that came before");
        assert!(used.insert((draft.source_session.clone(), made.salt)), "salts differ: {:?}", draft.record);
        let (_, named) = made.payload.build(&made.body, made.salt).expect("a payload within its limits");
        let genesis = entries.get(&DraftId { session: draft.id.session, index: 0 }).copied();
        let entry = Entry {
            ts: made.ts,
            signer: party.key.principal(),
            authority: party
                .capability
                .as_ref()
                .map(|capability| Authority { space: owner, capability: capability.cid().cid() }),
            place: genesis.map(|genesis| EntryPlace {
                genesis,
                prev: entries[&DraftId { index: draft.id.index - 1, ..draft.id }],
                seq: Seq::new(draft.id.index).unwrap(),
                epoch: Epoch::ZERO,
                skip: None,
            }),
            body: made.body,
            payload: Some(named),
            ext: None,
        };
        entries.insert(draft.id, sign(entry, &party.key).expect("an entry within its limits").cid());
    }
}

fn kinds(drafts: &[Draft]) -> Vec<&'static str> {
    drafts
        .iter()
        .map(|draft| match &draft.body {
            DraftBody::Genesis { .. } => "genesis",
            DraftBody::UserMessage { origin: Origin::Hook } => "hook",
            DraftBody::UserMessage { .. } => "user",
            DraftBody::ModelResponse(_) => "model",
            DraftBody::ToolCall { .. } => "tool",
            DraftBody::Title => "title",
            DraftBody::Error => "error",
            DraftBody::Compaction { .. } => "compaction",
            DraftBody::Rewind { .. } => "rewind",
            DraftBody::Import => "import",
        })
        .collect()
}

fn repairs(report: &Report) -> Vec<(u64, &str)> {
    report.repaired.iter().map(|repair| (repair.line, repair.what.as_str())).collect()
}

fn response(draft: &Draft) -> &crate::entry::ModelResponse {
    let DraftBody::ModelResponse(response) = &draft.body else { panic!("a response, got {:?}", draft.body) };
    response
}

#[test]
fn lines_of_one_message_are_one_response_though_results_stand_between() {
    let (drafts, report) = import(&[
        user("u1", "", "go"),
        assistant("a1", "u1", "m1", &call("A"), ""),
        result("r1", "a1", "A"),
        assistant("a2", "a1", "m1", &call("B"), "tool_use"),
        result("r2", "a2", "B"),
        assistant("a3", "r2", "m2", &words("done"), "end_turn"),
    ]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "model", "tool", "tool", "model", "import"]);
    let first = response(&drafts[2]);
    assert_eq!(first.calls.iter().map(|call| call.call_id.as_str()).collect::<Vec<_>>(), ["A", "B"]);
    assert_eq!(first.stop_reason.as_deref(), Some("tool_use"));
    assert_eq!((first.usage.input, first.usage.output), (10, 5), "counted once");
    assert_eq!(drafts[2].lines, [2, 4]);
    let Words::ModelResponse(words) = &drafts[2].words else { panic!() };
    let source = words.source.as_ref().unwrap();
    assert_eq!((source.line, source.lines.as_slice(), source.group.as_deref()), (2, &[2, 4][..], Some("m1")));
    let Content::ToolCall(asked) = &words.content[0] else { panic!() };
    assert_eq!(asked.input, r#"{"n":1.0e4}"#, "arguments are kept to the byte");
    let Words::ToolCall(words) = &drafts[3].words else { panic!() };
    assert_eq!(words.output.as_deref(), Some(r#"{"b":1.50,"a":2}"#));
    assert!(matches!(&drafts[4].body, DraftBody::ToolCall { response, call_id, .. }
        if response.index == 2 && call_id == "B"));
    assert_eq!(repairs(&report), []);
}

#[test]
fn a_late_line_continues_its_message_and_counts_only_what_it_adds() {
    let late = assistant("a9", "a1", "m1", &words("late"), "end_turn")
        .replace(r#""output_tokens":5"#, r#""output_tokens":12"#);
    let (drafts, report) = import(&[
        user("u1", "", "go"),
        assistant("a1", "u1", "m1", &words("early"), ""),
        user("u2", "a1", "and?"),
        late,
    ]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "model", "user", "model", "import"]);
    assert_eq!(response(&drafts[4]).usage.output, 7);
    assert_eq!(response(&drafts[4]).usage.input, 0);
    assert_eq!(repairs(&report).len(), 1);
    assert_eq!(report.repaired[0].line, 4);
}

#[test]
fn a_result_without_a_call_is_kept_as_words_that_no_person_wrote() {
    let (drafts, report) = import(&[user("u1", "", "go"), result("r1", "u1", "nowhere")]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "hook", "import"]);
    let Words::UserMessage(words) = &drafts[2].words else { panic!() };
    assert_eq!(words.body[0].kind, "ToolResult");
    assert_eq!(words.body[0].attributes.get("toolUseId").and_then(Value::as_text), Some("nowhere"));
    assert_eq!(words.body[0].children[0].text.as_deref(), Some("out nowhere"));
    assert_eq!(report.repaired[0].line, 2);
}

#[test]
fn a_call_without_a_result_stays_open() {
    let (drafts, _) = import(&[user("u1", "", "go"), assistant("a1", "u1", "m1", &call("A"), "tool_use")]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "model", "import"]);
}

#[test]
fn calls_get_ids_that_can_name_them() {
    let long = "x".repeat(129);
    let content = [call("c2"), call(""), call(&long), call("c2")].join(",");
    let (drafts, _) = import(&[
        user("u1", "", "go"),
        assistant("a1", "u1", "m1", &content, "tool_use"),
        result("r1", "a1", &long),
        result("r2", "a1", "c2"),
        result("r3", "a1", "c2"),
        result("r4", "a1", ""),
    ]);
    let ids: Vec<&str> = response(&drafts[2]).calls.iter().map(|call| call.call_id.as_str()).collect();
    assert_eq!(ids, ["c2", "c3", "c4", "c5"]);
    let Words::ModelResponse(words) = &drafts[2].words else { panic!() };
    let Content::ToolCall(third) = &words.content[2] else { panic!() };
    assert_eq!(third.provider_call_id.as_deref(), Some(long.as_str()));
    let answered: Vec<&str> = drafts
        .iter()
        .filter_map(|draft| match &draft.body {
            DraftBody::ToolCall { call_id, .. } => Some(call_id.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(answered, ["c4", "c2", "c5", "c3"]);
}

#[test]
fn going_on_from_an_older_message_is_a_rewind() {
    let (drafts, report) = import(&[
        user("u1", "", "one"),
        assistant("a1", "u1", "m1", &words("1"), "end_turn"),
        user("u2", "a1", "two"),
        assistant("a2", "u2", "m2", &words("2"), "end_turn"),
        user("u3", "a1", "two, better"),
        assistant("a3", "u3", "m3", &words("3"), "end_turn"),
    ]);
    assert_eq!(
        kinds(&drafts),
        ["genesis", "user", "model", "user", "model", "rewind", "user", "model", "import"]
    );
    assert!(matches!(drafts[5].body, DraftBody::Rewind { to } if to.index == 2));
    assert_eq!(repairs(&report), []);
}

#[test]
fn going_on_over_a_used_or_branching_hop_is_a_rewind_too() {
    let hop = |uuid: &str, parent: &str| line("system", uuid, parent, r#","subtype":"turn_duration""#);
    let (drafts, _) = import(&[
        user("u1", "", "one"),
        assistant("a1", "u1", "m1", &words("1"), "end_turn"),
        hop("h1", "a1"),
        user("u2", "h1", "two"),
        hop("h2", "u2"),
        user("u3", "h1", "two again"),
        hop("h3", "a1"),
        user("u4", "h3", "three"),
    ]);
    assert_eq!(
        kinds(&drafts),
        ["genesis", "user", "model", "user", "rewind", "user", "rewind", "user", "import"]
    );
    assert!(matches!(drafts[4].body, DraftBody::Rewind { to } if to.index == 2));
    assert!(matches!(drafts[6].body, DraftBody::Rewind { to } if to.index == 2));
}

#[test]
fn answers_to_parallel_calls_are_no_rewind() {
    let content = [call("A"), call("B"), call("C")].join(",");
    let (drafts, report) = import(&[
        user("u1", "", "go"),
        assistant("a1", "u1", "m1", &content, "tool_use"),
        result("r1", "a1", "A"),
        result("r2", "a1", "B"),
        result("r3", "r1", "C"),
        assistant("a2", "r1", "m2", &words("done"), "end_turn"),
    ]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "model", "tool", "tool", "tool", "model", "import"]);
    assert_eq!(repairs(&report), []);
}

#[test]
fn copies_are_left_out_and_namesakes_kept() {
    let first = user("u1", "", "one");
    let copy = first.replace(r#""sessionId":"s""#, r#""sessionId":"resumed""#);
    let (drafts, report) = import(&[first, copy, user("u1", "", "other words")]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "user", "import"]);
    assert_eq!(report.tally.duplicate, 1);
    assert_eq!(drafts[2].record, RecordKey::Line(3));
}

#[test]
fn a_compaction_spans_what_it_replaces_and_keeps_what_it_preserves() {
    let boundary = line(
        "system",
        "b1",
        "",
        r#","subtype":"compact_boundary","logicalParentUuid":"a1","compactMetadata":{"trigger":"auto","preTokens":9,"preservedMessages":{"anchorUuid":"s1","uuids":["u1","gone"]}}"#,
    );
    let summary =
        user("s1", "b1", "short").replace(r#""sessionId""#, r#""isCompactSummary":true,"sessionId""#);
    let (drafts, report) = import(&[
        user("u1", "", "go"),
        assistant("a1", "u1", "m1", &call("A"), "tool_use"),
        result("r1", "a1", "A"),
        boundary,
        summary,
        user("u2", "u1", "on"),
    ]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "model", "tool", "compaction", "user", "import"]);
    let DraftBody::Compaction { from, to, preserved } = &drafts[4].body else { panic!() };
    assert_eq!((from.index, to.index), (1, 3), "the span ends where the call is answered");
    assert_eq!(preserved.iter().map(|id| id.index).collect::<Vec<_>>(), [1]);
    let Words::Compaction(words) = &drafts[4].words else { panic!() };
    assert_eq!(words.summary.as_deref(), Some("short"));
    assert_eq!((words.trigger.as_deref(), words.pre_tokens), (Some("auto"), Some(9)));
    assert_eq!(repairs(&report), [], "going on from a preserved message is no rewind");
    assert_eq!(report.tally.joined, 1);
}

#[test]
fn titles_become_the_genesis_title_and_then_notes() {
    let title = |kind: &str, key: &str, words: &str| format!(r#"{{"type":"{kind}","{key}":"{words}"}}"#);
    let (drafts, report) = import(&[
        title("summary", "summary", "Old"),
        title("summary", "summary", "First"),
        user("u1", "", "go"),
        title("ai-title", "aiTitle", "Better"),
        title("ai-title", "aiTitle", "Better"),
        title("custom-title", "customTitle", "Mine"),
        title("ai-title", "aiTitle", "Worse"),
    ]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "title", "title", "import"]);
    let Words::Genesis(genesis) = &drafts[0].words else { panic!() };
    assert_eq!(genesis.title.as_deref(), Some("First"));
    assert_eq!(drafts[0].lines, [1, 2]);
    assert_eq!(drafts[3].words, Words::Title("Mine".to_owned()));
    assert_eq!(report.not_carried.get("ai-title"), Some(&2));
}

#[test]
fn errors_and_meta_lines_are_no_words_of_a_person() {
    let error = assistant("e1", "u1", "x", &words("API Error: 529"), "stop_sequence")
        .replace("m-1", "<synthetic>")
        .replace(r#""sessionId""#, r#""isApiErrorMessage":true,"error":"overloaded","sessionId""#);
    let meta = user("u2", "e1", "caveat").replace(r#""sessionId""#, r#""isMeta":true,"sessionId""#);
    let (drafts, report) = import(&[user("u1", "", "go"), error, meta]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "error", "hook", "import"]);
    let Words::Error(failure) = &drafts[2].words else { panic!() };
    assert_eq!((failure.message.as_str(), failure.code.as_deref()), ("API Error: 529", Some("overloaded")));
    assert_eq!(repairs(&report), []);
}

#[test]
fn a_sub_agent_becomes_a_session_of_its_own() {
    let task = r#"{"type":"tool_use","id":"T","name":"Task","input":{"prompt":"look"}}"#;
    let side =
        |line: String| line.replace(r#""sessionId""#, r#""isSidechain":true,"agentId":"ab1","sessionId""#);
    let done =
        result("r1", "a1", "T").replace(r#"{"b":1.50,"a":2}"#, r#"{"agentId":"ab1","totalDurationMs":70}"#);
    let (drafts, report) = import(&[
        user("u1", "", "go"),
        assistant("a1", "u1", "m1", task, "tool_use"),
        side(user("x1", "", "look")),
        side(assistant("x2", "x1", "m2", &words("seen"), "end_turn")),
        done,
        assistant("a2", "r1", "m3", &words("ok"), "end_turn"),
    ]);
    let own: Vec<Draft> = drafts.iter().filter(|d| d.id.session == SessionKey::MAIN).cloned().collect();
    let child: Vec<Draft> = drafts.iter().filter(|d| d.id.session != SessionKey::MAIN).cloned().collect();
    assert_eq!(kinds(&own), ["genesis", "user", "model", "tool", "model", "import"]);
    assert_eq!(kinds(&child), ["genesis", "user", "model", "import"]);
    assert_eq!(&*child[0].source_session, "s/agent-ab1");
    assert!(
        matches!(child[0].body, DraftBody::Genesis { parent: Some(ChildOf::Draft(id)) } if id.index == 2)
    );
    let DraftBody::ToolCall { child, duration_ms, .. } = &own[3].body else { panic!() };
    assert_eq!(*child, Some(Child::Session(SessionKey(1))));
    assert_eq!(*duration_ms, 70);
    assert_eq!(repairs(&report), []);
}

#[test]
fn a_sub_agent_with_its_own_file_is_named_at_its_call() {
    let task = r#"{"type":"tool_use","id":"T","name":"Task","input":{"prompt":"look"}}"#;
    let done = result("r1", "a1", "T").replace(r#"{"b":1.50,"a":2}"#, r#"{"agentId":"ab1"}"#);
    let (drafts, _) = import(&[user("u1", "", "go"), assistant("a1", "u1", "m1", task, "tool_use"), done]);
    assert!(
        matches!(&drafts[3].body, DraftBody::ToolCall { child: Some(Child::Agent(agent)), .. } if agent == "ab1")
    );

    let role = SourceRole::SubAgent { agent: "ab1".to_owned(), parent: None };
    let mut importer = ClaudeCode::new(Options { file_stem: Some("agent-ab1".to_owned()), role });
    let side =
        user("x1", "", "look").replace(r#""sessionId""#, r#""isSidechain":true,"agentId":"ab1","sessionId""#);
    let mut own = importer.line(side.as_bytes());
    own.extend(importer.end_segment().0);
    assert_eq!(kinds(&own), ["genesis", "user", "import"]);
    assert_eq!(&*own[0].source_session, "s/agent-ab1");
}

#[test]
fn a_file_that_grew_gives_the_old_drafts_and_then_the_new_ones() {
    let lines = [
        user("u1", "", "go"),
        assistant("a1", "u1", "m1", &words("thinking"), ""),
        assistant("a2", "a1", "m1", &call("A"), "tool_use"),
        result("r1", "a2", "A"),
        assistant("a3", "r1", "m2", &words("done"), "end_turn"),
    ];
    for cut in 1..lines.len() {
        let (before, _) = import(&lines[..cut]);
        let (grown, reports) = import_segments(&[&lines[..cut], &lines[cut..]]);
        assert_eq!(grown[..before.len()], before, "cut after line {cut}");
        assert_eq!(kinds(&grown).last(), Some(&"import"));
        assert_eq!(reports[1].span.first_line, cut as u64 + 1);
        assert_eq!(reports[0].next_offset, reports[1].span.offset);
        let held: BTreeSet<u64> = grown.iter().flat_map(|draft| draft.lines.iter().copied()).collect();
        assert_eq!(held.len(), lines.len(), "no line is lost at the border");
    }
}

#[test]
fn a_half_written_last_line_is_read_again() {
    let whole = format!("{}\n", user("u2", "u1", "second"));
    let mut importer = ClaudeCode::new(Options::default());
    importer.line(format!("{}\n", user("u1", "", "first")).as_bytes());
    importer.line(&whole.as_bytes()[..40]);
    let (_, report) = importer.end_segment();
    assert_eq!(report.tally.skipped, 1);
    assert_eq!((report.skipped[0].line, report.skipped[0].detail), (2, "ends inside a value"));
    assert_eq!(report.next_offset, report.skipped[0].offset);
    let drafts = importer.line(whole.as_bytes());
    assert_eq!(kinds(&drafts), ["user"]);
    let (_, report) = importer.end_segment();
    assert_eq!((report.span.first_line, report.span.lines, report.tally.carried), (2, 1, 1));
}

#[test]
fn a_whole_last_line_without_a_line_end_is_not_read_twice() {
    let title = r#"{"type":"ai-title","aiTitle":"T"}"#;
    let mut importer = ClaudeCode::new(Options::default());
    importer.line(format!("{}\n", user("u1", "", "first")).as_bytes());
    assert_eq!(kinds(&importer.line(title.as_bytes())), ["title"]);
    importer.end_segment();
    assert_eq!(importer.line(format!("{title}\n").as_bytes()), []);
    let (drafts, report) = importer.end_segment();
    assert_eq!(drafts, [], "nothing new");
    assert_eq!(report.tally.duplicate, 1);
}

#[test]
fn broken_lines_are_told_and_whole_records_beside_them_found() {
    let half = &user("u9", "u1", "cut off here")[..60];
    let mixed = format!("{half}{}", user("u2", "u1", "found"));
    let (drafts, report) = import(&[
        user("u1", "", "go"),
        half.to_owned(),
        mixed,
        "not json".to_owned(),
        String::new(),
        "[1]".to_owned(),
        r#"{"type":"user","message":{"0":"h","1":"i","content":[]}}"#.to_owned(),
    ]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "user", "import"]);
    let lost: Vec<(u64, u64)> = report.skipped.iter().map(|loss| (loss.line, loss.length)).collect();
    assert_eq!(lost, [(2, 60), (3, 60), (4, 8)]);
    assert_eq!((report.tally.skipped, report.tally.raw), (2, 3));
    assert_eq!(report.not_carried.keys().collect::<Vec<_>>(), ["blank", "user/malformed", "value"]);
}

#[test]
fn what_is_too_large_for_a_payload_is_stored_as_a_file() {
    let big = "y".repeat(1_300_000);
    let input = format!(r#"{{"type":"tool_use","id":"A","name":"Write","input":{{"content":"{big}"}}}}"#);
    let output = result("r1", "a1", "A").replace("out A", &big);
    let (drafts, _) =
        import(&[user("u1", "", &big), assistant("a1", "u1", "m1", &input, "tool_use"), output]);
    assert_eq!(kinds(&drafts), ["genesis", "user", "model", "tool", "import"]);
    for draft in &drafts[1..4] {
        assert_eq!(draft.blobs.len(), 1, "{:?}", draft.id);
        assert!(draft.blobs[0].bytes.len() >= big.len());
    }
    let Words::ToolCall(words) = &drafts[3].words else { panic!() };
    assert!(matches!(&words.content[0], Content::Media(media) if media.cid == drafts[3].blobs[0].cid));
}

#[test]
fn a_response_too_large_for_one_entry_becomes_several() {
    let calls: Vec<String> = (0..300).map(|n| call(&format!("toolu_{n:0>100}"))).collect();
    let (drafts, _) = import(&[
        user("u1", "", "go"),
        assistant("a1", "u1", "m1", &calls.join(","), "tool_use"),
        result("r1", "a1", &format!("toolu_{:0>100}", 299)),
    ]);
    let responses: Vec<&Draft> =
        drafts.iter().filter(|draft| matches!(draft.body, DraftBody::ModelResponse(_))).collect();
    assert!(responses.len() > 2);
    assert_eq!(responses.iter().map(|draft| response(draft).calls.len()).sum::<usize>(), 300);
    assert_eq!(responses.iter().map(|draft| response(draft).usage.output).sum::<u64>(), 5);
    let last = responses.last().unwrap().id;
    assert!(
        drafts.iter().any(|d| matches!(d.body, DraftBody::ToolCall { response, .. } if response == last))
    );
}

#[test]
fn images_are_stored_once_and_broken_ones_kept() {
    let image = |data: &str| {
        format!(r#"{{"type":"image","source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}"#)
    };
    let content = format!("[{},{},{}]", image("AAEC"), image("AAEC"), image("@@"));
    let message = format!(r#","message":{{"role":"user","content":{content}}}"#);
    let (drafts, report) = import(&[line("user", "u1", "", &message)]);
    let Words::UserMessage(words) = &drafts[1].words else { panic!() };
    assert_eq!(words.attachments.len(), 2);
    assert_eq!(words.attachments[0].cid, Cid::sha256(Codec::Raw, &[0, 1, 2]));
    assert_eq!(words.attachments[0], words.attachments[1]);
    assert_eq!(
        words.body.iter().map(|block| block.kind.as_str()).collect::<Vec<_>>(),
        ["Image", "Image", "Code"]
    );
    assert_eq!(report.repaired.len(), 1);
}

#[test]
fn outcomes_are_read_where_the_source_says_them() {
    let with = |uuid: &str, id: &str, output: &str, error: &str| {
        result(uuid, "a1", id)
            .replace(r#"{"b":1.50,"a":2}"#, output)
            .replace(r#""tool_use_id""#, &format!(r#"{error}"tool_use_id""#))
    };
    let content = [call("A"), call("B"), call("C"), call("D")].join(",");
    let (drafts, _) = import(&[
        user("u1", "", "go"),
        assistant("a1", "u1", "m1", &content, "tool_use"),
        with("r1", "A", "{}", ""),
        with("r2", "B", "{}", r#""is_error":true,"#),
        with("r3", "C", r#""User rejected tool use""#, r#""is_error":true,"#),
        with("r4", "D", r#"{"interrupted":true}"#, ""),
    ]);
    let outcomes: Vec<Outcome> = drafts
        .iter()
        .filter_map(|draft| match &draft.body {
            DraftBody::ToolCall { outcome, .. } => Some(*outcome),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes, [Outcome::Ok, Outcome::Error, Outcome::Denied, Outcome::Interrupted]);
}

#[test]
fn lone_surrogates_and_hostile_names_do_not_stop_an_import() {
    let hostile = r#"{"type":"tool_use","id":"xdtypefChange","name":"xdtypefChange\u202e","input":{}}"#;
    let (drafts, _) =
        import(&[user("u1", "", r"half \ud83d pair"), assistant("a1", "u1", "m1", hostile, "xdtypecRef")]);
    let Words::UserMessage(words) = &drafts[1].words else { panic!() };
    assert_eq!(words.body[0].text.as_deref(), Some("half \u{fffd} pair"));
    assert_eq!(response(&drafts[2]).calls[0].call_id, "c1");
    let body = drafts[2].assemble(&Signing {
        agent: &AgentIri::new(testing::key("account").principal(), None),
        salts: &ImportSalts::new(&[1; 32]),
        file: Cid::sha256(Codec::Raw, b""),
        entry: &|_| None,
        agent_session: &|_| None,
    });
    assert!(matches!(body.unwrap().body, Body::ModelResponse(_)));
}

#[test]
fn a_line_longer_than_the_limit_is_told_not_held() {
    let mut importer = ClaudeCode::new(Options::default());
    importer.line(format!("{}\n", user("u1", "", "first")).as_bytes());
    let drafts = importer.oversized(70_000_000);
    assert_eq!(drafts, []);
    let more = importer.line(format!("{}\n", user("u2", "u1", "second")).as_bytes());
    assert_eq!(kinds(&more), ["user"]);
    let (_, report) = importer.end_segment();
    assert_eq!(report.skipped[0].code, Code::TooBig);
    assert_eq!(report.tally.total(), 3);
}

mod any_bytes {
    use proptest::prelude::*;

    use super::*;

    /// Lines that are near to what the importer knows: whole, cut, glued and changed.
    fn lines() -> impl Strategy<Value = Vec<String>> {
        let id = || prop::sample::select(vec!["u1", "u2", "a1", "a2", "r1", "", "gone"]);
        let record = (0..9_usize, id(), id(), prop::sample::select(vec!["m1", "m2"])).prop_map(
            |(kind, uuid, parent, message)| match kind {
                0 => user(uuid, parent, "w"),
                1 => assistant(uuid, parent, message, &words("t"), ""),
                2 => assistant(uuid, parent, message, &call("A"), "tool_use"),
                3 => result(uuid, parent, "A"),
                4 => line("system", uuid, parent, r#","subtype":"compact_boundary""#),
                5 => user(uuid, parent, "s")
                    .replace(r#""sessionId""#, r#""isCompactSummary":true,"sessionId""#),
                6 => user(uuid, parent, "x").replace(r#""sessionId""#, r#""isSidechain":true,"sessionId""#),
                7 => r#"{"type":"ai-title","aiTitle":"T"}"#.to_owned(),
                _ => line("progress", uuid, parent, ""),
            },
        );
        let damaged =
            (record.clone(), any::<prop::sample::Index>(), record.clone()).prop_map(|(a, at, b)| {
                let cut = at.index(a.len());
                format!("{}{b}", &a[..cut])
            });
        prop::collection::vec(prop_oneof![6 => record, 1 => damaged], 0..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_import_accounts_for_its_lines_and_signs(lines in lines(), cut in any::<prop::sample::Index>()) {
            let (whole, _) = import(&lines);
            let (again, _) = import(&lines);
            prop_assert_eq!(&whole, &again);
            let cut = cut.index(lines.len() + 1);
            let (before, _) = import(&lines[..cut]);
            let (grown, _) = import_segments(&[&lines[..cut], &lines[cut..]]);
            prop_assert_eq!(&grown[..before.len()], &before[..]);
        }

        #[test]
        fn no_bytes_stop_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut importer = ClaudeCode::new(Options::default());
            importer.line(&bytes);
            let (_, report) = importer.end_segment();
            prop_assert_eq!(report.tally.total(), 1);
        }
    }
}
