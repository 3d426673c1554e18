use super::*;
use crate::content::{CallPart, TextPart};
use crate::entry::{Model, ModelResponse, Note, Origin, Usage, UserMessage};
use crate::id::{Principal, UnixMillis};

const SALT: Salt = [9; 32];

fn entry(body: Body, payload: PayloadRef) -> Entry {
    Entry {
        ts: UnixMillis::new(1).unwrap(),
        signer: Principal::from_key([1; 32]),
        authority: None,
        place: None,
        body,
        payload: Some(payload),
        ext: None,
    }
}

fn message(text: &str) -> PayloadDraft {
    PayloadDraft::new(Words::UserMessage(UserWords {
        body: vec![Block::paragraph("b1", text)],
        ..UserWords::default()
    }))
}

fn user() -> Body {
    Body::UserMessage(UserMessage::default())
}

#[test]
fn what_is_built_is_what_is_read() {
    let mut draft = message("hello");
    draft.ext = Some(Map::new().with("note", "kept"));
    let (bytes, named) = draft.build(&user(), SALT).unwrap();
    let payload = Payload::check(&entry(user(), named), bytes).unwrap();
    assert_eq!(payload.words(), &draft.words);
    assert_eq!((payload.salt(), payload.ext()), (&SALT, draft.ext.as_ref()));
    assert_eq!((payload.text().as_str(), payload.named()), ("hello", named));
}

#[test]
fn length_comes_before_hash_and_hash_before_form() {
    let (bytes, named) = message("hello").build(&user(), SALT).unwrap();
    let check = |bytes: Vec<u8>| Payload::check(&entry(user(), named), bytes).unwrap_err().code;
    assert_eq!(check(bytes[1..].to_vec()), Code::SchemaLen);
    assert_eq!(check(vec![0xff; bytes.len()]), Code::CidMismatch);
    assert_eq!(check(vec![0; limits::PAYLOAD_BYTES_MAX + 1]), Code::TooBig);
}

#[test]
fn a_payload_at_the_limit_is_taken_and_one_byte_more_is_not() {
    let overhead = message("").build(&user(), SALT).unwrap().0.len();
    // The head of a text above 64 KiB takes five bytes, that of an empty one takes one.
    let room = limits::PAYLOAD_BYTES_MAX - overhead - 4;
    assert_eq!(message(&"a".repeat(room)).build(&user(), SALT).unwrap().0.len(), limits::PAYLOAD_BYTES_MAX);
    assert_eq!(message(&"a".repeat(room + 1)).build(&user(), SALT).unwrap_err().code, Code::TooBig);
}

#[test]
fn words_of_another_type_are_refused() {
    assert_eq!(message("hello").build(&Body::Note(Note::Title), SALT).unwrap_err().code, Code::SchemaUnknown);
    // Fields that fit by chance are still another type's words.
    let reason = PayloadDraft::new(Words::Rewind(None));
    let genesis = Words::Genesis(GenesisWords::default());
    let rewind = Body::Note(Note::Rewind { to: EntryCid::of(b"to") });
    assert!(reason.build(&rewind, SALT).is_ok());
    assert_eq!(PayloadDraft::new(genesis).build(&rewind, SALT).unwrap_err().code, Code::SchemaType);
    assert_eq!(reason.build(&Body::Note(Note::Resume), SALT).unwrap_err().code, Code::SchemaUnknown);
}

#[test]
fn null_is_refused_where_keys_are_open() {
    let mut block = Block::paragraph("b1", "hello");
    block.attributes = Map::new().with("width", Value::Null);
    let draft = Words::UserMessage(UserWords { body: vec![block], ..UserWords::default() });
    assert_eq!(PayloadDraft::new(draft).build(&user(), SALT).unwrap_err().code, Code::SchemaNull);
}

#[test]
fn content_ends_at_64_levels() {
    let nested = |levels: usize| {
        let value = (0..levels).fold(Value::Int(1), |value, _| Value::List(vec![value]));
        let part = TextPart { extra: Map::new().with("deep", value), ..TextPart::default() };
        let words = Words::ToolCall(ToolWords { content: vec![Content::Text(part)], ..ToolWords::default() });
        let call = Body::ToolCall(crate::entry::ToolCall {
            name: "bash".to_owned(),
            call_id: "c1".to_owned(),
            outcome: crate::entry::Outcome::Ok,
            response: None,
            produced: Vec::new(),
            child: None,
            duration_ms: 0,
        });
        PayloadDraft::new(words).build(&call, SALT).map(|_| ()).map_err(|reject| reject.code)
    };
    // Payload, content, part: the value under `deep` is at level 4.
    assert_eq!(nested(60), Ok(()));
    assert_eq!(nested(61), Err(Code::CborDepth));
}

