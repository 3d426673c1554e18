use std::collections::BTreeSet;

use proptest::prelude::*;

use super::append::{Accepted, AppendAnswer, AppendRequest, Base};
use super::chain::{
    ChainAnswer, ChainAsk, ChainRequest, EntryAt, EntryItem, HeadState, OwnerState, Payloads, RangeAsk,
};
use super::handoff::{
    HandoffAnswer, HandoffRequest, HandoffState, HandoffStatus, HandoffStep, MoveId, ToolState,
};
use super::*;
use crate::id::{Cid, Codec, EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};
use crate::verify::{Inventory, LinkCounts};

fn bytes(length: usize) -> Arc<[u8]> {
    Arc::from(vec![7; length])
}

fn entry(label: &str) -> EntryCid {
    EntryCid::of(label.as_bytes())
}

fn session() -> SessionId {
    SessionId::of_genesis(entry("genesis"))
}

fn owner() -> Principal {
    Principal::from_key([1; 32])
}

fn seq(value: u64) -> Seq {
    Seq::new(value).unwrap()
}

fn epoch(value: u64) -> Epoch {
    Epoch::new(value).unwrap()
}

fn owner_state() -> OwnerState {
    OwnerState::of(owner(), &BTreeSet::from([[3; 32], [2; 32]]))
}

fn chain_requests() -> Vec<ChainRequest> {
    let credentials = Credentials { auth: Some(bytes(232)), grants: vec![bytes(200), bytes(210)] };
    let asks = [
        ChainAsk::Heads { owners: vec![owner_state()], sessions: vec![session()] },
        ChainAsk::Heads { owners: Vec::new(), sessions: Vec::new() },
        ChainAsk::Control { owner: owner(), have: vec![[2; 32], [3; 32]] },
        ChainAsk::Range(RangeAsk {
            session: session(),
            want: EntryAt { cid: entry("want"), seq: seq(57) },
            have: vec![entry("tip"), entry("genesis")],
            payloads: Payloads::With,
        }),
        ChainAsk::Blobs { cids: vec![Cid::sha256(Codec::Raw, b"a"), entry("p").cid()] },
        ChainAsk::Announce { message: bytes(300) },
    ];
    asks.into_iter()
        .flat_map(|ask| {
            [
                ChainRequest { credentials: Credentials::default(), ask: ask.clone() },
                ChainRequest { credentials: credentials.clone(), ask },
            ]
        })
        .collect()
}

fn chain_answers() -> Vec<ChainAnswer> {
    let head = |epoch, reference| HeadState {
        session: session(),
        head: entry("head"),
        seq: seq(57),
        epoch,
        reference,
    };
    vec![
        ChainAnswer::Heads {
            owners: vec![owner_state()],
            sessions: vec![head(Epoch::ZERO, None), head(epoch(2), Some(bytes(300)))],
        },
        ChainAnswer::Path(vec![bytes(400), bytes(401)]),
        ChainAnswer::Control(vec![bytes(200)]),
        ChainAnswer::Entries(vec![
            EntryItem { entry: bytes(400), payload: Some(bytes(900)) },
            EntryItem { entry: bytes(300), payload: None },
        ]),
        ChainAnswer::Blob { cid: Cid::sha256(Codec::Raw, b"a"), bytes: Some(bytes(1)) },
        ChainAnswer::Blob { cid: Cid::sha256(Codec::Raw, b"a"), bytes: None },
        ChainAnswer::End,
        ChainAnswer::Error(WireError::with_detail(Code::Quota, "too many sessions")),
        ChainAnswer::Error(WireError {
            code: ErrorCode::Unknown("E_LATER".into()),
            detail: None,
            clock: None,
        }),
        ChainAnswer::Error(WireError::apart(Apart {
            theirs: UnixMillis::default(),
            ours: UnixMillis::new(1_000_000).unwrap(),
        })),
    ]
}

