//! Signatures and schemas: what one blob's own bytes decide.

use std::sync::Arc;

use throughline_protocol::block::Signed;
use throughline_protocol::code::Code;
use throughline_protocol::codec::{self, Map, Value};
use throughline_protocol::control::Control;
use throughline_protocol::entry::{Body, Entry, PayloadRef, Seal};
use throughline_protocol::id::{EntryCid, Principal, Seq, UnixMillis};
use throughline_protocol::limits;
use throughline_protocol::payload::Payload;
use throughline_protocol::sign::VerifyingKeys;
use throughline_protocol::testing::{self, Built, Reach, SessionBuilder};

use super::super::{Files, hex, hex_array, records};
use super::make::{self, Outcome, bare, head, linked, message, session, signed, verdict, word};
use super::{Row, row};

pub(super) const ROWS: &[Row] = &[
    row("SG01", &["E_SIG"], |_| vec![with_signature(|signature| signature[20] ^= 1)]),
    row("SG02", &["E_SIG"], |_| vec![with_signature(|signature| signature.fill(0))]),
    row("SG03", &["E_SIG"], |_| vec![with_signature(add_group_order)]),
    row("SG04", &["E_KEY_SMALL"], |files| speccheck(files, &[0, 1])),
    row("SG05", &["E_KEY_TORSION"], |files| speccheck(files, &[2])),
    row("SG06", &["E_KEY_TORSION"], |files| speccheck(files, &[3])),
    row("SG07", &["E_KEY_TORSION"], |files| speccheck(files, &[4, 5])),
    row("SG08", &["E_SIG"], |files| speccheck(files, &[6, 7])),
    row("SG09a", &["E_KEY_TORSION"], |files| speccheck(files, &[8, 9])),
    row("SG09b", &["E_SIG"], |_| vec![with_signature(noncanonical_r)]),
    row("SG10", &["E_KEY_NONCANON"], noncanonical_keys),
    row("SG11", &["E_SCHEMA_LEN"], |_| [63, 65].map(|length| judged(with("sig", vec![0; length]))).to_vec()),
    row("SG12a", &["E_KEY_CODEC"], |_| {
        [&[0xec, 1][..], &[0xed, 0], &[0xed, 0x81, 0]].map(|prefix| by_key(prefix, 32)).to_vec()
    }),
    row("SG12b", &["E_SCHEMA_LEN"], |_| [33, 31].map(|length| by_key(&[0xed, 1], length)).to_vec()),
    row("SG13", &["E_SESSION_MISMATCH"], |_| {
        vec![linked(&session("b", 1), &[], &session("a", 1).head().entry)]
    }),
    row("SG14", &["E_TYPE"], another_type),
    row("SG15", &["E_SIG"], |_| vec![signed_draft()]),
    row("SG16", &["forked", "EV_EQUIVOCATION"], |_| two_answers()),
    row("SG17", &["E_SIG", "E_CBOR"], |_| envelope()),
    row("SG19", &["E_KEY_POINT"], |_| vec![by_key(&[0xed, 1, 2], 31)]),
    row("SG20", &["E_SIG"], |_| vec![signature_twice()]),
    row("SC01", &["E_SCHEMA_UNKNOWN"], |_| vec![judged(with("unknown", 1))]),
    row("SC02a", &["E_CBOR_INDEF"], |_| vec![judged(last_value(&[0x9f, 0xff]))]),
    row("SC02b", &["E_CBOR_NONCANON"], |_| vec![judged(last_value(&[0x18, 0x00]))]),
    row("SC03", &["E_SCHEMA_NULL"], |_| {
        ["epoch", "x", "answers"].map(|key| judged(with(key, Value::Null))).to_vec()
    }),
    row("SC04", &["E_SCHEMA_MISSING"], |_| {
        ["ts", "sig", "signer", "seq", "genesis", "payload"].map(without).to_vec()
    }),
    row("SC05a", &["E_CBOR_INTRANGE"], |_| vec![judged(with("ts", -1))]),
    row("SC05b", &["E_CBOR_INTRANGE"], |_| vec![judged(with("ts", 1 << 48))]),
    row("SC05c", &["E_CBOR_FLOAT"], |_| vec![float_ts()]),
    row("SC05d", &["E_SCHEMA_TYPE"], |_| vec![judged(with("ts", "1767225600000"))]),
    row("SC06", &["E_TYPE"], |_| {
        ["SessionMessage", "sessionUserMessage", "SessionUserMessage\0", ""]
            .map(|name| judged(with("type", name)))
            .to_vec()
    }),
    row("SC08", &["E_TOO_BIG"], |_| vec![judged(of_size(limits::ENTRY_BYTES_MAX + 1))]),
    row("SC09", &["E_SCHEMA_TEXT"], unsafe_texts),
    row("SC10", &["E_TOO_MANY_LINKS"], |_| vec![many_links()]),
    row("TC01", &["E_TOO_BIG"], |_| vec![large_payload(), judged(of_size(limits::ENTRY_BYTES_MAX + 1))]),
    row("TC02", &["E_SCHEMA_UNKNOWN"], |_| ["input", "output", "content"].map(words_in_entry).to_vec()),
    row("PL02a", &["E_SCHEMA_MISSING"], |_| vec![salted(None)]),
    row("PL02b", &["E_SCHEMA_LEN"], |_| [31, 33].map(|length| salted(Some(vec![1; length]))).to_vec()),
    row("SE01", &["E_SEAL"], seals),
    row("VE01", &["E_VERSION"], |_| vec![judged(with("v", 2))]),
];

