//! `vectors/session`: the chain of 41 entries against what is expected of it, the other sessions, and the negatives that only their
//! place makes wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value as Json;
use throughline_protocol::blob::SignedAny;
use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::control::Control;
use throughline_protocol::entry::Entry;
use throughline_protocol::fork::{Holds, Judged, Mark, Set, Standing, State, check_ref, check_tombstone};
use throughline_protocol::id::{EntryCid, Principal, SessionId};
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::skip;
use throughline_protocol::verify::{
    Ancestry, Auditor, Base, ChainState, Check, Controls, Pushed, Verdict, Verifier,
};

use super::session_negative::{Layer, layer};
use super::{Faults, Files, hex, records, text};

pub(super) fn check(files: &Files) {
    let chain = Chain::read(&files.json("session/chain.json"));
    check_stream(&chain);
    check_paths(&chain);
    check_selection(&chain);
    check_report(&chain);
    let blobs = files.json("session/blobs.json");
    check_other_sessions(&blobs);
    check_negatives(&chain, &blobs, &files.json("session/negative.json"));
}

/// An entry and its payload.
type Given = (Signed<Entry>, Option<Arc<[u8]>>);

struct Chain {
    entries: Vec<Given>,
    controls: Vec<Signed<Control>>,
    expected: Json,
}

impl Chain {
    fn read(file: &Json) -> Self {
        let payload = |record: &Json| {
            record["payload"].is_object().then(|| hex(&record["payload"], "bytes_hex").into())
        };
        let entries = records(&file["entries"], 41).iter().map(|record| (signed(record), payload(record)));
        Chain {
            entries: entries.collect(),
            controls: records(&file["control"], 8).iter().map(signed_control).collect(),
            expected: file["expected"].clone(),
        }
    }

    fn held(&self) -> Controls {
        let mut controls = Controls::new();
        self.controls.iter().for_each(|control| {
            controls.insert(control);
        });
        controls
    }

    fn session(&self) -> SessionId {
        SessionId::of_genesis(self.entries[0].0.cid())
    }

    /// The verifier after the entries up to `through`.
    fn verifier(&self, through: usize) -> Verifier {
        let mut verifier = Verifier::begin(self.held());
        for (entry, payload) in &self.entries[..=through] {
            let pushed = verifier.push(Arc::clone(entry.bytes()), payload.clone()).unwrap();
            assert!(matches!(pushed, Pushed::Linked(mark, _) if mark.cid == entry.cid()));
        }
        verifier
    }

    fn state(&self, through: usize) -> ChainState {
        self.verifier(through).state().unwrap().clone()
    }
}

fn signed(record: &Json) -> Signed<Entry> {
    let entry = Signed::check(hex(record, "bytes_hex"), &mut VerifyingKeys::default()).unwrap();
    assert_eq!(entry.cid().to_string(), text(record, "cid"));
    entry
}

fn signed_control(record: &Json) -> Signed<Control> {
    Signed::check(hex(record, "bytes_hex"), &mut VerifyingKeys::default()).unwrap()
}

fn principal(text: &Json) -> Principal {
    let bytes = data_encoding::HEXLOWER.decode(text.as_str().unwrap().as_bytes()).unwrap();
    Principal::from_bytes(&bytes).unwrap()
}

fn cids(list: &Json) -> Vec<(u64, String)> {
    let hop = |hop: &Json| (hop["seq"].as_u64().unwrap(), text(hop, "cid").to_owned());
    list.as_array().unwrap().iter().map(hop).collect()
}

/// Answers from the whole chain, as a store does.
struct Index<'c>(&'c Chain);

impl Ancestry for Index<'_> {
    fn holds(&self, cid: EntryCid, tip: Mark) -> Holds {
        let found = self.0.entries.iter().find(|(entry, _)| entry.cid() == cid);
        match found.is_some_and(|(entry, _)| entry.value().seq() <= tip.seq) {
            true => Holds::Yes,
            false => Holds::No,
        }
    }
}

