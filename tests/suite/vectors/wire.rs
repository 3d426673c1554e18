//! Frames, announcements, tickets and the blobs in them: built from the values that each vector decodes to, byte for byte, and
//! read back.

use std::sync::Arc;

use serde_json::Value as Json;
use throughline_protocol::block::Signed;
use throughline_protocol::build::{self, Writable};
use throughline_protocol::code::Code;
use throughline_protocol::control::{Capability, Ref};
use throughline_protocol::entry::Entry;
use throughline_protocol::id::{Cid, EntryCid, Epoch, Principal, Seq, SessionId, UnixMillis};
use throughline_protocol::sign::{SigningKey, VerifyingKeys};
use throughline_protocol::ticket::{PeerTicket, SessionTicket, Ticket};
use throughline_protocol::verify::{Inventory, LinkCounts};
use throughline_protocol::wire::announce::{self, Acting, News};
use throughline_protocol::wire::append::{Accepted, AppendAnswer, AppendRequest, Base};
use throughline_protocol::wire::chain::{
    ChainAnswer, ChainAsk, ChainRequest, EntryAt, EntryItem, HeadState, OwnerState, Payloads, RangeAsk,
};
use throughline_protocol::wire::handoff::{
    HandoffAnswer, HandoffRequest, HandoffState, HandoffStatus, HandoffStep, MoveId, ToolState,
};
use throughline_protocol::wire::{self, Credentials, Message, WireError, frame, proof};

use super::{Faults, Files, hex, hex_array, records, text};

pub(super) fn check(files: &Files) {
    let vectors = files.json("session/frames.json");
    let mut faults = Faults::default();
    for record in records(&vectors["frames"], 49) {
        check_frame(record, &mut faults);
    }
    for record in records(&vectors["announcements"], 4) {
        check_announcement(record, &mut faults);
    }
    for record in records(&vectors["tickets"], 4) {
        check_ticket(record, &mut faults);
    }
    for record in records(&vectors["blobs"], 7) {
        check_blob(record, &mut faults);
    }
    check_proofs(&vectors, &mut faults);
    check_http_bodies(&vectors, &mut faults);
    check_negatives(&files.json("session/negative.json"), &mut faults);
    faults.assert_none();
}

// DAG-JSON, as the vectors hold it.

fn bytes(value: &Json) -> Arc<[u8]> {
    let text = value["/"]["bytes"].as_str().unwrap_or_else(|| panic!("no bytes in {value}"));
    data_encoding::BASE64_NOPAD.decode(text.as_bytes()).unwrap().into()
}

fn fixed<const N: usize>(value: &Json) -> [u8; N] {
    bytes(value)[..].try_into().unwrap()
}

fn maybe_bytes(value: &Json) -> Option<Arc<[u8]>> {
    (!value.is_null()).then(|| bytes(value))
}

fn list<T>(value: &Json, read: impl Fn(&Json) -> T) -> Vec<T> {
    value.as_array().into_iter().flatten().map(read).collect()
}

fn cid(value: &Json) -> Cid {
    text(value, "/").parse().unwrap()
}

fn entry(value: &Json) -> EntryCid {
    EntryCid::try_from(cid(value)).unwrap()
}

fn maybe_entry(value: &Json) -> Option<EntryCid> {
    (!value.is_null()).then(|| entry(value))
}

fn session(value: &Json) -> SessionId {
    SessionId::of_genesis(entry(value))
}

fn principal(value: &Json) -> Principal {
    Principal::from_bytes(&bytes(value)).unwrap()
}

fn seq(value: &Json) -> Seq {
    Seq::new(value.as_u64().unwrap_or(0)).unwrap()
}

fn epoch(value: &Json) -> Epoch {
    Epoch::new(value.as_u64().unwrap_or(0)).unwrap()
}

fn string(value: &Json) -> String {
    value.as_str().unwrap().to_owned()
}