/// A session whose newest entry is a message of the owner.
fn asked() -> SessionBuilder {
    let mut session = session("blobs", 1);
    let owner = session.owner.clone();
    session.user(&owner, "a question");
    session
}

/// What becomes of bytes in place of that message.
fn judged(bytes: impl Into<Arc<[u8]>>) -> Outcome {
    make::judged(&asked(), bytes)
}

/// The newest entry with another value for one key, signed again unless that is its signature or signer.
fn with(key: &'static str, value: impl Into<Value<'static>>) -> Vec<u8> {
    let session = asked();
    let map = head(&session).with(key, value);
    if key == "sig" { codec::encode_map(&map) } else { signed(&map, &session.owner.key) }
}

fn without(key: &'static str) -> Outcome {
    let mut map = head(&asked());
    map.remove(key).unwrap();
    judged(codec::encode_map(&map))
}

fn with_signature(change: impl FnOnce(&mut [u8; 64])) -> Outcome {
    let map = head(&asked());
    let mut signature: [u8; 64] = map.get("sig").unwrap().as_bytes().unwrap().try_into().unwrap();
    change(&mut signature);
    judged(codec::encode_map(&map.with("sig", signature.to_vec())))
}

/// Adds the order of the group, 2^252 + 27742317777372353535851937790883648493, to S.
fn add_group_order(signature: &mut [u8; 64]) {
    const ORDER: &str = "edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010";
    let order = data_encoding::HEXLOWER.decode(ORDER.as_bytes()).unwrap();
    let mut carry = 0;
    for (byte, add) in signature[32..].iter_mut().zip(order) {
        let sum = u16::from(*byte) + u16::from(add) + carry;
        [*byte, _] = sum.to_le_bytes();
        carry = sum >> 8;
    }
    assert_eq!(carry, 0);
}

/// R as y = p + 1, which stands for the identity.
fn noncanonical_r(signature: &mut [u8; 64]) {
    signature[..32].fill(0xff);
    (signature[0], signature[31]) = (0xee, 0x7f);
}

fn speccheck(files: &Files, cases: &[usize]) -> Vec<Outcome> {
    let file = files.json("ed25519/speccheck-cases.json");
    let judge = |case: &usize| {
        let case = &records(&file, 12)[*case];
        let key = Principal::from_key(hex_array(case, "pub_key"));
        word(VerifyingKeys::default().verify(&key, &hex(case, "message"), &hex_array(case, "signature")))
    };
    cases.iter().map(judge).collect()
}

