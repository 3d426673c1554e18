//! What only the entries before show: links, order, skips, seals, and what is missing.

use std::sync::Arc;

use throughline_protocol::block::{Block, Signed};
use throughline_protocol::build::sign;
use throughline_protocol::car::write_block;
use throughline_protocol::code::Code;
use throughline_protocol::codec::{self, Value};
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry, Note, Place};
use throughline_protocol::id::{Cid, Codec, EntryCid, Epoch, HashKind, Seq};
use throughline_protocol::skip;
use throughline_protocol::sync::Point;
use throughline_protocol::sync::range::{Payloads, RangeCheck, RangeLimits, RangeRequest, path_seqs};
use throughline_protocol::testing::{self, Built, Reach, SessionBuilder};
use throughline_protocol::verify::{ChainState, Verifier};

use super::make::{
    Outcome, audit, code, controls, fields, file, head, judged, linked, message, session, set, signed, turn,
    word,
};
use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row("CH01", &["E_GENESIS"], |_| vec![genesis_with_prev()]),
    row("CH02", &["E_PREV_MISSING"], |_| vec![with_prev(None)]),
    row("CH03", &["E_SEQ"], |_| seqs()),
    row("CH04", &["E_SESSION_MISMATCH"], |_| vec![prev_of_another_session()]),
    row("CH05", &["E_PREV_TYPE"], |_| prevs_of_another_type()),
    row("CH06", &["E_CID_HASH"], |_| vec![with_prev(Some(Cid::blake2b(Codec::DagCbor, b"prev")))]),
    row("CH07", &["E_CID_MISMATCH"], |_| vec![another_digest()]),
    row("CH08", &["E_BUDGET"], |_| vec![endless_chain()]),
    row("CH09", &["E_TS_ORDER"], |_| vec![on_tip(|entry| entry.ts = testing::ts(3_999))]),
    row("CH11", &["E_SEALED"], |_| after_seals()),
    row("CH12", &["EV_EQUIVOCATION"], |_| vec![two_seals()]),
    row("CH13", &["E_INCOMPLETE"], |_| vec![gap()]),
    row("CH14", &["E_INDEX_CORRUPT"], |_| vec![self_link()]),
    row("SK01", &["E_CBOR_NONCANON"], |_| vec![skip_is_prev()]),
    row("SK02", &["E_SKIP"], |_| false_skips()),
    row("SK03", &["E_SKIP"], |_| {
        vec![on_tip(|entry| place(entry).skip = Some(session("other", 1).entries()[0].entry.cid()))]
    }),
];

fn place(entry: &mut Entry) -> &mut Place {
    entry.place.as_mut().unwrap()
}

/// A message of the owner on a chain of 4 entries after the genesis, changed before it is signed.
fn on_tip(change: impl FnOnce(&mut Entry)) -> Outcome {
    let session = session("chain", 2);
    linked(&session, &[], &message(&session, &session.owner, change))
}

fn genesis_with_prev() -> Outcome {
    let session = SessionBuilder::new("genesis");
    let map = head(&session).with("prev", EntryCid::of(b"prev"));
    judged(&session, signed(&map, &session.owner.key))
}

fn with_prev(prev: Option<Cid>) -> Outcome {
    let session = session("prev", 1);
    let mut map = head(&session);
    map.remove("prev");
    judged(&session, signed(&map.with_some("prev", prev), &session.server1.key))
}

/// A seq of 2^53 is no integer of the format, and form comes before place.
fn seqs() -> Vec<Outcome> {
    let at = |seq: u64| on_tip(|entry| place(entry).seq = Seq::new(seq).unwrap());
    assert_eq!(at(5), "ok");
    let chain = session("chain", 2);
    let beyond = fields(chain.head().entry.bytes()).with("seq", 0);
    let bytes = codec::encode_map(&beyond);
    let place = bytes.windows(5).position(|window| window == b"\x63seq\x00").unwrap() + 4;
    let bytes = [&bytes[..place], &[0x1b, 0, 0x20, 0, 0, 0, 0, 0, 0], &bytes[place + 1..]].concat();
    assert_eq!(judged(&chain, bytes), Code::CborIntrange.name());
    [6, 4, 3, 1, (1 << 53) - 1].map(at).to_vec()
}

fn prev_of_another_session() -> Outcome {
    let (ours, theirs) = (session("ours", 1), session("theirs", 1));
    let head = &theirs.head().entry;
    let entry = message(&ours, &ours.owner, |entry| place(entry).prev = head.cid());
    let judged = set(&ours, &[head.clone(), entry.clone()], &[])
        .explain(entry.cid())
        .map_or_else(Outcome::default, |reject| code(reject.code));
    judged.in_file(file(&ours, &[theirs.head(), &Built { entry, payload: None }], &[]))
}

/// A raw block has another codec, which no link to an entry has.
fn prevs_of_another_type() -> Vec<Outcome> {
    let mut session = session("types", 1);
    let owner = session.owner.clone();
    let reference = session.reference(&owner, 1, Reach::Anchors);
    let grant = session.server1.capability.clone().unwrap();
    let on = |control: &Signed<Control>| {
        linked(&session, &[], &message(&session, &owner, |entry| place(entry).prev = control.cid()))
    };
    assert_eq!(with_prev(Some(testing::raw_block("prev").0)), Code::CidCodec.name());
    vec![on(&reference), on(&grant)]
}