/// Streaming: every entry is a segment, each position is what the file says, and the verifier goes on from the bytes of
/// its state as after a restart.
fn check_stream(chain: &Chain) {
    let mut verifier = Verifier::begin(chain.held()).with_ancestry(Index(chain));
    let mut base = Base::Nothing;
    for (index, per_seq) in records(&chain.expected["per_seq"], 41).iter().enumerate() {
        let (entry, payload) = &chain.entries[index];
        verifier.push(Arc::clone(entry.bytes()), payload.clone()).unwrap();
        let segment = verifier.take_segment().unwrap().unwrap();
        assert_eq!(segment.base(), base);
        assert_eq!(segment.entries().len(), 1);
        assert_eq!(segment.entries()[0].payload(), payload.as_ref());
        let state = segment.after();
        assert_eq!(state.tip().cid.to_string(), text(per_seq, "cid"));
        assert_eq!(state.holder(), Some(principal(&per_seq["holder"])), "holder after {index}");
        assert_eq!(state.tip().epoch.get(), per_seq["epoch"].as_u64().unwrap());
        let target = skip::target(index as u64);
        assert_eq!(Some(target), per_seq["skip_seq"].as_u64());
        let named = entry.value().place.and_then(|place| place.skip);
        assert_eq!(Some(named.is_some()), per_seq["skip_in_entry"].as_bool());
        let restored = ChainState::from_bytes(&state.to_bytes()).unwrap();
        assert_eq!(restored, *state);
        base = Base::On(state.tip());
        verifier = Verifier::resume(restored, chain.held()).with_ancestry(Index(chain));
    }
    assert_eq!(*verifier.state().unwrap(), chain.state(40));
}

fn check_paths(chain: &Chain) {
    let expected = &chain.expected;
    let state = chain.state(40);
    let locator: Vec<_> = state.path().iter().map(|(seq, cid)| (seq, cid.to_string())).collect();
    assert_eq!(locator, cids(&expected["locator_tip_40"]));
    let have: Vec<_> = locator.iter().map(|(_, cid)| Json::from(cid.as_str())).collect();
    assert_eq!(Json::from(have), expected["have_tip_40"]);
    for (name, base) in [("skip_path_40_to_7", 7), ("skip_path_40_to_0", 0), ("skip_path_40_to_20", 20)] {
        let path: Vec<_> = skip::path(40, base)
            .map(|seq| (seq, chain.entries[usize::try_from(seq).unwrap()].0.cid().to_string()))
            .collect();
        assert_eq!(path, cids(&expected[name]), "{name}");
    }
    let participants: Vec<Principal> =
        expected["participants"].as_array().unwrap().iter().map(principal).collect();
    assert_eq!(state.participants(), Some(participants));
    assert_eq!(state.class().word(), text(expected, "class"));
    let digest = &expected["control_digest"];
    let (count, hash) = chain.held().digest(principal(&digest["owner"]));
    assert_eq!(Some(count), digest["count"].as_u64());
    assert_eq!(hash.to_vec(), hex(digest, "digest"));
    for cited in expected["revoked_capabilities"].as_array().unwrap() {
        let cited = cited.as_str().unwrap().parse().unwrap();
        assert!(chain.held().revoked_by(&cited, state.owner()).is_some());
    }
}

fn check_selection(chain: &Chain) {
    let expected = &chain.expected;
    let mut set = Set::with_controls(chain.session(), chain.held());
    chain.entries.iter().rev().for_each(|(entry, _)| {
        set.insert_entry(entry);
    });
    let selection = set.select();
    let head = selection.head.unwrap();
    assert_eq!(selection.state, State::Ok);
    assert_eq!(
        (head.cid.to_string(), Some(head.seq.get())),
        (text(expected, "head").to_owned(), expected["seq"].as_u64())
    );
    assert_eq!(Some(head.epoch.get()), expected["epoch"].as_u64());
    assert_eq!(selection.position.unwrap().holder, Some(principal(&expected["holder"])));
    assert_eq!(selection.valid.len(), 41);
    assert!(selection.pending.is_empty() && selection.passed.is_empty() && selection.fenced.is_empty());
    assert!(selection.revoked_tail.is_empty() && selection.evidence.is_empty());
    let anchored = selection.anchored_through.unwrap();
    assert_eq!(Some(anchored.0.seq.get()), expected["anchoredThrough"].as_u64());
    let judged = set.judge();
    let at_tip = ChainState::at(&judged, set.controls(), head.cid).unwrap();
    assert_eq!(at_tip, chain.state(40));
    let outcome = at_tip.outcome().unwrap();
    assert_eq!((outcome.state, outcome.head), (State::Ok, Some(head)));
    assert_eq!(outcome.anchored_through, Some(anchored));
}