fn maybe_string(value: &Json) -> Option<String> {
    value.as_str().map(str::to_owned)
}

// Frames.

fn check_frame(record: &Json, faults: &mut Faults) {
    let decoded = &record["decoded"];
    let is_request = match text(record, "direction") {
        "request" => true,
        "answer" => false,
        other => panic!("direction {other}"),
    };
    match (text(record, "stream"), is_request) {
        (wire::CHAIN_PROTOCOL, true) => compare(record, &chain_request(decoded), faults),
        (wire::CHAIN_PROTOCOL, false) => compare(record, &chain_answer(decoded), faults),
        (wire::APPEND_PROTOCOL, true) => compare(record, &append_request(decoded), faults),
        (wire::APPEND_PROTOCOL, false) => compare(record, &append_answer(decoded), faults),
        (wire::HANDOFF_PROTOCOL, true) => compare(record, &handoff_request(decoded), faults),
        (wire::HANDOFF_PROTOCOL, false) => compare(record, &handoff_answer(decoded), faults),
        (other, _) => panic!("stream {other}"),
    }
}

fn compare<M: Message + PartialEq + std::fmt::Debug>(record: &Json, message: &M, faults: &mut Faults) {
    let name = text(record, "name");
    let (frame_bytes, body) = (hex(record, "frame_hex"), hex(record, "body_hex"));
    faults.equal(name, message.encode_body(), body.clone());
    faults.equal(name, message.encode_frame().as_deref(), Ok(&frame_bytes[..]));
    faults.equal(name, M::decode_body(&body).as_ref(), Ok(message));
    let length = frame::read_length(&frame_bytes).unwrap().unwrap();
    faults.equal(name, length.body_bytes, body.len());
    faults.equal(name, &frame_bytes[length.header_bytes..], &body[..]);
}

fn credentials(map: &Json) -> Credentials {
    Credentials { auth: maybe_bytes(&map["auth"]), grants: list(&map["grants"], bytes) }
}

fn owner_state(map: &Json) -> OwnerState {
    OwnerState {
        owner: principal(&map["owner"]),
        count: map["count"].as_u64().unwrap(),
        digest: fixed(&map["digest"]),
    }
}

fn chain_request(map: &Json) -> ChainRequest {
    let ask = match text(map, "op") {
        "heads" => ChainAsk::Heads {
            owners: list(&map["owners"], owner_state),
            sessions: list(&map["sessions"], session),
        },
        "control" => ChainAsk::Control { owner: principal(&map["owner"]), have: list(&map["have"], fixed) },
        "range" => ChainAsk::Range(RangeAsk {
            session: session(&map["genesis"]),
            want: EntryAt { cid: entry(&map["want"]["cid"]), seq: seq(&map["want"]["seq"]) },
            have: list(&map["have"], entry),
            payloads: if map["payloads"] == true { Payloads::With } else { Payloads::Without },
        }),
        "blobs" => ChainAsk::Blobs { cids: list(&map["cids"], cid) },
        "announce" => ChainAsk::Announce { message: bytes(&map["message"]) },
        other => panic!("op {other}"),
    };
    ChainRequest { credentials: credentials(map), ask }
}

fn chain_answer(map: &Json) -> ChainAnswer {
    match text(map, "k") {
        "heads" => ChainAnswer::Heads {
            owners: list(&map["owners"], owner_state),
            sessions: list(&map["sessions"], |head| HeadState {
                session: session(&head["genesis"]),
                head: entry(&head["head"]),
                seq: seq(&head["seq"]),
                epoch: epoch(&head["epoch"]),
                reference: maybe_bytes(&head["ref"]),
            }),
        },
        "path" => ChainAnswer::Path(list(&map["entries"], bytes)),
        "control" => ChainAnswer::Control(list(&map["blobs"], bytes)),
        "entries" => ChainAnswer::Entries(list(&map["items"], |item| EntryItem {
            entry: bytes(&item["entry"]),
            payload: maybe_bytes(&item["payload"]),
        })),
        "blob" => ChainAnswer::Blob { cid: cid(&map["cid"]), bytes: maybe_bytes(&map["bytes"]) },
        "end" => ChainAnswer::End,
        "error" => ChainAnswer::Error(error(map)),
        other => panic!("k {other}"),
    }
}