/// Those that are no point at all are so by an earlier check.
fn noncanonical_keys(files: &Files) -> Vec<Outcome> {
    let file = files.json("ed25519/noncanonical-keys.json");
    let keys = records(&file, 38).iter().map(|record| by_key_bytes(hex_array::<32>(record, "key")));
    let mut codes: Vec<Outcome> = keys.filter(|code| *code != Code::KeyPoint.name()).collect();
    assert!(codes.len() >= 19, "{codes:?}");
    codes.extend(speccheck(files, &[10, 11]));
    codes
}

fn by_key_bytes(key: [u8; 32]) -> Outcome {
    judged(with("signer", [&[0xed, 1][..], &key].concat()))
}

/// An entry by a signer of these bytes and zeros.
fn by_key(prefix: &[u8], zeros: usize) -> Outcome {
    judged(with("signer", [prefix, &vec![0; zeros]].concat()))
}

fn another_type(_: &Files) -> Vec<Outcome> {
    let mut session = asked();
    let owner = session.owner.clone();
    let reference = session.reference(&owner, 1, Reach::Anchors);
    let mut keys = VerifyingKeys::default();
    vec![
        word(Signed::<Entry>::check(Arc::clone(reference.bytes()), &mut keys)),
        word(Signed::<Control>::check(Arc::clone(session.head().entry.bytes()), &mut keys)),
    ]
}

/// Signed while the field was not there, instead of zeroed.
fn signed_draft() -> Outcome {
    let session = asked();
    let mut map = head(&session);
    map.remove("sig");
    let signature = session.owner.key.sign(&codec::encode_map(&map));
    judged(codec::encode_map(&map.with("sig", signature.to_vec())))
}

/// Another time, so another CID, over the same content.
fn two_answers() -> Vec<Outcome> {
    let base = session("twice", 2);
    let server = base.server1.clone();
    let (mut left, mut right) = (base.clone().branch("left"), base.clone().branch("right"));
    left.response(&server, "one", &[]);
    right.response(&server, "one", &[]);
    let report = make::audit(&left, &[right.head()], &[], None);
    let why = report.fork.map(|fork| make::code(fork.branches[0].why));
    vec![verdict(&left, &[right.head()], &[]), why.unwrap_or_default()]
}

/// What the same key signed for a stream: as a signature of the entry, and as its bytes.
fn envelope() -> Vec<Outcome> {
    let session = asked();
    let key = &session.owner.key;
    let domain = b"\x1blibp2p-signed-envelope";
    let signature = key.sign(&[&domain[..], session.head().entry.bytes()].concat());
    let as_signature = judged(with("sig", signature.to_vec()));
    // Field 1, the key; field 5, the signature.
    let bytes = [&[0x0a, 0x24, 0x08, 0x01, 0x12, 0x20][..], key.principal().key(), &[0x2a, 0x40], &signature]
        .concat();
    let as_bytes = judged(bytes);
    let kind = as_bytes.word.get(..6).unwrap_or_default().to_owned();
    vec![as_signature, Outcome { word: kind, ..as_bytes }]
}

/// The signature's bytes stand in another field too; it was made with both of them zeroed.
fn signature_twice() -> Outcome {
    let session = asked();
    let both = |bytes: Vec<u8>| {
        let copy = Map::new().with("copy", bytes.clone());
        codec::encode_map(&head(&session).with("sig", bytes).with("x", copy))
    };
    judged(both(session.owner.key.sign(&both(vec![0; 64])).to_vec()))
}

/// The bytes of an entry whose last field, which no entry has, is this.
fn last_value(value: &[u8]) -> Vec<u8> {
    let mut bytes = codec::encode_map(&head(&asked()).with("longer than any key", 0));
    assert_eq!(bytes.pop(), Some(0));
    bytes.extend(value);
    bytes
}

fn float_ts() -> Outcome {
    let mut bytes = asked().head().entry.bytes().to_vec();
    let at = bytes.windows(4).position(|window| window == b"\x62ts\x1b").unwrap();
    bytes[at + 3] = 0xfb;
    judged(bytes)
}

