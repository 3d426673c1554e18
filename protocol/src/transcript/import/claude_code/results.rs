//! Results of tools: the lines of a user who is none.

use super::super::draft::{Child, DraftBody, DraftId, RecordKey, SessionKey};
use super::super::{clean, fit, json};
use super::Desk;
use super::blocks::{self, RawResult};
use super::calls::Call;
use super::record::{Meta, Record};
use super::seen::Turn;
use super::session::{Entry, Session};
use crate::codec::Map;
use crate::content::{Block, Content};
use crate::entry::{Origin, Outcome};
use crate::limits::INTEGER_MAX;
use crate::payload::{ToolWords, UserWords, Words};

/// A line with results.
#[derive(Debug)]
pub(super) struct ResultLine {
    pub(super) meta: Meta,
    pub(super) turn: Turn,
    pub(super) results: Vec<RawResult>,
    output: Output,
}

/// What a line says about its result beside what the model saw.
#[derive(Debug, Default)]
struct Output {
    raw: Option<String>,
    outcome: Option<Outcome>,
    duration_ms: u64,
    /// The sub-agent that the call started.
    agent: Option<String>,
}

impl ResultLine {
    /// Takes the results of a line.
    pub(super) fn read(record: &Record<'_>, turn: Turn, results: Vec<RawResult>) -> Self {
        let output = json::raw_of(&record.fields, "toolUseResult").map(Output::read).unwrap_or_default();
        ResultLine { meta: record.meta.clone(), turn, results, output }
    }
}

impl Output {
    fn read(raw: &str) -> Self {
        let fields = json::object(raw).unwrap_or_default();
        let duration = ["totalDurationMs", "durationMs"].map(|key| json::uint_of(&fields, key));
        let outcome = if json::text(raw).as_deref() == Some("User rejected tool use") {
            Some(Outcome::Denied)
        } else if json::is_true(&fields, "interrupted") {
            Some(Outcome::Interrupted)
        } else {
            None
        };
        Output {
            outcome,
            duration_ms: duration.into_iter().find(|ms| *ms > 0).unwrap_or(0).min(INTEGER_MAX),
            agent: json::text_of(&fields, "agentId").and_then(|id| clean::id(&id)),
            raw: Some(raw.to_owned()),
        }
    }
}

impl Session {
    /// Writes the results of a line, each to the call it answers.
    pub(super) fn results(&mut self, line: ResultLine, desk: &mut Desk) {
        desk.report.reachable += 1;
        let several = line.results.len() > 1 && line.output.raw.is_some();
        if several {
            desk.report.repair(
                line.meta.line,
                "several results share one structured output, which stays in the segment",
            );
        }
        let mut output = Some(line.output);
        for (nth, result) in line.results.into_iter().enumerate() {
            let output = if several { Output::default() } else { output.take().unwrap_or_default() };
            let record = line.meta.record.nth(nth);
            match self.calls.answer(&result.provider_id) {
                Some(call) => self.tool_call(&line.meta, line.turn, record, &call, (result, output), desk),
                None => self.orphan(&line.meta, line.turn, record, (result, output), desk),
            }
        }
    }

    fn tool_call(
        &mut self,
        meta: &Meta,
        turn: Turn,
        record: RecordKey,
        call: &Call,
        (result, output): (RawResult, Output),
        desk: &mut Desk,
    ) {
        let mut blobs = result.blobs;
        let mut words = ToolWords {
            input: None,
            output: output.raw,
            content: result.content,
            error: None,
            source: Some(meta.source(&[meta.line], None)),
        };
        fit::fit_tool(&mut words, &mut blobs);
        let named = output.agent.as_deref().and_then(|agent| desk.agents.get(agent)).copied().map(SessionKey);
        let child = named.or(call.child).map(Child::Session).or(output.agent.map(Child::Agent));
        let body = DraftBody::ToolCall {
            name: call.name.to_string(),
            call_id: call.call_id.to_string(),
            outcome: output.outcome.unwrap_or(result.outcome),
            response: DraftId { session: self.key(), index: call.response },
            child,
            duration_ms: output.duration_ms,
        };
        let entry = Entry { record, ts: meta.ts, lines: vec![meta.line], blobs };
        let index = self.emit(body, Words::ToolCall(words), entry, desk);
        self.turns.written(turn, index);
    }

    /// A result whose call is nowhere in the source. A tool call names the response that asked, so it cannot be one; its
    /// words are kept as a message that no person wrote, in a block of its own kind.
    fn orphan(
        &mut self,
        meta: &Meta,
        turn: Turn,
        record: RecordKey,
        (result, output): (RawResult, Output),
        desk: &mut Desk,
    ) {
        desk.report.repair(meta.line, "result of a call that is not in the source, kept as a message");
        let mut blobs = result.blobs;
        let mut words = ToolWords { output: output.raw, content: result.content, ..ToolWords::default() };
        fit::fit_tool(&mut words, &mut blobs);
        let provider_id = clean::cut(&result.provider_id, 4_096).to_owned();
        let attributes = Map::new()
            .with("toolUseId", provider_id)
            .with_some("output", words.output)
            .with_some("isError", (result.outcome != Outcome::Ok).then_some(true));
        let mut items = vec![Block {
            kind: "ToolResult".to_owned(),
            annotations: None,
            attributes,
            ..Block::paragraph("b1", String::new())
        }];
        items[0].text = None;
        items[0].children = children(&words.content);
        let mut attachments = blobs.iter().map(fit::attachment).collect::<Vec<_>>();
        attachments.truncate(crate::limits::ATTACHMENTS_MAX);
        let words = UserWords {
            body: items,
            attachments,
            source: Some(meta.source(&[meta.line], None)),
            ..UserWords::default()
        };
        let entry = Entry { record, ts: meta.ts, lines: vec![meta.line], blobs };
        let body = DraftBody::UserMessage { origin: Origin::Hook };
        let index = self.emit(body, Words::UserMessage(words), entry, desk);
        self.turns.written(turn, index);
        self.turns.is_message(turn);
    }
}

/// Parts of a result as blocks.
fn children(content: &[Content]) -> Vec<Block> {
    content.iter().enumerate().map(|(n, part)| block_of(&format!("b1-{}", n + 1), part)).collect()
}

/// A part as a block of a message: words as a paragraph, files as links, all else as the JSON it came in.
pub(super) fn block_of(id: &str, part: &Content) -> Block {
    match part {
        Content::Text(text) => Block::paragraph(id, text.text.clone()),
        Content::Media(media) => Block {
            kind: if media.media_type.starts_with("image/") { "Image" } else { "File" }.to_owned(),
            text: None,
            link: Some(format!("ipfs://{}", media.cid)),
            ..Block::paragraph(id, String::new())
        },
        Content::Opaque(opaque) => raw_block(id, &opaque.kind, &opaque.raw),
        Content::Reasoning(reasoning) => {
            raw_block(id, "reasoning", reasoning.text.as_deref().unwrap_or_default())
        }
        Content::ToolCall(call) => raw_block(id, "tool_use", &call.input),
        Content::Refusal(refusal) => Block::paragraph(id, refusal.text.clone()),
        Content::Unknown(_) => raw_block(id, "unknown", ""),
    }
}

fn raw_block(id: &str, kind: &str, raw: &str) -> Block {
    Block {
        kind: "Code".to_owned(),
        attributes: Map::new().with("language", "json").with("sourceKind", kind.to_owned()),
        ..Block::paragraph(id, raw)
    }
}

impl std::fmt::Debug for blocks::RawResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RawResult({} parts)", self.content.len())
    }
}