/// In the order of a CAR, backwards, and with one entry left out.
fn check_report(chain: &Chain) {
    let head = chain.entries[40].0.cid();
    let audit = |order: &[usize], told: EntryCid| {
        let mut auditor = Auditor::new().of_session(chain.session()).told(told);
        let give = |auditor: &mut Auditor, at: usize| {
            let (entry, payload) = &chain.entries[at];
            auditor.entry(Arc::clone(entry.bytes()), payload.clone()).unwrap();
        };
        give(&mut auditor, order[0]);
        for control in &chain.controls {
            auditor.control(Arc::clone(control.bytes())).unwrap();
        }
        order[1..].iter().for_each(|at| give(&mut auditor, *at));
        auditor.report()
    };
    let forwards: Vec<usize> = (0..41).collect();
    let backwards: Vec<usize> = (0..41).rev().collect();
    let report = audit(&forwards, head);
    assert_eq!(report, audit(&backwards, head));
    assert_eq!(report.verdict.word(), text(&chain.expected, "verdict"));
    assert_eq!(report.valid_through.map(|mark| mark.seq.get()), chain.expected["validThrough"].as_u64());
    let checks = report.checks;
    let all = [checks.hash, checks.chain, checks.signature, checks.authority, checks.head];
    assert_eq!(all, [Check::Pass; 5]);
    let with_payload = chain.entries.iter().filter(|(_, payload)| payload.is_some()).count() as u64;
    // One response names the config block, which nobody gave the auditor.
    let payloads = report.inventory.payloads;
    assert_eq!((payloads.here, payloads.missing), (with_payload, 1));
    assert_eq!(report.signers.iter().map(|part| part.entries).sum::<u64>(), 41);
    let servers = report.signers.iter().filter(|part| part.standing == Standing::Holder).count();
    assert_eq!((servers, report.signers.len()), (2, 5));

    let gap: Vec<usize> = (0..41).filter(|at| *at != 17).collect();
    let report = audit(&gap, head);
    assert_eq!(report.verdict, Verdict::Incomplete);
    // The first server was revoked later, and what anchors its entries 12…16 lies above the gap: the last anchor is the
    // owner's message 11, on the holder's 10.
    assert_eq!(report.valid_through.map(|mark| mark.seq.get()), Some(10));
    assert_eq!(report.first_problem.unwrap().seq.unwrap().get(), 18);
    assert_eq!((report.checks.chain, report.checks.head), (Check::Unchecked, Check::Unchecked));

    let report = audit(&forwards[..20], head);
    assert_eq!((report.verdict, report.checks.head), (Verdict::Incomplete, Check::Unchecked));
    let report = audit(&forwards, chain.entries[19].0.cid());
    // Who told it, or this set, lacks what decides.
    assert_eq!((report.verdict, report.checks.head), (Verdict::Incomplete, Check::Fail));
}

/// Every entry of `blobs.json` is valid in its place when all blobs of the file are held.
fn check_other_sessions(blobs: &Json) {
    let all = SessionsFile::read(blobs);
    for session in records(&blobs["sessions"], 10) {
        let genesis: EntryCid = text(session, "genesis").parse().unwrap();
        let set = all.set(SessionId::of_genesis(genesis));
        let judged = set.judge();
        let mut verifier = Verifier::begin(all.controls.clone());
        for name in session["entries"].as_array().unwrap() {
            let entry = &all.entries[name.as_str().unwrap()];
            assert_eq!(judged.explain(entry.cid()), None, "{name}");
            let pushed = verifier.push(Arc::clone(entry.bytes()), None);
            assert!(matches!(pushed, Ok(Pushed::Linked(..))), "{name}: {pushed:?}");
        }
        let state = verifier.state().unwrap();
        assert_eq!(judged.position(state.tip().cid).as_ref(), Some(state.position()));
    }
}

struct SessionsFile {
    entries: BTreeMap<String, Signed<Entry>>,
    controls: Controls,
}

impl SessionsFile {
    fn read(blobs: &Json) -> Self {
        let (mut entries, mut controls) = (BTreeMap::new(), Controls::new());
        for record in records(&blobs["vectors"], 85) {
            match any(record) {
                SignedAny::Entry(entry) => {
                    entries.insert(text(record, "name").to_owned(), *entry);
                }
                SignedAny::Control(control) => {
                    controls.insert(&control);
                }
                SignedAny::Seed(_) => {}
            }
        }
        SessionsFile { entries, controls }
    }

    fn set(&self, session: SessionId) -> Set {
        let mut set = Set::with_controls(session, self.controls.clone());
        self.entries.values().for_each(|entry| {
            set.insert_entry(entry);
        });
        set
    }
}

fn any(record: &Json) -> SignedAny {
    SignedAny::check(hex(record, "bytes_hex"), &mut VerifyingKeys::default()).unwrap()
}