/// An entry of this many bytes.
fn of_size(size: usize) -> Vec<u8> {
    let padded = |padding: usize| with("x", Map::new().with("a", vec![0; padding]));
    let overhead = padded(1_000).len() - 1_000;
    let bytes = padded(size - overhead);
    assert_eq!(bytes.len(), size);
    bytes
}

fn unsafe_texts(_: &Files) -> Vec<Outcome> {
    let session = session("texts", 1);
    let call = |name: &'static str, id: &'static str| {
        let call = Map::new().with("name", name).with("callId", id);
        let map = head(&session).with("calls", vec![Value::Map(call)]);
        make::judged(&session, signed(&map, &session.server1.key))
    };
    vec![
        call("bash", "a\0"),
        call("bash", "a\u{1b}"),
        call("bash", "\u{202e}a"),
        call("ba\0sh", "a"),
        call("ba\nsh", "a"),
        call("ba\u{202e}sh", "a"),
        call("ba\u{9b}sh", "a"),
    ]
}

/// 65,536 links take 2.6 MB, and size comes before everything: as many as an entry has room for.
fn many_links() -> Outcome {
    let links = |count: usize| {
        let links: Vec<Value<'static>> =
            (0..count).map(|at| EntryCid::of(&at.to_be_bytes()).into()).collect();
        let mut map =
            head(&asked()).with("type", "SessionNote").with("kind", "redaction").with("entries", links);
        map.remove("payload");
        judged(signed(&map, &testing::key("account")))
    };
    assert_eq!(links(65_536), Code::TooBig.name());
    links(380)
}

fn large_payload() -> Outcome {
    let entry = asked().head().entry.value().clone();
    word(Payload::check(&entry, vec![0; limits::PAYLOAD_BYTES_MAX + 1]))
}

fn words_in_entry(key: &'static str) -> Outcome {
    let mut session = session("words", 1);
    let (server, response) = (session.server1.clone(), session.head().entry.cid());
    session.tool(&server, response, "call", "done");
    make::judged(&session, signed(&head(&session).with(key, "words"), &server.key))
}

/// A message's payload with another salt.
fn salted(salt: Option<Vec<u8>>) -> Outcome {
    let session = asked();
    let payload = Map::new().with("body", Vec::<Value<'_>>::new()).with_some("salt", salt);
    let bytes = codec::encode_map(&payload);
    let named = PayloadRef { cid: EntryCid::of(&bytes), size: bytes.len() as u64 };
    let entry = message(&session, &session.owner, |entry| entry.payload = Some(named));
    let judged = word(Payload::check(entry.value(), bytes.clone()));
    let built = Built { entry, payload: Some(bytes.into()) };
    judged.in_file(make::file(&session, &[&built], &[]))
}

fn seals(_: &Files) -> Vec<Outcome> {
    let base = session("seal", 2);
    let server = base.server1.clone();
    let mut whole = base.clone();
    whole.seal(&server);
    let Body::Seal(right) = whole.head().entry.value().body.clone() else { unreachable!("it is a seal") };
    let sealed = |change: &dyn Fn(&mut Seal)| {
        let mut seal = right.clone();
        change(&mut seal);
        linked(&base, &[], &bare(&base, &server, Body::Seal(seal), |_| {}))
    };
    assert_eq!(sealed(&|_| {}), "ok");
    let later = |time: UnixMillis| UnixMillis::new(time.get() + 1).unwrap();
    vec![
        sealed(&|seal| seal.count += 1),
        sealed(&|seal| seal.count = Seq::ZERO.get()),
        sealed(&|seal| seal.participants.reverse()),
        sealed(&|seal| seal.participants.truncate(1)),
        sealed(&|seal| seal.participants.push(Principal::from_key([0xff; 32]))),
        sealed(&|seal| seal.first_ts = later(seal.first_ts)),
        sealed(&|seal| seal.last_ts = later(seal.last_ts)),
    ]
}