fn another_digest() -> Outcome {
    let session = session("digest", 1);
    let entry = &session.head().entry;
    let mut digest = *entry.cid().digest();
    digest[31] ^= 1;
    let asked = Cid::from_parts(Codec::DagCbor, HashKind::Sha256, digest);
    let mut file = file(&session.at(1), &[], &[]);
    write_block(&mut file, &asked, entry.bytes());
    word(Block::check(asked, Arc::clone(entry.bytes()))).in_file(file)
}

/// A path from seq 10^12 down to the genesis, without a fault: what it promises is more than anybody takes.
fn endless_chain() -> Outcome {
    let session = SessionBuilder::new("endless");
    let genesis = &session.entries()[0].entry;
    let seq = |seq: u64| Seq::new(seq).unwrap();
    let mut path = vec![(0, genesis.clone())];
    let seqs: Vec<Seq> = path_seqs(seq(1_000_000_000_000), Seq::ZERO).collect();
    for at in seqs.iter().rev().skip(1) {
        let (below, lower) = path.last().unwrap();
        let is_prev = below + 1 == at.get();
        let prev = if is_prev { lower.cid() } else { EntryCid::of(&at.get().to_be_bytes()) };
        let skips = skip::target(at.get());
        let place = Place {
            genesis: genesis.cid(),
            prev,
            seq: *at,
            epoch: Epoch::ZERO,
            skip: (skips + 1 < at.get())
                .then(|| if skips == *below { lower.cid() } else { EntryCid::of(b"far") }),
        };
        let entry = message(&session, &session.owner, |entry| entry.place = Some(place));
        path.push((at.get(), entry));
    }
    let (want, top) = path.last().unwrap();
    let want = Point { cid: top.cid(), seq: seq(*want) };
    let request =
        RangeRequest { session: session.session(), want, have: Vec::new(), payloads: Payloads::Without };
    let mut check = RangeCheck::new(request, RangeLimits::default()).unwrap();
    let frames: Vec<Arc<[u8]>> = path.iter().rev().map(|(_, entry)| Arc::clone(entry.bytes())).collect();
    word(check.path(&frames).map_err(|violation| violation.reject))
}

fn after_seals() -> Vec<Outcome> {
    let base = session("sealed", 1);
    [&base.server1, &base.owner]
        .map(|party| {
            let mut sealed = base.clone();
            sealed.seal(party);
            linked(&sealed, &[], &message(&sealed, &sealed.owner, |_| {}))
        })
        .to_vec()
}

fn two_seals() -> Outcome {
    let base = session("seals", 1);
    let server = base.server1.clone();
    let mut one = base.clone();
    one.seal(&server);
    let mut later = one.head().entry.value().clone();
    later.ts = testing::ts(60_000);
    let mut other = base.clone();
    other.push(&server, later, None).unwrap();
    let report = audit(&one, &[other.head()], &[], None);
    assert_eq!(report.verdict.word(), "forked");
    let why = report.fork.map_or_else(Outcome::default, |fork| code(fork.branches[0].why));
    why.in_file(file(&one, &[other.head()], &[]))
}

fn gap() -> Outcome {
    let whole = session("gap", 3);
    let told = whole.head().entry.cid();
    let after: Vec<_> = whole.entries()[4..].iter().collect();
    let report = audit(&whole.at(2), &after, &[], Some(told));
    assert_eq!(
        (report.verdict.word(), report.valid_through.map(|mark| mark.seq.get())),
        ("incomplete", Some(2))
    );
    let why = report.first_problem.map_or_else(Outcome::default, |problem| code(problem.reject.code));
    why.in_file(file(&whole.at(2), &after, &[]))
}

/// What is kept of a chain beside it says that its tip skips to itself.
fn self_link() -> Outcome {
    let session = session("index", 2);
    let mut verifier = Verifier::begin(controls(&session, &[]));
    for built in session.entries() {
        verifier.push(Arc::clone(built.entry.bytes()), None).unwrap();
    }
    let state = verifier.state().unwrap().to_bytes();
    let map = fields(&state);
    let mut hops = map.get("hops").unwrap().as_list().unwrap().to_vec();
    hops.insert(0, hops[0].clone());
    word(ChainState::from_bytes(&codec::encode_map(&map.with("hops", Value::List(hops)))))
}

fn skip_is_prev() -> Outcome {
    let session = session("skip", 1);
    let map = head(&session);
    let prev = map.get("prev").unwrap().as_link().unwrap();
    judged(&session, signed(&map.with("skip", prev), &session.server1.key))
}

fn false_skips() -> Vec<Outcome> {
    let mut session = session("skips", 2);
    turn(&mut session, 3);
    let right = session.next_place().skip;
    let owner = session.owner.clone();
    let with = |skip: Option<EntryCid>| {
        let note = sign(
            Entry {
                place: Some(Place { skip, ..session.next_place() }),
                ..session.draft(&owner, Body::Note(Note::Resume), None).0
            },
            &owner.key,
        );
        linked(&session, &[], &note.unwrap())
    };
    assert_eq!(with(right), "ok");
    let entries =
        session.entries()[..session.entries().len() - 1].iter().map(|built| Some(built.entry.cid()));
    entries.chain([None]).filter(|skip| *skip != right).map(with).collect()
}
