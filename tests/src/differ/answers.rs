//! What this implementation answers: one line for each record.

use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use throughline_protocol::blob::SignedAny;
use throughline_protocol::block::{Decoded, sha256};
use throughline_protocol::car::session::{SessionItem, SessionReader};
use throughline_protocol::codec::{self, Value};
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry, Origin, PayloadRef};
use throughline_protocol::fork::{Set, State};
use throughline_protocol::id::{Cid, EntryCid, Seq, SessionId};
use throughline_protocol::payload::{ConfigBlock, Payload};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::verify::{Auditor, BlocksRead, Branch, LinkCounts, NotLinear, Report, SignerPart};

use super::{Kind, Record};
use crate::fuzz::kinds_of_payload;

/// Answers records; remembers keys that it checked before.
#[derive(Debug, Default)]
pub struct Answerer {
    keys: VerifyingKeys,
}

impl Answerer {
    /// The line for one record.
    pub fn answer(&mut self, record: &Record) -> String {
        match record.kind {
            Kind::Blob => self.blob(&record.bytes),
            Kind::Payload => payload(&record.bytes),
            Kind::Cid => match Cid::from_bytes(&record.bytes) {
                Ok(cid) => format!("ok {cid}"),
                Err(reject) => reject.code.name().to_owned(),
            },
            Kind::Set => self.set(&record.bytes),
            Kind::Car => car(&record.bytes),
        }
    }

    fn blob(&mut self, bytes: &[u8]) -> String {
        match SignedAny::check(bytes, &mut self.keys) {
            Ok(signed) => format!("ok {}", type_name(&signed)),
            Err(reject) => reject.code.name().to_owned(),
        }
    }

    /// Selection over the blobs that pass by themselves; keys in canonical order, lists ascending.
    fn set(&mut self, bytes: &[u8]) -> String {
        let (value, _) = codec::decode(bytes, 16).expect("a record of ours");
        let map = value.as_map().expect("a map");
        let genesis = map.get("genesis").and_then(Value::as_link).expect("a link");
        let session = SessionId::of_genesis(EntryCid::try_from(genesis).expect("an entry's CID"));
        let mut set = Set::new(session);
        for blob in map.get("blobs").and_then(Value::as_list).expect("a list") {
            match SignedAny::check(blob.as_bytes().expect("bytes"), &mut self.keys) {
                Ok(SignedAny::Entry(entry)) => {
                    set.insert_entry(&entry);
                }
                Ok(SignedAny::Control(control)) => {
                    set.insert_control(&control);
                }
                Ok(SignedAny::Seed(_)) | Err(_) => {}
            }
        }
        let selection = set.select();
        let list = |cids: &std::collections::BTreeSet<EntryCid>| {
            // Ascending by their bytes, which is not the order of their text.
            cids.iter().map(|cid| format!("\"{cid}\"")).collect::<Vec<String>>()
        };
        let tails = [
            ("fenced", &selection.fenced),
            ("passed", &selection.passed),
            ("revoked", &selection.revoked_tail),
        ];
        let tails: Vec<String> = tails
            .iter()
            .flat_map(|(kind, cids)| {
                list(cids).into_iter().map(move |cid| format!("{{\"cid\":{cid},\"kind\":\"{kind}\"}}"))
            })
            .collect();
        let mut line = String::from("{");
        match selection.head {
            Some(head) => write!(line, "\"head\":\"{}\",\"epoch\":{}", head.cid, head.epoch),
            None => write!(line, "\"head\":null,\"epoch\":null"),
        }
        .expect("writing to a string");
        let state = state_word(selection.state);
        write!(
            line,
            ",\"state\":\"{state}\",\"tails\":[{}],\"valid\":[{}],\"pending\":[{}]}}",
            tails.join(","),
            list(&selection.valid).join(","),
            list(&selection.pending).join(",")
        )
        .expect("writing to a string");
        line
    }
}

fn type_name(signed: &SignedAny) -> &'static str {
    match signed {
        SignedAny::Entry(entry) => entry.value().body.type_name(),
        SignedAny::Control(control) => match control.value() {
            Control::Capability(_) => "Capability",
            Control::Tombstone(_) => "CapabilityTombstone",
            Control::Ref(_) => "Ref",
        },
        SignedAny::Seed(blob) => blob.value().kind().type_name(),
    }
}