fn append_answers() -> Vec<AppendAnswer> {
    let base = Base {
        session: session(),
        prev: entry("head"),
        seq: seq(58),
        skip: Some(entry("skip")),
        epoch: epoch(1),
        holder: Some(owner()),
        not_before: UnixMillis::new(1_767_225_600_000).unwrap(),
    };
    vec![
        AppendAnswer::Accepted(Accepted {
            head: entry("new"),
            seq: seq(58),
            epoch: epoch(1),
            replayed: true,
        }),
        AppendAnswer::Accepted(Accepted {
            head: entry("new"),
            seq: seq(58),
            epoch: Epoch::ZERO,
            replayed: false,
        }),
        AppendAnswer::Conflict { base, between: vec![bytes(300)] },
        AppendAnswer::Conflict {
            base: Base { skip: None, epoch: Epoch::ZERO, holder: None, ..base },
            between: Vec::new(),
        },
        AppendAnswer::Error(WireError::new(Code::NotHolder)),
    ]
}

fn handoff_requests() -> Vec<HandoffRequest> {
    let steps = [
        HandoffStep::Freeze { epoch: epoch(1) },
        HandoffStep::Freeze { epoch: Epoch::ZERO },
        HandoffStep::Offer {
            epoch: epoch(2),
            seq: seq(40),
            head: entry("head"),
            providers: vec!["/ip4/192.0.2.1/tcp/4001".into()],
        },
        HandoffStep::Prepare,
        HandoffStep::Activate { handoff: bytes(400) },
        HandoffStep::Retire { handoff: bytes(400), receipt: bytes(410) },
        HandoffStep::Abort,
        HandoffStep::Status,
    ];
    steps
        .into_iter()
        .map(|step| HandoffRequest {
            credentials: Credentials { auth: Some(bytes(232)), grants: Vec::new() },
            move_id: MoveId::from_bytes([9; 16]),
            session: session(),
            step,
        })
        .collect()
}

fn handoff_answers() -> Vec<HandoffAnswer> {
    let tools = vec![
        ToolState { name: "bash".into(), available: true },
        ToolState { name: "publish".into(), available: false },
    ];
    let inventory = Inventory {
        payloads: LinkCounts { here: 40, missing: 1, withdrawn: 2 },
        files: LinkCounts { here: 0, missing: 1, withdrawn: 0 },
        lacking: vec![entry("words").cid(), Cid::sha256(Codec::DagPb, b"file")],
    };
    let mut answers: Vec<HandoffAnswer> = [
        HandoffState::Active { receipt: None },
        HandoffState::Active { receipt: Some(bytes(410)) },
        HandoffState::Retired,
        HandoffState::Fetching { bytes: 0 },
        HandoffState::Fetching { bytes: 70_000 },
        HandoffState::Offered,
        HandoffState::Prepared { tools, model: Some("claude-x".into()), inventory: None },
        HandoffState::Prepared { tools: Vec::new(), model: None, inventory: Some(inventory) },
        HandoffState::Refused { reason: "no-model".into() },
    ]
    .into_iter()
    .map(|state| HandoffAnswer::State(HandoffStatus::of(state)))
    .collect();
    answers.push(HandoffAnswer::State(HandoffStatus {
        state: HandoffState::Frozen,
        epoch: epoch(1),
        seq: seq(40),
        head: Some(entry("head")),
    }));
    answers.push(HandoffAnswer::Error(WireError::new(Code::EpochOld)));
    answers
}

fn announcements() -> Vec<announce::Message> {
    let hint = announce::Hint {
        seq: seq(2),
        epoch: epoch(1),
        iroh: Some([5; 32]),
        providers: vec!["/dns4/node.example/tcp/4001".into()],
    };
    vec![
        announce::Message { blob: bytes(300), control: vec![bytes(200)], hint },
        announce::Message { blob: bytes(300), control: Vec::new(), hint: announce::Hint::default() },
    ]
}

fn append_requests() -> Vec<AppendRequest> {
    vec![
        AppendRequest {
            credentials: Credentials { auth: None, grants: vec![bytes(200)] },
            entry: bytes(400),
            payload: Some(bytes(120)),
        },
        AppendRequest { credentials: Credentials::default(), entry: bytes(400), payload: None },
    ]
}