fn error(map: &Json) -> WireError {
    let code: Code = text(map, "code").parse().unwrap();
    map["detail"].as_str().map_or_else(|| WireError::new(code), |detail| WireError::with_detail(code, detail))
}

fn append_request(map: &Json) -> AppendRequest {
    AppendRequest {
        credentials: credentials(map),
        entry: bytes(&map["entry"]),
        payload: maybe_bytes(&map["payload"]),
    }
}

fn append_answer(map: &Json) -> AppendAnswer {
    match text(map, "k") {
        "accepted" => AppendAnswer::Accepted(Accepted {
            head: entry(&map["head"]),
            seq: seq(&map["seq"]),
            epoch: epoch(&map["epoch"]),
            replayed: map["replayed"] == true,
        }),
        "conflict" => {
            let base = &map["base"];
            AppendAnswer::Conflict {
                base: Base {
                    session: session(&base["genesis"]),
                    prev: entry(&base["prev"]),
                    seq: seq(&base["seq"]),
                    skip: maybe_entry(&base["skip"]),
                    epoch: epoch(&base["epoch"]),
                    holder: (!base["holder"].is_null()).then(|| principal(&base["holder"])),
                    not_before: UnixMillis::new(base["notBeforeMs"].as_u64().unwrap()).unwrap(),
                },
                between: list(&map["between"], bytes),
            }
        }
        "error" => AppendAnswer::Error(error(map)),
        other => panic!("k {other}"),
    }
}

fn handoff_request(map: &Json) -> HandoffRequest {
    let step = match text(map, "op") {
        "freeze" => HandoffStep::Freeze { epoch: epoch(&map["epoch"]) },
        "offer" => HandoffStep::Offer {
            epoch: epoch(&map["epoch"]),
            seq: seq(&map["seq"]),
            head: entry(&map["head"]),
            providers: list(&map["providers"], string),
        },
        "prepare" => HandoffStep::Prepare,
        "activate" => HandoffStep::Activate { handoff: bytes(&map["handoff"]) },
        "retire" => HandoffStep::Retire { handoff: bytes(&map["handoff"]), receipt: bytes(&map["receipt"]) },
        "abort" => HandoffStep::Abort,
        "status" => HandoffStep::Status,
        other => panic!("op {other}"),
    };
    HandoffRequest {
        credentials: credentials(map),
        move_id: MoveId::from_bytes(fixed(&map["move"])),
        session: session(&map["genesis"]),
        step,
    }
}

fn inventory(map: &Json) -> Option<Inventory> {
    let counts = |map: &Json| LinkCounts {
        here: map["here"].as_u64().unwrap(),
        missing: map["missing"].as_u64().unwrap(),
        withdrawn: map["withdrawn"].as_u64().unwrap(),
    };
    (!map.is_null()).then(|| Inventory {
        payloads: counts(&map["payloads"]),
        files: counts(&map["files"]),
        lacking: list(&map["lacking"], cid),
    })
}

fn handoff_answer(map: &Json) -> HandoffAnswer {
    if text(map, "k") == "error" {
        return HandoffAnswer::Error(error(map));
    }
    let state = match text(map, "state") {
        "frozen" => HandoffState::Frozen,
        "active" => HandoffState::Active { receipt: maybe_bytes(&map["receipt"]) },
        "retired" => HandoffState::Retired,
        "fetching" => HandoffState::Fetching { bytes: map["bytes"].as_u64().unwrap_or(0) },
        "offered" => HandoffState::Offered,
        "prepared" => HandoffState::Prepared {
            tools: list(&map["tools"], |tool| ToolState {
                name: string(&tool["name"]),
                available: tool["available"] == true,
            }),
            model: maybe_string(&map["model"]),
            inventory: inventory(&map["inventory"]),
        },
        "refused" => HandoffState::Refused { reason: string(&map["reason"]) },
        other => panic!("state {other}"),
    };
    HandoffAnswer::State(HandoffStatus {
        state,
        epoch: epoch(&map["epoch"]),
        seq: seq(&map["seq"]),
        head: maybe_entry(&map["head"]),
    })
}