/// The word of a state, as the vectors and the pipe write it.
#[must_use]
pub fn state_word(state: State) -> &'static str {
    match state {
        State::Ok => "OK",
        State::Frozen => "FROZEN",
        State::Forked => "FORKED",
        State::Sealed => "SEALED",
        State::Incomplete => "INCOMPLETE",
        State::Invalid => "INVALID",
        State::RevokedUnanchored => "REVOKED_UNANCHORED",
    }
}

static ENTRIES: LazyLock<Vec<(String, Entry)>> = LazyLock::new(|| {
    let named = |entry: &Entry| (payload_kind(&entry.body), entry.clone());
    kinds_of_payload().iter().map(named).collect()
});

/// The kinds of payloads there are.
#[must_use]
pub fn payload_kinds() -> Vec<&'static str> {
    ENTRIES.iter().map(|(kind, _)| kind.as_str()).collect()
}

/// What kind of payload an entry has: its type, for notes with the kind of note.
#[must_use]
pub fn payload_kind(body: &Body) -> String {
    if let Body::Note(note) = body {
        return format!("note {}", note.kind());
    }
    body.type_name().to_owned()
}

fn payload(record: &[u8]) -> String {
    let zero = record.iter().position(|byte| *byte == 0).expect("a kind and a zero byte");
    let (kind, block) = (std::str::from_utf8(&record[..zero]).expect("a kind"), &record[zero + 1..]);
    let (_, entry) = ENTRIES.iter().find(|(name, _)| name == kind).expect("a kind that has words");
    let mut entry = entry.clone();
    entry.payload = Some(PayloadRef { cid: EntryCid::of(block), size: block.len() as u64 });
    // The entry names whatever envelope there is: the question is about the block alone.
    if let Body::UserMessage(message) = &mut entry.body
        && let Ok((value, _)) = codec::decode(block, 64)
        && let Some(envelope) = value.as_map().and_then(|map| map.get("envelope")).and_then(Value::as_bytes)
    {
        (message.origin, message.envelope) = (Some(Origin::Relayed), Some(sha256(envelope)));
    }
    match Payload::check(&entry, block) {
        Ok(_) => format!("ok {kind}"),
        Err(reject) => reject.code.name().to_owned(),
    }
}