/// What only the chain shows: the set and the stream give the same code.
fn check_negatives(chain: &Chain, blobs: &Json, negatives: &Json) {
    let others = SessionsFile::read(blobs);
    let mut faults = Faults::default();
    let mut count = 0;
    for record in records(&negatives["vectors"], 145).iter().filter(|record| layer(record) == Layer::Chain) {
        count += 1;
        let name = text(record, "name");
        let expected = text(record, "expect").parse::<Code>().unwrap();
        let support = records(&negatives["support"], 8);
        let held = world(chain, &others, support, record);
        let blob = any(record);
        faults.equal(&format!("{name} in a set"), held.judge(&blob), Some(expected));
        if let SignedAny::Entry(entry) = &blob {
            let streamed = held.stream(entry);
            faults.equal(&format!("{name} in a stream"), streamed, Some(expected));
        }
    }
    faults.assert_none();
    assert_eq!(count, CHAIN_NEGATIVES);
}

const CHAIN_NEGATIVES: usize = 52;

/// The session that a negative was made from, and the blobs that it needs.
struct World {
    set: Set,
    base: EntryCid,
}

fn world(chain: &Chain, others: &SessionsFile, support: &[Json], record: &Json) -> World {
    let (file, name) = text(record, "base").split_once('#').unwrap();
    let needs: BTreeSet<&str> =
        record["needs"].as_array().into_iter().flatten().map(|cid| cid.as_str().unwrap()).collect();
    let is_chain = file == "chain.json";
    let base = match others.entries.get(name) {
        Some(entry) => Some(entry.cid()),
        None => name
            .strip_prefix("chain-")
            .and_then(|seq| seq.parse::<usize>().ok())
            .map(|seq| chain.entries[seq].0.cid()),
    };
    // A Ref's base is the head that it names.
    let base = base.unwrap_or_else(|| match name {
        "chain-ref-anchor-40" => chain.entries[40].0.cid(),
        "chain-ref-hint-19" => chain.entries[19].0.cid(),
        _ => others.entries["handoff"].cid(),
    });
    let session = if is_chain {
        chain.session()
    } else {
        let entry = others.entries.values().find(|entry| entry.cid() == base).unwrap();
        entry.value().session(base)
    };
    let mut set = others.set(session);
    // Every blob of the base's own file is held; of the other file and the support, what is needed.
    if is_chain {
        set = Set::with_controls(session, chain.held());
        for (entry, _) in &chain.entries {
            set.insert_entry(entry);
        }
        others.entries.values().filter(|entry| needs.contains(entry.cid().to_string().as_str())).for_each(
            |entry| {
                set.insert_entry(entry);
            },
        );
    }
    for record in support.iter().filter(|record| needs.contains(text(record, "cid"))) {
        set.insert_control(&signed_control(record));
    }
    World { set, base }
}

impl World {
    fn judge(&self, blob: &SignedAny) -> Option<Code> {
        match blob {
            SignedAny::Entry(entry) if entry.value().place.is_none() => {
                let mut set =
                    Set::with_controls(SessionId::of_genesis(entry.cid()), self.set.controls().clone());
                set.insert_entry(entry);
                set.explain(entry.cid()).map(|reject| reject.code)
            }
            SignedAny::Entry(entry) => {
                let mut set = self.set.clone();
                set.insert_entry(entry);
                set.explain(entry.cid()).map(|reject| reject.code)
            }
            SignedAny::Control(control) => self.judge_control(control.value()),
            SignedAny::Seed(_) => None,
        }
    }

    fn judge_control(&self, control: &Control) -> Option<Code> {
        let judged = self.set.judge();
        let facts = judged.facts().unwrap();
        match control {
            Control::Ref(value) => {
                let head = judged.position(self.base).unwrap();
                check_ref(value, facts, &head, self.set.controls()).err().map(|reject| reject.code)
            }
            Control::Tombstone(value) => check_tombstone(value, facts.owner).err().map(|reject| reject.code),
            Control::Capability(_) => None,
        }
    }

    /// The same entry, as the next of a stream; of one that stands on nothing here, what the set says.
    fn stream(&self, entry: &Signed<Entry>) -> Option<Code> {
        let judged = self.set.judge();
        let controls = self.set.controls().clone();
        let bytes = Arc::clone(entry.bytes());
        let pushed = match entry.value().prev() {
            None => Verifier::begin(controls).push(bytes, None),
            Some(prev) => match ChainState::at(&judged, &controls, prev) {
                Some(state) => {
                    Verifier::resume(state, controls).with_ancestry(Tree(&judged)).push(bytes, None)
                }
                None => return self.judge(&SignedAny::Entry(Box::new(entry.clone()))),
            },
        };
        pushed.err().map(|reject| reject.code)
    }
}

/// Answers from a judged set.
struct Tree<'j, 's>(&'j Judged<'s>);

impl Ancestry for Tree<'_, '_> {
    fn holds(&self, cid: EntryCid, tip: Mark) -> Holds {
        if self.0.precedes(cid, tip.cid) { Holds::Yes } else { Holds::No }
    }
}