fn samples() -> Vec<Vec<u8>> {
    fn bodies<M: Message>(messages: Vec<M>) -> Vec<Vec<u8>> {
        messages.iter().map(Message::encode_body).collect()
    }
    [
        bodies(chain_requests()),
        bodies(chain_answers()),
        bodies(append_requests()),
        bodies(append_answers()),
        bodies(handoff_requests()),
        bodies(handoff_answers()),
        bodies(announcements()),
    ]
    .concat()
}

fn assert_round_trip<M: Message + PartialEq + std::fmt::Debug>(messages: Vec<M>) {
    for message in messages {
        let body = message.encode_body();
        assert_eq!(M::decode_body(&body).as_ref(), Ok(&message));
        let frame = message.encode_frame().unwrap();
        let length = frame::read_length(&frame).unwrap().unwrap();
        assert_eq!(&frame[length.header_bytes..], &body[..]);
        assert_eq!(length.body_bytes, body.len());
    }
}

#[test]
fn messages_round_trip() {
    assert_round_trip(chain_requests());
    assert_round_trip(chain_answers());
    assert_round_trip(append_requests());
    assert_round_trip(append_answers());
    assert_round_trip(handoff_requests());
    assert_round_trip(handoff_answers());
    assert_round_trip(announcements());
}

/// What is read can be written; what is written is what came, without the keys that were not known.
fn assert_stable<M: Message + PartialEq + std::fmt::Debug>(body: &[u8]) {
    let Ok(message) = M::decode_body(body) else { return };
    let written = message.encode_body();
    assert!(written == body || written.len() < body.len(), "{message:?}");
    assert_eq!(M::decode_body(&written), Ok(message));
}

fn assert_all_stable(body: &[u8]) {
    assert_stable::<ChainRequest>(body);
    assert_stable::<ChainAnswer>(body);
    assert_stable::<AppendRequest>(body);
    assert_stable::<AppendAnswer>(body);
    assert_stable::<HandoffRequest>(body);
    assert_stable::<HandoffAnswer>(body);
    assert_stable::<announce::Message>(body);
}

proptest! {
    #[test]
    fn random_bytes_are_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        assert_all_stable(&body);
        let _ = frame::read_length(&body);
    }

    #[test]
    fn mutated_frames_are_read_or_refused(
        sample in proptest::sample::select(samples()),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut body = sample;
        for (at, byte) in edits {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len()));
        }
        assert_all_stable(&body);
    }
}

fn code_of<M: Message + std::fmt::Debug>(map: &Map<'_>) -> Code {
    M::decode_body(&encode_map(map)).unwrap_err().code
}

#[test]
fn unknown_keys_are_ignored_at_every_level_and_unknown_words_are_not() {
    for request in chain_requests() {
        let map = request.to_map().with("later", vec![Value::from(true)]);
        assert_eq!(ChainRequest::decode_body(&encode_map(&map)), Ok(request));
    }
    let later = Map::new().with("cid", entry("want")).with("seq", 57_i64).with("later", 1_i64);
    let range = chain_requests()[6].clone();
    let map = range.to_map().with("want", later);
    assert_eq!(ChainRequest::decode_body(&encode_map(&map)), Ok(range));

    assert_eq!(code_of::<ChainRequest>(&Map::new().with("op", "later")), Code::SchemaType);
    assert_eq!(code_of::<ChainRequest>(&Map::new()), Code::SchemaMissing);
    assert_eq!(code_of::<ChainAnswer>(&Map::new().with("k", 1_i64)), Code::SchemaType);
    assert_eq!(code_of::<AppendAnswer>(&Map::new().with("k", "end")), Code::SchemaType);
    assert_eq!(code_of::<HandoffAnswer>(&Map::new().with("k", Value::Null)), Code::SchemaNull);
}