/// What is found in a file: the verdict, its first problem, and all else that a report says of the session.
fn car(bytes: &[u8]) -> String {
    let report = audit(bytes);
    let problem = report.first_problem.as_ref();
    let code = problem.map_or("-", |problem| problem.reject.code.name());
    let seq = problem.and_then(|problem| problem.seq).map_or("-".to_owned(), |seq| seq.to_string());
    let of = or_dash(problem.and_then(|problem| problem.cid));
    let checks = report.checks;
    let checks = [checks.hash, checks.chain, checks.signature, checks.authority, checks.head];
    let checks = checks.map(throughline_protocol::verify::Check::word).join(",");
    let anchored = report.anchored_through.map(|(at, by)| format!("{}:{}", by.word(), at.cid));
    let tail = report.tail.map(|tail| {
        let tombstone = or_dash(tail.tombstone.map(EntryCid::from_digest));
        let anchor = or_dash(tail.last_anchor.map(|at| at.cid));
        let (from, to) = (tail.from.cid, tail.to.cid);
        format!("{}:{from}:{to}:{}:{}:{tombstone}:{anchor}", tail.kind.word(), tail.entries, tail.signer)
    });
    let fork = report.fork.as_ref().map(|fork| {
        let branch =
            |branch: &Branch| format!("{}/{}/{}", branch.head.cid, branch.rank.word(), branch.why.name());
        format!("{}:{}", fork.at.cid, fork.branches.iter().map(branch).collect::<Vec<_>>().join(","))
    });
    let signer = |part: &SignerPart| {
        let epochs: Vec<String> = part.epochs.iter().map(ToString::to_string).collect();
        let (key, role, entries) = (part.principal, part.standing.word(), part.entries);
        format!("{key}/{role}/{entries}/{}/{}", epochs.join("+"), or_dash(part.capability))
    };
    let signers: Vec<String> = report.signers.iter().map(signer).collect();
    let counts = |counts: &LinkCounts| format!("{}/{}/{}", counts.here, counts.missing, counts.withdrawn);
    let (words, files) = (counts(&report.inventory.payloads), counts(&report.inventory.files));
    format!(
        "{} {code} {seq} {of} {} {checks} words={words} files={files} head={} anchored={} pending={} tail={} fork={} signers={}",
        report.verdict.word(),
        report.problems,
        or_dash(report.valid_through.map(|head| head.cid)),
        or_dash(anchored),
        report.pending,
        or_dash(tail),
        or_dash(fork),
        signers.join(",")
    )
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

/// Audits a session's CAR as the command line does: as a stream, and as a set when it is no single chain.
#[must_use]
pub fn audit(bytes: &[u8]) -> Report {
    match audit_with(bytes, Auditor::new()) {
        Ok(report) => report,
        Err((session, _)) => {
            audit_with(bytes, Auditor::over_set(session)).unwrap_or_else(|(_, error)| panic!("{error}"))
        }
    }
}

/// One reading of a file into an auditor.
///
/// # Errors
/// When it is no single chain in order, with the session to judge as a set.
pub fn audit_with(bytes: &[u8], auditor: Auditor) -> Result<Report, (SessionId, NotLinear)> {
    let mut reader = SessionReader::new();
    reader.push(bytes);
    let blocks = BlocksRead::default();
    let mut pass = Pass { auditor, session: None, last: Seq::ZERO, waiting: None, blocks };
    let mut refused = None;
    while let Some(item) = reader.next() {
        match item {
            Ok(item) => pass.item(item, reader.root())?,
            Err(reject) => {
                refused = Some(reject);
                break;
            }
        }
    }
    pass.flush(None)?;
    if let (None, Some(root)) = (pass.session, reader.root()) {
        pass.auditor = pass.auditor.told(root);
    }
    if let Some(reject) = refused.or(reader.finish().err()) {
        pass.auditor.refused(None, None, reject);
    }
    let Pass { mut auditor, blocks, .. } = pass;
    let Ok(()) = auditor.take_stock(|cid| Ok::<_, std::convert::Infallible>(blocks.links_of(cid)));
    Ok(auditor.report())
}

struct Pass {
    auditor: Auditor,
    session: Option<SessionId>,
    /// The seq of the entry before.
    last: Seq,
    /// The entry that its payload may follow.
    waiting: Option<Decoded<Entry>>,
    blocks: BlocksRead,
}

impl Pass {
    fn item(&mut self, item: SessionItem, root: Option<EntryCid>) -> Result<(), (SessionId, NotLinear)> {
        match item {
            SessionItem::Genesis(genesis) => {
                let session = SessionId::of_genesis(genesis.cid());
                self.session = Some(session);
                self.auditor = std::mem::take(&mut self.auditor).of_session(session);
                if let Some(root) = root {
                    self.auditor = std::mem::take(&mut self.auditor).told(root);
                }
                self.waiting = Some(genesis);
                Ok(())
            }
            SessionItem::Entry(entry) => {
                self.flush(None)?;
                self.last = entry.value().seq();
                self.waiting = Some(entry);
                Ok(())
            }
            SessionItem::Payload { of, block } => {
                let own = self.waiting.as_ref().is_some_and(|entry| entry.cid() == of);
                self.flush(own.then(|| Arc::clone(block.bytes())))
            }
            SessionItem::Control(control) => {
                self.flush(None)?;
                let taken = self.auditor.control(Arc::clone(control.bytes()));
                self.told(taken)
            }
            SessionItem::Config { of, block } => {
                self.flush(None)?;
                self.blocks.note(&block);
                let named = EntryCid::of(block.bytes());
                if let Err(reject) = ConfigBlock::check(named, block.bytes()) {
                    self.auditor.refused(Some(of), Some(self.last), reject);
                }
                Ok(())
            }
            SessionItem::File { block, .. } => {
                self.blocks.note(&block);
                self.flush(None)
            }
        }
    }

    fn flush(&mut self, payload: Option<Arc<[u8]>>) -> Result<(), (SessionId, NotLinear)> {
        let Some(entry) = self.waiting.take() else { return Ok(()) };
        let taken = self.auditor.entry(Arc::clone(entry.bytes()), payload);
        self.told(taken)
    }

    fn told(&self, taken: Result<(), NotLinear>) -> Result<(), (SessionId, NotLinear)> {
        let session = self.session.unwrap_or_else(|| SessionId::of_genesis(EntryCid::of(b"none")));
        taken.map_err(|not_linear| (session, not_linear))
    }
}