// Announcements.

fn check_announcement(record: &Json, faults: &mut Faults) {
    let (name, map, topic) = (text(record, "name"), &record["decoded"], text(record, "topic"));
    let hint = &map["hint"];
    let message = announce::Message {
        blob: bytes(&map["blob"]),
        control: list(&map["control"], bytes),
        hint: announce::Hint {
            seq: seq(&hint["seq"]),
            epoch: epoch(&hint["epoch"]),
            iroh: (!hint["iroh"].is_null()).then(|| fixed(&hint["iroh"])),
            providers: list(&hint["providers"], string),
        },
    };
    let encoded = hex(record, "bytes_hex");
    faults.equal(name, message.encode().as_deref(), Ok(&encoded[..]));
    faults.equal(name, announce::Message::decode(&encoded).as_ref(), Ok(&message));

    let owner = announce::topic_owner(topic).unwrap();
    faults.equal(name, announce::topic(owner).as_str(), topic);
    let mut keys = VerifyingKeys::default();
    let checked = announce::check(owner, &encoded, &mut keys).unwrap();
    faults.equal(name, &checked.hint, &message.hint);
    let (kind, by_owner) = match checked.news {
        News::Head { .. } => ("Ref", name == "announce-ref"),
        News::Handoff { .. } => ("SessionHandoff", true),
        News::Tombstone(_) => ("CapabilityTombstone", true),
        News::Evidence(_) => ("evidence", true),
    };
    let expected = match name {
        "announce-ref" | "announce-holder-ref" => "Ref",
        "announce-handoff" => "SessionHandoff",
        "announce-tombstone" => "CapabilityTombstone",
        other => panic!("announcement {other}"),
    };
    faults.equal(name, kind, expected);
    // The holder's Ref came with the capability that it cites.
    faults.equal(name, matches!(checked.authority, Acting::Owner), by_owner);
    faults.equal(name, matches!(checked.authority, Acting::Under(_)), !by_owner);

    let code =
        |owner, bytes: &[u8]| announce::check(owner, bytes, &mut VerifyingKeys::default()).unwrap_err().code;
    faults.equal(name, code(Principal::from_key([9; 32]), &encoded), Code::Topic);
    let mut forged = message.clone();
    let mut blob = forged.blob.to_vec();
    let last = blob.len() - 1;
    blob[last] ^= 1;
    forged.blob = blob.into();
    let refused = announce::check(owner, &forged.encode().unwrap(), &mut keys).is_err();
    faults.equal(name, refused, true);
    let mut large = encoded.clone();
    large.resize(16_385, 0);
    faults.equal(name, code(owner, &large), Code::TooBig);
}

// Tickets.

fn check_ticket(record: &Json, faults: &mut Faults) {
    let (name, written, map) = (text(record, "name"), text(record, "ticket"), &record["decoded"]);
    let (peer, addresses) = (principal(&map["peer"]), list(&map["addrs"], string));
    let ticket = if written.starts_with("tlp1") {
        Ticket::Peer(PeerTicket { principal: principal(&map["principal"]), peer, addresses })
    } else {
        Ticket::Session(SessionTicket {
            owner: principal(&map["owner"]),
            session: session(&map["genesis"]),
            peer,
            addresses,
            grant: maybe_bytes(&map["grant"]),
        })
    };
    faults.equal(name, ticket.to_string().as_str(), written);
    faults.equal(name, written.parse::<Ticket>().as_ref(), Ok(&ticket));
}