#[test]
fn an_envelope_is_the_one_that_the_entry_names() {
    let relayed = |hash: Option<[u8; 32]>| {
        Body::UserMessage(UserMessage {
            origin: hash.map(|_| Origin::Relayed),
            answers: None,
            envelope: hash,
        })
    };
    let words = |envelope: Option<&[u8]>| {
        Words::UserMessage(UserWords { envelope: envelope.map(<[u8]>::to_vec), ..UserWords::default() })
    };
    let build = |hash, envelope| PayloadDraft::new(words(envelope)).build(&relayed(hash), SALT).map(|_| ());
    let hash = sha256(b"action");
    assert_eq!(build(Some(hash), Some(b"action")), Ok(()));
    assert_eq!(build(Some(hash), Some(b"other")).unwrap_err().code, Code::CidMismatch);
    assert_eq!(build(Some(hash), None).unwrap_err().code, Code::SchemaMissing);
    assert_eq!(build(None, Some(b"action")).unwrap_err().code, Code::SchemaExclusive);
}

#[test]
fn import_salts_follow_the_written_rule() {
    // HKDF-SHA-256 and HMAC-SHA-256 of the rule, computed with Python's hmac and hashlib.
    let salts = ImportSalts::new(&[7; 32]);
    let hex = |bytes: &[u8]| data_encoding::HEXLOWER.encode(bytes);
    assert_eq!(
        hex(&salts.salt("claude-code", "s-1", RecordId::Id("u-3"), "SessionUserMessage")),
        "f6e5be984c30a5471bb03561f95ac87cf5629ebe3a69688b61527f589f5f55b1"
    );
    assert_eq!(
        hex(&salts.salt("claude-code", "s-1", RecordId::Line(3), "SessionUserMessage")),
        "05117e9bbf33e442228fa27705ab068107cc5ff7daf7f066bc539743c0f59f2f"
    );
    assert_eq!(hex(&salts.nonce("claude-code", "s-1")), "bf9fe91405e568c263e162b89d0491e8");
    assert_eq!(
        hex(&salts.genesis_salt("claude-code", "s-1")),
        "2342105088087f30076412530237c603c7a49c7386c3afc497eb4fc0765c7acc"
    );
}

#[test]
fn damaged_payloads_are_refused_or_are_other_canonical_ones() {
    let mut words = UserWords { body: vec![Block::paragraph("b1", "hello")], ..UserWords::default() };
    words.attachments.push(Attachment {
        cid: EntryCid::of(b"file").cid(),
        size: 300,
        media_type: "text/plain".to_owned(),
        name: Some("notes.txt".to_owned()),
    });
    words.context = Some("context".to_owned());
    let (bytes, _) = PayloadDraft::new(Words::UserMessage(words)).build(&user(), SALT).unwrap();
    let (mut taken, mut refused) = (0, 0);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let named = PayloadRef { cid: EntryCid::of(&damaged), size: damaged.len() as u64 };
            match Payload::check(&entry(user(), named), damaged.as_slice()) {
                Err(_) => refused += 1,
                Ok(payload) => {
                    taken += 1;
                    let draft = PayloadDraft { words: payload.words().clone(), ext: payload.ext().cloned() };
                    assert_eq!(draft.build(&user(), *payload.salt()).unwrap(), (damaged, named));
                }
            }
        }
    }
    // Salt, text and digest bits give other payloads; heads, keys and kinds do not.
    assert!(taken > 500 && refused > 500, "{taken} taken, {refused} refused");
}

#[test]
fn the_calls_of_a_response_have_different_ids() {
    let build = |ids: [&str; 2]| {
        let calls =
            ids.map(|id| CallPart { call_id: id.to_owned(), name: "bash".to_owned(), ..CallPart::default() });
        let content = calls.map(Content::ToolCall).to_vec();
        let words = Words::ModelResponse(ResponseWords { content, ..ResponseWords::default() });
        PayloadDraft::new(words).build(&Body::ModelResponse(response()), SALT)
    };
    assert!(build(["a", "b"]).is_ok());
    assert_eq!(build(["a", "a"]).unwrap_err().code, Code::SchemaExclusive);
}

fn response() -> ModelResponse {
    ModelResponse {
        model: Model { provider: "anthropic".to_owned(), id: "claude-x".to_owned(), api: None },
        calls: Vec::new(),
        usage: Usage::default(),
        stop_reason: None,
        status: None,
        config: None,
        duration_ms: 0,
    }
}

#[test]
fn a_payload_of_tiny_items_is_refused_before_it_is_decoded() {
    let body = Body::Note(Note::Title);
    // {"a": [[], [], …]}: one byte an item, and each would become a value of many.
    let of = |heads: usize| {
        let items = heads - 3;
        let mut bytes = vec![0xa1, 0x61, b'a', 0x9a];
        bytes.extend(u32::try_from(items).unwrap().to_be_bytes());
        bytes.extend(vec![0x80; items]);
        bytes
    };
    let read =
        |bytes: Vec<u8>| Payload::read(&body, bytes.clone().into(), EntryCid::of(&bytes)).unwrap_err().code;
    assert_eq!(read(of(limits::PAYLOAD_HEADS_MAX + 1)), Code::TooBig);
    // One less is refused for what it says, not for its size.
    assert_eq!(read(of(limits::PAYLOAD_HEADS_MAX)), Code::SchemaUnknown);
    assert_eq!(crate::seed::open_seed(&of(limits::PAYLOAD_HEADS_MAX + 1)).unwrap_err().code, Code::TooBig);
    assert!(crate::seed::open_seed(&of(limits::PAYLOAD_HEADS_MAX)).is_ok());
}
