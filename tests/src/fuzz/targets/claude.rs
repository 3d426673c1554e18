//! The importer of Claude Code transcripts: it accounts for every line, says the same twice, and drafts nothing that cannot be signed.

use std::collections::BTreeMap;

use throughline_protocol::block::SignedBlob as _;
use throughline_protocol::entry::{Entry, Place};
use throughline_protocol::id::{AgentIri, Cid, Codec, EntryCid, Epoch, Seq, UnixMillis};
use throughline_protocol::payload::ImportSalts;
use throughline_protocol::sign::SIGNATURE_BYTES;
use throughline_protocol::skip::SkipPath;
use throughline_protocol::testing::key;
use throughline_protocol::transcript::import::{
    ClaudeCode, Draft, DraftId, Options, Report, SessionKey, Signing, SourceRole,
};

pub(in crate::fuzz) fn claude(data: &[u8]) {
    let lines: Vec<&[u8]> = data.split_inclusive(|byte| *byte == b'\n').collect();
    let (drafts, report) = import(&lines, SourceRole::Session);
    assert_eq!(import(&lines, SourceRole::Session), (drafts.clone(), report.clone()), "the same twice");
    check_report(&report, &lines, data.len() as u64);
    for draft in &drafts {
        assert!(draft.lines.windows(2).all(|pair| pair[0] < pair[1]), "lines ascend");
        assert!(draft.lines.iter().all(|line| (1..=report.span.lines).contains(line)));
    }
    check_signable(&drafts);
    let agent = SourceRole::SubAgent { agent: "a".to_owned(), parent: None };
    let (drafts, report) = import(&lines, agent);
    check_report(&report, &lines, data.len() as u64);
    check_signable(&drafts);
}

fn import(lines: &[&[u8]], role: SourceRole) -> (Vec<Draft>, Report) {
    let mut importer = ClaudeCode::new(Options { file_stem: Some("fuzz".to_owned()), role });
    let mut drafts: Vec<Draft> = lines.iter().flat_map(|line| importer.line(line)).collect();
    let (rest, report) = importer.end_segment();
    drafts.extend(rest);
    (drafts, report)
}

/// Every line ends one way, and the segment is as long as what was read.
fn check_report(report: &Report, lines: &[&[u8]], bytes: u64) {
    assert_eq!(report.tally.total(), lines.len() as u64, "{:?}", report.tally);
    assert_eq!((report.span.lines, report.span.length), (lines.len() as u64, bytes));
    // Each is a record, an object of its own; a line may have several.
    let objects = lines.concat().iter().filter(|byte| **byte == b'{').count() as u64;
    assert!(report.reachable <= report.messages && report.messages <= objects);
    let ends_open = lines.last().is_some_and(|last| !last.ends_with(b"\n"));
    let reread = if ends_open { lines[lines.len() - 1].len() as u64 } else { 0 };
    assert_eq!(report.next_offset, bytes - reread);
    for loss in &report.skipped {
        assert!(loss.offset + loss.length <= bytes);
    }
    assert_eq!(report.raw.len() as u64 + report.unlisted.raw, report.not_carried.values().sum::<u64>());
}

/// The chains that the drafts become: every entry and payload is one that a verifier reads.
fn check_signable(drafts: &[Draft]) {
    let owner = key("account");
    let agent = AgentIri::new(owner.principal(), None);
    let salts = ImportSalts::new(&[7; 32]);
    let mut entries: BTreeMap<DraftId, EntryCid> = BTreeMap::new();
    let mut chains: BTreeMap<SessionKey, (SkipPath<EntryCid>, UnixMillis)> = BTreeMap::new();
    for draft in drafts {
        let known = |id: DraftId| entries.get(&id).copied();
        let assembled = draft
            .assemble(&Signing {
                agent: &agent,
                salts: &salts,
                file: Cid::sha256(Codec::Raw, b"segment"),
                entry: &known,
                agent_session: &|_| None,
            })
            .expect("what a draft links was drafted before");
        let built =
            assembled.payload.build(&assembled.body, assembled.salt).expect("words within their schema");
        let chain = chains.get(&draft.id.session);
        assert_eq!(chain.is_none(), draft.id.index == 0, "a session begins with its first draft");
        assert!(chain.is_none_or(|(_, before)| *before <= assembled.ts), "times do not go back");
        let entry = Entry {
            ts: assembled.ts,
            signer: owner.principal(),
            authority: None,
            place: chain.map(|(path, _)| place_after(path)),
            body: assembled.body,
            payload: Some(built.1),
            ext: None,
        };
        let bytes = entry.to_bytes(&[0; SIGNATURE_BYTES]);
        let (read, _) = Entry::read(&bytes).expect("an entry within its schema");
        assert_eq!(read, entry);
        let cid = EntryCid::of(&bytes);
        assert_eq!(entries.insert(draft.id, cid), None, "one draft, one id");
        match chains.get_mut(&draft.id.session) {
            Some((path, before)) => {
                path.push(cid);
                *before = entry.ts;
            }
            None => {
                chains.insert(draft.id.session, (SkipPath::genesis(cid), entry.ts));
            }
        }
    }
}

fn place_after(path: &SkipPath<EntryCid>) -> Place {
    let (tip_seq, tip) = path.tip();
    let genesis = path.iter().map(|(_, cid)| cid).last().expect("a path ends in the genesis");
    let skip = path.next_skip().1;
    Place {
        genesis,
        prev: tip,
        seq: Seq::new(tip_seq + 1).expect("a small seq"),
        epoch: Epoch::ZERO,
        skip: (skip != tip).then_some(skip),
    }
}