// Blobs.

fn check_blob(record: &Json, faults: &mut Faults) {
    match text(record, "type") {
        "Capability" => sign_again::<Capability>(record, faults),
        "Ref" => sign_again::<Ref>(record, faults),
        kind if kind.starts_with("Session") => sign_again::<Entry>(record, faults),
        other => panic!("type {other}"),
    }
}

/// Reads the blob, signs its value again with the key of the vector and expects the same bytes.
fn sign_again<T: Writable + Clone>(record: &Json, faults: &mut Faults) {
    let (name, bytes) = (text(record, "name"), hex(record, "bytes_hex"));
    let read = Signed::<T>::check(bytes.clone(), &mut VerifyingKeys::default()).unwrap();
    let key = SigningKey::from_seed(&hex_array(record, "seed_hex"));
    let signed = build::sign(read.value().clone(), &key).unwrap();
    faults.equal(name, &signed.bytes()[..], &bytes[..]);
    faults.equal(name, signed.cid().to_string().as_str(), text(record, "cid"));
}

/// The two proofs of the frames, built by the rule and checked by it.
fn check_proofs(vectors: &Json, faults: &mut Faults) {
    let proofs = vectors["blobs"].as_array().unwrap().iter().filter(|blob| blob["description"] == "proof");
    let mut count = 0;
    for record in proofs {
        let (name, decoded, bytes) = (text(record, "name"), &record["decoded"], hex(record, "bytes_hex"));
        let (asker, answerer) = (principal(&decoded["delegate"]), principal(&decoded["audience"]));
        let ts = UnixMillis::new(decoded["ts"].as_u64().unwrap()).unwrap();
        let key = SigningKey::from_seed(&hex_array(record, "seed_hex"));
        let built = proof::build(&key, proof::Ends { mine: asker, theirs: answerer }, ts).unwrap();
        faults.equal(name, &built.bytes()[..], &bytes[..]);
        let ends = proof::Ends { mine: answerer, theirs: asker };
        let checked = proof::check(&bytes, &mut VerifyingKeys::default(), ends, ts);
        faults.equal(name, checked, Ok(text(record, "principal").parse().unwrap()));
        count += 1;
    }
    faults.equal("proofs", count, 2);
}

/// The CBOR body of an HTTP append is the append frame without its length; the JSON ones are for the node to read.
fn check_http_bodies(vectors: &Json, faults: &mut Faults) {
    for record in records(&vectors["http_bodies"], 3) {
        let name = text(record, "name");
        if text(record, "contentType") == "application/cbor" {
            let body = hex(record, "body_hex");
            let request = AppendRequest::decode_body(&body).unwrap();
            faults.equal(name, request.encode_body(), body);
            continue;
        }
        let body: Json = serde_json::from_str(text(record, "body")).unwrap();
        text(&body, "base").parse::<EntryCid>().unwrap();
        let entries = body["entries"].as_array().map_or(1, Vec::len);
        faults.equal(name, body["entry"].is_object(), entries == 1);
        faults.equal(name, (1..=256).contains(&entries), true);
    }
}

fn check_negatives(vectors: &Json, faults: &mut Faults) {
    let frames = vectors["vectors"].as_array().unwrap().iter().filter(|vector| vector["kind"] == "frame");
    let mut count = 0;
    for record in frames {
        let frame_bytes = hex(record, "bytes_hex");
        let code = match frame::read_length(&frame_bytes) {
            Err(reject) => reject.code,
            Ok(None) => panic!("{}: the length is cut short", text(record, "name")),
            Ok(Some(length)) => {
                ChainAnswer::decode_body(&frame_bytes[length.header_bytes..]).unwrap_err().code
            }
        };
        faults.equal(text(record, "name"), code.name(), text(record, "expect"));
        count += 1;
    }
    faults.equal("negative frames", count, 4);
}
