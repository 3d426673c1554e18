//! Files, CARs and damage.

use axum::http::Method;
use serde_json::{Value, json};
use throughline_node::api::client::Call;
use throughline_protocol::entry::Class;
use throughline_protocol::testing::SessionBuilder;
use throughline_protocol::unixfs::{FileBuilder, Layout};

use super::home::{Home, code, of, response};

const CAR: &str = "application/vnd.ipld.car";

/// Bytes that do not repeat.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

/// The CID that a file of these bytes has.
fn cid_of(bytes: &[u8]) -> String {
    let mut builder = FileBuilder::new(Layout::THROUGHLINE);
    drop(builder.push(bytes));
    builder.finish().1.root.to_string()
}

async fn export(home: &Home, session: &str) -> Vec<u8> {
    let path = format!("/v1/sessions/{session}/entries");
    home.client.fetch(Call::get(&path).header("accept", CAR)).await.unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_file_goes_in_and_comes_out() {
    let home = Home::bare().await;
    for (size, blocks) in [(0, 1), (1, 1), (1 << 20, 1), ((1 << 20) + 1, 6), (3 << 20, 13)] {
        let bytes = noise(size);
        let call = || {
            Call::body(Method::POST, "/v1/blobs", "image/png", bytes.clone()).header("x-filename", "a.png")
        };
        let (status, stored) = home.told(call()).await;
        assert_eq!((status, of(&stored, "cid")), (201, cid_of(&bytes)), "{size}");
        assert_eq!((&stored["sizeBytes"], &stored["blocks"]), (&json!(size), &json!(blocks)), "{size}");
        assert_eq!((&stored["mediaType"], &stored["name"]), (&json!("image/png"), &json!("a.png")));
        assert_eq!(home.told(call()).await.0, 200, "a second time is 200");
        let path = format!("/v1/blobs/{}", of(&stored, "cid"));
        let reply = home.client.open(Call::get(&path)).await.unwrap();
        assert_eq!(reply.headers["content-security-policy"], "sandbox");
        assert_eq!(reply.headers["content-disposition"], "attachment");
        assert!(reply.bytes().await.unwrap() == bytes, "{size}");
    }
    let refused =
        home.client.fetch(Call::get(&format!("/v1/blobs/{}", cid_of(b"nothing")))).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_NOT_FOUND_YET");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_arrived_broken_is_not_said_to_be_stored() {
    use data_encoding::BASE64;
    let home = Home::bare().await;
    let digest =
        |bytes: &[u8]| format!("sha-256=:{}:", BASE64.encode(&throughline_protocol::block::sha256(bytes)));
    let call = |digest: String| {
        Call::body(Method::POST, "/v1/blobs", "text/plain", b"hello".to_vec()).header("repr-digest", digest)
    };
    let (status, refused) = home.told(call(digest(b"hullo"))).await;
    assert_eq!((status, code(&refused)), (422, "E_CID_MISMATCH"));
    assert_eq!(home.told(call(digest(b"hello"))).await.0 / 100, 2);
    assert_eq!(code(&home.told(call("md5=:x:".to_owned())).await.1), "E_API_BODY");
}

/// A session with a picture of several blocks in an answer; its name, head, and the picture.
async fn with_picture(home: &Home) -> (String, String, Vec<u8>) {
    let bytes = noise(2 << 20);
    let (_, stored) = home.told(Call::body(Method::POST, "/v1/blobs", "image/png", bytes.clone())).await;
    let (session, head) = home.session("look").await;
    let mut entry = response("here it is");
    let media = json!({"type": "media", "cid": stored["cid"], "size": bytes.len(), "mediaType": "image/png"});
    entry["content"].as_array_mut().unwrap().push(media);
    let path = format!("/v1/sessions/{session}/entries");
    let (status, answer) = home.post_as(&path, "picture", &json!({"base": head, "entry": entry})).await;
    assert_eq!(status, 201, "{answer}");
    (session, of(&answer["head"], "cid"), bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_an_entry_names_outlives_its_lease() {
    let home = Home::new().await;
    let (_, _, bytes) = with_picture(&home).await;
    let (_, loose) = home.told(Call::body(Method::POST, "/v1/blobs", "image/png", noise(100))).await;
    let at = throughline_node::core::now().get() + 2 * throughline_node::core::LEASE_MS;
    let later = throughline_protocol::id::UnixMillis::new(at).unwrap();
    home.node.store().run(throughline_store::Sweep { now: later, events_kept: 100_000 }).unwrap();
    let read = home.client.fetch(Call::get(&format!("/v1/blobs/{}", cid_of(&bytes)))).await.unwrap();
    assert!(read == bytes, "all blocks of it are kept, not only the root");
    let gone = home.client.fetch(Call::get(&format!("/v1/blobs/{}", of(&loose, "cid")))).await.unwrap_err();
    assert_eq!(gone.code().name(), "E_NOT_FOUND_YET");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_moves_as_a_file() {
    let home = Home::new().await;
    let (session, head, bytes) = with_picture(&home).await;
    // What nobody put in order yet goes along, and is not the head.
    let (entry, payload) = home.message(&session, &home.owner, None, super::home::says("pending")).await;
    assert_eq!(home.post_signed(&session, &entry, Some(&payload), &[]).await.0, 201);
    let car = export(&home, &session).await;
    let other = Home::bare().await;
    let before = other.node.reader().unwrap().stats().unwrap();
    let checked = other.send("/v1/verify", CAR, car.clone()).await.unwrap();
    assert_eq!(
        (&checked["verdict"], &checked["checks"]["head"]["result"]),
        (&json!("valid"), &json!("pass"))
    );
    let tried = other.send("/v1/car?dryRun=1", CAR, car.clone()).await.unwrap();
    assert_eq!((&tried["adopted"], &tried["verdict"]), (&json!(false), &json!("valid")));
    assert_eq!(other.node.reader().unwrap().stats().unwrap(), before, "checking stores nothing");

    let taken = other.send("/v1/car", CAR, car.clone()).await.unwrap();
    assert_eq!(
        (&taken["adopted"], &taken["created"], &taken["adoptedEntries"]),
        (&json!(true), &json!(true), &json!(4))
    );
    let shown = other.get(&format!("/v1/sessions/{session}")).await.unwrap();
    assert_eq!((of(&shown["head"], "cid"), &shown["title"]), (head, &json!("Test")));
    assert_eq!((of(&shown["tip"], "cid"), &shown["pending"]), (entry.cid().to_string(), &json!(1)));
    assert_eq!(other.verdict(&session).await, "valid");
    let again = other.send("/v1/car", CAR, car.clone()).await.unwrap();
    assert_eq!((&again["created"], &again["adoptedEntries"]), (&json!(false), &json!(0)));
    // Out again, the same bytes; and the picture stays after its lease.
    assert!(export(&other, &session).await == car);
    let at = throughline_node::core::now().get() + 2 * throughline_node::core::LEASE_MS;
    let later = throughline_protocol::id::UnixMillis::new(at).unwrap();
    other.node.store().run(throughline_store::Sweep { now: later, events_kept: 100_000 }).unwrap();
    assert!(other.client.fetch(Call::get(&format!("/v1/blobs/{}", cid_of(&bytes)))).await.unwrap() == bytes);
    // Without payloads the chain still verifies.
    let path = format!("/v1/sessions/{session}/entries?payloads=none");
    let bare = home.client.fetch(Call::get(&path).header("accept", CAR)).await.unwrap().to_vec();
    assert!(bare.len() < car.len() / 100);
    assert_eq!(other.send("/v1/verify", CAR, bare).await.unwrap()["verdict"], "valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_cut_or_changed_leaves_nothing() {
    let home = Home::new().await;
    let (session, head) = home.session("hello").await;
    home.append(&session, &head, "hi").await;
    let car = export(&home, &session).await;
    let other = Home::bare().await;
    let before = other.node.reader().unwrap().stats().unwrap();
    for cut in [0, 1, 40, car.len() / 2, car.len() - 1] {
        let refused = other.send("/v1/car", CAR, car[..cut].to_vec()).await.unwrap_err();
        assert!(refused.code().name().starts_with("E_CAR_"), "{cut}: {refused}");
    }
    for at in (60..car.len()).step_by(97) {
        let mut changed = car.clone();
        changed[at] ^= 1;
        match other.send("/v1/car", CAR, changed).await {
            Err(_) => {}
            Ok(answer) => assert_eq!(answer["adopted"], false, "{at}: {answer}"),
        }
    }
    let mut after = other.node.reader().unwrap().stats().unwrap();
    after.opens = before.opens;
    assert_eq!(after, before);
    // Told against another head, the same file is not what was told.
    let path = format!("/v1/verify?head={head}");
    let checked = other.send(&path, CAR, car).await.unwrap();
    assert_eq!(checked["checks"]["head"]["result"], "fail", "{checked}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fixtures_give_their_verdicts_and_keep_their_evidence() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/fixtures");
    let expected: Value =
        serde_json::from_slice(&std::fs::read(format!("{root}/fixtures.json")).unwrap()).unwrap();
    for (name, expected) in expected.as_object().unwrap() {
        let home = Home::bare().await;
        let before = home.node.reader().unwrap().stats().unwrap();
        let car = std::fs::read(format!("{root}/{name}")).unwrap();
        let checked = home.send("/v1/verify", CAR, car.clone()).await.unwrap();
        assert_eq!(checked["verdict"], expected["verdict"], "{name}");
        let answer = home.send("/v1/car", CAR, car).await.unwrap();
        assert_eq!(answer["verdict"], expected["verdict"], "{name}");
        let session = of(expected, "session");
        if matches!(expected["verdict"].as_str().unwrap(), "corrupt" | "incomplete") {
            assert_eq!(answer["adopted"], false, "{name}");
            assert_eq!(home.node.reader().unwrap().stats().unwrap(), before, "{name}");
            continue;
        }
        assert_eq!(home.verdict(&session).await, of(expected, "verdict"), "{name}");
        // Every entry of the file is held, on the chain or beside it.
        let stats = home.node.reader().unwrap().stats().unwrap();
        let entries = checked["checks"]["chain"]["entries"].as_u64().unwrap();
        assert_eq!(stats.entries + stats.side_entries, entries, "{name}");
        // It goes out again as it came in, evidence included.
        let out = export(&home, &session).await;
        let again = home.send("/v1/verify", CAR, out).await.unwrap();
        // A tail that is longer than what counts has no room before the head that the file tells.
        let cut = expected["verdict"] == "revoked-tail" && again["verdict"] == "valid";
        assert!(cut || again["verdict"] == expected["verdict"], "{name}: {again}");
        let reopened = home.reopened();
        assert_eq!(reopened.verdict(&session).await, of(expected, "verdict"), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_session_comes_in_in_batches() {
    let mut builder = SessionBuilder::new("long");
    let server = builder.server1.clone();
    let first = builder.response(&server, "first", &["c1"]);
    for at in 0..2_500 {
        builder.response(&server, &at.to_string(), &[]);
    }
    // A link that reaches beyond a batch.
    builder.tool(&server, first, "c1", "late");
    let home = Home::bare().await;
    home.take_in(&builder, builder.entries()).unwrap();
    let session = builder.session().to_string();
    let car = export(&home, &session).await;
    let other = Home::bare().await;
    let answer = other.send("/v1/car", CAR, car).await.unwrap();
    assert_eq!((&answer["verdict"], &answer["adoptedEntries"]), (&json!("valid"), &json!(2_503)));
    assert_eq!(other.verdict(&session).await, "valid");
}

/// Flips one byte of a file under `dir` that holds `needle`, if one does.
fn damage(dir: &std::path::Path, needle: &[u8]) -> bool {
    std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap).any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return damage(&path, needle);
        }
        let mut bytes = std::fs::read(&path).unwrap();
        let found = bytes.windows(needle.len()).position(|window| window == needle);
        if let Some(at) = found {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
        found.is_some()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_on_the_disk_is_found_and_never_served() {
    let home = Home::new().await;
    let (session, head, bytes) = with_picture(&home).await;
    let clean = home.post("/v1/fsck", &json!({"repair": false})).await.unwrap();
    assert_eq!((&clean["problems"], &clean["problemCount"]), (&json!([]), &json!(0)));
    assert_eq!(clean["checked"]["entries"], 3);
    assert!(damage(&home.node.dirs().payloads(), &bytes[..64]));
    let found = home.post("/v1/fsck", &json!({})).await.unwrap();
    assert_eq!(found["problems"][0]["code"], "E_STORE_CORRUPT", "{found}");
    let path = format!("/v1/blobs/{}", cid_of(&bytes));
    let refused = home.client.fetch(Call::get(&path)).await.unwrap_err();
    assert_eq!(refused.code().name(), "E_STORE_CORRUPT");
    // An export that would need it breaks off: a cut file never looks whole.
    let path = format!("/v1/sessions/{session}/entries");
    let reply = home.client.send(Call::get(&path).header("accept", CAR)).await.unwrap();
    let ended = reply.status.is_success() && reply.bytes().await.is_ok();
    assert!(!ended);
    // The chain itself is whole.
    assert_eq!(home.verdict(&session).await, "valid");
    home.append(&session, &head, "on").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_left_of_a_body_goes() {
    let home = Home::new().await;
    let staging = home.node.dirs().staging();
    std::fs::write(staging.join(".tmpABC"), "half a CAR").unwrap();
    let _home = home.reopened();
    assert_eq!(std::fs::read_dir(staging).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_problems_whatever_went_wrong() {
    let home = Home::new().await;
    let cases = [
        (Call::get("/v1/nothing"), 404, "E_API_ROUTE"),
        (Call::get("/v1/sessions/short"), 400, "E_API_PATH"),
        (Call::get("/v1/status?session=short"), 400, "E_API_QUERY"),
        (Call::get("/v1/events?session=short"), 400, "E_API_QUERY"),
        (Call::get("/v1/sessions?cursor=short"), 400, "E_API_QUERY"),
        (Call::get("/v1/sessions?limit=many"), 400, "E_API_QUERY"),
        (Call::body(Method::POST, "/v1/sessions", "application/json", "{"), 400, "E_JSON"),
        (Call::body(Method::POST, "/v1/sessions", "application/json", "[]"), 400, "E_API_BODY"),
        (
            Call::body(Method::POST, "/v1/sessions", "application/json", vec![b' '; (4 << 20) + 1]),
            413,
            "E_TOO_BIG",
        ),
        (Call::body(Method::POST, "/v1/blobs?dryRun=1", "text/plain", "x"), 400, "E_API_QUERY"),
        (Call::body(Method::POST, "/v1/peers?dryRun=1", "application/json", "{}"), 400, "E_API_QUERY"),
        (Call::body(Method::POST, "/v1/stop?dryRun=1", "application/json", "{}"), 400, "E_API_QUERY"),
    ];
    for (call, status, name) in cases {
        let (got, problem) = home.told(call).await;
        assert_eq!((got, code(&problem)), (status, name), "{problem}");
        assert_eq!(problem["status"], status);
        assert!(problem["hint"].is_string() && problem["explain"].is_string(), "{problem}");
    }
    let document = home.get("/v1/openapi.json").await.unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert!(document["paths"]["/v1/sessions/{session}/entries"]["post"].is_object());
    assert_eq!(Class::default(), Class::Internal);
}