#[test]
fn every_required_field_is_required() {
    fn assert_required<M: Message + std::fmt::Debug>(message: &M, optional: &[&str]) {
        let map = message.to_map();
        let keys: Vec<String> = map.iter().map(|(key, _)| key.to_owned()).collect();
        for key in keys {
            let mut without = map.clone();
            without.remove(&key);
            let read = M::decode_body(&encode_map(&without));
            if optional.contains(&key.as_str()) {
                assert!(read.is_ok(), "{key} of {message:?}");
            } else {
                assert_eq!(read.unwrap_err().code, Code::SchemaMissing, "{key} of {message:?}");
            }
            let null = map.clone().with(key.clone(), Value::Null);
            assert_eq!(M::decode_body(&encode_map(&null)).unwrap_err().code, Code::SchemaNull, "{key}");
        }
    }
    for message in chain_requests() {
        assert_required(&message, &["auth", "grants"]);
    }
    for message in chain_answers() {
        assert_required(&message, &["bytes", "detail", "clock"]);
    }
    for message in append_requests() {
        assert_required(&message, &["payload", "grants"]);
    }
    for message in append_answers() {
        assert_required(&message, &["epoch", "replayed"]);
    }
    for message in handoff_requests() {
        let is_freeze = matches!(message.step, HandoffStep::Freeze { .. });
        assert_required(&message, if is_freeze { &["auth", "epoch"] } else { &["auth"] });
    }
    for message in handoff_answers() {
        assert_required(&message, &["epoch", "seq", "receipt", "model", "bytes", "inventory"]);
    }
    for message in announcements() {
        assert_required(&message, &["control", "hint"]);
    }
}

#[test]
fn spelled_out_defaults_are_refused() {
    let accepted = &append_answers()[1];
    assert_eq!(code_of::<AppendAnswer>(&accepted.to_map().with("epoch", 0_i64)), Code::CborNoncanon);
    assert_eq!(code_of::<AppendAnswer>(&accepted.to_map().with("replayed", false)), Code::CborNoncanon);
    let request = &chain_requests()[0];
    let grants = request.to_map().with("grants", Vec::<Value<'_>>::new());
    assert_eq!(code_of::<ChainRequest>(&grants), Code::CborNoncanon);
    let announcement = &announcements()[1];
    let hint = announcement.to_map().with("hint", Map::new());
    assert_eq!(code_of::<announce::Message>(&hint), Code::CborNoncanon);
}

#[test]
fn lists_and_blobs_are_bounded() {
    let links = |count: usize| (0..count).map(|_| Value::from(entry("x"))).collect::<Vec<_>>();
    let blobs =
        |count: usize, size: usize| (0..count).map(|_| Value::from(vec![0_u8; size])).collect::<Vec<_>>();
    let requests = chain_requests();
    let (heads, control, range) = (requests[0].to_map(), requests[4].to_map(), requests[6].to_map());
    let asked = requests[8].to_map();
    for (map, key, value, max) in [
        (&heads, "sessions", links(1_025), 1_024),
        (&control, "have", blobs(4_097, 32), 4_096),
        (&range, "have", links(65), 64),
        (&asked, "cids", links(65), 64),
        (&asked, "grants", blobs(5, 10), 4),
    ] {
        let mut value = value;
        let over = map.clone().with(key, value.clone());
        assert_eq!(code_of::<ChainRequest>(&over), Code::SchemaLen, "{key}");
        value.truncate(max);
        let most = map.clone().with(key, value);
        assert!(ChainRequest::decode_body(&encode_map(&most)).is_ok(), "{key}");
    }

    let answer = |k: &'static str, key: &'static str, value: Vec<Value<'static>>| {
        ChainAnswer::decode_body(&encode_map(&Map::new().with("k", k).with(key, value)))
            .map_err(|reject| reject.code)
    };
    assert_eq!(answer("path", "entries", blobs(65, 1)), Err(Code::SchemaLen));
    assert_eq!(answer("control", "blobs", blobs(257, 1)), Err(Code::SchemaLen));
    assert_eq!(answer("path", "entries", blobs(1, 16_385)), Err(Code::TooBig));
    assert_eq!(answer("control", "blobs", blobs(1, 8_193)), Err(Code::TooBig));
    assert!(answer("path", "entries", blobs(64, 16_384)).is_ok());
    assert!(answer("control", "blobs", blobs(256, 8_192)).is_ok());

    let block = |size| Map::new().with("k", "blob").with("cid", entry("x")).with("bytes", vec![0_u8; size]);
    assert!(ChainAnswer::decode_body(&encode_map(&block(limits::RAW_BLOCK_BYTES_MAX))).is_ok());
    assert_eq!(code_of::<ChainAnswer>(&block(limits::RAW_BLOCK_BYTES_MAX + 1)), Code::TooBig);
}

#[test]
fn the_longest_lists_fit_into_a_frame() {
    let item = EntryItem { entry: bytes(200), payload: Some(bytes(1)) };
    let answer = ChainAnswer::Entries(vec![item; limits::ENTRIES_FRAME_MAX]);
    assert_eq!(ChainAnswer::decode_body(&answer.encode_body()), Ok(answer));
    let head = HeadState {
        session: session(),
        head: entry("head"),
        seq: seq(57),
        epoch: epoch(1),
        reference: Some(bytes(450)),
    };
    let answer = ChainAnswer::Heads {
        owners: vec![owner_state(); limits::HEADS_OWNERS_MAX],
        sessions: vec![head; limits::HEADS_SESSIONS_MAX],
    };
    assert_eq!(ChainAnswer::decode_body(&answer.encode_body()), Ok(answer));
}

#[test]
fn a_frozen_session_tells_its_head() {
    let answer = HandoffAnswer::State(HandoffStatus::of(HandoffState::Frozen));
    assert_eq!(code_of::<HandoffAnswer>(&answer.to_map()), Code::SchemaMissing);
}

#[test]
fn error_details_lose_what_a_terminal_would_obey() {
    let long = format!("\u{1b}[2J{}", "é".repeat(limits::ERROR_DETAIL_BYTES_MAX));
    let error = WireError::with_detail(Code::Quota, &long);
    let detail = error.detail().unwrap();
    assert!(detail.starts_with("[2J") && detail.len() <= limits::ERROR_DETAIL_BYTES_MAX);
    assert_round_trip(vec![ChainAnswer::Error(error)]);
    let hostile = Map::new().with("k", "error").with("code", "E_SIG").with("detail", "a\u{1b}[2J");
    assert_eq!(code_of::<ChainAnswer>(&hostile), Code::SchemaText);
}

#[test]
fn long_answers_are_cut_into_frames() {
    let item = |size| EntryItem { entry: bytes(400), payload: Some(bytes(size)) };
    let items: Vec<EntryItem> = (0..40).map(|n| item(if n == 20 { 1_048_576 } else { 100_000 })).collect();
    let frames: Vec<ChainAnswer> = pack(ChainAnswer::Entries, items.clone()).collect();
    assert!(frames.len() > 4);
    let mut back = Vec::new();
    for frame in frames {
        let length = frame.encode_body().len();
        let ChainAnswer::Entries(held) = ChainAnswer::decode_body(&frame.encode_body()).unwrap() else {
            panic!("another kind of frame");
        };
        assert!(length <= limits::ENTRIES_TARGET_BYTES || held.len() == 1, "{length}");
        assert!(length <= limits::FRAME_BYTES_MAX);
        back.extend(held);
    }
    assert_eq!(back, items);

    let small = vec![EntryItem { entry: bytes(1), payload: None }; limits::ENTRIES_TARGET + 1];
    assert_eq!(pack(ChainAnswer::Entries, small).count(), 2);
    assert_eq!(pack(ChainAnswer::Path, vec![bytes(300); limits::LOCATOR_MAX]).count(), 1);
    assert_eq!(pack(ChainAnswer::Control, Vec::new()).count(), 0);
}

#[test]
fn digests_are_over_ascending_hashes() {
    let none = chain::control_digest(&BTreeSet::new());
    assert_eq!(none, crate::block::sha256(b""));
    let two = chain::control_digest(&BTreeSet::from([[3; 32], [2; 32]]));
    assert_eq!(two, crate::block::sha256(&[[2; 32], [3; 32]].concat()));
}
